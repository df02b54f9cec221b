//! JuiceFS as a peer: its metadata in SQLite, its data in files, on a given directory.
//!
//! Owns: finding its program, its command lines, and its end. The kernel's caches of it are off, because they show what
//! other hosts changed only later; it has no cache of data, no reports of its use, no backups of its metadata. Leaves
//! to others: building it (`ci/setup files`).

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::process::{PipedProcess, ProcessEnvironment, run};
use crate::{Error, sys};

/// The name of its program.
const PROGRAM: &str = "juicefs";
/// The program that mounts for it, and the Debian package of that program.
const MOUNTER: (&str, &str) = ("fusermount3", "fuse3");
/// How long it may take to mount, or to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time between two looks.
const STEP: Duration = Duration::from_millis(20);

/// Finds its program: where `ci/setup files` puts it, beside the directory of this program, or in the folders of
/// `PATH`.
pub fn find(nectary: &Path) -> Option<PathBuf> {
    let beside = nectary.parent().and_then(Path::parent).map(|target| target.join("tools/bin"));
    beside.into_iter().chain(path_folders()).map(|folder| folder.join(PROGRAM)).find(|path| path.is_file())
}

/// Whether a program is in one of the folders of `PATH`.
pub fn is_on_path(program: &str) -> bool {
    path_folders().iter().any(|folder| folder.join(program).is_file())
}

fn path_folders() -> Vec<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect()
}

/// The reason why it cannot run; `None` if it can.
pub fn missing(program: Option<&Path>) -> Option<String> {
    let Some(program) = program else {
        return Some("its program is not there: `ci/setup files` builds it, or name one with --juicefs".to_owned());
    };
    (!program.is_file()).then(|| format!("{}: there is no such program", program.display()))
}

/// A mounted JuiceFS. Dropping it kills its process.
pub struct JuiceFs {
    process: PipedProcess,
    root: PathBuf,
}

impl JuiceFs {
    /// Makes a file system in the directory `below`, and mounts it at `root`.
    pub fn start(nectary: &Path, program: &Path, below: &Path, root: &Path, said: PathBuf) -> Result<JuiceFs, Error> {
        run(Command::new(program).args(format(below)))?;
        let mut command = ProcessEnvironment::default().command(nectary, program);
        // Otherwise a second process would watch the first, and outlive this run.
        command.args(mount(below, root)).env("JFS_SUPERVISOR", "1");
        let before = device_of(root)?;
        let process = PipedProcess::start(command, "juicefs mount", said)?;
        let deadline = Instant::now() + PATIENCE;
        while device_of(root)? == before {
            if !process.is_running() || Instant::now() > deadline {
                // The error has what the process said.
                process.line(Duration::ZERO)?;
                let (mounter, package) = MOUNTER;
                let how = format!("it did not mount; it needs {mounter} (Debian package {package})");
                return Err(Error::failed("juicefs mount", how));
            }
            std::thread::sleep(STEP);
        }
        Ok(JuiceFs { process, root: root.to_owned() })
    }

    /// Unmounts it, and waits until its process has ended. *Errors*: it is in use, or does not end.
    pub fn finish(self) -> Result<(), Error> {
        sys::unmount(&self.root)?;
        let deadline = Instant::now() + PATIENCE;
        while self.process.is_running() {
            if Instant::now() > deadline {
                return Err(Error::failed("juicefs mount", format!("it did not end within {PATIENCE:?}")));
            }
            std::thread::sleep(STEP);
        }
        Ok(())
    }
}

fn device_of(path: &Path) -> Result<u64, Error> {
    std::fs::metadata(path).map(|found| found.dev()).map_err(|error| Error::failed(path.display(), error))
}

fn metadata(below: &Path) -> String {
    format!("sqlite3://{}", below.join("metadata.db").display())
}

/// The words that make a file system. Unlinked files do not go to a trash.
fn format(below: &Path) -> Vec<String> {
    let (bucket, metadata) = (format!("{}/", below.join("objects").display()), metadata(below));
    let words = ["format", "--storage", "file", "--bucket", &bucket, "--trash-days", "0", &metadata, "bench"];
    words.map(str::to_owned).to_vec()
}

/// The words that mount it.
fn mount(below: &Path, root: &Path) -> Vec<String> {
    let (cache, root) = (below.join("cache").display().to_string(), root.display().to_string());
    let mut words = vec!["mount", "--no-usage-report", "--no-syslog", "--backup-meta", "0"];
    words.extend(["--attr-cache", "0", "--entry-cache", "0", "--dir-entry-cache", "0", "--open-cache", "0"]);
    words.extend(["--cache-dir", &cache, "--cache-size", "0", "--metrics", "127.0.0.1:0"]);
    let metadata = metadata(below);
    words.extend([&*metadata, &*root]);
    words.into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The caches of JuiceFS are off, and its files are in the directory below.
    #[test]
    fn juicefs_runs_without_caches() {
        let (below, root) = (Path::new("/disk"), Path::new("/mnt"));
        let made = format(below).join(" ");
        assert_eq!(
            made,
            "format --storage file --bucket /disk/objects/ --trash-days 0 sqlite3:///disk/metadata.db bench"
        );
        let mounted = mount(below, root).join(" ");
        for part in ["--attr-cache 0", "--entry-cache 0", "--dir-entry-cache 0", "--cache-size 0", "--no-usage-report"]
        {
            assert!(mounted.contains(part), "{part}: {mounted}");
        }
        assert!(mounted.ends_with(" sqlite3:///disk/metadata.db /mnt"), "{mounted}");
    }

    #[test]
    fn missing_juicefs_names_remedy() {
        assert!(missing(None).unwrap().contains("ci/setup files"));
        assert!(missing(Some(Path::new("/no/juicefs"))).unwrap().contains("/no/juicefs"));
        assert_eq!(missing(Some(Path::new("/bin/sh"))), None);
    }
}
