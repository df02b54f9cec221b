//! Small file systems in memory, for tests of files on them.
//!
//! Owns: a mount, and its end: it is unmounted when its value is dropped, even in a panic. Promises that a use that
//! ends soon does not fail a test: a child that another test starts has all files of this process open until its exec.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// The longest time in which a mount may be in use after its last file was closed.
const BUSY_MAX: Duration = Duration::from_secs(30);
/// The pause between two attempts to unmount.
const TRY_EVERY: Duration = Duration::from_millis(5);

/// A mounted file system.
pub struct TestMount(Option<PathBuf>);

impl TestMount {
    /// Makes the directory and mounts a file system of this kind there. *Errors*: why it cannot be mounted.
    pub fn new(kind: &str, place: PathBuf, options: &str) -> Result<TestMount, String> {
        std::fs::create_dir(&place).map_err(|error| error.to_string())?;
        said(Command::new("mount").args(["-t", kind, "-o", options, kind]).arg(&place))?;
        Ok(TestMount(Some(place)))
    }

    /// Unmounts it. *Errors*: it stays in use for [`BUSY_MAX`].
    pub fn unmount(mut self) -> Result<(), String> {
        let Some(place) = self.0.take() else { return Ok(()) };
        let deadline = Instant::now() + BUSY_MAX;
        loop {
            match said(Command::new("umount").arg(&place)) {
                Err(why) if why.contains("busy") && Instant::now() < deadline => std::thread::sleep(TRY_EVERY),
                result => return result,
            }
        }
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        if let Some(place) = &self.0 {
            let _ = said(Command::new("umount").arg("-l").arg(place));
        }
    }
}

fn said(command: &mut Command) -> Result<(), String> {
    let output = command.env("LC_ALL", "C").output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}
