//! `rm -rf` of a large tree on one mount of a volume, or on two at once, while others list it.
//!
//! Promises: listings say of an entry at most that it does not exist any more, a later listing has no file that an
//! earlier one did not have, and afterwards the tree is gone on every mount, and its space is free.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{ProgramCounts, ProgramRound, RoundFolders, RoundPace, list, run, tool};
use crate::content::body;

/// The entries of a folder: files, a link and a symbolic link.
const ENTRIES_PER_FOLDER: u64 = 20;
/// The folders in a folder.
const FOLDERS_PER_FOLDER: u64 = 25;
/// The size of a file. *Units*: bytes.
const FILE_BYTES: u64 = 8 << 10;
/// The free space that may be missing afterwards, and that each start of a server may take until a later checkpoint.
/// *Units*: bytes.
const MISSING_BYTES_MAX: u64 = 4 << 20;
const START_BYTES_MAX: u64 = 26 << 20;
/// The longest time for which the removal waits for a listing of the whole tree to begin.
const MEETING_LIMIT: Duration = Duration::from_secs(30);
/// The longest time until the space is free.
const FREE_LIMIT: Duration = Duration::from_secs(30);

/// A round of a removal.
#[derive(Default)]
pub(super) struct RemoveTreeRound {
    /// The files that the last listing had, since the removal began.
    seen: Mutex<BTreeSet<String>>,
    /// The free space before the tree was made. *Units*: bytes.
    free_before: AtomicU64,
    /// Whether another mount has begun to list the whole tree.
    is_listed: AtomicBool,
}

impl ProgramRound for RemoveTreeRound {
    fn pace(&self) -> RoundPace {
        RoundPace { before_ms_max: 2500, kills_max: 8, look_every_ms: 200 }
    }

    fn work(&self, folders: &RoundFolders, stored: &AtomicU64) -> Result<u64> {
        let count = folders.kit.scale.of(25, 500);
        self.free_before.store(free_bytes(&folders.here)?, Ordering::Release);
        let source = folders.beside.join("tree");
        let entries = write_tree(&source, count, folders.seed)?;
        let copy = ["-R", "--no-dereference", "--preserve=links"];
        run(tool("cp").args(copy).arg(&source).arg(&folders.here))?;
        fs::remove_dir_all(&source)?;
        let all = listed(&folders.third)?;
        ensure!(all.len() as u64 == entries, "another mount lists {} of {entries} entries", all.len());
        *self.seen.lock().expect("no look panics") = all;
        stored.store(entries, Ordering::Release);
        self.await_listing()?;
        if folders.seed.is_multiple_of(2) {
            // Two mounts remove the tree at once.
            std::thread::scope(|scope| {
                let other = scope.spawn(|| remove(&folders.third));
                remove(&folders.here)?;
                other.join().expect("it does not panic")
            })?;
        } else {
            run(tool("rm").arg("-rf").arg(folders.here.join("tree")))?;
        }
        check_gone(folders)?;
        Ok(0)
    }

    fn look(&self, folders: &RoundFolders, before: u64) -> Result<bool> {
        self.is_listed.fetch_or(before > 0, Ordering::AcqRel);
        list(tool("ls").arg("-lR").arg(&folders.there))?;
        if before > 0 {
            let found = listed(&folders.there)?;
            let mut seen = self.seen.lock().expect("no look panics");
            let appeared = found.iter().find(|name| !seen.contains(*name));
            ensure!(appeared.is_none(), "{appeared:?} is listed again after a listing without it");
            *seen = found;
        }
        Ok(before > 0)
    }

    fn spoil(&self, folders: &RoundFolders) -> Result<()> {
        run(tool("mkdir").arg("-p").arg(folders.there.join("tree/folder-3"))).map(drop)
    }

    fn check(&self, folders: &RoundFolders, done: &ProgramCounts) -> Result<()> {
        check_gone(folders)?;
        let starts = done.kills + 1;
        let least =
            self.free_before.load(Ordering::Acquire).saturating_sub(MISSING_BYTES_MAX + starts * START_BYTES_MAX);
        let began = Instant::now();
        for mount in folders.every() {
            loop {
                let free = free_bytes(mount)?;
                if free >= least {
                    break;
                }
                ensure!(
                    began.elapsed() < FREE_LIMIT,
                    "{free} bytes are free after the removal and {starts} starts, not {least}"
                );
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        Ok(())
    }
}

impl RemoveTreeRound {
    /// Waits until a listing has begun, so that the removal meets it, however small the tree is.
    fn await_listing(&self) -> Result<()> {
        let began = Instant::now();
        while !self.is_listed.load(Ordering::Acquire) {
            ensure!(began.elapsed() < MEETING_LIMIT, "no listing begins within {MEETING_LIMIT:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

/// Writes a tree of `count` folders; returns the number of their files and links.
fn write_tree(root: &Path, count: u64, seed: u64) -> Result<u64> {
    for index in 0..count {
        let parent = root.join(format!("folder-{}", index / FOLDERS_PER_FOLDER));
        let folder = parent.join(format!("folder-{index}"));
        fs::create_dir_all(&folder)?;
        for entry in 2..ENTRIES_PER_FOLDER {
            let name = format!("file-{index}-{entry}");
            fs::write(folder.join(&name), body(&name, seed, FILE_BYTES))?;
        }
        let last = format!("file-{index}-2");
        fs::hard_link(folder.join(&last), parent.join(format!("link-{index}")))?;
        std::os::unix::fs::symlink(&last, folder.join("symbolic-link"))?;
    }
    Ok(count * ENTRIES_PER_FOLDER)
}

/// The files and links that `find` shows on a mount.
fn listed(mount: &Path) -> Result<BTreeSet<String>> {
    let text = list(tool("find").arg(".").args(["-type", "f", "-o", "-type", "l"]).current_dir(mount))?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// Removes the tree while another mount removes it, too: what the other one has removed is no error.
fn remove(mount: &Path) -> Result<()> {
    loop {
        list(tool("rm").arg("-rf").arg(mount.join("tree")))?;
        if !exists(&mount.join("tree")) {
            return Ok(());
        }
    }
}

/// Whether something exists, in the words of another program.
fn exists(path: &Path) -> bool {
    run(tool("test").arg("-e").arg(path)).is_ok()
}

fn check_gone(folders: &RoundFolders) -> Result<()> {
    for mount in folders.every() {
        let tree = mount.join("tree");
        ensure!(!exists(&tree), "{} is still there", tree.display());
        let rest = run(tool("ls").arg("-A").arg(mount))?;
        ensure!(rest.is_empty(), "{} still has {rest}", mount.display());
    }
    Ok(())
}

/// The free space that a mount shows. *Units*: bytes.
fn free_bytes(mount: &Path) -> Result<u64> {
    let text = run(tool("stat").args(["-f", "-c", "%a %S"]).arg(mount))?;
    let numbers: Vec<u64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    Ok(numbers.iter().product())
}
