//! Names and attributes that the session keeps.
//!
//! Owns: what the server has shown and lets the session keep, and what must not be kept because it is being changed.
//! Promises: what is found was so at some moment of the call that asks, because the server changes nothing that a
//! session keeps before the session has given it back. Leaves to others: the session's lease, under which alone it may
//! be used; recalls (`hold`).
//!
//! An answer may arrive after a recall of what it shows, or after a change by this session that the server made later.
//! So each object has the time of its last recall or change, on a clock that counts these, and an answer is kept only
//! if the time is before the question. The answer to an operation shows what that operation has changed; it is kept if
//! there was no recall and no other change began since the operation was sent (`changing`).
//!
//! | file | what is in it |
//! |---|---|
//! | `directory` | the names of one directory |
//! | `changing` | changes by this session |

mod changing;
mod directory;

use std::collections::{HashMap, HashSet};
use std::hash::RandomState;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::format::NAME_BYTES_MAX;
use crate::planted::{Bug, planted};
use crate::protocol::{FileId, InodeAttributes, Token, TokenAspect};
use crate::tokens::LOOKS_MAX;
pub(super) use changing::PendingChange;
use directory::DirectoryNames;

/// The number of times that objects share.
const STAMPS: usize = 1024;
/// The maximum number of names of which only the hash is kept; one takes about 20 bytes.
const HASHES_MAX: usize = 1 << 20;
/// The maximum number of listings that are remembered until they end.
const LISTINGS_MAX: usize = 64;

/// When an object was recalled or changed last.
#[derive(Debug, Clone, Copy, Default)]
struct ChangeStamp {
    /// When it was recalled, or a change of it by this session began or ended.
    last: u64,
    /// When it was recalled, or a change of it by this session began: answers to earlier changes do not show this one.
    disturbed: u64,
    /// The number of changes by this session that have no answer yet.
    changing: u32,
    /// When another session changed a name of the directory last, or the names were recalled.
    names_changed: u64,
    /// The number of these changes that are of the inodes which have the names when the server does them.
    by_name: u32,
    /// Whether another session changed a name of the directory during one of these.
    is_unsure: bool,
}

#[derive(Debug)]
struct LookupTable {
    names: HashMap<FileId, DirectoryNames>,
    hasher: RandomState,
    /// The numbers of known names, and of hashes.
    name_count: usize,
    hash_count: usize,
    /// When names were dropped for room.
    shrunk: u64,
    /// Listings that have not ended: when each began, and the last cookie that it showed.
    listings: HashMap<FileId, (QuestionMoment, u64)>,
    /// The directories of which the server lets the session keep names.
    directories: HashSet<FileId>,
    attributes: HashMap<FileId, InodeAttributes>,
    stamps: Vec<ChangeStamp>,
    /// The stamp of everything: of changes of an inode that this session does not know.
    of_all: ChangeStamp,
    /// The number of stamps that are unsure: changes that are under way may be of any inode.
    unsure: usize,
    clock: u64,
}

/// What the session keeps.
#[derive(Debug)]
pub(super) struct LookupCache {
    table: Mutex<LookupTable>,
}

/// What is known of a name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CachedLookup {
    /// The attributes of its inode.
    Present(Box<InodeAttributes>),
    /// There is no such name.
    Absent,
}

/// The moment at which a question is asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct QuestionMoment(u64);

/// A part of the listing of a directory.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListingPart {
    /// The cookie behind which it begins; 0: at the start.
    pub from: u64,
    /// The last cookie that it shows.
    pub to: u64,
    /// Whether no names follow.
    pub is_end: bool,
}

impl LookupTable {
    fn stamp(&mut self, object: FileId) -> &mut ChangeStamp {
        &mut self.stamps[(object.inode % STAMPS as u64) as usize]
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Notes that an object is recalled, or that a change of it begins.
    fn disturb(&mut self, object: FileId) -> u64 {
        let now = self.tick();
        let stamp = self.stamp(object);
        (stamp.last, stamp.disturbed) = (now, now);
        now
    }

    /// Returns the inode of a name, if that is known; `Some(None)`: there is no such name.
    fn inode_of(&self, directory: FileId, name: &[u8]) -> Option<Option<FileId>> {
        self.names.get(&directory)?.find(&self.hasher, name)
    }

    /// Works on the names of a directory.
    fn with_names<T>(&mut self, directory: FileId, work: impl FnOnce(&mut DirectoryNames, &RandomState) -> T) -> T {
        let names = self.names.entry(directory).or_default();
        let before = names.counts();
        let result = work(names, &self.hasher);
        let after = names.counts();
        let is_unused = names.is_unused();
        self.name_count = self.name_count + after.0 - before.0;
        self.hash_count = self.hash_count + after.1 - before.1;
        if is_unused {
            self.names.remove(&directory);
        }
        result
    }

    /// Notes that other sessions may change names of a directory from this time on. A change by this session that is
    /// under way there may then be of other inodes than it thinks.
    fn note_others(&mut self, directory: FileId, now: u64) {
        let stamp = self.stamp(directory);
        stamp.names_changed = now;
        if stamp.by_name == 0 {
            return;
        }
        let is_new = !std::mem::replace(&mut stamp.is_unsure, true);
        self.unsure += usize::from(is_new);
        self.drop_all();
    }

    /// Notes that other sessions may change all names from this time on.
    fn doubt_all(&mut self) {
        let now = self.tick();
        for stamp in self.stamps.iter_mut().filter(|stamp| stamp.by_name > 0) {
            stamp.names_changed = now;
            self.unsure += usize::from(!std::mem::replace(&mut stamp.is_unsure, true));
        }
    }

    /// Makes room for one more name.
    fn make_room(&mut self) {
        if self.name_count >= LOOKS_MAX {
            self.shrunk = self.tick();
            let hasher = &self.hasher;
            self.names.values_mut().for_each(|names| names.shrink(hasher));
            self.names.retain(|_, names| !names.is_unused());
            self.name_count = 0;
            self.hash_count = self.names.values().map(|names| names.counts().1).sum();
        }
        if self.hash_count >= HASHES_MAX {
            self.forget_names();
        }
    }

    /// Drops all names.
    fn forget_names(&mut self) {
        self.shrunk = self.tick();
        self.names.retain(|_, names| {
            names.forget_all();
            !names.is_unused()
        });
        (self.name_count, self.hash_count) = (0, 0);
    }

    fn drop_names(&mut self, directory: FileId) {
        if self.names.contains_key(&directory) {
            self.with_names(directory, |names, _| names.forget_all());
        }
    }

    fn insert_attributes(&mut self, found: InodeAttributes) {
        if self.attributes.len() >= LOOKS_MAX {
            self.attributes.clear();
        }
        self.attributes.insert(found.id(), found);
    }

    /// Drops everything.
    fn drop_all(&mut self) {
        let now = self.tick();
        (self.of_all.last, self.of_all.disturbed) = (now, now);
        self.attributes.clear();
        self.forget_names();
    }

    /// Begins a change of an inode: drops what is known of it. The names in a directory stay the same unless its own name
    /// changes, as it may be removed then.
    fn begin(&mut self, object: FileId, is_named: bool) {
        self.disturb(object);
        if is_named {
            self.drop_names(object);
        }
        self.attributes.remove(&object);
        self.stamp(object).changing += 1;
    }

    /// Begins a change of a name in a directory, of which the session keeps the other names. `is_by_name`: the inode that
    /// has the name changes, too.
    fn begin_names_of(&mut self, directory: FileId, is_by_name: bool) {
        self.disturb(directory);
        self.attributes.remove(&directory);
        let stamp = self.stamp(directory);
        stamp.changing += 1;
        stamp.by_name += u32::from(is_by_name);
    }

    /// Ends that.
    fn end_names_of(&mut self, directory: FileId, is_by_name: bool) {
        self.end(directory);
        let stamp = self.stamp(directory);
        stamp.by_name -= u32::from(is_by_name);
        if stamp.by_name == 0 && std::mem::take(&mut stamp.is_unsure) {
            self.unsure -= 1;
        }
    }

    /// Ends a change. Nothing was kept of the object since it began, but what a newer change has left.
    fn end(&mut self, object: FileId) {
        let now = self.tick();
        let stamp = self.stamp(object);
        stamp.last = now;
        stamp.changing -= 1;
    }

    /// Ends a change of a name that began at a time. Keeps the name, if it is given and no other change of it began
    /// since.
    fn end_name(&mut self, (directory, name): (FileId, &[u8]), inode: Option<Option<FileId>>, begun: u64) {
        self.make_room();
        self.with_names(directory, |names, hasher| {
            let last = names.end(name);
            match inode.filter(|_| last <= begun) {
                Some(inode) => names.keep(hasher, name, inode),
                None => names.forget(hasher, name),
            }
        });
    }

    /// Whether what was shown of an object to a question may be kept. An object of which only the inode number is known
    /// is not kept.
    fn is_current(&mut self, object: FileId, asked: QuestionMoment) -> bool {
        let (of_all, own) = (self.of_all, *self.stamp(object));
        let is_before = |stamp: ChangeStamp| stamp.changing == 0 && stamp.last <= asked.0;
        if planted(Bug::LateAnswerKept) {
            return object.generation != 0;
        }
        object.generation != 0 && self.unsure == 0 && is_before(of_all) && is_before(own)
    }

    /// Whether what the answer to a change shows of an object may be kept: there was no recall, and no other change
    /// began since.
    fn is_undisturbed(&mut self, object: FileId, begun: u64) -> bool {
        let (of_all, own) = (self.of_all, *self.stamp(object));
        let is_undisturbed = of_all.disturbed <= begun && own.disturbed <= begun;
        object.generation != 0 && (is_undisturbed || planted(Bug::GrantKeptAfterRecall))
    }

    /// Whether no other session has changed names of a directory since.
    fn has_same_names(&mut self, directory: FileId, begun: u64) -> bool {
        let (of_all, own) = (self.of_all, *self.stamp(directory));
        directory.generation != 0 && of_all.disturbed <= begun && own.names_changed <= begun
    }
}

impl LookupCache {
    pub fn new() -> LookupCache {
        let table = LookupTable {
            names: HashMap::new(),
            hasher: RandomState::new(),
            name_count: 0,
            hash_count: 0,
            shrunk: 0,
            listings: HashMap::new(),
            directories: HashSet::new(),
            attributes: HashMap::new(),
            stamps: vec![ChangeStamp::default(); STAMPS],
            of_all: ChangeStamp::default(),
            unsure: 0,
            clock: 0,
        };
        LookupCache { table: Mutex::new(table) }
    }

    fn table(&self) -> MutexGuard<'_, LookupTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the moment of a question that is about to be sent.
    pub fn now(&self) -> QuestionMoment {
        QuestionMoment(self.table().clock)
    }

    /// Returns what is known of a name, if the attributes of its inode are known, too. Nothing is known of what is no name
    /// in a directory: the server refuses it, or finds what no listing shows.
    pub fn name(&self, directory: FileId, name: &[u8]) -> Option<CachedLookup> {
        if matches!(name, b"" | b"." | b"..") || name.len() > NAME_BYTES_MAX {
            return None;
        }
        let table = self.table();
        Some(match table.inode_of(directory, name)? {
            None => CachedLookup::Absent,
            Some(inode) => CachedLookup::Present(Box::new(table.attributes.get(&inode)?.clone())),
        })
    }

    /// Returns the attributes of an inode, if they are known.
    pub fn attributes(&self, file: FileId) -> Option<InodeAttributes> {
        self.table().attributes.get(&file).cloned()
    }

    /// Keeps attributes that the server has shown as the answer to a question of this moment.
    pub fn keep_attributes(&self, asked: QuestionMoment, found: &InodeAttributes) {
        let mut table = self.table();
        if table.is_current(found.id(), asked) {
            table.insert_attributes(found.clone());
        }
    }

    /// Keeps a name that the server has shown as the answer to a question of this moment; `None`: there is no such name.
    pub fn keep_name(&self, asked: QuestionMoment, directory: FileId, name: &[u8], inode: Option<FileId>) {
        let mut table = self.table();
        if !table.is_current(directory, asked) {
            return;
        }
        table.directories.insert(directory);
        table.make_room();
        table.with_names(directory, |names, hasher| names.keep(hasher, name, inode));
    }

    /// Notes that a part of the listing of a directory, whose names were kept, was the answer to a question of this
    /// moment. If nothing changed since the listing began at the start, the session knows all names at its end.
    pub fn keep_listing(&self, asked: QuestionMoment, directory: FileId, part: ListingPart) {
        let mut table = self.table();
        let ListingPart { from, to, is_end } = part;
        if !table.is_current(directory, asked) {
            return;
        }
        let before = table.listings.remove(&directory).filter(|(_, shown)| from <= *shown);
        let before = before.map(|(first, _)| first);
        let Some(first) = before.filter(|_| from > 0).or((from == 0).then_some(asked)) else { return };
        if !table.is_current(directory, first) || table.shrunk > first.0 {
            return;
        }
        table.directories.insert(directory);
        if is_end {
            table.with_names(directory, |names, _| names.complete());
            return;
        }
        if table.listings.len() >= LISTINGS_MAX {
            table.listings.clear();
        }
        table.listings.insert(directory, (first, to));
    }

    /// Drops what the server wants back.
    pub fn recalled(&self, token: Token) {
        let mut table = self.table();
        let now = table.disturb(token.object);
        match token.what {
            TokenAspect::Directory => {
                table.directories.remove(&token.object);
                table.drop_names(token.object);
                table.note_others(token.object, now);
            }
            _ => drop(table.attributes.remove(&token.object)),
        }
    }

    /// Drops a name that is about to change.
    pub fn name_changes(&self, directory: FileId, name: &[u8]) {
        let mut table = self.table();
        let now = table.tick();
        table.stamp(directory).last = now;
        table.make_room();
        if table.names.contains_key(&directory) {
            table.with_names(directory, |names, hasher| match planted(Bug::AbsentNameKept) {
                true => names.take_for_absent(name),
                false => names.forget(hasher, name),
            });
        }
        table.note_others(directory, now);
    }

    /// Drops a name, but not answers with it that come later: a planted bug.
    #[cfg(test)]
    fn forget_name_alone(&self, directory: FileId, name: &[u8]) {
        self.table().with_names(directory, |names, hasher| names.forget(hasher, name));
    }

    /// Drops a name as if it were absent: a planted bug.
    #[cfg(test)]
    fn take_name_for_absent(&self, directory: FileId, name: &[u8]) {
        let mut table = self.table();
        let now = table.tick();
        let stamp = table.stamp(directory);
        (stamp.last, stamp.names_changed) = (now, now);
        table.with_names(directory, |names, _| names.take_for_absent(name));
    }

    /// Drops everything: the server may not know what the session keeps, and does not tell it what others change.
    pub fn clear(&self) {
        let mut table = self.table();
        table.directories.clear();
        table.drop_all();
        table.doubt_all();
    }

    /// Whether the server lets the session keep names of a directory.
    pub fn keeps_names_of(&self, directory: FileId) -> bool {
        self.table().directories.contains(&directory)
    }
}

#[cfg(test)]
mod cases;
#[cfg(test)]
mod tests;
