//! Planted bugs, switched on one at a time, so that tests can show that their checks catch them.

nectary_block::planted_bugs! {
    /// An append is acknowledged before the disk has flushed it.
    AcknowledgedBeforeFlush = 1 => "append acknowledged before the flush",
    /// A manifest is written before its runs are flushed.
    ManifestBeforeRuns = 2 => "manifest before its runs are flushed",
    /// Replay reads appends that a leader wrote after the next one took over.
    SealIgnored = 3 => "late append after the seal is read",
    /// Space that a checkpoint freed is reused before the pointer to the checkpoint is stored.
    PointerSkipped = 4 => "segment used again while it is needed",
    /// A leader continues although another contender has a higher ballot.
    BallotIgnored = 5 => "higher ballot ignored",
    /// A client commits data before the disk has flushed it.
    CommitBeforeFlush = 6 => "commit before the data is flushed",
    /// A server answers an operation before the operation is durable.
    AnsweredEarly = 7 => "operation answered before it is durable",
    /// A server shows what another session did before it is durable.
    ShownEarly = 8 => "shown to another session before it is durable",
    /// A server gives inode numbers to a client, and to others as well.
    NumbersNotTaken = 10 => "inode numbers given to two sessions",
    /// A client uses the number of an inode twice.
    NumberTwice = 11 => "inode number is used twice",
    /// A client answers changes of names itself after its lease.
    LocalUnleased = 12 => "names changed without a lease",
    /// A client removes a name itself whose inode others may know.
    OthersUnlinked = 13 => "name of an inode that others know removed",
    /// A server shows a directory that another session holds, before this one returns it.
    HeldShown = 14 => "directory shown before its return",
    /// A client returns a directory on the other connection than its operations.
    ReturnOvertakes = 15 => "return overtakes operations",
    /// A server does again what a client repeats on a new connection.
    LocalTwice = 16 => "repetition done twice",
    /// A client truncates a file before it commits the data that the file keeps.
    SizeBeforeData = 9 => "size durable before the data",
}
