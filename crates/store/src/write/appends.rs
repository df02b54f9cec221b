//! Appends: waiting objects are packed together and written.
//!
//! Owns: when an append is due, how large it is, and how many are in flight. An append is as large as its buffers
//! allow, for two reasons. The end of an append may split a group of related objects, whose rest is then in a later
//! append. And at the maximum rate of puts, many small appends in flight are slower than few large ones.

use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use futures_util::poll;
use futures_util::stream::{FuturesOrdered, StreamExt};
use nectary_block::{Buffer, IoContext, WriteFlags};
use tokio::time::Instant;

use super::buffers::AppendBuffers;
use super::{SpanWriter, WriterStart};
use crate::counters::Counters;
use crate::error::Error;
use crate::format::{
    APPEND_HEADER_BYTES, BLOCK_BYTES, LogPosition, OPEN_COUNT_SHIFT, RecordLocation, TABLE_ENTRY_BYTES,
};
use crate::intake::queue::UnwrittenEntry;
use crate::planted::{Bug, planted};
use crate::write::pack::{self, PackedAppend};
use crate::write::trouble::UnflushedAppend;

/// The largest number of appends in flight.
const IN_FLIGHT_MAX: usize = 2;

/// An append that was written, or that could not be.
pub(super) struct WrittenAppend {
    result: Result<Vec<Buffer>, nectary_block::Error>,
    items: Vec<(UnwrittenEntry, RecordLocation)>,
    append: UnflushedAppend,
    /// The size of the append's buffer, in bytes.
    buffer_bytes: u64,
}

type InFlight = FuturesOrdered<std::pin::Pin<Box<dyn Future<Output = WrittenAppend> + Send>>>;

/// The appends of a writer: where the next one goes, and those in flight.
pub(super) struct AppendWrites {
    /// Where the next append begins.
    pub position: LogPosition,
    in_flight: InFlight,
    buffers: AppendBuffers,
    /// An append of several records has at most this many bytes.
    usual_bytes: u64,
    /// Whether waiting objects must wait for an append in flight.
    waits: bool,
    /// The longest time for which an object waits.
    delay: Duration,
    /// The highest sequence in a started append. Before the first append, this is a sequence below all sequences drawn
    /// since the open.
    started_sequence: u64,
}

impl AppendWrites {
    pub fn new(start: &WriterStart) -> AppendWrites {
        AppendWrites {
            position: start.position,
            in_flight: FuturesOrdered::new(),
            buffers: AppendBuffers::new(start.buffers_bytes),
            usual_bytes: start.append_bytes,
            waits: false,
            delay: start.write_delay,
            started_sequence: start.open_count << OPEN_COUNT_SHIFT,
        }
    }

    /// Whether no append is in flight.
    pub fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Whether another append may be in flight.
    fn has_room(&self) -> bool {
        self.in_flight.len() < IN_FLIGHT_MAX && !self.waits
    }

    /// Waits for the oldest append in flight; `None` if there is none. *Cancel safety*: nothing is lost.
    pub async fn next_written(&mut self) -> Option<WrittenAppend> {
        self.in_flight.next().await
    }

    /// The time at which an object is written that has waited since `oldest`.
    pub fn due(&self, oldest: Instant) -> Instant {
        oldest + self.delay
    }

    /// The highest sequence in a started append, or one below all that this open draws.
    pub fn started_sequence(&self) -> u64 {
        self.started_sequence
    }
}

impl SpanWriter {
    /// Whether another append may begin.
    pub(super) fn may_append(&self) -> bool {
        self.appends.has_room() && !self.trouble.is_on() && self.state.stopped().is_none()
    }

    /// Starts appends while they are due and fewer than the maximum are in flight.
    pub(super) async fn write_due(&mut self) -> Result<(), Error> {
        while self.may_append() {
            let (bytes, oldest) = self.intake.queue.backlog();
            let Some(oldest) = oldest else { return Ok(()) };
            let written = self.state.progress.written.load(Ordering::Acquire);
            let wanted = self.syncs.wait_for_more_than(written);
            let due = bytes >= self.intake.queue.wake_bytes() || oldest.elapsed() >= self.appends.delay || wanted;
            if !due || !self.append().await? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Packs one append from the queue and starts writing it. Returns false if nothing waits, or if the append must
    /// wait for those in flight.
    pub(super) async fn append(&mut self) -> Result<bool, Error> {
        // The first choice is an append with the entries that fit into the rest of this segment, so that little of the
        // segment stays empty. Otherwise the append goes into the next segment, and takes as many entries as fit. A
        // record that is longer than a usual append gets its own append.
        let left = self.appends.buffers.left();
        let room = self.span.layout.segment_bytes - self.appends.position.offset;
        let (usual, most) = (self.appends.usual_bytes, self.span.layout.append_bytes_max());
        let bounds = if self.appends.is_idle() {
            [usual.min(room), usual, most.min(room), most]
        } else {
            [usual.min(left).min(room), usual.min(left), 0, 0]
        };
        let (mut items, mut bytes) = (Vec::new(), 0);
        for bound in bounds {
            if items.is_empty() {
                (items, bytes) = pack::take(&self.intake.queue, bound);
            }
        }
        // An object that was purged while it waited is still written: until the purge is durable, the object hides the
        // version that it replaced.
        let Some(last_sequence) = items.last().map(|item| item.sequence) else {
            self.appends.waits = !self.appends.is_idle();
            return Ok(false);
        };
        let has_room = self.make_room(bytes.next_multiple_of(BLOCK_BYTES)).await;
        if has_room.is_err() || self.is_behind_failure() {
            self.trouble.keep(items);
            return has_room.map(|()| false);
        }
        self.start(items, last_sequence).await;
        Ok(true)
    }

    /// Packs `items` into an append and starts writing it. Without items, the append records that `sequence` was
    /// written.
    pub(super) async fn start(&mut self, items: Vec<UnwrittenEntry>, sequence: u64) {
        let layout = &self.span.layout;
        let LogPosition { epoch, offset } = self.appends.position;
        let flushed_sequence = self.state.progress.flushed.load(Ordering::Acquire);
        let flushed_sequence = flushed_sequence.max(self.trouble.settled_sequence);
        let known = pack::AppendContext { purge_end: self.purges.end(), flushed_sequence };
        let (counters, groups_known) = (&self.span.counters, &self.lookup.groups);
        let cluster_bytes = self.lookup.clusters.cluster_bytes();
        let packing = pack::AppendPacking { hints: &self.rewriting.hints, cluster_bytes };
        let names = &self.state.names;
        items.iter().for_each(|item| names.note_at(item.entry.primary_hash, epoch));
        let buffer = self.appends.buffers.take(pack::append_bytes(&items));
        let buffer_bytes = buffer.capacity() as u64;
        let packed = pack::pack(layout, epoch, offset, items, sequence, known, &packing, buffer);
        let PackedAppend { buffer, items, last_sequence, tied, groups } = packed;
        groups_known.add(layout.segment_of(epoch), epoch, offset == 0, &groups);
        Counters::add(&counters.objects_tied, tied);
        let tags_bytes = items.iter().map(|(item, _)| item.entry.tags.record_bytes() as u64).sum();
        Counters::add(&counters.tags_written_bytes, tags_bytes);
        self.appends.started_sequence = last_sequence;
        let records = items.len() as u64;
        if planted(Bug::WrittenTooEarly) {
            self.state.progress.written.fetch_max(last_sequence, Ordering::AcqRel);
        }
        let bytes = buffer.len() as u64;
        let head = buffer[..APPEND_HEADER_BYTES + items.len() * TABLE_ENTRY_BYTES].to_vec();
        let append = UnflushedAppend { epoch, offset, bytes, last_sequence, head };
        let address = layout.segment_start(epoch) + offset;
        let mut write = self.span.device.write_at(address, vec![buffer], WriteFlags::default(), IoContext::default());
        let begun = poll!(&mut write);
        let written = async move {
            let result = match begun {
                Poll::Ready(result) => result,
                Poll::Pending => write.await,
            };
            WrittenAppend { result, items, append, buffer_bytes }
        };
        self.appends.in_flight.push_back(Box::pin(written));
        self.appends.position.offset += bytes;
        self.checkpoints.count_append(bytes, records);
        Counters::add(&self.span.counters.appends, 1);
        Counters::add(&self.span.counters.append_bytes, bytes);
        // Requests are submitted to the io_uring when no task is ready. Without this yield, the device would get this
        // write only after the next append is packed.
        tokio::task::yield_now().await;
    }

    /// Processes the result of the oldest append in flight.
    pub(super) async fn complete(&mut self, written: WrittenAppend) {
        self.appends.waits = false;
        let WrittenAppend { result, items, append, buffer_bytes } = written;
        let (buffer, error) = match result {
            Ok(mut buffers) => (buffers.pop(), None),
            Err(error) => (None, Some(Error::from(error))),
        };
        self.appends.buffers.give_back(buffer_bytes, buffer);
        if error.is_some() || self.is_behind_failure() {
            return self.append_failed(items, &append, error.as_ref());
        }
        self.publish(items);
        let last_sequence = append.last_sequence;
        if self.append_succeeded(append) {
            self.state.progress.written.fetch_max(last_sequence, Ordering::AcqRel);
        }
        self.divide_memory();
    }
}
