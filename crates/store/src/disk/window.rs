//! The bytes of one segment, read window by window.
//!
//! Owns: the window, its memory, and a second, smaller read if the first one fails. Leaves to others: how much is read
//! at once, and the meaning of the bytes (`segment`).

use std::ops::Range;

use nectary_block::{Buffer, Context, SharedDevice, read};

use crate::format::BLOCK_BYTES;

/// A window on a segment.
pub(super) struct Window<'a> {
    device: &'a SharedDevice,
    /// The range of the segment on the device, in bytes.
    segment: Range<u64>,
    /// The position in the segment and the bytes of the last read. An empty buffer only keeps memory for the next read.
    held: Option<(u64, Buffer)>,
    /// The smallest size of a read, in bytes.
    pub read_bytes: u64,
}

impl<'a> Window<'a> {
    /// Makes a window without bytes.
    pub fn new(device: &'a SharedDevice, segment: Range<u64>, read_bytes: u64) -> Window<'a> {
        Window { device, segment, held: None, read_bytes }
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
        let mut buffers = self.device.read_at(self.segment.start + position, vec![buffer], Context::default()).await?;
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
            let wanted = (position - start + length).max(self.read_bytes).next_multiple_of(BLOCK_BYTES);
            let bytes = wanted.min(segment_bytes - start);
            let buffer = self.held.take().map(|(_, buffer)| buffer).filter(|buffer| buffer.capacity() as u64 >= bytes);
            let mut buffer = buffer.unwrap_or_else(|| Buffer::zeroed(bytes as usize));
            buffer.set_len(bytes as usize);
            self.held = match self.read_into(start, buffer).await {
                Ok(buffer) => Some((start, buffer)),
                // One unreadable block must not hide the blocks around it, so only the requested blocks are read.
                Err(_) => {
                    let least = (position - start + length).next_multiple_of(BLOCK_BYTES);
                    let least = least.min(segment_bytes - start);
                    Some((start, read(&**self.device, self.segment.start + start, least as usize).await.ok()?))
                }
            };
        }
        let (start, bytes) = self.held.as_ref()?;
        bytes.get((position - start) as usize..)
    }
}
