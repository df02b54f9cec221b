//! The files and directories that programs have open.
//!
//! Owns: the numbers by which the kernel names open files (handles). Promises: an unknown number is an error and has no
//! other effect.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use nectary_fuse::Errno;

use super::descriptors::DescriptorTicket;
use super::nodes::TreeNode;
use super::source::CachedFile;

/// Whether the flags of an open file, or of a write, say that written data must be durable when the call returns.
pub fn is_synced(flags: i32) -> bool {
    flags & (libc::O_SYNC | libc::O_DSYNC) != 0
}

/// An open file.
pub struct OpenFile {
    /// Its node.
    pub node: Arc<TreeNode>,
    /// The file in the cache.
    pub file: Arc<CachedFile>,
    /// Whether each change of data through the handle must be durable when its call returns.
    pub is_synced: bool,
    /// The last process that read through this handle; the name of its stream is already stored.
    pub named: AtomicU32,
}

/// An open directory.
pub struct OpenDirectory {
    /// Its node.
    pub node: Arc<TreeNode>,
    /// The directory, open for reading.
    pub ticket: DescriptorTicket,
    /// Held while entries are read, because the descriptor has one offset.
    pub reading: Mutex<()>,
}

/// An open file or directory.
#[derive(Clone)]
pub enum OpenHandle {
    /// A file.
    File(Arc<OpenFile>),
    /// A directory.
    Directory(Arc<OpenDirectory>),
}

/// All open files and directories.
#[derive(Default)]
pub struct HandleTable {
    handles: RwLock<HashMap<u64, OpenHandle>>,
    next: AtomicU64,
}

impl HandleTable {
    fn add(&self, handle: OpenHandle) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        self.handles.write().unwrap_or_else(PoisonError::into_inner).insert(number, handle);
        number
    }

    /// Adds a file that is open with these flags; returns its number.
    pub fn add_file(&self, node: Arc<TreeNode>, file: Arc<CachedFile>, flags: i32) -> u64 {
        let is_synced = is_synced(flags);
        self.add(OpenHandle::File(Arc::new(OpenFile { node, file, is_synced, named: AtomicU32::new(0) })))
    }

    /// Adds an open directory; returns its number.
    pub fn add_directory(&self, directory: OpenDirectory) -> u64 {
        self.add(OpenHandle::Directory(Arc::new(directory)))
    }

    fn get(&self, number: u64) -> Result<OpenHandle, Errno> {
        let handles = self.handles.read().unwrap_or_else(PoisonError::into_inner);
        handles.get(&number).cloned().ok_or(Errno::new(libc::EBADF))
    }

    /// An open file.
    pub fn file(&self, number: u64) -> Result<Arc<OpenFile>, Errno> {
        match self.get(number)? {
            OpenHandle::File(file) => Ok(file),
            OpenHandle::Directory(_) => Err(Errno::new(libc::EISDIR)),
        }
    }

    /// An open directory.
    pub fn directory(&self, number: u64) -> Result<Arc<OpenDirectory>, Errno> {
        match self.get(number)? {
            OpenHandle::Directory(directory) => Ok(directory),
            OpenHandle::File(_) => Err(Errno::new(libc::ENOTDIR)),
        }
    }

    /// Removes and returns a handle.
    pub fn remove(&self, number: u64) -> Option<OpenHandle> {
        self.handles.write().unwrap_or_else(PoisonError::into_inner).remove(&number)
    }
}
