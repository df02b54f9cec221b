//! Finds the process that holds a file or disk, for the message of a refused open.
//!
//! Promises: the search does bounded work and never fails, but it may not find the holder. The answer is text for
//! users.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// The maximum number of lines that are read from a table in `/proc`.
const LINES_MAX: usize = 65536;

/// Describes the holder of `path`, if it can be found.
pub(super) fn describe(path: &Path) -> String {
    let Ok(status) = std::fs::metadata(path) else { return "another process has it open".to_owned() };
    if status.file_type().is_block_device()
        && let Some(place) = mounted_on(status.rdev())
    {
        return format!("it is mounted on {place}; unmount it first");
    }
    match lock_holder(status.dev(), status.ino(), &["WRITE", "READ"]) {
        Some(pid) if pid == std::process::id() => format!("this process (pid {pid}) has it open already"),
        Some(pid) => match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
            Ok(name) => format!("process {pid} ({}) has it open; stop it first", name.trim()),
            Err(_) => format!("process {pid} has it open; stop it first"),
        },
        None => "another process has it open, or the kernel uses it".to_owned(),
    }
}

/// Whether a living process or a mount is known to own `path`. A process that only reads does not count: it may end
/// soon.
pub(super) fn is_known(path: &Path) -> bool {
    let Ok(status) = std::fs::metadata(path) else { return false };
    let mounted = status.file_type().is_block_device() && mounted_on(status.rdev()).is_some();
    mounted || lock_holder(status.dev(), status.ino(), &["WRITE"]).is_some_and(is_alive)
}

/// Whether a process is alive. A zombie counts as ended, because the kernel soon closes its files.
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

/// The process that holds a `flock` of one of these kinds on an inode, according to `/proc/locks`.
fn lock_holder(device: u64, inode: u64, kinds: &[&str]) -> Option<u32> {
    let place = format!("{:02x}:{:02x}:{inode}", libc::major(device), libc::minor(device));
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    locks.lines().take(LINES_MAX).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields[..] {
            [_, "FLOCK", _, kind, pid, at, ..] if at == place && kinds.contains(&kind) => pid.parse().ok(),
            _ => None,
        }
    })
}

/// A place where a block device is mounted, according to `/proc/self/mountinfo`.
fn mounted_on(device: u64) -> Option<String> {
    let number = format!("{}:{}", libc::major(device), libc::minor(device));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts.lines().take(LINES_MAX).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields.get(2) == Some(&number.as_str())).then(|| fields.get(4).map(|place| (*place).to_owned()))?
    })
}
