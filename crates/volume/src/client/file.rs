//! One file in use: what is known about it, and what is written but not committed.
//!
//! Owns: the state of a file behind its lock. Promises: readers share the lock and a writer holds it alone, during
//! their I/O, so that no read sees half of a write and no block is given back while it is read. Leaves to others: I/O
//! (`data`), commits (`commit`).

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, RwLock};

use super::extents::{Extents, Piece, Place};
use crate::format::{BLOCK_BYTES, Inode};
use crate::protocol::{Attributes, FileId, Mapped, Shape};
use crate::tokens::{Holding, Ranges};

/// The unit of the disk. *Units*: bytes.
pub(crate) const BLOCK: u64 = BLOCK_BYTES as u64;

/// A file in use.
pub(crate) struct File {
    /// Which.
    pub id: FileId,
    /// Its contents.
    pub content: RwLock<Content>,
    /// What `stat` shows in addition to the server's attributes.
    shown: Mutex<Shown>,
    /// Handles.
    users: AtomicU64,
    /// Whether the server knows that the session has it open. Held while it is told.
    pub at_server: tokio::sync::Mutex<bool>,
    /// Whether the server knows that a program reads it with `O_DIRECT`.
    pub is_direct: AtomicBool,
    /// Whether other hosts do so: new ends are pushed to them.
    pub is_watched: AtomicBool,
    /// The token of its data.
    pub hold: Hold,
    /// Locks that programs of this host hold.
    locks: Mutex<Ranges>,
}

/// The token of a file's data: its bytes, its size, its map, its time of modification.
#[derive(Default)]
pub(crate) struct Hold {
    state: Mutex<Holding>,
    /// The state changed: who waits looks again.
    pub changed: Notify,
    /// Held while the token is given back or data are committed for others, so that only one task does so at a time.
    pub giving: tokio::sync::Mutex<()>,
}

impl Hold {
    /// The state. The lock must not be held during a wait.
    pub fn state(&self) -> MutexGuard<'_, Holding> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is known of a file's contents.
#[derive(Default)]
pub(crate) struct Content {
    /// Whether the following fields are valid; if not, the next use requests them from the server. Only under a token.
    pub is_known: bool,
    /// As the server last said.
    pub inode: Inode,
    /// With what was written since. *Units*: bytes.
    pub size: u64,
    /// The known part of the map of committed blocks.
    pub map: Extents,
    /// What was written and is not committed.
    pub fresh: Extents,
    /// The time of the last uncommitted write.
    pub modified_ns: Option<i64>,
    /// The last block that was allocated for it, to continue there.
    pub last_block: Option<u64>,
    /// Why an earlier commit failed; the next `fsync` says so.
    pub failed: Option<i32>,
}

/// What `stat` shows of a file that is not committed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Shown {
    /// Whether there is something to commit.
    pub is_dirty: bool,
    /// *Units*: bytes.
    pub size: u64,
    /// *Units*: nanoseconds since 1970.
    pub modified_ns: i64,
    /// Blocks that are not committed.
    pub blocks: u64,
}

impl File {
    /// A file that nobody has open yet.
    pub fn new(id: FileId, is_open: bool) -> File {
        File {
            id,
            content: RwLock::default(),
            shown: Mutex::default(),
            users: AtomicU64::new(0),
            at_server: tokio::sync::Mutex::new(is_open),
            is_direct: AtomicBool::new(false),
            is_watched: AtomicBool::new(false),
            hold: Hold::default(),
            locks: Mutex::default(),
        }
    }

    /// Locks that programs of this host hold.
    pub fn locks(&self) -> MutexGuard<'_, Ranges> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more handle.
    pub fn add_user(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    /// One handle less; whether it was the last.
    pub fn remove_user(&self) -> bool {
        self.users.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Whether somebody has it open.
    pub fn is_used(&self) -> bool {
        self.users.load(Ordering::Acquire) > 0
    }

    /// What `stat` shows.
    pub fn shown(&self) -> Shown {
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows the contents as they are now; called before their lock is released.
    pub fn show(&self, content: &Content) {
        let shown = Shown {
            is_dirty: content.is_dirty(),
            size: content.size,
            modified_ns: content.modified_ns.unwrap_or(0),
            blocks: content.fresh.blocks(),
        };
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = shown;
    }

    /// Attributes as the server said, with what is not committed.
    pub fn overlay(&self, attributes: &mut Attributes) {
        let shown = self.shown();
        if !shown.is_dirty {
            return;
        }
        let inode = &mut attributes.inode;
        inode.size = shown.size;
        inode.blocks += shown.blocks;
        let [_, modified, changed, _] = &mut inode.times_ns;
        if shown.modified_ns != 0 {
            *modified = (*modified).max(shown.modified_ns);
            *changed = (*changed).max(shown.modified_ns);
        }
    }
}

impl Content {
    /// Takes what the server says; the map is requested when it is needed.
    pub fn learn(&mut self, inode: Inode) {
        self.is_known = true;
        self.size = inode.size;
        self.inode = inode;
    }

    /// Takes what came with the token, if nothing is known yet.
    pub fn learn_shape(&mut self, shape: Shape) {
        if !self.is_known {
            self.learn(shape.attributes.inode);
            self.learn_map(0..shape.answered_to, &shape.extents);
        }
    }

    /// Forgets what the server said, before another host may change it. Everything must be committed.
    pub fn forget(&mut self) {
        self.is_known = false;
        self.map.clear();
    }

    /// Whether there is something to commit.
    pub fn is_dirty(&self) -> bool {
        !self.fresh.is_empty() || self.modified_ns.is_some() || self.size != self.inode.size
    }

    /// Where blocks are; uncommitted writes hide the map. `None`: the map must be requested first.
    pub fn resolve(&self, blocks: Range<u64>) -> Option<Vec<Piece>> {
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

    /// Adds a part of the map; a range without an extent is a hole.
    pub fn learn_map(&mut self, range: Range<u64>, extents: &[Mapped]) {
        self.map.set(range.clone(), Place::Hole);
        for extent in extents {
            let (start, end) = (extent.file_block, extent.file_block.saturating_add(extent.blocks.into()));
            let (cut_start, cut_end) = (start.max(range.start), end.min(range.end));
            if cut_start < cut_end {
                let block = extent.block + (cut_start - start);
                let place = if extent.is_unwritten { Place::Unwritten(block) } else { Place::Data(block) };
                self.map.set(cut_start..cut_end, place);
            }
        }
    }
}
