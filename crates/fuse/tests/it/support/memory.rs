//! A file system in memory. It has the minimum of features that real programs need, and gives every kind of answer.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use nectary_fuse::protocol::{open_flags, valid};
use nectary_fuse::{
    DirectoryListing, Errno, FuseFileSystem, LockRange, LookupEntry, NodeAttributes, PooledData, ReadCall, ReplyHandle,
    RequestContext, RequestedFeatures, SetAttributes, StatFs, WriteCall, features,
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

    fn look_up(&self, of: RequestContext, name: &CStr, reply: ReplyHandle) {
        let mut state = self.state();
        let found =
            state.names(of.node).and_then(|names| names.get(name.to_bytes()).copied().ok_or(Errno::new(libc::ENOENT)));
        entry(reply, found.and_then(|number| state.entry(number)));
    }

    fn get_attributes(&self, of: RequestContext, reply: ReplyHandle) {
        match self.state().attributes(of.node) {
            Ok(attributes) => reply.attributes(&attributes, VALID),
            Err(error) => reply.error(error),
        }
    }

    fn stat_x(&self, of: RequestContext, reply: ReplyHandle) {
        match self.state().attributes(of.node) {
            Ok(attributes) => reply.statx(&NodeAttributes { born: Some((1, 2)), ..attributes }, VALID),
            Err(error) => reply.error(error),
        }
    }

    fn set_attributes(&self, of: RequestContext, change: SetAttributes, reply: ReplyHandle) {
        match self.state().set(of.node, change) {
            Ok(attributes) => reply.attributes(&attributes, VALID),
            Err(error) => reply.error(error),
        }
    }

    fn make_directory(&self, of: RequestContext, name: &CStr, mode: u32, _umask: u32, reply: ReplyHandle) {
        let content = NodeContent::Directory(BTreeMap::new());
        entry(reply, self.state().make(of.node, name.to_bytes(), libc::S_IFDIR | mode, content));
    }

    fn symbolic_link(&self, of: RequestContext, name: &CStr, target: &CStr, reply: ReplyHandle) {
        let content = NodeContent::Link(target.to_bytes().to_vec());
        entry(reply, self.state().make(of.node, name.to_bytes(), libc::S_IFLNK | 0o777, content));
    }

    fn read_link(&self, of: RequestContext, reply: ReplyHandle) {
        match self.state().node(of.node).map(|node| &node.content) {
            Ok(NodeContent::Link(target)) => reply.bytes(target),
            _ => reply.errno(libc::EINVAL),
        }
    }

    fn create(&self, of: RequestContext, name: &CStr, mode: u32, _umask: u32, _flags: i32, reply: ReplyHandle) {
        match self.state().make(of.node, name.to_bytes(), mode, NodeContent::File(Vec::new())) {
            Ok(entry) => reply.created(&entry, 0, open_flags::DIRECT_IO),
            Err(error) => reply.error(error),
        }
    }

    fn link(&self, of: RequestContext, node: u64, new_name: &CStr, reply: ReplyHandle) {
        entry(reply, self.state().link(of.node, new_name.to_bytes(), node));
    }

    fn unlink(&self, of: RequestContext, name: &CStr, reply: ReplyHandle) {
        reply.done(self.state().unlink(of.node, name.to_bytes()));
    }

    fn remove_directory(&self, of: RequestContext, name: &CStr, reply: ReplyHandle) {
        let mut state = self.state();
        let found = state.names(of.node).map(|names| names.get(name.to_bytes()).copied());
        let is_full = match found {
            Ok(Some(number)) => state.names(number).is_ok_and(|names| !names.is_empty()),
            _ => false,
        };
        reply.done(if is_full { errno(libc::ENOTEMPTY) } else { state.unlink(of.node, name.to_bytes()) });
    }

    fn rename(
        &self,
        of: RequestContext,
        name: &CStr,
        new_parent: u64,
        new_name: &CStr,
        flags: u32,
        reply: ReplyHandle,
    ) {
        if flags != 0 {
            return reply.errno(libc::ENOSYS);
        }
        let mut state = self.state();
        let moved =
            state.names(of.node).and_then(|names| names.remove(name.to_bytes()).ok_or(Errno::new(libc::ENOENT)));
        let moved = moved.and_then(|number| {
            let _ = state.unlink(new_parent, new_name.to_bytes());
            state.names(new_parent).map(|names| names.insert(new_name.to_bytes().to_vec(), number))
        });
        reply.done(moved.map(drop));
    }

    fn open(&self, _of: RequestContext, _flags: i32, reply: ReplyHandle) {
        reply.opened(0, open_flags::DIRECT_IO);
    }

    fn open_directory(&self, _of: RequestContext, reply: ReplyHandle) {
        reply.opened(0, 0);
    }

    fn read(&self, of: RequestContext, read: ReadCall, reply: ReplyHandle) {
        match self.state().file(of.node) {
            Ok(bytes) => {
                let start = bytes.len().min(read.offset as usize);
                let end = bytes.len().min(start + read.size as usize);
                reply.bytes(&bytes[start..end]);
            }
            Err(error) => reply.error(error),
        }
    }

    fn write(&self, of: RequestContext, write: WriteCall, data: PooledData, reply: ReplyHandle) {
        let (mut state, data) = (self.state(), data.to_vec());
        state.figures.write_bytes_max = state.figures.write_bytes_max.max(write.size);
        match state.file(of.node) {
            Ok(bytes) => {
                let end = write.offset as usize + data.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[write.offset as usize..end].copy_from_slice(&data);
                reply.written(write.size);
            }
            Err(error) => reply.error(error),
        }
    }

    fn read_directory(&self, of: RequestContext, _handle: u64, offset: u64, size: u32, plus: bool, reply: ReplyHandle) {
        match self.state().list(of.node, offset, size, plus) {
            Ok(listing) => reply.listing(&listing),
            Err(error) => reply.error(error),
        }
    }

    fn set_xattr(
        &self,
        of: RequestContext,
        name: &CStr,
        value: &[u8],
        _flags: u32,
        _kill_group_id: bool,
        reply: ReplyHandle,
    ) {
        let mut state = self.state();
        let set = state.node(of.node).map(|node| node.xattrs.insert(name.to_bytes().to_vec(), value.to_vec()));
        reply.done(set.map(drop));
    }

    fn get_xattr(&self, of: RequestContext, name: &CStr, _size: u32, reply: ReplyHandle) {
        match self.state().node(of.node).map(|node| node.xattrs.get(name.to_bytes())) {
            Ok(Some(value)) => reply.xattr(value),
            _ => reply.errno(libc::ENODATA),
        }
    }

    fn list_xattr(&self, of: RequestContext, _size: u32, reply: ReplyHandle) {
        match self.state().node(of.node) {
            Ok(node) => {
                let names = node.xattrs.keys().flat_map(|name| name.iter().copied().chain([0]));
                reply.xattr(&names.collect::<Vec<u8>>());
            }
            Err(error) => reply.error(error),
        }
    }

    fn remove_xattr(&self, of: RequestContext, name: &CStr, reply: ReplyHandle) {
        match self.state().node(of.node).map(|node| node.xattrs.remove(name.to_bytes())) {
            Ok(Some(_)) => reply.ok(),
            _ => reply.errno(libc::ENODATA),
        }
    }

    fn set_lock(&self, of: RequestContext, lock: LockRange, waits: bool, reply: ReplyHandle) {
        let mut state = self.state();
        match state.lock(of.node, &lock) {
            Err(error) if waits && error.number() == libc::EAGAIN => {
                if reply.is_interrupted() {
                    reply.errno(libc::EINTR);
                } else {
                    state.waiting.push((of.unique, of.node, lock, reply));
                }
            }
            result => reply.done(result),
        }
        state.grant();
    }

    fn stat_fs(&self, _of: RequestContext, reply: ReplyHandle) {
        reply.statfs(&StatFs { block_bytes: 4096, name_bytes_max: 255, ..StatFs::default() });
    }

    fn release(&self, of: RequestContext, _handle: u64, owner: u64, unlock: bool, reply: ReplyHandle) {
        let mut state = self.state();
        if unlock && let Ok(node) = state.node(of.node) {
            node.lock_owners.remove(&owner);
        }
        state.grant();
        reply.ok();
    }

    fn release_directory(&self, _of: RequestContext, _handle: u64, reply: ReplyHandle) {
        reply.ok();
    }

    fn sync(&self, _of: RequestContext, _handle: u64, reply: ReplyHandle) {
        reply.ok();
    }

    fn flush(&self, _of: RequestContext, _handle: u64, _owner: u64, reply: ReplyHandle) {
        reply.ok();
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
