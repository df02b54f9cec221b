//! Deliberate defects, one at a time, by which tests show that their checks catch them.
//!
//! Without the feature `planted` this module is private and every question is answered `false` at compile time, so that no
//! user's build has them.

nectary_block::planted_bugs! {
    /// A purge returns, and a sync reports, without the device having been flushed.
    FlushDropped = 1 => "flush dropped",
    /// Checksums are not compared.
    ChecksumSkipped = 2 => "checksum skipped",
    /// Purge records are not applied after a restart.
    PurgeRecordIgnored = 3 => "purge record ignored",
    /// A fill that began before a purge may still be committed.
    StaleGenerationAccepted = 4 => "stale generation accepted",
    /// The header of an append or purge block is believed though it is torn.
    TornHeaderAccepted = 5 => "torn header accepted",
    /// A frame of a former store, or of a former cycle of its segment, is believed.
    FormerFrameAccepted = 6 => "frame of a former store or cycle accepted",
    /// What was purged is re-inserted all the same, as if it had been put again.
    ReinsertionIgnoresPurge = 7 => "re-insertion that ignores a purge",
    /// What was replaced is re-inserted all the same.
    ReinsertionIgnoresReplacement = 8 => "re-insertion that ignores a newer version",
    /// What was written after a checkpoint's log position is not replayed.
    CheckpointPositionIgnored = 9 => "checkpoint without its log position",
    /// Records of purges of everything are not applied after a restart.
    PurgeAllIgnored = 10 => "purge of everything ignored",
    /// Records of purges by prefix are not applied after a restart.
    PurgePrefixIgnored = 11 => "purge by prefix ignored",
    /// What was purged comes into memory with a neighbour's read, as if it had been put again.
    NeighbourIgnoresPurge = 12 => "neighbour that ignores a purge",
    /// What was replaced comes into memory with a neighbour's read.
    NeighbourIgnoresReplacement = 13 => "neighbour that ignores a newer version",
    /// A purge by tag does not keep re-insertion from writing what it killed, as if it had been put again.
    ReinsertionIgnoresTagPurge = 14 => "re-insertion that ignores a purge by tag",
    /// Purges by tag are not applied to what is in memory.
    MemoryIgnoresTagPurge = 15 => "purge by tag not applied to memory",
    /// Records of purges by tag are not applied after a restart.
    PurgeTagIgnored = 16 => "purge by tag ignored",
    /// Where a purge by tag killed a version, what it had replaced is found in its place.
    TagPurgeUncovers = 17 => "purge by tag that uncovers what was replaced",
    /// What was written before the store was opened is mistaken for absent when it is purged.
    NamesNotRead = 19 => "names written before the store was opened mistaken for absent",
    /// What was purged comes back into memory with the hot list, as if it had been put again.
    HotListIgnoresPurge = 20 => "hot list that ignores a purge",
    /// What was replaced comes back into memory with the hot list.
    HotListIgnoresReplacement = 21 => "hot list that ignores a newer version",
    /// A span that was away is believed when it comes back.
    ReturningSpanTrusted = 28 => "returning span that is trusted",
    /// What a span held for another in an earlier absence is believed in a later one.
    StandInTrusted = 29 => "stand-in of an earlier absence that is trusted",
    /// A span that missed the change by which another came back believes what it holds for that one.
    ReturnMissed = 30 => "return that a span missed",
    /// A span that was put back as it was earlier is believed, though others know of purges since.
    OlderCopyTrusted = 31 => "older copy of a span that is trusted",
    /// The lengths in a record's header are not compared with the header's own.
    RecordBoundUnchecked = 32 => "lengths in a record unchecked",
    /// Where an append's table says that a record lies is not compared with the append's length.
    AppendBoundUnchecked = 33 => "places in an append's table unchecked",
    /// How far an entry of a checkpoint stands from its home is not compared with where it stands.
    CheckpointSlotUnchecked = 34 => "slots of a checkpoint unchecked",
    /// What is not admitted replaces what is on the disk in memory alone.
    UnadmittedLeavesOlder = 48 => "replacement in memory alone of what is on the disk",
    /// What is written is not debited from the write budget.
    WriteBudgetNotDebited = 49 => "write budget that is not debited",
    /// What was read goes into memory without a look at what has changed meanwhile.
    ReadUnchecked = 50 => "read that goes into memory unchecked",
    /// Of more than eight purges that share a block of the log the last is left out.
    PurgeOfManyUnlogged = 51 => "last of many purges not logged",
    /// A purge log that is shorter than appends say is believed.
    ShortPurgeLogBelieved = 52 => "shortened purge log believed",
    /// Entries count as written when their write begins.
    WrittenTooEarly = 53 => "written before the write ended",
    /// A new cycle of the purge log counts as durable without a flush.
    CompactionUnflushed = 54 => "compaction of the purge log not flushed",
}

/// What brings which to light.
#[cfg(feature = "planted")]
impl Bug {
    /// All that a crash or a flipped bit brings to light.
    pub const ALL: [Bug; 18] = [
        Bug::FlushDropped,
        Bug::ChecksumSkipped,
        Bug::PurgeRecordIgnored,
        Bug::StaleGenerationAccepted,
        Bug::TornHeaderAccepted,
        Bug::FormerFrameAccepted,
        Bug::ReinsertionIgnoresPurge,
        Bug::ReinsertionIgnoresReplacement,
        Bug::CheckpointPositionIgnored,
        Bug::PurgeAllIgnored,
        Bug::PurgePrefixIgnored,
        Bug::NeighbourIgnoresPurge,
        Bug::NeighbourIgnoresReplacement,
        Bug::ReinsertionIgnoresTagPurge,
        Bug::PurgeTagIgnored,
        Bug::TagPurgeUncovers,
        Bug::HotListIgnoresPurge,
        Bug::HotListIgnoresReplacement,
    ];

    /// What answers of a running store bring to light.
    pub const RUNNING: [Bug; 3] = [Bug::MemoryIgnoresTagPurge, Bug::TagPurgeUncovers, Bug::NamesNotRead];

    /// What a store that does not admit everything brings to light: answers, and how much is written.
    pub const ADMISSION: [Bug; 2] = [Bug::UnadmittedLeavesOlder, Bug::WriteBudgetNotDebited];

    /// What only operations that overlap bring to light.
    pub const CONCURRENT: [Bug; 5] = [
        Bug::ReadUnchecked,
        Bug::PurgeOfManyUnlogged,
        Bug::ShortPurgeLogBelieved,
        Bug::WrittenTooEarly,
        Bug::CompactionUnflushed,
    ];

    /// What the loss and the return of spans bring to light.
    pub const SPANS: [Bug; 4] =
        [Bug::ReturningSpanTrusted, Bug::StandInTrusted, Bug::ReturnMissed, Bug::OlderCopyTrusted];

    /// Bounds that decoders leave out: what fuzz targets must find.
    pub const DECODERS: [Bug; 3] = [Bug::RecordBoundUnchecked, Bug::AppendBoundUnchecked, Bug::CheckpointSlotUnchecked];
}
