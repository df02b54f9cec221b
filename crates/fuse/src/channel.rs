//! A descriptor of `/dev/fuse`, or of a substitute in tests. Each read returns one request, and each write is one
//! answer.
//!
//! Owns: opening and cloning the descriptor, reading requests, noticing the end of a connection, and writing answers.
//! Leaves to others: the contents of messages.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use nectary_host::log::{LogLevel, LogThrottle};
use zerocopy::IntoBytes;

use crate::error::Error;
use crate::protocol::answers::OutHeader;

const DEVICE: &str = "/dev/fuse";

/// `FUSE_DEV_IOC_CLONE`: makes a descriptor serve the same connection as the descriptor in the argument.
const CLONE: libc::c_ulong = 0x8004_e500;

/// The number of parts below which an answer is written without an allocation.
const PARTS_WITHOUT_ALLOCATION: usize = 40;

/// A descriptor from which requests are read and to which answers are written.
#[derive(Debug)]
pub struct FuseChannel {
    file: File,
}

/// The outcome of waiting for a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReceiveOutcome {
    /// A request was read; the value is its number of bytes.
    Bytes(usize),
    /// No request was read: it was withdrawn, or a signal interrupted the wait.
    Nothing,
    /// The connection has ended.
    End,
}

impl FuseChannel {
    /// Opens `/dev/fuse`. Requests arrive only after a mount. If `blocks` is true, a read waits for a request, which a
    /// thread of a [`WorkerCrew`](crate::WorkerCrew) needs. Otherwise a read fails with `WouldBlock` if there is no request.
    ///
    /// *Errors*: [`Error::NoFuse`], [`Error::NotPermitted`].
    pub fn open(blocks: bool) -> Result<FuseChannel, Error> {
        let flags = if blocks { 0 } else { libc::O_NONBLOCK };
        let opened = OpenOptions::new().read(true).write(true).custom_flags(flags).open(DEVICE);
        let file = opened.map_err(|source| match source.kind() {
            io::ErrorKind::PermissionDenied => Error::NotPermitted { what: DEVICE, source },
            _ => Error::NoFuse { source },
        })?;
        Ok(FuseChannel { file })
    }

    /// Makes another descriptor of the same connection, with its own queue of unanswered requests. If there is no mount
    /// yet, or the kernel does not support separate queues, both descriptors share one queue.
    pub fn again(&self) -> io::Result<FuseChannel> {
        FuseChannel::of_connection(self.file.as_raw_fd())
    }

    /// Makes another descriptor of the connection of a descriptor, which the caller keeps open meanwhile.
    pub(crate) fn of_connection(source: RawFd) -> io::Result<FuseChannel> {
        let again = OpenOptions::new().read(true).write(true).open(DEVICE);
        if let Ok(file) = again {
            let source = source as u32;
            // SAFETY: the kernel only reads the number that the argument points to, and the number outlives the call.
            if unsafe { libc::ioctl(file.as_raw_fd(), CLONE, &raw const source) } == 0 {
                return Ok(FuseChannel { file });
            }
        }
        // SAFETY: the caller keeps the descriptor open.
        let source = unsafe { BorrowedFd::borrow_raw(source) };
        Ok(FuseChannel { file: File::from(source.try_clone_to_owned()?) })
    }

    /// Reads a request into `parts`, in order.
    pub(crate) fn receive(&self, parts: &mut [IoSliceMut<'_>]) -> io::Result<ReceiveOutcome> {
        match (&self.file).read_vectored(parts) {
            // This happens only in tests: the other end of the socket is closed.
            Ok(0) => Ok(ReceiveOutcome::End),
            Ok(bytes) => Ok(ReceiveOutcome::Bytes(bytes)),
            Err(error) => match error.raw_os_error() {
                // The request was withdrawn before it was read.
                Some(libc::ENOENT | libc::EINTR) => Ok(ReceiveOutcome::Nothing),
                Some(libc::ENODEV | libc::ECONNABORTED | libc::ECONNRESET) => Ok(ReceiveOutcome::End),
                _ => Err(error),
            },
        }
    }

    /// Writes an answer to the request `unique`. `error` is 0 or a negative error number. The write never blocks.
    ///
    /// *Errors*: the kernel's errors. It is no error if no process waits for the answer any more.
    pub(crate) fn answer(&self, unique: u64, error: i32, parts: &[IoSlice<'_>]) -> io::Result<()> {
        match self.write(unique, error, parts) {
            Err(error) if is_gone(&error) => Ok(()),
            result => result,
        }
    }

    /// Writes an answer, and logs a message if the kernel refuses the answer.
    pub(crate) fn send(&self, unique: u64, error: i32, parts: &[IoSlice<'_>]) {
        if let Err(failed) = self.answer(unique, error, parts) {
            static LOST: LogThrottle = LogThrottle::every(Duration::from_secs(60));
            LOST.write(LogLevel::Error, "fuse", format_args!("the kernel did not take an answer: {failed}"));
            // A process still waits for the refused answer, so it gets an error.
            if error == 0 {
                let _ = self.answer(unique, -libc::EIO, &[]);
            }
        }
    }

    /// Writes a notification whose last `bytes` bytes are at an address that cannot be read. When the kernel tries to
    /// read these bytes, the write fails with `EFAULT`.
    pub(crate) fn write_nowhere(&self, code: i32, part: &[u8], bytes: u32) -> io::Result<()> {
        let length = size_of::<OutHeader>() + part.len() + bytes as usize;
        let length = u32::try_from(length).map_err(|_| io::ErrorKind::InvalidInput)?;
        let header = OutHeader { length, error: code, unique: 0 };
        let piece = |bytes: &[u8]| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let nowhere = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: bytes as usize };
        let parts = [piece(header.as_bytes()), piece(part), nowhere];
        // SAFETY: the kernel only reads the parts, and memory that cannot be read makes the call fail.
        match unsafe { libc::writev(self.file.as_raw_fd(), parts.as_ptr(), parts.len() as i32) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Writes a header and its parts in one call.
    pub(crate) fn write(&self, unique: u64, error: i32, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let length = u32::try_from(size_of::<OutHeader>() + bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        let header = OutHeader { length, error, unique };
        let head = IoSlice::new(header.as_bytes());
        let written = if parts.len() < PARTS_WITHOUT_ALLOCATION {
            let mut all = [IoSlice::new(&[]); PARTS_WITHOUT_ALLOCATION];
            all[0] = head;
            all[1..=parts.len()].copy_from_slice(parts);
            (&self.file).write_vectored(&all[..=parts.len()])?
        } else {
            (&self.file).write_vectored(&[&[head], parts].concat())?
        };
        if written == length as usize { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }
}

/// Whether an error means that the answer is not needed: no process waits for it any more, or the connection has ended.
fn is_gone(error: &io::Error) -> bool {
    let number = error.raw_os_error();
    matches!(number, Some(libc::ENOENT | libc::ENODEV | libc::ECONNABORTED | libc::EPERM | libc::EPIPE))
}

impl From<OwnedFd> for FuseChannel {
    /// Makes a channel from a descriptor, which must preserve the boundaries of messages.
    fn from(descriptor: OwnedFd) -> FuseChannel {
        FuseChannel { file: File::from(descriptor) }
    }
}

impl AsFd for FuseChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl AsRawFd for FuseChannel {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.file.as_raw_fd()
    }
}
