//! File-system exercisers and programs over `nectary cache mount`.
//!
//! Owns: the mounted directory in which they run, the expected results of each, and the comparison of the mount with
//! its source. Leaves to others: the mount's process (`live`), installing the tools (`ci/setup`).

mod crowd;
pub(crate) mod exerciser;
mod posix;
mod programs;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};

use crate::live::LiveCache;

pub use crowd::{DESCRIPTORS, NODE_BYTES_MAX, visit};
pub use exerciser::exercise;
pub use posix::{PjdfstestComparison, PjdfstestSuite, compare};
pub use programs::run_programs;

/// The memory of the cache: less than the programs write, so that blocks are evicted.
const MEMORY: &str = "8M";

/// Mounts a directory through a small cache; with `in_memory` the directory is in memory, so that nothing waits for a
/// disk.
pub fn mounted(arguments: &[&str], in_memory: bool) -> Result<LiveCache> {
    let arguments = [&["--memory", MEMORY], arguments].concat();
    let live = if in_memory {
        LiveCache::mounted_in_memory(&arguments, |_| {})?
    } else {
        LiveCache::mounted(&arguments, |_| {})?
    };
    for folder in [live.scratch.path().to_owned(), live.scratch.join("source")] {
        // Some of the tests run as other Unix users.
        fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    }
    Ok(live)
}

/// Finds a tool that `ci/setup` installs: in `NECTARY_TOOLS`, else in `tools/bin` of this program's target directory.
pub fn tool(name: &str) -> Option<PathBuf> {
    let given = std::env::var_os("NECTARY_TOOLS").map(PathBuf::from);
    let own = std::env::current_exe().ok()?;
    let beside = own.ancestors().skip(1).take(4).map(|folder| folder.join("tools/bin"));
    given.into_iter().chain(beside).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Checks that the mount shows the same files as its source: names, kinds, modes, owners, sizes and contents. Returns
/// the number of files.
pub fn is_the_source(live: &LiveCache) -> Result<usize> {
    let below = listing(&live.scratch.join("source"))?;
    let shown = listing(&live.scratch.join("shown"))?;
    for (name, entry) in &below {
        let other = shown.get(name).with_context(|| format!("{} is not shown", name.display()))?;
        ensure!(entry == other, "{}: the source has {entry:?}, the mount shows {other:?}", name.display());
    }
    ensure!(below.len() == shown.len(), "{} files below, {} shown", below.len(), shown.len());
    Ok(below.len())
}

#[derive(Debug, PartialEq, Eq)]
struct TreeEntry {
    mode: u32,
    owner: (u32, u32),
    size: u64,
    contents: u64,
}

fn listing(root: &Path) -> Result<BTreeMap<PathBuf, TreeEntry>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let metadata = fs::symlink_metadata(&path)?;
            let contents = if metadata.is_file() {
                xxhash_rust::xxh3::xxh3_64(&fs::read(&path)?)
            } else if metadata.is_symlink() {
                xxhash_rust::xxh3::xxh3_64(fs::read_link(&path)?.as_os_str().as_encoded_bytes())
            } else {
                0
            };
            // The size of a directory depends on the file system, so it is not compared.
            let size = if metadata.is_dir() { 0 } else { metadata.size() };
            let entry = TreeEntry { mode: metadata.mode(), owner: (metadata.uid(), metadata.gid()), size, contents };
            if metadata.is_dir() {
                folders.push(path.clone());
            }
            found.insert(path.strip_prefix(root)?.to_owned(), entry);
        }
    }
    Ok(found)
}

/// Runs a command to its end; an error contains its output.
fn run(command: &mut Command) -> Result<Output> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {command:?}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(4000)..]).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    ensure!(output.status.success(), "{command:?} ended with {}\n{stdout}\n{stderr}", output.status);
    Ok(output)
}
