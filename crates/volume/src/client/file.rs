//! The state of one file in use: its known contents, and the data that is written but not committed.
//!
//! Owns: this state, and its lock. Promises: a reader shares the lock during its I/O, and a writer holds it
//! exclusively. So no read sees half of a write, and no block is freed while it is read. Leaves to others: I/O
//! (`data`), commits (`commit`).

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, RwLock};

use super::extents::{ExtentPiece, ExtentPlace, FileExtents};
use crate::format::{BLOCK_BYTES, Inode};
use crate::protocol::{FILE_BLOCKS_MAX, FileAccess, FileId, FileShape, InodeAttributes, MappedExtent};
use crate::tokens::{LockedRanges, TokenHolding};

/// The unit of the disk. *Units*: bytes.
pub(crate) const BLOCK: u64 = BLOCK_BYTES as u64;

/// A file in use.
pub(crate) struct ActiveFile {
    /// The identity of the file.
    pub id: FileId,
    /// The contents of the file.
    pub content: RwLock<FileContent>,
    /// The size, time and blocks that `stat` shows instead of the server's while data is uncommitted.
    shown: Mutex<ShownAttributes>,
    /// The number of handles, and of calls without a handle that use the file or wait for its token.
    users: AtomicU64,
    /// Whether the server knows that the session has the file open. Locked while the server is told.
    pub at_server: tokio::sync::Mutex<bool>,
    /// Whether the server knows that a program of this host reads the file with `O_DIRECT`.
    pub is_direct: AtomicBool,
    /// Whether other hosts read the file with `O_DIRECT`, so that new ends must be pushed to them.
    pub is_watched: AtomicBool,
    /// Whether a program has cut the file to nothing: its next close commits what was written since.
    pub is_emptied: AtomicBool,
    /// The token of the file's data.
    pub hold: DataToken,
    /// The last access that was noted for the server.
    accessed: Mutex<Option<FileAccess>>,
    /// The file locks of this host's programs.
    locks: Mutex<LockedRanges>,
    /// The commits that failed in the background.
    failures: Mutex<CommitFailures>,
}

/// The data token of a file: it covers bytes, size, map and modification time.
pub(crate) struct DataToken {
    state: Mutex<TokenHolding>,
    /// Notified when the state changes: waiting calls check it again.
    pub changed: Notify,
    /// Locked while the token is given back or data is committed for others, so that only one task does this at a time.
    pub giving: tokio::sync::Mutex<()>,
}

impl DataToken {
    /// Makes the state of a token that is not held; grants up to this number may have been returned.
    fn after(returned_to: u64) -> DataToken {
        let state = Mutex::new(TokenHolding::after(returned_to));
        DataToken { state, changed: Notify::new(), giving: tokio::sync::Mutex::default() }
    }

    /// Locks and returns the state. The lock must not be held across an await.
    pub fn state(&self) -> MutexGuard<'_, TokenHolding> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The known contents of a file.
#[derive(Default)]
pub(crate) struct FileContent {
    /// Whether the following fields are valid; if not, they are requested from the server before their next use. They
    /// are valid only while the token is held.
    pub is_known: bool,
    /// The inode as the server last reported it.
    pub inode: Inode,
    /// The size, including uncommitted writes. *Units*: bytes.
    pub size: u64,
    /// The known part of the map of committed blocks.
    pub map: FileExtents,
    /// Blocks that are written and not committed, and reserved blocks that were taken and not written yet, which are
    /// unwritten.
    pub fresh: FileExtents,
    /// The time of the last uncommitted write.
    pub modified_ns: Option<i64>,
    /// The last block that was allocated for the file; the next allocation continues behind it.
    pub last_block: Option<u64>,
    /// The block behind the reserved blocks that were taken last, and their number; the next ones are taken ahead if
    /// they follow. *Units*: blocks of the file.
    pub taken_to: u64,
    pub taken_ahead: u64,
}

/// The commits of a file that failed in the background. Each handle that was open then reports this once; if there was
/// none, the next one that is opened does.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CommitFailures {
    /// The number of failed commits.
    count: u64,
    /// The error number of the last one.
    errno: i32,
    /// Whether a handle has reported the last one.
    is_reported: bool,
}

impl CommitFailures {
    /// Notes a failed commit.
    pub fn note(&mut self, errno: i32) {
        (self.count, self.errno, self.is_reported) = (self.count + 1, errno, false);
    }

    /// Returns the number of failures so far. A call compares with it later.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the number of failures that a new handle does not report.
    pub fn known_to_new(&self) -> u64 {
        self.count - u64::from(self.count > 0 && !self.is_reported)
    }

    /// Returns the error number of a failure after the first `count` ones.
    pub fn since(&self, count: u64) -> Option<i32> {
        (self.count > count).then_some(self.errno)
    }

    /// Returns the error number of a failure that a handle has not reported yet.
    pub fn report(&mut self, reported: &AtomicU64) -> Option<i32> {
        let errno = self.since(reported.swap(self.count, Ordering::AcqRel));
        self.is_reported |= errno.is_some();
        errno
    }
}

/// What `stat` shows of a file with uncommitted data.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ShownAttributes {
    /// Whether there is uncommitted data.
    pub is_dirty: bool,
    /// The size. *Units*: bytes.
    pub size: u64,
    /// The modification time. *Units*: nanoseconds since 1970.
    pub modified_ns: i64,
    /// The number of blocks that are not committed.
    pub blocks: u64,
}

impl ActiveFile {
    /// Makes the state of a file without handles. An earlier state of it may have returned grants up to this number.
    pub fn new(id: FileId, is_open: bool, returned_to: u64) -> ActiveFile {
        ActiveFile {
            id,
            content: RwLock::default(),
            shown: Mutex::default(),
            users: AtomicU64::new(0),
            at_server: tokio::sync::Mutex::new(is_open),
            is_direct: AtomicBool::new(false),
            is_watched: AtomicBool::new(false),
            is_emptied: AtomicBool::new(false),
            hold: DataToken::after(returned_to),
            accessed: Mutex::default(),
            locks: Mutex::default(),
            failures: Mutex::default(),
        }
    }

    /// Locks and returns the commits that failed in the background.
    pub fn failures(&self) -> MutexGuard<'_, CommitFailures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks and returns the file locks of this host's programs.
    pub fn locks(&self) -> MutexGuard<'_, LockedRanges> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks and returns the last access that was noted.
    pub fn accessed(&self) -> MutexGuard<'_, Option<FileAccess>> {
        self.accessed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds one user.
    pub fn add_user(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    /// Removes one user; returns whether it was the last.
    pub fn remove_user(&self) -> bool {
        self.users.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Whether there is any user. The token of a file without users is given back, so a call that waits for a token, or
    /// needs it to stay, must be a user.
    pub fn is_used(&self) -> bool {
        self.users.load(Ordering::Acquire) > 0
    }

    /// Whether there is exactly one user.
    pub fn has_one_user(&self) -> bool {
        self.users.load(Ordering::Acquire) == 1
    }

    /// Returns what `stat` shows.
    pub fn shown(&self) -> ShownAttributes {
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes `stat` show these contents; called before the contents' lock is released.
    pub fn show(&self, content: &FileContent) {
        let shown = ShownAttributes {
            is_dirty: content.is_dirty(),
            size: content.size,
            modified_ns: content.modified_ns.unwrap_or(0),
            blocks: content.fresh.blocks(),
        };
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = shown;
    }

    /// Updates the server's attributes by what is not committed, if there is anything; returns whether there is.
    pub fn overlay(&self, attributes: &mut InodeAttributes) -> bool {
        let shown = self.shown();
        if !shown.is_dirty {
            return false;
        }
        let inode = &mut attributes.inode;
        inode.size = shown.size;
        inode.blocks += shown.blocks;
        let [_, modified, changed, _] = &mut inode.times_ns;
        if shown.modified_ns != 0 {
            *modified = (*modified).max(shown.modified_ns);
            *changed = (*changed).max(shown.modified_ns);
        }
        true
    }
}

impl FileContent {
    /// Stores the attributes from the server; the map is requested when it is needed.
    pub fn learn(&mut self, inode: Inode) {
        self.is_known = true;
        self.size = inode.size;
        if inode.blocks == 0 {
            self.map.set(0..FILE_BLOCKS_MAX, ExtentPlace::Hole);
        }
        self.inode = inode;
    }

    /// Stores attributes and extents that came with the token, if none are known yet.
    pub fn learn_shape(&mut self, shape: FileShape) {
        if !self.is_known {
            self.learn(shape.attributes.inode);
            self.learn_map(0..shape.answered_to, &shape.extents);
        }
    }

    /// Forgets what the server reported, before another host may change it. All data must be committed.
    pub fn forget(&mut self) {
        self.is_known = false;
        self.map.clear();
    }

    /// Whether there is anything to commit: data, or reserved blocks that were taken.
    pub fn is_dirty(&self) -> bool {
        !self.fresh.is_empty() || self.modified_ns.is_some() || self.size != self.inode.size
    }

    /// Whether there is uncommitted data.
    pub fn has_data(&self) -> bool {
        self.modified_ns.is_some()
            || self.size != self.inode.size
            || self.fresh.iter().any(|piece| matches!(piece.place, Some(ExtentPlace::Data(_))))
    }

    /// Finds the places of blocks; uncommitted writes take precedence over the map. `None`: a part of the map must be
    /// requested first.
    pub fn resolve(&self, blocks: Range<u64>) -> Option<Vec<ExtentPiece>> {
        let mut pieces = Vec::new();
        for piece in self.fresh.look(blocks) {
            match piece.place {
                Some(_) => pieces.push(piece),
                None => {
                    let mapped = self.map.look(piece.start..piece.start + piece.blocks);
                    if mapped.iter().any(|piece| piece.place.is_none()) {
                        return None;
                    }
                    pieces.extend(mapped);
                }
            }
        }
        Some(pieces)
    }

    /// Adds a part of the map; blocks of the range that are in no extent are holes.
    pub fn learn_map(&mut self, range: Range<u64>, extents: &[MappedExtent]) {
        self.map.set(range.clone(), ExtentPlace::Hole);
        for extent in extents {
            let (start, end) = (extent.file_block, extent.file_block.saturating_add(extent.blocks.into()));
            let (cut_start, cut_end) = (start.max(range.start), end.min(range.end));
            if cut_start < cut_end {
                let block = extent.block + (cut_start - start);
                let place = if extent.is_unwritten { ExtentPlace::Unwritten(block) } else { ExtentPlace::Data(block) };
                self.map.set(cut_start..cut_end, place);
            }
        }
    }
}
