//! One read, write or flush in progress, for either engine.
//!
//! Owns: the buffers until the operation has ended, its progress, and the consequences of its result for the device.
//! The engines only move bytes and report counts.

use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::buffer::Buffer;
use crate::error::{DeviceErrorKind, DeviceOperation, Error};

/// The latch of a device. While it is set, the device refuses writes.
#[derive(Default)]
pub(super) struct WriteLatch {
    is_set: AtomicBool,
    /// The number of failures that have set the latch.
    failures: AtomicU64,
    /// The first failed flush since the device was opened or the latch was cleared.
    first: Mutex<Option<String>>,
}

/// The state that all operations on one open file or disk share.
pub(super) struct SharedFileState {
    pub file: File,
    pub spec: String,
    pub block_bytes: u32,
    pub size_bytes: AtomicU64,
    /// The number of bytes without the padding of the last block.
    pub exact_bytes: AtomicU64,
    pub latch: WriteLatch,
}

impl SharedFileState {
    /// Refuses an operation that would change the device, if the device is latched.
    pub fn check_latch(&self, operation: DeviceOperation, offset: u64, length: u64) -> Result<(), Error> {
        if !self.latch.is_set.load(Ordering::Acquire) {
            return Ok(());
        }
        let first = self.latch.first.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default();
        let detail = format!("first failure: {first}; repair the cause and open the device again");
        Err(Error::new(DeviceErrorKind::Latched, &self.spec, operation, detail).at(offset, length))
    }

    /// Latches the device, so that it refuses writes, if `error` is that of a flush or of a forced write: the kernel
    /// reports only once that it could not write a page, and then forgets the page. It may be that of an earlier write,
    /// so a later flush that succeeds would prove nothing.
    ///
    /// Another failed write does not latch. The caller knows its range, and only the contents of this range are unknown.
    pub fn latch_after(&self, error: &Error, is_forced: bool) {
        if error.operation == DeviceOperation::Flush || is_forced && error.kind == DeviceErrorKind::Io {
            self.latch(error);
        }
    }

    /// Latches the device because the kernel may have reported lost writes in `error`.
    pub fn latch(&self, error: &Error) {
        // Only the first failure is kept, because later failures are its consequence.
        let mut first = self.latch.first.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert_with(|| error.to_string());
        self.latch.failures.fetch_add(1, Ordering::AcqRel);
        self.latch.is_set.store(true, Ordering::Release);
    }

    /// The number of failures that have set the latch so far.
    pub fn failures(&self) -> u64 {
        self.latch.failures.load(Ordering::Acquire)
    }

    /// Clears the latch, because the caller rewrites everything that it wrote since the last flush that succeeded.
    pub fn clear_latch(&self) {
        let mut first = self.latch.first.lock().unwrap_or_else(PoisonError::into_inner);
        *first = None;
        self.latch.is_set.store(false, Ordering::Release);
    }
}

/// A read, write or flush that owns its buffers.
pub(super) struct DeviceTransfer {
    pub shared: Arc<SharedFileState>,
    pub operation: DeviceOperation,
    pub offset: u64,
    pub length: u64,
    pub buffers: Vec<Buffer>,
    pub fua: bool,
    /// The number of bytes that have been moved.
    pub done: u64,
    /// The number of failures that had set the latch when the operation began.
    pub failures: u64,
}

/// The meaning of the number of bytes that the kernel has moved.
pub(super) enum TransferProgress {
    /// All bytes have been moved.
    Ended,
    /// The remaining bytes must be requested again.
    More,
}

impl DeviceTransfer {
    /// The offset of the first byte that has not been moved yet.
    pub fn position(&self) -> u64 {
        self.offset + self.done
    }

    /// Counts the bytes that the kernel has moved.
    ///
    /// *Errors*: if the device or file ended before the end of the operation's range.
    pub fn advance(&mut self, moved: u64) -> Result<TransferProgress, Error> {
        let block = u64::from(self.shared.block_bytes);
        self.done += moved;
        match self.operation {
            _ if self.done == self.length => return Ok(TransferProgress::Ended),
            // A read that stops inside a block has reached the end of the file.
            DeviceOperation::Read if moved > 0 && self.done.is_multiple_of(block) => return Ok(TransferProgress::More),
            DeviceOperation::Write if moved >= block => {
                self.done -= self.done % block;
                return Ok(TransferProgress::More);
            }
            _ => {}
        }
        let detail = match self.operation {
            DeviceOperation::Read => format!(
                "expected {} bytes, found {}: the file was truncated to about {} bytes while it was open",
                self.length,
                self.done,
                self.position()
            ),
            _ => format!("expected to move {} bytes, moved {}", self.length, self.done),
        };
        Err(self.error(DeviceErrorKind::Io, detail))
    }

    /// Makes an error about this operation.
    pub fn error(&self, kind: DeviceErrorKind, detail: String) -> Error {
        Error::new(kind, &self.shared.spec, self.operation, detail).at(self.offset, self.length)
    }

    /// Makes an error about this operation from an error of the kernel.
    pub fn os_error(&self, error: &std::io::Error) -> Error {
        Error::from_os(error, &self.shared.spec, self.operation).at(self.offset, self.length)
    }

    /// Ends the operation: returns the buffers or the error. After a failed flush or forced write the device latches.
    /// A flush during which that happens fails, too: the kernel has told the other one what concerns both.
    pub fn end(self, result: Result<(), Error>) -> Result<Vec<Buffer>, Error> {
        if let Err(error) = &result {
            self.shared.latch_after(error, self.fua);
        } else if self.operation == DeviceOperation::Flush && self.shared.failures() != self.failures {
            return Err(
                self.error(DeviceErrorKind::Latched, "another flush or forced write failed meanwhile".to_owned())
            );
        }
        result.map(|()| self.buffers)
    }
}
