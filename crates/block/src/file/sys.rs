//! The system calls of file and disk devices, one safe function for each.
//!
//! Owns: the `unsafe` code of this folder, except that of the ring. Every function repeats its call if a signal
//! interrupted it.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FallocateFlags, FlockOperation, OFlags, SeekFrom, StatxFlags};
use rustix::io::ReadWriteFlags;

use crate::buffer::Buffer;

/// Repeats a call until no signal interrupts it.
fn retry<T>(call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    Ok(rustix::io::retry_on_intr(call)?)
}

/// As [`retry`], for a call of `libc`: a negative result means an error in `errno`.
fn retry_number(mut call: impl FnMut() -> i64) -> io::Result<u64> {
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
    let flags = retry(|| rustix::fs::fcntl_getfl(file))?;
    retry(|| rustix::fs::fcntl_setfl(file, flags - OFlags::DIRECT))
}

/// The bytes of `buffers` after their first `skip` ones, as one slice for each buffer that has any.
fn rests(buffers: &[Buffer], mut skip: usize) -> impl Iterator<Item = &[u8]> {
    buffers.iter().filter_map(move |buffer| {
        let start = skip.min(buffer.len());
        skip -= start;
        (start < buffer.len()).then(|| &buffer[start..])
    })
}

/// Describes `buffers` for the kernel, except for their first `skip` bytes.
pub(super) fn vectors(buffers: &[Buffer], skip: usize) -> Vec<libc::iovec> {
    let mut vectors = Vec::with_capacity(buffers.len());
    vectors.extend(
        rests(buffers, skip).map(|rest| libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() }),
    );
    vectors
}

/// Reads into `buffers` after their first `skip` bytes. *Returns* the number of bytes read.
pub(super) fn read(file: &File, offset: u64, buffers: &mut [Buffer], mut skip: usize) -> io::Result<u64> {
    let mut rests = Vec::with_capacity(buffers.len());
    for buffer in buffers {
        let start = skip.min(buffer.len());
        skip -= start;
        if start < buffer.len() {
            rests.push(IoSliceMut::new(&mut buffer[start..]));
        }
    }
    retry(|| rustix::io::preadv(file, &mut rests, offset)).map(|bytes| bytes as u64)
}

/// Writes the bytes of `buffers` after their first `skip` bytes. *Returns* the number of bytes written.
pub(super) fn write(file: &File, offset: u64, buffers: &[Buffer], skip: usize, fua: bool) -> io::Result<u64> {
    let mut parts = Vec::with_capacity(buffers.len());
    parts.extend(rests(buffers, skip).map(IoSlice::new));
    let flags = if fua { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
    retry(|| rustix::io::pwritev2(file, &parts, offset, flags)).map(|bytes| bytes as u64)
}

/// Calls `fallocate`.
pub(super) fn fallocate(file: &File, mode: i32, offset: u64, length: u64) -> io::Result<()> {
    let mode = FallocateFlags::from_bits_retain(mode as u32);
    retry(|| rustix::fs::fallocate(file, mode, offset, length))
}

/// Calls `lseek`. No other code uses the position of the file.
pub(super) fn seek(file: &File, position: SeekFrom) -> io::Result<u64> {
    retry(|| rustix::fs::seek(file, position))
}

/// Takes the exclusive lock of the open file, or fails at once with `EWOULDBLOCK`.
pub(super) fn lock_exclusive(file: &File) -> io::Result<()> {
    retry(|| rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive))
}

/// As [`lock_exclusive`], but takes a lock that several processes can share.
pub(super) fn lock_shared(file: &File) -> io::Result<()> {
    retry(|| rustix::fs::flock(file, FlockOperation::NonBlockingLockShared))
}

/// Gives up every lock and claim of an open file. The descriptor stays valid: it then refers to the same file, opened
/// only for reading.
pub(super) fn give_up(file: &File) -> io::Result<()> {
    let descriptor = file.as_raw_fd();
    let flags = retry(|| rustix::fs::fcntl_getfl(file))?;
    let reading = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags((flags & OFlags::DIRECT).bits() as i32)
        .open(format!("/proc/self/fd/{descriptor}"))?;
    // Requests in flight keep the old description, and with it the lock, until they end: no late write lands in what
    // the next owner has written.
    // SAFETY: both descriptors are open, and `descriptor` stays owned by `file`. The call replaces it in one step, so
    // no other thread can find it closed.
    retry_number(|| unsafe { libc::dup3(reading.as_raw_fd(), descriptor, libc::O_CLOEXEC) as i64 }).map(drop)
}

/// Describes a lock of a range; `kind` is `F_WRLCK`, `F_RDLCK` or `F_UNLCK`.
fn range_lock(kind: i32, offset: u64, length: u64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: offset as libc::off_t,
        l_len: length as libc::off_t,
        l_pid: 0,
    }
}

fn set_lock(file: &File, lock: &libc::flock) -> io::Result<()> {
    // SAFETY: the pointer is to a structure of the right type that outlives the call.
    retry_number(|| unsafe { i64::from(libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, lock)) }).map(drop)
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
    retry_number(|| unsafe { i64::from(libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock)) })?;
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
}

/// Returns the number of the kind of file system that the file is in.
pub(super) fn file_system(file: &File) -> io::Result<i64> {
    let status = retry(|| rustix::fs::fstatfs(file))?;
    // The kernel's number has 32 bits.
    Ok(status.f_type as i64 & 0xFFFF_FFFF)
}

/// Whether the file is in memory (tmpfs, ramfs) and so does not survive a restart of the host.
pub(super) fn is_in_memory(file: &File) -> io::Result<bool> {
    const RAMFS_MAGIC: i64 = 0x8584_58f6;
    Ok([libc::TMPFS_MAGIC, RAMFS_MAGIC].contains(&file_system(file)?))
}

/// The alignment that direct I/O on the file needs. It is `None` if the kernel does not report it, and 0 if direct I/O
/// is not possible. *Units*: bytes.
pub(super) fn direct_alignment(file: &File) -> Option<u32> {
    let status = retry(|| rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)).ok()?;
    (status.stx_mask & StatxFlags::DIOALIGN.bits() != 0).then_some(status.stx_dio_offset_align)
}

/// The size of a logical sector of a block device. *Units*: bytes.
pub(super) fn sector_bytes(file: &File) -> io::Result<u32> {
    retry(|| rustix::fs::ioctl_blksszget(file))
}

/// Gives the name `path` to a file that was opened without a name; fails if the name exists.
pub(super) fn link(file: &File, path: &Path) -> io::Result<()> {
    let from = format!("/proc/self/fd/{}", file.as_raw_fd());
    retry(|| rustix::fs::linkat(CWD, &from, CWD, path, AtFlags::SYMLINK_FOLLOW))
}
