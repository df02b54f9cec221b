//! The nodes that the kernel knows.
//!
//! Owns: the numbers of nodes, how many times each was looked up, and their names. Promises: as long as the kernel
//! knows a node, the node has the same number under each of its names, and no other file of the source gets this
//! number, even if the source reuses its inode number. Leaves to others: the descriptors of nodes (`reach`).
//!
//! *Circle*: a node has its file (`source`) and the way to it (`reach`), and both open descriptors of nodes.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nectary_buffer::BufferCache;
use nectary_fuse::{Errno, LookupEntry, NodeAttributes};

use super::descriptors::{DescriptorTable, DescriptorTicket};
use super::reach::{InodeIdentity, NodeOpener};
use super::source::CachedFile;
use super::sys;

/// The number of the root.
pub const ROOT: u64 = 1;

/// How long the kernel may cache names and attributes of a source that others change. It may see their changes late by
/// this time.
const SHARED_VALID: Duration = Duration::from_secs(1);
/// How long the kernel may cache names and attributes if only it changes the source.
const EXCLUSIVE_VALID: Duration = Duration::from_secs(3600);
/// The largest number of directories above a node.
pub const DEPTH_MAX: usize = 4096;
/// What the allocator adds to an allocation. *Units*: bytes.
const ALLOCATION_BYTES: usize = 16;

/// A device and the number of an inode of it.
pub type Inode = (u64, u64);

/// A node.
pub struct TreeNode {
    /// Its number.
    pub number: u64,
    /// Its device and inode number in the source.
    pub inode: Inode,
    /// What tells it from a later file with the same inode number.
    pub mark: InodeIdentity,
    /// Its descriptor, opened with `O_PATH`.
    pub ticket: DescriptorTicket,
    /// The number of times that the kernel has looked it up. Changed under the mutex of all nodes.
    lookups: AtomicU64,
    place: Mutex<NodePosition>,
    /// The file in the cache; `None` before the first open.
    pub file: Mutex<Option<Arc<CachedFile>>>,
}

/// Where a node is in the tree.
#[derive(Default)]
struct NodePosition {
    /// The parent's number and the name in it, as last looked up or renamed through this mount; `None` if this name was
    /// removed.
    name: Option<(u64, Box<CStr>)>,
    /// The number of its open files and directories.
    opens: u32,
    /// Whether it has no name left.
    is_unlinked: bool,
}

impl TreeNode {
    fn place(&self) -> MutexGuard<'_, NodePosition> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the file in the cache; `None` before the first open.
    pub fn file(&self) -> Option<Arc<CachedFile>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The parent's number and the name in it.
    pub fn name(&self) -> Option<(u64, Box<CStr>)> {
        self.place().name.clone()
    }

    /// Whether its last name was removed through this mount.
    pub fn is_unlinked(&self) -> bool {
        self.place().is_unlinked
    }

    /// Whether a program has it open.
    pub fn is_open(&self) -> bool {
        self.place().opens > 0
    }

    /// Whether its descriptor, once closed, cannot be opened again.
    pub fn is_lost(&self) -> bool {
        let place = self.place();
        place.is_unlinked || place.name.is_none() && matches!(self.mark, InodeIdentity::Born(..))
    }

    /// Counts an open file or directory of the node; returns whether it is the first.
    pub fn add_open(&self) -> bool {
        let mut place = self.place();
        place.opens = place.opens.saturating_add(1);
        place.opens == 1
    }

    /// Ends what [`add_open`](Self::add_open) began; returns whether it was the last.
    pub fn remove_open(&self) -> bool {
        let mut place = self.place();
        place.opens = place.opens.saturating_sub(1);
        place.opens == 0
    }

    /// Whether the node is known by this name.
    pub fn has_name(&self, parent: u64, name: &CStr) -> bool {
        self.place().name.as_ref().is_some_and(|(of, known)| *of == parent && **known == *name)
    }

    /// Removes a name; with `is_unlinked` it was the last.
    pub fn remove_name(&self, parent: u64, name: &CStr, is_unlinked: bool, counted: &AtomicUsize) {
        let mut place = self.place();
        place.is_unlinked |= is_unlinked;
        if place.name.as_ref().is_some_and(|(of, known)| *of == parent && **known == *name) {
            place.name = None;
            counted.fetch_sub(bytes_of(name), Ordering::Relaxed);
        }
    }

    /// Gives the node a name, or none, after a look-up, with `links` as the number of its names.
    fn set_name(&self, name: Option<(u64, &CStr)>, links: u64, counted: &AtomicUsize) {
        let mut place = self.place();
        place.is_unlinked = links == 0;
        let Some((parent, name)) = name else { return };
        if place.name.as_ref().is_some_and(|(of, known)| *of == parent && **known == *name) {
            return;
        }
        counted.fetch_add(bytes_of(name), Ordering::Relaxed);
        if let Some((_, old)) = place.name.replace((parent, name.into())) {
            counted.fetch_sub(bytes_of(&old), Ordering::Relaxed);
        }
    }
}

fn bytes_of(name: &CStr) -> usize {
    name.count_bytes() + 1 + ALLOCATION_BYTES
}

/// A node that is found by its inode.
struct ByInode(Arc<TreeNode>);

impl Borrow<Inode> for ByInode {
    fn borrow(&self) -> &Inode {
        &self.0.inode
    }
}

impl Hash for ByInode {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.inode.hash(state);
    }
}

impl PartialEq for ByInode {
    fn eq(&self, other: &ByInode) -> bool {
        self.0.inode == other.0.inode
    }
}

impl Eq for ByInode {}

/// All nodes that the kernel knows.
pub struct TreeNodes {
    state: Mutex<TreeNodeTable>,
    /// How descriptors are opened again.
    pub(super) reach: NodeOpener,
    /// The open descriptors.
    pub descriptors: DescriptorTable,
    /// Whether the source is changed only through this mount.
    pub is_exclusive: bool,
    /// The cache of the files.
    pub cache: BufferCache,
    /// The memory of all names. *Units*: bytes.
    pub(super) name_bytes: AtomicUsize,
}

struct TreeNodeTable {
    nodes: HashMap<u64, Arc<TreeNode>>,
    /// The nodes by their inodes. A node whose file is gone is not in it once another file has its inode number.
    inodes: HashSet<ByInode>,
    next: u64,
}

impl TreeNodes {
    /// Makes a table that has only the root. With `uses_handles`, nodes are opened again by their file handles if the
    /// source has such.
    pub fn new(
        root: File,
        descriptors: DescriptorTable,
        cache: BufferCache,
        is_exclusive: bool,
        uses_handles: bool,
    ) -> Result<TreeNodes, Errno> {
        let stat = sys::stat(&root)?;
        let reach = NodeOpener::new(Arc::new(root), uses_handles)?;
        let node = TreeNode {
            number: ROOT,
            inode: (stat.st_dev, stat.st_ino),
            mark: InodeIdentity::default(),
            ticket: DescriptorTicket::default(),
            lookups: AtomicU64::new(1),
            place: Mutex::default(),
            file: Mutex::new(None),
        };
        let node = Arc::new(node);
        let (nodes, inodes) = (HashMap::from([(ROOT, node.clone())]), HashSet::from([ByInode(node)]));
        let state = TreeNodeTable { nodes, inodes, next: ROOT + 1 };
        let name_bytes = AtomicUsize::new(0);
        Ok(TreeNodes { state: Mutex::new(state), reach, descriptors, is_exclusive, cache, name_bytes })
    }

    fn state(&self) -> MutexGuard<'_, TreeNodeTable> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long the kernel may cache names and attributes.
    pub fn valid(&self) -> Duration {
        if self.is_exclusive { EXCLUSIVE_VALID } else { SHARED_VALID }
    }

    /// The number of nodes, and the memory that they take, without that of opened files. *Units*: bytes.
    pub fn count(&self) -> (usize, usize) {
        let state = self.state();
        let count = state.nodes.len();
        // A table has 8 places for 7 entries, and a byte beside each place.
        let table = |capacity: usize, entry: usize| capacity / 7 * 8 * (entry + 1);
        let tables = table(state.nodes.capacity(), size_of::<(u64, Arc<TreeNode>)>())
            + table(state.inodes.capacity(), size_of::<ByInode>());
        let node = size_of::<TreeNode>() + 2 * size_of::<usize>() + ALLOCATION_BYTES;
        (count, tables + count * node + self.name_bytes.load(Ordering::Relaxed))
    }

    /// Returns a node by its number.
    pub fn get(&self, number: u64) -> Result<Arc<TreeNode>, Errno> {
        self.state().nodes.get(&number).cloned().ok_or(Errno::new(libc::ESTALE))
    }

    /// Returns the number of a node's inode in the source, without a look at the source.
    pub fn inode(&self, number: u64) -> Option<u64> {
        self.state().nodes.get(&number).map(|node| node.inode.1)
    }

    /// All known nodes.
    pub fn all(&self) -> Vec<Arc<TreeNode>> {
        self.state().nodes.values().cloned().collect()
    }

    /// Returns the known node of a descriptor; this does not count as a look-up.
    pub fn find(&self, descriptor: &File) -> Option<Arc<TreeNode>> {
        let stat = sys::stat(descriptor).ok()?;
        let node = self.state().inodes.get(&(stat.st_dev, stat.st_ino)).map(|found| found.0.clone())?;
        self.is_same(&node, descriptor).then_some(node)
    }

    /// Whether an open descriptor with the inode number of a node is a descriptor of this node.
    fn is_same(&self, node: &TreeNode, descriptor: &File) -> bool {
        // While the node's own descriptor is open, no other file has its inode number.
        self.is_held(node) || self.reach.mark(descriptor).is_ok_and(|mark| mark == node.mark)
    }

    fn is_held(&self, node: &TreeNode) -> bool {
        node.number == ROOT || self.descriptors.get(&node.ticket).is_some()
    }

    /// Looks a name up; this counts as one look-up.
    pub fn look_up(&self, parent: &TreeNode, name: &CStr) -> Result<(Arc<TreeNode>, LookupEntry), Errno> {
        let above = self.descriptor(parent)?;
        self.know(self.opening(|| sys::look_up(&above, name))?, Some((parent.number, name)))
    }

    /// Finds the node of a descriptor, or adds it, with the name by which it was found; this counts as one look-up.
    pub fn know(&self, descriptor: File, name: Option<(u64, &CStr)>) -> Result<(Arc<TreeNode>, LookupEntry), Errno> {
        let stat = sys::stat(&descriptor)?;
        let node = self.of_inode((stat.st_dev, stat.st_ino), &descriptor)?;
        node.set_name(name, stat.st_nlink, &self.name_bytes);
        if self.descriptors.get(&node.ticket).is_none() && node.number != ROOT {
            self.descriptors.put(&node.ticket, Arc::new(descriptor));
        }
        let entry = LookupEntry {
            node: node.number,
            generation: 0,
            attributes: match node.file().filter(|_| !self.is_exclusive) {
                Some(file) => NodeAttributes::from(&file.source.look(Some(&stat))?),
                None => NodeAttributes::from(&stat),
            },
            entry_valid: self.valid(),
            attributes_valid: self.valid(),
        };
        Ok((node, entry))
    }

    /// Finds or adds the node of a descriptor with this inode, and counts a look-up.
    fn of_inode(&self, inode: Inode, descriptor: &File) -> Result<Arc<TreeNode>, Errno> {
        let known = |state: &TreeNodeTable| state.inodes.get(&inode).map(|found| found.0.clone());
        let count = |node: &TreeNode| node.lookups.fetch_add(1, Ordering::Relaxed);
        let mut mark = None;
        loop {
            let mut state = self.state();
            let found = known(&state);
            match (&found, &mark) {
                (Some(node), _) if self.is_held(node) => count(node),
                (Some(node), Some(mark)) if node.mark == *mark => count(node),
                (_, Some(mark)) => {
                    let node = TreeNode {
                        number: state.next,
                        inode,
                        mark: *mark,
                        ticket: DescriptorTicket::default(),
                        lookups: AtomicU64::new(1),
                        place: Mutex::default(),
                        file: Mutex::new(None),
                    };
                    state.next += 1;
                    let node = Arc::new(node);
                    state.nodes.insert(node.number, node.clone());
                    state.inodes.replace(ByInode(node.clone()));
                    return Ok(node);
                }
                (_, None) => {
                    drop(state);
                    mark = Some(self.reach.mark(descriptor)?);
                    continue;
                }
            };
            if let Some(node) = found {
                return Ok(node);
            }
        }
    }

    /// Gives a node a name after a rename.
    pub fn rename(&self, node: &TreeNode, parent: u64, name: &CStr) {
        let links = u64::from(!node.is_unlinked());
        node.set_name(Some((parent, name)), links, &self.name_bytes);
    }

    /// The path of a node below the root, as its names were last looked up or renamed through this mount; `None` if a
    /// directory above it is not known any more, or its name was removed.
    pub fn path_of(&self, node: &Arc<TreeNode>) -> Option<PathBuf> {
        let mut names = Vec::new();
        let mut at = node.clone();
        while at.number != ROOT {
            let (parent, name) = at.name()?;
            if names.len() >= DEPTH_MAX {
                return None;
            }
            names.push(name);
            at = self.get(parent).ok()?;
        }
        Some(names.iter().rev().map(|name| OsStr::from_bytes(name.to_bytes())).collect())
    }

    /// Subtracts look-ups from a node's count; if none is left, removes the node and returns it.
    pub fn forget(&self, number: u64, lookups: u64) -> Option<Arc<TreeNode>> {
        let mut state = self.state();
        let node = state.nodes.get(&number).filter(|_| number != ROOT)?.clone();
        let left = node.lookups.load(Ordering::Relaxed).saturating_sub(lookups);
        node.lookups.store(left, Ordering::Relaxed);
        if left > 0 {
            return None;
        }
        state.nodes.remove(&number);
        if state.inodes.get(&node.inode).is_some_and(|found| Arc::ptr_eq(&found.0, &node)) {
            state.inodes.remove(&node.inode);
        }
        drop(state);
        if let Some((_, name)) = node.place().name.take() {
            self.name_bytes.fetch_sub(bytes_of(&name), Ordering::Relaxed);
        }
        self.descriptors.close(&node.ticket);
        Some(node)
    }

    /// Removes and returns all nodes.
    pub fn clear(&self) -> Vec<Arc<TreeNode>> {
        let mut state = self.state();
        state.inodes.clear();
        state.nodes.drain().map(|(_, node)| node).collect()
    }
}
