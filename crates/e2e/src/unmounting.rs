//! Unmounts file systems that may be in use for a moment longer than their users know.
//!
//! Owns: the wait until nothing uses a mount, and the search for what does. Reason: between its fork and its exec, a
//! child that another thread starts has all files open that this process had open at the fork. If the machine is busy,
//! that takes longer than closing the file and unmounting. So a mount that is busy is tried again, and only a deadline
//! says that something really uses it. The error names the processes.

use std::ffi::CString;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// The pause between two attempts.
const TRY_EVERY: Duration = Duration::from_millis(5);
/// The exit code of a `nectary … umount` that finds the mount in use.
const BUSY_CODE: i32 = 5;
/// The most uses that an error lists.
const USES_MAX: usize = 20;

/// What became of an attempt to unmount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnmountAttempt {
    /// It is unmounted.
    Done,
    /// It is in use, in the words of the program that tried.
    Busy(String),
}

impl UnmountAttempt {
    /// Returns the outcome of a `nectary … umount` with this exit code and output. *Errors*: any other failure.
    pub fn of_command((code, text): (Option<i32>, String)) -> Result<UnmountAttempt> {
        match code {
            Some(0) => Ok(UnmountAttempt::Done),
            Some(BUSY_CODE) => Ok(UnmountAttempt::Busy(text.trim().to_owned())),
            _ => bail!("umount: exit code {code:?}\n{text}"),
        }
    }
}

/// A use of a mount by a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountUse {
    /// The process.
    pub process: u32,
    /// Its name.
    pub name: String,
    /// How it uses the mount: `fd/3`, `cwd`, `root`, `exe`, `map_files/…`, or `ns/mnt` for a copy of the mount in
    /// another mount namespace.
    pub by: String,
    /// The file.
    pub path: PathBuf,
}

impl fmt::Display for MountUse {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MountUse { process, name, by, path } = self;
        write!(out, "process {process} ({name}) by {by}: {}", path.display())
    }
}

/// Unmounts a file system; if it is in use, waits up to `limit` until it is not.
///
/// *Errors*: nothing is mounted there, or it stays in use; the error then names the users.
pub fn unmount(place: &Path, limit: Duration) -> Result<()> {
    let path = CString::new(place.as_os_str().as_encoded_bytes())?;
    when_free(place, limit, || {
        // SAFETY: the path is a string that ends with a zero byte and outlives the call.
        if unsafe { libc::umount2(path.as_ptr(), libc::UMOUNT_NOFOLLOW) } == 0 {
            return Ok(UnmountAttempt::Done);
        }
        match io::Error::last_os_error() {
            busy if busy.kind() == io::ErrorKind::ResourceBusy => Ok(UnmountAttempt::Busy(busy.to_string())),
            error => bail!("{} is not unmounted: {error}", place.display()),
        }
    })
}

/// Repeats an attempt to unmount until it does not find the mount in use.
///
/// *Errors*: that of an attempt, or the mount stays in use for `limit`; the error then names the users.
pub fn when_free(place: &Path, limit: Duration, mut attempt: impl FnMut() -> Result<UnmountAttempt>) -> Result<()> {
    let deadline = Instant::now() + limit;
    let mut is_first = true;
    loop {
        let UnmountAttempt::Busy(words) = attempt()? else { return Ok(()) };
        let is_late = Instant::now() >= deadline;
        if is_first || is_late {
            let uses: Vec<String> = uses(place).iter().take(USES_MAX).map(ToString::to_string).collect();
            let users = if uses.is_empty() { "no process that is seen".to_owned() } else { uses.join(", ") };
            if is_late {
                bail!("{} is in use after {limit:?} ({words}): {users}", place.display());
            }
            println!("{} is in use ({words}): {users}", place.display());
            is_first = false;
        }
        std::thread::sleep(TRY_EVERY);
    }
}

/// Finds what uses a mount. A process that has just ended, or that this user may not see, is left out.
pub fn uses(place: &Path) -> Vec<MountUse> {
    let mut uses = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default().trim().to_owned();
        let used = used_by(&entry.path(), place);
        uses.extend(used.into_iter().map(|(by, path)| MountUse { process, name: name.clone(), by, path }));
    }
    uses
}

/// What a process, by its directory in `/proc`, uses of a mount, and by what.
fn used_by(process: &Path, place: &Path) -> Vec<(String, PathBuf)> {
    let mut links: Vec<String> = ["cwd", "root", "exe"].map(str::to_owned).to_vec();
    for folder in ["fd", "map_files"] {
        let entries = fs::read_dir(process.join(folder)).into_iter().flatten().flatten();
        links.extend(entries.map(|entry| format!("{folder}/{}", entry.file_name().display())));
    }
    let target = |link: String| fs::read_link(process.join(&link)).ok().map(|path| (link, path));
    let mut used: Vec<(String, PathBuf)> =
        links.into_iter().filter_map(target).filter(|(_, path)| path.starts_with(place)).collect();
    let namespace = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let is_elsewhere = namespace(process) != namespace(Path::new("/proc/self"));
    let mounts = is_elsewhere.then(|| fs::read_to_string(process.join("mountinfo")).ok()).flatten().unwrap_or_default();
    let shown = place.display().to_string();
    if mounts.lines().any(|line| line.split(' ').nth(4) == Some(&shown)) {
        used.push(("ns/mnt".to_owned(), place.to_owned()));
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::not_run;
    use crate::scratch::ScratchFolder;
    use std::fs::File;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    /// A tmpfs; `None`, with the reason printed, if nothing can be mounted here.
    fn mounted(name: &str) -> Option<ScratchFolder> {
        let scratch = ScratchFolder::new(name).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(scratch.path()).output().unwrap();
        let is_mounted = mounted.status.success();
        if !is_mounted {
            not_run(format!("unmounting: {}", String::from_utf8_lossy(&mounted.stderr).trim()));
        }
        is_mounted.then_some(scratch)
    }

    /// A child that has not reached its exec holds files that this process has closed.
    #[test]
    fn unmount_waits_for_forked_child() {
        let Some(scratch) = mounted("unmount-forked") else { return };
        let file = File::create(scratch.join("file")).unwrap();
        let (mut read, write) = io::pipe().unwrap();
        let child = std::thread::spawn(move || {
            let mut command = Command::new("true");
            // SAFETY: reading and sleeping are system calls on what the child has, allowed between fork and exec.
            unsafe {
                command.pre_exec(move || {
                    io::Write::write_all(&mut &write, b"f")?;
                    std::thread::sleep(Duration::from_millis(300));
                    Ok(())
                });
            }
            command.status().unwrap()
        });
        io::Read::read_exact(&mut read, &mut [0]).unwrap();
        drop(file);
        let path = CString::new(scratch.path().as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: the path is a string that ends with a zero byte and outlives the call.
        assert!(unsafe { libc::umount2(path.as_ptr(), 0) } != 0, "the child has the file open");
        unmount(scratch.path(), Duration::from_secs(60)).unwrap();
        assert!(child.join().unwrap().success());
    }

    #[test]
    fn lasting_use_is_named() {
        let Some(scratch) = mounted("unmount-used") else { return };
        let file = File::create(scratch.join("file")).unwrap();
        let mut user = Command::new("sleep");
        let mut user = user.arg("1000").stdin(Stdio::null()).current_dir(scratch.path()).spawn().unwrap();
        let error = unmount(scratch.path(), Duration::from_millis(50)).unwrap_err().to_string();
        let (own, place) = (std::process::id(), scratch.path().display());
        assert!(error.contains(&format!("process {own} (")) && error.contains(&format!(": {place}/file")), "{error}");
        assert!(error.contains(&format!("process {} (sleep) by cwd: {place}", user.id())), "{error}");
        drop(file);
        user.kill().unwrap();
        user.wait().unwrap();
        unmount(scratch.path(), Duration::from_secs(60)).unwrap();
        let error = unmount(scratch.path(), Duration::from_secs(60)).unwrap_err().to_string();
        assert!(error.contains("is not unmounted"), "{error}");
    }
}
