//! Deliberate defects, one at a time, by which tests show that their checks catch them.
//!
//! Without the feature `planted` this module is private and every question is answered `false` at compile time, so that
//! no user's build has them.

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
    /// Purged objects are re-inserted too, as if they had been put again.
    ReinsertionIgnoresPurge = 7 => "re-insertion that ignores a purge",
    /// Replaced objects are re-inserted too.
    ReinsertionIgnoresReplacement = 8 => "re-insertion that ignores a newer version",
    /// Appends written after a checkpoint's log position are not replayed.
    CheckpointPositionIgnored = 9 => "checkpoint without its log position",
    /// Records of purges of everything are not applied after a restart.
    PurgeAllIgnored = 10 => "purge of everything ignored",
    /// Records of purges by prefix are not applied after a restart.
    PurgePrefixIgnored = 11 => "purge by prefix ignored",
    /// A purged object comes into memory with a neighbour's read, as if it had been put again.
    NeighbourIgnoresPurge = 12 => "neighbour that ignores a purge",
    /// A replaced object comes into memory with a neighbour's read.
    NeighbourIgnoresReplacement = 13 => "neighbour that ignores a newer version",
    /// A purge by tag does not keep re-insertion from writing what it killed, as if it had been put again.
    ReinsertionIgnoresTagPurge = 14 => "re-insertion that ignores a purge by tag",
    /// Purges by tag are not applied to objects in memory.
    MemoryIgnoresTagPurge = 15 => "purge by tag not applied to memory",
    /// Records of purges by tag are not applied after a restart.
    PurgeTagIgnored = 16 => "purge by tag ignored",
    /// If a purge by tag removed a version, the version that it had replaced is found in its place.
    TagPurgeUncovers = 17 => "purge by tag that uncovers what was replaced",
    /// A name written before the store was opened counts as absent when it is purged.
    NamesNotRead = 19 => "names written before the store was opened mistaken for absent",
    /// A purged object comes back into memory with the hot list, as if it had been put again.
    HotListIgnoresPurge = 20 => "hot list that ignores a purge",
    /// A replaced object comes back into memory with the hot list.
    HotListIgnoresReplacement = 21 => "hot list that ignores a newer version",
    /// A span that was absent is believed when it comes back.
    ReturningSpanTrusted = 28 => "returning span that is trusted",
    /// Objects that a span held for another in an earlier absence are believed in a later one.
    StandInTrusted = 29 => "stand-in of an earlier absence that is trusted",
    /// A span that missed the change by which another came back answers with old objects of that one.
    ReturnMissed = 30 => "return that a span missed",
    /// A span put back to an earlier state is believed, though others know of purges since.
    OlderCopyTrusted = 31 => "older copy of a span that is trusted",
    /// The lengths in a record's header are not compared with the header's own.
    RecordBoundUnchecked = 32 => "lengths in a record unchecked",
    /// The place that an append's table gives for a record is not compared with the append's length.
    AppendBoundUnchecked = 33 => "places in an append's table unchecked",
    /// The distance of a checkpoint's entry from its home is not compared with its place.
    CheckpointSlotUnchecked = 34 => "slots of a checkpoint unchecked",
    /// An object that is not admitted replaces the one on the disk in memory only.
    UnadmittedLeavesOlder = 48 => "replacement in memory alone of what is on the disk",
    /// Written bytes are not debited from the write budget.
    WriteBudgetNotDebited = 49 => "write budget that is not debited",
    /// Objects that were read go into memory without a check whether they have changed since.
    ReadUnchecked = 50 => "read that goes into memory unchecked",
    /// Of more than eight purges that share a block of the log the last is left out.
    PurgeOfManyUnlogged = 51 => "last of many purges not logged",
    /// A purge log that is shorter than appends state is believed.
    ShortPurgeLogBelieved = 52 => "shortened purge log believed",
    /// Entries count as written when their write begins.
    WrittenTooEarly = 53 => "written before the write ended",
    /// A new cycle of the purge log counts as durable without a flush.
    CompactionUnflushed = 54 => "compaction of the purge log not flushed",
    /// It is looked where an object lies before it is compared with purges, which may be forgotten in between.
    PlaceBeforePurge = 55 => "place looked at before purges are compared",
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

    /// Bugs that answers of a running store reveal.
    pub const RUNNING: [Bug; 3] = [Bug::MemoryIgnoresTagPurge, Bug::TagPurgeUncovers, Bug::NamesNotRead];

    /// What a store that does not admit everything brings to light: answers, and how much is written.
    pub const ADMISSION: [Bug; 2] = [Bug::UnadmittedLeavesOlder, Bug::WriteBudgetNotDebited];

    /// Bugs that only overlapping operations reveal.
    pub const CONCURRENT: [Bug; 6] = [
        Bug::ReadUnchecked,
        Bug::PurgeOfManyUnlogged,
        Bug::ShortPurgeLogBelieved,
        Bug::WrittenTooEarly,
        Bug::CompactionUnflushed,
        Bug::PlaceBeforePurge,
    ];

    /// What the loss and the return of spans bring to light.
    pub const SPANS: [Bug; 4] =
        [Bug::ReturningSpanTrusted, Bug::StandInTrusted, Bug::ReturnMissed, Bug::OlderCopyTrusted];

    /// Bounds that decoders leave out: fuzz targets must find them.
    pub const DECODERS: [Bug; 3] = [Bug::RecordBoundUnchecked, Bug::AppendBoundUnchecked, Bug::CheckpointSlotUnchecked];
}
