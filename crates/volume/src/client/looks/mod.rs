//! Names and attributes that the session keeps.
//!
//! Owns: what the server has shown and lets the session keep, and what must not be kept because it is being changed.
//! Promises: what is found was so at some moment of the call that asks, because the server changes nothing that a
//! session keeps before the session has given it back. Leaves to others: the session's lease, under which alone it may
//! be used; recalls (`hold`).
//!
//! An answer may arrive after a recall of what it shows, or after a change by this session that the server made later.
//! So each object has the time of its last recall or change, on a clock that counts these, and an answer is kept only
//! if the time is before the question.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::protocol::{Attributes, FileId, Operation, Token, What};
use crate::tokens::LOOKS_MAX;

/// The number of times that objects share.
const STAMPS: usize = 1024;

/// When an object was recalled or changed last.
#[derive(Debug, Clone, Copy, Default)]
struct Stamp {
    last: u64,
    /// The number of changes by this session that have no answer yet.
    changing: u32,
    /// When another session changed a name of the directory last, or the names were recalled.
    names_changed: u64,
}

#[derive(Debug)]
struct Table {
    /// The inodes of names in directories; `None`: there is no such name.
    names: HashMap<FileId, HashMap<Vec<u8>, Option<FileId>>>,
    name_count: usize,
    /// The directories of which the server lets the session keep names.
    directories: HashSet<FileId>,
    attributes: HashMap<FileId, Attributes>,
    stamps: Vec<Stamp>,
    /// The stamp of everything: of changes of an inode that this session does not know.
    of_all: Stamp,
    clock: u64,
}

/// What the session keeps.
#[derive(Debug)]
pub(super) struct Looks {
    table: Mutex<Table>,
}

/// What is known of a name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// The attributes of its inode.
    Present(Box<Attributes>),
    /// There is no such name.
    Absent,
}

/// The moment at which a question is asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment(u64);

/// A change by this session that has no answer yet: nothing that it may change is kept until this is dropped.
#[derive(Debug)]
pub(super) struct Changing {
    looks: Arc<Looks>,
    objects: Vec<FileId>,
    is_of_unknown: bool,
    begun: u64,
}

impl Drop for Changing {
    fn drop(&mut self) {
        let mut table = self.looks.table();
        for object in &self.objects {
            table.end(*object);
        }
        // Another session has changed names meanwhile: the change may be of other inodes than those that had the names.
        if self.objects.iter().any(|object| table.stamp(*object).names_changed > self.begun) {
            table.drop_all();
        }
        if self.is_of_unknown {
            table.of_all.changing -= 1;
            table.drop_all();
        }
    }
}

impl Table {
    fn stamp(&mut self, object: FileId) -> &mut Stamp {
        &mut self.stamps[(object.inode % STAMPS as u64) as usize]
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Drops everything about an inode.
    fn drop_all_of(&mut self, object: FileId) {
        let now = self.tick();
        self.stamp(object).last = now;
        self.drop_names(object);
        self.attributes.remove(&object);
    }

    fn drop_names(&mut self, directory: FileId) {
        self.name_count -= self.names.remove(&directory).map_or(0, |names| names.len());
    }

    /// Drops everything.
    fn drop_all(&mut self) {
        self.of_all.last = self.tick();
        self.attributes.clear();
        self.names.clear();
        self.name_count = 0;
    }

    fn begin(&mut self, object: FileId) {
        self.drop_all_of(object);
        self.stamp(object).changing += 1;
    }

    fn end(&mut self, object: FileId) {
        self.drop_all_of(object);
        self.stamp(object).changing -= 1;
    }

    /// Whether what was shown of an object to a question may be kept. An object of which only the inode number is known
    /// is not kept.
    fn is_current(&mut self, object: FileId, asked: Moment) -> bool {
        let (of_all, own) = (self.of_all, *self.stamp(object));
        let is_before = |stamp: Stamp| stamp.changing == 0 && stamp.last <= asked.0;
        object.generation != 0 && is_before(of_all) && is_before(own)
    }
}

impl Looks {
    pub fn new() -> Looks {
        let table = Table {
            names: HashMap::new(),
            name_count: 0,
            directories: HashSet::new(),
            attributes: HashMap::new(),
            stamps: vec![Stamp::default(); STAMPS],
            of_all: Stamp::default(),
            clock: 0,
        };
        Looks { table: Mutex::new(table) }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the moment of a question that is about to be sent.
    pub fn now(&self) -> Moment {
        Moment(self.table().clock)
    }

    /// Returns what is known of a name, if the attributes of its inode are known, too.
    pub fn name(&self, directory: FileId, name: &[u8]) -> Option<Known> {
        let table = self.table();
        Some(match table.names.get(&directory)?.get(name)? {
            None => Known::Absent,
            Some(inode) => Known::Present(Box::new(table.attributes.get(inode)?.clone())),
        })
    }

    /// Returns the attributes of an inode, if they are known.
    pub fn attributes(&self, file: FileId) -> Option<Attributes> {
        self.table().attributes.get(&file).cloned()
    }

    /// Keeps attributes that the server has shown as the answer to a question of this moment.
    pub fn keep_attributes(&self, asked: Moment, found: &Attributes) {
        let mut table = self.table();
        let id = found.id();
        if !table.is_current(id, asked) {
            return;
        }
        if table.attributes.len() >= LOOKS_MAX {
            table.attributes.clear();
        }
        table.attributes.insert(id, found.clone());
    }

    /// Keeps a name that the server has shown as the answer to a question of this moment; `None`: there is no such name.
    pub fn keep_name(&self, asked: Moment, directory: FileId, name: &[u8], inode: Option<FileId>) {
        let mut table = self.table();
        if !table.is_current(directory, asked) {
            return;
        }
        table.directories.insert(directory);
        if table.name_count >= LOOKS_MAX {
            table.names.clear();
            table.name_count = 0;
        }
        if table.names.entry(directory).or_default().insert(name.to_vec(), inode).is_none() {
            table.name_count += 1;
        }
    }

    /// Drops what the server wants back.
    pub fn recalled(&self, token: Token) {
        let mut table = self.table();
        let now = table.tick();
        table.stamp(token.object).last = now;
        match token.what {
            What::Directory => {
                table.stamp(token.object).names_changed = now;
                table.directories.remove(&token.object);
                table.drop_names(token.object);
            }
            _ => drop(table.attributes.remove(&token.object)),
        }
    }

    /// Drops a name that is about to change.
    pub fn name_changes(&self, directory: FileId, name: &[u8]) {
        let mut table = self.table();
        let now = table.tick();
        let stamp = table.stamp(directory);
        (stamp.last, stamp.names_changed) = (now, now);
        let Some(names) = table.names.get_mut(&directory) else { return };
        if names.remove(name).is_some() {
            table.name_count -= 1;
        }
    }

    /// Drops a name, but not answers with it that come later: a planted bug.
    #[cfg(test)]
    fn forget_name_alone(&self, directory: FileId, name: &[u8]) {
        let mut table = self.table();
        let is_known = table.names.get_mut(&directory).is_some_and(|names| names.remove(name).is_some());
        table.name_count -= usize::from(is_known);
    }

    /// Drops everything: another server does not know what the session keeps.
    pub fn clear(&self) {
        let mut table = self.table();
        table.directories.clear();
        table.drop_all();
    }

    /// Whether the server lets the session keep names of a directory.
    pub fn keeps_names_of(&self, directory: FileId) -> bool {
        self.table().directories.contains(&directory)
    }

    /// Begins a change by this session.
    pub fn changing(self: &Arc<Looks>, operation: &Operation) -> Changing {
        let mut table = self.table();
        let (mut objects, mut is_of_unknown) = (Vec::new(), false);
        let mut add_name = |directory: &FileId, name: &[u8]| {
            objects.push(*directory);
            match table.names.get(directory).and_then(|names| names.get(name)) {
                Some(inode) => objects.extend(*inode),
                None => is_of_unknown = true,
            }
        };
        match operation {
            Operation::Create { directory, .. } => objects.push(*directory),
            Operation::Link { file, directory, .. } => objects.extend([*file, *directory]),
            Operation::Unlink { directory, name, .. } => add_name(directory, name),
            Operation::Rename { directory, name, new_directory, new_name, .. } => {
                add_name(directory, name);
                add_name(new_directory, new_name);
            }
            Operation::SetAttributes { file, .. }
            | Operation::SetXattr { file, .. }
            | Operation::RemoveXattr { file, .. }
            | Operation::Commit { file, .. }
            | Operation::TakeReserved { file, .. }
            | Operation::Truncate { file, .. }
            | Operation::Allocate { file, .. } => objects.push(*file),
            Operation::Access { accesses } => objects.extend(accesses.iter().map(|accessed| accessed.file)),
            Operation::ReturnSpace { .. } => {}
        }
        is_of_unknown |= objects.iter().any(|object| object.generation == 0);
        objects.iter().for_each(|object| table.begin(*object));
        if is_of_unknown {
            table.of_all.changing += 1;
            table.drop_all();
        }
        let begun = table.clock;
        drop(table);
        Changing { looks: self.clone(), objects, is_of_unknown, begun }
    }
}

#[cfg(test)]
mod tests;
