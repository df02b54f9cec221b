//! A file system in memory. It has the minimum of features that real programs need, and gives every kind of answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use nectary_fuse::protocol::{open_flags, valid};
use nectary_fuse::{
    DirectoryListing, Errno, FuseFileSystem, FuseRequest, LockRange, LookupEntry, NodeAttributes, ReplyHandle,
    RequestCall, RequestedFeatures, SetAttributes, StatFs, features,
};

const ROOT: u64 = 1;
const VALID: Duration = Duration::from_secs(3600);

#[derive(Default)]
pub struct MemoryFileSystem {
    state: Mutex<MemoryNodeTable>,
}

/// Counters of the file system.
#[derive(Debug, Clone, Copy, Default)]
pub struct CallFigures {
    pub write_bytes_max: u32,
    pub lookups: u64,
    pub locks_waited_for: usize,
}

struct MemoryNode {
    attributes: NodeAttributes,
    content: NodeContent,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    lookups: u64,
    lock_owners: BTreeSet<u64>,
    is_locked_alone: bool,
}

enum NodeContent {
    File(Vec<u8>),
    Directory(BTreeMap<Vec<u8>, u64>),
    Link(Vec<u8>),
}

struct MemoryNodeTable {
    nodes: BTreeMap<u64, MemoryNode>,
    next: u64,
    waiting: Vec<(u64, u64, LockRange, ReplyHandle)>,
    figures: CallFigures,
}

type Result<T> = std::result::Result<T, Errno>;

fn errno<T>(number: i32) -> Result<T> {
    Err(Errno::new(number))
}

impl Default for MemoryNodeTable {
    fn default() -> MemoryNodeTable {
        let mut state = MemoryNodeTable {
            nodes: BTreeMap::new(),
            next: ROOT,
            waiting: Vec::new(),
            figures: CallFigures::default(),
        };
        state.add(libc::S_IFDIR | 0o755, NodeContent::Directory(BTreeMap::new()));
        state
    }
}

impl MemoryNodeTable {
    fn add(&mut self, mode: u32, content: NodeContent) -> u64 {
        let number = self.next;
        self.next += 1;
        let links = if matches!(content, NodeContent::Directory(_)) { 2 } else { 0 };
        let attributes = NodeAttributes { number, mode, links, block_bytes: 4096, ..NodeAttributes::default() };
        let (xattrs, lock_owners) = (BTreeMap::new(), BTreeSet::new());
        self.nodes.insert(
            number,
            MemoryNode { attributes, content, xattrs, lookups: 0, lock_owners, is_locked_alone: false },
        );
        number
    }

    fn node(&mut self, node: u64) -> Result<&mut MemoryNode> {
        self.nodes.get_mut(&node).ok_or(Errno::new(libc::ENOENT))
    }

    fn names(&mut self, node: u64) -> Result<&mut BTreeMap<Vec<u8>, u64>> {
        match &mut self.node(node)?.content {
            NodeContent::Directory(names) => Ok(names),
            _ => errno(libc::ENOTDIR),
        }
    }

    fn file(&mut self, node: u64) -> Result<&mut Vec<u8>> {
        match &mut self.node(node)?.content {
            NodeContent::File(bytes) => Ok(bytes),
            _ => errno(libc::EISDIR),
        }
    }

    fn attributes(&mut self, node: u64) -> Result<NodeAttributes> {
        let node = self.node(node)?;
        let size = match &node.content {
            NodeContent::File(bytes) | NodeContent::Link(bytes) => bytes.len() as u64,
            NodeContent::Directory(_) => 0,
        };
        Ok(NodeAttributes { size, blocks: size.div_ceil(512), ..node.attributes })
    }

    fn entry(&mut self, number: u64) -> Result<LookupEntry> {
        let attributes = self.attributes(number)?;
        self.node(number)?.lookups += 1;
        self.figures.lookups += 1;
        Ok(LookupEntry { node: number, generation: 0, attributes, entry_valid: VALID, attributes_valid: VALID })
    }

    fn link(&mut self, parent: u64, name: &[u8], number: u64) -> Result<LookupEntry> {
        if self.names(parent)?.insert(name.to_vec(), number).is_some() {
            return errno(libc::EEXIST);
        }
        self.node(number)?.attributes.links += 1;
        self.entry(number)
    }

    fn make(&mut self, parent: u64, name: &[u8], mode: u32, content: NodeContent) -> Result<LookupEntry> {
        if self.names(parent)?.contains_key(name) {
            return errno(libc::EEXIST);
        }
        let number = self.add(mode, content);
        self.link(parent, name, number)
    }

    fn unlink(&mut self, parent: u64, name: &[u8]) -> Result<()> {
        let Some(number) = self.names(parent)?.remove(name) else { return errno(libc::ENOENT) };
        let node = self.node(number)?;
        node.attributes.links = node.attributes.links.saturating_sub(1);
        self.bury(number);
        Ok(())
    }

    /// Drops a node if the node has no name and no look-ups.
    fn bury(&mut self, number: u64) {
        if self.nodes.get(&number).is_some_and(|node| node.attributes.links == 0 && node.lookups == 0) {
            self.nodes.remove(&number);
        }
    }

    fn set(&mut self, number: u64, change: SetAttributes) -> Result<NodeAttributes> {
        if change.valid & valid::SIZE != 0 {
            self.file(number)?.resize(change.size as usize, 0);
        }
        let attributes = &mut self.node(number)?.attributes;
        if change.valid & valid::MODE != 0 {
            attributes.mode = change.mode;
        }
        if change.valid & valid::MODIFIED != 0 {
            attributes.modified = change.modified;
        }
        self.attributes(number)
    }

    fn list(&mut self, number: u64, offset: u64, size: u32, plus: bool) -> Result<DirectoryListing> {
        let names: Vec<(Vec<u8>, u64)> =
            self.names(number)?.iter().map(|(name, number)| (name.clone(), *number)).collect();
        let mut listing = DirectoryListing::new(size, plus);
        for (index, (name, number)) in names.iter().enumerate().skip(offset as usize) {
            let attributes = self.attributes(*number)?;
            let kind = (attributes.mode >> 12) as u8;
            let entry =
                LookupEntry { node: *number, generation: 0, attributes, entry_valid: VALID, attributes_valid: VALID };
            if !listing.add(name, *number, kind, index as u64 + 1, &entry) {
                break;
            }
            if plus {
                self.node(*number)?.lookups += 1;
                self.figures.lookups += 1;
            }
        }
        Ok(listing)
    }

    /// Takes or releases a lock; fails with `EAGAIN` if another lock conflicts.
    fn lock(&mut self, number: u64, lock: &LockRange) -> Result<()> {
        let node = self.node(number)?;
        let is_alone = lock.kind == libc::F_WRLCK;
        let others = node.lock_owners.iter().filter(|&&owner| owner != lock.owner).count();
        match lock.kind {
            libc::F_UNLCK => {
                node.lock_owners.remove(&lock.owner);
            }
            _ if others > 0 && (is_alone || node.is_locked_alone) => return errno(libc::EAGAIN),
            _ => {
                node.lock_owners.insert(lock.owner);
                node.is_locked_alone = is_alone;
            }
        }
        Ok(())
    }

    /// Grants the waiting requests the locks that are now free.
    fn grant(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        for (unique, node, lock, reply) in waiting {
            match self.lock(node, &lock) {
                Err(error) if error.number() == libc::EAGAIN => self.waiting.push((unique, node, lock, reply)),
                result => reply.done(result),
            }
        }
    }
}

impl MemoryFileSystem {
    fn state(&self) -> MutexGuard<'_, MemoryNodeTable> {
        self.state.lock().unwrap()
    }

    pub fn figures(&self) -> CallFigures {
        let state = self.state();
        CallFigures { locks_waited_for: state.waiting.len(), ..state.figures }
    }

    /// Changes a file without telling the kernel.
    pub fn change(&self, node: u64, bytes: &[u8]) {
        *self.state().file(node).unwrap() = bytes.to_vec();
    }

    /// Removes a name of the root without telling the kernel.
    pub fn remove(&self, name: &[u8]) {
        self.state().unlink(ROOT, name).unwrap();
    }
}

fn entry(reply: ReplyHandle, result: Result<LookupEntry>) {
    match result {
        Ok(entry) => reply.entry(&entry),
        Err(error) => reply.error(error),
    }
}

impl FuseFileSystem for MemoryFileSystem {
    fn wishes(&self) -> RequestedFeatures {
        let features = features::FLOCK
            | features::READ_DIRECTORY_PLUS
            | features::READ_DIRECTORY_PLUS_AUTO
            | features::PARALLEL_DIRECTORY
            | features::DIRECT_IO_ALLOW_MMAP;
        RequestedFeatures { features, ..RequestedFeatures::default() }
    }

    fn serve(&self, request: FuseRequest<'_>, reply: ReplyHandle) {
        let (node, mut state) = (request.node, self.state());
        let answer = |result: Result<()>, reply: ReplyHandle| reply.done(result);
        match request.call {
            RequestCall::LookUp { name } => {
                let found = state
                    .names(node)
                    .and_then(|names| names.get(name.to_bytes()).copied().ok_or(Errno::new(libc::ENOENT)));
                entry(reply, found.and_then(|number| state.entry(number)));
            }
            RequestCall::GetAttributes { .. } => match state.attributes(node) {
                Ok(attributes) => reply.attributes(&attributes, VALID),
                Err(error) => reply.error(error),
            },
            RequestCall::StatX { .. } => match state.attributes(node) {
                Ok(attributes) => reply.statx(&NodeAttributes { born: Some((1, 2)), ..attributes }, VALID),
                Err(error) => reply.error(error),
            },
            RequestCall::SetAttributes(change) => match state.set(node, change) {
                Ok(attributes) => reply.attributes(&attributes, VALID),
                Err(error) => reply.error(error),
            },
            RequestCall::MakeDirectory { name, mode, .. } => {
                let content = NodeContent::Directory(BTreeMap::new());
                entry(reply, state.make(node, name.to_bytes(), libc::S_IFDIR | mode, content));
            }
            RequestCall::SymbolicLink { name, target } => {
                let content = NodeContent::Link(target.to_bytes().to_vec());
                entry(reply, state.make(node, name.to_bytes(), libc::S_IFLNK | 0o777, content));
            }
            RequestCall::ReadLink => match state.node(node).map(|node| &node.content) {
                Ok(NodeContent::Link(target)) => reply.bytes(target),
                _ => reply.errno(libc::EINVAL),
            },
            RequestCall::Create { name, mode, .. } => {
                match state.make(node, name.to_bytes(), mode, NodeContent::File(Vec::new())) {
                    Ok(entry) => reply.created(&entry, 0, open_flags::DIRECT_IO),
                    Err(error) => reply.error(error),
                }
            }
            RequestCall::Link { node: of, new_name } => entry(reply, state.link(node, new_name.to_bytes(), of)),
            RequestCall::Unlink { name } => answer(state.unlink(node, name.to_bytes()), reply),
            RequestCall::RemoveDirectory { name } => {
                let found = state.names(node).map(|names| names.get(name.to_bytes()).copied());
                let is_full = match found {
                    Ok(Some(number)) => state.names(number).is_ok_and(|names| !names.is_empty()),
                    _ => false,
                };
                answer(if is_full { errno(libc::ENOTEMPTY) } else { state.unlink(node, name.to_bytes()) }, reply);
            }
            RequestCall::Rename { name, new_parent, new_name, flags: 0 } => {
                let moved =
                    state.names(node).and_then(|names| names.remove(name.to_bytes()).ok_or(Errno::new(libc::ENOENT)));
                let moved = moved.and_then(|number| {
                    let _ = state.unlink(new_parent, new_name.to_bytes());
                    state.names(new_parent).map(|names| names.insert(new_name.to_bytes().to_vec(), number))
                });
                answer(moved.map(drop), reply);
            }
            RequestCall::Open { .. } => reply.opened(0, open_flags::DIRECT_IO),
            RequestCall::OpenDirectory { .. } => reply.opened(0, 0),
            RequestCall::Read(read) => match state.file(node) {
                Ok(bytes) => {
                    let start = bytes.len().min(read.offset as usize);
                    let end = bytes.len().min(start + read.size as usize);
                    reply.bytes(&bytes[start..end]);
                }
                Err(error) => reply.error(error),
            },
            RequestCall::Write(write) => {
                let data = request.data.unwrap().to_vec();
                state.figures.write_bytes_max = state.figures.write_bytes_max.max(write.size);
                match state.file(node) {
                    Ok(bytes) => {
                        let end = write.offset as usize + data.len();
                        bytes.resize(bytes.len().max(end), 0);
                        bytes[write.offset as usize..end].copy_from_slice(&data);
                        reply.written(write.size);
                    }
                    Err(error) => reply.error(error),
                }
            }
            RequestCall::ReadDirectory { offset, size, plus, .. } => match state.list(node, offset, size, plus) {
                Ok(listing) => reply.listing(&listing),
                Err(error) => reply.error(error),
            },
            RequestCall::SetXattr { name, value, .. } => {
                let set = state.node(node).map(|node| node.xattrs.insert(name.to_bytes().to_vec(), value.to_vec()));
                answer(set.map(drop), reply);
            }
            RequestCall::GetXattr { name, .. } => match state.node(node).map(|node| node.xattrs.get(name.to_bytes())) {
                Ok(Some(value)) => reply.xattr(value),
                _ => reply.errno(libc::ENODATA),
            },
            RequestCall::ListXattr { .. } => match state.node(node) {
                Ok(node) => {
                    let names = node.xattrs.keys().flat_map(|name| name.iter().copied().chain([0]));
                    reply.xattr(&names.collect::<Vec<u8>>());
                }
                Err(error) => reply.error(error),
            },
            RequestCall::RemoveXattr { name } => match state.node(node).map(|node| node.xattrs.remove(name.to_bytes()))
            {
                Ok(Some(_)) => reply.ok(),
                _ => reply.errno(libc::ENODATA),
            },
            RequestCall::SetLock { lock, waits } => {
                match state.lock(node, &lock) {
                    Err(error) if waits && error.number() == libc::EAGAIN => {
                        if reply.is_interrupted() {
                            reply.errno(libc::EINTR);
                        } else {
                            state.waiting.push((request.unique, node, lock, reply));
                        }
                    }
                    result => reply.done(result),
                }
                state.grant();
            }
            RequestCall::StatFs => {
                reply.statfs(&StatFs { block_bytes: 4096, name_bytes_max: 255, ..StatFs::default() })
            }
            RequestCall::Release { owner, unlock, .. } => {
                if unlock && let Ok(node) = state.node(node) {
                    node.lock_owners.remove(&owner);
                }
                state.grant();
                reply.ok();
            }
            RequestCall::ReleaseDirectory { .. } | RequestCall::Sync { .. } | RequestCall::Flush { .. } => reply.ok(),
            _ => reply.errno(libc::ENOSYS),
        }
    }

    fn forget(&self, node: u64, lookups: u64) {
        let mut state = self.state();
        if let Ok(node) = state.node(node) {
            node.lookups = node.lookups.saturating_sub(lookups);
        }
        state.bury(node);
    }

    fn interrupted(&self, unique: u64, is_answered: bool) {
        let mut state = self.state();
        if let Some(index) = state.waiting.iter().position(|waiting| waiting.0 == unique && !is_answered) {
            let (.., reply) = state.waiting.remove(index);
            reply.errno(libc::EINTR);
        }
    }
}
