//! The commands that users give to a mounted tree: flush, show, drop, pin, and changes of options.
//!
//! Owns: the search for the cached file of a path. A path is looked up below the source, name by name; symbolic links
//! and `..` are refused, so a path cannot leave the source. Promises: show and drop add no nodes; a pinned file keeps
//! its node until it is unpinned, so that its blocks are not dropped together with the node.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use nectary_block::{DeviceErrorKind, DeviceOperation};
use nectary_buffer::{BufferCache, DropReport, RangeResidency, WriteMode};
use nectary_fuse::Errno;

use super::names::StreamName;
use super::nodes::{ROOT, TreeNode};
use super::sys::Stat;
use super::{MountedTree, sys};

/// The longest path. *Units*: bytes.
const PATH_BYTES_MAX: usize = libc::PATH_MAX as usize;
/// The longest name in a path. *Units*: bytes.
const NAME_BYTES_MAX: usize = 255;

/// The error of a command on a path.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// The path does not exist.
    #[error("{path}: not found")]
    Absent {
        /// The path, below the tree.
        path: String,
    },
    /// The path cannot name a file or directory of the tree, or the command does not apply to it.
    #[error("{path}: {problem}")]
    Invalid {
        /// The path, below the tree; only its beginning if it is long.
        path: String,
        /// The problem.
        problem: String,
    },
    /// The cache or the source failed.
    #[error("{path}: {source}")]
    Failed {
        /// The path, below the tree.
        path: String,
        /// The error.
        source: nectary_block::Error,
    },
}

/// The parts of one file that are in memory.
#[derive(Debug, Clone)]
pub struct HeldFile {
    /// Its path below the tree.
    pub path: PathBuf,
    /// The parts in memory.
    pub holding: RangeResidency,
}

/// The node that a path names.
struct PathNode {
    descriptor: File,
    stat: Stat,
}

impl MountedTree {
    /// The cache.
    pub fn cache(&self) -> &BufferCache {
        &self.file_system.bytes.cache
    }

    /// The name of a stream, if it is known.
    pub fn stream_name(&self, stream: nectary_block::AccessStream) -> Option<StreamName> {
        self.file_system.bytes.names.get(stream)
    }

    /// Makes all data that were written through the tree durable; returns the files for which this failed, with the
    /// errors.
    pub async fn flush(&self) -> Vec<(PathBuf, nectary_block::Error)> {
        let failed = self.cache().flush_all().await;
        if failed.is_empty() {
            return Vec::new();
        }
        let nodes = self.file_system.nodes.all();
        let path = |file| nodes.iter().find(|node| node.file().is_some_and(|cached| cached.id == file));
        let named = failed.into_iter().map(|(file, error)| {
            let below = path(file).and_then(|node| self.path_of(node));
            (below.unwrap_or_else(|| PathBuf::from(&error.device)), error)
        });
        named.collect()
    }

    /// Changes the mode of the mounted tree.
    ///
    /// *Errors*: [`DeviceErrorKind::Unsupported`] for write-back, because others may write to the source, for a tree that was
    /// mounted read-only, and for read-only while a program can write to a file by the kernel alone; the errors of a flush.
    pub async fn set_mode(&self, mode: WriteMode) -> Result<(), nectary_block::Error> {
        let refused = |detail: &str| {
            let name = self.options.directory.display().to_string();
            Err(nectary_block::Error::new(DeviceErrorKind::Unsupported, &name, DeviceOperation::Open, detail))
        };
        // The cache would take this mode while it knows no file, and then refuse every file that is opened.
        if mode == WriteMode::WriteBack {
            return refused("others may write to SOURCE: write-back would lose that; use writethrough or readonly");
        }
        if self.options.cache.mode == WriteMode::ReadOnly && mode != WriteMode::ReadOnly {
            return refused("it was mounted read-only: unmount it and mount it again with another mode");
        }
        if mode == WriteMode::ReadOnly {
            // The tree must refuse writes before the cache does, because its error is `EROFS`, which programs expect.
            let before = self.file_system.read_only.swap(true, Ordering::AcqRel);
            if self.file_system.passed.is_written() {
                self.file_system.read_only.store(before, Ordering::Release);
                return refused("a program can write to a file that the kernel passes through: close that file first");
            }
        }
        self.cache().set_mode(mode).await?;
        self.file_system.read_only.store(mode == WriteMode::ReadOnly, Ordering::Release);
        Ok(())
    }

    /// Returns the parts of a file, or of the files below a directory, that are in memory: a list of the `files_max`
    /// files with the most cached bytes, and the number of all files with cached bytes.
    pub fn show(
        &self,
        path: &[u8],
        range: Range<u64>,
        files_max: usize,
        ranges_max: usize,
    ) -> Result<(Vec<HeldFile>, usize), PathError> {
        let found = self.walk(path)?;
        if !found.is_directory() {
            let size_bytes = found.stat.st_size as u64;
            let holding = match self.known(&found).and_then(|node| node.file()) {
                Some(file) => self.holding(path, &file, &range, ranges_max)?,
                None => RangeResidency { size_bytes, ..RangeResidency::default() },
            };
            return Ok((vec![HeldFile { path: shown(path), holding }], 1));
        }
        let mut files = Vec::new();
        for (below, node) in self.below(path) {
            let Some(file) = node.file() else { continue };
            // Skips a file that the kernel has just forgotten.
            let Ok(holding) = self.holding(path, &file, &range, ranges_max) else { continue };
            if holding.cached_bytes + holding.pinned_bytes > 0 {
                files.push(HeldFile { path: below, holding });
            }
        }
        let count = files.len();
        files.sort_by(|a, b| b.holding.cached_bytes.cmp(&a.holding.cached_bytes).then(a.path.cmp(&b.path)));
        files.truncate(files_max);
        Ok((files, count))
    }

    fn holding(
        &self,
        path: &[u8],
        file: &super::source::CachedFile,
        range: &Range<u64>,
        ranges_max: usize,
    ) -> Result<RangeResidency, PathError> {
        let held = self.cache().holding(file.id, range.start, range.end - range.start, ranges_max);
        held.map_err(|source| PathError::Failed { path: shown_text(path), source })
    }

    /// Drops a range of a file, or of all files below a directory, from memory, except dirty and pinned blocks.
    pub fn drop_path(&self, path: &[u8], range: Range<u64>) -> Result<DropReport, PathError> {
        let mut dropped = DropReport::default();
        for node in self.meant(path)? {
            let Some(file) = node.file() else { continue };
            let Ok(one) = self.cache().drop_clean(file.id, range.start, range.end - range.start) else { continue };
            dropped.bytes += one.bytes;
            dropped.dirty_bytes += one.dirty_bytes;
            dropped.pinned_bytes += one.pinned_bytes;
        }
        Ok(dropped)
    }

    /// Pins a range of a file in memory until it is unpinned, and reads its missing blocks; returns how many bytes were
    /// not pinned before. The range ends at the end of the file at the latest.
    ///
    /// *Errors*: [`PathError::Invalid`] if the path is not a regular file; [`PathError::Failed`] with
    /// [`DeviceErrorKind::Full`] if too much would be pinned.
    pub async fn pin(&self, path: &[u8], range: Range<u64>) -> Result<u64, PathError> {
        let file_system = &self.file_system;
        let found = self.walk(path)?;
        if found.stat.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(invalid(path, "it is no file; pin the files below it one by one"));
        }
        let failed = |source| PathError::Failed { path: shown_text(path), source };
        let of_system = |error: Errno| failed(of_errno(error, path));
        let mut above = self.look_up_all(path).map_err(of_system)?;
        let Some(node) = above.pop().filter(|node| Some(node.number) == self.known(&found).map(|node| node.number))
        else {
            self.forget_all(&above);
            return Err(PathError::Absent { path: shown_text(path) });
        };
        let pinned = match file_system.cached_file(&node).map_err(of_system) {
            Ok(file) => {
                let size = file_system.nodes.attributes(&node).map_or(0, |attributes| attributes.size);
                let length = range.end.min(size).saturating_sub(range.start);
                let pinned = if length == 0 { Ok(0) } else { self.cache().pin(file.id, range.start, length).await };
                pinned.map_err(failed)
            }
            Err(error) => Err(error),
        };
        // The kernel may forget the node from now on. The pin keeps one look-up of the node, and only one, and of each
        // directory above it, by whose names it is opened.
        above.push(node.clone());
        let mut all = self.pinned();
        if pinned.is_ok() && !all.contains_key(&node.number) {
            all.insert(node.number, above);
        } else {
            drop(all);
            self.forget_all(&above);
        }
        pinned
    }

    /// Unpins a range of a file, or of all files below a directory; returns how many bytes were pinned.
    pub fn unpin(&self, path: &[u8], range: Range<u64>) -> Result<u64, PathError> {
        let mut unpinned = 0;
        for node in self.meant(path)? {
            let Some(file) = node.file() else { continue };
            let Ok(bytes) = self.cache().unpin(file.id, range.start, range.end - range.start) else { continue };
            unpinned += bytes;
            let is_left = self.cache().holding(file.id, 0, u64::MAX, 0).is_ok_and(|held| held.pinned_bytes > 0);
            let released = if is_left { None } else { self.pinned().remove(&node.number) };
            self.forget_all(&released.unwrap_or_default());
        }
        Ok(unpinned)
    }

    /// Looks up each name of a path, which counts as a look-up of each node.
    fn look_up_all(&self, path: &[u8]) -> Result<Vec<Arc<TreeNode>>, Errno> {
        let mut found: Vec<Arc<TreeNode>> = Vec::new();
        let nodes = &self.file_system.nodes;
        let root = nodes.get(ROOT)?;
        for name in names_in(path) {
            let parent = found.last().unwrap_or(&root);
            let name = CString::new(name).map_err(|_| Errno::new(libc::EINVAL))?;
            match nodes.look_up(parent, &name) {
                Ok((node, _)) => found.push(node),
                Err(error) => {
                    self.forget_all(&found);
                    return Err(error);
                }
            }
        }
        Ok(found)
    }

    fn forget_all(&self, nodes: &[Arc<TreeNode>]) {
        for node in nodes.iter().rev() {
            nectary_fuse::FuseFileSystem::forget(&*self.file_system, node.number, 1);
        }
    }

    fn pinned(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Vec<Arc<TreeNode>>>> {
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The known nodes that a path selects: a file, or all nodes below a directory.
    fn meant(&self, path: &[u8]) -> Result<Vec<Arc<TreeNode>>, PathError> {
        let found = self.walk(path)?;
        match found.is_directory() {
            true => Ok(self.below(path).into_iter().map(|(_, node)| node).collect()),
            false => Ok(self.known(&found).into_iter().collect()),
        }
    }

    fn known(&self, found: &PathNode) -> Option<Arc<TreeNode>> {
        self.file_system.nodes.find(&found.descriptor)
    }

    /// The known nodes below a directory, with their paths below the tree.
    fn below(&self, path: &[u8]) -> Vec<(PathBuf, Arc<TreeNode>)> {
        let prefix = shown(path);
        let nodes = self.file_system.nodes.all().into_iter();
        nodes
            .filter_map(|node| {
                let below = self.path_of(&node)?;
                below.starts_with(&prefix).then_some((below, node))
            })
            .collect()
    }

    /// The path of a node below the tree; of a deleted file it is not known.
    pub(super) fn path_of(&self, node: &Arc<TreeNode>) -> Option<PathBuf> {
        self.file_system.nodes.path_of(node)
    }

    /// Opens the node of a path below the tree.
    fn walk(&self, path: &[u8]) -> Result<PathNode, PathError> {
        if path.len() > PATH_BYTES_MAX {
            return Err(invalid(path, &format!("a path has at most {PATH_BYTES_MAX} bytes")));
        }
        let failed = |error: Errno| match error.number() {
            libc::ENOENT | libc::ENOTDIR => PathError::Absent { path: shown_text(path) },
            _ => PathError::Failed { path: shown_text(path), source: of_errno(error, path) },
        };
        let root = self.file_system.nodes.get(ROOT).map_err(failed)?;
        let nodes = &self.file_system.nodes;
        let root = nodes.descriptor(&root).map_err(failed)?;
        let mut descriptor = root.try_clone().map_err(|error| failed(error.into()))?;
        for name in names_in(path) {
            if name == b".." {
                return Err(invalid(path, "it has \"..\" in it: name it as it is below the mounted directory"));
            }
            if name.len() > NAME_BYTES_MAX {
                return Err(invalid(path, &format!("a name in it is longer than {NAME_BYTES_MAX} bytes")));
            }
            let Ok(name) = CString::new(name) else { return Err(invalid(path, "it has a zero byte in it")) };
            descriptor = nodes.opening(|| sys::look_up(&descriptor, &name)).map_err(failed)?;
            if sys::stat(&descriptor).map_err(failed)?.st_mode & libc::S_IFMT == libc::S_IFLNK {
                return Err(invalid(path, "it has a symbolic link in it: name what that points to"));
            }
        }
        let stat = sys::stat(&descriptor).map_err(failed)?;
        Ok(PathNode { descriptor, stat })
    }
}

impl PathNode {
    fn is_directory(&self) -> bool {
        self.stat.st_mode & libc::S_IFMT == libc::S_IFDIR
    }
}

fn of_errno(error: Errno, path: &[u8]) -> nectary_block::Error {
    let error = std::io::Error::from_raw_os_error(error.number());
    nectary_block::Error::from_os(&error, &shown_text(path), DeviceOperation::Open)
}

fn invalid(path: &[u8], problem: &str) -> PathError {
    PathError::Invalid { path: shown_text(path), problem: problem.to_owned() }
}

/// The names in a path, without empty names and without `.`.
fn names_in(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".")
}

/// A path without empty names and without `.`.
fn shown(path: &[u8]) -> PathBuf {
    names_in(path).map(std::ffi::OsStr::from_bytes).collect()
}

/// The beginning of a path, for messages.
fn shown_text(path: &[u8]) -> String {
    const SHOWN_BYTES_MAX: usize = 200;
    let text = String::from_utf8_lossy(&path[..path.len().min(SHOWN_BYTES_MAX)]).into_owned();
    if path.len() > SHOWN_BYTES_MAX { text + "…" } else { text }
}
