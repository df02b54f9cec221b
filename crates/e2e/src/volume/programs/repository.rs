//! git on a volume: commits, a clone and a garbage collection on one mount, `fsck` on another.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};

use super::{ProgramCounts, ProgramRound, RoundFolders, run};

/// The number of commits of a repository.
const COMMITS: u64 = 3;
/// The number of files of a repository.
const FILES: u64 = 40;

/// A round of the repository.
pub(super) struct RepositoryRound;

impl ProgramRound for RepositoryRound {
    fn work(&self, folders: &RoundFolders, stored: &AtomicU64) -> Result<u64> {
        version(folders, stored, folders.seed).map(|()| 0)
    }

    fn look(&self, folders: &RoundFolders, before: u64) -> Result<bool> {
        if before > 0 {
            let known = commits(folders)?;
            let repository = folders.there.join("repository");
            for commit in &known[..before as usize] {
                run(git(&repository).args(["cat-file", "-e", &format!("{commit}^{{tree}}")]))?;
            }
        }
        Ok(before > 0)
    }

    fn spoil(&self, folders: &RoundFolders) -> Result<()> {
        let script =
            "rm \"$(find . -path './.git/objects/??/*' -o -path './.git/objects/pack/*.pack' | sort | head -n1)\"";
        run(Command::new("sh").args(["-c", script]).current_dir(folders.there.join("repository"))).map(drop)
    }

    fn check(&self, folders: &RoundFolders, _done: &ProgramCounts) -> Result<()> {
        check_repository(folders)
    }
}

fn git(place: &Path) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(place).env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", "/nonexistent");
    // Ignore the user's configuration, and leave no process in the background after a command has ended.
    for setting in
        ["user.name=nectary", "user.email=nectary@localhost", "commit.gpgsign=false", "gc.auto=0", "safe.directory=*"]
    {
        command.args(["-c", setting]);
    }
    command
}

/// Writes files with a shell, so that this process opens no file of the volume.
fn write_files(folder: &Path, seed: u64, files: u64) -> Result<()> {
    const SCRIPT: &str = "set -e; i=0; while [ $i -lt $2 ]; do mkdir -p folder-$((i % 7)); \
        { echo \"$1 $i\"; seq $(( ($1 * 31 + i * 17) % 700 )); } > folder-$((i % 7))/file-$i; i=$((i + 1)); done";
    let (seed, files) = ((seed % 100_000).to_string(), files.to_string());
    run(Command::new("sh").args(["-c", SCRIPT, "sh", &seed, &files]).current_dir(folder)).map(drop)
}

/// Returns the commits that git has reported.
fn commits(folders: &RoundFolders) -> Result<Vec<String>> {
    Ok(fs::read_to_string(folders.beside.join("commits"))?.lines().map(str::to_owned).collect())
}

/// Makes commits, then a clone and a garbage collection.
fn version(folders: &RoundFolders, stored: &AtomicU64, seed: u64) -> Result<()> {
    let repository = folders.here.join("repository");
    run(Command::new("git").args(["init", "-q"]).arg(&repository).env("HOME", "/nonexistent"))?;
    let mut known = fs::File::create(folders.beside.join("commits"))?;
    for commit in 0..COMMITS {
        write_files(&repository, seed + commit, FILES)?;
        run(git(&repository).args(["add", "."]))?;
        run(git(&repository).args(["commit", "-q", "-m", &format!("commit {commit}")]))?;
        known.write_all(run(git(&repository).args(["rev-parse", "HEAD"]))?.as_bytes())?;
        stored.store(commit + 1, Ordering::Release);
    }
    run(git(&folders.here).args(["clone", "-q", "--no-local"]).arg(&repository).arg(folders.here.join("clone")))?;
    run(git(&repository).args(["gc", "-q"]))?;
    Ok(())
}

fn check_repository(folders: &RoundFolders) -> Result<()> {
    let expected = commits(folders)?;
    for name in ["repository", "clone"] {
        let folder = folders.there.join(name);
        run(git(&folder).args(["fsck", "--full", "--strict"]))?;
        let found = run(git(&folder).args(["rev-list", "--reverse", "HEAD"]))?;
        ensure!(found.lines().eq(expected.iter().map(String::as_str)), "{name} has {found}, not {expected:?}");
        let state = run(git(&folder).args(["status", "--porcelain"]))?;
        ensure!(state.is_empty(), "{name} has changes: {state}");
    }
    Ok(())
}
