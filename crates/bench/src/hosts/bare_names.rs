//! A bare FUSE server of names: directories and empty files in memory.
//!
//! Owns: the file system. Nothing on FUSE can do less for a create, a stat or an unlink, so its rates are the limit of
//! them. Nothing is durable. The kernel shows names and attributes as long as those of a volume.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nectary_fuse::protocol::open_flags;
use nectary_fuse::{
    DirectoryListing, FuseFileSystem, FuseRequest, LookupEntry, NodeAttributes, ReplyHandle, RequestCall,
};

const ROOT: u64 = 1;
/// How long the kernel may show names and attributes: as long as those of a volume whose lease was just renewed.
const VALID: Duration = Duration::from_secs(4);

/// A directory with its names, or a file.
#[derive(Debug, Default)]
struct BareNode {
    mode: u32,
    links: u32,
    names: BTreeMap<Vec<u8>, u64>,
    /// The names in the order in which they were made, by the numbers of their nodes.
    listed: BTreeMap<u64, Vec<u8>>,
}

impl BareNode {
    fn new(mode: u32) -> BareNode {
        let links = if mode & libc::S_IFMT == libc::S_IFDIR { 2 } else { 1 };
        BareNode { mode, links, names: BTreeMap::new(), listed: BTreeMap::new() }
    }
}

#[derive(Debug)]
struct BareNameTree {
    nodes: HashMap<u64, BareNode>,
    next: u64,
}

/// The file system.
pub(super) struct BareNames(Mutex<BareNameTree>);

impl BareNames {
    pub fn new() -> BareNames {
        let root = BareNode::new(libc::S_IFDIR | 0o700);
        BareNames(Mutex::new(BareNameTree { nodes: HashMap::from([(ROOT, root)]), next: ROOT + 1 }))
    }
}

impl BareNameTree {
    fn attributes(&self, node: u64) -> Option<NodeAttributes> {
        let BareNode { mode, links, .. } = self.nodes.get(&node)?;
        Some(NodeAttributes {
            number: node,
            mode: *mode,
            links: *links,
            block_bytes: 4096,
            ..NodeAttributes::default()
        })
    }

    fn entry(&self, node: u64) -> Option<LookupEntry> {
        let attributes = self.attributes(node)?;
        Some(LookupEntry { node, generation: 0, attributes, entry_valid: VALID, attributes_valid: VALID })
    }

    fn find(&self, parent: u64, name: &[u8]) -> Result<u64, i32> {
        let names = &self.nodes.get(&parent).ok_or(libc::ESTALE)?.names;
        names.get(name).copied().ok_or(libc::ENOENT)
    }

    fn make(&mut self, parent: u64, name: &[u8], mode: u32) -> Result<LookupEntry, i32> {
        let (node, directory) = (self.next, self.nodes.get_mut(&parent).ok_or(libc::ESTALE)?);
        if directory.names.contains_key(name) {
            return Err(libc::EEXIST);
        }
        directory.names.insert(name.to_vec(), node);
        directory.listed.insert(node, name.to_vec());
        self.next += 1;
        self.nodes.insert(node, BareNode::new(mode));
        self.entry(node).ok_or(libc::EIO)
    }

    fn remove(&mut self, parent: u64, name: &[u8]) -> Result<(), i32> {
        let node = self.find(parent, name)?;
        if self.nodes.get(&node).is_some_and(|found| !found.names.is_empty()) {
            return Err(libc::ENOTEMPTY);
        }
        self.nodes.remove(&node);
        if let Some(parent) = self.nodes.get_mut(&parent) {
            parent.names.remove(name);
            parent.listed.remove(&node);
        }
        Ok(())
    }

    fn list(&self, directory: u64, offset: u64, listing: &mut DirectoryListing) {
        let Some(found) = self.nodes.get(&directory) else { return };
        for (node, name) in found.listed.range(offset.saturating_add(1)..) {
            let Some(entry) = self.entry(*node) else { continue };
            let kind = (entry.attributes.mode >> 12) as u8;
            if !listing.add(name, *node, kind, *node, &entry) {
                return;
            }
        }
    }
}

impl FuseFileSystem for BareNames {
    fn serve(&self, request: FuseRequest<'_>, reply: ReplyHandle) {
        let mut tree = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let node = request.node;
        match request.call {
            RequestCall::LookUp { name } => {
                let found = tree.find(node, name.to_bytes());
                match found.and_then(|found| tree.entry(found).ok_or(libc::ESTALE)) {
                    Ok(entry) => reply.entry(&entry),
                    Err(errno) => reply.errno(errno),
                }
            }
            RequestCall::GetAttributes { .. } | RequestCall::SetAttributes(_) => match tree.attributes(node) {
                Some(attributes) => reply.attributes(&attributes, VALID),
                // It is open and has no name.
                None => reply.errno(libc::ESTALE),
            },
            RequestCall::MakeDirectory { name, mode, .. } => {
                match tree.make(node, name.to_bytes(), libc::S_IFDIR | mode & 0o7777) {
                    Ok(entry) => reply.entry(&entry),
                    Err(errno) => reply.errno(errno),
                }
            }
            RequestCall::Create { name, mode, .. } => {
                match tree.make(node, name.to_bytes(), libc::S_IFREG | mode & 0o7777) {
                    Ok(entry) => reply.created(&entry, 0, open_flags::NO_FLUSH),
                    Err(errno) => reply.errno(errno),
                }
            }
            RequestCall::Unlink { name } | RequestCall::RemoveDirectory { name } => {
                match tree.remove(node, name.to_bytes()) {
                    Ok(()) => reply.ok(),
                    Err(errno) => reply.errno(errno),
                }
            }
            RequestCall::ReadDirectory { offset, size, plus, .. } => {
                let mut listing = DirectoryListing::new(size, plus);
                tree.list(node, offset, &mut listing);
                reply.listing(&listing);
            }
            RequestCall::Open { .. } => reply.opened(0, open_flags::NO_FLUSH),
            RequestCall::OpenDirectory { .. } => reply.opened(0, 0),
            RequestCall::Release { .. }
            | RequestCall::ReleaseDirectory { .. }
            | RequestCall::Sync { .. }
            | RequestCall::SyncDirectory { .. }
            | RequestCall::SyncFileSystem
            | RequestCall::Flush { .. } => reply.ok(),
            _ => reply.errno(libc::ENOSYS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_found_and_removed() {
        let bare = BareNames::new();
        let mut tree = bare.0.lock().unwrap();
        let directory = tree.make(ROOT, b"d", libc::S_IFDIR | 0o755).unwrap();
        let file = tree.make(directory.node, b"f", libc::S_IFREG | 0o644).unwrap();
        assert_eq!((tree.find(directory.node, b"f"), file.attributes.links), (Ok(file.node), 1));
        assert_eq!(tree.make(directory.node, b"f", libc::S_IFREG).map(drop), Err(libc::EEXIST));
        assert_eq!(tree.remove(ROOT, b"d"), Err(libc::ENOTEMPTY));
        assert_eq!((tree.remove(directory.node, b"f"), tree.remove(ROOT, b"d")), (Ok(()), Ok(())));
        assert_eq!((tree.find(ROOT, b"d"), tree.nodes.len()), (Err(libc::ENOENT), 1));
    }
}
