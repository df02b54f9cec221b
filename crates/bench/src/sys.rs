//! System calls that the standard library lacks.
//!
//! Owns: every `unsafe` of the crate except that of the shared clock. Each is a plain system call with strings and
//! numbers.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::IoSlice;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::Error;

/// `PR_SET_IO_FLUSHER` of `linux/prctl.h`.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

fn string(path: &Path) -> Result<CString, Error> {
    CString::new(path.as_os_str().as_bytes()).map_err(|error| Error::failed(path.display(), error))
}

fn checked(result: libc::c_int, what: impl std::fmt::Display) -> Result<(), Error> {
    if result == 0 { Ok(()) } else { Err(Error::os(what)) }
}

/// Gives this process its own mount namespace, whose mounts end with the process.
///
/// Mounts of loop devices are unmounted in the new namespace, except the one that holds `kept`: other programs made
/// them, and a copy here would keep their devices busy. Call it before the process has other threads.
pub(crate) fn own_mounts(kept: &Path) -> Result<(), Error> {
    // SAFETY: the call takes a number.
    checked(unsafe { libc::unshare(libc::CLONE_NEWNS) }, "a mount namespace (it takes root)")?;
    let flags = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: the strings end with a zero byte and outlive the call; the arguments that are null may be null.
    let result = unsafe { libc::mount(std::ptr::null(), c"/".as_ptr(), std::ptr::null(), flags, std::ptr::null()) };
    checked(result, "making mounts private")?;
    let mounts = std::fs::read("/proc/self/mounts").map_err(|error| Error::failed("/proc/self/mounts", error))?;
    for place in on_loop_devices(&mounts) {
        if kept.starts_with(Path::new(OsStr::from_bytes(&place))) {
            continue;
        }
        let place = CString::new(place).map_err(|error| Error::failed("/proc/self/mounts", error))?;
        // SAFETY: the string ends with a zero byte and outlives the call. Failure is ignored: another process may have
        // removed the mount.
        unsafe { libc::umount2(place.as_ptr(), libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW) };
    }
    Ok(())
}

/// Gives this thread, and the processes that it starts, an empty network namespace: even its loopback is down.
pub(crate) fn own_network() -> Result<(), Error> {
    // SAFETY: the call takes a number.
    checked(unsafe { libc::unshare(libc::CLONE_NEWNET) }, "a network namespace (it takes root)")
}

/// The mount points of loop devices in a list of mounts, the latest first.
fn on_loop_devices(mounts: &[u8]) -> Vec<Vec<u8>> {
    let lines = mounts.split(|&byte| byte == b'\n').filter(|line| line.starts_with(b"/dev/loop"));
    let mut places: Vec<_> = lines.filter_map(|line| line.split(|&byte| byte == b' ').nth(1)).map(unescape).collect();
    places.reverse();
    places
}

/// Decodes the octal escapes in the kernel's list of mounts.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let digits =
            after.get(..3).filter(|digits| first == b'\\' && digits.iter().all(|digit| (b'0'..b'8').contains(digit)));
        let code = digits.map(|digits| digits.iter().fold(0u32, |code, digit| code * 8 + u32::from(digit - b'0')));
        plain.push(code.map_or(first, |code| code as u8));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    plain
}

/// When a mounted file system writes changes to its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MountSyncMode {
    /// The file system chooses when.
    Later,
    /// Changes of directories are written at once.
    DirectoriesAtOnce,
    /// All changes are written at once.
    AtOnce,
}

/// Mounts a device.
pub(crate) fn mount(device: &Path, root: &Path, kind: &str, writing: MountSyncMode) -> Result<(), Error> {
    let (source, target) = (string(device)?, string(root)?);
    let name = CString::new(kind).map_err(|error| Error::failed(kind, error))?;
    let flags = libc::MS_NOATIME
        | match writing {
            MountSyncMode::Later => 0,
            MountSyncMode::DirectoriesAtOnce => libc::MS_DIRSYNC,
            MountSyncMode::AtOnce => libc::MS_SYNCHRONOUS | libc::MS_DIRSYNC,
        };
    // SAFETY: the strings end with a zero byte and outlive the call; the arguments that are null may be null.
    let result = unsafe { libc::mount(source.as_ptr(), target.as_ptr(), name.as_ptr(), flags, std::ptr::null()) };
    checked(result, format!("mounting {} as {kind}", device.display()))
}

/// Unmounts the file system at `root`. A child that another thread starts has the files of this process open for a
/// moment; that is waited for.
pub(crate) fn unmount(root: &Path) -> Result<(), Error> {
    nectary_fuse::unmount(root, false)
        .map_err(|error| Error::failed(format_args!("unmounting {}", root.display()), error))
}

/// Writes everything that a file system has in memory to its device.
pub(crate) fn sync_file_system(inside: &File) -> Result<(), Error> {
    // SAFETY: the descriptor is open for as long as the call runs.
    checked(unsafe { libc::syncfs(inside.as_raw_fd()) }, "syncfs")
}

/// Makes a worker an ordinary process that ends with its parent.
///
/// The parent serves disks, so the kernel exempts it from some limits on memory. Children inherit some of these
/// exemptions; this function removes them.
pub(crate) fn become_worker() {
    let none = 0 as libc::c_long;
    // SAFETY: the calls take numbers only.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_long, none, none, none);
        libc::prctl(PR_SET_IO_FLUSHER, none, none, none, none);
    }
    let _ = std::fs::write("/proc/self/oom_score_adj", "0");
    thrifty_allocator();
}

/// Makes the allocator return large freed buffers to the kernel and use one heap for all threads. Otherwise free memory
/// that the allocator keeps would be a large part of a small memory group.
fn thrifty_allocator() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the calls take numbers, before the process has other threads.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 64 << 10);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 256 << 10);
    }
}

/// Stops a child with all its threads, and returns when none of them runs any more. A child that has ended is left
/// alone.
pub(crate) fn stop(child: u32) -> Result<(), Error> {
    signal(child, libc::SIGSTOP)?;
    loop {
        // SAFETY: all zeroes are a valid value of this plain structure.
        let mut seen: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let flags = libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT;
        // SAFETY: the call may write to the structure; it does not reap the child (`WNOWAIT`).
        let result = unsafe { libc::waitid(libc::P_PID, child, &mut seen, flags) };
        match result {
            0 => return Ok(()),
            _ if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
            _ => return Err(Error::os(format!("waiting for process {child} to stop"))),
        }
    }
}

/// Continues a stopped child.
pub(crate) fn go_on(child: u32) -> Result<(), Error> {
    signal(child, libc::SIGCONT)
}

/// Tells a child to end.
pub(crate) fn terminate(child: u32) -> Result<(), Error> {
    signal(child, libc::SIGTERM)
}

fn signal(child: u32, number: libc::c_int) -> Result<(), Error> {
    // SAFETY: the call takes numbers; the child is not reaped yet, so the number still belongs to it.
    checked(unsafe { libc::kill(child as libc::pid_t, number) }, format!("signal {number} to process {child}"))
}

/// Makes the process that `command` starts the leader of a new session before it runs the program, so that no signal of
/// the terminal reaches the process.
pub(crate) fn leave_terminal(command: &mut Command) {
    // SAFETY: between fork and exec the closure makes one system call, which has no arguments, and allocates nothing.
    unsafe {
        command.pre_exec(|| match libc::setsid() {
            -1 => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
}

/// Returns this process's freed memory to the kernel, because a contender that reused it would not be charged for it.
pub(crate) fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes a number and does not touch memory in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Writes a file's or device's dirty pages, and drops its pages from the cache.
pub(crate) fn drop_pages(file: &File) -> Result<(), Error> {
    file.sync_all().map_err(|error| Error::failed("fsync", error))?;
    // SAFETY: the descriptor is open for as long as the call runs; the other arguments are numbers.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        error => Err(Error::failed("dropping pages", std::io::Error::from_raw_os_error(error))),
    }
}

/// Writes several buffers at an offset of a file, one after the other; returns the number of bytes that were written.
pub(crate) fn write_vectored_at(file: &File, parts: &[IoSlice<'_>], offset: u64) -> std::io::Result<usize> {
    let count = parts.len().min(libc::UIO_MAXIOV as usize) as libc::c_int;
    let offset = libc::off_t::try_from(offset).map_err(std::io::Error::other)?;
    // SAFETY: an `IoSlice` has the layout of an `iovec`; the buffers and the descriptor outlive the call, which only
    // reads them.
    let written = unsafe { libc::pwritev(file.as_raw_fd(), parts.as_ptr().cast::<libc::iovec>(), count, offset) };
    usize::try_from(written).map_err(|_| std::io::Error::last_os_error())
}

/// The free space for ordinary users in the file system at a path. *Units*: bytes.
pub(crate) fn free_space(path: &Path) -> Result<u64, Error> {
    let text = string(path)?;
    // SAFETY: all zeroes are a valid value of this plain structure.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the string ends with a zero byte, and the call may write to the structure.
    checked(unsafe { libc::statvfs(text.as_ptr(), &mut found) }, path.display())?;
    Ok(found.f_bavail * found.f_frsize)
}

/// The processor time of all threads of this process.
pub(crate) fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to the structure; it cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// The resources that a process and its reaped children have used.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct ResourceUsage {
    pub user: Duration,
    pub system: Duration,
    /// The largest resident size of any of these processes.
    pub resident_bytes: u64,
}

impl ResourceUsage {
    fn of(raw: &libc::rusage) -> ResourceUsage {
        let time = |time: libc::timeval| Duration::new(time.tv_sec.unsigned_abs(), time.tv_usec as u32 * 1000);
        let (user, system) = (time(raw.ru_utime), time(raw.ru_stime));
        ResourceUsage { user, system, resident_bytes: raw.ru_maxrss.unsigned_abs() << 10 }
    }
}

/// The resources that this process has used so far.
pub(crate) fn own_usage() -> ResourceUsage {
    // SAFETY: all zeroes are a valid value of this plain structure.
    let mut raw: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes to the structure; it cannot fail for this process.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut raw) };
    ResourceUsage::of(&raw)
}

/// Waits until a child has ended, and reaps it; returns `None` if it does not end within `patience`.
///
/// Returns the child's exit code and its usage. If a signal ended the child, the code is 128 plus the signal's number.
/// The caller must not wait for the child in another way.
pub(crate) fn wait_for(child: u32, patience: Duration) -> Result<Option<(i32, ResourceUsage)>, Error> {
    let what = || format!("waiting for process {child}");
    // SAFETY: the call takes numbers; the child is not reaped yet, so the number still belongs to it.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, child, 0) };
    if descriptor < 0 {
        return Err(Error::os(what()));
    }
    // SAFETY: the descriptor is new, so nothing else owns it.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor as libc::c_int) };
    let deadline = std::time::Instant::now() + patience;
    loop {
        let left = deadline.saturating_duration_since(std::time::Instant::now()).as_millis();
        let mut poll = libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the pointer is to one structure that outlives the call.
        match unsafe { libc::poll(&mut poll, 1, left.min(i32::MAX as u128) as libc::c_int) } {
            0 => return Ok(None),
            1.. => break,
            _ if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
            _ => return Err(Error::os(what())),
        }
    }
    let mut status = 0;
    // SAFETY: all zeroes are a valid value of this plain structure.
    let mut raw: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to values that outlive the call.
    if unsafe { libc::wait4(child as libc::pid_t, &mut status, 0, &mut raw) } < 0 {
        return Err(Error::os(what()));
    }
    let code = if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 128 + libc::WTERMSIG(status) };
    Ok(Some((code, ResourceUsage::of(&raw))))
}

/// Kills the process group that a child of this process leads.
pub(crate) fn kill_group(leader: u32) {
    // SAFETY: the call takes numbers; the child is not reaped yet, so the number still belongs to it.
    unsafe { libc::kill(-(leader as libc::pid_t), libc::SIGKILL) };
}

/// The processor time of a process with all its threads. *Units*: seconds; 0 if the process no longer exists.
pub(crate) fn processor_s_of(process: u32) -> f64 {
    // SAFETY: the call takes a number.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let fields: Vec<&str> = text.rsplit_once(") ").map_or(Vec::new(), |rest| rest.1.split(' ').collect());
    let field = |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    (field(11) + field(12)) / ticks.max(1) as f64
}

/// The processor time of this thread.
pub(crate) fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to the structure; it cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// Whether this process runs as root.
pub(crate) fn is_root() -> bool {
    // SAFETY: the call has no arguments.
    unsafe { libc::geteuid() == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loop_mounts_listed_latest_first() {
        let mounts = b"/dev/vda / ext4 rw 0 0\n/dev/loop3 /mnt/a\\040b ext4 rw 0 0\nproc /proc proc rw 0 0\n/dev/loop14 /mnt/c xfs rw 0 0\n";
        assert_eq!(on_loop_devices(mounts), [b"/mnt/c".to_vec(), b"/mnt/a b".to_vec()]);
        assert!(on_loop_devices(b"").is_empty());
    }
}
