//! System calls that the standard library lacks.
//!
//! Owns: every `unsafe` of the crate except that of the shared clock. Each is a plain system call with numbers that
//! `rustix` does not have or that it does not call safe.

use std::ffi::OsStr;
use std::fs::File;
use std::io::IoSlice;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use rustix::thread::{CpuSet, UnshareFlags};
use rustix::time::ClockId;

use crate::Error;

/// The error of a call that failed.
trait CallResult<T> {
    fn named(self, what: impl std::fmt::Display) -> Result<T, Error>;
}

impl<T> CallResult<T> for rustix::io::Result<T> {
    fn named(self, what: impl std::fmt::Display) -> Result<T, Error> {
        self.map_err(|error| Error::failed(what, std::io::Error::from(error)))
    }
}

/// The number of a child of this process.
fn process(child: u32) -> Result<Pid, Error> {
    Pid::from_raw(child as i32).ok_or_else(|| Error::failed("process 0", "it is no child"))
}

/// Gives this process its own mount namespace, whose mounts end with the process.
///
/// Mounts of loop devices are unmounted in the new namespace, except the one that holds `kept`: other programs made
/// them, and a copy here would keep their devices busy. Call it before the process has other threads.
pub(crate) fn own_mounts(kept: &Path) -> Result<(), Error> {
    // SAFETY: the table of descriptors stays shared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }.named("a mount namespace (it takes root)")?;
    let flags = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    rustix::mount::mount_change("/", flags).named("making mounts private")?;
    let mounts = std::fs::read("/proc/self/mounts").map_err(|error| Error::failed("/proc/self/mounts", error))?;
    for place in on_loop_devices(&mounts) {
        if kept.starts_with(Path::new(OsStr::from_bytes(&place))) {
            continue;
        }
        // Failure is ignored: another process may have removed the mount.
        let _ = rustix::mount::unmount(place, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
    }
    Ok(())
}

/// Gives this thread, and the processes that it starts, an empty network namespace: even its loopback is down.
pub(crate) fn own_network() -> Result<(), Error> {
    // SAFETY: the table of descriptors stays shared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.named("a network namespace (it takes root)")
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
    let flags = MountFlags::NOATIME
        | match writing {
            MountSyncMode::Later => MountFlags::empty(),
            MountSyncMode::DirectoriesAtOnce => MountFlags::DIRSYNC,
            MountSyncMode::AtOnce => MountFlags::SYNCHRONOUS | MountFlags::DIRSYNC,
        };
    rustix::mount::mount(device, root, kind, flags, None).named(format!("mounting {} as {kind}", device.display()))
}

/// Makes a directory with everything that is mounted in it also appear at another directory.
pub(crate) fn bind(source: &Path, target: &Path) -> Result<(), Error> {
    rustix::mount::mount_bind_recursive(source, target).named(format!(
        "binding {} to {}",
        source.display(),
        target.display()
    ))
}

/// Mounts an empty file system in memory.
pub(crate) fn mount_memory(target: &Path) -> Result<(), Error> {
    rustix::mount::mount("tmpfs", target, "tmpfs", MountFlags::empty(), None)
        .named(format!("mounting memory at {}", target.display()))
}

/// Lets this thread, and what it starts, run on one processor only. On a machine that lacks it, nothing changes.
pub(crate) fn run_on(processor: usize) {
    if processor < CpuSet::MAX_CPU {
        let mut set = CpuSet::new();
        set.set(processor);
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}

/// Kills a process that may have ended. The caller knows that the number still belongs to it.
pub(crate) fn kill(process: u32) {
    if let Some(process) = Pid::from_raw(process as i32) {
        let _ = rustix::process::kill_process(process, Signal::KILL);
    }
}

/// Unmounts the file system at `root`. A child that another thread starts has the files of this process open for a
/// moment; that is waited for.
pub(crate) fn unmount(root: &Path) -> Result<(), Error> {
    nectary_fuse::unmount(root, false)
        .map_err(|error| Error::failed(format_args!("unmounting {}", root.display()), error))
}

/// Takes away everything that is mounted at or below `root`, also if it is in use.
pub(crate) fn unmount_all(root: &Path) -> Result<(), Error> {
    rustix::mount::unmount(root, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
        .named(format!("unmounting {}", root.display()))
}

/// Writes everything that a file system has in memory to its device.
pub(crate) fn sync_file_system(inside: &File) -> Result<(), Error> {
    rustix::fs::syncfs(inside).named("syncfs")
}

/// Makes a worker an ordinary process that ends with its parent.
///
/// The parent serves disks, so the kernel exempts it from some limits on memory. Children inherit some of these
/// exemptions; this function removes them.
pub(crate) fn become_worker() {
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let _ = rustix::process::configure_io_flusher_behavior(false);
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
    signal(child, Signal::STOP)?;
    // With `NOWAIT` the child is not reaped.
    let (process, states) = (process(child)?, WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
    let stopped = rustix::io::retry_on_intr(|| rustix::process::waitid(WaitId::Pid(process), states));
    stopped.map(drop).named(format!("waiting for process {child} to stop"))
}

/// Continues a stopped child.
pub(crate) fn go_on(child: u32) -> Result<(), Error> {
    signal(child, Signal::CONT)
}

/// Tells a child to end.
pub(crate) fn terminate(child: u32) -> Result<(), Error> {
    signal(child, Signal::TERM)
}

/// Sends a signal to a child that is not reaped yet, so its number still belongs to it.
fn signal(child: u32, signal: Signal) -> Result<(), Error> {
    let sent = rustix::process::kill_process(process(child)?, signal);
    sent.named(format!("signal {} to process {child}", signal.as_raw()))
}

/// Makes the process that `command` starts the leader of a new session before it runs the program, so that no signal of
/// the terminal reaches the process.
pub(crate) fn leave_terminal(command: &mut Command) {
    // SAFETY: between fork and exec the closure makes one system call, which has no arguments, and allocates nothing.
    unsafe {
        command.pre_exec(|| Ok(rustix::process::setsid().map(drop)?));
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
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).named("dropping pages")
}

/// Writes several buffers at an offset of a file, one after the other; returns the number of bytes that were written.
pub(crate) fn write_vectored_at(file: &File, parts: &[IoSlice<'_>], offset: u64) -> std::io::Result<usize> {
    Ok(rustix::io::pwritev(file, parts, offset)?)
}

/// The free space for ordinary users in the file system at a path. *Units*: bytes.
pub(crate) fn free_space(path: &Path) -> Result<u64, Error> {
    let found = rustix::fs::statvfs(path).named(path.display())?;
    Ok(found.f_bavail * found.f_frsize)
}

/// The processor time of all threads of this process.
pub(crate) fn processor_time() -> Duration {
    time_of(ClockId::ProcessCPUTime)
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
    // The child is not reaped yet, so its number still belongs to it.
    let descriptor = rustix::process::pidfd_open(process(child)?, PidfdFlags::empty()).named(what())?;
    let deadline = std::time::Instant::now() + patience;
    loop {
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        let left = Timespec { tv_sec: left.as_secs().min(i32::MAX as u64) as i64, tv_nsec: left.subsec_nanos().into() };
        match rustix::event::poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Ok(None),
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).named(what()),
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
    // The child is not reaped yet, so the number still belongs to it.
    if let Ok(leader) = process(leader) {
        let _ = rustix::process::kill_process_group(leader, Signal::KILL);
    }
}

/// The processor time of a process with all its threads. *Units*: seconds; 0 if the process no longer exists.
pub(crate) fn processor_s_of(process: u32) -> f64 {
    let ticks = rustix::param::clock_ticks_per_second();
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let fields: Vec<&str> = text.rsplit_once(") ").map_or(Vec::new(), |rest| rest.1.split(' ').collect());
    let field = |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    (field(11) + field(12)) / ticks.max(1) as f64
}

/// The processor time of this thread.
pub(crate) fn thread_time() -> Duration {
    time_of(ClockId::ThreadCPUTime)
}

fn time_of(clock: ClockId) -> Duration {
    let time = rustix::time::clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// Whether this process runs as root.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
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
