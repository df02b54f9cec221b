//! Deliberate defects, one at a time, by which tests show that their checks catch them.
//!
//! Without the feature `planted` every question is answered `false` at compile time, so that no user's build has them.

/// A defect that can be planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// A purge returns, and a sync reports, without the device having been flushed.
    FlushDropped = 1,
    /// Checksums are not compared.
    ChecksumSkipped = 2,
    /// Purge records are not applied after a restart.
    PurgeRecordIgnored = 3,
    /// A fill that began before a purge may still be committed.
    StaleGenerationAccepted = 4,
    /// The header of an append or purge block is believed though it is torn.
    TornHeaderAccepted = 5,
    /// A frame of a former store, or of a former cycle of its segment, is believed.
    FormerFrameAccepted = 6,
    /// Purged objects are re-inserted too, as if they had been put again.
    ReinsertionIgnoresPurge = 7,
    /// Replaced objects are re-inserted too.
    ReinsertionIgnoresReplacement = 8,
    /// Appends written after a checkpoint's log position are not replayed.
    CheckpointPositionIgnored = 9,
    /// Records of purges of everything are not applied after a restart.
    PurgeAllIgnored = 10,
    /// Records of purges by prefix are not applied after a restart.
    PurgePrefixIgnored = 11,
    /// A purged object comes into memory with a neighbour's read, as if it had been put again.
    NeighbourIgnoresPurge = 12,
    /// A replaced object comes into memory with a neighbour's read.
    NeighbourIgnoresReplacement = 13,
    /// A purge by tag does not keep re-insertion from writing what it killed, as if it had been put again.
    ReinsertionIgnoresTagPurge = 14,
    /// Purges by tag are not applied to objects in memory.
    MemoryIgnoresTagPurge = 15,
    /// Records of purges by tag are not applied after a restart.
    PurgeTagIgnored = 16,
    /// If a purge by tag removed a version, the version that it had replaced is found in its place.
    TagPurgeUncovers = 17,
    /// A name written before the store was opened counts as absent when it is purged.
    NamesNotRead = 19,
    /// A purged object comes back into memory with the hot list, as if it had been put again.
    HotListIgnoresPurge = 20,
    /// A replaced object comes back into memory with the hot list.
    HotListIgnoresReplacement = 21,
    /// A span that was absent is believed when it comes back.
    ReturningSpanTrusted = 28,
    /// Objects that a span held for another in an earlier absence are believed in a later one.
    StandInTrusted = 29,
    /// A span that missed the change by which another came back answers with old objects of that one.
    ReturnMissed = 30,
    /// A span put back to an earlier state is believed, though others know of purges since.
    OlderCopyTrusted = 31,
    /// The lengths in a record's header are not compared with the header's own.
    RecordBoundUnchecked = 32,
    /// The place that an append's table gives for a record is not compared with the append's length.
    AppendBoundUnchecked = 33,
    /// The distance of a checkpoint's entry from its home is not compared with its place.
    CheckpointSlotUnchecked = 34,
    /// An object that is not admitted replaces the one on the disk in memory only.
    UnadmittedLeavesOlder = 48,
    /// Written bytes are not debited from the write budget.
    WriteBudgetNotDebited = 49,
    /// Objects that were read go into memory without a check whether they have changed since.
    ReadUnchecked = 50,
    /// Of more than eight purges that share a block of the log the last is left out.
    PurgeOfManyUnlogged = 51,
    /// A purge log that is shorter than appends state is believed.
    ShortPurgeLogBelieved = 52,
    /// Entries count as written when their write begins.
    WrittenTooEarly = 53,
    /// A new cycle of the purge log counts as durable without a flush.
    CompactionUnflushed = 54,
    /// It is looked where an object lies before it is compared with purges, which may be forgotten in between.
    PlaceBeforePurge = 55,
}

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

    /// The name that is printed.
    pub fn name(self) -> &'static str {
        match self {
            Bug::FlushDropped => "flush dropped",
            Bug::ChecksumSkipped => "checksum skipped",
            Bug::PurgeRecordIgnored => "purge record ignored",
            Bug::StaleGenerationAccepted => "stale generation accepted",
            Bug::TornHeaderAccepted => "torn header accepted",
            Bug::FormerFrameAccepted => "frame of a former store or cycle accepted",
            Bug::ReinsertionIgnoresPurge => "re-insertion that ignores a purge",
            Bug::ReinsertionIgnoresReplacement => "re-insertion that ignores a newer version",
            Bug::CheckpointPositionIgnored => "checkpoint without its log position",
            Bug::PurgeAllIgnored => "purge of everything ignored",
            Bug::PurgePrefixIgnored => "purge by prefix ignored",
            Bug::NeighbourIgnoresPurge => "neighbour that ignores a purge",
            Bug::NeighbourIgnoresReplacement => "neighbour that ignores a newer version",
            Bug::ReinsertionIgnoresTagPurge => "re-insertion that ignores a purge by tag",
            Bug::MemoryIgnoresTagPurge => "purge by tag not applied to memory",
            Bug::PurgeTagIgnored => "purge by tag ignored",
            Bug::TagPurgeUncovers => "purge by tag that uncovers what was replaced",
            Bug::NamesNotRead => "names written before the store was opened mistaken for absent",
            Bug::HotListIgnoresPurge => "hot list that ignores a purge",
            Bug::HotListIgnoresReplacement => "hot list that ignores a newer version",
            Bug::ReturningSpanTrusted => "returning span that is trusted",
            Bug::StandInTrusted => "stand-in of an earlier absence that is trusted",
            Bug::ReturnMissed => "return that a span missed",
            Bug::OlderCopyTrusted => "older copy of a span that is trusted",
            Bug::RecordBoundUnchecked => "lengths in a record unchecked",
            Bug::AppendBoundUnchecked => "places in an append's table unchecked",
            Bug::CheckpointSlotUnchecked => "slots of a checkpoint unchecked",
            Bug::UnadmittedLeavesOlder => "replacement in memory alone of what is on the disk",
            Bug::WriteBudgetNotDebited => "write budget that is not debited",
            Bug::ReadUnchecked => "read that goes into memory unchecked",
            Bug::PurgeOfManyUnlogged => "last of many purges not logged",
            Bug::ShortPurgeLogBelieved => "shortened purge log believed",
            Bug::WrittenTooEarly => "written before the write ended",
            Bug::CompactionUnflushed => "compaction of the purge log not flushed",
            Bug::PlaceBeforePurge => "place looked at before purges are compared",
        }
    }
}

#[cfg(feature = "planted")]
static PLANTED: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

/// Plants one bug in this process, or none.
#[cfg(feature = "planted")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.store(bug.map_or(0, |bug| bug as u8), std::sync::atomic::Ordering::SeqCst);
}

/// Whether `bug` is planted.
#[cfg(feature = "planted")]
pub fn planted(bug: Bug) -> bool {
    PLANTED.load(std::sync::atomic::Ordering::Relaxed) == bug as u8
}

/// Whether `bug` is planted: never, in this build.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub fn planted(_: Bug) -> bool {
    false
}
