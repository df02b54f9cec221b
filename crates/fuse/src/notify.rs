//! Messages to the kernel without a request: something in its cache is outdated.
//!
//! Owns: their layout. They may wait for kernel locks that a request holds, so they must not be sent from
//! [`serve`](crate::FileSystem::serve).

use std::io::{self, IoSlice};

use zerocopy::IntoBytes;

use crate::channel::Channel;
use crate::protocol::answers::{DeleteOut, InvalidateEntryOut, InvalidateNodeOut, StoreOut};
use crate::protocol::notice;

/// The flag of an entry that expires.
const EXPIRE: u32 = 1;

/// A descriptor by which the kernel is notified.
///
/// *Errors* of all methods: the kernel's. A node or entry that the kernel has not cached is no error.
#[derive(Debug)]
pub struct Notifier {
    channel: Channel,
}

impl Notifier {
    /// A notifier on a descriptor of the connection.
    pub fn new(channel: Channel) -> Notifier {
        Notifier { channel }
    }

    fn tell(&self, code: i32, parts: &[IoSlice<'_>]) -> io::Result<()> {
        match self.channel.write(0, code, parts) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            result => result,
        }
    }

    /// The attributes of a node are outdated, and so are `length` bytes of its contents from `offset` on; a length of 0
    /// means up to the end, an offset below 0 means no contents.
    pub fn invalidate_node(&self, node: u64, offset: i64, length: i64) -> io::Result<()> {
        let out = InvalidateNodeOut { node, offset, length };
        self.tell(notice::INVALIDATE_NODE, &[IoSlice::new(out.as_bytes())])
    }

    /// A file has grown: if the kernel knows an earlier end, `size` is its end from now on. It may wait for the page that
    /// has the last byte, while that is read.
    pub fn grow_node(&self, node: u64, size: u64) -> io::Result<()> {
        // There is no message for this. The one that stores bytes in the page cache moves the end before it copies them. Its
        // byte is nowhere, so that nothing is copied: the page may have been read since, and be right.
        let Some(offset) = size.checked_sub(1) else { return Ok(()) };
        let out = StoreOut { node, offset, bytes: 1, padding: 0 };
        match self.channel.write_nowhere(notice::STORE, out.as_bytes(), 1) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EFAULT)) => Ok(()),
            result => result,
        }
    }

    /// A name in a directory is outdated. With `expires` the kernel only looks it up again, and keeps mounts on it.
    pub fn invalidate_entry(&self, parent: u64, name: &[u8], expires: bool) -> io::Result<()> {
        let name_bytes = u32::try_from(name.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let out = InvalidateEntryOut { parent, name_bytes, flags: if expires { EXPIRE } else { 0 } };
        self.tell(notice::INVALIDATE_ENTRY, &[IoSlice::new(out.as_bytes()), IoSlice::new(name), IoSlice::new(&[0])])
    }

    /// A name was removed, so watchers of the directory are notified.
    pub fn removed(&self, parent: u64, child: u64, name: &[u8]) -> io::Result<()> {
        let name_bytes = u32::try_from(name.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let out = DeleteOut { parent, child, name_bytes, padding: 0 };
        self.tell(notice::DELETE, &[IoSlice::new(out.as_bytes()), IoSlice::new(name), IoSlice::new(&[0])])
    }

    /// All names are outdated: the kernel looks each up again at its next use. Linux 6.16 or later.
    pub fn next_epoch(&self) -> io::Result<()> {
        self.tell(notice::NEXT_EPOCH, &[])
    }
}
