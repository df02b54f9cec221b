//! Names that a kernel looks up one after another in one call, while another host moves the inode from one to the other.
//!
//! For a rename the kernel looks up the old name and then the new one, under the locks of their directories. If both are
//! of one inode it does nothing and reports success, without a request: right for two names of one file, wrong if another
//! host made the same rename in between. So the second look-up is answered with ESTALE; then the kernel begins the call
//! once more, and looks up all names by requests. It does so in all calls that use names.
//!
//! Owns: for each thread, the name that it looked up last, and the one for which it was told to begin once more; names that
//! the kernel may still use without a request although it was told to forget them: a call under way holds the lock of
//! their directory. Promises: a call that looks up each name once begins once more at most once. Leaves to others: which names were given (`given`); whether a file has both names (who answers).
//! A directory that was moved from another directory is none of this: the kernel itself begins such a rename once more.

use std::collections::{HashMap, HashSet};

use crate::planted::{Bug, planted};
use crate::protocol::{FileId, InodeAttributes};

/// The maximum number of threads whose look-ups are remembered, and of names that are being forgotten.
const THREADS_MAX: usize = 1 << 12;
const UNFORGOTTEN_MAX: usize = 1 << 15;

/// An earlier name of an inode that is found under another one.
#[derive(Debug, PartialEq, Eq)]
pub enum EarlierName {
    /// The inode has one name alone: the call must begin once more.
    Gone,
    /// The call must begin once more, unless these are still names of the inode.
    Perhaps(Vec<(FileId, Vec<u8>)>),
}

/// A name, and what a look-up found.
#[derive(Debug, PartialEq, Eq)]
struct LookedName {
    directory: FileId,
    name: Vec<u8>,
    found: FileId,
}

impl LookedName {
    fn is_at(&self, directory: FileId, name: &[u8]) -> bool {
        (self.directory, &*self.name) == (directory, name)
    }
}

/// What was looked up last, and what the kernel has perhaps not forgotten.
#[derive(Default)]
pub struct MovedNames {
    last: HashMap<u32, LookedName>,
    /// What threads were told to look up once more.
    stale: HashMap<u32, LookedName>,
    unforgotten: ForgettingNames,
    /// What was being forgotten in the time before.
    older: ForgettingNames,
}

/// Names that the kernel was told to forget, and directories whose names ended by time alone.
#[derive(Default)]
struct ForgettingNames {
    names: HashSet<(FileId, Vec<u8>)>,
    directories: HashSet<FileId>,
    is_all: bool,
}

impl ForgettingNames {
    fn has(&self, place: &(FileId, Vec<u8>)) -> bool {
        self.is_all || self.directories.contains(&place.0) || self.names.contains(place)
    }

    /// Whether there is room; without it, everything counts as not forgotten.
    fn has_room(&mut self) -> bool {
        self.is_all |= self.names.len() + self.directories.len() >= UNFORGOTTEN_MAX;
        !self.is_all
    }
}

impl MovedNames {
    /// Notes that the kernel is told to forget a name.
    pub fn begin_forget(&mut self, directory: FileId, name: &[u8]) {
        if self.unforgotten.has_room() {
            self.unforgotten.names.insert((directory, name.to_vec()));
        }
    }

    /// Notes that the kernel has forgotten a name.
    pub fn end_forget(&mut self, directory: FileId, name: &[u8]) {
        let place = (directory, name.to_vec());
        self.unforgotten.names.remove(&place);
        self.older.names.remove(&place);
    }

    /// Notes that the names of a directory are shown no more when their time is over.
    pub fn forget_directory(&mut self, directory: FileId) {
        if self.unforgotten.has_room() {
            self.unforgotten.directories.insert(directory);
        }
    }

    /// Notes that all names are shown no more when their time is over.
    pub fn forget_all(&mut self) {
        self.unforgotten.is_all = true;
    }

    /// Forgets what is old.
    pub fn age(&mut self) {
        self.older = std::mem::take(&mut self.unforgotten);
    }

    /// Returns an earlier name, as `GivenNames::earlier_name` does. `given`: names under which the kernel was given it.
    pub fn earlier_name<'a>(
        &self,
        thread: u32,
        found: &InodeAttributes,
        (directory, name): (FileId, &[u8]),
        given: impl Iterator<Item = &'a (FileId, Vec<u8>)>,
    ) -> Option<EarlierName> {
        if planted(Bug::MovedNameSame) {
            return None;
        }
        let id = found.id();
        let is_directory = found.inode.mode & libc::S_IFMT == libc::S_IFDIR;
        let is_other =
            |of: FileId, known: &[u8]| (of, known) != (directory, name) && (!is_directory || of == directory);
        let last = self.last.get(&thread).filter(|last| last.found == id);
        let earlier: Vec<_> = match last {
            Some(last) if is_other(last.directory, &last.name) => vec![(last.directory, last.name.clone())],
            Some(last) if last.is_at(directory, name) => return None,
            // Now it looks up everything by requests.
            _ if self.stale.contains_key(&thread) => return None,
            _ => {
                let is_used = |place: &(FileId, Vec<u8>)| self.unforgotten.has(place) || self.older.has(place);
                given.filter(|place| is_other(place.0, &place.1) && is_used(place)).cloned().collect()
            }
        };
        match is_directory || found.inode.links <= 1 {
            _ if earlier.is_empty() => None,
            true => Some(EarlierName::Gone),
            false => Some(EarlierName::Perhaps(earlier)),
        }
    }

    /// Notes the answer to a look-up.
    pub fn note_looked(&mut self, thread: u32, directory: FileId, name: &[u8], found: Option<FileId>) {
        let Some(found) = found else {
            self.stale.remove(&thread);
            self.last.remove(&thread);
            return;
        };
        if self.stale.get(&thread).is_some_and(|stale| stale.is_at(directory, name)) {
            self.stale.remove(&thread);
        }
        remember(&mut self.last, thread, LookedName { directory, name: name.to_vec(), found });
    }

    /// Whether an inode is the one that a thread looked up last.
    pub fn is_last(&self, thread: u32, found: FileId) -> bool {
        self.last.get(&thread).is_some_and(|last| last.found == found)
    }

    /// Notes that a thread was told to begin its call once more.
    pub fn note_stale(&mut self, thread: u32, directory: FileId, name: &[u8], found: FileId) {
        self.last.remove(&thread);
        remember(&mut self.stale, thread, LookedName { directory, name: name.to_vec(), found });
    }
}

/// Remembers a look-up of a thread. Threads that ended are not known, so all are forgotten from time to time.
fn remember(looked: &mut HashMap<u32, LookedName>, thread: u32, name: LookedName) {
    if looked.len() >= THREADS_MAX && !looked.contains_key(&thread) {
        looked.clear();
    }
    looked.insert(thread, name);
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: FileId = FileId { inode: 7, generation: 1 };
    const OTHER: FileId = FileId { inode: 8, generation: 1 };

    fn inode(kind: u32, links: u32) -> InodeAttributes {
        let mut found = InodeAttributes { number: 20, ..InodeAttributes::default() };
        (found.inode.mode, found.inode.links) = (kind | 0o644, links);
        found
    }

    #[test]
    fn second_name_of_call_is_stale() {
        let (file, mut moved) = (inode(libc::S_IFREG, 1), MovedNames::default());
        let ask = |moved: &MovedNames, thread, found: &InodeAttributes, name: &[u8]| {
            moved.earlier_name(thread, found, (DIRECTORY, name), std::iter::empty())
        };
        moved.note_looked(1, DIRECTORY, b"old", Some(file.id()));
        assert_eq!(ask(&moved, 1, &file, b"old"), None);
        assert_eq!(ask(&moved, 2, &file, b"new"), None, "another thread");
        assert_eq!(ask(&moved, 1, &file, b"new"), Some(EarlierName::Gone));
        let linked = EarlierName::Perhaps(vec![(DIRECTORY, b"old".to_vec())]);
        assert_eq!(ask(&moved, 1, &inode(libc::S_IFREG, 2), b"new"), Some(linked));
        // The thread looks it up once more.
        moved.note_stale(1, DIRECTORY, b"new", file.id());
        assert_eq!(ask(&moved, 1, &file, b"new"), None);
        moved.note_looked(1, DIRECTORY, b"new", Some(file.id()));
        assert_eq!(ask(&moved, 1, &file, b"old"), Some(EarlierName::Gone));
        // Its next look-up is of another call.
        moved.note_looked(1, DIRECTORY, b"none", None);
        assert_eq!(ask(&moved, 1, &file, b"old"), None);
        moved.note_looked(1, DIRECTORY, b"new", Some(file.id()));
        // The kernel itself sees that a directory came from another one.
        let directory = inode(libc::S_IFDIR, 3);
        assert_eq!(ask(&moved, 1, &directory, b"old"), Some(EarlierName::Gone));
        moved.note_looked(1, OTHER, b"new", Some(directory.id()));
        assert_eq!(ask(&moved, 1, &directory, b"old"), None);
    }

    #[test]
    fn names_in_use_are_not_forgotten() {
        let (file, mut moved) = (inode(libc::S_IFREG, 1), MovedNames::default());
        let given = [(DIRECTORY, b"old".to_vec())];
        let ask = |moved: &MovedNames| moved.earlier_name(1, &file, (DIRECTORY, b"new"), given.iter());
        assert_eq!(ask(&moved), None, "it was not told to forget it");
        moved.begin_forget(DIRECTORY, b"old");
        assert_eq!(ask(&moved), Some(EarlierName::Gone));
        moved.age();
        assert_eq!(ask(&moved), Some(EarlierName::Gone));
        moved.end_forget(DIRECTORY, b"old");
        assert_eq!(ask(&moved), None);
        for forget in [|moved: &mut MovedNames| moved.forget_directory(DIRECTORY), MovedNames::forget_all] {
            forget(&mut moved);
            assert_eq!(ask(&moved), Some(EarlierName::Gone));
            moved.age();
            moved.age();
            assert_eq!(ask(&moved), None);
        }
        moved.forget_directory(OTHER);
        assert_eq!(ask(&moved), None);
        // A thread that begins its call once more looks up all names by requests.
        moved.forget_directory(DIRECTORY);
        moved.note_stale(1, DIRECTORY, b"new", OTHER);
        assert_eq!(ask(&moved), None);
        moved.note_looked(1, DIRECTORY, b"new", Some(OTHER));
        assert_eq!(ask(&moved), Some(EarlierName::Gone));
        // So does one that looks up the same name twice.
        moved.note_looked(1, DIRECTORY, b"new", Some(file.id()));
        assert_eq!(ask(&moved), None);
    }
}
