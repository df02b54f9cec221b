//! Locks of ranges: which ones this device holds, and whether another user holds one.
//!
//! Owns: the ranges that this device has locked. Promises: a range counts as free only if neither another open file
//! description nor this device holds a lock in it. The domain of a device names the inode whose locks it sees; it is
//! absent where the kernel does not keep the locks itself, because a file server may drop them while their holder
//! lives. The functions block, so they are called on the blocking pool.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::sys;

/// The file systems whose locks the kernel keeps itself: ext2 to ext4, XFS, Btrfs, F2FS, bcachefs, ZFS, tmpfs, ramfs,
/// overlayfs. *Source*: `statfs(2)`, and the file systems' sources for the numbers that it does not list.
const LOCAL: [i64; 9] =
    [0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010, 0xCA45_1A4E, 0x2FC1_2FC1, 0x0102_1994, 0x8584_58F6, 0x794C_7630];

/// The locked ranges of a device: offset and length of each.
#[derive(Default)]
pub(super) struct OwnLocks(Mutex<Vec<(u64, u64)>>);

impl OwnLocks {
    fn ranges(&self) -> MutexGuard<'_, Vec<(u64, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a range before it is locked.
    pub fn add(&self, offset: u64, length: u64) {
        let mut ranges = self.ranges();
        if !ranges.contains(&(offset, length)) {
            ranges.push((offset, length));
        }
    }

    /// Forgets a range after it was unlocked, or was not locked.
    pub fn remove(&self, offset: u64, length: u64) {
        self.ranges().retain(|range| *range != (offset, length));
    }

    fn overlaps(&self, offset: u64, length: u64) -> bool {
        self.ranges().iter().any(|(start, bytes)| *start < offset + length && offset < start + bytes)
    }

    /// Whether somebody holds a lock in the range: this device, or another open file description.
    pub fn is_locked(&self, file: &File, offset: u64, length: u64) -> io::Result<bool> {
        // The kernel does not report locks of the same description.
        Ok(self.overlaps(offset, length) || sys::is_range_locked(file, offset, length)?)
    }
}

/// Names the inode whose locks this descriptor sees. `None`: the kernel does not keep them itself.
pub(super) fn domain(file: &File) -> Option<String> {
    let status = file.metadata().ok()?;
    // The locks of a disk are those of its node, whatever file system the node is in.
    let kind = match status.file_type().is_block_device() {
        true => 0,
        false => sys::file_system(file).ok().filter(|kind| LOCAL.contains(kind))?,
    };
    Some(format!("{kind:x}:{:x}:{:x}", status.dev(), status.ino()))
}
