//! Mounts whose process was killed.
//!
//! Owns: a file for each mount in the runtime directory, by which `nectary status` finds those that nobody serves any
//! more. Promises: no call here waits for a mounted file system. Leaves to others: removing such a mount (`umount`).

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use nectary_host::control::RunningPart;
use nectary_host::{PartHealth, PartStatus, RuntimeDirectory};

use super::{MountKind, TREES, VOLUMES};

/// The ending of these files. They contain the number of the process, a blank, and the directory.
const ENDING: &str = "mount";

impl MountKind {
    /// Writes down that this process serves a directory.
    pub(super) fn remember(self, directory: &Path) {
        let Ok(runtime) = RuntimeDirectory::open() else { return };
        let process = format!("{} ", std::process::id());
        let text = [process.as_bytes(), directory.as_os_str().as_bytes()].concat();
        // A mount works without this file; only its end by SIGKILL would not be shown.
        let _ = fs::write(self.file_of(&runtime, directory), text);
    }

    /// Removes what [`remember`](MountKind::remember) wrote, before another process can claim the directory.
    pub fn forget(self, directory: &Path) {
        if let Ok(runtime) = RuntimeDirectory::open() {
            let _ = fs::remove_file(self.file_of(&runtime, directory));
        }
    }

    fn file_of(self, runtime: &RuntimeDirectory, directory: &Path) -> PathBuf {
        runtime.path().join(format!("{}.{ENDING}", self.socket_of(directory)))
    }
}

/// The mounts that are still there although their process is gone, as broken parts. Forgets those that are not mounted
/// any more.
pub fn dead_mounts_in(runtime: &RuntimeDirectory) -> Vec<RunningPart> {
    let entries = fs::read_dir(runtime.path()).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|ending| ending == ENDING));
    files.sort();
    files.iter().filter_map(|file| dead_mount(file)).collect()
}

fn dead_mount(file: &Path) -> Option<RunningPart> {
    let text = fs::read(file).ok()?;
    let blank = text.iter().position(|byte| *byte == b' ')?;
    let process: u32 = std::str::from_utf8(&text[..blank]).ok()?.parse().ok()?;
    let directory = Path::new(OsStr::from_bytes(&text[blank + 1..]));
    let name = file.file_name()?.to_str()?;
    let kind = [TREES, VOLUMES].into_iter().find(|kind| name.starts_with(&format!("{}-", kind.socket)))?;
    let socket = file.with_extension("sock");
    if is_served(process, &socket) {
        return None;
    }
    if !(kind.is_mounted)(directory) {
        let _ = fs::remove_file(file);
        return None;
    }
    let shown = directory.display().to_string();
    let status = PartStatus { pid: process, ..PartStatus::healthy(kind.part, &shown) };
    let what = "it is mounted, but its process was killed: every access to it fails";
    let remedy = format!("`{} {shown}` removes it, and so does mounting it again", kind.umount);
    Some(RunningPart { path: socket, status: Ok(status.with_problem(PartHealth::Broken, what, remedy)) })
}

/// Whether a mount has a process. That may live without its socket, if somebody removed the socket's file.
fn is_served(process: u32, socket: &Path) -> bool {
    match UnixStream::connect(socket) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
            let program = fs::read_link(format!("/proc/{process}/exe")).unwrap_or_default();
            program.file_name().is_some_and(|name| name.as_bytes().starts_with(b"nectary"))
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn ended_mounts_are_forgotten() {
        let root = std::env::temp_dir().join(format!("nectary-dead-mounts-{}", std::process::id()));
        let runtime = RuntimeDirectory::at(&root).expect("made");
        let [ended, served, foreign] = ["cache-0.mount", "volume-mount-0.mount", "x.mount"].map(|name| root.join(name));
        for file in [&ended, &served, &foreign] {
            fs::write(file, "4294967295 /nowhere/at all").expect("written");
        }
        let _socket = UnixListener::bind(served.with_extension("sock")).expect("bound");
        assert!(dead_mounts_in(&runtime).is_empty());
        assert!(!ended.exists() && served.exists() && foreign.exists());
        fs::remove_dir_all(&root).expect("removed");
    }
}
