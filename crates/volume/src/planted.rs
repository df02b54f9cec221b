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
    /// A server knows no inode whose maker has not reported it yet.
    MakerUnheard = 36 => "inode unknown before its maker has reported it",
    /// A client truncates a file before it commits the data that the file keeps.
    SizeBeforeData = 9 => "size durable before the data",
    /// A client takes a name for absent that another session changes, in a directory of which it knows all names.
    AbsentNameKept = 29 => "absent name kept past its change",
    /// A new server does only the first of the operations that a session repeats.
    RepeatedInPart = 30 => "operations repeated in part",
    /// A client repeats operations in another order.
    RepeatedInOtherOrder = 31 => "operations repeated in another order",
    /// A new server does operations again that are durable.
    RepeatedTwice = 32 => "operations repeated twice",
    /// A new server gives numbers of inodes again that a lost session was given.
    NumberUsedTwice = 33 => "inode number used twice after a lost session",
    /// A directory may be moved below itself.
    CircleUnchecked = 34 => "directory moved below itself",
    /// A directory that moves to another parent is answered before that is durable.
    MovesEarly = 35 => "move of a directory answered early",
    /// An operation is answered early behind one of its session that waits for the disk.
    AnsweredOutOfOrder = 17 => "answered before an earlier operation",
    /// Attributes change before other sessions have given them back.
    ChangeUnwaited = 18 => "attributes changed while others keep them",
    /// What comes with the answer to a change is kept although it was asked back since.
    GrantKeptAfterRecall = 19 => "grant with a change kept after its recall",
    /// The answer to a question is kept although what it shows was asked back or changed since.
    LateAnswerKept = 20 => "late answer kept",
    /// What a session keeps is used after the lease.
    KeptPastLease = 21 => "names and attributes kept past the lease",
    /// A session gives back what its kernel still shows.
    ReturnedUnforgotten = 22 => "given back before the kernel has forgotten it",
    /// What the kernel shows under the old name of a rename is not noted for the new name.
    RenamedNameForgotten = 23 => "renamed name not known to be shown",
    /// A new server shows and changes names before earlier sessions have repeated their operations.
    NamesInGrace = 24 => "names shown and changed in grace",
    /// A file without a name is freed while it is open and written back.
    FreedWhileOpen = 25 => "unlink overtaken by the write-back of its file",
    /// A file replaces another one before its data is committed.
    ReplacedBeforeData = 26 => "file replaced before the data of the new one",
    /// An operation is done before an earlier one of its session that waits for another session.
    OvertakenOperation = 27 => "operation done before one that waits",
    /// An answer depends on changes of others that are not durable, and counts as the session's own.
    DependenceIgnored = 28 => "changes of others counted as own",
    /// A kernel is told in one call that two names are one inode, which another host moved in between.
    MovedNameSame = 37 => "two names of a moved inode in one call",
    /// A client uses the token of a file that it has made, and does not request it.
    AheadUnsaid = 38 => "token used ahead and not requested",
}
