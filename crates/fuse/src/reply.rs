//! The answer to one request.
//!
//! Owns: the forms of answers. Promises: a request is answered once; if its reply is dropped, the request fails with
//! `EIO`; no answer is longer than the request has room for; the answer is written to the descriptor that received the
//! request.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use zerocopy::IntoBytes;

use crate::attributes::{Attributes, Entry, StatFs};
use crate::directory::Listing;
use crate::error::Errno;
use crate::flights::Flights;
use crate::protocol::XATTR_BYTES_MAX;
use crate::protocol::answers::{CopyOut, LockOut, OpenOut, SeekOut, WriteOut, XattrOut};
use crate::request::{Call, Lock};

/// Answers a request, now or later, on any thread.
pub struct Reply {
    flights: Arc<Flights>,
    unique: u64,
    /// The size limit of the answer, in bytes.
    bytes_max: usize,
    /// Whether the answer to a copy has 64 bits for the length.
    is_wide: bool,
    is_answered: bool,
    /// Counts the request as in flight.
    _turn: OwnedSemaphorePermit,
}

/// The size limit of an answer that is neither file data nor a list of names: a page.
const OTHER_BYTES_MAX: usize = 4096;

impl Reply {
    pub(crate) fn new(flights: Arc<Flights>, unique: u64, call: &Call<'_>, turn: OwnedSemaphorePermit) -> Reply {
        let bytes_max = match call {
            Call::Read(read) => read.size as usize,
            Call::ReadDirectory { size, .. } => *size as usize,
            Call::GetXattr { size, .. } | Call::ListXattr { size } => (*size as usize).min(XATTR_BYTES_MAX),
            Call::Ioctl { output_bytes_max, .. } => *output_bytes_max as usize + OTHER_BYTES_MAX,
            _ => OTHER_BYTES_MAX,
        };
        let is_wide = matches!(call, Call::Copy(copy) if copy.is_wide);
        Reply { flights, unique, bytes_max, is_wide, is_answered: false, _turn: turn }
    }

    /// Allows an interrupt of the waiting process to answer the request at once with `EINTR`; the later answer is then
    /// dropped. Only for requests that change nothing: a write answered early could take effect after a later one.
    pub fn can_be_cut_short(&self) {
        self.flights.can_be_cut_short(self.unique);
    }

    /// Whether the waiting process was interrupted. The request must be answered nevertheless, with `EINTR` if it was
    /// not done.
    pub fn is_interrupted(&self) -> bool {
        self.flights.is_interrupted(self.unique)
    }

    fn send(mut self, error: i32, parts: &[IoSlice<'_>]) {
        self.is_answered = true;
        if let Some(channel) = self.flights.end(self.unique) {
            channel.send(self.unique, error, parts);
        }
    }

    /// Success without data.
    pub fn ok(self) {
        self.send(0, &[]);
    }

    /// Failure.
    pub fn error(self, error: Errno) {
        self.send(-error.number(), &[]);
    }

    /// Failure with a number of `errno.h`.
    pub fn errno(self, number: i32) {
        self.error(Errno::new(number));
    }

    /// Success or failure.
    pub fn done(self, result: Result<(), Errno>) {
        match result {
            Ok(()) => self.ok(),
            Err(error) => self.error(error),
        }
    }

    /// Bytes in several parts, for example of a read; fewer bytes than requested mean that the file ends there.
    pub fn parts(self, parts: &[IoSlice<'_>]) {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if bytes > self.bytes_max { self.errno(libc::EIO) } else { self.send(0, parts) }
    }

    /// Bytes: of a read, or the target of a symbolic link.
    pub fn bytes(self, bytes: &[u8]) {
        self.parts(&[IoSlice::new(bytes)]);
    }

    fn layout<T: IntoBytes + zerocopy::Immutable>(self, layout: &T) {
        self.send(0, &[IoSlice::new(layout.as_bytes())]);
    }

    /// The node of a name.
    pub fn entry(self, entry: &Entry) {
        self.layout(&entry.out());
    }

    /// Attributes, which the kernel may cache for the time `valid`.
    pub fn attributes(self, attributes: &Attributes, valid: Duration) {
        self.layout(&attributes.out(valid));
    }

    /// Attributes in the form of `statx`.
    pub fn statx(self, attributes: &Attributes, valid: Duration) {
        self.layout(&attributes.statx_out(valid));
    }

    /// A handle; the flags are [`open_flags`](crate::protocol::open_flags).
    pub fn opened(self, handle: u64, flags: u32) {
        self.layout(&OpenOut { handle, flags, padding: 0 });
    }

    /// A new node and a handle on it.
    pub fn created(self, entry: &Entry, handle: u64, flags: u32) {
        let (entry, open) = (entry.out(), OpenOut { handle, flags, padding: 0 });
        self.send(0, &[IoSlice::new(entry.as_bytes()), IoSlice::new(open.as_bytes())]);
    }

    /// The number of bytes that were written.
    pub fn written(self, bytes: u32) {
        self.layout(&WriteOut { size: bytes, padding: 0 });
    }

    /// The number of bytes that were copied.
    pub fn copied(self, bytes: u64) {
        match (self.is_wide, u32::try_from(bytes)) {
            (true, _) => self.layout(&CopyOut { size: bytes }),
            (false, Ok(bytes)) => self.written(bytes),
            (false, Err(_)) => self.errno(libc::EIO),
        }
    }

    /// The sizes of the file system.
    pub fn statfs(self, sizes: &StatFs) {
        self.layout(&sizes.out());
    }

    /// An extended attribute, or a list of names: the bytes, or only their number if the request asks for size 0.
    pub fn xattr(self, value: &[u8]) {
        match u32::try_from(value.len()) {
            Ok(size) if self.bytes_max == 0 => self.layout(&XattrOut { size, padding: 0 }),
            _ if value.len() <= self.bytes_max => self.bytes(value),
            _ => self.errno(libc::ERANGE),
        }
    }

    /// The conflicting lock, or one of kind `F_UNLCK` if there is none.
    pub fn lock(self, lock: &Lock) {
        let Lock { start, end, process, .. } = *lock;
        self.layout(&LockOut { start, end, kind: lock.kind as u32, process });
    }

    /// The start of the next data or the next hole.
    pub fn position(self, offset: u64) {
        self.layout(&SeekOut { offset });
    }

    /// Entries of a directory; an empty list means the end.
    pub fn listing(self, listing: &Listing) {
        self.bytes(listing.bytes());
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.is_answered
            && let Some(channel) = self.flights.end(self.unique)
        {
            channel.send(self.unique, -libc::EIO, &[]);
        }
    }
}
