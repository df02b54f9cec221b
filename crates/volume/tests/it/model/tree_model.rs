//! The model of the tree: what each operation on names does, and with which error it is refused.

use std::collections::{BTreeMap, BTreeSet};

pub const ROOT: u64 = 1;
pub const NO_REPLACE: u32 = 1;
pub const EXCHANGE: u32 = 2;

/// A file, directory or link of the model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TreeModelNode {
    pub mode: u32,
    /// The names in the directory.
    pub names: BTreeMap<Vec<u8>, u64>,
    /// The parent of a directory.
    pub parent: u64,
    pub links: u32,
    pub size: u64,
    /// The place of each block, and whether it is unwritten.
    pub map: BTreeMap<u64, (u64, bool)>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub is_open: bool,
    /// Whether it was made without a name, and has had none since.
    pub is_nameless: bool,
}

impl TreeModelNode {
    pub fn is_directory(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFDIR
    }

    pub fn is_file(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFREG
    }
}

/// The outcome of an operation: the errno of a failure; answers are not compared by this.
pub type Result<T = ()> = std::result::Result<T, i32>;

/// The model of the tree.
#[derive(Clone, Default)]
pub struct TreeModel {
    pub nodes: BTreeMap<u64, TreeModelNode>,
    pub granted: BTreeSet<u64>,
}

impl TreeModel {
    pub fn node(&mut self, number: u64) -> &mut TreeModelNode {
        self.nodes.get_mut(&number).expect("it is in the model")
    }

    pub fn find(&self, directory: u64, name: &[u8]) -> Option<u64> {
        self.nodes[&directory].names.get(name).copied()
    }

    fn is_below(&self, mut below: u64, above: u64) -> bool {
        while below != above && below != ROOT {
            below = self.nodes[&below].parent;
        }
        below == above
    }

    pub fn add(&mut self, directory: u64, name: &[u8], number: u64) {
        self.node(directory).names.insert(name.to_vec(), number);
        if self.nodes[&number].is_directory() {
            self.node(number).parent = directory;
            self.node(directory).links += 1;
        }
    }

    fn remove(&mut self, directory: u64, name: &[u8]) {
        let number = self.node(directory).names.remove(name).expect("it has the name");
        if self.nodes[&number].is_directory() {
            self.node(directory).links -= 1;
        }
    }

    fn lose(&mut self, number: u64) {
        let node = self.node(number);
        node.links = if node.is_directory() { 0 } else { node.links - 1 };
        if node.links == 0 && !node.is_open {
            self.nodes.remove(&number);
        }
    }

    pub fn link(&mut self, number: u64, directory: u64, name: &[u8]) -> Result {
        if self.nodes[&number].is_directory() {
            return Err(libc::EPERM);
        }
        if self.nodes[&number].links == 0 && !self.nodes[&number].is_nameless {
            return Err(libc::ENOENT);
        }
        if self.find(directory, name).is_some() {
            return Err(libc::EEXIST);
        }
        let node = self.node(number);
        (node.links, node.is_nameless) = (node.links + 1, false);
        self.add(directory, name, number);
        Ok(())
    }

    pub fn unlink(&mut self, directory: u64, name: &[u8], wants_directory: bool) -> Result {
        let number = self.find(directory, name).ok_or(libc::ENOENT)?;
        let node = &self.nodes[&number];
        match (wants_directory, node.is_directory()) {
            (true, false) => return Err(libc::ENOTDIR),
            (false, true) => return Err(libc::EISDIR),
            (true, true) if !node.names.is_empty() => return Err(libc::ENOTEMPTY),
            _ => {}
        }
        self.remove(directory, name);
        self.lose(number);
        Ok(())
    }

    pub fn rename(&mut self, (from, name): (u64, &[u8]), (to, new_name): (u64, &[u8]), flags: u32) -> Result {
        let moved = self.find(from, name).ok_or(libc::ENOENT)?;
        if self.nodes[&moved].is_directory() && self.is_below(to, moved) {
            return Err(libc::EINVAL);
        }
        let Some(replaced) = self.find(to, new_name) else {
            if flags & EXCHANGE != 0 {
                return Err(libc::ENOENT);
            }
            self.remove(from, name);
            self.add(to, new_name, moved);
            return Ok(());
        };
        if flags & NO_REPLACE != 0 {
            return Err(libc::EEXIST);
        }
        if replaced == moved {
            return Ok(());
        }
        if flags & EXCHANGE != 0 {
            if self.nodes[&replaced].is_directory() && self.is_below(from, replaced) {
                return Err(libc::EINVAL);
            }
            self.remove(from, name);
            self.remove(to, new_name);
            self.add(to, new_name, moved);
            self.add(from, name, replaced);
            return Ok(());
        }
        match (self.nodes[&moved].is_directory(), self.nodes[&replaced].is_directory()) {
            (true, false) => return Err(libc::ENOTDIR),
            (false, true) => return Err(libc::EISDIR),
            (true, true) if !self.nodes[&replaced].names.is_empty() => return Err(libc::ENOTEMPTY),
            _ => {}
        }
        self.remove(from, name);
        self.remove(to, new_name);
        self.lose(replaced);
        self.add(to, new_name, moved);
        Ok(())
    }
}
