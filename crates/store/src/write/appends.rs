//! Appends: waiting objects are packed together and written.
//!
//! Owns: when an append is due, how large it is, and how many are in flight. An append is as large as its buffers
//! allow, for two reasons. The end of an append may split a group of related objects, whose rest is then in a later
//! append. And at the maximum rate of puts, many small appends in flight are slower than few large ones.

use std::sync::atomic::Ordering;
use std::task::Poll;

use futures_util::poll;
use nectary_block::{IoContext, WriteFlags};

use super::{SpanWriter, WrittenAppend};
use crate::counters::Counters;
use crate::error::Error;
use crate::format::{APPEND_HEADER_BYTES, BLOCK_BYTES, LogPosition, TABLE_ENTRY_BYTES};
use crate::intake::queue::UnwrittenEntry;
use crate::planted::{Bug, planted};
use crate::write::pack::{self, PackedAppend};
use crate::write::trouble::UnflushedAppend;

/// The largest number of appends in flight.
const IN_FLIGHT_MAX: usize = 2;

impl SpanWriter {
    /// Whether another append may begin.
    pub(super) fn may_append(&self) -> bool {
        self.in_flight.len() < IN_FLIGHT_MAX
            && !self.waits_for_append
            && !self.trouble.is_on()
            && self.state.stopped().is_none()
    }

    /// Starts appends while they are due and fewer than the maximum are in flight.
    pub(super) async fn write_due(&mut self) -> Result<(), Error> {
        while self.may_append() {
            let (bytes, oldest) = self.intake.queue.backlog();
            let Some(oldest) = oldest else { return Ok(()) };
            let written = self.state.progress.written.load(Ordering::Acquire);
            let wanted = self.syncs_waiting.iter().any(|(sequence, _)| *sequence > written);
            let due = bytes >= self.intake.queue.wake_bytes() || oldest.elapsed() >= self.write_delay || wanted;
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
        let left = self.buffers.left();
        let room = self.span.layout.segment_bytes - self.position.offset;
        let (usual, most) = (self.append_bytes, self.span.layout.append_bytes_max());
        let bounds = if self.in_flight.is_empty() {
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
            self.waits_for_append = !self.in_flight.is_empty();
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
        let LogPosition { epoch, offset } = self.position;
        let flushed_sequence = self.state.progress.flushed.load(Ordering::Acquire);
        let flushed_sequence = flushed_sequence.max(self.trouble.settled_sequence);
        let known = pack::AppendContext { purge_end: self.purge_end, flushed_sequence };
        let (counters, groups_known) = (&self.span.counters, &self.lookup.groups);
        let cluster_bytes = self.lookup.clusters.cluster_bytes();
        let packing = pack::AppendPacking { hints: &self.rewriting.hints, cluster_bytes };
        let names = &self.state.names;
        items.iter().for_each(|item| names.note_at(item.entry.primary_hash, epoch));
        let buffer = self.buffers.take(pack::append_bytes(&items));
        let buffer_bytes = buffer.capacity() as u64;
        let packed = pack::pack(layout, epoch, offset, items, sequence, known, &packing, buffer);
        let PackedAppend { buffer, items, last_sequence, tied, groups } = packed;
        groups_known.add(layout.segment_of(epoch), epoch, offset == 0, &groups);
        Counters::add(&counters.objects_tied, tied);
        let tags_bytes = items.iter().map(|(item, _)| item.entry.tags.record_bytes() as u64).sum();
        Counters::add(&counters.tags_written_bytes, tags_bytes);
        self.appended_sequence = last_sequence;
        self.appended_records += items.len() as u64;
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
        self.in_flight.push_back(Box::pin(written));
        self.position.offset += bytes;
        self.appended_bytes += bytes;
        self.appended_count += 1;
        Counters::add(&self.span.counters.appends, 1);
        Counters::add(&self.span.counters.append_bytes, bytes);
        // Requests are submitted to the io_uring when no task is ready. Without this yield, the device would get this
        // write only after the next append is packed.
        tokio::task::yield_now().await;
    }

    /// Processes the result of the oldest append in flight.
    pub(super) async fn complete(&mut self, written: WrittenAppend) {
        self.waits_for_append = false;
        let WrittenAppend { result, items, append, buffer_bytes } = written;
        let (buffer, error) = match result {
            Ok(mut buffers) => (buffers.pop(), None),
            Err(error) => (None, Some(Error::from(error))),
        };
        self.buffers.give_back(buffer_bytes, buffer);
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
