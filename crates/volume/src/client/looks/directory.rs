//! The names that a session keeps of one directory.
//!
//! Owns: what is known of each name, and whether all other names are absent. Promises: of a name that the session is
//! changing nothing is known. Leaves to others: whether something may be kept (`looks`).
//!
//! A directory is *complete* if the session knew all its names at some moment and was told of each change since then.
//! So a name is absent that is neither known nor among those of which nothing is known. Of these the hashes suffice: of
//! a name that has the hash of another one nothing is known, either. A hash stays as long as the directory is complete,
//! so a name that is forgotten twice is never mistaken for an absent one.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use crate::protocol::FileId;

/// The names of a directory.
#[derive(Debug, Default)]
pub(super) struct DirectoryNames {
    /// The inodes of names; `None`: there is no such name.
    known: HashMap<Vec<u8>, Option<FileId>>,
    /// The names that the session changes: by how many operations, and when the last of them began.
    changing: HashMap<Vec<u8>, (u32, u64)>,
    /// If the directory is complete, the hashes of the names of which nothing is known.
    unknown: Option<HashSet<u64>>,
}

impl DirectoryNames {
    /// Returns the numbers of known names, and of hashes.
    pub fn counts(&self) -> (usize, usize) {
        (self.known.len(), self.unknown.as_ref().map_or(0, HashSet::len))
    }

    /// Whether there is nothing to remember.
    pub fn is_unused(&self) -> bool {
        self.known.is_empty() && self.changing.is_empty() && self.unknown.is_none()
    }

    /// Returns the inode of a name, if that is known; `Some(None)`: there is no such name.
    pub fn find(&self, hasher: &RandomState, name: &[u8]) -> Option<Option<FileId>> {
        if self.changing.contains_key(name) {
            return None;
        }
        if let Some(known) = self.known.get(name) {
            return Some(*known);
        }
        let unknown = self.unknown.as_ref()?;
        (!unknown.contains(&hasher.hash_one(name))).then_some(None)
    }

    /// Keeps a name; `None`: there is no such name.
    pub fn keep(&mut self, hasher: &RandomState, name: &[u8], inode: Option<FileId>) {
        let is_clear = |unknown: &HashSet<u64>| !unknown.contains(&hasher.hash_one(name));
        if inode.is_none() && self.unknown.as_ref().is_some_and(is_clear) {
            self.known.remove(name);
        } else {
            self.known.insert(name.to_vec(), inode);
        }
    }

    /// Forgets a name.
    pub fn forget(&mut self, hasher: &RandomState, name: &[u8]) {
        self.known.remove(name);
        if let Some(unknown) = &mut self.unknown {
            unknown.insert(hasher.hash_one(name));
        }
    }

    /// Forgets all names, and that the directory is complete.
    pub fn forget_all(&mut self) {
        self.known = HashMap::new();
        self.unknown = None;
    }

    /// Makes room: forgets all names, but not that the directory is complete.
    pub fn shrink(&mut self, hasher: &RandomState) {
        let known = std::mem::take(&mut self.known);
        if let Some(unknown) = &mut self.unknown {
            unknown.extend(known.keys().map(|name| hasher.hash_one(name.as_slice())));
        }
    }

    /// Notes that the known names are all that the directory has.
    pub fn complete(&mut self) {
        self.unknown.get_or_insert_default();
    }

    /// Begins a change of a name, at this time.
    pub fn begin(&mut self, name: &[u8], now: u64) {
        self.known.remove(name);
        let (count, last) = self.changing.entry(name.to_vec()).or_default();
        (*count, *last) = (*count + 1, now);
    }

    /// Ends a change of a name; [`keep`](Self::keep) or [`forget`](Self::forget) must follow. Returns when the last
    /// change of it began.
    pub fn end(&mut self, name: &[u8]) -> u64 {
        let Some((count, last)) = self.changing.get_mut(name) else { return u64::MAX };
        *count -= 1;
        let (left, last) = (*count, *last);
        if left == 0 {
            self.changing.remove(name);
        }
        last
    }

    /// Forgets a name as if it were absent: a planted bug.
    pub fn take_for_absent(&mut self, name: &[u8]) {
        self.known.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId { inode: 7, generation: 1 };

    #[test]
    fn only_complete_directories_know_absent_names() {
        let (hasher, mut names) = (RandomState::new(), DirectoryNames::default());
        assert_eq!(names.find(&hasher, b"a"), None);
        names.keep(&hasher, b"a", None);
        assert_eq!((names.find(&hasher, b"a"), names.find(&hasher, b"b")), (Some(None), None));
        names.complete();
        assert_eq!(names.find(&hasher, b"b"), Some(None));
        names.keep(&hasher, b"b", Some(FILE));
        names.forget(&hasher, b"b");
        assert_eq!(names.find(&hasher, b"b"), None, "nothing is known of it");
        names.keep(&hasher, b"b", None);
        assert_eq!(names.find(&hasher, b"b"), Some(None));
        names.forget_all();
        assert_eq!(names.find(&hasher, b"c"), None);
        assert!(names.is_unused());
    }

    #[test]
    fn changing_names_are_not_cached() {
        let (hasher, mut names) = (RandomState::new(), DirectoryNames::default());
        names.complete();
        names.begin(b"a", 5);
        names.begin(b"a", 6);
        assert_eq!(names.find(&hasher, b"a"), None);
        assert_eq!(names.end(b"a"), 6);
        names.keep(&hasher, b"a", Some(FILE));
        assert_eq!(names.find(&hasher, b"a"), None, "one more change has no answer");
        assert_eq!(names.end(b"a"), 6);
        names.forget(&hasher, b"a");
        assert_eq!(names.find(&hasher, b"a"), None);
    }

    /// A name that was dropped to save memory is unknown, not absent.
    #[test]
    fn dropped_names_are_not_absent() {
        let (hasher, mut names) = (RandomState::new(), DirectoryNames::default());
        names.complete();
        names.keep(&hasher, b"a", Some(FILE));
        names.shrink(&hasher);
        assert_eq!((names.find(&hasher, b"a"), names.find(&hasher, b"b")), (None, Some(None)));
        assert_eq!(names.counts(), (0, 1));
        names.keep(&hasher, b"a", None);
        names.shrink(&hasher);
        assert_eq!(names.find(&hasher, b"a"), None);
    }
}
