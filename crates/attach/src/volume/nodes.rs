//! The nodes that the kernel knows of a volume.
//!
//! Owns: the inode and the generation of each node that the kernel knows, how often it was looked up, and where the kernel
//! knows a directory. A node's number is its inode's, on every host, except for a directory that the kernel still knows
//! elsewhere.
//!
//! The kernel has one place for the node of a directory. If it finds the node in another one, because another host moved
//! the directory, it moves what it knows, but not during a rename between two directories: then the rename fails with
//! ESTALE, again and again, for as long as a program has something below the old place open. So a directory that is found
//! under another parent than the one under which the kernel knows it gets a further node, with the same inode. What is
//! open below the old place stays with the old node. Two names of the same parent are no such case: there the kernel can
//! always move it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nectary_fuse::{Attributes, Entry, Errno, Time};
use nectary_volume::protocol::{Attributes as Inode, FileId};

/// The number of the root, here and in the volume.
pub const ROOT: u64 = 1;
/// Other hosts change names and attributes at any time.
pub const VALID: Duration = Duration::ZERO;
/// The unit in which `stat` counts. *Units*: bytes.
const STAT_BLOCK_BYTES: u64 = 512;
/// Further nodes of directories have numbers from here on; inodes have lower ones.
const FURTHER: u64 = 1 << 62;

/// The node of a parent, and a name in it.
type Place = (u64, Vec<u8>);

/// All nodes that the kernel knows.
pub struct Nodes {
    state: Mutex<State>,
}

struct State {
    known: HashMap<u64, Known>,
    /// The directories that the kernel knows at these places.
    places: HashMap<Place, u64>,
    /// Further nodes of directories, by inode.
    further: HashMap<u64, Vec<u64>>,
    next: u64,
}

struct Known {
    id: FileId,
    lookups: u64,
    /// Where the kernel knows it, if it is a directory.
    place: Option<Place>,
}

impl State {
    /// The node of a directory that was found at a place.
    fn directory(&mut self, id: FileId, place: Place) -> u64 {
        let further = self.further.get(&id.inode).into_iter().flatten().copied();
        let nodes: Vec<u64> = std::iter::once(id.inode).chain(further).collect();
        let of_it = |node: &&u64| self.known.get(*node).is_some_and(|known| known.id == id);
        let is_below = |node: &&u64| {
            let known = self.known.get(*node).and_then(|known| known.place.as_ref());
            known.is_some_and(|known| known.0 == place.0)
        };
        let found = self.places.get(&place).filter(|node| nodes.contains(*node) && of_it(node)).copied();
        let found = found.or_else(|| nodes.iter().filter(of_it).find(is_below).copied());
        let node = match found {
            Some(node) => node,
            None if id.inode == ROOT || !nodes.iter().any(|node| of_it(&node)) => id.inode,
            None => {
                self.next += 1;
                self.further.entry(id.inode).or_default().push(self.next);
                self.next
            }
        };
        self.put(node, id, Some(place));
        node
    }

    /// A node is there, at this place if it is a directory; it is looked up once more.
    fn put(&mut self, node: u64, id: FileId, place: Option<Place>) {
        // The number may have been used again: the kernel makes a new node of it, and forgets the old one in its own time.
        let known = self.known.entry(node).or_insert(Known { id, lookups: 0, place: None });
        known.id = id;
        known.lookups += 1;
        self.set_place(node, place);
    }

    fn set_place(&mut self, node: u64, place: Option<Place>) {
        let Some(known) = self.known.get_mut(&node) else { return };
        let before = std::mem::replace(&mut known.place, place.clone());
        if let Some(before) = before.filter(|before| self.places.get(before) == Some(&node)) {
            self.places.remove(&before);
        }
        // What was there is somewhere else, or gone.
        let other = place.and_then(|place| self.places.insert(place, node)).filter(|other| *other != node);
        if let Some(other) = other.and_then(|other| self.known.get_mut(&other)) {
            other.place = None;
        }
    }

    fn remove(&mut self, node: u64) {
        self.set_place(node, None);
        let Some(known) = self.known.remove(&node).filter(|_| node > FURTHER) else { return };
        if let Some(further) = self.further.get_mut(&known.id.inode) {
            further.retain(|other| *other != node);
            if further.is_empty() {
                self.further.remove(&known.id.inode);
            }
        }
    }
}

impl Nodes {
    /// Only the root.
    pub fn new(root: FileId) -> Nodes {
        let known = HashMap::from([(ROOT, Known { id: root, lookups: 1, place: None })]);
        let (places, further) = (HashMap::new(), HashMap::new());
        Nodes { state: Mutex::new(State { known, places, further, next: FURTHER }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many nodes there are.
    pub fn count(&self) -> usize {
        self.state().known.len()
    }

    /// The inode of a node. *Errors*: ESTALE.
    pub fn id(&self, node: u64) -> Result<FileId, Errno> {
        self.state().known.get(&node).map(|known| known.id).ok_or(Errno::new(libc::ESTALE))
    }

    /// The answer to a look-up of a name of the node `parent`; it counts as one.
    pub fn entry(&self, inode: &Inode, parent: u64, name: &[u8]) -> Entry {
        let (id, mut state) = (inode.id(), self.state());
        let node = if inode.inode.mode & libc::S_IFMT == libc::S_IFDIR {
            state.directory(id, (parent, name.to_vec()))
        } else {
            state.put(id.inode, id, None);
            id.inode
        };
        Entry {
            node,
            generation: id.generation,
            attributes: attributes(inode),
            entry_valid: VALID,
            attributes_valid: VALID,
        }
    }

    /// The kernel renames, or exchanges two names: what it knows moves along.
    pub fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), is_exchange: bool) {
        let place = |(parent, name): (u64, &[u8])| (parent, name.to_vec());
        let (from, to) = (place(from), place(to));
        let mut state = self.state();
        if from == to {
            return;
        }
        let (moved, replaced) = (state.places.get(&from).copied(), state.places.get(&to).copied());
        moved.into_iter().for_each(|node| state.set_place(node, None));
        replaced.into_iter().for_each(|node| state.set_place(node, is_exchange.then(|| from.clone())));
        moved.into_iter().for_each(|node| state.set_place(node, Some(to.clone())));
    }

    /// Subtracts look-ups.
    pub fn forget(&self, node: u64, lookups: u64) {
        let mut state = self.state();
        let Some(found) = state.known.get_mut(&node).filter(|_| node != ROOT) else { return };
        found.lookups = found.lookups.saturating_sub(lookups);
        if found.lookups == 0 {
            state.remove(node);
        }
    }
}

fn time(ns: i64) -> Time {
    (ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000) as u32)
}

/// An inode as `stat` shows it.
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

    fn directory(number: u64) -> Inode {
        let mut found = inode(number, 1);
        found.inode.mode = libc::S_IFDIR | 0o755;
        found
    }

    #[test]
    fn a_node_is_known_until_all_look_ups_are_forgotten() {
        let nodes = Nodes::new(FileId { inode: ROOT, generation: 1 });
        let entry = nodes.entry(&inode(20, 3), ROOT, b"a");
        nodes.entry(&inode(20, 3), ROOT, b"b");
        assert_eq!((entry.attributes.accessed, entry.attributes.modified), ((-1, 999_999_999), (1, 500_000_000)));
        nodes.forget(20, 1);
        assert_eq!(nodes.id(20).unwrap(), FileId { inode: 20, generation: 3 });
        nodes.entry(&inode(20, 4), ROOT, b"a");
        assert_eq!(nodes.id(20).unwrap().generation, 4);
        nodes.forget(20, 2);
        nodes.forget(ROOT, 5);
        assert!(nodes.id(20).is_err() && nodes.id(ROOT).is_ok());
        assert_eq!(nodes.count(), 1);
    }

    #[test]
    fn a_directory_that_another_host_moved_has_a_further_node_until_the_kernel_forgets_the_old_one() {
        let nodes = Nodes::new(FileId { inode: ROOT, generation: 1 });
        let node = |number, parent, name: &[u8]| nodes.entry(&directory(number), parent, name).node;
        assert_eq!((node(20, ROOT, b"a"), node(30, ROOT, b"b")), (20, 30));
        // Another name of the same parent: the kernel moves it.
        assert_eq!((node(20, ROOT, b"c"), node(20, ROOT, b"c")), (20, 20));
        let further = node(20, 30, b"d");
        assert!(further > FURTHER);
        assert_eq!((node(20, 30, b"d"), node(20, ROOT, b"c")), (further, 20));
        assert_eq!(nodes.id(further).unwrap(), nodes.id(20).unwrap());
        // What is below it is known below the old node.
        assert_eq!(node(21, 20, b"e"), 21);
        assert!(node(21, further, b"e") > further);
        nodes.forget(20, 4);
        assert_eq!((nodes.id(20).is_err(), node(20, 30, b"d")), (true, further));
        nodes.forget(further, 3);
        assert_eq!(node(20, 30, b"d"), 20);
    }

    #[test]
    fn what_the_kernel_renames_keeps_its_node() {
        let nodes = Nodes::new(FileId { inode: ROOT, generation: 1 });
        let node = |number, parent, name: &[u8]| nodes.entry(&directory(number), parent, name).node;
        assert_eq!((node(20, ROOT, b"a"), node(30, ROOT, b"b"), node(40, 30, b"c")), (20, 30, 40));
        nodes.rename((ROOT, b"a"), (30, b"d"), false);
        assert_eq!(node(20, 30, b"d"), 20);
        nodes.rename((30, b"c"), (ROOT, b"a"), false);
        nodes.rename((30, b"d"), (ROOT, b"a"), true);
        assert_eq!((node(20, ROOT, b"a"), node(40, 30, b"d")), (20, 40));
        // A directory that was replaced is nowhere.
        nodes.rename((ROOT, b"a"), (30, b"d"), false);
        assert_eq!(node(20, 30, b"d"), 20);
        assert!(node(40, ROOT, b"a") > FURTHER);
    }
}
