//! The guardian: a small process that outlives a run, however the run ends, and removes what the run made.
//!
//! Owns: the list of a run's resources outside its processes, and their removal. The guardian has its own session, so
//! Ctrl-C does not reach it. It reads from a pipe whose other end only the run holds. When the pipe closes (the run has
//! succeeded, failed, or was ended by Ctrl-C or SIGKILL), the workers and their private mounts end too. The guardian
//! then releases loop devices of dead processes, and removes memory groups and the run's directory. Promises: it
//! touches only the listed resources, and loop devices whose process is dead.

use std::fs;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Error, ExperimentErrorKind, sys};

/// The longest time that the guardian waits for the last processes of a run.
const PATIENCE: Duration = Duration::from_secs(20);
/// The time between two attempts to remove the resources.
const STEP: Duration = Duration::from_millis(20);

/// A run's handle to its guardian.
pub struct Guardian {
    child: Child,
}

impl Guardian {
    /// Starts `command`, which has to call [`serve`]. When this returns, the guardian has its own session.
    pub fn start(mut command: Command) -> Result<Guardian, Error> {
        sys::leave_terminal(&mut command);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        let mut child = child.map_err(|error| Error::failed("starting the guardian", error))?;
        // Tells the guardian the process number of the run.
        writeln!(child.stdin.as_mut().expect("piped"), "run {}", std::process::id())
            .map_err(|error| Error::failed("the guardian", error))?;
        Ok(Guardian { child })
    }

    /// Registers a resource for removal, before it is made: a directory with its contents, a file, or a memory group.
    pub fn guard(&mut self, path: &Path) -> Result<(), Error> {
        let pipe = self.child.stdin.as_mut().expect("piped");
        writeln!(pipe, "path {}", path.display()).map_err(|error| Error::failed("the guardian", error))
    }

    /// Makes a directory inside a directory that the user named, and registers it for removal. *Errors*:
    /// [`ExperimentErrorKind::ResourceUsage`] if the user's directory does not exist; it is not made, because it could be on the wrong
    /// disk.
    pub fn make_folder(&mut self, path: &Path) -> Result<(), Error> {
        let parent = path.parent().unwrap_or(path);
        if !parent.is_dir() {
            let message = format!("{}: no such directory; make it on the device to be measured", parent.display());
            return Err(Error::new(ExperimentErrorKind::Usage, message));
        }
        self.guard(path)?;
        std::fs::create_dir(path).map_err(|error| Error::failed(path.display(), error))
    }

    /// Waits until the guardian has removed everything; all users of the resources should have ended before this call.
    pub fn finish(mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// The main function of the guardian's process: reads the list of resources until the run ends, then removes them.
pub fn serve(input: impl BufRead) {
    let mut run = 0;
    let mut paths = Vec::new();
    for line in input.lines().map_while(Result::ok) {
        match line.split_once(' ') {
            Some(("run", process)) => run = process.parse().unwrap_or(0),
            Some(("path", path)) => paths.push(PathBuf::from(path)),
            _ => {}
        }
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        // A live run releases its own disks; the disks of a dead run are released here.
        if !is_alive(run) {
            let _ = nectary_attach::release_stale();
        }
        paths.retain(|path| !remove(path));
        if paths.is_empty() || Instant::now() > deadline {
            break;
        }
        std::thread::sleep(STEP);
    }
    if !is_alive(run) {
        let _ = nectary_attach::release_stale();
    }
}

/// Whether a process runs: it exists and is not a zombie.
pub(crate) fn is_alive(process: u32) -> bool {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = text.rsplit_once(") ").and_then(|rest| rest.1.chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// Removes a directory, a file or a memory group; returns whether it is gone.
fn remove(path: &Path) -> bool {
    match path.starts_with("/sys/fs/cgroup") {
        true => drop(fs::remove_dir(path)),
        false => drop(fs::remove_dir_all(path).or_else(|_| fs::remove_file(path))),
    }
    !path.exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guardian_starts_in_own_session() {
        let guardian = Guardian::start(Command::new("cat")).unwrap();
        let number = guardian.child.id();
        let text = fs::read_to_string(format!("/proc/{number}/stat")).unwrap();
        let session = text.rsplit_once(") ").and_then(|rest| rest.1.split(' ').nth(3)).unwrap();
        assert_eq!(session, number.to_string());
        guardian.finish();
    }

    /// The listed paths are removed when the pipe of the run ends.
    #[test]
    fn guardian_removes_listed_resources() {
        let folder = std::env::temp_dir().join(format!("nectary-bench-guardian-{}", std::process::id()));
        fs::create_dir_all(folder.join("deep")).unwrap();
        fs::write(folder.join("deep/file"), "x").unwrap();
        // The run is this live process, so its disks must stay.
        let file = folder.with_extension("file");
        fs::write(&file, "x").unwrap();
        let list =
            format!("run {}\npath {}\npath {}\nnonsense\n", std::process::id(), folder.display(), file.display());
        std::thread::spawn(move || serve(list.as_bytes())).join().unwrap();
        assert!(!folder.exists() && !file.exists());
        assert!(is_alive(std::process::id()) && !is_alive(u32::MAX));
    }
}
