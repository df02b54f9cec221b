//! The answer to one request.
//!
//! Owns: the form of each kind of answer. Promises: a request is answered once; if its reply is dropped, the request
//! fails with `EIO`; no answer is longer than the request allows; the answer is written to the descriptor that received
//! the request.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use nectary_host::progress::CallProgress;
use tokio::sync::OwnedSemaphorePermit;
use zerocopy::IntoBytes;

use crate::attributes::{LookupEntry, NodeAttributes, StatFs};
use crate::directory::DirectoryListing;
use crate::error::Errno;
use crate::flights::FlightTable;
use crate::protocol::XATTR_BYTES_MAX;
use crate::protocol::answers::{CopyOut, LockOut, OpenOut, SeekOut, WriteOut, XattrOut};
use crate::request::{LockRange, RequestCall};

/// The right and duty to answer one request, at any time and on any thread.
pub struct ReplyHandle {
    flights: Arc<FlightTable>,
    unique: u64,
    /// The size limit of the answer, in bytes.
    bytes_max: usize,
    /// Whether the answer to a copy states the copied length in 64 bits.
    is_wide: bool,
    is_answered: bool,
    progress: Arc<CallProgress>,
    /// The permit that counts the request as in flight.
    turn: Option<OwnedSemaphorePermit>,
}

/// The size limit of an answer that is neither file data nor a list of names. It is one page.
const OTHER_BYTES_MAX: usize = 4096;

impl ReplyHandle {
    pub(crate) fn new(
        flights: Arc<FlightTable>,
        unique: u64,
        call: &RequestCall<'_>,
        turn: OwnedSemaphorePermit,
        progress: Arc<CallProgress>,
    ) -> ReplyHandle {
        let bytes_max = match call {
            RequestCall::Read(read) => read.size as usize,
            RequestCall::ReadDirectory { size, .. } => *size as usize,
            RequestCall::GetXattr { size, .. } | RequestCall::ListXattr { size } => {
                (*size as usize).min(XATTR_BYTES_MAX)
            }
            RequestCall::Ioctl { output_bytes_max, .. } => *output_bytes_max as usize + OTHER_BYTES_MAX,
            _ => OTHER_BYTES_MAX,
        };
        let is_wide = matches!(call, RequestCall::Copy(copy) if copy.is_wide);
        ReplyHandle { flights, unique, bytes_max, is_wide, is_answered: false, progress, turn: Some(turn) }
    }

    /// Allows an interrupt of the waiting process to answer the request at once with `EINTR`; a later answer is then
    /// dropped. This is only for requests that change nothing: a write that is answered early could take effect after a
    /// later write.
    pub fn can_be_cut_short(&self) {
        self.flights.can_be_cut_short(self.unique);
    }

    /// Returns the progress of the request, so that its task can say what it waits for.
    pub fn progress(&self) -> Arc<CallProgress> {
        self.progress.clone()
    }

    /// Gives the request's share of [`FuseLimits::requests`](crate::FuseLimits) back, because the request waits for another
    /// program, whose requests must not have to wait for it. The file system bounds the number of such requests.
    pub fn waits_for_program(&mut self) {
        drop(self.turn.take());
    }

    /// Whether the waiting process was interrupted. The request must still be answered, with `EINTR` if the file system
    /// has not done the operation.
    pub fn is_interrupted(&self) -> bool {
        self.flights.is_interrupted(self.unique)
    }

    fn send(mut self, error: i32, parts: &[IoSlice<'_>]) {
        self.is_answered = true;
        if let Some(channel) = self.flights.end(self.unique) {
            channel.send(self.unique, error, parts);
        }
    }

    /// Answers that the request succeeded, without data.
    pub fn ok(self) {
        self.send(0, &[]);
    }

    /// Answers that the request failed.
    pub fn error(self, error: Errno) {
        self.send(-error.number(), &[]);
    }

    /// Answers that the request failed, with a number of `errno.h`.
    pub fn errno(self, number: i32) {
        self.error(Errno::new(number));
    }

    /// Answers that the request succeeded or failed.
    pub fn done(self, result: Result<(), Errno>) {
        match result {
            Ok(()) => self.ok(),
            Err(error) => self.error(error),
        }
    }

    /// Answers with bytes in several parts, for example to a read. An answer with fewer bytes than requested means that
    /// the file ends after these bytes.
    pub fn parts(self, parts: &[IoSlice<'_>]) {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if bytes > self.bytes_max { self.errno(libc::EIO) } else { self.send(0, parts) }
    }

    /// Answers with bytes: the data of a read, or the target of a symbolic link.
    pub fn bytes(self, bytes: &[u8]) {
        self.parts(&[IoSlice::new(bytes)]);
    }

    fn layout<T: IntoBytes + zerocopy::Immutable>(self, layout: &T) {
        self.send(0, &[IoSlice::new(layout.as_bytes())]);
    }

    /// Answers with the node of a name.
    pub fn entry(self, entry: &LookupEntry) {
        self.layout(&entry.out());
    }

    /// Answers with attributes, which the kernel may cache for the time `valid`.
    pub fn attributes(self, attributes: &NodeAttributes, valid: Duration) {
        self.layout(&attributes.out(valid));
    }

    /// Answers with attributes in the form of `statx`, which the kernel may cache for the time `valid`.
    pub fn statx(self, attributes: &NodeAttributes, valid: Duration) {
        self.layout(&attributes.statx_out(valid));
    }

    /// Answers with a handle. The flags are [`open_flags`](crate::protocol::open_flags).
    pub fn opened(self, handle: u64, flags: u32) {
        self.opened_backed(handle, flags, 0);
    }

    /// Answers with a handle, whose bytes the kernel reads and writes itself if the flags have
    /// [`PASSTHROUGH`](crate::protocol::open_flags::PASSTHROUGH): those of the file with the number `backing`
    /// ([`BackingFiles`](crate::BackingFiles)).
    pub fn opened_backed(self, handle: u64, flags: u32, backing: u32) {
        self.layout(&OpenOut { handle, flags, backing });
    }

    /// Answers with a new node and a handle on it.
    pub fn created(self, entry: &LookupEntry, handle: u64, flags: u32) {
        self.created_backed(entry, handle, flags, 0);
    }

    /// Answers with a new node and a handle on it, as [`opened_backed`](Self::opened_backed).
    pub fn created_backed(self, entry: &LookupEntry, handle: u64, flags: u32, backing: u32) {
        let (entry, open) = (entry.out(), OpenOut { handle, flags, backing });
        self.send(0, &[IoSlice::new(entry.as_bytes()), IoSlice::new(open.as_bytes())]);
    }

    /// Answers with the number of bytes that were written.
    pub fn written(self, bytes: u32) {
        self.layout(&WriteOut { size: bytes, padding: 0 });
    }

    /// Answers with the number of bytes that were copied.
    pub fn copied(self, bytes: u64) {
        match (self.is_wide, u32::try_from(bytes)) {
            (true, _) => self.layout(&CopyOut { size: bytes }),
            (false, Ok(bytes)) => self.written(bytes),
            (false, Err(_)) => self.errno(libc::EIO),
        }
    }

    /// Answers with the sizes of the file system.
    pub fn statfs(self, sizes: &StatFs) {
        self.layout(&sizes.out());
    }

    /// Answers with the value of an extended attribute, or with a list of names. If the request allows 0 bytes, the
    /// answer is only the number of bytes.
    pub fn xattr(self, value: &[u8]) {
        match u32::try_from(value.len()) {
            Ok(size) if self.bytes_max == 0 => self.layout(&XattrOut { size, padding: 0 }),
            _ if value.len() <= self.bytes_max => self.bytes(value),
            _ => self.errno(libc::ERANGE),
        }
    }

    /// Answers with the conflicting lock, or with a lock of kind `F_UNLCK` if there is none.
    pub fn lock(self, lock: &LockRange) {
        let LockRange { start, end, process, .. } = *lock;
        self.layout(&LockOut { start, end, kind: lock.kind as u32, process });
    }

    /// Answers with the offset of the next data or the next hole.
    pub fn position(self, offset: u64) {
        self.layout(&SeekOut { offset });
    }

    /// Answers with entries of a directory. An empty listing means that there are no more entries.
    pub fn listing(self, listing: &DirectoryListing) {
        self.bytes(listing.bytes());
    }
}

impl Drop for ReplyHandle {
    fn drop(&mut self) {
        if !self.is_answered
            && let Some(channel) = self.flights.end(self.unique)
        {
            channel.send(self.unique, -libc::EIO, &[]);
        }
    }
}
