//! Tests of nodes whose descriptors are closed and opened again, with handles and with names only.

use std::ffi::{CStr, CString};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use nectary_buffer::{BufferCache, CacheOptions};
use nectary_fuse::Errno;

use super::descriptors::DescriptorTable;
use super::nodes::{ROOT, TreeNode, TreeNodes};
use super::sys;

/// A source directory and its nodes, with a table of 16 descriptors.
struct NodesFixture {
    nodes: TreeNodes,
    folder: PathBuf,
    runtime: tokio::runtime::Runtime,
}

impl NodesFixture {
    fn new(uses_handles: bool) -> NodesFixture {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("nectary-nodes-{}-{serial}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let root = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(&folder).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let cache = {
            let _inside = runtime.enter();
            BufferCache::new(CacheOptions { memory_bytes: 16 << 20, ..CacheOptions::default() }).unwrap()
        };
        let nodes = TreeNodes::new(root, DescriptorTable::new(16), cache, false, uses_handles).unwrap();
        NodesFixture { nodes, folder, runtime }
    }

    /// Both kinds, of which the second has names only; the first has handles if this machine allows it.
    fn both() -> [NodesFixture; 2] {
        let known = [NodesFixture::new(true), NodesFixture::new(false)];
        assert!(!known[1].nodes.reach.uses_handles());
        if !known[0].nodes.reach.uses_handles() {
            println!("NOT RUN: nodes with file handles: the source has none, or they take root");
        }
        known
    }

    /// Looks a path up, name by name.
    fn look_up(&self, path: &str) -> Result<Arc<TreeNode>, Errno> {
        let root = self.nodes.get(ROOT)?;
        path.split('/').try_fold(root, |above, name| Ok(self.nodes.look_up(&above, &text(name))?.0))
    }

    /// Closes all descriptors that are not kept.
    fn close_all(&self) {
        for _ in 0..16 {
            self.nodes.descriptors.shrink();
        }
        assert_eq!(self.nodes.descriptors.count(), self.nodes.descriptors.kept());
    }

    /// The inode that a node leads to after its descriptor was closed.
    fn reopened(&self, node: &TreeNode) -> Result<u64, Errno> {
        self.close_all();
        sys::stat(&*self.nodes.descriptor(node)?).map(|stat| stat.st_ino)
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.join(path)
    }
}

impl Drop for NodesFixture {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
        let _inside = self.runtime.enter();
        self.nodes.clear();
    }
}

fn text(name: &str) -> CString {
    CString::new(name).unwrap()
}

fn inode(path: &Path) -> u64 {
    fs::symlink_metadata(path).unwrap().ino()
}

fn stale() -> Errno {
    Errno::new(libc::ESTALE)
}

#[test]
fn closed_nodes_are_opened_again() {
    for known in NodesFixture::both() {
        fs::create_dir_all(known.at("a/b/c")).unwrap();
        fs::write(known.at("a/b/c/file"), b"x").unwrap();
        std::os::unix::fs::symlink("nowhere", known.at("a/b/link")).unwrap();
        for path in ["a", "a/b/c", "a/b/c/file", "a/b/link"] {
            let node = known.look_up(path).unwrap();
            assert_eq!(known.reopened(&node), Ok(inode(&known.at(path))), "{path}");
            assert_eq!(known.nodes.path_of(&node), Some(PathBuf::from(path)));
            assert!(Arc::ptr_eq(&known.look_up(path).unwrap(), &node), "{path}: one node");
        }
    }
}

#[test]
fn replaced_file_is_another_node() {
    for known in NodesFixture::both() {
        fs::write(known.at("file"), b"first").unwrap();
        let first = known.look_up("file").unwrap();
        known.close_all();
        // The file system may give the new file the inode number of the old one.
        fs::remove_file(known.at("file")).unwrap();
        fs::write(known.at("file"), b"second").unwrap();
        assert_eq!(known.reopened(&first), Err(stale()));
        let second = known.look_up("file").unwrap();
        assert!(second.number != first.number);
        assert_eq!(known.reopened(&second), Ok(inode(&known.at("file"))));
        assert_eq!(known.reopened(&first), Err(stale()));
        // The end of the old node leaves the new one.
        assert!(known.nodes.forget(first.number, 1).is_some());
        assert!(Arc::ptr_eq(&known.look_up("file").unwrap(), &second));
    }
}

#[test]
fn renames_of_folders_keep_nodes() {
    for known in NodesFixture::both() {
        fs::create_dir_all(known.at("a/b")).unwrap();
        fs::create_dir(known.at("c")).unwrap();
        fs::write(known.at("a/b/file"), b"x").unwrap();
        let (folder, file, other) =
            (known.look_up("a/b").unwrap(), known.look_up("a/b/file").unwrap(), known.look_up("c").unwrap());
        fs::rename(known.at("a/b"), known.at("c/d")).unwrap();
        known.nodes.rename(&folder, other.number, &text("d"));
        assert_eq!(known.reopened(&file), Ok(inode(&known.at("c/d/file"))));
        assert_eq!(known.nodes.path_of(&file), Some(PathBuf::from("c/d/file")));
        // The nodes do not learn of renames by others; with handles they are reached all the same.
        fs::rename(known.at("c"), known.at("e")).unwrap();
        let expected = if known.nodes.reach.uses_handles() { Ok(inode(&known.at("e/d/file"))) } else { Err(stale()) };
        assert_eq!(known.reopened(&file), expected);
        // Another file with the old name is not mistaken for it.
        fs::create_dir_all(known.at("c/d")).unwrap();
        fs::write(known.at("c/d/file"), b"x").unwrap();
        assert_eq!(known.reopened(&file), expected);
        assert!(Arc::ptr_eq(&known.look_up("e/d/file").unwrap(), &file));
        assert_eq!(known.reopened(&file), Ok(inode(&known.at("e/d/file"))));
    }
}

#[test]
fn circle_of_names_ends() {
    let known = NodesFixture::new(false);
    fs::create_dir_all(known.at("a/b")).unwrap();
    let (above, below) = (known.look_up("a").unwrap(), known.look_up("a/b").unwrap());
    // Others have moved `a` below `b`, and only its new name was looked up.
    known.nodes.rename(&above, below.number, c"a");
    assert_eq!(known.reopened(&below), Err(stale()));
    assert_eq!(known.nodes.path_of(&below), None);
}

#[test]
fn removed_names_leave_other_links() {
    for known in NodesFixture::both() {
        fs::write(known.at("first"), b"x").unwrap();
        fs::hard_link(known.at("first"), known.at("second")).unwrap();
        let node = known.look_up("first").unwrap();
        assert!(Arc::ptr_eq(&known.look_up("second").unwrap(), &node), "one node of two names");
        let remove = |name: &CStr| {
            let removal = known.nodes.removing(node.clone(), ROOT, name, false).unwrap();
            fs::remove_file(known.folder.join(name.to_str().unwrap())).unwrap();
            known.nodes.removed(removal, ROOT, name, true);
        };
        remove(c"second");
        assert_eq!(known.reopened(&node), Ok(inode(&known.at("first"))));
        known.look_up("first").unwrap();
        let opened = inode(&known.at("first"));
        known.nodes.add_open(&node).unwrap();
        remove(c"first");
        assert!(node.is_unlinked());
        assert_eq!(known.reopened(&node), Ok(opened), "it is kept");
        known.nodes.remove_open(&node);
        assert_eq!(known.nodes.descriptors.kept(), 1);
        assert!(known.nodes.forget(node.number, 3).is_some());
        assert_eq!((known.nodes.descriptors.kept(), known.nodes.count().0), (0, 1));
    }
}

#[test]
fn deleted_open_files_are_limited() {
    for known in NodesFixture::both() {
        let kept_max = known.nodes.descriptors.kept_max();
        let nodes: Vec<Arc<TreeNode>> = (0..=kept_max)
            .map(|index| {
                let name = index.to_string();
                File::create(known.at(&name)).unwrap();
                let node = known.look_up(&name).unwrap();
                known.nodes.add_open(&node).unwrap();
                node
            })
            .collect();
        // Open files that have names do not use up what deleted ones may have.
        assert_eq!(known.nodes.descriptors.kept(), kept_max / 2);
        for (index, node) in nodes.iter().enumerate() {
            let name = text(&index.to_string());
            match known.nodes.removing(node.clone(), ROOT, &name, false) {
                Ok(removal) if index < kept_max => {
                    fs::remove_file(known.at(&index.to_string())).unwrap();
                    known.nodes.removed(removal, ROOT, &name, true);
                }
                Err(error) if index == kept_max => assert_eq!(error.number(), libc::EMFILE),
                other => panic!("{index}: {}", other.is_ok()),
            }
        }
        known.close_all();
        assert!(nodes.iter().all(|node| known.nodes.descriptor(node).is_ok()));
    }
}

#[test]
fn node_memory_is_bounded() {
    let known = NodesFixture::new(false);
    for index in 0..10_000 {
        let name = format!("a name of usual length {index}");
        File::create(known.at(&name)).unwrap();
        known.look_up(&name).unwrap();
    }
    let (count, bytes) = known.nodes.count();
    assert_eq!(count, 10_001);
    assert!(bytes / count <= 400, "{} bytes a node", bytes / count);
    assert!(size_of::<TreeNode>() <= 200, "{}", size_of::<TreeNode>());
    for node in known.nodes.all() {
        known.nodes.forget(node.number, 1);
    }
    assert_eq!(known.nodes.name_bytes.load(Ordering::Relaxed), 0);
}
