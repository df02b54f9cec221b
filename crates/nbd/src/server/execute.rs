//! The execution of a request on the device.
//!
//! Owns: the buffers, the execution of requests that do not consist of whole blocks, and the device operations of each
//! command. A partial block is read, changed and written under an exclusive lock of the block; whole blocks are written
//! under a shared lock. Promises: a command that succeeds has done all of its work, including FUA; the memory that a
//! command uses is bounded by its length.

use std::sync::atomic::Ordering;

use nectary_block::{Buffer, DeviceErrorKind, DeviceExtent, DeviceOperation, Error, IoContext, WriteFlags};

use super::command::{AlignedRange, CheckedCommand, RequestRefusal};
use super::export::Export;
use crate::planted::{Bug, planted};
use crate::wire::errno;
use crate::wire::{STATE_HOLE, STATE_ZERO};

/// The size of the buffers in which data are read and written. The buffers are recycled for later requests. *Units*:
/// bytes.
const PIECE_BYTES: usize = 64 << 10;
/// The size of the pieces in which the server writes zeroes that must not be holes, and executes `NBD_CMD_CACHE`.
/// *Units*: bytes.
const STEP_BYTES: usize = 1 << 20;

/// The answer to a request.
pub(crate) enum CommandAnswer {
    Done,
    /// The bytes `shift..shift + length` of the concatenated buffers.
    Data {
        buffers: Vec<Buffer>,
        shift: usize,
        length: u32,
    },
    /// The lengths and flags of extents, from the requested offset on.
    Status(Vec<(u64, u32)>),
}

/// The data of a write, after they are read from the client and before they are written to the device.
pub(crate) struct WritePayload {
    buffers: Vec<Buffer>,
    frame: AlignedRange,
    length: usize,
}

impl WritePayload {
    /// Allocates room for the data of a write of `length` bytes at `offset`.
    pub fn new(offset: u64, length: u32, block_bytes: u32) -> WritePayload {
        let frame = AlignedRange::of(offset, u64::from(length), block_bytes);
        let buffers = match frame.is_whole(length) {
            true => pieces(frame.length),
            // One buffer holds the whole frame. The partial blocks at its ends are read into it first.
            false => vec![Buffer::recycled(frame.length)],
        };
        WritePayload { buffers, frame, length: length as usize }
    }

    /// The slices into which the data of the write are read.
    pub fn slices(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let (shift, mut left) = (self.frame.shift, self.length);
        self.buffers.iter_mut().enumerate().map(move |(index, buffer)| {
            let start = if index == 0 { shift } else { 0 };
            let length = left.min(buffer.len() - start);
            left -= length;
            &mut buffer[start..start + length]
        })
    }
}

/// Whether an error only says that zeroing would not be quick. Such an error does not count as a failure of the device.
fn is_slow(command: CheckedCommand, error: &Error) -> bool {
    matches!(command, CheckedCommand::Zero { quick: true, .. }) && error.kind == DeviceErrorKind::Unsupported
}

/// Allocates buffers for `length` bytes, which are whole blocks.
fn pieces(length: usize) -> Vec<Buffer> {
    let lengths = (0..length).step_by(PIECE_BYTES).map(|start| PIECE_BYTES.min(length - start));
    lengths.map(Buffer::recycled).collect()
}

/// A connection's view of an export.
pub(crate) struct CommandExecutor {
    pub export: std::sync::Arc<Export>,
    pub context: IoContext,
    /// Whether this connection has written since its last flush.
    pub has_written: std::sync::atomic::AtomicBool,
}

impl CommandExecutor {
    /// Executes a command. `payload` has the data of a write; it is `None` for other commands.
    pub async fn run(
        &self,
        command: CheckedCommand,
        payload: Option<WritePayload>,
    ) -> Result<CommandAnswer, RequestRefusal> {
        let counters = &self.export.counters;
        let done = self.try_run(command, payload).await;
        match &done {
            Ok(CommandAnswer::Data { length, .. }) => {
                counters.read_bytes.fetch_add(u64::from(*length), Ordering::Relaxed);
            }
            Ok(_) => {
                if let CheckedCommand::Write { length, .. } = command {
                    counters.written_bytes.fetch_add(u64::from(length), Ordering::Relaxed);
                }
            }
            Err(error) if is_slow(command, error) => {
                counters.refused.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) => {
                counters.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
        let value = |error: &Error| if is_slow(command, error) { errno::ENOTSUP } else { errno::of_device(error) };
        done.map_err(|error| RequestRefusal::new(value(&error), error.to_string()))
    }

    async fn try_run(&self, command: CheckedCommand, payload: Option<WritePayload>) -> Result<CommandAnswer, Error> {
        match (command, payload) {
            (CheckedCommand::Read { offset, length }, _) => self.read(offset, length).await,
            (CheckedCommand::Write { length, fua, .. }, Some(payload)) => self.write(length, fua, payload).await,
            // This case never occurs, because every write has a payload.
            (CheckedCommand::Write { .. }, None) => Ok(CommandAnswer::Done),
            (CheckedCommand::Flush, _) => self.flush().await,
            (CheckedCommand::Trim { offset, length, fua }, _) => self.trim(offset, length, fua).await,
            (CheckedCommand::Zero { offset, length, fua, no_hole, quick }, _) => {
                self.zero(offset, length, no_hole, quick).await?;
                self.flush_if(fua).await
            }
            (CheckedCommand::Cache { offset, length }, _) => self.cache(offset, length).await,
            (CheckedCommand::Status { offset, length, one }, _) => self.status(offset, length, one).await,
        }
    }

    fn block_bytes(&self) -> u32 {
        self.export.device().geometry().block_bytes
    }

    async fn read(&self, offset: u64, length: u32) -> Result<CommandAnswer, Error> {
        let frame = AlignedRange::of(offset, u64::from(length), self.block_bytes());
        let buffers = self.export.device().read_at(frame.start, pieces(frame.length), self.context).await?;
        Ok(CommandAnswer::Data { buffers, shift: frame.shift, length })
    }

    async fn write(&self, length: u32, fua: bool, payload: WritePayload) -> Result<CommandAnswer, Error> {
        let WritePayload { mut buffers, frame, .. } = payload;
        let is_whole = frame.is_whole(length);
        let exclusive = !is_whole && !planted(Bug::RangeUnlocked);
        let _lock = self.export.ranges.lock(frame.start, frame.end(), exclusive).await;
        if !is_whole && let Some(buffer) = buffers.first_mut() {
            self.fill_edges(length, frame, buffer).await?;
        }
        self.has_written.store(true, Ordering::Relaxed);
        self.export.device().write_at(frame.start, buffers, WriteFlags { fua }, self.context).await?;
        Ok(CommandAnswer::Done)
    }

    /// Reads the parts of the first and the last block that the data do not cover into `buffer`.
    async fn fill_edges(&self, length: u32, frame: AlignedRange, buffer: &mut Buffer) -> Result<(), Error> {
        let block = self.block_bytes() as usize;
        let end = frame.shift + length as usize;
        let last = frame.length - block;
        let mut edges = Vec::new();
        if frame.shift > 0 {
            edges.push((0, 0..frame.shift));
        }
        if end < frame.length {
            edges.push((last, end..frame.length));
        }
        for (at, range) in edges {
            let read = self.export.device().read_at(frame.start + at as u64, pieces(block), self.context).await?;
            let Some(old) = read.first() else { continue };
            let inside = range.start.max(at) - at..range.end - at;
            buffer[at + inside.start..at + inside.end].copy_from_slice(&old[inside]);
        }
        Ok(())
    }

    async fn flush(&self) -> Result<CommandAnswer, Error> {
        let has_written = self.has_written.swap(false, Ordering::Relaxed);
        if has_written || !planted(Bug::FlushOfOwnWritesOnly) {
            self.export.device().flush(self.context).await?;
        }
        Ok(CommandAnswer::Done)
    }

    /// Discards the blocks that lie entirely in the range.
    async fn trim(&self, offset: u64, length: u64, fua: bool) -> Result<CommandAnswer, Error> {
        let block = u64::from(self.block_bytes());
        let (start, end) = (offset.next_multiple_of(block), (offset + length) / block * block);
        if start < end {
            let _lock = self.export.ranges.lock(start, end, false).await;
            self.has_written.store(true, Ordering::Relaxed);
            self.export.device().discard(start, end - start, self.context).await?;
        }
        self.flush_if(fua).await
    }

    async fn zero(&self, offset: u64, length: u64, no_hole: bool, quick: bool) -> Result<(), Error> {
        let block = self.block_bytes();
        let end = offset + length;
        let (whole_start, whole_end) = {
            let block = u64::from(block);
            (offset.next_multiple_of(block), end / block * block)
        };
        if whole_start >= whole_end {
            // The range contains no whole block: it lies inside one block, or in parts of two blocks.
            if quick && length > 0 {
                let detail = "part of a block is written as data";
                let device = self.export.device();
                let slow =
                    Error::new(DeviceErrorKind::Unsupported, &device.spec(), DeviceOperation::WriteZeroes, detail);
                return Err(slow.at(offset, length));
            }
            return self.zero_bytes(offset, end, block).await;
        }
        // The whole blocks are zeroed first, so that nothing has changed if the device cannot zero them quickly.
        match quick {
            true => self.zero_blocks_quickly(whole_start, whole_end).await?,
            false => self.zero_blocks(whole_start, whole_end, no_hole).await?,
        }
        self.zero_bytes(offset, whole_start, block).await?;
        self.zero_bytes(whole_end, end, block).await
    }

    async fn zero_blocks_quickly(&self, start: u64, end: u64) -> Result<(), Error> {
        let _lock = self.export.ranges.lock(start, end, false).await;
        self.has_written.store(true, Ordering::Relaxed);
        self.export.device().zero_quickly(start, end - start, self.context).await
    }

    /// Zeroes parts of one or two blocks.
    async fn zero_bytes(&self, start: u64, end: u64, block: u32) -> Result<(), Error> {
        if start == end {
            return Ok(());
        }
        let length = (end - start) as u32;
        let mut payload = WritePayload::new(start, length, block);
        payload.slices().for_each(|slice| slice.fill(0));
        self.write(length, false, payload).await.map(drop)
    }

    async fn zero_blocks(&self, start: u64, end: u64, no_hole: bool) -> Result<(), Error> {
        let _lock = self.export.ranges.lock(start, end, false).await;
        let device = self.export.device();
        self.has_written.store(true, Ordering::Relaxed);
        if !no_hole {
            return device.write_zeroes(start, end - start, self.context).await;
        }
        let mut position = start;
        let mut buffers = vec![Buffer::zeroed((end - start).min(STEP_BYTES as u64) as usize)];
        while position < end {
            let length = (end - position).min(STEP_BYTES as u64) as usize;
            buffers.iter_mut().for_each(|buffer| buffer.set_len(length));
            buffers = device.write_at(position, buffers, WriteFlags::default(), self.context).await?;
            position += length as u64;
        }
        Ok(())
    }

    async fn flush_if(&self, fua: bool) -> Result<CommandAnswer, Error> {
        if fua {
            self.export.device().flush(self.context).await?;
        }
        Ok(CommandAnswer::Done)
    }

    /// Reads the range into the caches of the devices below.
    async fn cache(&self, offset: u64, length: u32) -> Result<CommandAnswer, Error> {
        let frame = AlignedRange::of(offset, u64::from(length), self.block_bytes());
        let mut position = frame.start;
        while position < frame.end() {
            let length = (frame.end() - position).min(STEP_BYTES as u64);
            self.export.device().read_at(position, pieces(length as usize), self.context).await?;
            position += length;
        }
        Ok(CommandAnswer::Done)
    }

    async fn status(&self, offset: u64, length: u64, one: bool) -> Result<CommandAnswer, Error> {
        let frame = AlignedRange::of(offset, length, self.block_bytes());
        let extents = self.export.device().allocation(frame.start, frame.length as u64, self.context).await?;
        let end = offset + length;
        let mut list: Vec<(u64, u32)> = Vec::new();
        for DeviceExtent { offset: start, length, mapped } in extents {
            let (from, to) = (start.max(offset), (start + length).min(end));
            if from < to {
                list.push((to - from, if mapped { 0 } else { STATE_HOLE | STATE_ZERO }));
            }
            if one && !list.is_empty() {
                break;
            }
        }
        if list.is_empty() {
            list.push((length, 0));
        }
        Ok(CommandAnswer::Status(list))
    }
}
