//! What a client asks of the kernel of its host.
//!
//! Leaves to others: when it asks (`hold`), and how the kernel is told (the program that serves the mount); what the
//! kernel was given with a time (`given`), and what it looks up one after another (`moved`).

mod given;
mod moved;

use std::ops::Range;
use std::time::Duration;

use nectary_block::Buffer;
use tokio::sync::oneshot;

use crate::protocol::FileId;

pub use given::{GivenName, GivenNames};
pub use moved::EarlierName;

/// The kernel of this host, which may have cached pages of files, and a cache between it and the client.
pub trait HostKernel: Send + Sync + 'static {
    /// Makes the kernel drop the cached pages of an inode in a range of bytes; the receiver is told when this is done.
    /// Before that, the kernel may write pages back, and may wait for pages that it is reading. So the code that serves
    /// these reads and writes must not wait for the receiver.
    fn invalidate(&self, inode: u64, range: Range<u64>) -> oneshot::Receiver<()>;

    /// Tells the kernel that a file has at least this size; the receiver is told when the kernel knows. This may wait
    /// for a page that the kernel is reading.
    fn grow(&self, inode: u64, size: u64) -> oneshot::Receiver<()>;

    /// Makes the kernel look a name up again that it may have cached; the receiver is told when this is done, and after
    /// this time the kernel does not show it any more. `None`: it has not cached it. The session keeps it no more when
    /// this is called.
    fn forget_name(&self, _directory: FileId, _name: &[u8]) -> Option<(oneshot::Receiver<()>, Duration)> {
        None
    }

    /// Returns the time after which the kernel shows no name of a directory without a request. `None`: it shows none. The
    /// session keeps none of them any more when this is called.
    fn names_end(&self, _directory: FileId) -> Option<Duration> {
        None
    }

    /// Makes the kernel drop the attributes of a file; the receiver is told when this is done. `None`: the kernel does not
    /// know the file. The session keeps them no more when this is called.
    fn forget_attributes(&self, _file: FileId) -> Option<oneshot::Receiver<()>> {
        None
    }

    /// Makes the kernel drop all access control lists that it has cached; the receiver is told when this is done. `None`:
    /// it has none.
    fn forget_lists(&self) -> Option<oneshot::Receiver<()>> {
        None
    }

    /// Returns the time after which the kernel shows nothing without a request that it was shown before. `None`: it shows
    /// nothing.
    fn all_ends(&self) -> Option<Duration> {
        None
    }

    /// Notes that this host changes a range of bytes of a file. No [`view`](super::OpenFile::view) of the file exists
    /// until the change has ended. For a cache above the client.
    fn changed(&self, _file: FileId, _range: Range<u64>) {}

    /// Notes that this host has written `data` to a file, at the end of the change that [`changed`](Self::changed)
    /// announced; the file now has `size` bytes. For a cache above the client.
    fn written(&self, _file: FileId, _offset: u64, _data: &[Buffer], _size: u64) {}

    /// Notes that the session gives the token of a file back: what was read under it is the content of the inode's
    /// `version`. No view of the file exists meanwhile. For a cache above the client.
    fn released(&self, _file: FileId, _version: u64) {}

    /// Notes that a session begins: what was read in earlier sessions may be old. For a cache above the client.
    fn session_began(&self) {}
}
