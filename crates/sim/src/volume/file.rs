//! A client's knowledge of a file, and its locks on the file.
//!
//! Owns: the state behind a token: contents, pages of the kernel, names. It follows `client/file.rs`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use nectary_volume::protocol::Token;
use nectary_volume::tokens::TokenHolding;

use super::client::MountModel;
use super::servers::image::InodeModel;

/// A page of the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KernelPage {
    pub value: u64,
    pub is_dirty: bool,
    /// Whether it is being read or written back.
    pub is_locked: bool,
    /// The block to which it will be written back. The store reserves this block, so that the write-back cannot find
    /// the disk full.
    pub reserved: Option<u32>,
}

/// A write-back that waits because no I/O is allowed: its value, and the block that is reserved for it.
pub type Kept = (u64, Option<u32>);

/// A client's knowledge of a file's contents.
#[derive(Debug, Clone, Default)]
pub struct FileContentModel {
    pub is_known: bool,
    pub inode: InodeModel,
    /// The size, including uncommitted writes. *Units*: blocks.
    pub size: u64,
    /// The known part of the committed map; `None` is a hole.
    pub map: BTreeMap<u64, Option<u32>>,
    /// The writes that are not committed: for each block of the file, its block on the disk and its value.
    pub fresh: BTreeMap<u64, (u32, u64)>,
    pub is_modified: bool,
    /// Whether a commit failed.
    pub failed: bool,
}

impl FileContentModel {
    pub fn is_dirty(&self) -> bool {
        !self.fresh.is_empty() || self.is_modified || self.size != self.inode.size
    }

    pub fn learn(&mut self, inode: InodeModel) {
        self.is_known = true;
        self.size = inode.size;
        self.inode = inode;
    }

    pub fn forget(&mut self) {
        self.is_known = false;
        self.map.clear();
    }
}

/// The state on one client that a token protects.
pub struct ProtectedObject {
    pub token: Token,
    pub hold: RefCell<TokenHolding>,
    /// Whether a task is giving the token back, or committing because other hosts wait.
    giving: Cell<bool>,
    pub content: RefCell<FileContentModel>,
    readers: Cell<u32>,
    is_written: Cell<bool>,
    /// Pages whose write-back waits in memory because no I/O is allowed.
    pub kept: RefCell<BTreeMap<u64, Kept>>,
    pub pages: RefCell<BTreeMap<u64, KernelPage>>,
    /// The number of programs that have the file mapped. `is_excluded` is set while a program writes without a map;
    /// both cannot be the case at the same time.
    mappers: Cell<u32>,
    is_excluded: Cell<bool>,
    pub names: RefCell<BTreeMap<u64, u64>>,
}

impl ProtectedObject {
    pub fn new(token: Token) -> ProtectedObject {
        ProtectedObject {
            token,
            hold: RefCell::default(),
            giving: Cell::new(false),
            content: RefCell::default(),
            readers: Cell::new(0),
            is_written: Cell::new(false),
            kept: RefCell::default(),
            pages: RefCell::default(),
            mappers: Cell::new(0),
            is_excluded: Cell::new(false),
            names: RefCell::default(),
        }
    }

    /// Describes the state of the object.
    pub fn describe(&self) -> String {
        format!(
            "{:?}: {:?}, giving {}, readers {}, written {}, pages {:?}, mappers {}, excluded {}, kept {:?}",
            self.token.object.inode,
            self.hold.borrow(),
            self.giving.get(),
            self.readers.get(),
            self.is_written.get(),
            self.pages.borrow(),
            self.mappers.get(),
            self.is_excluded.get(),
            self.kept.borrow()
        )
    }

    /// Whether no task has the contents locked.
    pub fn is_free(&self) -> bool {
        !self.is_written.get() && self.readers.get() == 0
    }
}

/// The locks of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectLockKind {
    /// A shared lock on the contents.
    Read,
    /// An exclusive lock on the contents.
    Write,
    /// A task gives the token back, or commits because other hosts wait.
    Giving,
    /// A program maps the file. Several programs may hold this lock.
    Mapped,
    /// A program writes to the file while no program maps it.
    Unmapped,
}

/// A lock that is held until it is dropped.
pub struct ObjectLockGuard {
    mount: MountModel,
    object: usize,
    kind: ObjectLockKind,
}

impl Drop for ObjectLockGuard {
    fn drop(&mut self) {
        let object = &self.mount.client.objects[self.object];
        match self.kind {
            ObjectLockKind::Read => object.readers.set(object.readers.get() - 1),
            ObjectLockKind::Write => object.is_written.set(false),
            ObjectLockKind::Giving => object.giving.set(false),
            ObjectLockKind::Mapped => object.mappers.set(object.mappers.get() - 1),
            ObjectLockKind::Unmapped => object.is_excluded.set(false),
        }
        self.mount.touch();
    }
}

impl MountModel {
    pub fn object(&self, object: usize) -> &ProtectedObject {
        &self.client.objects[object]
    }

    /// Takes a lock if it is free.
    pub fn try_lock(&self, object: usize, kind: ObjectLockKind) -> Option<ObjectLockGuard> {
        let at = self.object(object);
        let is_free = match kind {
            ObjectLockKind::Read => !at.is_written.get(),
            ObjectLockKind::Write => at.is_free(),
            ObjectLockKind::Giving => !at.giving.get(),
            ObjectLockKind::Mapped => !at.is_excluded.get(),
            ObjectLockKind::Unmapped => !at.is_excluded.get() && at.mappers.get() == 0,
        };
        if !is_free {
            return None;
        }
        match kind {
            ObjectLockKind::Read => at.readers.set(at.readers.get() + 1),
            ObjectLockKind::Write => at.is_written.set(true),
            ObjectLockKind::Giving => at.giving.set(true),
            ObjectLockKind::Mapped => at.mappers.set(at.mappers.get() + 1),
            ObjectLockKind::Unmapped => at.is_excluded.set(true),
        }
        Some(ObjectLockGuard { mount: self.clone(), object, kind })
    }

    /// Waits for a lock.
    pub async fn lock(&self, object: usize, kind: ObjectLockKind) -> ObjectLockGuard {
        self.world.yields().await;
        let mut guard = None;
        self.wait(|| {
            guard = self.try_lock(object, kind);
            guard.is_some()
        })
        .await;
        guard.expect("the wait ends with it")
    }
}
