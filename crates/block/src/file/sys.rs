//! The system calls of file and disk devices, one safe function for each.
//!
//! Owns: the `unsafe` code of this folder, except that of the ring. Every function repeats its call if a signal
//! interrupted it.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::buffer::Buffer;

/// Repeats a call until no signal interrupts it. A negative result of the call means an error in `errno`.
fn retry(mut call: impl FnMut() -> i64) -> io::Result<u64> {
    loop {
        match u64::try_from(call()) {
            Ok(result) => return Ok(result),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
}

/// Ends direct I/O on an open file: reads and writes go through the page cache from now on.
pub(super) fn use_page_cache(file: &File) -> io::Result<()> {
    // SAFETY: the call takes no memory of this process.
    let flags = retry(|| i64::from(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) }))? as i32;
    // SAFETY: as above.
    retry(|| i64::from(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags & !libc::O_DIRECT) })).map(drop)
}

/// Describes `buffers` for the kernel, except for their first `skip` bytes.
pub(super) fn vectors(buffers: &[Buffer], mut skip: usize) -> Vec<libc::iovec> {
    let mut vectors = Vec::with_capacity(buffers.len());
    for buffer in buffers {
        if skip >= buffer.len() {
            skip -= buffer.len();
            continue;
        }
        let rest = &buffer[skip..];
        vectors.push(libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() });
        skip = 0;
    }
    vectors
}

/// Reads into `buffers` after their first `skip` bytes. *Returns* the number of bytes read.
pub(super) fn read(file: &File, offset: u64, buffers: &mut [Buffer], skip: usize) -> io::Result<u64> {
    let vectors = vectors(buffers, skip);
    // SAFETY: the vectors describe memory of `buffers`, which are borrowed exclusively for the call.
    retry(|| unsafe {
        libc::preadv(file.as_raw_fd(), vectors.as_ptr(), vectors.len() as i32, offset as libc::off_t) as i64
    })
}

/// Writes the bytes of `buffers` after their first `skip` bytes. *Returns* the number of bytes written.
pub(super) fn write(file: &File, offset: u64, buffers: &[Buffer], skip: usize, fua: bool) -> io::Result<u64> {
    let vectors = vectors(buffers, skip);
    let flags = if fua { libc::RWF_DSYNC } else { 0 };
    // SAFETY: the vectors describe memory of `buffers`, which are borrowed for the call and only read.
    retry(|| unsafe {
        libc::pwritev2(file.as_raw_fd(), vectors.as_ptr(), vectors.len() as i32, offset as libc::off_t, flags) as i64
    })
}

/// Calls `fallocate`.
pub(super) fn fallocate(file: &File, mode: i32, offset: u64, length: u64) -> io::Result<()> {
    // SAFETY: the call takes no pointers.
    retry(|| unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, length as i64) as i64 }).map(drop)
}

/// Calls `lseek` with `SEEK_DATA`, `SEEK_HOLE` or `SEEK_END`.
pub(super) fn seek(file: &File, offset: u64, whence: i32) -> io::Result<u64> {
    // SAFETY: the call takes no pointers. No other code uses the position of the file.
    retry(|| unsafe { libc::lseek(file.as_raw_fd(), offset as i64, whence) })
}

/// Takes the exclusive lock of the open file, or fails at once with `EWOULDBLOCK`.
pub(super) fn lock_exclusive(file: &File) -> io::Result<()> {
    // SAFETY: the call takes no pointers.
    retry(|| unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) as i64 }).map(drop)
}

/// As [`lock_exclusive`], but takes a lock that several processes can share.
pub(super) fn lock_shared(file: &File) -> io::Result<()> {
    // SAFETY: the call takes no pointers.
    retry(|| unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_SH | libc::LOCK_NB) as i64 }).map(drop)
}

/// Gives up every lock and claim of an open file. The descriptor stays valid: it then refers to the same file, opened
/// only for reading.
pub(super) fn give_up(file: &File) -> io::Result<()> {
    let descriptor = file.as_raw_fd();
    // SAFETY: the call takes no pointers.
    let flags = retry(|| unsafe { libc::fcntl(descriptor, libc::F_GETFL) as i64 })? as libc::c_int;
    let reading = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags & libc::O_DIRECT)
        .open(format!("/proc/self/fd/{descriptor}"))?;
    // Requests in flight keep the old description, and with it the lock, until they end: no late write lands in what
    // the next owner has written.
    // SAFETY: both descriptors are open, and `descriptor` stays owned by `file`. The call replaces it in one step, so
    // no other thread can find it closed.
    retry(|| unsafe { libc::dup3(reading.as_raw_fd(), descriptor, libc::O_CLOEXEC) as i64 }).map(drop)
}

/// Describes a lock of a range; `kind` is `F_WRLCK`, `F_RDLCK` or `F_UNLCK`.
fn range_lock(kind: i32, offset: u64, length: u64) -> libc::flock {
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    (lock.l_start, lock.l_len) = (offset as libc::off_t, length as libc::off_t);
    lock
}

fn set_lock(file: &File, lock: &libc::flock) -> io::Result<()> {
    // SAFETY: the pointer is to a structure of the right type that outlives the call.
    retry(|| unsafe { i64::from(libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, lock)) }).map(drop)
}

/// Takes the lock of a range for the open file description, or fails at once with `EAGAIN` or `EACCES`. The kernel
/// removes the lock when the last descriptor of that description is closed and the last request on it has ended. A
/// description that only reads can take only a lock that readers share.
pub(super) fn lock_range(file: &File, offset: u64, length: u64, is_read_only: bool) -> io::Result<()> {
    set_lock(file, &range_lock(if is_read_only { libc::F_RDLCK } else { libc::F_WRLCK }, offset, length))
}

/// Removes the locks that the open file description has in a range.
pub(super) fn unlock_range(file: &File, offset: u64, length: u64) -> io::Result<()> {
    set_lock(file, &range_lock(libc::F_UNLCK, offset, length))
}

/// Whether another open file description has a lock in a range, of any kind.
pub(super) fn is_range_locked(file: &File, offset: u64, length: u64) -> io::Result<bool> {
    let mut lock = range_lock(libc::F_WRLCK, offset, length);
    // SAFETY: the pointer is to a structure of the right type that outlives the call.
    retry(|| unsafe { i64::from(libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock)) })?;
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
}

/// Returns the number of the kind of file system that the file is in.
pub(super) fn file_system(file: &File) -> io::Result<i64> {
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut status: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a structure of the right type that outlives the call.
    retry(|| unsafe { libc::fstatfs(file.as_raw_fd(), &mut status) as i64 })?;
    // The kernel's number has 32 bits.
    Ok(status.f_type & 0xFFFF_FFFF)
}

/// Whether the file is in memory (tmpfs, ramfs) and so does not survive a restart of the host.
pub(super) fn is_in_memory(file: &File) -> io::Result<bool> {
    const RAMFS_MAGIC: i64 = 0x8584_58f6;
    Ok([libc::TMPFS_MAGIC, RAMFS_MAGIC].contains(&file_system(file)?))
}

/// The alignment that direct I/O on the file needs. It is `None` if the kernel does not report it, and 0 if direct I/O
/// is not possible. *Units*: bytes.
pub(super) fn direct_alignment(file: &File) -> Option<u32> {
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut status: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path is a null-terminated string, and the structure outlives the call.
    let called = retry(|| unsafe {
        libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, &mut status) as i64
    });
    (called.is_ok() && status.stx_mask & libc::STATX_DIOALIGN != 0).then_some(status.stx_dio_offset_align)
}

/// The size of a logical sector of a block device. *Units*: bytes.
pub(super) fn sector_bytes(file: &File) -> io::Result<u32> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: this request writes one int through the pointer.
    retry(|| unsafe { libc::ioctl(file.as_raw_fd(), libc::BLKSSZGET as _, &mut bytes) as i64 })?;
    Ok(bytes.unsigned_abs())
}

/// Gives the name `path` to a file that was opened without a name; fails if the name exists.
pub(super) fn link(file: &File, path: &Path) -> io::Result<()> {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    let from = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let to = CString::new(path.as_os_str().as_bytes())?;
    let (cwd, follow) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
    // SAFETY: both paths are null-terminated strings that outlive the call.
    retry(|| unsafe { libc::linkat(cwd, from.as_ptr(), cwd, to.as_ptr(), follow) as i64 }).map(drop)
}
