//! The system calls of the recorder, one safe function for each.
//!
//! Owns: the `unsafe` code of this folder, except that of `guard` and `signals`. If a signal can interrupt a function,
//! its comment says so, or the function restarts its call.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::fs::{AtFlags, OFlags, StatxFlags};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};

/// A call that waits for the recorder's answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct SeccompNotification {
    pub(super) id: u64,
    /// The calling thread.
    pub(super) thread: u32,
    pub(super) machine: u32,
    pub(super) number: i32,
    pub(super) arguments: [u64; 6],
}

/// The state of an open file.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileStatus {
    pub(super) is_regular: bool,
    pub(super) is_block_device: bool,
    pub(super) device: u64,
    pub(super) inode: u64,
    /// The time at which the file was created, in nanoseconds; 0 if it is unknown. It distinguishes files that reuse an
    /// inode.
    pub(super) born_ns: u64,
    pub(super) size_bytes: u64,
}

fn check(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn owned(result: i64) -> io::Result<OwnedFd> {
    let fd = check(result)? as RawFd;
    // SAFETY: the descriptor is new, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Puts a permanent filter on this thread, and so on all threads and children that it creates later. *Returns* the
/// listening descriptor.
///
/// If the kernel does not permit the filter, the thread gives up gaining privileges by exec. The kernel then permits
/// the filter.
pub(super) fn install_filter(program: &[libc::sock_filter]) -> io::Result<OwnedFd> {
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    let install = |flags: libc::c_ulong| {
        // SAFETY: the kernel only reads the program, which is borrowed for the call.
        owned(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const filter) })
    };
    // With WAIT_KILLABLE_RECV, signals do not restart calls that wait for the recorder. Kernels before 5.19 do not have
    // this flag.
    let listen = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    let either = || match install(listen | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => install(listen),
        result => result,
    };
    match either() {
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
            rustix::thread::set_no_new_privs(true)?;
            either()
        }
        result => result,
    }
}

/// Asks the kernel to switch between the recorder and the recorded thread on one processor, which is faster. This is
/// only a hint, and needs Linux 6.6.
pub(super) fn prefer_same_processor(listener: BorrowedFd<'_>) {
    const SYNC_WAKE_UP: libc::c_ulong = 1;
    // SAFETY: the arguments are numbers.
    unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP) };
}

/// Waits for the next call and receives it. *Returns* `None` if the call has ended in the meantime, or if a signal
/// interrupted the wait.
pub(super) fn receive(listener: BorrowedFd<'_>) -> io::Result<Option<SeccompNotification>> {
    // SAFETY: all zeroes is a valid value of this struct of numbers, and the kernel requires zeroes.
    let mut raw: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the struct is as long as the request says, and outlives the call.
    let result = unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut raw) };
    match check(i64::from(result)) {
        Ok(_) => Ok(Some(SeccompNotification {
            id: raw.id,
            thread: raw.pid,
            machine: raw.data.arch,
            number: raw.data.nr,
            arguments: raw.data.args,
        })),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Lets a call continue unchanged. *Returns* `false` if the call no longer waits.
pub(super) fn proceed(listener: BorrowedFd<'_>, id: u64) -> io::Result<bool> {
    let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
    let mut response = libc::seccomp_notif_resp { id, val: 0, error: 0, flags };
    loop {
        // SAFETY: the struct is as long as the request says, and outlives the call.
        let result = unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut response) };
        match check(i64::from(result)) {
            Ok(_) => return Ok(true),
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::ENOENT | libc::EINPROGRESS) => return Ok(false),
                _ => return Err(error),
            },
        }
    }
}

/// Opens a handle on a process.
pub(super) fn open_process(pid: u32) -> io::Result<OwnedFd> {
    open_pid(pid, PidfdFlags::empty())
}

/// Opens a handle on a thread; needs Linux 6.9.
pub(super) fn open_thread(thread: u32) -> io::Result<OwnedFd> {
    const PIDFD_THREAD: u32 = libc::O_EXCL as u32;
    open_pid(thread, PidfdFlags::from_bits_retain(PIDFD_THREAD))
}

fn open_pid(pid: u32, flags: PidfdFlags) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid as i32).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(rustix::process::pidfd_open(pid, flags)?)
}

/// Duplicates the descriptor `fd` of another process, which may be any number, into this process. The file position is
/// shared.
pub(super) fn borrow_descriptor(process: BorrowedFd<'_>, fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(rustix::io::Errno::BADF.into());
    }
    Ok(rustix::process::pidfd_getfd(process, fd, PidfdGetfdFlags::empty())?)
}

/// The state of an open file.
pub(super) fn status(fd: BorrowedFd<'_>) -> io::Result<FileStatus> {
    let mask = StatxFlags::TYPE | StatxFlags::INO | StatxFlags::SIZE | StatxFlags::BTIME;
    let raw = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, mask)?;
    let kind = u32::from(raw.stx_mode) & libc::S_IFMT;
    let is_block_device = kind == libc::S_IFBLK;
    let (major, minor) = match is_block_device {
        true => (raw.stx_rdev_major, raw.stx_rdev_minor),
        false => (raw.stx_dev_major, raw.stx_dev_minor),
    };
    let born = &raw.stx_btime;
    let has_born = raw.stx_mask & StatxFlags::BTIME.bits() != 0;
    Ok(FileStatus {
        is_regular: kind == libc::S_IFREG,
        is_block_device,
        device: libc::makedev(major, minor),
        inode: if is_block_device { 0 } else { raw.stx_ino },
        born_ns: if has_born { (born.tv_sec as u64).wrapping_mul(1_000_000_000) + u64::from(born.tv_nsec) } else { 0 },
        size_bytes: raw.stx_size,
    })
}

/// The size of a block device. *Units*: bytes.
pub(super) fn device_bytes(fd: BorrowedFd<'_>) -> io::Result<u64> {
    const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;
    let mut bytes = 0_u64;
    // SAFETY: the kernel writes 8 bytes to a number that outlives the call.
    check(i64::from(unsafe { libc::ioctl(fd.as_raw_fd(), BLKGETSIZE64, &raw mut bytes) }))?;
    Ok(bytes)
}

/// The offset at which the next read or write of an open file begins.
pub(super) fn position(fd: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(rustix::fs::tell(fd)?)
}

/// Whether all writes to an open file go to its end.
pub(super) fn is_append(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::APPEND))
}

/// The maximum number of bytes that a pipe holds, or that a non-blocking socket accepts at once; `None` for files
/// without such a limit.
pub(super) fn room_bytes(fd: BorrowedFd<'_>) -> Option<u64> {
    if let Ok(pipe) = rustix::pipe::fcntl_getpipe_size(fd) {
        return Some(pipe as u64);
    }
    let is_nonblocking = rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK));
    let bytes = rustix::net::sockopt::socket_send_buffer_size(fd).ok()?;
    is_nonblocking.then_some(bytes as u64)
}

/// The number of bytes that wait in a pipe or socket.
pub(super) fn waiting_bytes(fd: BorrowedFd<'_>) -> u64 {
    rustix::io::ioctl_fionread(fd).unwrap_or(0)
}

/// The size of a page of memory. *Units*: bytes.
pub(super) fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// The kind of the file system that holds an open file.
pub(super) fn file_system(fd: BorrowedFd<'_>) -> io::Result<i64> {
    Ok(rustix::fs::fstatfs(fd)?.f_type as i64)
}

/// Reads the memory of a process into `bytes`. *Returns* the number of bytes that could be read.
pub(super) fn read_memory(thread: u32, address: u64, bytes: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: address as usize as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: the kernel writes only to `bytes`, which is borrowed exclusively; the other address belongs to another
    // process.
    let count = unsafe { libc::process_vm_readv(thread as i32, &raw const local, 1, &raw const remote, 1, 0) };
    Ok(check(count as i64)? as usize)
}

/// Waits until one of `descriptors` can be read or has hung up, but at most `milliseconds`. A signal also ends the
/// wait. Negative descriptors are ignored. *Returns* the events of each descriptor.
pub(super) fn wait_for<const N: usize>(descriptors: [RawFd; N], milliseconds: i32) -> io::Result<[i16; N]> {
    let mut polled = descriptors.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // SAFETY: the array outlives the call and has `N` elements.
    match check(i64::from(unsafe { libc::poll(polled.as_mut_ptr(), N as libc::nfds_t, milliseconds) })) {
        Ok(_) => Ok(polled.map(|descriptor| descriptor.revents)),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok([0; N]),
        Err(error) => Err(error),
    }
}
