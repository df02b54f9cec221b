//! Warming up: after a restart, the objects that were in memory before are read into memory again, in the order of
//! their locations on disk.
//!
//! Owns: the list of objects that are read into memory without a request, and limits on this work. The list has the
//! replayed records, newest first, and then the checkpoint's hot list. Leaves to others: storing the list
//! (`checkpoint`), and the room in memory (`memory`).
//!
//! # Invariants
//! The list is advice: a wrong entry only causes a useless read.
//! 1. Only a whole object enters memory. Its header and body match their checksums, its address, and the epoch that the
//!    segment had before the read.
//! 2. The index has this location and no newer one for its hash, and memory has no entry under its id. These two
//!    conditions and the epoch of the segment are checked under the lock under which entries enter memory.
//! 3. The object is not purged. A later purge applies to it as to any other object in memory, because every hit is
//!    compared with the purges.
//! 4. Warming up evicts nothing: if memory is full, it ends.
//! 5. The hot list of a checkpoint that is written while the store warms up also has the objects still to be read. So
//!    after several crashes in a row, as many objects return to memory as after one crash.
//!
//! *Cost*: one read of at most [`RUN_BYTES_MAX`] for objects that are close together; [`READS_AT_ONCE`] reads at the
//! same time, on the writer's thread; a list of 8 bytes per object.

use std::sync::{Arc, Mutex};

use futures_util::stream::{self, StreamExt};
use nectary_block::Buffer;

use crate::checkpoint::{CheckpointHeader, load_hot};
use crate::counters::Counters;
use crate::disk::span::{ReadExtent, SpanDisk};
use crate::format::{DecodedRecord, FramePlace, RecordKind, RecordLocation};
use crate::memory::entry::MemoryEntry;
use crate::memory::hot::HotPlace;
use crate::memory::tier::WarmOutcome;
use crate::memory::warm_list::WarmList;
use crate::names::key::KeyHash;
use crate::planted::{Bug, planted};
use crate::state::SpanState;
use crate::state::record::{read_closely, unasked};

/// The longest read, in bytes.
const RUN_BYTES_MAX: u64 = 512 << 10;
/// Two records are read together if the gap between them has at most this many bytes.
const GAP_BYTES_MAX: u64 = 16 << 10;
/// The number of reads that run at the same time.
const READS_AT_ONCE: usize = 2;
/// The least memory that an entry takes in addition to its record, in bytes. With this estimate, the list is cut to the
/// objects that can fit into memory.
const ENTRY_BYTES_MIN: u64 = 200;
/// After it has decoded this many objects, warming up lets other tasks of the thread run.
const TURN: usize = 128;

/// The sources of the list of objects to be read into memory.
pub(crate) struct WarmSources {
    /// Whether warming up is enabled.
    pub is_wanted: bool,
    /// The checkpoint whose hot list is read.
    pub checkpoint: Option<CheckpointHeader>,
    /// Locations of the objects written since that checkpoint, newest first.
    pub newest: Vec<RecordLocation>,
}

/// When this is dropped, it reports that warming up has ended, whether or not it was complete.
struct EndWarming(Arc<WarmList>);

impl Drop for EndWarming {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// One read, and the locations of the records in it.
struct WarmRead {
    extent: ReadExtent,
    places: Vec<HotPlace>,
}

/// Reads the objects of the list into memory, until memory is full or the list ends.
pub(crate) fn warm_up(
    state: Arc<SpanState>,
    warm_list: Arc<WarmList>,
    warm: WarmSources,
) -> impl Future<Output = ()> + Send {
    // This is created before the future, so that it is dropped even if the future is dropped before its first poll.
    let end = EndWarming(warm_list);
    async move {
        if warm.is_wanted {
            read_list(&state, &end.0, warm).await;
            // Warming up was not aborted, so no object is left to be read.
            end.0.set(Arc::default());
        }
    }
}

async fn read_list(state: &SpanState, warm_list: &WarmList, warm: WarmSources) {
    let WarmSources { checkpoint, newest, .. } = warm;
    let mut list: Vec<HotPlace> = newest.into_iter().map(|location| HotPlace::new(location, 1)).collect();
    if let Some(header) = checkpoint {
        let (hot, damaged) = load_hot(&state.span.device, &state.span.layout, &header).await;
        Counters::add(&state.span.counters.hot_chunks_damaged, damaged);
        list.extend(hot);
    }
    let mut room = state.memory.capacity();
    // The newest objects count as requested once. Sorting does not change the order of objects with the same number of
    // requests.
    list.sort_by_key(HotPlace::hottest_first);
    list.retain(|place| {
        let taken = place.location().bytes_max() + ENTRY_BYTES_MIN;
        let fits = taken <= room;
        room = room.saturating_sub(taken);
        fits
    });
    list.sort_unstable_by_key(|place| (place.location().granule, place.hottest_first()));
    list.dedup_by_key(|place| place.location().granule);
    let list = Arc::new(list);
    warm_list.set(Arc::clone(&list));
    // The buffers of finished reads are reused.
    let spares: Mutex<Vec<Buffer>> = Mutex::default();
    let spare = || spares.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).pop();
    let mut runs = stream::iter(WarmReads { span: &state.span, list: list.iter().copied().peekable() })
        .map(|run| {
            let bytes = (run.extent.end - run.extent.start) as usize;
            let spare = spare().filter(|buffer| buffer.capacity() >= bytes);
            let mut buffer = spare.unwrap_or_else(|| Buffer::zeroed(bytes.max(RUN_BYTES_MAX as usize)));
            buffer.set_len(bytes);
            async move { (state.span.read_extent_into(run.extent, buffer).await.ok(), run) }
        })
        .buffered(READS_AT_ONCE);
    let mut done = 0;
    while let Some((buffer, run)) = runs.next().await {
        done += run.places.len();
        let Some(buffer) = buffer else {
            if take_each(state, &run).await == WarmOutcome::Full {
                return;
            }
            warm_list.set_done(done);
            continue;
        };
        for places in run.places.chunks(TURN) {
            for &place in places {
                if take(state, &buffer, run.extent, place) == WarmOutcome::Full {
                    return;
                }
            }
            tokio::task::yield_now().await;
        }
        warm_list.set_done(done);
        spares.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(buffer);
    }
}

/// Reads the objects of a run one by one, because they cannot be read at once.
async fn take_each(state: &SpanState, run: &WarmRead) -> WarmOutcome {
    for &place in &run.places {
        let Some(extent) = state.span.extent(place.location()).filter(|own| own.epoch == run.extent.epoch) else {
            continue;
        };
        if let Some(buffer) = read_closely(&state.span, place.location(), extent).await
            && take(state, &buffer, extent, place) == WarmOutcome::Full
        {
            return WarmOutcome::Full;
        }
    }
    WarmOutcome::No
}

/// Puts one object from the read bytes into memory, if the object passes the checks.
fn take(state: &SpanState, buffer: &[u8], extent: ReadExtent, hot: HotPlace) -> WarmOutcome {
    let location = hot.location();
    let address = state.span.address_of(location);
    let Some(bytes) = buffer.get((address - extent.start) as usize..) else { return WarmOutcome::No };
    let place = FramePlace { identity: state.span.layout.identity, epoch: extent.epoch, address };
    let Ok(record) = DecodedRecord::decode(bytes, place) else { return WarmOutcome::No };
    let hash = KeyHash(record.fields.key_hash.get());
    if record.kind != RecordKind::Whole || record.bytes() > bytes.len() || state.memory.contains(hash) {
        return WarmOutcome::No;
    }
    let is_newest = || {
        state.is_newest(hash, location, extent.epoch)
            || (planted(Bug::HotListIgnoresReplacement)
                && state.span.epoch_at(location, state.span.head()) == extent.epoch)
    };
    let entry: Option<MemoryEntry> = unasked(state, bytes, &record, location, planted(Bug::HotListIgnoresPurge));
    let Some(entry) = entry.map(Arc::new) else { return WarmOutcome::No };
    let warmed = state.memory.put_warm(&entry, hot.references(), is_newest);
    if warmed == WarmOutcome::Taken {
        Counters::add(&state.span.counters.warmed, 1);
        Counters::add(&state.span.counters.warmed_bytes, entry.body.len() as u64);
    }
    warmed
}

/// Combines locations, in the order of the disk, into reads.
struct WarmReads<'a, L: Iterator<Item = HotPlace>> {
    span: &'a SpanDisk,
    list: std::iter::Peekable<L>,
}

impl<L: Iterator<Item = HotPlace>> Iterator for WarmReads<'_, L> {
    type Item = WarmRead;

    fn next(&mut self) -> Option<WarmRead> {
        let (first, mut extent) = std::iter::from_fn(|| self.list.next())
            .find_map(|first| Some((first, self.span.extent(first.location())?)))?;
        let mut places = vec![first];
        while let Some(next) = self.list.peek().and_then(|next| self.span.extent(next.location())) {
            let close = next.start <= extent.end + GAP_BYTES_MAX && next.end <= extent.start + RUN_BYTES_MAX;
            if !close || next.epoch != extent.epoch {
                break;
            }
            extent.end = extent.end.max(next.end);
            places.extend(self.list.next());
        }
        Some(WarmRead { extent, places })
    }
}
