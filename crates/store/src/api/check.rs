//! Checking a whole store: every record that the index points to is read and verified.
//!
//! Owns: reading all records, and the report. The check changes nothing. Leaves to others: the handling of a damaged
//! object (the next get makes the object a miss).

use nectary_block::{Buffer, read};
use serde::Serialize;

use crate::format::{BLOCK_BYTES, DecodedRecord, FramePlace, GRANULE_BYTES, RecordKind, RecordLocation};
use crate::names::key::{KeyHash, KeyRef};
use crate::names::tag::TagHash;
use crate::state::SpanState;
use crate::state::record::read_closely;

/// The size of one read, in bytes.
const WINDOW_BYTES: u64 = 2 << 20;
/// The largest number of damaged records whose offsets a report lists.
const NAMED_MAX: usize = 20;

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    /// Entries of the index that were checked.
    pub entries: u64,
    /// Whole objects and heads of fragmented ones.
    pub objects: u64,
    /// Fragments.
    pub fragments: u64,
    /// Purged objects whose segment is not reclaimed yet.
    pub purged: u64,
    /// Entries that point to no valid record; the object of each is lost.
    pub damaged: u64,
    /// Bytes of records verified.
    pub bytes: u64,
    /// The offsets of the first damaged records, in bytes from the start of the device.
    pub damaged_offsets: Vec<u64>,
}

impl CheckReport {
    /// Adds the report of another span. Only the offsets of the first span with damage are kept.
    pub(crate) fn add(&mut self, other: CheckReport) {
        self.entries += other.entries;
        self.objects += other.objects;
        self.fragments += other.fragments;
        self.purged += other.purged;
        self.damaged += other.damaged;
        self.bytes += other.bytes;
        if self.damaged_offsets.is_empty() {
            self.damaged_offsets = other.damaged_offsets;
        }
    }
}

/// Reads every record; `progress` receives the number of checked entries and the number of all entries, `seen` the two
/// parts of the key of each live object.
pub(crate) async fn check(
    state: &SpanState,
    mut progress: impl FnMut(u64, u64),
    mut seen: impl FnMut(&[u8], &[u8]),
) -> CheckReport {
    let mut locations = state.index.locations();
    locations.sort_unstable_by_key(|location| location.granule);
    let total = locations.len() as u64;
    let mut report = CheckReport::default();
    let mut window: Option<(u64, Buffer)> = None;
    for location in locations {
        report.entries += 1;
        if !check_record(state, location, &mut window, &mut report, &mut seen).await {
            report.damaged += 1;
            if report.damaged_offsets.len() < NAMED_MAX {
                report.damaged_offsets.push(state.span.layout.segments_offset + location.granule * GRANULE_BYTES);
            }
        }
        if report.entries.is_multiple_of(256) || report.entries == total {
            progress(report.entries, total);
        }
    }
    report
}

async fn check_record(
    state: &SpanState,
    location: RecordLocation,
    window: &mut Option<(u64, Buffer)>,
    report: &mut CheckReport,
    seen: &mut impl FnMut(&[u8], &[u8]),
) -> bool {
    let layout = &state.span.layout;
    let Some(extent) = state.span.extent(location) else { return false };
    let address = state.span.address_of(location);
    let inside = |(start, bytes): &&(u64, Buffer)| address >= *start && extent.end <= start + bytes.len() as u64;
    if window.as_ref().filter(inside).is_none() {
        let start = address / BLOCK_BYTES * BLOCK_BYTES;
        let segment_end = layout.segment_start(extent.epoch) + layout.segment_bytes;
        let stop = (start + WINDOW_BYTES).max(extent.end).min(segment_end);
        let length = (stop - start).next_multiple_of(BLOCK_BYTES);
        *window = read(&*state.span.device, start, length as usize).await.ok().map(|buffer| (start, buffer));
    }
    // If the window cannot be read, the record is read alone.
    let alone;
    let found = match window {
        Some((start, bytes)) => Some((*start, &bytes[..])),
        None => {
            alone = read_closely(&state.span, location, extent).await;
            alone.as_ref().map(|bytes| (extent.start, &bytes[..]))
        }
    };
    let Some(bytes) = found.and_then(|(start, bytes)| bytes.get((address - start) as usize..)) else { return false };
    let place = FramePlace { identity: layout.identity, epoch: extent.epoch, address };
    let Ok(record) = DecodedRecord::decode(bytes, place) else { return false };
    let hash = KeyHash(record.fields.key_hash.get());
    if !record.body_is_whole(bytes) || !state.index.contains(hash, location) {
        return false;
    }
    report.bytes += record.bytes() as u64;
    if record.kind == RecordKind::Fragment {
        report.fragments += 1;
        return true;
    }
    let (primary, _) = state.span.hash(KeyRef::new(record.primary(bytes), record.variant(bytes)));
    let tags: Vec<TagHash> = record.tags(bytes).collect();
    let generation = record.fields.generation.get();
    if state.purges.verdict(primary, generation, record.primary(bytes), &tags).is_gone() {
        report.purged += 1;
    } else {
        report.objects += 1;
        seen(record.primary(bytes), record.variant(bytes));
    }
    true
}
