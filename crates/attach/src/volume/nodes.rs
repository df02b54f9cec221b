//! The nodes that the kernel knows of a volume.
//!
//! Owns: for each inode number that the kernel knows, its generation and number of look-ups. The number of a node is
//! that of its inode, on every host.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nectary_fuse::{Attributes, Entry, Errno, Time};
use nectary_volume::protocol::{Attributes as Inode, FileId};

/// The number of the root, as a node and as an inode.
pub const ROOT: u64 = 1;
/// The kernel must not cache names and attributes, because other hosts change them at any time.
pub const VALID: Duration = Duration::ZERO;
/// The unit of the block count in `stat`. *Units*: bytes.
const STAT_BLOCK_BYTES: u64 = 512;

/// The nodes that the kernel knows.
pub struct Nodes {
    known: Mutex<HashMap<u64, Known>>,
}

struct Known {
    generation: u64,
    lookups: u64,
}

impl Nodes {
    /// Makes the set that has only the root, with the generation in `root`.
    pub fn new(root: FileId) -> Nodes {
        let known = HashMap::from([(ROOT, Known { generation: root.generation, lookups: 1 })]);
        Nodes { known: Mutex::new(known) }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<u64, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of nodes.
    pub fn count(&self) -> usize {
        self.known().len()
    }

    /// Returns the identity of a node's inode. *Errors*: ESTALE if the kernel does not know the node.
    pub fn id(&self, node: u64) -> Result<FileId, Errno> {
        let known = self.known();
        let generation = known.get(&node).map(|known| known.generation).ok_or(Errno::new(libc::ESTALE))?;
        Ok(FileId { inode: node, generation })
    }

    /// Returns the answer to a look-up, and counts the look-up.
    pub fn entry(&self, inode: &Inode) -> Entry {
        let id = inode.id();
        let mut known = self.known();
        let node = known.entry(id.inode).or_insert(Known { generation: id.generation, lookups: 0 });
        // The inode number was reused: the kernel makes a new node for it, and forgets the old one later.
        node.generation = id.generation;
        node.lookups += 1;
        Entry {
            node: id.inode,
            generation: id.generation,
            attributes: attributes(inode),
            entry_valid: VALID,
            attributes_valid: VALID,
        }
    }

    /// Subtracts look-ups that the kernel has forgotten.
    pub fn forget(&self, node: u64, lookups: u64) {
        let mut known = self.known();
        let Some(found) = known.get_mut(&node).filter(|_| node != ROOT) else { return };
        found.lookups = found.lookups.saturating_sub(lookups);
        if found.lookups == 0 {
            known.remove(&node);
        }
    }
}

fn time(ns: i64) -> Time {
    (ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000) as u32)
}

/// Returns the attributes of an inode in the form of `stat`.
pub fn attributes(found: &Inode) -> Attributes {
    let inode = &found.inode;
    let [accessed, modified, changed, born] = inode.times_ns.map(time);
    let is_device = matches!(inode.mode & libc::S_IFMT, libc::S_IFBLK | libc::S_IFCHR);
    Attributes {
        number: found.number,
        size: inode.size,
        blocks: inode.blocks.saturating_mul(nectary_volume::format::BLOCK_BYTES as u64 / STAT_BLOCK_BYTES),
        accessed,
        modified,
        changed,
        born: Some(born),
        mode: inode.mode,
        links: inode.links,
        user: inode.owner,
        group: inode.group,
        device: if is_device { inode.device } else { 0 },
        block_bytes: nectary_volume::format::BLOCK_BYTES as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inode(number: u64, generation: u64) -> Inode {
        let mut found = Inode { number, ..Inode::default() };
        found.inode.generation = generation;
        found.inode.times_ns = [-1, 1_500_000_000, 0, 0];
        found
    }

    #[test]
    fn a_node_is_known_until_all_look_ups_are_forgotten() {
        let nodes = Nodes::new(FileId { inode: ROOT, generation: 1 });
        let entry = nodes.entry(&inode(20, 3));
        nodes.entry(&inode(20, 3));
        assert_eq!((entry.attributes.accessed, entry.attributes.modified), ((-1, 999_999_999), (1, 500_000_000)));
        nodes.forget(20, 1);
        assert_eq!(nodes.id(20).unwrap(), FileId { inode: 20, generation: 3 });
        nodes.entry(&inode(20, 4));
        assert_eq!(nodes.id(20).unwrap().generation, 4);
        nodes.forget(20, 2);
        nodes.forget(ROOT, 5);
        assert!(nodes.id(20).is_err() && nodes.id(ROOT).is_ok());
        assert_eq!(nodes.count(), 1);
    }
}
