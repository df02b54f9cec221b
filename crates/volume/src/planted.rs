//! Deliberate defects, one at a time, by which tests show that their checks catch them.

nectary_block::planted_bugs! {
    /// An append is acknowledged before it is flushed.
    AcknowledgedBeforeFlush = 1 => "append acknowledged before the flush",
    /// A manifest is written before its runs are flushed.
    ManifestBeforeRuns = 2 => "manifest before its runs are flushed",
    /// Appends that a leader writes after the next one took over are read.
    SealIgnored = 3 => "late append after the seal is read",
    /// Space that a checkpoint freed is used again before the pointer to the checkpoint is stored.
    PointerSkipped = 4 => "segment used again while it is needed",
    /// A leader goes on although another one has a higher ballot.
    BallotIgnored = 5 => "higher ballot ignored",
    /// A client commits what it wrote before the disk has flushed it.
    CommitBeforeFlush = 6 => "commit before the data is flushed",
    /// A server answers an operation before it is durable.
    AnsweredEarly = 7 => "operation answered before it is durable",
    /// A server shows what another session did before it is durable.
    ShownEarly = 8 => "shown to another session before it is durable",
}
