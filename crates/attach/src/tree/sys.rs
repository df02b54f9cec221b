//! System calls on nodes that are open with `O_PATH`.
//!
//! Owns: the unsafe calls of the tree. An open node is never looked up by its path again, so renames by others do not
//! matter. Calls that need a path get the path of the descriptor in `/proc/self/fd`.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use nectary_fuse::{Errno, StatFs};

const EMPTY: &CStr = c"";

type Result<T> = std::result::Result<T, Errno>;

fn last<T>() -> Result<T> {
    Err(io::Error::last_os_error().into())
}

fn done(result: libc::c_int) -> Result<()> {
    if result < 0 { last() } else { Ok(()) }
}

/// The path of a descriptor in `/proc/self/fd`.
fn path(descriptor: RawFd) -> CString {
    CString::new(format!("/proc/self/fd/{descriptor}")).expect("a number has no zero byte")
}

fn owned(descriptor: RawFd) -> Result<OwnedFd> {
    if descriptor < 0 {
        return last();
    }
    // SAFETY: the descriptor is new, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Opens a node of any kind in a directory with `O_PATH`.
pub fn look_up(parent: &File, name: &CStr) -> Result<File> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: the name is a string that ends with a zero byte and outlives the call.
    owned(unsafe { libc::openat(parent.as_raw_fd(), name.as_ptr(), flags) }).map(File::from)
}

/// The longest file handle that is stored. *Units*: bytes.
const HANDLE_BYTES_MAX: usize = 20;

/// A file handle: it names a node of a file system for as long as the node exists, and no other node later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileHandle {
    kind: i32,
    length: u8,
    bytes: [u8; HANDLE_BYTES_MAX],
}

/// The layout in which the kernel takes and returns handles.
#[repr(C)]
struct HandleLayout {
    length: u32,
    kind: i32,
    bytes: [u8; HANDLE_BYTES_MAX],
}

/// Returns the handle of a node, and the number of its mount.
///
/// *Errors*: `EOPNOTSUPP` if the file system has no handles, `EOVERFLOW` if they are too long.
pub fn handle(node: &File) -> Result<(FileHandle, i32)> {
    let mut layout = HandleLayout { length: HANDLE_BYTES_MAX as u32, kind: 0, bytes: [0; HANDLE_BYTES_MAX] };
    let mut mount = 0;
    // SAFETY: the layout is that of the call, with room for as many bytes as it says; all arguments outlive the call.
    done(unsafe {
        let handle = (&raw mut layout).cast::<libc::file_handle>();
        libc::name_to_handle_at(node.as_raw_fd(), EMPTY.as_ptr(), handle, &raw mut mount, libc::AT_EMPTY_PATH)
    })?;
    let length = (layout.length as usize).min(HANDLE_BYTES_MAX) as u8;
    Ok((FileHandle { kind: layout.kind, length, bytes: layout.bytes }, mount))
}

/// Opens the node of a handle with `O_PATH`; `mount` is a directory of its mount that is open for reading.
///
/// *Errors*: `ESTALE` if the node no longer exists.
pub fn open_by_handle(mount: &File, handle: &FileHandle) -> Result<File> {
    let mut layout = HandleLayout { length: handle.length.into(), kind: handle.kind, bytes: handle.bytes };
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: the layout is that of the call, and outlives it.
    let opened = unsafe { libc::open_by_handle_at(mount.as_raw_fd(), (&raw mut layout).cast(), flags) };
    owned(opened).map(File::from)
}

/// The time at which a node was made, in seconds and nanoseconds; `(0, 0)` if the file system does not store it.
pub fn born(node: &File) -> Result<(i64, u32)> {
    // SAFETY: all zeroes are a value of this layout.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    let (flags, mask) = (libc::AT_EMPTY_PATH, libc::STATX_BTIME);
    // SAFETY: the path is a string that ends with a zero byte, the buffer has the layout that the call writes.
    done(unsafe { libc::statx(node.as_raw_fd(), EMPTY.as_ptr(), flags, mask, &raw mut stat) })?;
    let is_known = stat.stx_mask & libc::STATX_BTIME != 0;
    Ok(if is_known { (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec) } else { (0, 0) })
}

/// The number of the kind of a node's file system.
pub fn file_system_kind(node: &File) -> Result<i64> {
    // SAFETY: all zeroes are a value of this layout.
    let mut found: libc::statfs64 = unsafe { std::mem::zeroed() };
    // SAFETY: the buffer has the layout that the call writes.
    done(unsafe { libc::fstatfs64(node.as_raw_fd(), &raw mut found) })?;
    Ok(found.f_type as i64)
}

/// Returns the attributes of a node.
pub fn stat(node: &impl AsRawFd) -> Result<libc::stat64> {
    // SAFETY: all zeroes are a value of this layout.
    let mut stat: libc::stat64 = unsafe { std::mem::zeroed() };
    // SAFETY: the path is a string that ends with a zero byte, the buffer has the layout that the call writes.
    done(unsafe { libc::fstatat64(node.as_raw_fd(), EMPTY.as_ptr(), &raw mut stat, libc::AT_EMPTY_PATH) })?;
    Ok(stat)
}

/// Opens a node for reading or writing.
pub fn open(node: &File, flags: libc::c_int) -> Result<File> {
    // SAFETY: the path is a string that ends with a zero byte and outlives the call.
    owned(unsafe { libc::open(path(node.as_raw_fd()).as_ptr(), flags | libc::O_CLOEXEC) }).map(File::from)
}

/// Makes a file and opens it; the name must not exist.
pub fn create(parent: &File, name: &CStr, mode: u32) -> Result<File> {
    let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: the name is a string that ends with a zero byte and outlives the call.
    owned(unsafe { libc::openat(parent.as_raw_fd(), name.as_ptr(), flags, mode) }).map(File::from)
}

/// Makes a file without a name.
pub fn create_nameless(parent: &File, mode: u32) -> Result<File> {
    let flags = libc::O_TMPFILE | libc::O_RDWR | libc::O_CLOEXEC;
    // SAFETY: the path is a string that ends with a zero byte and outlives the call.
    owned(unsafe { libc::open(path(parent.as_raw_fd()).as_ptr(), flags, mode) }).map(File::from)
}

/// Makes a file, device, pipe or socket.
pub fn make_node(parent: &File, name: &CStr, mode: u32, device: u64) -> Result<()> {
    // SAFETY: the name is a string that ends with a zero byte and outlives the call.
    done(unsafe { libc::mknodat(parent.as_raw_fd(), name.as_ptr(), mode, device) })
}

/// Makes a directory.
pub fn make_directory(parent: &File, name: &CStr, mode: u32) -> Result<()> {
    // SAFETY: the name is a string that ends with a zero byte and outlives the call.
    done(unsafe { libc::mkdirat(parent.as_raw_fd(), name.as_ptr(), mode) })
}

/// Makes a symbolic link.
pub fn make_link(parent: &File, name: &CStr, target: &CStr) -> Result<()> {
    // SAFETY: both are strings that end with a zero byte and outlive the call.
    done(unsafe { libc::symlinkat(target.as_ptr(), parent.as_raw_fd(), name.as_ptr()) })
}

/// Gives a node an additional name.
pub fn link(node: &File, parent: &File, name: &CStr) -> Result<()> {
    let from = path(node.as_raw_fd());
    let flags = libc::AT_SYMLINK_FOLLOW;
    // SAFETY: both are strings that end with a zero byte and outlive the call.
    done(unsafe { libc::linkat(libc::AT_FDCWD, from.as_ptr(), parent.as_raw_fd(), name.as_ptr(), flags) })
}

/// Removes a name; `is_directory` says whether it names a directory.
pub fn unlink(parent: &File, name: &CStr, is_directory: bool) -> Result<()> {
    let flags = if is_directory { libc::AT_REMOVEDIR } else { 0 };
    // SAFETY: the name is a string that ends with a zero byte and outlives the call.
    done(unsafe { libc::unlinkat(parent.as_raw_fd(), name.as_ptr(), flags) })
}

/// Renames a node, possibly into another directory.
pub fn rename(from: &File, name: &CStr, to: &File, new_name: &CStr, flags: u32) -> Result<()> {
    // SAFETY: both are strings that end with a zero byte and outlive the call.
    done(unsafe { libc::renameat2(from.as_raw_fd(), name.as_ptr(), to.as_raw_fd(), new_name.as_ptr(), flags) })
}

/// Reads the target of a symbolic link.
pub fn read_link(node: &File) -> Result<Vec<u8>> {
    let mut bytes = vec![0u8; libc::PATH_MAX as usize];
    // SAFETY: the buffer has the length given to the call.
    let count = unsafe { libc::readlinkat(node.as_raw_fd(), EMPTY.as_ptr(), bytes.as_mut_ptr().cast(), bytes.len()) };
    if count < 0 {
        return last();
    }
    bytes.truncate(count as usize);
    Ok(bytes)
}

/// Clears the bits that give rights to whoever runs a file: a program without the right to keep them writes to it.
pub fn drop_rights(node: &File) -> Result<()> {
    let mode = stat(node)?.st_mode;
    let kept = nectary_fuse::without_rights(mode);
    if kept == mode { Ok(()) } else { set_mode(node, kept) }
}

/// Sets permissions.
pub fn set_mode(node: &File, mode: u32) -> Result<()> {
    // SAFETY: the path is a string that ends with a zero byte and outlives the call.
    done(unsafe { libc::chmod(path(node.as_raw_fd()).as_ptr(), mode & 0o7777) })
}

/// Sets owner and group; `None` leaves the value as it is.
pub fn set_owner(node: &impl AsRawFd, user: Option<u32>, group: Option<u32>) -> Result<()> {
    let (user, group) = (user.unwrap_or(u32::MAX), group.unwrap_or(u32::MAX));
    // SAFETY: the path is a string that ends with a zero byte and outlives the call.
    done(unsafe { libc::fchownat(node.as_raw_fd(), EMPTY.as_ptr(), user, group, libc::AT_EMPTY_PATH) })
}

/// A time to set.
#[derive(Clone, Copy)]
pub enum SetTime {
    Keep,
    Now,
    To(i64, u32),
}

impl SetTime {
    fn layout(self) -> libc::timespec {
        match self {
            SetTime::Keep => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT },
            SetTime::Now => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW },
            SetTime::To(seconds, ns) => libc::timespec { tv_sec: seconds, tv_nsec: ns.into() },
        }
    }
}

/// Sets the times of access and of modification.
pub fn set_times(node: &File, accessed: SetTime, modified: SetTime) -> Result<()> {
    let times = [accessed.layout(), modified.layout()];
    // SAFETY: the path is a string that ends with a zero byte; the array has the two times that the call reads.
    done(unsafe { libc::utimensat(node.as_raw_fd(), EMPTY.as_ptr(), times.as_ptr(), libc::AT_EMPTY_PATH) })
}

/// Sets an extended attribute.
pub fn set_xattr(node: &File, name: &CStr, value: &[u8], flags: u32) -> Result<()> {
    let path = path(node.as_raw_fd());
    let flags = flags as libc::c_int;
    // SAFETY: both are strings that end with a zero byte; the value has the length given to the call.
    done(unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags) })
}

/// Returns the value of an extended attribute, if it has at most `bytes_max` bytes. If `bytes_max` is 0, returns as
/// many zeroes as the value has bytes.
pub fn xattr(node: &File, name: &CStr, bytes_max: usize) -> Result<Vec<u8>> {
    let path = path(node.as_raw_fd());
    let mut value = vec![0u8; bytes_max];
    // SAFETY: both are strings that end with a zero byte; the buffer has the length given to the call.
    let count = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), bytes_max) };
    value_of(value, count)
}

/// Returns the names of all extended attributes, each with its zero byte, if they have at most `bytes_max` bytes. If
/// `bytes_max` is 0, returns as many zeroes as they have bytes.
pub fn xattr_names(node: &File, bytes_max: usize) -> Result<Vec<u8>> {
    let path = path(node.as_raw_fd());
    let mut names = vec![0u8; bytes_max];
    // SAFETY: the path is a string that ends with a zero byte; the buffer has the length given to the call.
    let count = unsafe { libc::listxattr(path.as_ptr(), names.as_mut_ptr().cast(), bytes_max) };
    value_of(names, count)
}

fn value_of(mut value: Vec<u8>, count: isize) -> Result<Vec<u8>> {
    let Ok(count) = usize::try_from(count) else { return last() };
    value.resize(count, 0);
    Ok(value)
}

/// Removes an extended attribute.
pub fn remove_xattr(node: &File, name: &CStr) -> Result<()> {
    // SAFETY: both are strings that end with a zero byte and outlive the call.
    done(unsafe { libc::removexattr(path(node.as_raw_fd()).as_ptr(), name.as_ptr()) })
}

/// Calls `fallocate`: allocates blocks, punches a hole or zeroes a range.
pub fn allocate(file: &File, mode: i32, offset: u64, length: u64) -> Result<()> {
    // SAFETY: the call takes numbers only.
    done(unsafe { libc::fallocate64(file.as_raw_fd(), mode, offset as i64, length as i64) })
}

/// Returns the offset of the next data or hole from `offset` on.
pub fn seek(file: &File, offset: u64, whence: i32) -> Result<u64> {
    // SAFETY: the call takes numbers only.
    let found = unsafe { libc::lseek64(file.as_raw_fd(), offset as i64, whence) };
    u64::try_from(found).map_err(|_| io::Error::last_os_error().into())
}

/// Copies bytes between two files within the kernel.
pub fn copy(from: &File, offset: u64, to: &File, to_offset: u64, length: u64) -> Result<u64> {
    let (mut offset, mut to_offset) = (offset as i64, to_offset as i64);
    // SAFETY: both offsets outlive the call, which reads and writes them.
    let count = unsafe {
        libc::copy_file_range(
            from.as_raw_fd(),
            &raw mut offset,
            to.as_raw_fd(),
            &raw mut to_offset,
            usize::try_from(length).unwrap_or(usize::MAX),
            0,
        )
    };
    u64::try_from(count).map_err(|_| io::Error::last_os_error().into())
}

/// Reads entries of an open directory from an offset on; the layout is that of `getdents64`.
pub fn read_directory(directory: &File, offset: u64, bytes: &mut [u8]) -> Result<usize> {
    // SAFETY: the call takes numbers only.
    if unsafe { libc::lseek64(directory.as_raw_fd(), offset as i64, libc::SEEK_SET) } < 0 {
        return last();
    }
    // SAFETY: the buffer has the length given to the call.
    let count = unsafe { libc::syscall(libc::SYS_getdents64, directory.as_raw_fd(), bytes.as_mut_ptr(), bytes.len()) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error().into())
}

/// Makes all data written to a file system durable.
pub fn sync_file_system(node: &File) -> Result<()> {
    let file = open(node, libc::O_RDONLY | libc::O_DIRECTORY)?;
    // SAFETY: the call takes a number only.
    done(unsafe { libc::syncfs(file.as_raw_fd()) })
}

/// Returns the sizes of a file system.
pub fn sizes(node: &File) -> Result<StatFs> {
    // SAFETY: all zeroes are a value of this layout.
    let mut sizes: libc::statvfs64 = unsafe { std::mem::zeroed() };
    // SAFETY: the buffer has the layout that the call writes.
    done(unsafe { libc::fstatvfs64(node.as_raw_fd(), &raw mut sizes) })?;
    Ok(StatFs {
        blocks: sizes.f_blocks,
        free: sizes.f_bfree,
        available: sizes.f_bavail,
        files: sizes.f_files,
        files_free: sizes.f_ffree,
        block_bytes: sizes.f_bsize as u32,
        fragment_bytes: sizes.f_frsize as u32,
        name_bytes_max: sizes.f_namemax as u32,
    })
}

/// Checks whether this process's own user has access.
pub fn access(node: &File, mask: u32) -> Result<()> {
    // SAFETY: the path is a string that ends with a zero byte and outlives the call.
    done(unsafe { libc::access(path(node.as_raw_fd()).as_ptr(), mask as libc::c_int) })
}

/// Sets the umask of this process to 0, because the mode of a new node already has its creator's umask applied.
pub fn clear_mask() {
    // SAFETY: the call takes a number only.
    unsafe { libc::umask(0) };
}
