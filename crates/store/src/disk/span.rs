//! The device of an open span: the position of the ring, and reading extents of the device.
//!
//! Owns: the device and its layout, the epoch that is being written, the speed of the ring, the counters, and the notes
//! for the operator. Promises: every read of records is counted, and a failed read is noted. Leaves to others: the
//! meaning of the bytes (`state/record.rs`), and locations (`index`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nectary_block::{self as block, Buffer, IoContext, SharedDevice};

use crate::counters::Counters;
use crate::disk::health::DeviceHealth;
use crate::disk::pace::RingPace;
use crate::error::{Error, StoreErrorKind};
use crate::format::layout::SpanLayout;
use crate::format::{GRANULE_BYTES, RecordLocation};
use crate::names::key::{KeyHash, KeyRef, PrimaryHash, hash_key};
use crate::names::tag::{EntryTags, TagHash, TagLedger, hash_tag};

/// The range of one read, in whole blocks of the device. *Units*: bytes from the start of the device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadExtent {
    pub start: u64,
    pub end: u64,
    /// The epoch that the extent's segment had before the read.
    pub epoch: u64,
}

/// The device of an open span.
pub(crate) struct SpanDisk {
    /// The device, whose operations have the deadline of `health`.
    pub device: SharedDevice,
    /// The same device without it, for reads that set their own.
    bare: SharedDevice,
    pub layout: SpanLayout,
    pub counters: Arc<Counters>,
    pub health: Arc<DeviceHealth>,
    /// The speed of the ring.
    pub pace: RingPace,
    /// The memory of tags, in bytes.
    pub tag_ledger: TagLedger,
    /// The epoch being written.
    head: AtomicU64,
}

impl SpanDisk {
    /// Makes the device of a span whose epoch `head` is being written; `bare` is the same device without deadlines.
    pub fn new(
        device: SharedDevice,
        bare: SharedDevice,
        health: &Arc<DeviceHealth>,
        layout: SpanLayout,
        head: u64,
    ) -> SpanDisk {
        SpanDisk {
            device,
            bare,
            layout,
            counters: Arc::clone(&health.counters),
            health: Arc::clone(health),
            pace: RingPace::new(),
            tag_ledger: TagLedger::default(),
            head: AtomicU64::new(head),
        }
    }

    /// The epoch being written.
    pub fn head(&self) -> u64 {
        self.head.load(Ordering::Acquire)
    }

    /// Sets the epoch being written: its segment is overwritten from now on.
    pub fn set_head(&self, epoch: u64) {
        self.head.store(epoch, Ordering::Release);
    }

    /// The epoch of the segment that contains a location, while the epoch `head` is being written.
    pub fn epoch_at(&self, location: RecordLocation, head: u64) -> u64 {
        self.layout.epoch_of(location.granule * GRANULE_BYTES / self.layout.segment_bytes, head)
    }

    /// Whether the segment of an epoch has been overwritten, or is being overwritten.
    pub fn is_overtaken(&self, epoch: u64) -> bool {
        epoch < self.layout.tail(self.head())
    }

    /// Hashes a key.
    pub fn hash(&self, key: KeyRef<'_>) -> (PrimaryHash, KeyHash) {
        hash_key(self.layout.hash_seed, key)
    }

    /// Hashes the tags that a caller gives. *Errors*: `Invalid` if a tag is out of bounds, or if there are too many.
    pub fn tags<'a>(&self, tags: impl IntoIterator<Item = &'a [u8]>) -> Result<EntryTags, Error> {
        let hashes = tags.into_iter().map(|tag| hash_tag(self.layout.hash_seed, tag));
        EntryTags::new(hashes.collect::<Result<Vec<TagHash>, Error>>()?, &self.tag_ledger)
    }

    /// The address of a location, in bytes from the start of the device.
    pub fn address_of(&self, location: RecordLocation) -> u64 {
        self.layout.segments_offset + location.granule * GRANULE_BYTES
    }

    /// The blocks that a record at a location may occupy; `None` if the location is outside the segments.
    pub fn extent(&self, location: RecordLocation) -> Option<ReadExtent> {
        let epoch = self.epoch_at(location, self.head());
        let offset = location.granule * GRANULE_BYTES;
        let segment_end = (offset / self.layout.segment_bytes + 1) * self.layout.segment_bytes;
        if segment_end > self.layout.segment_count * self.layout.segment_bytes {
            return None;
        }
        let end = self.layout.segments_offset + (offset + location.bytes_max()).min(segment_end);
        let block = u64::from(self.device.geometry().block_bytes);
        let start = self.address_of(location) / block * block;
        Some(ReadExtent { start, end: end.next_multiple_of(block), epoch })
    }

    /// Reads an extent. A failed read is counted, and noted for the operator.
    pub async fn read_extent(&self, extent: ReadExtent) -> Result<Buffer, Error> {
        self.read_extent_into(extent, Buffer::recycled((extent.end - extent.start) as usize)).await
    }

    /// Reads an extent into a buffer of its length.
    pub async fn read_extent_into(&self, extent: ReadExtent, buffer: Buffer) -> Result<Buffer, Error> {
        let deadline = self.health.read_deadline()?;
        Counters::add(&self.counters.device_reads, 1);
        Counters::add(&self.counters.device_read_bytes, extent.end - extent.start);
        let read = self.bare.read_at(extent.start, vec![buffer], IoContext::default());
        let result = match deadline {
            None => read.await,
            // The device keeps the buffer of a read whose future is dropped.
            Some(deadline) => match tokio::time::timeout_at(deadline, read).await {
                Ok(result) => result,
                Err(_) => Err(self.late(extent)),
            },
        };
        self.health.note_read(&result);
        match result {
            Ok(mut buffers) => buffers
                .pop()
                .ok_or_else(|| Error::new(StoreErrorKind::Io, format!("{}: no buffer", self.device.spec()))),
            Err(error) => {
                Counters::add(&self.counters.device_read_errors, 1);
                self.note(error.to_string());
                Err(error.into())
            }
        }
    }

    /// Flushes the device. After a failed flush, every flush fails until the writer has rewritten what the failed one
    /// may have lost, because a flush that succeeds later proves nothing about earlier writes.
    pub async fn flush(&self) -> Result<(), Error> {
        Counters::add(&self.counters.flushes, 1);
        if self.health.is_latched() {
            return Err(self.latched_error());
        }
        let flushed = self.device.flush(IoContext::default()).await;
        if let Err(error) = flushed {
            self.health.latch();
            Counters::add(&self.counters.flushes_failed, 1);
            return Err(error.into());
        }
        // The kernel may have told only the other caller that pages were lost.
        if self.health.is_latched() { Err(self.latched_error()) } else { Ok(()) }
    }

    /// The error of a call that needs a flush, while the effect of a failed flush is not repaired.
    pub fn latched_error(&self) -> Error {
        let spec = self.device.spec();
        Error::new(
            StoreErrorKind::Io,
            format!("{spec}: a flush failed; what was written since the last good one is being rewritten"),
        )
    }

    /// The error of a read that missed its deadline.
    fn late(&self, extent: ReadExtent) -> block::Error {
        let detail = "the deadline passed; the device has not answered";
        let error = block::Error::new(
            block::DeviceErrorKind::TimedOut,
            &self.device.spec(),
            block::DeviceOperation::Read,
            detail,
        );
        error.at(extent.start, extent.end - extent.start)
    }

    /// Notes that a record was found damaged.
    pub fn note_damage(&self, location: RecordLocation) {
        let address = self.address_of(location);
        self.note(format!("{}: damaged record at offset {address}; its object is a miss", self.device.spec()));
    }

    /// Keeps a message for the operator; the number of messages is bounded.
    pub fn note(&self, message: String) {
        self.health.note(message);
    }

    /// Returns the kept messages and removes them.
    pub fn take_notes(&self) -> Vec<String> {
        self.health.take_notes()
    }
}
