//! Finds the file to which a descriptor refers, and the blocks to which a transfer refers.
//!
//! Owns: the table of files, and the count of distinct blocks. Promises: files are identified by device, inode and time
//! of birth, so a reused inode is another file. Generated files (such as those of `/proc`), and everything that is
//! neither a regular file nor a block device, are ignored.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use super::sys::{self, FileStatus};
use crate::formats::nectary::{FILES_MAX, FileEntry, FileKind};

/// File systems whose files are generated when they are read: proc, sysfs, cgroup, cgroup2, debugfs, tracefs,
/// securityfs, bpf, binfmt_misc, configfs, devpts, nsfs.
const MADE_UP: [i64; 12] = [
    0x9fa0,
    0x6265_6572,
    0x0027_e0eb,
    0x6367_7270,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
    0xcafe_4a11,
    0x4249_4e4d,
    0x6265_6570,
    0x1cd1,
    0x6e73_6673,
];

/// The identity of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct InodeKey {
    is_block_device: bool,
    device: u64,
    inode: u64,
    born_ns: u64,
}

/// The result of identifying a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IdentifyResult {
    Number(u32),
    MadeUp,
    BeyondBounds,
}

/// An open file at the time of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CallFile {
    /// The number of the file in the trace; `None` beyond the bounds.
    pub(super) number: Option<u32>,
    /// The current size of the file. *Units*: bytes.
    pub(super) size_bytes: u64,
}

/// The table of files.
#[derive(Debug)]
pub(super) struct RecordedFiles {
    known: HashMap<InodeKey, IdentifyResult>,
    /// Paths below this folder are shown relative to it.
    folder: PathBuf,
}

impl RecordedFiles {
    /// An empty table; paths below `folder` are shown relative to it.
    pub(super) fn new(folder: PathBuf) -> RecordedFiles {
        RecordedFiles { known: HashMap::new(), folder }
    }

    /// The file to which `fd` refers; `add` gives a new file its number. *Returns* `None` for a generated file (such as
    /// one of `/proc`), and for everything that is neither a regular file nor a block device.
    pub(super) fn find(
        &mut self,
        fd: BorrowedFd<'_>,
        add: impl FnOnce(&FileEntry) -> io::Result<Option<u32>>,
    ) -> io::Result<Option<CallFile>> {
        let status = sys::status(fd)?;
        if !status.is_regular && !status.is_block_device {
            return Ok(None);
        }
        let FileStatus { is_block_device, device, inode, born_ns, .. } = status;
        let size_bytes = if is_block_device { sys::device_bytes(fd)? } else { status.size_bytes };
        let identity = InodeKey { is_block_device, device, inode, born_ns };
        let known = match self.known.get(&identity) {
            Some(&known) => known,
            None if self.known.len() >= FILES_MAX as usize => IdentifyResult::BeyondBounds,
            None => {
                let known = if !is_block_device && MADE_UP.contains(&sys::file_system(fd)?) {
                    IdentifyResult::MadeUp
                } else {
                    let kind = if is_block_device { FileKind::BlockDevice } else { FileKind::Regular };
                    let entry = FileEntry { kind, device, inode, size_bytes, name: self.name(fd) };
                    add(&entry)?.map_or(IdentifyResult::BeyondBounds, IdentifyResult::Number)
                };
                self.known.insert(identity, known);
                known
            }
        };
        Ok(match known {
            IdentifyResult::Number(number) => Some(CallFile { number: Some(number), size_bytes }),
            IdentifyResult::BeyondBounds => Some(CallFile { number: None, size_bytes }),
            IdentifyResult::MadeUp => None,
        })
    }

    /// The path of an open file, in the form in which the trace records it.
    pub(super) fn name(&self, fd: BorrowedFd<'_>) -> String {
        let path = fs::read_link(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())).unwrap_or_default();
        let shown = path.strip_prefix(&self.folder).ok().filter(|rest| *rest != Path::new("")).unwrap_or(&path);
        let shown = shown.to_string_lossy();
        // The kernel adds " (deleted)" to the names of deleted files.
        shown.strip_suffix(" (deleted)").filter(|_| !path.exists()).unwrap_or(&shown).to_owned()
    }
}

/// The blocks of `bytes` bytes at `offset`, as the first block and the number of blocks.
pub(super) fn blocks(offset: u64, bytes: u64, block_bytes: u32) -> (u64, u64) {
    let block_bytes = u64::from(block_bytes);
    let first = offset / block_bytes;
    if bytes == 0 {
        return (first, 0);
    }
    (first, offset.saturating_add(bytes - 1) / block_bytes - first + 1)
}

/// The number of blocks that one entry of [`DistinctBlocks`] covers.
const GROUP_BLOCKS: u64 = 512;
/// The maximum number of entries, which take about 200 MB. They are enough for one file of 4 TiB in blocks of 8 KiB, or
/// for a million small files.
const GROUPS_MAX: usize = 1 << 20;

/// Counts the distinct blocks that were referenced.
#[derive(Debug, Default)]
pub(super) struct DistinctBlocks {
    groups: HashMap<(u32, u64), [u64; 8]>,
    count: u64,
    is_full: bool,
}

impl DistinctBlocks {
    /// Adds `count` blocks of a file from `first`.
    pub(super) fn add(&mut self, file: u32, first: u64, count: u64) {
        for block in first..first + count {
            let group = (file, block / GROUP_BLOCKS);
            if self.groups.len() >= GROUPS_MAX && !self.groups.contains_key(&group) {
                self.is_full = true;
                return;
            }
            let bits = self.groups.entry(group).or_default();
            let (word, bit) = ((block % GROUP_BLOCKS / 64) as usize, 1 << (block % 64));
            self.count += u64::from(bits[word] & bit == 0);
            bits[word] |= bit;
        }
    }

    /// The number of distinct blocks, and whether this is only a lower bound.
    pub(super) fn count(&self) -> (u64, bool) {
        (self.count, self.is_full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfer_references_every_touched_block() {
        assert_eq!(blocks(0, 0, 8192), (0, 0));
        assert_eq!(blocks(0, 1, 8192), (0, 1));
        assert_eq!(blocks(8191, 1, 8192), (0, 1));
        assert_eq!(blocks(8191, 2, 8192), (0, 2));
        assert_eq!(blocks(8192, 16384, 8192), (1, 2));
        assert_eq!(blocks(u64::MAX, 5, 512), (u64::MAX / 512, 1));
    }

    /// Distinct blocks are counted once in their file.
    #[test]
    fn distinct_blocks_count_once() {
        let mut distinct = DistinctBlocks::default();
        distinct.add(1, 0, 1000);
        distinct.add(1, 500, 1000);
        distinct.add(2, 0, 3);
        assert_eq!(distinct.count(), (1503, false));
    }

    /// Files are counted, and files that the kernel makes up are not.
    #[test]
    fn pseudo_files_are_not_counted() {
        let mut files = RecordedFiles::new(PathBuf::from(env!("CARGO_MANIFEST_DIR")));
        let mut entries = Vec::new();
        let mut find = |path: &str| {
            let file = fs::File::open(path).unwrap();
            let found = files.find(file.as_fd(), |entry| {
                entries.push(entry.clone());
                Ok(Some(entries.len() as u32 - 1))
            });
            found.unwrap()
        };
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let size_bytes = fs::metadata(path).unwrap().len();
        assert_eq!(find(path), Some(CallFile { number: Some(0), size_bytes }));
        assert_eq!(find(path), Some(CallFile { number: Some(0), size_bytes }));
        assert_eq!(find("/proc/self/status"), None);
        assert_eq!(find("/"), None);
        assert_eq!(find("/dev/null"), None);
        assert_eq!(entries.len(), 1);
        assert_eq!((entries[0].name.as_str(), entries[0].kind), ("Cargo.toml", FileKind::Regular));
    }
}
