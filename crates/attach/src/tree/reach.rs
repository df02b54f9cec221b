//! How a node is reached after its descriptor was closed.
//!
//! Owns: opening nodes again. Nodes in the root's mount of a file system with lasting file handles are opened by their
//! handles, if this process may use them. All others are opened by the names from the root on, and each step is
//! compared with the known node: device, inode number, and the handle or the time of birth. Promises: a descriptor
//! belongs to the node for which it is requested; if the node's file is gone, or cannot be found because others renamed
//! it, the error is `ESTALE`, after which the kernel looks its name up again.

use std::ffi::CStr;
use std::fs::File;
use std::sync::Arc;

use nectary_fuse::{Errno, NodeAttributes};

use super::nodes::{DEPTH_MAX, ROOT, TreeNode, TreeNodes};
use super::source::OwnChange;
use super::sys::{self, FileHandle};

/// File systems whose handles are valid for as long as the file exists: ext2 to ext4, XFS, Btrfs, F2FS, tmpfs. Others
/// have handles that end with the inode in memory (FUSE, FAT) or depend on options (overlayfs).
const LASTING: [i64; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994];

/// What tells a node from a later one with the same inode number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InodeIdentity {
    /// Its file handle, by which it is opened again.
    Handle(FileHandle),
    /// The time at which it was made, in seconds and nanoseconds; it is opened again by its name.
    Born(i64, u32),
}

impl Default for InodeIdentity {
    fn default() -> InodeIdentity {
        InodeIdentity::Born(0, 0)
    }
}

/// The ways to open nodes.
pub struct NodeOpener {
    /// The root, opened with `O_PATH`.
    root: Arc<File>,
    /// The root, open for reading, and the number of its mount, if nodes are opened by handles.
    mount: Option<(File, i32)>,
}

impl NodeOpener {
    /// Finds out whether nodes below `root` can be opened by handles.
    pub fn new(root: Arc<File>, uses_handles: bool) -> Result<NodeOpener, Errno> {
        let mount = if uses_handles { NodeOpener::mount(&root) } else { None };
        Ok(NodeOpener { root, mount })
    }

    fn mount(root: &File) -> Option<(File, i32)> {
        let kind = sys::file_system_kind(root).ok()?;
        let (handle, number) = sys::handle(root).ok()?;
        let mount = sys::open(root, libc::O_RDONLY | libc::O_DIRECTORY).ok()?;
        // Without the right to it, this fails.
        let opened = sys::open_by_handle(&mount, &handle).ok()?;
        let is_root = matches!((sys::stat(root), sys::stat(&opened)), (Ok(root), Ok(opened))
            if (root.st_dev, root.st_ino) == (opened.st_dev, opened.st_ino));
        (LASTING.contains(&kind) && is_root).then_some((mount, number))
    }

    /// Whether nodes are opened by handles.
    pub fn uses_handles(&self) -> bool {
        self.mount.is_some()
    }

    /// Returns what tells the node of a descriptor from a later one with the same inode number.
    pub fn mark(&self, descriptor: &File) -> Result<InodeIdentity, Errno> {
        if let Some((_, mount)) = &self.mount
            && let Ok((handle, of)) = sys::handle(descriptor)
            && of == *mount
        {
            return Ok(InodeIdentity::Handle(handle));
        }
        sys::born(descriptor).map(|(seconds, ns)| InodeIdentity::Born(seconds, ns))
    }
}

/// A node that is about to lose a name.
pub struct NodeRemoval {
    node: Arc<TreeNode>,
    /// Whether the name is the node's last.
    is_last: bool,
    _change: Option<OwnChange>,
}

impl TreeNodes {
    /// Opens something; if the process or the machine has no more descriptors, closes some and tries once more.
    pub fn opening<T>(&self, open: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        match open() {
            Err(error) if matches!(error.number(), libc::EMFILE | libc::ENFILE) => {
                self.descriptors.shrink();
                open()
            }
            opened => opened,
        }
    }

    /// Returns the descriptor of a node, opened with `O_PATH`. *Errors*: `ESTALE` if the node is gone.
    pub fn descriptor(&self, node: &TreeNode) -> Result<Arc<File>, Errno> {
        if node.number == ROOT {
            return Ok(self.reach.root.clone());
        }
        if let Some(descriptor) = self.descriptors.get(&node.ticket) {
            return Ok(descriptor);
        }
        match (&node.mark, &self.reach.mount) {
            (InodeIdentity::Handle(handle), Some((mount, _))) => {
                let opened = self.opening(|| sys::open_by_handle(mount, handle)).map_err(gone)?;
                Ok(self.held(node, opened))
            }
            _ => self.by_names(node),
        }
    }

    fn held(&self, node: &TreeNode, opened: File) -> Arc<File> {
        let descriptor = Arc::new(opened);
        self.descriptors.put(&node.ticket, descriptor.clone());
        descriptor
    }

    /// Opens a node by the names from the next directory above it that is open.
    fn by_names(&self, node: &TreeNode) -> Result<Arc<File>, Errno> {
        let stale = || Errno::new(libc::ESTALE);
        let (parent, name) = node.name().ok_or_else(stale)?;
        let mut below = vec![(None, name)];
        let mut above = self.get(parent)?;
        let mut descriptor = loop {
            match &above.mark {
                _ if above.number == ROOT => break self.reach.root.clone(),
                InodeIdentity::Handle(_) => break self.descriptor(&above)?,
                InodeIdentity::Born(..) => {}
            }
            if let Some(descriptor) = self.descriptors.get(&above.ticket) {
                break descriptor;
            }
            // Others may move directories so that the names form a circle.
            if below.len() >= DEPTH_MAX {
                return Err(stale());
            }
            let (parent, name) = above.name().ok_or_else(stale)?;
            let next = self.get(parent)?;
            below.push((Some(above), name));
            above = next;
        };
        for (of, name) in below.into_iter().rev() {
            let of = of.as_deref().unwrap_or(node);
            let opened = self.opening(|| sys::look_up(&descriptor, &name)).map_err(gone)?;
            let stat = sys::stat(&opened)?;
            if (stat.st_dev, stat.st_ino) != of.inode || self.reach.mark(&opened)? != of.mark {
                return Err(stale());
            }
            descriptor = self.held(of, opened);
        }
        Ok(descriptor)
    }

    /// The current attributes of a node. If others have changed its file, the cache learns it.
    pub fn attributes(&self, node: &TreeNode) -> Result<NodeAttributes, Errno> {
        let stat = sys::stat(&*self.descriptor(node)?)?;
        match node.file().filter(|_| !self.is_exclusive) {
            Some(file) => file.source.look(Some(&stat)).map(|stat| NodeAttributes::from(&stat)),
            None => Ok(NodeAttributes::from(&stat)),
        }
    }

    /// Counts an open file or directory of a node. Its descriptor stays open, unless too many are: what others delete
    /// can then still be read.
    pub fn add_open(&self, node: &TreeNode) -> Result<(), Errno> {
        let descriptor = self.descriptor(node)?;
        let is_first = node.add_open();
        if node.number == ROOT {
            return Ok(());
        }
        if is_first {
            self.descriptors.keep(&node.ticket, &descriptor, self.descriptors.kept_max() / 2);
        }
        Ok(())
    }

    /// Ends what [`add_open`](Self::add_open) began. With the last, the reader and the writer of a file are closed.
    pub fn remove_open(&self, node: &TreeNode) {
        if !node.remove_open() {
            return;
        }
        if let Some(file) = node.file() {
            file.source.close(self);
        }
        if !node.is_lost() {
            self.descriptors.release(&node.ticket);
        }
    }

    /// Keeps the descriptor of a node without a name. *Errors*: `EMFILE` if too many are kept.
    pub fn keep_nameless(&self, node: &TreeNode) -> Result<(), Errno> {
        let descriptor = self.descriptor(node)?;
        match self.descriptors.keep(&node.ticket, &descriptor, usize::MAX) {
            true => Ok(()),
            false => Err(Errno::new(libc::EMFILE)),
        }
    }

    /// Returns the known node of a name.
    pub fn named(&self, above: &File, name: &CStr) -> Option<Arc<TreeNode>> {
        let opened = self.opening(|| sys::look_up(above, name)).ok()?;
        let node = self.find(&opened)?;
        if self.descriptors.get(&node.ticket).is_none() {
            self.descriptors.put(&node.ticket, Arc::new(opened));
        }
        Some(node)
    }

    /// Prepares the removal of a name of a known node: a file that is open, and loses the way to it, keeps its
    /// descriptor. *Errors*: `EMFILE` if it is open and too many are kept; the name must then stay.
    pub fn removing(
        &self,
        node: Arc<TreeNode>,
        parent: u64,
        name: &CStr,
        is_directory: bool,
    ) -> Result<NodeRemoval, Errno> {
        let descriptor = self.descriptor(&node)?;
        let is_last = is_directory || sys::stat(&*descriptor)?.st_nlink <= 1;
        let loses_way = is_last || matches!(node.mark, InodeIdentity::Born(..)) && node.has_name(parent, name);
        if loses_way {
            // A file that no program has open is kept if there is room, for a program that has only looked at it.
            let kept_max = if node.is_open() { usize::MAX } else { self.descriptors.kept_max() / 2 };
            if !self.descriptors.keep(&node.ticket, &descriptor, kept_max) && node.is_open() {
                return Err(Errno::new(libc::EMFILE));
            }
        }
        let change = OwnChange::of(&node);
        Ok(NodeRemoval { node, is_last, _change: change })
    }

    /// Ends a removal: the name was removed if `is_done`.
    pub fn removed(&self, removal: NodeRemoval, parent: u64, name: &CStr, is_done: bool) {
        let node = &removal.node;
        if is_done {
            node.remove_name(parent, name, removal.is_last, &self.name_bytes);
        }
        if !node.is_open() && !node.is_lost() {
            self.descriptors.release(&node.ticket);
        }
    }
}

/// The error of opening a known node: the node is not there any more.
fn gone(error: Errno) -> Errno {
    match error.number() {
        libc::ENOENT | libc::ENOTDIR => Errno::new(libc::ESTALE),
        _ => error,
    }
}
