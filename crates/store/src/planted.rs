//! Deliberate defects, of which at most one is active at a time. Tests activate a defect to show that their checks find
//! it.
//!
//! Without the feature `planted`, this module is private, and the function `planted` always returns false. So the
//! compiler removes all defects from the builds of users.

nectary_block::planted_bugs! {
    /// Purges and syncs return although the device was not flushed.
    FlushDropped = 1 => "flush dropped",
    /// Checksums are not compared.
    ChecksumSkipped = 2 => "checksum skipped",
    /// Purge records are not applied after a restart.
    PurgeRecordIgnored = 3 => "purge record ignored",
    /// A fill that began before a purge may still be committed.
    StaleGenerationAccepted = 4 => "stale generation accepted",
    /// A torn header of an append or purge block is accepted.
    TornHeaderAccepted = 5 => "torn header accepted",
    /// A frame of an earlier store, or of an earlier cycle of its segment, is accepted.
    FormerFrameAccepted = 6 => "frame of a former store or cycle accepted",
    /// Purged objects are re-inserted, as if they had been put again.
    ReinsertionIgnoresPurge = 7 => "re-insertion that ignores a purge",
    /// Replaced objects are re-inserted.
    ReinsertionIgnoresReplacement = 8 => "re-insertion that ignores a newer version",
    /// Appends written after a checkpoint's log position are not replayed.
    CheckpointPositionIgnored = 9 => "checkpoint without its log position",
    /// Records of purges of everything are not applied after a restart.
    PurgeAllIgnored = 10 => "purge of everything ignored",
    /// Records of purges by prefix are not applied after a restart.
    PurgePrefixIgnored = 11 => "purge by prefix ignored",
    /// A purged object enters memory as a neighbour (read together with a requested object), as if it had been put
    /// again.
    NeighbourIgnoresPurge = 12 => "neighbour that ignores a purge",
    /// A replaced object enters memory as a neighbour.
    NeighbourIgnoresReplacement = 13 => "neighbour that ignores a newer version",
    /// Objects purged by tag are re-inserted, as if they had been put again.
    ReinsertionIgnoresTagPurge = 14 => "re-insertion that ignores a purge by tag",
    /// Purges by tag are not applied to objects in memory.
    MemoryIgnoresTagPurge = 15 => "purge by tag not applied to memory",
    /// Records of purges by tag are not applied after a restart.
    PurgeTagIgnored = 16 => "purge by tag ignored",
    /// If a purge by tag removed a version of a key, a get finds the older version instead.
    TagPurgeUncovers = 17 => "purge by tag that uncovers what was replaced",
    /// A name written before the store was opened counts as absent when it is purged.
    NamesNotRead = 19 => "names written before the store was opened mistaken for absent",
    /// A purged object enters memory through the hot list, as if it had been put again.
    HotListIgnoresPurge = 20 => "hot list that ignores a purge",
    /// A replaced object enters memory through the hot list.
    HotListIgnoresReplacement = 21 => "hot list that ignores a newer version",
    /// A span that was absent is trusted when it returns.
    ReturningSpanTrusted = 28 => "returning span that is trusted",
    /// Objects that a span stored while it stood in for an absent span are returned when that span is absent again.
    StandInTrusted = 29 => "stand-in of an earlier absence that is trusted",
    /// A span that missed the return of another span later stands in for that span with old objects.
    ReturnMissed = 30 => "return that a span missed",
    /// An older copy of a span is trusted, although other spans know of later purges.
    OlderCopyTrusted = 31 => "older copy of a span that is trusted",
    /// The lengths in a record's header are not compared with the length of the frame.
    RecordBoundUnchecked = 32 => "lengths in a record unchecked",
    /// The position of a record in an append's table is not compared with the append's length.
    AppendBoundUnchecked = 33 => "places in an append's table unchecked",
    /// An index entry in a checkpoint is accepted even if it states a distance from its home slot that is impossible in
    /// its slot.
    CheckpointSlotUnchecked = 34 => "slots of a checkpoint unchecked",
    /// An object that is not admitted replaces the older version only in memory; the version on the disk remains valid.
    UnadmittedLeavesOlder = 48 => "replacement in memory alone of what is on the disk",
    /// Written bytes are not debited from the write budget.
    WriteBudgetNotDebited = 49 => "write budget that is not debited",
    /// Objects that were read from disk enter memory, and nothing checks whether they were replaced during the read.
    ReadUnchecked = 50 => "read that goes into memory unchecked",
    /// If more than eight purges share a block of the log, the last one is left out.
    PurgeOfManyUnlogged = 51 => "last of many purges not logged",
    /// A purge log that is shorter than the length recorded in appends is accepted.
    ShortPurgeLogBelieved = 52 => "shortened purge log believed",
    /// Entries count as written when their write begins.
    WrittenTooEarly = 53 => "written before the write ended",
    /// A new cycle of the purge log counts as durable without a flush.
    CompactionUnflushed = 54 => "compaction of the purge log not flushed",
    /// The location of an object is checked before the object is compared with purges. Between the two checks, a purge
    /// may be forgotten.
    PlaceBeforePurge = 55 => "place looked at before purges are compared",
    /// A get that waited for another get's read returns a newer version in memory without comparing it with purges.
    WaiterIgnoresPurge = 70 => "waiter whose newer version is not compared with purges",
    /// A new era of names does not note the names of the entries that wait to be written.
    EraForgetsWaiting = 71 => "era of names that forgets waiting entries",
    /// Recovery treats versions that a crash lost, and that an open after it gave up, as damaged ones.
    GivenUpForgotten = 72 => "versions that an earlier open gave up forgotten",
    /// After a crash had cut the log, segments are opened although no checkpoint has what was before the cut.
    CutNotSettled = 73 => "cut log not settled by a checkpoint",
    /// A sync that is requested during a flush is answered by that flush.
    SyncOfRunningFlush = 74 => "sync answered by a flush that was running",
    /// Neighbours enter memory although the shard of the index that has them is not loaded.
    NeighbourBeforeShard = 75 => "neighbour taken before its shard is loaded",
    /// The names of objects that are only in memory are not noted.
    UnadmittedNameForgotten = 76 => "name of an object in memory alone forgotten",
    /// Both states are written to the same slot.
    StateInOneSlot = 77 => "both states in one slot",
    /// A failed read counts as a miss.
    FailedReadIsMiss = 78 => "failed read reported as a miss",
    /// A fill that began before a newer version was put replaces that version.
    OlderFillReplaces = 79 => "older fill that replaces a newer put",
    /// If the newest version of a key is damaged, a get finds the older version instead.
    DamageUncovers = 80 => "damage that uncovers what was replaced",
    /// A purge during which a span fails returns before the other spans have recorded the loss.
    LossDuringPurgeIgnored = 81 => "loss of a span during a purge ignored",
    /// A block of the purge log that cannot be read counts as not written.
    UnreadableIsBlank = 82 => "unreadable block of the purge log taken for blank",
    /// If both states are lost, the open count is not raised above those in the log.
    OpenCountOfLogIgnored = 110 => "open count of the log ignored",
    /// In a segment without an intact append, records of an earlier open than that of the last flushed one are valid.
    EarlierOpenKeptAlone = 111 => "records of an earlier open kept in a segment without appends",
    /// Records are valid in the segment that is overwritten next, although a part of it is damaged.
    TornTailKept = 112 => "records kept in a segment whose overwriting had begun",
    /// A new cycle of the purge log gets the number of an earlier one that a crash interrupted.
    PurgeCycleReused = 113 => "cycle of an interrupted compaction used again",
    /// An open serves before its open count is flushed.
    OpenUnflushed = 114 => "open count not flushed",
    /// A checkpoint does not wait for the appends before its log position.
    CheckpointAheadOfAppends = 115 => "checkpoint that does not wait for appends in flight",
    /// The first append after a crash states that everything which was found had been flushed.
    CutStatedAsFlushed = 116 => "what a crash cut off stated as flushed",
    /// The time of the last return of a span is kept in memory alone.
    ReturnNotRecorded = 117 => "return of a span not recorded on disk",
    /// A get that tells a failed device from a miss trusts stand-ins of an earlier absence.
    StandInFoundByTry = 118 => "stand-in trusted by a get that tells errors",
    /// A fill returns a stand-in of an earlier absence as the resident object.
    StandInJoined = 119 => "stand-in trusted by a fill",
    /// A purge that one span has counts as durable on every present span.
    HeldByOneSpan = 120 => "purge that one span has taken for held by all",
    /// The last purge that a span has is applied to it again, as one that it missed.
    KnownPurgeRepeated = 121 => "purge that a span has repeated on it as missed",
    /// A span that begins empty does not get the number of the last purge.
    EmptySpanUnnumbered = 122 => "empty span without the number of the last purge",
    /// An open for reading does not compare the purges of the spans.
    ReaderIgnoresOrder = 123 => "reader that does not compare the purges of spans",
    /// An open for reading makes a store on a blank device.
    ReaderMakesStore = 124 => "reader that makes a store on a blank device",
    /// In a store that is opened for reading, spans that take no writes count as lost.
    ReaderTakesLosses = 125 => "reader that takes its spans for lost",
    /// Records of soft purges are not applied after a restart.
    SoftPurgeIgnored = 126 => "soft purge ignored",
}

/// Lists of the bugs, one for each kind of test that finds them.
#[cfg(feature = "planted")]
impl Bug {
    /// Bugs that a crash or a flipped bit reveals.
    pub const ALL: [Bug; 19] = [
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
        Bug::SoftPurgeIgnored,
    ];

    /// Bugs that show in the answers of a running store.
    pub const RUNNING: [Bug; 4] =
        [Bug::MemoryIgnoresTagPurge, Bug::TagPurgeUncovers, Bug::NamesNotRead, Bug::SoftPurgeIgnored];

    /// Bugs that show in a store with admission rules: in its answers, or in the number of bytes that it writes.
    pub const ADMISSION: [Bug; 2] = [Bug::UnadmittedLeavesOlder, Bug::WriteBudgetNotDebited];

    /// Bugs that only overlapping operations reveal.
    pub const CONCURRENT: [Bug; 10] = [
        Bug::ReadUnchecked,
        Bug::PurgeOfManyUnlogged,
        Bug::ShortPurgeLogBelieved,
        Bug::WrittenTooEarly,
        Bug::CompactionUnflushed,
        Bug::PlaceBeforePurge,
        Bug::WaiterIgnoresPurge,
        Bug::SyncOfRunningFlush,
        Bug::UnadmittedNameForgotten,
        Bug::OlderFillReplaces,
    ];

    /// Bugs that the loss and return of spans reveal.
    pub const SPANS: [Bug; 5] = [
        Bug::ReturningSpanTrusted,
        Bug::StandInTrusted,
        Bug::ReturnMissed,
        Bug::OlderCopyTrusted,
        Bug::LossDuringPurgeIgnored,
    ];

    /// Bugs that show after two or three crashes in a row, with damage between them.
    pub const RECOVERY: [Bug; 7] = [
        Bug::OpenCountOfLogIgnored,
        Bug::EarlierOpenKeptAlone,
        Bug::TornTailKept,
        Bug::PurgeCycleReused,
        Bug::OpenUnflushed,
        Bug::CheckpointAheadOfAppends,
        Bug::CutStatedAsFlushed,
    ];

    /// Bugs that show where a span returns, stands in for another one, or missed purges.
    pub const SPAN_RETURNS: [Bug; 6] = [
        Bug::ReturnNotRecorded,
        Bug::StandInFoundByTry,
        Bug::StandInJoined,
        Bug::HeldByOneSpan,
        Bug::KnownPurgeRepeated,
        Bug::EmptySpanUnnumbered,
    ];

    /// Bugs that show in stores that are opened only for reading.
    pub const READ_ONLY: [Bug; 4] =
        [Bug::ReaderIgnoresOrder, Bug::ReaderMakesStore, Bug::ReaderTakesLosses, Bug::ShortPurgeLogBelieved];

    /// Bugs that show where a part of the device cannot be read, or is damaged.
    pub const UNREADABLE: [Bug; 4] =
        [Bug::FailedReadIsMiss, Bug::UnreadableIsBlank, Bug::StateInOneSlot, Bug::DamageUncovers];

    /// Bugs that only several crashes in a row reveal.
    pub const CHAINS: [Bug; 2] = [Bug::GivenUpForgotten, Bug::CutNotSettled];

    /// Bugs that purges of waiting objects reveal.
    pub const WAITING: [Bug; 1] = [Bug::EraForgetsWaiting];

    /// Bugs that gets reveal which are answered while the index is loaded.
    pub const SHARDS: [Bug; 1] = [Bug::NeighbourBeforeShard];

    /// Bugs that show where a place cannot be read for long, or the device is silent at times.
    pub const FAULTS: [Bug; 1] = [Bug::FailedReadIsMiss];

    /// Bugs in decoders (missing checks) that fuzz targets must find.
    pub const DECODERS: [Bug; 3] = [Bug::RecordBoundUnchecked, Bug::AppendBoundUnchecked, Bug::CheckpointSlotUnchecked];
}
