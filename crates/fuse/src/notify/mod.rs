//! Messages to the kernel that answer no request. They tell the kernel that entries of its caches are outdated.
//!
//! Owns: the layout of these messages. Sending a message may wait for kernel locks that a request holds, so no message
//! may be sent in [`serve`](crate::FuseFileSystem::serve): those about names wait for the lock of the directory, which a
//! call that changes or looks up names there holds; those about contents wait for pages that are read or written.

mod apart;

use std::io;

use zerocopy::IntoBytes;

use apart::{ApartThread, KernelMessage};

use crate::channel::FuseChannel;
use crate::protocol::answers::{DeleteOut, InvalidateEntryOut, InvalidateNodeOut, StoreOut};
use crate::protocol::notice;

/// The flag of a message that only makes an entry expire.
const EXPIRE: u32 = 1;

/// A descriptor through which messages are sent to the kernel.
///
/// *Errors* of all methods: the errors of the kernel. It is no error if the kernel has not cached the node or entry.
#[derive(Debug)]
pub struct KernelNotifier {
    route: NoticeRoute,
}

/// How messages reach the kernel.
#[derive(Debug)]
enum NoticeRoute {
    Direct(FuseChannel),
    Apart(ApartThread),
}

impl KernelNotifier {
    /// Makes a notifier that uses a descriptor of the connection. While a message waits for a lock, the process cannot be
    /// killed: this is for [attributes](Self::invalidate_attributes) and the [epoch](Self::next_epoch), which need none.
    pub fn new(channel: FuseChannel) -> KernelNotifier {
        KernelNotifier { route: NoticeRoute::Direct(channel) }
    }

    /// Makes a notifier for messages that may wait for a lock. They are written by a thread that does not keep a killed
    /// process alive, one after another. The file system must have been mounted.
    ///
    /// *Errors*: the thread cannot be started, or cannot have its own descriptors.
    pub fn apart(channel: &FuseChannel) -> io::Result<KernelNotifier> {
        ApartThread::start(channel).map(|thread| KernelNotifier { route: NoticeRoute::Apart(thread) })
    }

    fn write(&self, code: i32, parts: &[&[u8]], nowhere: Option<u32>) -> io::Result<()> {
        let message = KernelMessage { code, bytes: parts.concat(), nowhere };
        match &self.route {
            NoticeRoute::Direct(channel) => message.write(channel),
            NoticeRoute::Apart(thread) => thread.write(message),
        }
    }

    fn tell(&self, code: i32, parts: &[&[u8]]) -> io::Result<()> {
        match self.write(code, parts, None) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            result => result,
        }
    }

    /// Makes the kernel drop the attributes of a node, and `length` bytes of its contents from `offset` on. A length of
    /// 0 means all bytes up to the end; an offset below 0 means no contents.
    pub fn invalidate_node(&self, node: u64, offset: i64, length: i64) -> io::Result<()> {
        let out = InvalidateNodeOut { node, offset, length };
        self.tell(notice::INVALIDATE_NODE, &[out.as_bytes()])
    }

    /// Makes the kernel drop the attributes of a node, and its access control lists; returns whether it knows the node.
    /// An answer about the node that the kernel has requested before, but not applied yet, changes nothing that is
    /// cached; but not the answer that makes the node known (Linux 6.13 or later).
    pub fn invalidate_attributes(&self, node: u64) -> io::Result<bool> {
        let out = InvalidateNodeOut { node, offset: -1, length: 0 };
        match self.write(notice::INVALIDATE_NODE, &[out.as_bytes()], None) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            result => result.map(|()| true),
        }
    }

    /// Tells the kernel that a file has grown to `size` bytes. The call never makes the size that the kernel has cached
    /// smaller. It may wait while the page with the last byte is being read.
    pub fn grow_node(&self, node: u64, size: u64) -> io::Result<()> {
        // The protocol has no message for this. But the kernel handles the message that stores bytes in the page cache
        // in two steps: it first moves the end of the file and then copies the bytes. Here the byte to copy is at an
        // address that cannot be read, so that the kernel copies nothing. The cached page may already have the right
        // contents, which a copy would overwrite.
        let Some(offset) = size.checked_sub(1) else { return Ok(()) };
        let out = StoreOut { node, offset, bytes: 1, padding: 0 };
        match self.write(notice::STORE, &[out.as_bytes()], Some(1)) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EFAULT)) => Ok(()),
            result => result,
        }
    }

    /// Makes the kernel drop a cached name in a directory. If `expires` is true, the kernel only looks the name up
    /// again at its next use, and keeps mounts on it.
    pub fn invalidate_entry(&self, parent: u64, name: &[u8], expires: bool) -> io::Result<()> {
        let name_bytes = u32::try_from(name.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let out = InvalidateEntryOut { parent, name_bytes, flags: if expires { EXPIRE } else { 0 } };
        self.tell(notice::INVALIDATE_ENTRY, &[out.as_bytes(), name, &[0]])
    }

    /// Tells the kernel that a name was removed, so that the kernel notifies programs that watch the directory.
    pub fn removed(&self, parent: u64, child: u64, name: &[u8]) -> io::Result<()> {
        let name_bytes = u32::try_from(name.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let out = DeleteOut { parent, child, name_bytes, padding: 0 };
        self.tell(notice::DELETE, &[out.as_bytes(), name, &[0]])
    }

    /// Makes the kernel look up every name again at its next use. This needs Linux 6.16 or later.
    pub fn next_epoch(&self) -> io::Result<()> {
        self.tell(notice::NEXT_EPOCH, &[])
    }
}
