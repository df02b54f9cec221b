//! The server's side of names and attributes that sessions keep.
//!
//! Owns: which session keeps names of a directory, or the attributes of an inode; the changes that wait until no other
//! session keeps what they change; recalls without an answer. Promises:
//! 1. While a change is made, no other session keeps what it changes, and none is offered it. Of a directory these are
//!    the names that change: the sessions that keep names in it drop these, and keep the others.
//! 2. A return never needs an operation of the session, so a change that waits delays no return.
//! 3. A session keeps at most [`LOOKS_MAX`] names of directories and attributes, and all sessions together about
//!    [`ALL_MAX`]; the oldest of the session that is shown more are recalled first. While recalls are under way it may
//!    have [`RECALLED_MAX`] more, and what it makes itself with the inode numbers that it has then. One takes about 200
//!    bytes.
//!
//! Changes are identified by their tickets. Times are in milliseconds, of any clock that never goes back.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::level;
use crate::protocol::{FileId, Token, TokenAspect, TokenGrant};

/// The number of grants of an epoch, more than an epoch can use.
const GRANTS_OF_EPOCH: u64 = 1 << 40;
/// What was recalled is not offered again for this long: hosts that take turns to change a directory need no recall for
/// each change. *Units*: milliseconds.
const PAUSE_MS: u64 = 100;
/// If more names of a directory change within this time, sessions give back all that they keep of it: otherwise each
/// change would wait for each of them. *Units*: milliseconds.
const NAMES_TIME_MS: u64 = 1000;
const NAMES_MAX: u32 = 16;
/// The maximum number of names of directories and attributes that a session keeps.
pub const LOOKS_MAX: usize = 1 << 16;
/// The number that all sessions together keep.
const ALL_MAX: usize = 1 << 20;
/// What a session is shown again gets a new number after so many grants: it is not among the oldest, which are
/// recalled.
const RENEWED_AFTER: u64 = LOOKS_MAX as u64 / 2;
/// The number beyond these that is granted while recalls are under way.
const RECALLED_MAX: usize = 1 << 12;

/// A recall that the caller must send: the session, and what it keeps.
pub type Recall = (u64, TokenGrant);

/// A name that a session must drop: the session, the number that its answer repeats, the directory and the name.
pub type NameChange = (u64, u64, (FileId, Vec<u8>));

/// What an operation changes of what sessions may keep.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LookupChange {
    /// The directories in which it changes names, and the inodes whose attributes it changes; in order.
    pub tokens: Vec<Token>,
    /// The names, with their directories.
    pub names: Vec<(FileId, Vec<u8>)>,
}

impl LookupChange {
    /// Whether this changes all that another one changes.
    pub fn covers(&self, other: &LookupChange) -> bool {
        other.tokens.iter().all(|token| self.tokens.contains(token))
            && other.names.iter().all(|name| self.names.contains(name))
    }

    /// Returns the inodes that this is about.
    pub fn inodes(&self) -> Vec<u64> {
        let mut inodes: Vec<u64> = self.tokens.iter().map(|token| token.object.inode).collect();
        inodes.dedup();
        inodes
    }
}

/// A name that a session was told to drop.
#[derive(Debug)]
struct NameDrop {
    directory: FileId,
    name: Vec<u8>,
    since: u64,
    /// The change that waits for this.
    ticket: u64,
}

/// What a session keeps.
#[derive(Debug, Default)]
struct LookupGrant {
    sequence: u64,
    /// When it was recalled.
    recalled: Option<u64>,
    /// The changes that wait for its return.
    waiting: Vec<u64>,
}

/// The state of one token.
#[derive(Debug, Default)]
struct LookupState {
    /// What each session keeps. There are few, so a list is smaller than a map.
    kept: Vec<(u64, LookupGrant)>,
    /// The number of changes that are made, or wait.
    changes: usize,
    /// Nothing is offered before this time.
    pause_until: u64,
    /// The number of names that others were told to drop since a time.
    names: (u64, u32),
}

impl LookupState {
    fn of_mut(&mut self, session: u64) -> Option<&mut LookupGrant> {
        self.kept.iter_mut().find(|(of, _)| *of == session).map(|(_, kept)| kept)
    }

    /// Counts a change of a name. Returns whether there are so many that sessions give back what they keep.
    fn is_busy(&mut self, now: u64) -> bool {
        let (since, count) = self.names;
        let is_over = now.saturating_sub(since) > NAMES_TIME_MS;
        self.names = if is_over { (now, 1) } else { (since, count + 1) };
        self.names.1 > NAMES_MAX
    }
}

/// All names and attributes that sessions keep.
#[derive(Debug, Default)]
pub struct LookupGrants {
    objects: HashMap<Token, LookupState>,
    /// The tokens of each session, by the numbers of their grants.
    sessions: BTreeMap<u64, BTreeMap<u64, Token>>,
    count: usize,
    /// For each session, the number of a grant: all before it were recalled.
    recalled_to: BTreeMap<u64, u64>,
    /// The number of returns that each change waits for.
    changes: BTreeMap<u64, usize>,
    /// The sessions from which a recalled token has not come back, with its grant and the time of the recall.
    recalled: BTreeMap<(u64, u64), u64>,
    /// Objects with a pause, by its end.
    pauses: BTreeSet<(u64, Token)>,
    /// Names that sessions have not dropped yet, by session and number.
    dropping: BTreeMap<(u64, u64), NameDrop>,
    sequence: u64,
    recalls: Vec<Recall>,
    name_changes: Vec<NameChange>,
    ready: Vec<u64>,
    /// The number of recalls so far, and of names that sessions were told to drop.
    recall_count: u64,
}

impl LookupGrants {
    /// Makes the state of a new server, of which no session keeps anything. Grant numbers are above those of every
    /// earlier epoch.
    pub fn new(epoch: u64) -> LookupGrants {
        LookupGrants { sequence: epoch.saturating_mul(GRANTS_OF_EPOCH), ..LookupGrants::default() }
    }

    /// Lets a session keep what it is shown; returns the number of the grant. `None`: it must not keep it.
    pub fn offer(&mut self, now: u64, session: u64, token: Token) -> Option<u64> {
        self.end_pauses(now);
        let object = self.objects.entry(token).or_default();
        let changes = object.changes;
        if let Some(kept) = object.of_mut(session) {
            if kept.recalled.is_some() || changes > 0 {
                return None;
            }
            if self.sequence - kept.sequence > RENEWED_AFTER {
                self.sequence += 1;
                let before = std::mem::replace(&mut kept.sequence, self.sequence);
                let tokens = self.sessions.entry(session).or_default();
                tokens.remove(&before);
                tokens.insert(self.sequence, token);
            }
            return Some(kept.sequence);
        }
        let is_busy = object.changes > 0 || object.pause_until > now;
        if is_busy || self.is_full(session) {
            self.clean(token);
            return None;
        }
        Some(self.insert(now, session, token))
    }

    /// Whether a session has not given back so much of what was recalled that it is offered nothing more.
    pub fn is_full(&self, session: u64) -> bool {
        let granted = self.sessions.get(&session).map_or(0, BTreeMap::len);
        granted >= LOOKS_MAX + RECALLED_MAX || self.count >= ALL_MAX + RECALLED_MAX
    }

    /// Records that a session keeps something, which it did not keep; recalls the oldest beyond the bound.
    fn insert(&mut self, now: u64, session: u64, token: Token) -> u64 {
        let object = self.objects.entry(token).or_default();
        self.sequence += 1;
        let sequence = self.sequence;
        if object.kept.is_empty() {
            object.kept.reserve_exact(1);
        }
        object.kept.push((session, LookupGrant { sequence, ..LookupGrant::default() }));
        self.count += 1;
        let tokens = self.sessions.entry(session).or_default();
        tokens.insert(sequence, token);
        if tokens.len() > LOOKS_MAX || self.count > ALL_MAX {
            let (recalled, from) = (&self.recalled, self.recalled_to.entry(session).or_default());
            let oldest = tokens.range(*from..).find(|(sequence, _)| !recalled.contains_key(&(session, **sequence)));
            if let Some((sequence, token)) = oldest.map(|(sequence, token)| (*sequence, *token)) {
                *from = sequence + 1;
                self.recall(now, session, token);
            }
        }
        sequence
    }

    /// Notes that a session keeps what it has changed itself, and nobody else keeps. What was recalled before is recalled
    /// no more: the session has it again. The caller sees to it that a session which [is full](Self::is_full) soon makes
    /// nothing more itself.
    pub fn keep(&mut self, now: u64, session: u64, token: Token) {
        let Some(kept) = self.objects.entry(token).or_default().of_mut(session) else {
            _ = self.insert(now, session, token);
            return;
        };
        if kept.recalled.is_none() && self.sequence - kept.sequence <= RENEWED_AFTER {
            return;
        }
        self.sequence += 1;
        kept.recalled = None;
        let before = std::mem::replace(&mut kept.sequence, self.sequence);
        self.recalled.remove(&(session, before));
        let tokens = self.sessions.entry(session).or_default();
        tokens.remove(&before);
        tokens.insert(self.sequence, token);
    }

    /// Wants back what other sessions keep of this, because one session alone changes it. Nothing waits for that.
    pub fn recall_others(&mut self, now: u64, session: u64, token: Token) {
        let kept = self.objects.get(&token).map(|object| object.kept.iter().map(|(of, _)| *of));
        let others: Vec<u64> = kept.into_iter().flatten().filter(|of| *of != session).collect();
        others.into_iter().for_each(|of| self.recall(now, of, token));
    }

    /// Whether a change is made of this, or waits.
    pub fn is_changing(&self, token: Token) -> bool {
        self.objects.get(&token).is_some_and(|object| object.changes > 0)
    }

    /// Whether a session other than `except` keeps this.
    pub fn is_kept(&self, except: u64, token: Token) -> bool {
        self.objects.get(&token).is_some_and(|object| object.kept.iter().any(|(session, _)| *session != except))
    }

    /// Begins a change by a session. Returns whether it can be made at once; otherwise its ticket is among those of
    /// [`take_ready`](Self::take_ready) when no other session keeps what it changes. [`end_change`](Self::end_change)
    /// must follow the change.
    pub fn begin_change(&mut self, now: u64, session: u64, change: &LookupChange, ticket: u64) -> bool {
        let mut waits = 0;
        for token in &change.tokens {
            let object = self.objects.entry(*token).or_default();
            object.changes += 1;
            let others: Vec<u64> = object.kept.iter().map(|(of, _)| *of).filter(|of| *of != session).collect();
            if token.what == TokenAspect::Directory {
                let has_names = change.names.iter().any(|(directory, _)| *directory == token.object);
                let is_busy = has_names && !others.is_empty() && object.is_busy(now);
                for of in others {
                    waits += self.drop_names(now, of, (token.object, change), ticket);
                    if is_busy {
                        self.recall(now, of, *token);
                    }
                }
                continue;
            }
            for of in others {
                self.recall(now, of, *token);
                let kept = self.objects.get_mut(token).and_then(|object| object.of_mut(of));
                if let Some(kept) = kept {
                    kept.waiting.push(ticket);
                    waits += 1;
                }
            }
        }
        if waits > 0 {
            self.changes.insert(ticket, waits);
        }
        waits == 0
    }

    /// Tells a session to drop the names of a directory that a change changes. Returns their number.
    fn drop_names(
        &mut self,
        now: u64,
        session: u64,
        (directory, change): (FileId, &LookupChange),
        ticket: u64,
    ) -> usize {
        let names: Vec<&Vec<u8>> =
            change.names.iter().filter(|(of, _)| *of == directory).map(|(_, name)| name).collect();
        for name in &names {
            self.sequence += 1;
            let dropping = NameDrop { directory, name: name.to_vec(), since: now, ticket };
            self.dropping.insert((session, self.sequence), dropping);
            self.name_changes.push((session, self.sequence, (directory, name.to_vec())));
            self.recall_count += 1;
        }
        names.len()
    }

    /// Handles a name that a session has dropped.
    pub fn name_dropped(&mut self, session: u64, number: u64) {
        if let Some(dropping) = self.dropping.remove(&(session, number)) {
            self.one_less(dropping.ticket);
        }
    }

    /// Ends a change that was made, or is given up.
    pub fn end_change(&mut self, tokens: &[Token]) {
        for token in tokens {
            if let Some(object) = self.objects.get_mut(token) {
                object.changes = object.changes.saturating_sub(1);
            }
            self.clean(*token);
        }
    }

    fn recall(&mut self, now: u64, session: u64, token: Token) {
        let Some(object) = self.objects.get_mut(&token) else { return };
        let Some(kept) = object.of_mut(session) else { return };
        if kept.recalled.is_some() {
            return;
        }
        kept.recalled = Some(now);
        let sequence = kept.sequence;
        object.pause_until = now.saturating_add(PAUSE_MS);
        self.pauses.insert((object.pause_until, token));
        self.recalled.insert((session, sequence), now);
        self.recalls.push((session, TokenGrant { token, level: level::NONE, sequence }));
        self.recall_count += 1;
    }

    fn end_pauses(&mut self, now: u64) {
        while let Some((until, token)) = self.pauses.first().copied()
            && until <= now
        {
            self.pauses.pop_first();
            if let Some(object) = self.objects.get_mut(&token)
                && object.pause_until <= now
            {
                object.pause_until = 0;
                self.clean(token);
            }
        }
    }

    fn clean(&mut self, token: Token) {
        let is_idle = |object: &LookupState| object.kept.is_empty() && object.changes == 0 && object.pause_until == 0;
        if self.objects.get(&token).is_some_and(is_idle) {
            self.objects.remove(&token);
        }
    }

    /// Handles what a session gave back.
    pub fn returned(&mut self, session: u64, held: TokenGrant) {
        let Some(object) = self.objects.get_mut(&held.token) else { return };
        let is_it = |(of, kept): &(u64, LookupGrant)| *of == session && kept.sequence == held.sequence;
        let Some(at) = object.kept.iter().position(is_it) else { return };
        let (_, kept) = object.kept.swap_remove(at);
        self.count -= 1;
        if let Some(tokens) = self.sessions.get_mut(&session) {
            tokens.remove(&held.sequence);
        }
        self.recalled.remove(&(session, held.sequence));
        kept.waiting.into_iter().for_each(|ticket| self.one_less(ticket));
        self.clean(held.token);
    }

    fn one_less(&mut self, ticket: u64) {
        let Some(left) = self.changes.get_mut(&ticket) else { return };
        *left -= 1;
        if *left == 0 {
            self.changes.remove(&ticket);
            self.ready.push(ticket);
        }
    }

    /// Frees what a session that is over kept.
    pub fn forget(&mut self, session: u64) {
        for (sequence, token) in self.sessions.remove(&session).unwrap_or_default() {
            self.returned(session, TokenGrant { token, level: level::NONE, sequence });
        }
        self.recalled_to.remove(&session);
        let numbers: Vec<u64> = self.dropping_of(session).map(|(number, _)| number).collect();
        numbers.into_iter().for_each(|number| self.name_dropped(session, number));
    }

    fn dropping_of(&self, session: u64) -> impl Iterator<Item = (u64, &NameDrop)> {
        let of_session = self.dropping.range((session, 0)..=(session, u64::MAX));
        of_session.map(|((_, number), dropping)| (*number, dropping))
    }

    /// Repeats recalls that a session may have missed before it reconnected.
    pub fn repeat(&mut self, session: u64) {
        let again = self.dropping_of(session);
        let again = again.map(|(number, dropping)| (session, number, (dropping.directory, dropping.name.clone())));
        let again: Vec<NameChange> = again.collect();
        self.name_changes.extend(again);
        let Some(tokens) = self.sessions.get(&session) else { return };
        for ((_, sequence), _) in self.recalled.range((session, 0)..=(session, u64::MAX)) {
            if let Some(token) = tokens.get(sequence) {
                self.recalls.push((session, TokenGrant { token: *token, level: level::NONE, sequence: *sequence }));
            }
        }
    }

    /// Returns the recalls since the last call.
    pub fn take_recalls(&mut self) -> Vec<Recall> {
        std::mem::take(&mut self.recalls)
    }

    /// Returns the names that sessions must drop, since the last call.
    pub fn take_name_changes(&mut self) -> Vec<NameChange> {
        std::mem::take(&mut self.name_changes)
    }

    /// Returns the changes that can be made, since the last call.
    pub fn take_ready(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.ready)
    }

    /// Returns the sessions that must give something back, with its inode and since when.
    pub fn asked(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        let recalled = self.recalled.iter().filter_map(|((session, sequence), since)| {
            let token = self.sessions.get(session)?.get(sequence)?;
            Some((*session, token.object.inode, *since))
        });
        let dropping = self.dropping.iter();
        recalled.chain(dropping.map(|((session, _), dropping)| (*session, dropping.directory.inode, dropping.since)))
    }

    /// Whether changes wait for sessions.
    pub fn has_waiting(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Returns how many names of directories and attributes sessions keep.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns how often sessions were told to give something back, or to drop a name, since the start.
    pub fn recall_count(&self) -> u64 {
        self.recall_count
    }
}
