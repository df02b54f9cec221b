//! Re-insertion: requested objects are rewritten before their segment is overwritten.
//!
//! # What happens
//! The segments that are overwritten next are *harvested* (searched for objects to rewrite), the oldest first, at the
//! same time as the writer's other work. Their tables are read. From the whole objects that were requested since they
//! were written (`referenced`), the smallest are chosen, up to a share of the segment. Chosen objects that are not in
//! memory are read in a few large extents; the next extent is read while the previous one is processed. All are queued
//! like puts, in the order of the disk, with their old generation and a new sequence. The harvest is [`AHEAD_MAX`]
//! segments ahead of the ring, so a segment can be read while the one before it is overwritten. If the ring still
//! overtakes the harvest, the overwritten objects are dropped as without re-insertion. Nothing ever waits for the
//! harvest.
//!
//! # Invariants
//! 1. A purged object does not reappear: the old generation is compared with the purges under the lock that orders
//!    sequences. The record keeps the old generation, so a later purge applies to it like to any other record.
//! 2. A replaced object does not reappear: under the same lock, the harvested location must be the only one that the
//!    index has for the hash, and memory must not have another version. A later put has a higher sequence.
//! 3. Each record states its epoch, which must be the harvested one; and that epoch is not overwritten yet when the
//!    record is queued. So a location never refers to newer bytes.
//! 4. Puts go first: while more than half of the queue's capacity waits to be written, the harvest waits.
//! 5. At most the configured share of each segment is queued; at most [`buffer_bytes_max`] is read at once.
//!
//! Fragmented objects are not re-inserted: they would need all of their fragments, which are in other segments.
//!
//! *Cost*: the tables of each segment are read once more, and then at most all bytes of the segment. The bytes written
//! grow at most by the factor 1 / (1 - share).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::stream::{self, StreamExt};
use nectary_block::Buffer;

use crate::counters::Counters;
use crate::disk::segment::{ScanMode, SegmentReader};
use crate::format::layout::SpanLayout;
use crate::format::{GRANULE_BYTES, RecordLocation};
use crate::memory::entry::{EntryKind, MemoryEntry};
use crate::names::key::KeyHash;
use crate::planted::{Bug, planted};
use crate::rewrite::{ObjectRewriter, RewriteRefusal};
use crate::state::record::{read_closely, whole_in};

/// The largest share of a segment that may be re-inserted, in percent. With more, the ring would mostly rewrite itself.
pub const REINSERT_PERCENT_MAX: u32 = 50;
/// The number of segments by which the harvest is ahead of the ring, if there are enough segments.
const AHEAD_MAX: u64 = 2;
/// At most 1/`AHEAD_SHARE` of all segments are harvested ahead.
const AHEAD_SHARE: u64 = 4;
/// The largest extent that is read at once, in bytes.
const EXTENT_BYTES_MAX: u64 = 1 << 20;
/// A gap of up to this many bytes between two objects is read with them: that costs less than another read.
const GAP_BYTES_MAX: u64 = 64 << 10;
/// The number of extents that are read at the same time; one more extent is in memory while it is processed.
const READS_AT_ONCE: usize = 2;

/// The memory that the harvest needs for reading, in bytes.
pub fn buffer_bytes_max(layout: &SpanLayout) -> u64 {
    (READS_AT_ONCE as u64 + 1) * extent_bytes_max(layout)
}

fn extent_bytes_max(layout: &SpanLayout) -> u64 {
    EXTENT_BYTES_MAX.min(layout.segment_bytes / 8)
}

/// Re-inserts requested objects of the segments that are overwritten next, until no segment is due.
pub async fn harvest(rewriting: Arc<ObjectRewriter>) {
    while let Some(old) = due(&rewriting) {
        harvest_segment(&rewriting, old).await;
        rewriting.harvested.store(old, Ordering::Release);
        if rewriting.state.stopped().is_some() {
            return;
        }
    }
}

/// The oldest epoch that is due and has not been harvested yet.
fn due(rewriting: &ObjectRewriter) -> Option<u64> {
    let layout = &rewriting.span.layout;
    let head = rewriting.span.head();
    let ahead = (layout.segment_count / AHEAD_SHARE).clamp(1, AHEAD_MAX);
    let newest = (head + ahead).checked_sub(layout.segment_count)?;
    let oldest = layout.tail(head).max(rewriting.harvested.load(Ordering::Acquire) + 1);
    (oldest <= newest).then_some(oldest)
}

async fn harvest_segment(rewriting: &ObjectRewriter, old: u64) {
    let mut found: Vec<RequestedObject> = Vec::new();
    let mut reader = SegmentReader::new(&rewriting.span.device, &rewriting.span.layout, old);
    reader
        .scan(0, 0, ScanMode::Search, |record| {
            let proved = record.whole && rewriting.state.referenced.has(record.location);
            if proved && is_current(rewriting, record.hash, record.location) {
                found.push(RequestedObject {
                    hash: record.hash,
                    from: record.location,
                    bytes: record.bytes,
                    resident: None,
                });
            }
        })
        .await;
    drop(reader);
    let mut chosen = chosen(found, rewriting.reinsert_bytes_max());
    for object in &mut chosen {
        object.resident = rewriting.state.memory.get_at(object.hash, object.from);
    }
    let mut left = chosen.len() as u64;
    let mut extents = stream::iter(extents(chosen, extent_bytes_max(&rewriting.span.layout)))
        .map(|extent| read_extent(rewriting, extent))
        .buffered(READS_AT_ONCE);
    while let Some((extent, start, buffer)) = extents.next().await {
        for object in extent.objects {
            let entry = match (object.resident.clone(), &buffer) {
                (Some(entry), _) => Some(entry),
                (None, Some(buffer)) => whole_in(&rewriting.span, buffer, start, old, object.hash, object.from),
                // What cannot be read at once is read one by one.
                (None, None) => read_alone(rewriting, &object, old).await,
            };
            if let Some(entry) = entry.filter(|entry| entry.kind == EntryKind::Whole)
                && !reinsert_when_idle(rewriting, &entry, object.from, old).await
            {
                Counters::add(&rewriting.span.counters.reinsertions_refused, left);
                return;
            }
            left -= 1;
        }
    }
}

/// An object that was requested since it was written.
#[derive(Debug, Clone)]
struct RequestedObject {
    hash: KeyHash,
    from: RecordLocation,
    /// The length of the object's record, in bytes.
    bytes: u64,
    resident: Option<Arc<MemoryEntry>>,
}

/// Objects that follow each other on disk, and the range to read for the objects that are not in memory.
#[derive(Debug)]
struct ReinsertExtent {
    objects: Vec<RequestedObject>,
    /// Bytes from the start of the segments; empty if all are in memory.
    range: Range<u64>,
}

/// Whether the index still has this location; purges are compared later, with the entry.
fn is_current(rewriting: &ObjectRewriter, hash: KeyHash, location: RecordLocation) -> bool {
    let ignored = planted(Bug::ReinsertionIgnoresPurge) || planted(Bug::ReinsertionIgnoresTagPurge);
    let purged = ignored && rewriting.state.index.candidates(hash).is_empty();
    rewriting.state.index.contains(hash, location) || planted(Bug::ReinsertionIgnoresReplacement) || purged
}

/// Chooses the smallest objects, up to `bytes_max` in total, because a miss costs one fetch, whatever the size of the
/// object. Returns them in the order of the disk.
fn chosen(mut found: Vec<RequestedObject>, bytes_max: u64) -> Vec<RequestedObject> {
    found.sort_unstable_by_key(|object| (object.bytes, object.from.granule));
    let mut bytes = 0;
    found.retain(|object| {
        bytes += object.bytes.next_multiple_of(GRANULE_BYTES);
        bytes <= bytes_max
    });
    found.sort_unstable_by_key(|object| object.from.granule);
    found
}

/// Combines objects, given in the order of their locations, into extents that are each read at once.
fn extents(chosen: Vec<RequestedObject>, bytes_max: u64) -> Vec<ReinsertExtent> {
    let mut extents: Vec<ReinsertExtent> = Vec::new();
    for object in chosen {
        let start = object.from.granule * GRANULE_BYTES;
        let own = if object.resident.is_some() { start..start } else { start..start + object.bytes };
        match extents.last_mut() {
            Some(last) if own.is_empty() => last.objects.push(object),
            Some(last) if last.range.is_empty() => {
                last.range = own;
                last.objects.push(object);
            }
            Some(last) if own.start <= last.range.end + GAP_BYTES_MAX && own.end - last.range.start <= bytes_max => {
                last.range.end = own.end;
                last.objects.push(object);
            }
            _ => extents.push(ReinsertExtent { objects: vec![object], range: own }),
        }
    }
    extents
}

/// Reads an extent; also returns the address of the first byte read.
async fn read_extent(rewriting: &ObjectRewriter, extent: ReinsertExtent) -> (ReinsertExtent, u64, Option<Buffer>) {
    if extent.range.is_empty() {
        return (extent, 0, None);
    }
    let block = u64::from(rewriting.span.device.geometry().block_bytes);
    let start = (rewriting.span.layout.segments_offset + extent.range.start) / block * block;
    let end = (rewriting.span.layout.segments_offset + extent.range.end).next_multiple_of(block);
    Counters::add(&rewriting.span.counters.device_reads, 1);
    Counters::add(&rewriting.span.counters.device_read_bytes, end - start);
    match nectary_block::read(&*rewriting.span.device, start, (end - start) as usize).await {
        Ok(buffer) => (extent, start, Some(buffer)),
        Err(error) => {
            Counters::add(&rewriting.span.counters.device_read_errors, 1);
            rewriting.span.note(error.to_string());
            (extent, start, None)
        }
    }
}

async fn read_alone(rewriting: &ObjectRewriter, object: &RequestedObject, epoch: u64) -> Option<Arc<MemoryEntry>> {
    let extent = rewriting.span.extent(object.from).filter(|extent| extent.epoch == epoch)?;
    let buffer = read_closely(&rewriting.span, object.from, extent).await?;
    whole_in(&rewriting.span, &buffer, extent.start, epoch, object.hash, object.from)
}

/// Queues an entry as soon as puts leave room. Returns false if the entry was overwritten first, or the store takes no
/// more writes.
async fn reinsert_when_idle(
    rewriting: &ObjectRewriter,
    entry: &Arc<MemoryEntry>,
    from: RecordLocation,
    epoch: u64,
) -> bool {
    loop {
        let room = rewriting.intake.queue.room.notified();
        tokio::pin!(room);
        // No notification of room after this is missed.
        room.as_mut().enable();
        match rewriting.reinsert(entry, from, epoch) {
            Ok(()) | Err(RewriteRefusal::Outdated) => return true,
            Err(RewriteRefusal::Overtaken | RewriteRefusal::Closed) => return false,
            Err(RewriteRefusal::Full) => room.await,
        }
    }
}

impl ObjectRewriter {
    /// The largest part of a segment that is re-inserted, in bytes.
    fn reinsert_bytes_max(&self) -> u64 {
        self.span.layout.segment_bytes * u64::from(self.reinsert_percent) / 100
    }

    /// Queues the entry at `from` for rewriting, except if it was purged, replaced or overwritten.
    fn reinsert(&self, entry: &Arc<MemoryEntry>, from: RecordLocation, epoch: u64) -> Result<(), RewriteRefusal> {
        self.rewrite(entry, from, epoch, None)?;
        Counters::add(&self.span.counters.reinserted, 1);
        Counters::add(&self.span.counters.reinserted_bytes, entry.body.len() as u64);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::key::KeyRef;
    use crate::purge::records::{PurgeEffect, key_record, record_with};
    use crate::{AdmissionOptions, CreateOptions, OpenOptions, Store};
    use nectary_block::{MemoryDevice, SharedDevice};

    const SOFT: PurgeEffect = PurgeEffect::Soft { since_s: 1 };

    /// A store with one object on disk, the object, and its location.
    async fn one_object() -> (Store, Arc<MemoryEntry>, RecordLocation) {
        one_object_admitted_by(AdmissionOptions::default()).await
    }

    async fn one_object_admitted_by(admission: AdmissionOptions) -> (Store, Arc<MemoryEntry>, RecordLocation) {
        let device: SharedDevice = Arc::new(MemoryDevice::new(1 << 20));
        Store::create(device.clone(), &CreateOptions::default()).await.unwrap();
        // Objects that are not synced stay in the queue.
        let write_delay = std::time::Duration::from_secs(3600);
        let options = OpenOptions {
            memory_bytes: 16 << 20,
            write_delay,
            reinsert_percent: 0,
            admission,
            ..OpenOptions::default()
        };
        let store = Store::open(device, options).await.unwrap();
        let key = KeyRef::new(b"key", b"");
        if !admission.is_open() {
            store.put(key, "metadata".into(), vec![1; 3000].into()).await.unwrap();
        }
        store.put(key, "metadata".into(), vec![7; 3000].into()).await.unwrap();
        store.sync().await.unwrap();
        let entry = store.lookup().find_resident(key).live().expect("it was just put");
        let from = entry.location().expect("it was written");
        (store, entry, from)
    }

    /// Overwritten, purged or replaced objects are refused.
    #[tokio::test]
    async fn outdated_object_is_refused() {
        let (store, entry, from) = one_object().await;
        let rewriting = store.rewriting();
        let (span, state) = (&rewriting.span, &rewriting.state);
        let head = span.head();
        assert_eq!(rewriting.reinsert(&entry, from, head), Ok(()));
        span.set_head(head + span.layout.segment_count);
        assert_eq!(rewriting.reinsert(&entry, from, head), Err(RewriteRefusal::Overtaken));
        span.set_head(head);
        let elsewhere = RecordLocation { granule: from.granule + 64, ..from };
        state.index.insert(entry.hash, elsewhere);
        assert_eq!(rewriting.reinsert(&entry, from, head), Err(RewriteRefusal::Outdated));
        state.index.remove(entry.hash, elsewhere);
        let (store, softly_purged, from_there) = one_object().await;
        let soft = record_with(key_record(softly_purged.primary_hash, softly_purged.generation, head), SOFT);
        store.state().purges.add(&soft);
        assert_eq!(store.rewriting().reinsert(&softly_purged, from_there, head), Err(RewriteRefusal::Outdated));
        state.purges.add(&key_record(entry.primary_hash, entry.generation, head));
        assert_eq!(rewriting.reinsert(&entry, from, head), Err(RewriteRefusal::Outdated));
        rewriting.intake.stop("a test");
        assert_eq!(rewriting.reinsert(&entry, from, head), Err(RewriteRefusal::Closed));
    }

    /// A waiting rewrite is not queued again where not everything is admitted.
    #[tokio::test]
    async fn waiting_rewrite_is_not_requeued() {
        let rule = crate::AdmitRule::SecondRequest;
        for (admission, again) in [
            (AdmissionOptions { rule, ..AdmissionOptions::default() }, Err(RewriteRefusal::Outdated)),
            (AdmissionOptions::default(), Ok(())),
        ] {
            let (store, entry, from) = one_object_admitted_by(admission).await;
            let rewriting = store.rewriting();
            let head = rewriting.span.head();
            assert_eq!(rewriting.reinsert(&entry, from, head), Ok(()));
            assert_eq!(rewriting.reinsert(&entry, from, head), again);
            store.sync().await.unwrap();
            let to = rewriting.state.index.candidates(entry.hash);
            assert!(to.len() == 1 && to[0].granule != from.granule, "{to:?}");
            assert_eq!(rewriting.reinsert(&entry, to[0], head), Ok(()), "it waits no more");
        }
    }

    /// A record is taken from an extent as it was written, or not at all.
    #[tokio::test]
    async fn record_is_read_whole_only() {
        let (store, entry, from) = one_object().await;
        let rewriting = store.rewriting();
        let start = from.granule * GRANULE_BYTES;
        let proved = RequestedObject { hash: entry.hash, from, bytes: 3200, resident: None };
        let extent = ReinsertExtent { objects: vec![proved], range: start..start + 3200 };
        let (_, at, buffer) = read_extent(rewriting, extent).await;
        let mut buffer = buffer.expect("the device reads");
        let epoch = rewriting.span.head();
        let found = whole_in(&rewriting.span, &buffer, at, epoch, entry.hash, from).expect("it is there");
        assert_eq!((&found.body, &found.metadata, found.generation), (&entry.body, &entry.metadata, entry.generation));
        assert!(found.key == entry.key && found.primary_hash == entry.primary_hash && found.location() == Some(from));
        let later = epoch + rewriting.span.layout.segment_count;
        assert!(whole_in(&rewriting.span, &buffer, at, later, entry.hash, from).is_none(), "of another cycle");
        assert!(whole_in(&rewriting.span, &buffer, at, epoch, KeyHash(1), from).is_none(), "of another key");
        let end = (rewriting.span.layout.segments_offset + start - at) as usize + 3000;
        buffer[end] ^= 1;
        assert!(whole_in(&rewriting.span, &buffer, at, epoch, entry.hash, from).is_none(), "not what was written");
    }

    fn place(granule: u64, bytes: u64) -> RequestedObject {
        RequestedObject {
            hash: KeyHash(granule.into()),
            from: RecordLocation::new(granule, bytes),
            bytes,
            resident: None,
        }
    }

    #[test]
    fn smallest_objects_fill_the_share() {
        let found = vec![place(1, 4096), place(100, 1000), place(200, 8192), place(300, 1024)];
        let granules = |bytes_max| -> Vec<u64> {
            chosen(found.clone(), bytes_max).into_iter().map(|object| object.from.granule).collect()
        };
        assert_eq!(granules(0), Vec::<u64>::new());
        assert_eq!(granules(2047), [100]);
        assert_eq!(granules(6144), [1, 100, 300]);
        assert_eq!(granules(1 << 20), [1, 100, 200, 300]);
    }

    #[test]
    fn near_objects_share_one_read() {
        let gap_granules = GAP_BYTES_MAX / GRANULE_BYTES;
        let near = 16 + gap_granules;
        let objects = vec![place(0, 1024), place(near, 1024), place(near + gap_granules + 17, 64), place(1 << 20, 64)];
        let shape = |objects: Vec<RequestedObject>, bytes_max| -> Vec<(usize, Range<u64>)> {
            extents(objects, bytes_max).into_iter().map(|extent| (extent.objects.len(), extent.range)).collect()
        };
        let end = near * GRANULE_BYTES + 1024;
        let third = (near + gap_granules + 17) * GRANULE_BYTES;
        let far = (1 << 20) * GRANULE_BYTES;
        assert_eq!(shape(objects.clone(), 1 << 20), [(2, 0..end), (1, third..third + 64), (1, far..far + 64)]);
        assert_eq!(shape(objects[..2].to_vec(), end), [(2, 0..end)]);
        assert_eq!(shape(objects[..2].to_vec(), end - 1), [(1, 0..1024), (1, end - 1024..end)]);
    }
}
