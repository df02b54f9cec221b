//! One read, write or flush in progress, for either engine.
//!
//! Owns: the buffers until the operation has ended, its progress, and the consequences of its result for the device.
//! The engines only move bytes and report counts.

use std::fs::File;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use crate::buffer::Buffer;
use crate::error::{Error, ErrorKind, Operation};

/// The state that all operations on one open file or disk share.
pub(super) struct Shared {
    pub file: File,
    pub spec: String,
    pub block_bytes: u32,
    pub size_bytes: AtomicU64,
    /// The number of bytes without the padding of the last block.
    pub exact_bytes: AtomicU64,
    /// The first failure after which the device refuses writes; unset if there was no such failure.
    pub latched: OnceLock<String>,
}

impl Shared {
    /// Refuses an operation that would change the device, if the device is latched.
    pub fn check_latch(&self, operation: Operation, offset: u64, length: u64) -> Result<(), Error> {
        let Some(first) = self.latched.get() else { return Ok(()) };
        let detail = format!("first failure: {first}; repair the cause and open the device again");
        Err(Error::new(ErrorKind::Latched, &self.spec, operation, detail).at(offset, length))
    }

    /// Latches the device, so that it refuses writes, if the stored bytes are unknown after `error`.
    ///
    /// After a write that found no room, only the range of that write is unknown, so the device does not latch. A
    /// failed flush always latches, because the kernel forgets which pages it could not write.
    pub fn latch_after(&self, error: &Error) {
        let in_doubt = match error.operation {
            Operation::Flush => true,
            Operation::Write | Operation::WriteZeroes => {
                !matches!(error.kind, ErrorKind::Full | ErrorKind::Invalid | ErrorKind::TimedOut | ErrorKind::Latched)
            }
            _ => false,
        };
        if in_doubt {
            // Only the first failure is kept, because later failures are its consequence.
            let _ = self.latched.set(error.to_string());
        }
    }
}

/// A read, write or flush that owns its buffers.
pub(super) struct Transfer {
    pub shared: Arc<Shared>,
    pub operation: Operation,
    pub offset: u64,
    pub length: u64,
    pub buffers: Vec<Buffer>,
    pub fua: bool,
    /// The number of bytes that have been moved.
    pub done: u64,
}

/// The meaning of the number of bytes that the kernel has moved.
pub(super) enum Progress {
    /// All bytes have been moved.
    Ended,
    /// The remaining bytes must be requested again.
    More,
}

impl Transfer {
    /// The offset of the first byte that has not been moved yet.
    pub fn position(&self) -> u64 {
        self.offset + self.done
    }

    /// Counts the bytes that the kernel has moved.
    ///
    /// *Errors*: if the device or file ended before the end of the operation's range.
    pub fn advance(&mut self, moved: u64) -> Result<Progress, Error> {
        let block = u64::from(self.shared.block_bytes);
        self.done += moved;
        match self.operation {
            _ if self.done == self.length => return Ok(Progress::Ended),
            // A read that stops inside a block has reached the end of the file.
            Operation::Read if moved > 0 && self.done.is_multiple_of(block) => return Ok(Progress::More),
            Operation::Write if moved >= block => {
                self.done -= self.done % block;
                return Ok(Progress::More);
            }
            _ => {}
        }
        let detail = match self.operation {
            Operation::Read => format!(
                "expected {} bytes, found {}: the file was truncated to about {} bytes while it was open",
                self.length,
                self.done,
                self.position()
            ),
            _ => format!("expected to move {} bytes, moved {}", self.length, self.done),
        };
        Err(self.error(ErrorKind::Io, detail))
    }

    /// Makes an error about this operation.
    pub fn error(&self, kind: ErrorKind, detail: String) -> Error {
        Error::new(kind, &self.shared.spec, self.operation, detail).at(self.offset, self.length)
    }

    /// Makes an error about this operation from an error of the kernel.
    pub fn os_error(&self, error: &std::io::Error) -> Error {
        Error::from_os(error, &self.shared.spec, self.operation).at(self.offset, self.length)
    }

    /// Ends the operation: returns the buffers or the error. If the stored bytes are unknown after the error, the
    /// device latches.
    pub fn end(self, result: Result<(), Error>) -> Result<Vec<Buffer>, Error> {
        match result {
            Ok(()) => Ok(self.buffers),
            Err(error) => {
                self.shared.latch_after(&error);
                Err(error)
            }
        }
    }
}
