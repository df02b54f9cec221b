//! The names and inodes that the calls so far give.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nectary_volume::protocol::FileId;
use tokio::time::Instant;

/// Calls that are older than this are durable: a client answers no more without the server then, and the server answers
/// nothing early.
const DURABLE_AFTER: Duration = Duration::from_millis(2500);

/// A name in a directory.
pub type Place = (usize, u64);

/// A change of a name by a host.
#[derive(Debug, Clone)]
struct Change {
    host: usize,
    at: Instant,
    place: Place,
    before: Option<FileId>,
    after: Option<FileId>,
}

/// The state.
#[derive(Debug, Clone, Default)]
pub struct Model {
    names: BTreeMap<Place, FileId>,
    /// All inodes that were ever made.
    made: BTreeSet<FileId>,
    recent: Vec<Change>,
}

impl Model {
    /// Returns the inode of a name.
    pub fn find(&self, place: Place) -> Option<FileId> {
        self.names.get(&place).copied()
    }

    /// Returns the number of names of an inode.
    pub fn links(&self, file: FileId) -> usize {
        self.names.values().filter(|named| **named == file).count()
    }

    /// Returns the inodes that were ever made.
    pub fn made(&self) -> impl Iterator<Item = FileId> {
        self.made.iter().copied()
    }

    /// Returns the names of a directory.
    pub fn names_of(&self, directory: usize) -> BTreeMap<u64, FileId> {
        let of_directory = self.names.iter().filter(|((of, _), _)| *of == directory);
        of_directory.map(|((_, name), file)| (*name, *file)).collect()
    }

    /// Returns all names.
    pub fn names(&self) -> &BTreeMap<Place, FileId> {
        &self.names
    }

    /// Notes a new inode. *Errors*: there was one with this identity.
    pub fn make(&mut self, file: FileId) -> Result<(), String> {
        match self.made.insert(file) {
            true => Ok(()),
            false => Err(format!("inode {} is made a second time", file.inode)),
        }
    }

    /// Notes a change of a name.
    pub fn change(&mut self, host: usize, place: Place, after: Option<FileId>) {
        let before = self.find(place);
        self.recent.retain(|change| change.at.elapsed() < DURABLE_AFTER);
        self.recent.push(Change { host, at: Instant::now(), place, before, after });
        self.put(place, after);
    }

    fn put(&mut self, place: Place, file: Option<FileId>) {
        match file {
            Some(file) => _ = self.names.insert(place, file),
            None => _ = self.names.remove(&place),
        }
    }

    /// Finds which of the last changes of a lost host are gone: after them the names are these ones. Returns their number.
    ///
    /// *Errors*: the names are not those after the loss of any number of its last changes.
    pub fn lose(&mut self, host: usize, found: &BTreeMap<Place, FileId>) -> Result<usize, String> {
        let expected = self.names.clone();
        let mut lost: Vec<Change> = self.recent.iter().filter(|change| change.host == host).cloned().collect();
        self.recent.retain(|change| change.host != host);
        let mut count = 0;
        while self.names != *found {
            let Some(last) = lost.pop().filter(|last| self.find(last.place) == last.after) else {
                return Err(format!("after the loss of host {host} the names are {found:?}, of {expected:?}"));
            };
            self.put(last.place, last.before);
            count += 1;
        }
        Ok(count)
    }
}
