//! System calls on nodes that are open with `O_PATH`.
//!
//! Owns: the calls of the tree. An open node is never looked up by its path again, so renames by others do not matter.
//! Calls that need a path get the path of the descriptor in `/proc/self/fd`. The two calls for file handles are the only
//! ones that `rustix` does not have.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use nectary_fuse::{Errno, StatFs};
use rustix::buffer::spare_capacity;
use rustix::fs::{
    Access, AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RawDir, RenameFlags, SeekFrom, StatxFlags,
    Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, XattrFlags,
};

pub use rustix::fs::Stat;

const EMPTY: &CStr = c"";

type Result<T> = std::result::Result<T, Errno>;

/// The kernel's error as an answer.
trait KernelResult<T> {
    fn answer(self) -> Result<T>;
}

impl<T> KernelResult<T> for rustix::io::Result<T> {
    fn answer(self) -> Result<T> {
        self.map_err(|error| Errno::new(error.raw_os_error()))
    }
}

/// The path of a descriptor in `/proc/self/fd`.
fn path(node: &File) -> String {
    format!("/proc/self/fd/{}", node.as_raw_fd())
}

fn mode_of(mode: u32) -> Mode {
    Mode::from_bits_retain(mode)
}

/// Opens a node of any kind in a directory with `O_PATH`.
pub fn look_up(parent: &File, name: &CStr) -> Result<File> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty()).answer().map(File::from)
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
    let result = unsafe {
        let handle = (&raw mut layout).cast::<libc::file_handle>();
        libc::name_to_handle_at(node.as_raw_fd(), EMPTY.as_ptr(), handle, &raw mut mount, libc::AT_EMPTY_PATH)
    };
    if result < 0 {
        return Err(io::Error::last_os_error().into());
    }
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
    if opened < 0 {
        return Err(io::Error::last_os_error().into());
    }
    // SAFETY: the descriptor is new, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(opened) }.into())
}

/// The time at which a node was made, in seconds and nanoseconds; `(0, 0)` if the file system does not store it.
pub fn born(node: &File) -> Result<(i64, u32)> {
    let stat = rustix::fs::statx(node, EMPTY, AtFlags::EMPTY_PATH, StatxFlags::BTIME).answer()?;
    let is_known = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    Ok(if is_known { (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec) } else { (0, 0) })
}

/// The number of the kind of a node's file system.
pub fn file_system_kind(node: &File) -> Result<i64> {
    Ok(rustix::fs::fstatfs(node).answer()?.f_type as i64)
}

/// Returns the attributes of a node.
pub fn stat(node: &impl AsFd) -> Result<Stat> {
    rustix::fs::statat(node, EMPTY, AtFlags::EMPTY_PATH).answer()
}

/// Opens a node for reading or writing.
pub fn open(node: &File, flags: libc::c_int) -> Result<File> {
    let flags = OFlags::from_bits_retain(flags as u32) | OFlags::CLOEXEC;
    rustix::fs::open(path(node), flags, Mode::empty()).answer().map(File::from)
}

/// Makes a file and opens it; the name must not exist.
pub fn create(parent: &File, name: &CStr, mode: u32) -> Result<File> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, mode_of(mode)).answer().map(File::from)
}

/// Makes a file without a name.
pub fn create_nameless(parent: &File, mode: u32) -> Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open(path(parent), flags, mode_of(mode)).answer().map(File::from)
}

/// Makes a file, device, pipe or socket.
pub fn make_node(parent: &File, name: &CStr, mode: u32, device: u64) -> Result<()> {
    // No kind means a file.
    let kind = if mode & libc::S_IFMT == 0 { FileType::RegularFile } else { FileType::from_raw_mode(mode) };
    rustix::fs::mknodat(parent, name, kind, mode_of(mode & !libc::S_IFMT), device).answer()
}

/// Makes a directory.
pub fn make_directory(parent: &File, name: &CStr, mode: u32) -> Result<()> {
    rustix::fs::mkdirat(parent, name, mode_of(mode)).answer()
}

/// Makes a symbolic link.
pub fn make_link(parent: &File, name: &CStr, target: &CStr) -> Result<()> {
    rustix::fs::symlinkat(target, parent, name).answer()
}

/// Gives a node an additional name.
pub fn link(node: &File, parent: &File, name: &CStr) -> Result<()> {
    rustix::fs::linkat(CWD, path(node), parent, name, AtFlags::SYMLINK_FOLLOW).answer()
}

/// Removes a name; `is_directory` says whether it names a directory.
pub fn unlink(parent: &File, name: &CStr, is_directory: bool) -> Result<()> {
    let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    rustix::fs::unlinkat(parent, name, flags).answer()
}

/// Renames a node, possibly into another directory.
pub fn rename(from: &File, name: &CStr, to: &File, new_name: &CStr, flags: u32) -> Result<()> {
    rustix::fs::renameat_with(from, name, to, new_name, RenameFlags::from_bits_retain(flags)).answer()
}

/// Reads the target of a symbolic link.
pub fn read_link(node: &File) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(libc::PATH_MAX as usize);
    rustix::fs::readlinkat_raw(node, EMPTY, spare_capacity(&mut bytes)).answer()?;
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
    rustix::fs::chmod(path(node), mode_of(mode & 0o7777)).answer()
}

/// Sets owner and group; `None` leaves the value as it is.
pub fn set_owner(node: &impl AsFd, user: Option<u32>, group: Option<u32>) -> Result<()> {
    // To the kernel the largest number means "as it is", which is none of `rustix`.
    let named = |number: &u32| *number != u32::MAX;
    let (user, group) = (user.filter(named).map(Uid::from_raw), group.filter(named).map(Gid::from_raw));
    rustix::fs::chownat(node, EMPTY, user, group, AtFlags::EMPTY_PATH).answer()
}

/// A time to set.
#[derive(Clone, Copy)]
pub enum SetTime {
    Keep,
    Now,
    To(i64, u32),
}

impl SetTime {
    fn layout(self) -> Timespec {
        match self {
            SetTime::Keep => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            SetTime::Now => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
            SetTime::To(seconds, ns) => Timespec { tv_sec: seconds, tv_nsec: ns.into() },
        }
    }
}

/// Sets the times of access and of modification.
pub fn set_times(node: &File, accessed: SetTime, modified: SetTime) -> Result<()> {
    let times = Timestamps { last_access: accessed.layout(), last_modification: modified.layout() };
    rustix::fs::utimensat(node, EMPTY, &times, AtFlags::EMPTY_PATH).answer()
}

/// Sets an extended attribute.
pub fn set_xattr(node: &File, name: &CStr, value: &[u8], flags: u32) -> Result<()> {
    rustix::fs::setxattr(path(node), name, value, XattrFlags::from_bits_retain(flags)).answer()
}

/// Returns the value of an extended attribute, if it has at most `bytes_max` bytes. If `bytes_max` is 0, returns as
/// many zeroes as the value has bytes.
pub fn xattr(node: &File, name: &CStr, bytes_max: usize) -> Result<Vec<u8>> {
    if bytes_max == 0 {
        return Ok(vec![0; rustix::fs::getxattr_query(path(node), name).answer()?]);
    }
    let mut value = vec![0u8; bytes_max];
    let bytes = rustix::fs::getxattr(path(node), name, &mut value[..]).answer()?;
    value.truncate(bytes);
    Ok(value)
}

/// Returns the names of all extended attributes, each with its zero byte, if they have at most `bytes_max` bytes. If
/// `bytes_max` is 0, returns as many zeroes as they have bytes.
pub fn xattr_names(node: &File, bytes_max: usize) -> Result<Vec<u8>> {
    if bytes_max == 0 {
        return Ok(vec![0; rustix::fs::listxattr_query(path(node)).answer()?]);
    }
    let mut names = vec![0u8; bytes_max];
    let bytes = rustix::fs::listxattr(path(node), &mut names[..]).answer()?;
    names.truncate(bytes);
    Ok(names)
}

/// Removes an extended attribute.
pub fn remove_xattr(node: &File, name: &CStr) -> Result<()> {
    rustix::fs::removexattr(path(node), name).answer()
}

/// Calls `fallocate`: allocates blocks, punches a hole or zeroes a range.
pub fn allocate(file: &File, mode: i32, offset: u64, length: u64) -> Result<()> {
    rustix::fs::fallocate(file, FallocateFlags::from_bits_retain(mode as u32), offset, length).answer()
}

/// Returns the offset of the next data or hole from `offset` on.
pub fn seek(file: &File, offset: u64, whence: i32) -> Result<u64> {
    let position = match whence {
        libc::SEEK_DATA => SeekFrom::Data(offset),
        libc::SEEK_HOLE => SeekFrom::Hole(offset),
        _ => return Err(Errno::new(libc::EINVAL)),
    };
    rustix::fs::seek(file, position).answer()
}

/// Copies bytes between two files within the kernel.
pub fn copy(from: &File, offset: u64, to: &File, to_offset: u64, length: u64) -> Result<u64> {
    let (mut offset, mut to_offset) = (offset, to_offset);
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let copied = rustix::fs::copy_file_range(from, Some(&mut offset), to, Some(&mut to_offset), length);
    copied.answer().map(|bytes| bytes as u64)
}

/// An entry of a directory.
pub struct DirectoryEntry<'a> {
    pub name: &'a CStr,
    pub inode: u64,
    /// The kind, as in `getdents64`.
    pub kind: u8,
    /// The offset of the entry after it.
    pub next: u64,
}

/// Reads at most `bytes_max` bytes of entries of an open directory from an offset on, in one call; `take` returns
/// whether it wants more of them.
pub fn read_directory(
    directory: &File,
    offset: u64,
    bytes_max: usize,
    mut take: impl FnMut(DirectoryEntry<'_>) -> bool,
) -> Result<()> {
    rustix::fs::seek(directory, SeekFrom::Start(offset)).answer()?;
    let mut bytes = Vec::with_capacity(bytes_max);
    let mut entries = RawDir::new(directory, bytes.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry.answer()?;
        let kind = match entry.file_type() {
            FileType::Unknown => libc::DT_UNKNOWN,
            known => (known.as_raw_mode() >> 12) as u8,
        };
        let found =
            DirectoryEntry { name: entry.file_name(), inode: entry.ino(), kind, next: entry.next_entry_cookie() };
        if !take(found) || entries.is_buffer_empty() {
            break;
        }
    }
    Ok(())
}

/// Makes all data written to a file system durable.
pub fn sync_file_system(node: &File) -> Result<()> {
    rustix::fs::syncfs(open(node, libc::O_RDONLY | libc::O_DIRECTORY)?).answer()
}

/// Returns the sizes of a file system.
pub fn sizes(node: &File) -> Result<StatFs> {
    let sizes = rustix::fs::fstatvfs(node).answer()?;
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
    rustix::fs::access(path(node), Access::from_bits_retain(mask)).answer()
}

/// Sets the umask of this process to 0, because the mode of a new node already has its creator's umask applied.
pub fn clear_mask() {
    rustix::process::umask(Mode::empty());
}
