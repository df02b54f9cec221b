//! The nodes that the kernel knows of a volume.
//!
//! Owns: for each node that the kernel knows, its inode and generation, the number of its look-ups, and the place of a
//! directory: the parent's node and the name. A node's number is its inode's, on every host, except for further nodes of directories.
//!
//! The kernel has one place for the node of a directory. If it finds the node in another place, because another host
//! moved the directory, it moves what it knows; but not during a rename between two directories, where that fails with
//! ESTALE. The kernel then tries the rename once more, and fails again. So a thread that looks the same moved directory
//! up again, without having used it, gets a *further node*, which has the same inode: the kernel knows that nowhere
//! else. What programs have open below the old place stays with the old node. Within one parent the kernel can always
//! move a node.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nectary_fuse::{Errno, LookupEntry, NodeAttributes, Time, without_rights};
use nectary_volume::protocol::{FileId, InodeAttributes as Inode, JudgedOwner};

/// The number of the root, as a node and as an inode.
pub const ROOT: u64 = 1;
/// The time of names and attributes that the kernel must not cache.
pub const VALID: Duration = Duration::ZERO;
/// The unit of the block count in `stat`. *Units*: bytes.
const STAT_BLOCK_BYTES: u64 = 512;
/// Numbers above this one are those of further nodes of directories; inodes have lower numbers.
const FURTHER: u64 = 1 << 62;
/// The maximum number of offers that are remembered. Fewer threads rename moved directories at the same moment.
const OFFERS_MAX: usize = 64;

/// The maximum number of names in a path that is shown.
const PATH_NAMES_MAX: usize = 64;

/// The node of a parent, and a name in it.
type Place = (u64, Vec<u8>);

/// The nodes that the kernel knows.
pub struct VolumeNodes {
    state: Mutex<VolumeNodeTable>,
}

struct VolumeNodeTable {
    known: HashMap<u64, VolumeNode>,
    /// The directories that the kernel knows at these places.
    places: HashMap<Place, u64>,
    /// Further nodes of directories, by inode.
    further: HashMap<u64, Vec<u64>>,
    offers: Vec<NodeOffer>,
    next: u64,
}

struct VolumeNode {
    id: FileId,
    lookups: u64,
    /// The mode and the owner, as the kernel was told last.
    mode: u32,
    owner: JudgedOwner,
    /// Whether it may have capabilities: it was looked up, and nothing was written to it since.
    may_have_capability: bool,
    /// The target of a symbolic link, which never changes.
    target: Option<Box<[u8]>>,
    /// The attributes of a directory, a pipe, a socket or a device, as the kernel was told last. The server does not know
    /// who uses one, and frees its inode with its last name.
    told: Option<Box<Inode>>,
    /// Where the kernel knows it. `None`: it is no directory, or it may be at several places.
    place: Option<Place>,
}

/// The node of a directory that a look-up returned to a thread. The kernel may know the node at another place, and the
/// thread has not used it yet.
struct NodeOffer {
    thread: u32,
    node: u64,
    place: Place,
    /// Whether the thread looked a moved directory up again: then the kernel tries a rename once more, which may need
    /// further nodes for both names.
    is_again: bool,
}

impl VolumeNode {
    fn note_told(&mut self, inode: &Inode) {
        self.mode = inode.inode.mode;
        self.owner = JudgedOwner { owner: inode.inode.owner, group: inode.inode.group };
        let is_freed_with_name = !matches!(inode.inode.mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFLNK);
        match &mut self.told {
            _ if !is_freed_with_name => self.told = None,
            Some(told) => (**told).clone_from(inode),
            None => self.told = Some(Box::new(inode.clone())),
        }
    }
}

impl VolumeNodeTable {
    /// Returns the node of a directory that `thread` looked up at a place, or that is in a listing; counts one look-up.
    fn directory(&mut self, id: FileId, place: Place, thread: Option<u32>) -> u64 {
        let further = self.further.get(&id.inode).into_iter().flatten().copied();
        let nodes = std::iter::once(id.inode).chain(further);
        let nodes = nodes.filter_map(|node| Some((node, self.known.get(&node).filter(|known| known.id == id)?)));
        let nodes: Vec<(u64, Option<&Place>)> = nodes.map(|(node, known)| (node, known.place.as_ref())).collect();
        let here = nodes.iter().find(|(_, at)| *at == Some(&place));
        let here = here.or_else(|| nodes.iter().find(|(_, at)| at.is_some_and(|at| at.0 == place.0)));
        let (here, first) = (here.map(|(node, _)| *node), nodes.first().map(|(node, _)| *node));
        let node = match (here, first) {
            (Some(node), _) => node,
            (None, None | Some(ROOT)) => id.inode,
            (None, Some(node)) => match thread.is_some_and(|thread| self.is_again(thread, node, &place)) {
                true => {
                    self.next += 1;
                    self.further.entry(id.inode).or_default().push(self.next);
                    self.next
                }
                false => {
                    self.put(node, id, None);
                    self.offers.extend(thread.map(|thread| NodeOffer { thread, node, place, is_again: false }));
                    let more = self.offers.len().saturating_sub(OFFERS_MAX);
                    self.offers.drain(..more);
                    return node;
                }
            },
        };
        self.put(node, id, Some(place));
        node
    }

    /// Whether this thread was given this node for a lookup before, and did not use it.
    fn is_again(&mut self, thread: u32, node: u64, place: &Place) -> bool {
        let is_it = |offer: &NodeOffer| offer.is_again || (offer.node == node && offer.place == *place);
        let is_again = self.offers.iter().any(|offer| offer.thread == thread && is_it(offer));
        if is_again {
            let own = self.offers.iter_mut().filter(|offer| offer.thread == thread);
            own.for_each(|offer| offer.is_again = true);
        }
        is_again
    }

    /// Counts one look-up of a node, and stores the place of a directory.
    fn put(&mut self, node: u64, id: FileId, place: Option<Place>) {
        // The number may have been used again: the kernel makes a new node of it, and forgets the old one in its own
        // time.
        let known = self.known.entry(node).or_insert(VolumeNode {
            id,
            lookups: 0,
            mode: 0,
            owner: JudgedOwner::default(),
            may_have_capability: false,
            target: None,
            told: None,
            place: None,
        });
        known.id = id;
        known.lookups += 1;
        self.set_place(node, place);
    }

    fn entry(&mut self, node: u64, inode: &Inode) -> LookupEntry {
        if let Some(known) = self.known.get_mut(&node) {
            known.note_told(inode);
            let is_link = inode.inode.mode & libc::S_IFMT == libc::S_IFLNK;
            known.target = (is_link && !inode.inode.inline.is_empty()).then(|| inode.inode.inline.clone().into());
        }
        LookupEntry {
            node,
            generation: inode.id().generation,
            attributes: attributes(inode),
            entry_valid: VALID,
            attributes_valid: VALID,
        }
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

impl VolumeNodes {
    /// Makes the set that has only the root.
    pub fn new(root: FileId) -> VolumeNodes {
        let owner = JudgedOwner::default();
        let (may_have_capability, target, told, place) = (false, None, None, None);
        let root = VolumeNode { id: root, lookups: 1, mode: 0, owner, may_have_capability, target, told, place };
        let known = HashMap::from([(ROOT, root)]);
        let (places, further) = (HashMap::new(), HashMap::new());
        VolumeNodes { state: Mutex::new(VolumeNodeTable { known, places, further, offers: Vec::new(), next: FURTHER }) }
    }

    fn state(&self) -> MutexGuard<'_, VolumeNodeTable> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of nodes.
    pub fn count(&self) -> usize {
        self.state().known.len()
    }

    /// Returns the identity of a node's inode. *Errors*: ESTALE if the kernel does not know the node.
    pub fn id(&self, node: u64) -> Result<FileId, Errno> {
        self.state().known.get(&node).map(|known| known.id).ok_or(Errno::new(libc::ESTALE))
    }

    /// Returns the target of a symbolic link that was looked up.
    pub fn target(&self, node: u64) -> Option<Vec<u8>> {
        self.state().known.get(&node)?.target.as_deref().map(<[u8]>::to_vec)
    }

    /// Returns the attributes of a directory, a pipe, a socket or a device that was removed: it has no links. `None`: it is
    /// none of these, or the kernel does not know it.
    pub fn removed(&self, node: u64) -> Option<Inode> {
        let mut told = Inode::clone(self.state().known.get(&node)?.told.as_deref()?);
        told.inode.links = 0;
        Some(told)
    }

    /// Whether the kernel knows a node at one place alone: it is no directory, or its place is known, and its inode has no
    /// other node.
    pub fn is_settled(&self, node: u64) -> bool {
        let state = self.state();
        let Some(known) = state.known.get(&node) else { return false };
        let is_directory = known.mode & libc::S_IFMT == libc::S_IFDIR;
        node == ROOT || !is_directory || known.place.is_some() && !state.further.contains_key(&known.id.inode)
    }

    /// Returns the nodes of an inode.
    pub fn nodes_of(&self, file: FileId) -> Vec<u64> {
        let state = self.state();
        let further = state.further.get(&file.inode).into_iter().flatten().copied();
        let all = std::iter::once(file.inode).chain(further);
        all.filter(|node| state.known.get(node).is_some_and(|known| known.id == file)).collect()
    }

    /// Returns the number of a node's inode, and the path of a directory, if the kernel knows where it is.
    pub fn place(&self, node: u64) -> (u64, Option<String>) {
        let state = self.state();
        let Some(known) = state.known.get(&node) else { return (node, None) };
        let (mut at, mut names) = (node, Vec::new());
        while at != ROOT && names.len() < PATH_NAMES_MAX {
            match state.known.get(&at).and_then(|known| known.place.as_ref()) {
                Some((parent, name)) => {
                    names.push(String::from_utf8_lossy(name));
                    at = *parent;
                }
                None => return (known.id.inode, None),
            }
        }
        names.reverse();
        (known.id.inode, Some(if names.is_empty() { ".".to_owned() } else { names.join("/") }))
    }

    /// Notes that a thread makes a request that names a node. With `is_look`, the request only looks something up,
    /// follows a link, or checks permissions (with access control lists), as the kernel may do between the two tries of
    /// a rename.
    pub fn used(&self, thread: u32, node: u64, is_look: bool) {
        let mut state = self.state();
        for offer in std::mem::take(&mut state.offers) {
            if offer.thread != thread {
                state.offers.push(offer);
            } else if offer.node == node {
                // The kernel has moved it.
                state.set_place(node, Some(offer.place));
            } else if is_look {
                state.offers.push(offer);
            }
        }
    }

    /// Returns the answer to a look-up of a name in the node `parent`, by a thread or for a listing; counts one look-up.
    /// The kernel may not cache it.
    pub fn entry(&self, inode: &Inode, parent: u64, name: &[u8], thread: Option<u32>) -> LookupEntry {
        let (id, mut state) = (inode.id(), self.state());
        let node = if inode.inode.mode & libc::S_IFMT == libc::S_IFDIR {
            state.directory(id, (parent, name.to_vec()), thread)
        } else {
            state.put(id.inode, id, None);
            id.inode
        };
        if let Some(known) = state.known.get_mut(&node).filter(|_| thread.is_some()) {
            known.may_have_capability = true;
        }
        state.entry(node, inode)
    }

    /// Returns the answer to a look-up by a file handle; counts one look-up. A directory stays where it is known to be.
    pub fn entry_of_handle(&self, inode: &Inode) -> LookupEntry {
        let (id, mut state) = (inode.id(), self.state());
        let known = state.known.get(&id.inode).filter(|known| known.id == id);
        let place = known.and_then(|known| known.place.clone());
        state.put(id.inode, id, place);
        if let Some(known) = state.known.get_mut(&id.inode) {
            known.may_have_capability = true;
        }
        state.entry(id.inode, inode)
    }

    /// Returns the identity of the inode that a file handle names, of any generation if the kernel does not know it.
    ///
    /// *Errors*: ESTALE if it is a further node that was forgotten.
    pub fn id_of_handle(&self, node: u64) -> Result<FileId, Errno> {
        match self.id(node) {
            Err(error) if node > FURTHER => Err(error),
            Err(_) => Ok(FileId { inode: node, generation: 0 }),
            known => known,
        }
    }

    /// Returns attributes of a node for the kernel, and remembers its mode and owner.
    pub fn attributes(&self, node: u64, found: &Inode) -> NodeAttributes {
        if let Some(known) = self.state().known.get_mut(&node) {
            known.note_told(found);
        }
        attributes(found)
    }

    /// Whether a file may have capabilities: once after each look-up, before a write.
    pub fn take_capability(&self, node: u64) -> bool {
        self.state().known.get_mut(&node).is_some_and(|known| std::mem::take(&mut known.may_have_capability))
    }

    /// Notes that a file gets an extended attribute.
    pub fn has_attribute(&self, node: u64) {
        if let Some(known) = self.state().known.get_mut(&node) {
            known.may_have_capability = true;
        }
    }

    /// Returns the mode of a file that gives rights to whoever runs it, as far as the kernel was told.
    pub fn mode_with_rights(&self, node: u64) -> Option<u32> {
        let mode = self.state().known.get(&node)?.mode;
        (without_rights(mode) != mode).then_some(mode)
    }

    /// Returns the owner of a file, as the kernel was told last, if it is this user.
    pub fn owner(&self, node: u64, user: u32) -> Option<JudgedOwner> {
        self.state().known.get(&node).map(|known| known.owner).filter(|known| known.owner == user)
    }

    /// Updates the places of directories after the kernel renamed a name, or exchanged two.
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

/// Returns the attributes of an inode in the form of `stat`.
fn attributes(found: &Inode) -> NodeAttributes {
    let inode = &found.inode;
    let [accessed, modified, changed, born] = inode.times_ns.map(time);
    let is_device = matches!(inode.mode & libc::S_IFMT, libc::S_IFBLK | libc::S_IFCHR);
    NodeAttributes {
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
    fn node_lives_until_lookups_forgotten() {
        let nodes = VolumeNodes::new(FileId { inode: ROOT, generation: 1 });
        let entry = nodes.entry(&inode(20, 3), ROOT, b"a", Some(1));
        nodes.entry(&inode(20, 3), ROOT, b"b", Some(1));
        assert_eq!((entry.attributes.accessed, entry.attributes.modified), ((-1, 999_999_999), (1, 500_000_000)));
        nodes.forget(20, 1);
        assert_eq!(nodes.id(20).unwrap(), FileId { inode: 20, generation: 3 });
        nodes.entry(&inode(20, 4), ROOT, b"a", Some(1));
        assert_eq!(nodes.id(20).unwrap().generation, 4);
        nodes.forget(20, 2);
        nodes.forget(ROOT, 5);
        assert!(nodes.id(20).is_err() && nodes.id(ROOT).is_ok());
        assert_eq!(nodes.count(), 1);
    }

    #[test]
    fn file_handle_names_forgotten_inode() {
        let nodes = VolumeNodes::new(FileId { inode: ROOT, generation: 1 });
        assert_eq!(nodes.id_of_handle(20).unwrap(), FileId { inode: 20, generation: 0 });
        assert!(nodes.id_of_handle(FURTHER + 1).is_err());
        assert_eq!(nodes.entry_of_handle(&inode(20, 3)).generation, 3);
        assert_eq!(nodes.id_of_handle(20).unwrap().generation, 3);
        nodes.entry(&directory(30), ROOT, b"a", Some(1));
        nodes.entry_of_handle(&directory(30));
        assert_eq!(nodes.place(30), (30, Some("a".to_owned())), "it is where it was");
    }

    /// The rights of a node are those that the kernel was told last.
    #[test]
    fn rights_match_last_kernel_notice() {
        let nodes = VolumeNodes::new(FileId { inode: ROOT, generation: 1 });
        let mut file = inode(20, 1);
        for (mode, gives) in [(0o644, false), (0o4644, true), (0o2644, false), (0o2654, true), (0o755, false)] {
            file.inode.mode = libc::S_IFREG | mode;
            nodes.entry(&file, ROOT, b"a", Some(1));
            assert_eq!(nodes.mode_with_rights(20).is_some(), gives, "{mode:o}");
            file.inode.mode = libc::S_IFREG | 0o644;
            nodes.attributes(20, &file);
            assert_eq!(nodes.mode_with_rights(20), None);
        }
    }

    /// The owner of a node is the one that the kernel was told last.
    #[test]
    fn owner_matches_last_kernel_notice() {
        let nodes = VolumeNodes::new(FileId { inode: ROOT, generation: 1 });
        let mut file = inode(20, 1);
        (file.inode.owner, file.inode.group) = (7, 8);
        assert_eq!(nodes.owner(20, 7), None);
        nodes.entry(&file, ROOT, b"a", Some(1));
        assert_eq!(nodes.owner(20, 7), Some(JudgedOwner { owner: 7, group: 8 }));
        file.inode.owner = 9;
        nodes.attributes(20, &file);
        assert_eq!((nodes.owner(20, 7), nodes.owner(20, 9)), (None, Some(JudgedOwner { owner: 9, group: 8 })));
    }

    /// What is removed is as the kernel was told last, but has no links.
    #[test]
    fn removed_directory_is_known_while_used() {
        let nodes = VolumeNodes::new(FileId { inode: ROOT, generation: 1 });
        let mut found = directory(20);
        found.inode.links = 2;
        nodes.entry(&found, ROOT, b"a", Some(1));
        found.inode.mode = libc::S_IFDIR | 0o700;
        nodes.attributes(20, &found);
        let removed = nodes.removed(20).map(|removed| (removed.number, removed.inode.mode, removed.inode.links));
        assert_eq!(removed, Some((20, libc::S_IFDIR | 0o700, 0)));
        for (number, kind, is_known) in
            [(30, libc::S_IFIFO, true), (31, libc::S_IFREG, false), (32, libc::S_IFLNK, false)]
        {
            let mut other = inode(number, 1);
            other.inode.mode = kind | 0o644;
            nodes.entry(&other, ROOT, b"b", Some(1));
            assert_eq!(nodes.removed(number).is_some(), is_known, "{kind:o}");
        }
        nodes.forget(20, 1);
        assert!(nodes.removed(20).is_none());
    }

    /// A retried rename finds further nodes of directories that another host moved.
    #[test]
    fn retried_rename_finds_moved_nodes() {
        let nodes = VolumeNodes::new(FileId { inode: ROOT, generation: 1 });
        let node = |number, parent, name: &[u8]| nodes.entry(&directory(number), parent, name, Some(7)).node;
        for (number, parent, name) in [(20, ROOT, b"a"), (30, ROOT, b"b"), (21, 20, b"c")] {
            assert_eq!(node(number, parent, name), number);
        }
        // Another name of the same parent: the kernel moves it.
        assert_eq!((node(20, ROOT, b"d"), node(20, ROOT, b"d")), (20, 20));
        // It is used after the first look-up, so the kernel has moved it.
        assert_eq!(node(20, 30, b"e"), 20);
        nodes.used(7, 20, true);
        assert_eq!((node(20, 30, b"e"), node(20, 30, b"e")), (20, 20));
        // A rename: both names are looked up, permissions are checked, and it fails. Another thread looks meanwhile.
        assert_eq!(node(20, ROOT, b"a"), 20);
        assert_eq!(nodes.entry(&directory(20), ROOT, b"a", Some(8)).node, 20);
        nodes.used(8, 30, false);
        nodes.used(7, ROOT, true);
        let first = node(20, ROOT, b"a");
        let second = node(21, 30, b"f");
        assert!(first > FURTHER && second > first, "{first} {second}");
        assert_eq!((nodes.id(first).unwrap(), nodes.id(second).unwrap().inode), (nodes.id(20).unwrap(), 21));
        nodes.used(7, ROOT, false);
        nodes.rename((ROOT, b"a"), (30, b"f"), true);
        assert_eq!((node(20, 30, b"f"), node(21, ROOT, b"a")), (first, second));
        nodes.forget(first, 2);
        assert!(nodes.id(first).is_err());
        // In between something else was done: no rename is tried again.
        assert_eq!(node(20, 21, b"g"), 20);
        nodes.used(7, ROOT, false);
        assert_eq!(node(20, 21, b"g"), 20);
        // Listings offer nothing.
        assert_eq!(nodes.entry(&directory(21), 40, b"h", None).node, 21);
    }

    #[test]
    fn kernel_rename_keeps_node() {
        let nodes = VolumeNodes::new(FileId { inode: ROOT, generation: 1 });
        let node = |number, parent, name: &[u8]| nodes.entry(&directory(number), parent, name, Some(7)).node;
        let place = |node: u64| nodes.state().known[&node].place.clone();
        assert_eq!((node(20, ROOT, b"a"), node(30, ROOT, b"b"), node(40, 30, b"c")), (20, 30, 40));
        nodes.rename((ROOT, b"a"), (30, b"d"), false);
        assert_eq!(place(20), Some((30, b"d".to_vec())));
        assert_eq!(nodes.place(20), (20, Some("b/d".to_owned())));
        assert_eq!((nodes.place(ROOT), nodes.place(99)), ((ROOT, Some(".".to_owned())), (99, None)));
        nodes.rename((30, b"c"), (ROOT, b"a"), false);
        nodes.rename((30, b"d"), (ROOT, b"a"), true);
        assert_eq!((place(20), place(40)), (Some((ROOT, b"a".to_vec())), Some((30, b"d".to_vec()))));
        // A directory that was replaced is nowhere.
        nodes.rename((ROOT, b"a"), (30, b"d"), false);
        assert_eq!((place(20), place(40)), (Some((30, b"d".to_vec())), None));
        assert_eq!((node(20, 30, b"d"), node(40, ROOT, b"e"), place(40)), (20, 40, None));
    }
}
