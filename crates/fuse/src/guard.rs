//! A process that aborts a connection when the process that serves it has ended.
//!
//! The kernel ends a connection when its last descriptor is closed. A thread that waits in the kernel for a lock keeps
//! its descriptor until it has the lock, also if its process was killed ([`KernelNotifier::apart`](crate::KernelNotifier)).
//! Until then new requests are accepted, which nobody answers, and these may hold the lock. So a second process waits for
//! the end of this one, and then aborts the connection, which fails all requests.
//!
//! The second process is a shell, in its own process group. If it is killed, too, nothing else changes.

use std::fs::File;
use std::io::{self, PipeWriter};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, openat, statx};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::mount::FuseMount;

/// Waits until the other end of standard input is closed, and then writes a line. Signals that end a whole group or
/// session do not end it.
const SCRIPT: &str = "trap '' HUP INT TERM; read -r line; echo 1";

/// The process. When this is dropped, it aborts the connection and ends; by then the mount must have ended.
#[derive(Debug)]
pub struct AbortGuard {
    /// Only this process has this end of the pipe.
    alive: Option<PipeWriter>,
    child: Child,
}

impl AbortGuard {
    /// Starts the process for a mount.
    ///
    /// *Errors*: the kernel's control file system cannot be mounted, or there is no shell.
    pub fn start(mount: &FuseMount) -> io::Result<AbortGuard> {
        let (ended, alive) = io::pipe()?;
        let mut command = Command::new("/bin/sh");
        command.args(["-c", SCRIPT, "nectary-guard"]).current_dir("/").process_group(0);
        command.stdin(ended).stdout(abort_file(mount)?).stderr(Stdio::null());
        Ok(AbortGuard { child: command.spawn()?, alive: Some(alive) })
    }
}

impl Drop for AbortGuard {
    fn drop(&mut self) {
        drop(self.alive.take());
        let _ = self.child.wait();
    }
}

/// Opens the file of the kernel's control file system that aborts the connection of a mount.
fn abort_file(mount: &FuseMount) -> io::Result<File> {
    // The answer comes from the kernel's caches: nothing may be requested before the connection is served.
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let number = statx(mount.descriptor(), c"", flags, StatxFlags::TYPE)?.stx_dev_minor;
    let context = fsopen(c"fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let control = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    let file = openat(control, format!("{number}/abort"), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(File::from(file))
}
