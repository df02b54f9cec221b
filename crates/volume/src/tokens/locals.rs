//! The server's side of directories that sessions hold at level *write*: such a session makes and removes names itself.
//!
//! Owns: which session holds which directory, which inodes go along with it, recalls without an answer, and when a
//! directory is given at all. Promises:
//! 1. One session at most holds a directory. Before another session is shown the directory or an inode that goes along
//!    with it, or changes it, the holder has returned it ([`LocalDirectories::wait_for`]).
//! 2. A directory is given to a session that alone has used it lately, and has requested inode numbers. After [`RECALLS_MAX`] recalls within
//!    [`RECALLS_TIME_MS`] it is given to nobody for [`BUSY_MS`]: hosts that use a directory in turn wait for no recalls.
//!    A new directory is given at once only if its maker alone uses the directory above it.
//! 3. A number of an inode is used by the session that got it, and once.
//! 4. While a request waits for the second time, nobody gets a directory: so it finds no new one each time.
//! 5. A request that names an inode which its maker may not have reported yet waits until this maker has
//!    ([`LocalDirectories::wait_for_makers`]).
//!
//! An inode *goes along* with a directory if the holder has made it there itself: nobody else knows it, so nobody keeps
//! its attributes. A holder that gets a recall needs no request to the server for its return, so no circle of waiting
//! arises. Changes that wait are identified by their tickets. Times are in milliseconds, of any clock that never goes back.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;

use super::level;
use crate::protocol::{FileId, Token, TokenAspect, TokenGrant};

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
/// The number beyond these that it gets while recalls are under way.
const RECALLED_MAX: usize = 64;
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
    fn held(&self) -> TokenGrant {
        let level = if self.recalled.is_some() { level::READ } else { WRITE };
        TokenGrant { token: Token { object: self.file, what: TokenAspect::Directory }, level, sequence: self.sequence }
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

impl DirectoryUse {
    /// Whether no other session uses the directory.
    fn is_alone(&self, now: u64) -> bool {
        self.others_at.is_none_or(|at| now.saturating_sub(at) >= ALONE_MS) && self.pause_until <= now
    }
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
pub struct LocalDirectories {
    held: HashMap<u64, HeldDirectory>,
    /// The directory with which an inode goes along.
    made: HashMap<u64, u64>,
    /// The directories of each session, by the numbers of their grants.
    sessions: BTreeMap<u64, BTreeMap<u64, u64>>,
    uses: HashMap<u64, DirectoryUse>,
    /// The number of returns that each request waits for.
    waits: BTreeMap<u64, usize>,
    /// Those of them that have waited before.
    again: BTreeSet<u64>,
    /// The inode numbers that sessions have in hand, and how many these are.
    numbers: HashMap<u64, Vec<Range<u64>>>,
    in_hand: u64,
    /// The directory in which each session has made an inode last.
    made_last: HashMap<u64, u64>,
    sequence: u64,
    messages: Vec<(u64, TokenGrant)>,
    ready: Vec<u64>,
    /// What happened so far.
    pub counts: LocalCounts,
}

impl LocalDirectories {
    /// Makes the state of a new server, which no session holds anything of.
    pub fn new(epoch: u64) -> LocalDirectories {
        LocalDirectories {
            sequence: epoch.saturating_mul(GRANTS_OF_EPOCH) + FIRST_OF_EPOCH,
            ..LocalDirectories::default()
        }
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
    /// begin again, before anybody gets a directory. `has_waited`: it does that now.
    pub fn wait_for(&mut self, now: u64, session: u64, inodes: &[u64], ticket: u64, has_waited: bool) -> bool {
        let mut directories = Vec::new();
        for inode in inodes {
            if let Some(used) = self.uses.get_mut(inode)
                && used.session != session
            {
                (used.others_at, used.changes) = (Some(now), 0);
            }
            let held = self.directory_of(*inode).filter(|held| held.session != session);
            directories.extend(held.map(|held| held.file.inode));
        }
        let waits = self.wait_for_returns(now, &directories, ticket);
        if waits && has_waited {
            self.again.insert(ticket);
        }
        !waits
    }

    /// Begins a request of a session that names these inodes, which do not exist here. Another session may have made one of
    /// them itself, and what says so may still be on its way. Returns `false` if this may be so: then its ticket is ready
    /// once such sessions have returned a directory, and with that have sent all that they had done before. So the request
    /// needs this once.
    pub fn wait_for_makers(&mut self, now: u64, session: u64, inodes: &[u64], ticket: u64) -> bool {
        let makers: BTreeSet<u64> = inodes.iter().filter_map(|inode| self.maker_of(*inode)).collect();
        let mut directories = Vec::new();
        for maker in makers.into_iter().filter(|maker| *maker != session) {
            let Some(of_maker) = self.sessions.get(&maker) else { continue };
            let held: Vec<u64> = of_maker.values().copied().collect();
            let is_left = |directory: &&u64| self.held.get(directory).is_some_and(|held| held.recalled.is_none());
            // The one in which it made something last is most likely the one of this inode.
            let last = self.made_last.get(&maker).filter(|last| held.contains(last));
            let next = last.filter(is_left).or_else(|| held.iter().rev().find(is_left)).copied();
            match next {
                // A return that is sent from now on comes behind everything that the maker has done until now.
                Some(directory) => directories.push(directory),
                // It does nothing itself behind the last of these.
                None => directories.extend(held),
            }
        }
        !self.wait_for_returns(now, &directories, ticket)
    }

    /// Returns the session that has this inode number in hand.
    fn maker_of(&self, number: u64) -> Option<u64> {
        let has = |ranges: &Vec<Range<u64>>| ranges.iter().any(|range| range.contains(&number));
        self.numbers.iter().find(|(_, ranges)| has(ranges)).map(|(session, _)| *session)
    }

    /// Recalls directories, and makes a request wait for them. Returns whether it waits for any.
    fn wait_for_returns(&mut self, now: u64, directories: &[u64], ticket: u64) -> bool {
        let mut waits = 0;
        for directory in directories {
            if self.held.get(directory).is_some_and(|held| held.recalled.is_none()) {
                self.note_recall(now, *directory);
                self.recall(now, *directory);
            }
            let held = self.held.get_mut(directory).filter(|held| !held.waiting.contains(&ticket));
            if let Some(held) = held {
                held.waiting.push(ticket);
                waits += 1;
            }
        }
        if waits > 0 {
            self.waits.insert(ticket, waits);
        }
        waits > 0
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

    /// Notes that a session has changed a name in a directory. Returns whether it may get the directory, if nobody keeps
    /// anything of it.
    pub fn changed(&mut self, now: u64, session: u64, directory: u64) -> bool {
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
        used.changes >= CHANGES_MIN && used.is_alone(now)
    }

    /// Whether a session may get a directory that it has made in another one: it alone uses that one. In a directory that
    /// others list all the time, each new one would have to be recalled for each listing.
    pub fn may_have_new(&self, now: u64, session: u64, parent: u64) -> bool {
        let is_alone = match self.held.get(&parent) {
            Some(held) => held.session == session && held.recalled.is_none(),
            None => self.uses.get(&parent).is_some_and(|used| used.session == session && used.is_alone(now)),
        };
        is_alone && self.numbers.contains_key(&session)
    }

    /// Gives a directory to a session.
    pub fn grant(&mut self, now: u64, session: u64, file: FileId) {
        if self.made.len() >= MADE_MAX || self.held.contains_key(&file.inode) || !self.again.is_empty() {
            return;
        }
        let of_session = self.sessions.entry(session).or_default();
        if of_session.len() >= DIRECTORIES_MAX + RECALLED_MAX {
            return;
        }
        self.sequence += 1;
        let sequence = self.sequence;
        of_session.insert(sequence, file.inode);
        let is_left = |directory: &&u64| self.held.get(directory).is_some_and(|held| held.recalled.is_none());
        let is_full = of_session.len() > DIRECTORIES_MAX;
        let oldest = if is_full { of_session.values().find(is_left).copied() } else { None };
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
        self.made_last.insert(held.session, directory);
        self.made.insert(inode, directory);
        if self.made.len() > MADE_MAX {
            self.recall(now, directory);
        }
    }

    /// Wants back all directories that a session holds.
    pub fn recall_all(&mut self, now: u64, session: u64) {
        let held: Vec<u64> =
            self.sessions.get(&session).map(|held| held.values().copied().collect()).unwrap_or_default();
        held.into_iter().for_each(|directory| self.recall(now, directory));
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
        self.numbers.get(&session).map_or(0, |ranges| count(ranges)) < NUMBERS_MAX
    }

    /// Notes inode numbers that a session gets.
    pub fn add_numbers(&mut self, session: u64, numbers: Range<u64>) {
        self.in_hand += numbers.end - numbers.start;
        self.numbers.entry(session).or_default().push(numbers);
    }

    /// Returns how many inode numbers all sessions together have in hand.
    pub fn in_hand(&self) -> u64 {
        self.in_hand
    }

    /// Takes a number that a session has used, and those before it: they are not used any more. Returns whether the
    /// session had it.
    pub fn use_number(&mut self, session: u64, number: u64) -> bool {
        let Some(ranges) = self.numbers.get_mut(&session) else { return false };
        let Some(at) = ranges.iter().position(|range| range.contains(&number)) else { return false };
        self.in_hand -= count(&ranges[..at]) + number + 1 - ranges[at].start;
        ranges.drain(..at);
        ranges[0].start = number + 1;
        if ranges[0].is_empty() {
            ranges.remove(0);
        }
        true
    }

    /// Handles a directory that a session gave back. Returns whether it is one of these.
    pub fn returned(&mut self, session: u64, held: TokenGrant) -> bool {
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
                self.again.remove(&ticket);
                self.ready.push(ticket);
            }
        }
    }

    /// Frees what a session that is over held. Its numbers are never used again.
    pub fn forget(&mut self, session: u64) {
        for directory in self.sessions.remove(&session).unwrap_or_default().into_values() {
            self.remove(directory);
        }
        self.made_last.remove(&session);
        self.in_hand -= count(&self.numbers.remove(&session).unwrap_or_default());
    }

    /// Repeats what a session may have missed before it reconnected.
    pub fn repeat(&mut self, session: u64) {
        let Some(of_session) = self.sessions.get(&session) else { return };
        let held = of_session.values().filter_map(|directory| Some((session, self.held.get(directory)?.held())));
        self.messages.extend(held);
    }

    /// Returns what sessions must be told since the last call: a directory at level *write* is theirs, one at level
    /// *read* is to be returned.
    pub fn take_messages(&mut self) -> Vec<(u64, TokenGrant)> {
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

/// Counts numbers.
fn count(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

#[cfg(test)]
mod tests;
