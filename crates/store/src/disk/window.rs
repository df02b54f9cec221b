//! The bytes of one segment, read window by window.
//!
//! Owns: the window, its memory, and smaller reads around blocks that cannot be read. Promises: a block that cannot be
//! read hides no other block, is asked for a few times at most, and is not mistaken for a blank one. Leaves to others:
//! how much is read at once, and the meaning of the bytes (`segment`).

use std::ops::Range;

use nectary_block::{Buffer, IoContext, SharedDevice};

use crate::format::BLOCK_BYTES;

/// If a read fails, reads of this share of it are tried.
const SMALLER_SHARE: u64 = 16;
/// The largest number of unreadable blocks that are remembered; others are read again whenever they are needed.
const UNREADABLE_MAX: usize = 64;

/// A window on a segment.
pub(super) struct SegmentWindow<'a> {
    device: &'a SharedDevice,
    /// The range of the segment on the device, in bytes.
    segment: Range<u64>,
    /// The position in the segment and the bytes of the last read. An empty buffer only keeps memory for the next read.
    held: Option<(u64, Buffer)>,
    /// The smallest size of a read, in bytes.
    pub read_bytes: u64,
    /// A range, of which a read failed, that was not read since; it is read in smaller parts.
    suspect: Range<u64>,
    /// The positions of blocks that cannot be read.
    unreadable: Vec<u64>,
    /// Whether bytes were requested that cannot be read.
    has_failed: bool,
}

impl<'a> SegmentWindow<'a> {
    /// Makes a window without bytes.
    pub fn new(device: &'a SharedDevice, segment: Range<u64>, read_bytes: u64) -> SegmentWindow<'a> {
        SegmentWindow {
            device,
            segment,
            held: None,
            read_bytes,
            suspect: 0..0,
            unreadable: Vec::new(),
            has_failed: false,
        }
    }

    /// Whether bytes were requested that cannot be read.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Takes a buffer to reuse.
    pub fn take_memory(&mut self, buffer: Option<Buffer>) {
        // The buffer is empty, so its position must match no request.
        self.held = buffer.map(|mut buffer| {
            buffer.set_len(0);
            (u64::MAX, buffer)
        });
    }

    /// Returns the buffer for reuse.
    pub fn into_memory(self) -> Option<Buffer> {
        self.held.map(|(_, buffer)| buffer)
    }

    async fn read_into(&self, position: u64, buffer: Buffer) -> Result<Buffer, nectary_block::Error> {
        let mut buffers =
            self.device.read_at(self.segment.start + position, vec![buffer], IoContext::default()).await?;
        Ok(buffers.pop().expect("a read gives its buffers back"))
    }

    /// Returns bytes of the segment from `position` on: at least `length` bytes, or all bytes up to the end of the
    /// segment; `None` if they cannot be read.
    pub async fn bytes_at(&mut self, position: u64, length: u64) -> Option<&[u8]> {
        let segment_bytes = self.segment.end - self.segment.start;
        let length = length.min(segment_bytes - position);
        let inside = self
            .held
            .as_ref()
            .is_some_and(|(start, bytes)| position >= *start && position + length <= start + bytes.len() as u64);
        if !inside {
            let start = position / BLOCK_BYTES * BLOCK_BYTES;
            let least = (position - start + length).next_multiple_of(BLOCK_BYTES).min(segment_bytes - start);
            let wanted = least.max(self.read_bytes.next_multiple_of(BLOCK_BYTES)).min(segment_bytes - start);
            let buffer = self.held.take().map(|(_, buffer)| buffer);
            self.held = self.read(start, least, wanted, buffer).await.map(|buffer| (start, buffer));
            self.has_failed |= self.held.is_none();
        }
        let (start, bytes) = self.held.as_ref()?;
        bytes.get((position - start) as usize..)
    }

    /// Reads `wanted` bytes, or fewer around what cannot be read, but at least `least`.
    async fn read(&mut self, start: u64, least: u64, mut wanted: u64, spare: Option<Buffer>) -> Option<Buffer> {
        if self.unreadable.iter().any(|bad| (start..start + least).contains(bad)) {
            return None;
        }
        if self.suspect.contains(&start) {
            wanted = smaller(self.suspect.end - start, least).min(wanted);
        }
        // A read ends before what could not be read, if that leaves the requested bytes.
        let stops =
            self.unreadable.iter().copied().chain(Some(self.suspect.start).filter(|_| !self.suspect.is_empty()));
        let stop = stops.filter(|&stop| stop >= start + least).min();
        wanted = stop.map_or(wanted, |stop| wanted.min(stop - start));
        let mut spare = spare.filter(|buffer| buffer.capacity() as u64 >= wanted);
        loop {
            let mut buffer = spare.take().unwrap_or_else(|| Buffer::zeroed(wanted as usize));
            buffer.set_len(wanted as usize);
            match self.read_into(start, buffer).await {
                Ok(buffer) => {
                    if self.suspect.contains(&start) {
                        self.suspect.start = (start + wanted).min(self.suspect.end);
                    }
                    return Some(buffer);
                }
                // One unreadable block must not hide the blocks around it.
                Err(_) if wanted > least => {
                    self.suspect = start..start + wanted;
                    wanted = smaller(wanted, least);
                }
                Err(_) => {
                    self.suspect = start..start + least;
                    if least == BLOCK_BYTES {
                        self.suspect = 0..0;
                        self.unreadable.truncate(UNREADABLE_MAX - 1);
                        self.unreadable.push(start);
                    }
                    return None;
                }
            }
        }
    }
}

/// The next size of a read, in bytes, if a part of `bytes` cannot be read, and at least `least` bytes are needed.
fn smaller(bytes: u64, least: u64) -> u64 {
    (bytes / SMALLER_SHARE).next_multiple_of(BLOCK_BYTES).max(BLOCK_BYTES).max(least)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use nectary_block::{DeviceErrorKind, DeviceOperation, DeviceRequest, Error, Filter, IoFuture, MemoryDevice};

    use super::*;

    /// A device of which one block cannot be read.
    struct ScratchedDevice {
        inner: SharedDevice,
        unreadable: u64,
        reads: Arc<AtomicU64>,
        failed: Arc<AtomicU64>,
    }

    impl Filter for ScratchedDevice {
        fn inner(&self) -> &SharedDevice {
            &self.inner
        }

        fn spec(&self) -> String {
            self.inner.spec()
        }

        fn around<T: Send + 'static>(
            &self,
            request: DeviceRequest,
            operation: impl FnOnce(&SharedDevice) -> IoFuture<T> + Send + 'static,
        ) -> IoFuture<T> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            if (request.offset..request.offset + request.length).contains(&self.unreadable) {
                self.failed.fetch_add(1, Ordering::Relaxed);
                let error =
                    Error::new(DeviceErrorKind::Io, "a test", DeviceOperation::Read, "the block cannot be read");
                return Box::pin(std::future::ready(Err(error)));
            }
            operation(&self.inner)
        }
    }

    #[tokio::test]
    async fn unreadable_block_hides_no_other_block() {
        let bytes = 4 << 20;
        for unreadable in [0, 1, 100, 767, 1022, 1023].map(|block| block * BLOCK_BYTES) {
            let (reads, failed): (Arc<AtomicU64>, Arc<AtomicU64>) = Default::default();
            let inner = Arc::new(MemoryDevice::new(bytes));
            let device: SharedDevice =
                Arc::new(ScratchedDevice { inner, unreadable, reads: reads.clone(), failed: failed.clone() });
            let mut window = SegmentWindow::new(&device, 0..bytes, bytes);
            for position in (0..bytes).step_by(64) {
                let block = position / BLOCK_BYTES * BLOCK_BYTES;
                assert_eq!(window.bytes_at(position, 64).await.is_some(), block != unreadable, "{position}");
            }
            let (reads, failed) = (reads.load(Ordering::Relaxed), failed.load(Ordering::Relaxed));
            assert!(window.has_failed() && failed <= 5 && reads <= 100, "{unreadable}: {reads} reads, {failed} failed");
        }
    }
}
