//! A bare FUSE server: files that are parts of a device, read with `pread` and written with `pwritev`.
//!
//! Owns: the file system, and its mount. No file system on FUSE that has its data on a device can do less for a
//! request, so its rate is the limit of them. The kernel caches nothing, and the device is opened with direct I/O, as a
//! shared volume does. A file has a fixed size; there are no other operations.

use std::cell::RefCell;
use std::ffi::CStr;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nectary_block::Buffer;
use nectary_fuse::protocol::open_flags;
use nectary_fuse::{
    Errno, FuseChannel, FuseConnection, FuseFileSystem, FuseLimits, FuseMount, FuseRequest, LookupEntry, MountOptions,
    NodeAttributes, PooledData, ReplyHandle, RequestCall, WorkerCrew,
};

use super::bare_names::BareNames;
use crate::{Error, sys};

/// The node of the first file; that of the root is 1.
const FIRST_NODE: u64 = 2;
/// The number of files.
const FILES: u64 = 2;
/// How long the kernel may keep attributes, which never change.
const VALID: Duration = Duration::from_secs(3600);

/// What is mounted where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BareOptions {
    /// The device; `None`: empty files in memory.
    pub device: Option<PathBuf>,
    /// Where its files are shown.
    pub directory: PathBuf,
    /// The length of each file. *Units*: bytes.
    pub bytes: u64,
}

/// The main function of the process: mounts the file system, prints the directory, and serves it until it is unmounted.
///
/// *Errors*: those of the device, also if it cannot be opened with direct I/O, and of the mount.
pub fn serve(options: &BareOptions, mut output: impl Write) -> Result<(), Error> {
    let failed = |error: nectary_fuse::Error| Error::failed("a bare FUSE server", error);
    let source = options.device.as_ref().map_or_else(|| "memory".to_owned(), |device| device.display().to_string());
    let served: Arc<dyn FuseFileSystem> = match &options.device {
        None => Arc::new(BareNames::new()),
        Some(device) => {
            let mut opening = File::options();
            opening.read(true).write(true).custom_flags(libc::O_DIRECT);
            let device = opening.open(device).map_err(|error| Error::failed(device.display(), error))?;
            Arc::new(BareFuseServer { device, bytes: options.bytes })
        }
    };
    let mount_options = MountOptions { source, root_mode: libc::S_IFDIR | 0o700, ..MountOptions::default() };
    let channel = FuseChannel::open(true).map_err(failed)?;
    let mount = FuseMount::new(&channel, &mount_options).map_err(failed)?;
    let connection = FuseConnection::new(served, FuseLimits::default());
    let crew = WorkerCrew::start(connection, channel, "bare-fuse").map_err(|error| Error::failed("a thread", error))?;
    mount.attach(&options.directory).map_err(failed)?;
    // Otherwise the file system would stay after it is unmounted.
    drop(mount);
    let said = writeln!(output, "{}", options.directory.display()).and_then(|()| output.flush());
    said.map_err(|error| Error::failed("the standard output", error))?;
    crew.wait().map_err(|error| Error::failed("a bare FUSE server", error))
}

struct BareFuseServer {
    device: File,
    bytes: u64,
}

thread_local! {
    /// The memory of a thread's read.
    static BUFFER: RefCell<Buffer> = RefCell::new(Buffer::zeroed(1 << 20));
}

impl BareFuseServer {
    /// The node of a name.
    fn look_up(name: &CStr) -> Option<u64> {
        let number: u64 = name.to_str().ok()?.strip_prefix("stream-")?.parse().ok()?;
        (number < FILES).then_some(FIRST_NODE + number)
    }

    fn attributes(&self, node: u64) -> NodeAttributes {
        let (mode, size) = match node {
            FIRST_NODE.. => (libc::S_IFREG | 0o600, self.bytes),
            _ => (libc::S_IFDIR | 0o700, 0),
        };
        NodeAttributes {
            number: node,
            mode,
            size,
            blocks: size / 512,
            links: 1,
            block_bytes: 4096,
            ..NodeAttributes::default()
        }
    }

    /// The offset on the device, and the number of bytes up to the end of the file.
    fn place(&self, node: u64, offset: u64) -> Option<(u64, u64)> {
        let file = node.checked_sub(FIRST_NODE).filter(|file| *file < FILES)?;
        let at = file.saturating_mul(self.bytes).saturating_add(offset);
        Some((at, self.bytes.saturating_sub(offset)))
    }

    fn read(&self, node: u64, offset: u64, size: u32, reply: ReplyHandle) {
        let Some((at, left)) = self.place(node, offset) else { return reply.errno(libc::EBADF) };
        let length = u64::from(size).min(left) as usize;
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < length {
                *buffer = Buffer::zeroed(length);
            }
            match self.device.read_at(&mut buffer[..length], at) {
                Ok(read) => reply.bytes(&buffer[..read]),
                Err(error) => reply.errno(error.raw_os_error().unwrap_or(libc::EIO)),
            }
        });
    }

    fn write(&self, node: u64, offset: u64, data: Option<PooledData>, reply: ReplyHandle) {
        let (Some((at, left)), Some(data)) = (self.place(node, offset), data) else { return reply.errno(libc::EBADF) };
        if data.len() as u64 > left {
            return reply.errno(libc::EFBIG);
        }
        match sys::write_vectored_at(&self.device, &data.parts(), at) {
            Ok(written) => reply.written(written as u32),
            Err(error) => reply.errno(error.raw_os_error().unwrap_or(libc::EIO)),
        }
    }
}

impl FuseFileSystem for BareFuseServer {
    fn serve(&self, mut request: FuseRequest<'_>, reply: ReplyHandle) {
        let (node, data) = (request.node, request.data.take());
        match request.call {
            RequestCall::Read(read) => self.read(node, read.offset, read.size, reply),
            RequestCall::Write(write) => self.write(node, write.offset, data, reply),
            RequestCall::LookUp { name } => match BareFuseServer::look_up(name) {
                Some(node) => reply.entry(&LookupEntry {
                    node,
                    generation: 0,
                    attributes: self.attributes(node),
                    entry_valid: VALID,
                    attributes_valid: VALID,
                }),
                None => reply.errno(libc::ENOENT),
            },
            RequestCall::GetAttributes { .. } => reply.attributes(&self.attributes(node), VALID),
            RequestCall::Open { .. } => reply.opened(0, open_flags::DIRECT_IO | open_flags::NO_FLUSH),
            RequestCall::Release { .. } => reply.ok(),
            RequestCall::Sync { .. } => reply.done(self.device.sync_data().map_err(|_| Errno::new(libc::EIO))),
            _ => reply.errno(libc::ENOSYS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The files are parts of the device, and there are no other files.
    #[test]
    fn bare_files_split_the_device() {
        let device = File::open("/dev/zero").unwrap();
        let bare = BareFuseServer { device, bytes: 1000 };
        assert_eq!((BareFuseServer::look_up(c"stream-0"), BareFuseServer::look_up(c"stream-1")), (Some(2), Some(3)));
        assert_eq!(
            (
                BareFuseServer::look_up(c"stream-2"),
                BareFuseServer::look_up(c"other"),
                BareFuseServer::look_up(c"stream-")
            ),
            (None, None, None)
        );
        assert_eq!(bare.place(3, 100), Some((1100, 900)));
        assert_eq!(bare.place(2, 2000).map(|place| place.1), Some(0));
        assert_eq!((bare.place(1, 0), bare.place(4, 0)), (None, None));
        assert_eq!((bare.attributes(2).size, bare.attributes(1).size), (1000, 0));
    }
}
