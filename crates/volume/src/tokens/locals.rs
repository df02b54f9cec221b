//! The server's side of directories that sessions hold at level *write*: such a session makes and removes names itself.
//!
//! Owns: which session holds which directory, which inodes go along with it, recalls without an answer, and when a
//! directory is given at all. Promises:
//! 1. One session at most holds a directory. Before another session is shown the directory or an inode that goes along
//!    with it, or changes it, the holder has returned it ([`Locals::wait_for`]).
//! 2. A directory is given to a session that alone has used it lately, and has requested inode numbers. After [`RECALLS_MAX`] recalls within
//!    [`RECALLS_TIME_MS`] it is given to nobody for [`BUSY_MS`]: hosts that use a directory in turn wait for no recalls.
//! 3. A number of an inode is used by the session that got it, and once.
//!
//! An inode *goes along* with a directory if the holder has made it there itself: nobody else knows it, so nobody keeps
//! its attributes. A holder that gets a recall needs no request to the server for its return, so no circle of waiting
//! arises. Changes that wait are identified by their tickets. Times are in milliseconds, of any clock that never goes back.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use super::level;
use crate::protocol::{FileId, Held, Token, What};

/// The number of grants of an epoch, and where those of this kind begin among them.
const GRANTS_OF_EPOCH: u64 = 1 << 40;
const FIRST_OF_EPOCH: u64 = 1 << 39;
/// A session gets a directory after so many changes of names in it, if nobody else used it since for this long.
const CHANGES_MIN: u32 = 2;
const ALONE_MS: u64 = 500;
/// After a recall a directory is given to nobody for this long. *Units*: milliseconds.
const PAUSE_MS: u64 = 250;
/// After so many recalls within this time, for longer. *Units*: milliseconds.
const RECALLS_MAX: u32 = 4;
const RECALLS_TIME_MS: u64 = 10_000;
const BUSY_MS: u64 = 10_000;
/// The maximum number of directories that a session holds; its oldest one is recalled for one more.
const DIRECTORIES_MAX: usize = 1024;
/// The number of inodes that go along with directories; beyond it, directories are recalled.
const MADE_MAX: usize = 1 << 20;
/// The maximum number of directories whose use is remembered.
const USES_MAX: usize = 1 << 14;
/// The maximum number of inode numbers that a session has in hand.
const NUMBERS_MAX: u64 = 1024;

/// A directory that a session holds.
#[derive(Debug)]
struct HeldDirectory {
    session: u64,
    file: FileId,
    sequence: u64,
    /// When it was recalled.
    recalled: Option<u64>,
    /// The requests that wait for its return.
    waiting: Vec<u64>,
    /// The inodes that go along with it.
    made: HashSet<u64>,
}

impl HeldDirectory {
    fn held(&self) -> Held {
        let level = if self.recalled.is_some() { level::READ } else { WRITE };
        Held { token: Token { object: self.file, what: What::Directory }, level, sequence: self.sequence }
    }
}

/// The level of a directory's token with which its holder makes and removes names itself.
pub const WRITE: u8 = 2;

/// How a directory is used.
#[derive(Debug, Default)]
struct DirectoryUse {
    /// The session that changed a name last, and how many it changed since anybody else used the directory.
    session: u64,
    changes: u32,
    /// When another session used it.
    others_at: Option<u64>,
    /// The recalls since a time.
    recalls: (u64, u32),
    pause_until: u64,
}

/// What happened to directories at level *write*.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LocalCounts {
    /// Operations that sessions did themselves.
    pub operations: u64,
    /// Directories that sessions got.
    pub grants: u64,
    /// Directories that others needed, and that were recalled.
    pub recalls: u64,
    /// Directories that were recalled so often that nobody gets them for some time.
    pub fallbacks: u64,
}

/// All directories that sessions hold at level *write*.
#[derive(Debug, Default)]
pub struct Locals {
    held: HashMap<u64, HeldDirectory>,
    /// The directory with which an inode goes along.
    made: HashMap<u64, u64>,
    /// The directories of each session, by the numbers of their grants.
    sessions: BTreeMap<u64, BTreeMap<u64, u64>>,
    uses: HashMap<u64, DirectoryUse>,
    /// The number of returns that each request waits for.
    waits: BTreeMap<u64, usize>,
    /// The inode numbers that sessions have in hand.
    numbers: HashMap<u64, Vec<Range<u64>>>,
    sequence: u64,
    messages: Vec<(u64, Held)>,
    ready: Vec<u64>,
    /// What happened so far.
    pub counts: LocalCounts,
}

impl Locals {
    /// Makes the state of a new server, which no session holds anything of.
    pub fn new(epoch: u64) -> Locals {
        Locals { sequence: epoch.saturating_mul(GRANTS_OF_EPOCH) + FIRST_OF_EPOCH, ..Locals::default() }
    }

    /// Whether another session holds an inode, or what it goes along with.
    pub fn is_held_by_other(&self, session: u64, inode: u64) -> bool {
        self.directory_of(inode).is_some_and(|held| held.session != session)
    }

    fn directory_of(&self, inode: u64) -> Option<&HeldDirectory> {
        self.held.get(&inode).or_else(|| self.held.get(self.made.get(&inode)?))
    }

    /// Begins a request of a session that is about these inodes. Returns `false` if others hold some of them: then its
    /// ticket is among those of [`take_ready`](Self::take_ready) once they have returned these, and the request must
    /// begin again.
    pub fn wait_for(&mut self, now: u64, session: u64, inodes: &[u64], ticket: u64) -> bool {
        let mut waits = 0;
        for inode in inodes {
            if let Some(used) = self.uses.get_mut(inode)
                && used.session != session
            {
                (used.others_at, used.changes) = (Some(now), 0);
            }
            let Some(held) = self.directory_of(*inode).filter(|held| held.session != session) else { continue };
            let directory = held.file.inode;
            if held.recalled.is_none() {
                self.note_recall(now, directory);
                self.recall(now, directory);
            }
            let held = self.held.get_mut(&directory).filter(|held| !held.waiting.contains(&ticket));
            if let Some(held) = held {
                held.waiting.push(ticket);
                waits += 1;
            }
        }
        if waits > 0 {
            self.waits.insert(ticket, waits);
        }
        waits == 0
    }

    /// Counts a recall that another session caused, and decides when the directory may be given again.
    fn note_recall(&mut self, now: u64, directory: u64) {
        self.counts.recalls += 1;
        let used = self.uses.entry(directory).or_default();
        let (since, count) = used.recalls;
        let is_new = now.saturating_sub(since) > RECALLS_TIME_MS;
        used.recalls = if is_new { (now, 1) } else { (since, count + 1) };
        let is_busy = used.recalls.1 >= RECALLS_MAX;
        self.counts.fallbacks += u64::from(is_busy);
        if is_busy {
            used.recalls = (now, 0);
        }
        (used.others_at, used.changes) = (Some(now), 0);
        used.pause_until = now.saturating_add(if is_busy { BUSY_MS } else { PAUSE_MS });
    }

    fn recall(&mut self, now: u64, directory: u64) {
        if let Some(held) = self.held.get_mut(&directory).filter(|held| held.recalled.is_none()) {
            held.recalled = Some(now);
            self.messages.push((held.session, held.held()));
        }
    }

    /// Notes that a session has changed a name in a directory, or made the directory (`is_new`). Returns whether it may
    /// get the directory, if nobody keeps anything of it.
    pub fn changed(&mut self, now: u64, session: u64, directory: u64, is_new: bool) -> bool {
        // A session that makes names itself has requested numbers first.
        if self.held.contains_key(&directory) || !self.numbers.contains_key(&session) {
            return false;
        }
        if self.uses.len() >= USES_MAX && !self.uses.contains_key(&directory) {
            self.uses.retain(|_, used| used.pause_until > now);
            if self.uses.len() >= USES_MAX {
                return false;
            }
        }
        let used = self.uses.entry(directory).or_default();
        if used.session != session {
            let others_at = if used.session == 0 { used.others_at } else { Some(now) };
            (used.session, used.changes, used.others_at) = (session, 0, others_at);
        }
        used.changes = used.changes.saturating_add(1);
        let is_alone = used.others_at.is_none_or(|at| now.saturating_sub(at) >= ALONE_MS);
        (is_new || used.changes >= CHANGES_MIN) && is_alone && used.pause_until <= now
    }

    /// Gives a directory to a session.
    pub fn grant(&mut self, now: u64, session: u64, file: FileId) {
        if self.made.len() >= MADE_MAX || self.held.contains_key(&file.inode) {
            return;
        }
        self.sequence += 1;
        let sequence = self.sequence;
        let of_session = self.sessions.entry(session).or_default();
        of_session.insert(sequence, file.inode);
        let is_full = of_session.len() > DIRECTORIES_MAX;
        let oldest = if is_full { of_session.values().next().copied() } else { None };
        let (recalled, waiting, made) = (None, Vec::new(), HashSet::new());
        let held = HeldDirectory { session, file, sequence, recalled, waiting, made };
        self.messages.push((session, held.held()));
        self.held.insert(file.inode, held);
        self.counts.grants += 1;
        if let Some(oldest) = oldest {
            self.recall(now, oldest);
        }
    }

    /// Whether a session may have done an operation itself in a directory. It may have done it before it got a recall.
    pub fn may_do(&self, session: u64, directory: u64) -> bool {
        self.held.get(&directory).is_some_and(|held| held.session == session)
    }

    /// Whether an inode goes along with a directory.
    pub fn goes_along(&self, directory: u64, inode: u64) -> bool {
        self.made.get(&inode) == Some(&directory)
    }

    /// Notes that the holder of a directory has made an inode there.
    pub fn note_made(&mut self, now: u64, directory: u64, inode: u64) {
        let Some(held) = self.held.get_mut(&directory) else { return };
        held.made.insert(inode);
        self.made.insert(inode, directory);
        if self.made.len() > MADE_MAX {
            self.recall(now, directory);
        }
    }

    /// Notes that it has removed one.
    pub fn note_removed(&mut self, directory: u64, inode: u64) {
        if let Some(held) = self.held.get_mut(&directory)
            && held.made.remove(&inode)
        {
            self.made.remove(&inode);
        }
    }

    /// Whether a session may get more inode numbers.
    pub fn may_have_numbers(&self, session: u64) -> bool {
        let in_hand = self.numbers.get(&session).map_or(0, |ranges| ranges.iter().map(|one| one.end - one.start).sum());
        in_hand < NUMBERS_MAX
    }

    /// Notes inode numbers that a session gets.
    pub fn add_numbers(&mut self, session: u64, numbers: Range<u64>) {
        self.numbers.entry(session).or_default().push(numbers);
    }

    /// Takes a number that a session has used, and those before it: they are not used any more. Returns whether the
    /// session had it.
    pub fn use_number(&mut self, session: u64, number: u64) -> bool {
        let Some(ranges) = self.numbers.get_mut(&session) else { return false };
        let Some(at) = ranges.iter().position(|range| range.contains(&number)) else { return false };
        ranges.drain(..at);
        ranges[0].start = number + 1;
        if ranges[0].is_empty() {
            ranges.remove(0);
        }
        true
    }

    /// Handles a directory that a session gave back. Returns whether it is one of these.
    pub fn returned(&mut self, session: u64, held: Held) -> bool {
        let inode = held.token.object.inode;
        if !self.held.get(&inode).is_some_and(|known| known.session == session && known.sequence == held.sequence) {
            return false;
        }
        self.remove(inode);
        true
    }

    fn remove(&mut self, directory: u64) {
        let Some(held) = self.held.remove(&directory) else { return };
        held.made.iter().for_each(|inode| _ = self.made.remove(inode));
        if let Some(of_session) = self.sessions.get_mut(&held.session) {
            of_session.remove(&held.sequence);
        }
        for ticket in held.waiting {
            let Some(left) = self.waits.get_mut(&ticket) else { continue };
            *left -= 1;
            if *left == 0 {
                self.waits.remove(&ticket);
                self.ready.push(ticket);
            }
        }
    }

    /// Frees what a session that is over held. Its numbers are never used again.
    pub fn forget(&mut self, session: u64) {
        for directory in self.sessions.remove(&session).unwrap_or_default().into_values() {
            self.remove(directory);
        }
        self.numbers.remove(&session);
    }

    /// Repeats what a session may have missed before it reconnected.
    pub fn repeat(&mut self, session: u64) {
        let Some(of_session) = self.sessions.get(&session) else { return };
        let held = of_session.values().filter_map(|directory| Some((session, self.held.get(directory)?.held())));
        self.messages.extend(held);
    }

    /// Returns what sessions must be told since the last call: a directory at level *write* is theirs, one at level
    /// *read* is to be returned.
    pub fn take_messages(&mut self) -> Vec<(u64, Held)> {
        std::mem::take(&mut self.messages)
    }

    /// Returns the requests that can begin again, since the last call.
    pub fn take_ready(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.ready)
    }

    /// Returns the sessions that must give a directory back for which others wait, with its inode and since when.
    pub fn awaited(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        let awaited = self.held.values().filter(|held| !held.waiting.is_empty());
        awaited.filter_map(|held| Some((held.session, held.file.inode, held.recalled?)))
    }

    /// Returns how many directories sessions hold.
    pub fn count(&self) -> usize {
        self.held.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: FileId = FileId { inode: 7, generation: 1 };

    /// A directory that session 1 holds.
    fn held() -> (Locals, Held) {
        let mut locals = Locals::new(1);
        assert!(!locals.changed(0, 1, 7, true), "it has no numbers");
        [1, 2].into_iter().for_each(|session| locals.add_numbers(session, 100 * session..100 * session + 9));
        assert!(!locals.changed(0, 1, 7, false) && locals.changed(1, 1, 7, false));
        locals.grant(1, 1, DIRECTORY);
        let [(1, held)] = locals.take_messages()[..] else { panic!("it is told") };
        assert_eq!((held.level, held.token.object), (WRITE, DIRECTORY));
        (locals, held)
    }

    #[test]
    fn other_session_waits_for_the_return() {
        let (mut locals, granted) = held();
        locals.note_made(2, 7, 20);
        assert!(locals.wait_for(2, 1, &[7, 20], 100), "its holder does not wait");
        assert!(locals.wait_for(2, 2, &[8], 101));
        assert!(!locals.wait_for(2, 2, &[20, 7], 102), "it waits once for both");
        let recalls = locals.take_messages();
        assert_eq!(recalls, [(1, Held { level: level::READ, ..granted })]);
        locals.repeat(1);
        assert_eq!(locals.take_messages(), recalls);
        assert_eq!(locals.awaited().collect::<Vec<_>>(), [(1, 7, 2)]);
        assert!(locals.may_do(1, 7), "it may have done something before it got the recall");
        assert!(!locals.returned(2, recalls[0].1), "another session returns nothing");
        assert!(locals.returned(1, recalls[0].1) && !locals.returned(1, recalls[0].1));
        assert_eq!(locals.take_ready(), [102]);
        assert!(locals.wait_for(3, 2, &[7, 20], 103) && !locals.goes_along(7, 20));
    }

    #[test]
    fn directory_that_passes_often_is_nobodys() {
        let (mut locals, _) = held();
        let mut now = 10;
        let mut rounds = 0;
        while rounds < 100 && locals.counts.fallbacks == 0 {
            rounds += 1;
            assert!(!locals.wait_for(now, 2, &[7], 1000 + rounds));
            let (session, recalled) = *locals.take_messages().last().expect("it is recalled");
            assert!(locals.returned(session, recalled));
            now += ALONE_MS.max(PAUSE_MS);
            if locals.changed(now, 1, 7, false) || locals.changed(now, 1, 7, false) {
                locals.grant(now, 1, DIRECTORY);
            }
        }
        assert_eq!((rounds, locals.counts.recalls), (u64::from(RECALLS_MAX), u64::from(RECALLS_MAX)));
        assert!(!locals.changed(now, 1, 7, false) && !locals.changed(now + BUSY_MS / 2, 1, 7, false));
        assert!(locals.changed(now + BUSY_MS, 1, 7, false), "and later it is given again");
    }

    #[test]
    fn directory_of_two_sessions_is_nobodys() {
        let mut locals = Locals::new(1);
        [1, 2].into_iter().for_each(|session| locals.add_numbers(session, 100 * session..100 * session + 9));
        for now in 0..100 {
            assert!(!locals.changed(10 * now, 1 + now % 2, 7, false));
        }
        assert!(!locals.changed(1000, 1, 7, false) && !locals.changed(1001, 1, 7, false));
        assert!(locals.changed(1001 + ALONE_MS, 1, 7, false), "the other one has stopped");
        assert!(locals.wait_for(2000, 2, &[7], 5), "it has only looked");
        assert!(!locals.changed(2001, 1, 7, false) && !locals.changed(2002, 1, 7, false));
    }

    #[test]
    fn number_is_used_once_by_its_session() {
        let mut locals = Locals::new(1);
        locals.add_numbers(1, 100..103);
        locals.add_numbers(1, 200..202);
        assert!(!locals.use_number(2, 100), "it is another session's");
        assert!(locals.use_number(1, 100) && !locals.use_number(1, 100));
        assert!(locals.use_number(1, 102) && !locals.use_number(1, 101), "numbers are used in order");
        assert!(locals.use_number(1, 200) && locals.use_number(1, 201) && !locals.use_number(1, 202));
        locals.add_numbers(1, 300..300 + NUMBERS_MAX);
        assert!(!locals.may_have_numbers(1) && locals.may_have_numbers(2));
        locals.forget(1);
        assert!(!locals.use_number(1, 300));
    }

    #[test]
    fn lost_session_holds_nobody_up() {
        let (mut locals, _) = held();
        assert!(!locals.wait_for(2, 2, &[7], 100));
        locals.forget(1);
        assert_eq!((locals.take_ready(), locals.count()), (vec![100], 0));
        assert!(locals.awaited().next().is_none());
    }

    #[test]
    fn oldest_directory_is_recalled_beyond_the_bound() {
        let mut locals = Locals::new(1);
        for inode in 0..=DIRECTORIES_MAX as u64 {
            locals.grant(0, 1, FileId { inode: 100 + inode, generation: 1 });
        }
        let told = locals.take_messages();
        let recalled: Vec<u64> = told
            .iter()
            .filter(|(_, held)| held.level == level::READ)
            .map(|(_, held)| held.token.object.inode)
            .collect();
        assert_eq!((recalled, locals.counts.recalls), (vec![100], 0));
        assert!(locals.awaited().next().is_none(), "nobody waits for it");
    }
}
