//! Functions for fuzz targets: each reads one area of a small span with a fixed identity.
//!
//! Owns: nothing; it calls the functions of recovery. This module is not part of the public interface, and changes
//! without notice.

use nectary_block::SharedDevice;

use crate::checkpoint;
use crate::disk::segment::{ScanMode, SegmentReader};
use crate::error::Error;
use crate::format::RecordLocation;
use crate::format::layout::{SPAN_BYTES_MIN, STATE_OFFSET, SpanLayout};
use crate::format::{BLOCK_BYTES, DecodedAppend, DecodedRecord, FramePlace, PURGE_RECORDS_PER_BLOCK};
use crate::index::{ObjectIndex, ValidLocations};
use crate::names::key::KeyHash;
use crate::purge::log::PurgeLog;
use crate::purge::purge_table::PurgeTable;
use crate::recover as recovery;
use crate::recover::loading::{CheckpointLoading, IndexRemainder};
use crate::recover::replay::IndexReplay;

/// The identity of the span. A frame is valid only if it states this identity.
pub const IDENTITY: u128 = 0x6e65_6374_6172_795f_6675_7a7a_696e_6721;
/// The size of the span, in bytes.
pub const SPAN_BYTES: u64 = SPAN_BYTES_MIN;
/// The size of the span's segments, in bytes.
pub const SEGMENT_BYTES: u64 = 32 << 10;

/// The span that fuzz targets read.
pub struct FuzzSpan {
    layout: SpanLayout,
}

/// The result of scanning a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScannedSegment {
    /// Valid appends.
    pub appends: u64,
    /// Records that were visited.
    pub records: u64,
    /// The end of the last valid append, in bytes from the segment's start. The log continues there.
    pub end: u64,
    /// The addresses of the blocks after `end` that look like the beginning of an append, in bytes from the start of
    /// the span.
    pub future: Vec<u64>,
    /// The epoch of the appends in the segment; `None` if the segment has no valid append.
    pub epoch: Option<u64>,
}

impl FuzzSpan {
    /// Makes the span, which is always the same.
    ///
    /// *Errors*: never, with these constants.
    pub fn new() -> Result<FuzzSpan, Error> {
        Ok(FuzzSpan { layout: SpanLayout::plan(SPAN_BYTES, Some(SEGMENT_BYTES), IDENTITY, 7, 1)? })
    }

    /// The first copy of the span's superblock.
    pub fn superblock(&self) -> Vec<u8> {
        self.layout.encode(0).to_vec()
    }

    /// The start and the total size of the two state slots, in bytes.
    pub fn state(&self) -> (u64, u64) {
        (STATE_OFFSET, 2 * BLOCK_BYTES)
    }

    /// The start and the total size of the two copies of the purge log, in bytes.
    pub fn purge_log(&self) -> (u64, u64) {
        (self.layout.purge_log_offset[0], 2 * self.layout.purge_log_bytes)
    }

    /// The start and the total size of the two checkpoint areas, in bytes.
    pub fn checkpoints(&self) -> (u64, u64) {
        (self.layout.checkpoint_offset[0], 2 * self.layout.checkpoint_bytes)
    }

    /// The start and the size of the segment of an epoch, in bytes.
    pub fn segment(&self, epoch: u64) -> (u64, u64) {
        (self.layout.segment_start(epoch), self.layout.segment_bytes)
    }

    /// Reads the state slots; returns the newest open count, and the number of the membership.
    pub async fn read_state(&self, device: &SharedDevice) -> (u64, u64) {
        let state = recovery::read_state(device, &self.layout).await.newest;
        (state.open_count, state.membership.number)
    }

    /// Recovers the purge log as an open does, and begins a new cycle. Returns the number of rules, and whether some
    /// were lost.
    pub async fn read_purge_log(&self, device: &SharedDevice) -> Result<(usize, bool), Error> {
        let mut recovered = PurgeLog::recover(device, &self.layout).await?;
        let records_max = recovered.log.end().blocks as usize * PURGE_RECORDS_PER_BLOCK;
        assert!(recovered.lost || recovered.records.len() <= records_max, "more records than their blocks hold");
        let table = PurgeTable::new(self.layout.hash_seed);
        for record in recovered.records.iter().take(recovered.log.live_records_max()) {
            table.add(record);
        }
        table.retire(self.layout.tail(1), 0);
        recovered.log.compact(&table, None).await?;
        Ok((table.len(), recovered.lost))
    }

    /// Loads the newest intact checkpoint, inserts more entries, removes some, and returns the number of entries;
    /// `None` if no checkpoint is intact.
    pub async fn read_checkpoints(&self, device: &SharedDevice) -> Option<u64> {
        for header in checkpoint::read_headers(device, &self.layout).await.intact {
            let index = ObjectIndex::new(self.layout.index_home_bits, self.layout.index_bytes_max());
            let granule_max = self.layout.segment_count * self.layout.segment_bytes / 64;
            if !header.fits(&index) {
                continue;
            }
            let loading = Some(CheckpointLoading::of(header, ValidLocations::below(granule_max)));
            let mut rest = IndexRemainder { loading, replay: IndexReplay::new(), recovered_sequence: 0 };
            if rest.bring(device, &self.layout, &index, |_| true).await != 0 {
                continue;
            }
            for number in 0..1500_u128 {
                let hash = KeyHash(number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
                // No record is at the very start of a segment, so these locations begin at granule 2.
                index.insert(hash, RecordLocation::new(number as u64 + 2, 64));
            }
            index.sweep(|location| location.granule % 3 == 0);
            assert_eq!(index.locations().len() as u64, index.len(), "the index counts its entries wrongly");
            return Some(index.len());
        }
        None
    }

    /// Reads the hot list of each checkpoint; returns the number of object locations in the lists, and the number of
    /// damaged chunks.
    pub async fn read_hot_lists(&self, device: &SharedDevice) -> (usize, u64) {
        let (mut places, mut damaged) = (0, 0);
        for header in checkpoint::read_headers(device, &self.layout).await.intact {
            let (hot, lost) = checkpoint::load_hot(device, &self.layout, &header).await;
            places += hot.len();
            damaged += lost;
        }
        (places, damaged)
    }

    /// Reads the segment of an epoch as recovery does when it rolls forward.
    pub async fn read_segment(&self, device: &SharedDevice, epoch: u64, is_recent: bool) -> ScannedSegment {
        let care = if is_recent { ScanMode::Verify } else { ScanMode::Search };
        let mut reader = SegmentReader::new(device, &self.layout, epoch);
        let mut records = 0;
        let scanned = reader.scan(0, 0, care, |_| records += 1).await;
        let future = reader.frames_from(scanned.end).await;
        let epoch = SegmentReader::new(device, &self.layout, epoch).find_epoch().await;
        ScannedSegment { appends: scanned.appends, records, end: scanned.end, future, epoch }
    }
}

/// Decodes the first copy of a superblock and encodes it again. The result equals the input if every field was read.
pub fn superblock(bytes: &[u8]) -> Option<Vec<u8>> {
    SpanLayout::decode(bytes, 0).ok().map(|layout| layout.encode(0).to_vec())
}

/// Reads an append's header and table; returns the start (in granules) and the length (in bytes) of each record.
pub fn append(bytes: &[u8], epoch: u64, address: u64) -> Option<Vec<(u64, u64)>> {
    let append = DecodedAppend::decode(bytes, FramePlace { identity: IDENTITY, epoch, address }, SEGMENT_BYTES).ok()?;
    let place =
        |entry: &crate::format::TableEntry| (entry.start_granules.get().into(), entry.record_bytes.get().into());
    Some(append.table.iter().map(place).collect())
}

/// Reads a record; returns its primary part, variant, tags, metadata and body. The body is empty if it is damaged.
pub fn record(bytes: &[u8], epoch: u64, address: u64) -> Option<[Vec<u8>; 5]> {
    let record = DecodedRecord::decode(bytes, FramePlace { identity: IDENTITY, epoch, address }).ok()?;
    let body = if record.body_is_whole(bytes) { &bytes[record.body_start..record.bytes()] } else { b"" };
    let metadata = &bytes[record.metadata_range()];
    let tags: Vec<u8> = record.tags(bytes).flat_map(|tag| tag.0.to_le_bytes()).collect();
    Some([record.primary(bytes), record.variant(bytes), &tags, metadata, body].map(<[u8]>::to_vec))
}
