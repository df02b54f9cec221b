//! Which names and attributes a kernel was given with a time, and for how long it shows them.
//!
//! Owns: the names that were given, until the kernel shows them no more; the directories in which names changed lately;
//! names that are being renamed. Promises: what was given with a time was kept by the session at that moment, and its
//! time ends before the lease. Leaves to others: making the kernel forget, and the locks around this: what the session
//! keeps must be looked at under the lock of this state, so that a later recall finds what was given.
//!
//! A name that this host renames keeps its time in the kernel. So the session must keep names of the new directory, or
//! the rename waits until the time is over.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use super::super::{SHOWN_MAX, VolumeClient};
use super::moved::{EarlierName, MovedNames};
use crate::planted::{Bug, planted};
use crate::protocol::{FileId, InodeAttributes};

/// The longest time for which names are given in a directory that this host has changed lately, and for which the kernel
/// shows them then, also if it begins to count late.
const CHANGED_TIMES: (Duration, Duration) = (Duration::from_millis(125), Duration::from_millis(500));
/// A change of a directory counts for so long.
const CHANGE_TIME: Duration = Duration::from_secs(10);
/// The maximum number of changed directories that are remembered.
const CHANGED_MAX: usize = 1 << 14;
/// The maximum number of names that are given in [`SHOWN_MAX`].
const GIVEN_MAX: usize = 1 << 15;
/// The shortest time in which the kernel is given the chance to forget a name.
const FORGET_MIN: Duration = Duration::from_millis(100);
/// The longest time after which a kernel applies an answer that gives a name, unless the machine is very busy.
const LATE_MAX: Duration = Duration::from_millis(200);

/// A name, with its directory.
type NameAt<'a> = (FileId, &'a [u8]);

/// The names that were given in some time, and those of each inode.
#[derive(Default)]
struct ShownNames {
    all: HashMap<FileId, HashMap<Vec<u8>, ShownName>>,
    of_inodes: HashMap<FileId, Vec<(FileId, Vec<u8>)>>,
    count: usize,
}

/// A name that was given: the time until which the kernel shows it, the time when it was given last, and its inode.
#[derive(Clone, Copy)]
struct ShownName {
    until: Instant,
    given: Instant,
    inode: FileId,
}

/// A name of an inode that a kernel may show.
#[derive(Debug, PartialEq, Eq)]
pub struct GivenName {
    /// The directory.
    pub directory: FileId,
    /// The name.
    pub name: Vec<u8>,
    /// The time after which the kernel does not show it any more.
    pub left: Duration,
    /// When the kernel has applied the answer that gave it last: until then that may make the kernel show the name again.
    pub arrives_by: Instant,
}

/// When a directory was changed last by this host, and by another one.
#[derive(Default, Clone, Copy)]
struct DirectoryChangeTimes {
    own: Option<Instant>,
    others: Option<Instant>,
}

/// What a kernel may show without a request. No name is removed before its time is over, as a request to forget it may
/// come twice.
pub struct GivenNames {
    /// The names that were given since `begun`, and in the time before.
    recent: ShownNames,
    older: ShownNames,
    begun: Instant,
    /// When names or attributes were given last.
    last: Option<Instant>,
    /// Names that are being renamed, and how often: they are not given.
    barred: HashMap<(FileId, Vec<u8>), u32>,
    changes: HashMap<FileId, DirectoryChangeTimes>,
    moved: MovedNames,
}

impl Default for GivenNames {
    fn default() -> GivenNames {
        GivenNames {
            recent: ShownNames::default(),
            older: ShownNames::default(),
            begun: Instant::now(),
            last: None,
            barred: HashMap::new(),
            changes: HashMap::new(),
            moved: MovedNames::default(),
        }
    }
}

impl GivenNames {
    /// Returns the attributes of an inode for an answer, and the time for which the kernel may show them: the session's,
    /// if it keeps them, else `found` for no time. `is_exact`: the kernel ignores attributes that it requested before it
    /// was told to forget them.
    pub fn give(
        &mut self,
        client: &VolumeClient,
        found: &InodeAttributes,
        is_exact: bool,
    ) -> (InodeAttributes, Duration) {
        match client.kept_attributes(found.id()) {
            Some(kept) if !kept.is_changed && is_exact => {
                self.last = Some(Instant::now());
                (kept.attributes, client.kept_for())
            }
            Some(kept) => (kept.attributes, Duration::ZERO),
            None => (found.clone(), Duration::ZERO),
        }
    }

    /// Returns the time for which the kernel may show that this inode has a name.
    pub fn give_name(&mut self, client: &VolumeClient, directory: FileId, name: &[u8], inode: FileId) -> Duration {
        let kept = client.kept_name(directory, name).flatten().filter(|kept| kept.attributes.id() == inode);
        if kept.is_none() {
            return Duration::ZERO;
        }
        let Some((time, shown)) = self.times(directory, name) else { return Duration::ZERO };
        let given = Instant::now();
        self.add_name(directory, name, ShownName { until: given + shown, given, inode });
        time.min(client.kept_for())
    }

    /// Notes that this host changes names in a directory.
    pub fn note_own_change(&mut self, directory: FileId) {
        self.note_change(directory, true);
    }

    /// Begins a rename by this host: what the kernel shows under the old name it shows under the new one. Until
    /// [`end_rename`](Self::end_rename) neither name is given. Returns the time to wait before the rename.
    pub fn begin_rename(&mut self, client: &VolumeClient, from: NameAt<'_>, to: NameAt<'_>) -> Option<Duration> {
        for (directory, name) in [from, to] {
            *self.barred.entry((directory, name.to_vec())).or_default() += 1;
        }
        self.carry_unkept(client, from, to)
    }

    /// Ends a rename. If the session keeps no names of the new directory any more, returns the time until the kernel does
    /// not show the new name.
    pub fn end_rename(&mut self, client: &VolumeClient, from: NameAt<'_>, to: NameAt<'_>) -> Option<Duration> {
        [from, to].into_iter().for_each(|name| self.end_bar(name));
        self.carry_unkept(client, from, to)
    }

    fn end_bar(&mut self, (directory, name): NameAt<'_>) {
        let key = (directory, name.to_vec());
        let count = self.barred.entry(key.clone()).or_default();
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.barred.remove(&key);
        }
    }

    /// Notes that another host changes a name; returns the time after which the kernel does not show it any more. `None`:
    /// it was not given.
    pub fn forget_name(&mut self, directory: FileId, name: &[u8]) -> Option<Duration> {
        self.note_change(directory, false);
        let left = self.known_for(directory, name)?.max(FORGET_MIN);
        self.moved.begin_forget(directory, name);
        Some(left)
    }

    /// Notes that the kernel has forgotten a name, under the lock of its directory: no call under way uses it.
    pub fn name_forgotten(&mut self, directory: FileId, name: &[u8]) {
        self.moved.end_forget(directory, name);
    }

    /// Returns an earlier name of an inode, if the kernel may still use that in the call of this thread which now looks up
    /// a name of the same inode ([`EarlierName`]).
    pub fn earlier_name(
        &self,
        thread: u32,
        found: &InodeAttributes,
        (directory, name): (FileId, &[u8]),
    ) -> Option<EarlierName> {
        let lists = [&self.recent, &self.older].into_iter().filter_map(|names| names.of_inodes.get(&found.id()));
        let given = lists
            .flatten()
            .filter(|(directory, name)| self.known(*directory, name).is_some_and(|known| known.inode == found.id()));
        self.moved.earlier_name(thread, found, (directory, name), given)
    }

    /// Notes the answer to a thread's look-up of a name. `None`: there is none.
    pub fn note_looked(&mut self, thread: u32, directory: FileId, name: &[u8], found: Option<FileId>) {
        self.moved.note_looked(thread, directory, name, found);
    }

    /// Whether an inode is the one that a thread looked up last.
    pub fn is_last(&self, thread: u32, found: FileId) -> bool {
        self.moved.is_last(thread, found)
    }

    /// Notes that a thread must look up its names again.
    pub fn note_stale(&mut self, thread: u32, directory: FileId, name: &[u8], found: FileId) {
        self.moved.note_stale(thread, directory, name, found);
    }

    /// Returns the names by which the kernel may show an inode, and perhaps some by which it showed it lately. It decides
    /// by the owner and the mode that it knows of the inode whether a program may change these, without a request for
    /// newer ones unless it looks up a name.
    pub fn names_of(&self, inode: FileId) -> Vec<GivenName> {
        let now = Instant::now();
        let lists = [&self.recent, &self.older].into_iter().filter_map(|names| names.of_inodes.get(&inode));
        let names: HashSet<&(FileId, Vec<u8>)> = lists.flatten().collect();
        let given = names.into_iter().filter_map(|(directory, name)| {
            let ShownName { until, given, .. } = self.known(*directory, name)?;
            let left = (until + FORGET_MIN).checked_duration_since(now).filter(|left| !left.is_zero())?;
            Some(GivenName { directory: *directory, name: name.clone(), left, arrives_by: given + LATE_MAX })
        });
        given.collect()
    }

    /// Returns the time after which the kernel shows no name of a directory; `None`: it shows none.
    pub fn names_end(&mut self, directory: FileId) -> Option<Duration> {
        self.moved.forget_directory(directory);
        let until = |names: &ShownNames| names.all.get(&directory)?.values().map(|shown| shown.until).max();
        let until = until(&self.recent).max(until(&self.older))?;
        Some(until.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
    }

    /// Returns the time after which the kernel shows nothing that it was given; `None`: it shows nothing.
    pub fn all_ends(&mut self) -> Option<Duration> {
        self.moved.forget_all();
        Some(SHOWN_MAX.saturating_sub(self.last?.elapsed())).filter(|left| !left.is_zero())
    }

    /// Forgets what the kernel does not show any more.
    fn age(&mut self) {
        let age = self.begun.elapsed();
        if age < SHOWN_MAX {
            return;
        }
        let recent = std::mem::take(&mut self.recent);
        self.older = if age < 2 * SHOWN_MAX { recent } else { ShownNames::default() };
        self.begun = Instant::now();
        let is_recent = |at: Option<Instant>| at.is_some_and(|at| at.elapsed() < CHANGE_TIME);
        self.changes.retain(|_, changes| is_recent(changes.own) || is_recent(changes.others));
        self.moved.age();
    }

    fn add_name(&mut self, directory: FileId, name: &[u8], shown: ShownName) {
        self.age();
        self.last = Some(Instant::now());
        let before = self.recent.all.entry(directory).or_default();
        let inode = match before.get_mut(name) {
            Some(before) => {
                let inode = before.inode;
                *before = ShownName { until: shown.until.max(before.until), ..shown };
                Some(inode)
            }
            None => {
                before.insert(name.to_vec(), shown);
                self.recent.count += 1;
                None
            }
        };
        if inode != Some(shown.inode) {
            self.recent.of_inodes.entry(shown.inode).or_default().push((directory, name.to_vec()));
        }
    }

    /// Returns the time for which a name may be given, and for which the kernel shows it then.
    fn times(&mut self, directory: FileId, name: &[u8]) -> Option<(Duration, Duration)> {
        self.age();
        if self.recent.count >= GIVEN_MAX
            || !self.barred.is_empty() && self.barred.contains_key(&(directory, name.to_vec()))
        {
            return None;
        }
        let DirectoryChangeTimes { own, others } = self.changes.get(&directory).copied().unwrap_or_default();
        match (own.is_some(), others.is_some()) {
            (true, true) => None,
            (true, false) => Some(CHANGED_TIMES),
            (false, _) => Some((SHOWN_MAX / 2, SHOWN_MAX)),
        }
    }

    /// Like [`carry`](Self::carry); returns no time if the session keeps names of the new directory.
    fn carry_unkept(&mut self, client: &VolumeClient, from: NameAt<'_>, to: NameAt<'_>) -> Option<Duration> {
        self.carry(from, to).filter(|_| !client.keeps_names_of(to.0))
    }

    /// Notes that what the kernel shows under one name it shows under another one; returns for how long.
    fn carry(&mut self, from: NameAt<'_>, to: NameAt<'_>) -> Option<Duration> {
        if planted(Bug::RenamedNameForgotten) {
            return None;
        }
        let left = self.shown_for(from.0, from.1)?;
        let shown = self.known(from.0, from.1)?;
        let replaced = self.known(to.0, to.1);
        self.add_name(to.0, to.1, shown);
        // In an exchange the kernel shows under the old name what it showed under the new one.
        if let Some(replaced) = replaced {
            self.recent.of_inodes.entry(replaced.inode).or_default().push((from.0, from.1.to_vec()));
        }
        Some(left)
    }

    /// Returns for how long the kernel still shows a name.
    fn shown_for(&self, directory: FileId, name: &[u8]) -> Option<Duration> {
        self.known_for(directory, name).filter(|left| !left.is_zero())
    }

    /// Like [`shown_for`](Self::shown_for), but a name whose time ended lately has no time, in case the kernel begins to
    /// count very late.
    fn known_for(&self, directory: FileId, name: &[u8]) -> Option<Duration> {
        Some(self.known(directory, name)?.until.saturating_duration_since(Instant::now()))
    }

    /// Returns what was given under a name: the newest inode, and the longest time.
    fn known(&self, directory: FileId, name: &[u8]) -> Option<ShownName> {
        let shown = |names: &ShownNames| names.all.get(&directory).and_then(|all| all.get(name)).copied();
        match (shown(&self.recent), shown(&self.older)) {
            (Some(recent), Some(older)) => Some(ShownName { until: recent.until.max(older.until), ..recent }),
            (recent, older) => recent.or(older),
        }
    }

    /// Notes a change of names in a directory.
    fn note_change(&mut self, directory: FileId, is_own: bool) {
        if self.changes.len() >= CHANGED_MAX && !self.changes.contains_key(&directory) {
            return;
        }
        let changes = self.changes.entry(directory).or_default();
        let last = if is_own { &mut changes.own } else { &mut changes.others };
        *last = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: FileId = FileId { inode: 7, generation: 1 };
    const INODE: FileId = FileId { inode: 8, generation: 1 };

    fn shown(until: Instant) -> ShownName {
        ShownName { until, given: Instant::now(), inode: INODE }
    }

    #[test]
    fn names_of_an_inode_are_found() {
        let mut given = GivenNames::default();
        let (until, other) = (Instant::now() + SHOWN_MAX, FileId { inode: 9, generation: 1 });
        for name in [b"first", b"first", b"other"] {
            given.add_name(DIRECTORY, name, shown(until));
        }
        given.add_name(DIRECTORY, b"taken", shown(until));
        given.add_name(DIRECTORY, b"taken", ShownName { inode: other, ..shown(until) });
        let names = |given: &GivenNames, inode| {
            let mut names: Vec<_> = given.names_of(inode).into_iter().map(|given| given.name).collect();
            names.sort();
            names
        };
        assert_eq!(names(&given, INODE), [&b"first"[..], b"other", b"taken"]);
        assert_eq!(names(&given, other), [b"taken"]);
        // Names that were carried along, that are exchanged, and of the time before.
        given.carry((DIRECTORY, b"first"), (other, b"third"));
        given.carry((DIRECTORY, b"other"), (DIRECTORY, b"taken"));
        given.begun = Instant::now().checked_sub(SHOWN_MAX).expect("the clock is old enough");
        given.age();
        given.add_name(DIRECTORY, b"other", shown(until));
        assert_eq!(names(&given, INODE), [&b"first"[..], b"other", b"taken", b"third"]);
        assert_eq!(names(&given, other), [&b"other"[..], b"taken"]);
        assert!(names(&given, DIRECTORY).is_empty());
        // A name that the kernel shows no more.
        given.add_name(DIRECTORY, b"over", ShownName { inode: DIRECTORY, ..shown(Instant::now() - FORGET_MIN) });
        assert!(names(&given, DIRECTORY).is_empty());
    }

    /// A name that was given lately may be shown again by the answer that gave it.
    #[test]
    fn late_answers_have_a_time() {
        let mut given = GivenNames::default();
        let began = Instant::now();
        given.add_name(DIRECTORY, b"name", shown(began + SHOWN_MAX));
        let arrives_by = |given: &GivenNames| given.names_of(INODE).iter().map(|name| name.arrives_by).max();
        assert!(arrives_by(&given).is_some_and(|at| at >= began + LATE_MAX && at <= Instant::now() + LATE_MAX));
        // It counts from the last answer.
        let again = Instant::now();
        given.add_name(DIRECTORY, b"name", shown(began));
        assert!(arrives_by(&given).is_some_and(|at| at >= again + LATE_MAX));
    }

    #[test]
    fn given_names_expire() {
        let mut given = GivenNames::default();
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        given.add_name(DIRECTORY, b"name", shown(now + second));
        given.add_name(DIRECTORY, b"name", shown(now));
        assert!(given.shown_for(DIRECTORY, b"name").is_some_and(|left| left > second / 2), "the longer time counts");
        assert_eq!(given.shown_for(DIRECTORY, b"other"), None);
        // It is known while it becomes older, and forgotten then.
        given.begun = now.checked_sub(SHOWN_MAX).expect("the clock is old enough");
        given.age();
        assert!(given.recent.all.is_empty() && given.shown_for(DIRECTORY, b"name").is_some());
        given.begun = now.checked_sub(SHOWN_MAX).expect("the clock is old enough");
        given.age();
        assert_eq!(given.shown_for(DIRECTORY, b"name"), None);
        given.add_name(DIRECTORY, b"past", shown(now));
        assert_eq!(given.shown_for(DIRECTORY, b"past"), None);
    }

    #[test]
    fn times_are_shorter_where_names_change() {
        let mut given = GivenNames::default();
        let times = |given: &mut GivenNames| given.times(DIRECTORY, b"name");
        assert_eq!(times(&mut given), Some((SHOWN_MAX / 2, SHOWN_MAX)));
        given.note_change(DIRECTORY, false);
        assert_eq!(times(&mut given), Some((SHOWN_MAX / 2, SHOWN_MAX)));
        given.note_change(DIRECTORY, true);
        assert_eq!(times(&mut given), None, "both hosts change it");
        given.changes.clear();
        given.note_change(DIRECTORY, true);
        assert_eq!(times(&mut given), Some(CHANGED_TIMES));
        given.barred.insert((DIRECTORY, b"name".to_vec()), 1);
        assert_eq!(times(&mut given), None);
        assert_eq!(given.times(DIRECTORY, b"other"), Some(CHANGED_TIMES));
    }

    /// A kernel is given names without a time once the limit of known names is reached.
    #[test]
    fn names_beyond_limit_untimed() {
        let mut given = GivenNames::default();
        for number in 0..GIVEN_MAX {
            let directory = FileId { inode: number as u64 % 100, generation: 1 };
            given.add_name(directory, &number.to_be_bytes(), shown(Instant::now()));
        }
        assert_eq!(given.times(DIRECTORY, b"name"), None);
    }
}
