//! The nodes that the kernel knows.
//!
//! Owns: the numbers of nodes, and how many times each was looked up. Promises: as long as the kernel knows a node, the
//! node has the same number under each of its names. Its descriptor stays open, so the source does not reuse its inode
//! number.

use std::collections::HashMap;
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nectary_fuse::{Attributes, Entry, Errno};

use super::source::CachedFile;
use super::sys;

/// The number of the root.
pub const ROOT: u64 = 1;

/// How long the kernel may cache names and attributes of a source that others change. It may see their changes late by
/// this time.
const SHARED_VALID: Duration = Duration::from_secs(1);
/// How long the kernel may cache names and attributes if only it changes the source.
const EXCLUSIVE_VALID: Duration = Duration::from_secs(3600);

/// A node.
pub struct Node {
    /// Its number.
    pub number: u64,
    /// The node in the source, opened with `O_PATH`.
    pub descriptor: OwnedFd,
    /// The file in the cache; `None` before the first open.
    pub file: Mutex<Option<Arc<CachedFile>>>,
}

impl Node {
    /// Returns the file in the cache; `None` before the first open.
    pub fn file(&self) -> Option<Arc<CachedFile>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Its current attributes.
    pub fn attributes(&self) -> Result<Attributes, Errno> {
        sys::stat(&self.descriptor).map(|stat| Attributes::from(&stat))
    }
}

/// All nodes that the kernel knows.
pub struct Nodes {
    state: Mutex<State>,
    /// Whether the source is changed only through this mount.
    pub is_exclusive: bool,
}

type Key = (u64, u64);

struct State {
    nodes: HashMap<u64, (Arc<Node>, Key, u64)>,
    numbers: HashMap<Key, u64>,
    next: u64,
}

impl Nodes {
    /// Makes a table that has only the root.
    pub fn new(root: OwnedFd, is_exclusive: bool) -> Result<Nodes, Errno> {
        let stat = sys::stat(&root)?;
        let key = (stat.st_dev, stat.st_ino);
        let node = Arc::new(Node { number: ROOT, descriptor: root, file: Mutex::new(None) });
        let nodes = HashMap::from([(ROOT, (node, key, 1))]);
        let state = State { nodes, numbers: HashMap::from([(key, ROOT)]), next: ROOT + 1 };
        Ok(Nodes { state: Mutex::new(state), is_exclusive })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long the kernel may cache names and attributes.
    pub fn valid(&self) -> Duration {
        if self.is_exclusive { EXCLUSIVE_VALID } else { SHARED_VALID }
    }

    /// The number of nodes.
    pub fn count(&self) -> usize {
        self.state().nodes.len()
    }

    /// Returns a node by its number.
    pub fn get(&self, number: u64) -> Result<Arc<Node>, Errno> {
        self.state().nodes.get(&number).map(|(node, ..)| node.clone()).ok_or(Errno::new(libc::ESTALE))
    }

    /// Returns the number of a node's inode in the source, without a look at the source.
    pub fn inode(&self, number: u64) -> Option<u64> {
        self.state().nodes.get(&number).map(|(_, (_, inode), _)| *inode)
    }

    /// Returns a known node by its device and inode in the source; this does not count as a look-up.
    pub fn find(&self, key: (u64, u64)) -> Option<Arc<Node>> {
        let state = self.state();
        let number = state.numbers.get(&key)?;
        state.nodes.get(number).map(|(node, ..)| node.clone())
    }

    /// All known nodes.
    pub fn all(&self) -> Vec<Arc<Node>> {
        self.state().nodes.values().map(|(node, ..)| node.clone()).collect()
    }

    /// Looks a name up; this counts as one look-up.
    pub fn look_up(&self, parent: &Node, name: &CStr) -> Result<(Arc<Node>, Entry), Errno> {
        self.know(sys::look_up(&parent.descriptor, name)?)
    }

    /// Finds the node of a descriptor, or adds it; this counts as one look-up.
    pub fn know(&self, descriptor: OwnedFd) -> Result<(Arc<Node>, Entry), Errno> {
        let stat = sys::stat(&descriptor)?;
        let key = (stat.st_dev, stat.st_ino);
        let mut state = self.state();
        let State { nodes, numbers, next } = &mut *state;
        let number = *numbers.entry(key).or_insert_with(|| {
            *next += 1;
            *next - 1
        });
        let (node, _, lookups) = nodes
            .entry(number)
            .or_insert_with(|| (Arc::new(Node { number, descriptor, file: Mutex::new(None) }), key, 0));
        *lookups += 1;
        let entry = Entry {
            node: number,
            generation: 0,
            attributes: Attributes::from(&stat),
            entry_valid: self.valid(),
            attributes_valid: self.valid(),
        };
        Ok((node.clone(), entry))
    }

    /// Subtracts look-ups from a node's count; if none is left, removes the node and returns it.
    pub fn forget(&self, number: u64, lookups: u64) -> Option<Arc<Node>> {
        let mut state = self.state();
        let (_, key, known) = state.nodes.get_mut(&number).filter(|_| number != ROOT)?;
        *known = known.saturating_sub(lookups);
        if *known > 0 {
            return None;
        }
        let key = *key;
        state.numbers.remove(&key);
        state.nodes.remove(&number).map(|(node, ..)| node)
    }

    /// Removes and returns all nodes.
    pub fn clear(&self) -> Vec<Arc<Node>> {
        let mut state = self.state();
        state.numbers.clear();
        state.nodes.drain().map(|(_, (node, ..))| node).collect()
    }
}
