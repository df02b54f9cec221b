//! Sessions that keep names and attributes, and the server's side, with messages that are late and cross.
//!
//! Owns: seeded runs of three sessions that look at names and change them. The promise: what a session finds in what it
//! keeps is what the server has at this moment. Each planted bug must break it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::{CachedLookup, ListingPart, LookupCache, PendingChange, QuestionMoment};
use crate::format::Inode;
use crate::protocol::{
    AttributeChanges, FileId, InodeAttributes, MayKeep, MetadataOperation, Token, TokenAspect, TokenGrant,
};
use crate::tokens::{self, LookupChange};

const SESSIONS: usize = 3;
const NAMES: u64 = 4;
const STEPS: u64 = 600;
/// The number of names in a part of a listing.
const LISTED: usize = 2;
pub(super) const DIRECTORY: FileId = FileId { inode: 1, generation: 1 };

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LookupCacheBug {
    /// An answer is kept although what it shows was recalled or changed since the question.
    LateAnswerKept,
    /// What a session changes itself is kept.
    OwnChangeKept,
    /// A change is made before other sessions have given back what it changes.
    ChangeUnwaited,
    /// A session gives back what it still uses.
    UsedAfterReturn,
    /// What is being changed is offered again before the change is made.
    OfferedDuringChange,
    /// A session says that it has dropped a name that it still uses.
    NameNotDropped,
    /// A session drops a name, but keeps an answer with it that was asked for before.
    LateNameKept,
    /// What the answer to a session's change shows is kept although it was recalled, or changed once more, since.
    GrantKeptAfterRecall,
    /// In a directory of which a session knows all names, it takes one for absent that another session has changed.
    AbsentNameKept,
}

const BUGS: [LookupCacheBug; 9] = [
    LookupCacheBug::LateAnswerKept,
    LookupCacheBug::OwnChangeKept,
    LookupCacheBug::ChangeUnwaited,
    LookupCacheBug::UsedAfterReturn,
    LookupCacheBug::OfferedDuringChange,
    LookupCacheBug::NameNotDropped,
    LookupCacheBug::LateNameKept,
    LookupCacheBug::GrantKeptAfterRecall,
    LookupCacheBug::AbsentNameKept,
];

struct LookupTestRandom(u64);

impl LookupTestRandom {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// A request of a session.
#[expect(clippy::large_enum_variant, reason = "few are made")]
enum LookupTestRequest {
    Name(QuestionMoment, u64),
    Attributes(QuestionMoment, FileId),
    /// The names behind a cookie.
    List(QuestionMoment, u64),
    Change(MetadataOperation, Option<PendingChange>),
}

/// An answer of the server.
enum LookupTestAnswer {
    Looked {
        asked: QuestionMoment,
        name: Option<u64>,
        names: u64,
        attributes: u64,
        found: Option<InodeAttributes>,
    },
    Listed {
        asked: QuestionMoment,
        part: ListingPart,
        is_kept: bool,
        names: Vec<(u64, FileId)>,
    },
    /// A change, with what the session may keep of it if it succeeded, and the inode that the answer shows.
    Done(Option<PendingChange>, Option<(MayKeep, Option<FileId>)>),
}

#[derive(Default)]
struct LookupTestSession {
    looks: Arc<LookupCache>,
    up: VecDeque<LookupTestRequest>,
    /// Answers may come in any order.
    down: Vec<LookupTestAnswer>,
    recalls: VecDeque<TokenGrant>,
    returns: VecDeque<TokenGrant>,
    /// Names that it must drop, with their numbers, and the numbers of those that it has dropped.
    name_changes: VecDeque<(u64, Vec<u8>)>,
    dropped: VecDeque<u64>,
    /// Recalls that were answered, and are to be done yet: a bug.
    undone: Vec<Token>,
    /// Operations at the server, of which the first waits.
    behind: VecDeque<(MetadataOperation, Option<PendingChange>)>,
    is_changing: bool,
}

impl Default for LookupCache {
    fn default() -> LookupCache {
        LookupCache::new()
    }
}

struct LookupTestRun {
    random: LookupTestRandom,
    bug: Option<LookupCacheBug>,
    now: u64,
    sessions: Vec<LookupTestSession>,
    server: tokens::LookupGrants,
    /// The inodes of the names, and the version of each inode.
    names: BTreeMap<u64, FileId>,
    versions: BTreeMap<u64, u64>,
    waiting: BTreeMap<u64, (usize, LookupChange)>,
    next: u64,
    hits: u64,
    waits: u64,
}

pub(super) fn text(name: u64) -> Vec<u8> {
    format!("n{name}").into_bytes()
}

fn number(name: &[u8]) -> u64 {
    u64::from(name[1] - b'0')
}

impl LookupTestRun {
    fn new(seed: u64, bug: Option<LookupCacheBug>) -> LookupTestRun {
        LookupTestRun {
            random: LookupTestRandom(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            bug,
            now: 0,
            sessions: (0..SESSIONS).map(|_| LookupTestSession::default()).collect(),
            server: tokens::LookupGrants::new(1),
            names: BTreeMap::new(),
            versions: BTreeMap::from([(DIRECTORY.inode, 0)]),
            waiting: BTreeMap::new(),
            next: 100,
            hits: 0,
            waits: 0,
        }
    }

    fn attributes(&self, file: FileId) -> Option<InodeAttributes> {
        let version = *self.versions.get(&file.inode)?;
        Some(InodeAttributes {
            number: file.inode,
            inode: Inode { generation: file.generation, version, ..Inode::default() },
        })
    }

    /// A program's call on a session. *Errors*: what the session keeps is not what the server has.
    fn call(&mut self, of: usize) -> Result<(), String> {
        let name = self.random.below(NAMES);
        let asked = self.sessions[of].looks.now();
        match self.random.below(11) {
            0..7 => {
                let truth = self.names.get(&name).and_then(|file| self.attributes(*file));
                let found = match self.sessions[of].looks.name(DIRECTORY, &text(name)) {
                    Some(CachedLookup::Present(found)) => Some(*found),
                    Some(CachedLookup::Absent) => None,
                    None => {
                        self.sessions[of].up.push_back(LookupTestRequest::Name(asked, name));
                        return Ok(());
                    }
                };
                self.hits += 1;
                if found != truth {
                    return Err(format!("session {of} finds {found:?} for {name}, which is {truth:?}"));
                }
            }
            7..9 => {
                let any = self.random.below(self.names.len() as u64 + 1) as usize;
                let file = self.names.values().nth(any).copied().unwrap_or(DIRECTORY);
                match self.sessions[of].looks.attributes(file) {
                    Some(found) if Some(&found) != self.attributes(file).as_ref() => {
                        return Err(format!("session {of} finds {found:?}, which is {:?}", self.attributes(file)));
                    }
                    Some(_) => self.hits += 1,
                    None => self.sessions[of].up.push_back(LookupTestRequest::Attributes(asked, file)),
                }
            }
            9 => self.sessions[of].up.push_back(LookupTestRequest::List(asked, 0)),
            _ => {
                let operation = self.operation(name);
                let changing = (self.bug != Some(LookupCacheBug::OwnChangeKept))
                    .then(|| self.sessions[of].looks.changing(&operation));
                self.sessions[of].up.push_back(LookupTestRequest::Change(operation, changing));
            }
        }
        Ok(())
    }

    fn operation(&mut self, name: u64) -> MetadataOperation {
        let other = self.random.below(NAMES);
        match (self.names.get(&name).copied(), self.random.below(3)) {
            (None, _) => super::super::NewInode::default().operation(DIRECTORY, &text(name), false),
            (Some(_), 0) => {
                MetadataOperation::Unlink { directory: DIRECTORY, name: text(name), is_directory: false, expected: 0 }
            }
            (Some(_), 1) => MetadataOperation::Rename {
                directory: DIRECTORY,
                name: text(name),
                new_directory: DIRECTORY,
                new_name: text(other),
                flags: 0,
            },
            (Some(file), _) => MetadataOperation::SetAttributes { file, changes: AttributeChanges::default() },
        }
    }

    /// What an operation changes at the server now.
    fn touched(&self, operation: &MetadataOperation) -> LookupChange {
        let token = |object, what| Token { object, what };
        let (mut tokens, mut names) = (Vec::new(), Vec::new());
        let mut add = |name: &[u8]| {
            names.push((DIRECTORY, name.to_vec()));
            tokens.extend([token(DIRECTORY, TokenAspect::Directory), token(DIRECTORY, TokenAspect::Attributes)]);
            tokens.extend(self.names.get(&number(name)).map(|file| token(*file, TokenAspect::Attributes)));
        };
        match operation {
            MetadataOperation::Create { name, .. } | MetadataOperation::Unlink { name, .. } => add(name),
            MetadataOperation::Rename { name, new_name, .. } => {
                add(name);
                add(new_name);
            }
            MetadataOperation::SetAttributes { file, .. } => tokens.push(token(*file, TokenAspect::Attributes)),
            _ => {}
        }
        tokens.sort_unstable();
        tokens.dedup();
        LookupChange { tokens, names }
    }

    /// Does an operation; returns the inode in its answer. `None`: it is refused.
    fn apply(&mut self, operation: &MetadataOperation) -> Option<Option<FileId>> {
        let mut grow = |file: FileId| *self.versions.entry(file.inode).or_default() += 1;
        match operation {
            MetadataOperation::Create { name, .. } if !self.names.contains_key(&number(name)) => {
                let made = FileId { inode: self.next, generation: 1 };
                self.next += 1;
                grow(DIRECTORY);
                self.versions.insert(made.inode, 1);
                self.names.insert(number(name), made);
                Some(Some(made))
            }
            MetadataOperation::Unlink { name, .. } => {
                let file = self.names.remove(&number(name))?;
                grow(DIRECTORY);
                grow(file);
                Some(Some(file))
            }
            MetadataOperation::Rename { name, new_name, .. } if name != new_name => {
                let file = self.names.remove(&number(name))?;
                grow(DIRECTORY);
                grow(file);
                if let Some(replaced) = self.names.insert(number(new_name), file) {
                    grow(replaced);
                }
                Some(None)
            }
            MetadataOperation::SetAttributes { file, .. } => {
                grow(*file);
                Some(Some(*file))
            }
            _ => None,
        }
    }

    /// Returns what a session may keep of what its operation has changed.
    fn may_keep(&mut self, of: usize, tokens: &[Token], shown: Option<FileId>) -> MayKeep {
        let mut tokens = tokens.to_vec();
        tokens.extend(shown.map(|object| Token { object, what: TokenAspect::Attributes }));
        tokens.sort_unstable();
        tokens.dedup();
        let mut may_keep = MayKeep::default();
        for token in tokens {
            if self.server.offer(self.now, of as u64, token).is_none() {
                continue;
            }
            match token.what {
                TokenAspect::Directory => may_keep.directories.push(token.object),
                _ => may_keep.attributes.extend(self.attributes(token.object)),
            }
        }
        may_keep
    }

    /// Takes a request of a session at the server.
    fn take_up(&mut self, of: usize) {
        match self.sessions[of].up.pop_front() {
            Some(LookupTestRequest::Name(asked, name)) => {
                let file = self.names.get(&name).copied();
                self.answer(of, asked, Some(name), file);
            }
            Some(LookupTestRequest::Attributes(asked, file)) => self.answer(of, asked, None, Some(file)),
            Some(LookupTestRequest::List(asked, from)) => {
                let token = Token { object: DIRECTORY, what: TokenAspect::Directory };
                let is_kept = self.server.offer(self.now, of as u64, token).is_some();
                // The cookie of a name is the number of the next one.
                let names = self.names.range(from..).map(|(name, file)| (*name, *file));
                let names: Vec<(u64, FileId)> = names.take(LISTED).collect();
                let to = names.last().map_or(from, |(name, _)| name + 1);
                let part = ListingPart { from, to, is_end: self.names.range(to..).next().is_none() };
                self.sessions[of].down.push(LookupTestAnswer::Listed { asked, part, is_kept, names });
            }
            Some(LookupTestRequest::Change(operation, changing)) => {
                self.sessions[of].behind.push_back((operation, changing));
                self.change(of);
            }
            None => {}
        }
    }

    fn answer(&mut self, of: usize, asked: QuestionMoment, name: Option<u64>, file: Option<FileId>) {
        let found = file.and_then(|file| self.attributes(file));
        let mut offer = |token| self.server.offer(self.now, of as u64, token).unwrap_or(0);
        let names = name.map_or(0, |_| offer(Token { object: DIRECTORY, what: TokenAspect::Directory }));
        let attributes =
            found.as_ref().map_or(0, |found| offer(Token { object: found.id(), what: TokenAspect::Attributes }));
        self.sessions[of].down.push(LookupTestAnswer::Looked { asked, name, names, attributes, found });
    }

    /// Does the operations of a session in order, up to one that waits.
    fn change(&mut self, of: usize) {
        while !self.sessions[of].is_changing
            && let Some((operation, _)) = self.sessions[of].behind.front()
        {
            let change = self.touched(operation);
            self.next += 1;
            let is_ready = self.server.begin_change(self.now, of as u64, &change, self.next);
            if is_ready || self.bug == Some(LookupCacheBug::ChangeUnwaited) {
                self.finish(of, &change.tokens);
                continue;
            }
            if self.bug == Some(LookupCacheBug::OfferedDuringChange) {
                self.server.end_change(&change.tokens);
            }
            self.waits += 1;
            self.sessions[of].is_changing = true;
            self.waiting.insert(self.next, (of, change));
        }
    }

    fn finish(&mut self, of: usize, tokens: &[Token]) {
        let Some((operation, changing)) = self.sessions[of].behind.pop_front() else { return };
        let shown = self.apply(&operation);
        self.server.end_change(tokens);
        let may_keep = shown.map(|shown| (self.may_keep(of, tokens, shown), shown));
        self.sessions[of].down.push(LookupTestAnswer::Done(changing, may_keep));
    }

    /// Does what the server can do now.
    fn act(&mut self) {
        loop {
            let ready = self.server.take_ready();
            for (session, held) in self.server.take_recalls() {
                self.sessions[session as usize].recalls.push_back(held);
            }
            for (session, number, (_, name)) in self.server.take_name_changes() {
                self.sessions[session as usize].name_changes.push_back((number, name));
            }
            if ready.is_empty() {
                return;
            }
            for (of, change) in ready.iter().filter_map(|ticket| self.waiting.remove(ticket)).collect::<Vec<_>>() {
                self.sessions[of].is_changing = false;
                let now = self.sessions[of].behind.front().map(|(operation, _)| self.touched(operation));
                let is_known = now.is_some_and(|now| change.covers(&now));
                if is_known || self.bug == Some(LookupCacheBug::OfferedDuringChange) {
                    self.finish(of, &change.tokens);
                } else {
                    self.server.end_change(&change.tokens);
                }
                self.change(of);
            }
        }
    }

    /// Takes an answer at a session.
    fn take_down(&mut self, of: usize) {
        let count = self.sessions[of].down.len() as u64;
        if count == 0 {
            return;
        }
        let any = self.random.below(count) as usize;
        let down = self.sessions[of].down.swap_remove(any);
        let looks = self.sessions[of].looks.clone();
        let now = looks.now();
        let moment = |asked| if self.bug == Some(LookupCacheBug::LateAnswerKept) { now } else { asked };
        match down {
            LookupTestAnswer::Looked { asked, name, names, attributes, found } => {
                if let (Some(name), true) = (name, names != 0) {
                    looks.keep_name(moment(asked), DIRECTORY, &text(name), found.as_ref().map(InodeAttributes::id));
                }
                if let (Some(found), true) = (&found, attributes != 0) {
                    looks.keep_attributes(moment(asked), found);
                }
            }
            LookupTestAnswer::Listed { asked, part, is_kept, names } => {
                if is_kept {
                    let asked = moment(asked);
                    names.iter().for_each(|(name, file)| looks.keep_name(asked, DIRECTORY, &text(*name), Some(*file)));
                    looks.keep_listing(asked, DIRECTORY, part);
                }
                if !part.is_end {
                    self.sessions[of].up.push_back(LookupTestRequest::List(now, part.to));
                }
            }
            LookupTestAnswer::Done(Some(mut changing), Some((may_keep, shown))) => {
                if self.bug == Some(LookupCacheBug::GrantKeptAfterRecall) {
                    changing.begun = u64::MAX;
                }
                changing.end_with(may_keep, shown);
            }
            LookupTestAnswer::Done(..) => {}
        }
    }

    fn step(&mut self) -> Result<(), String> {
        self.now += self.random.below(60);
        let of = self.random.below(SESSIONS as u64) as usize;
        match self.random.below(9) {
            7 => self.drop_name(of),
            8 => {
                if let Some(number) = self.sessions[of].dropped.pop_front() {
                    self.server.name_dropped(of as u64, number);
                }
            }
            0..2 => self.call(of)?,
            2 => self.take_up(of),
            3 => self.take_down(of),
            4 => {
                if let Some(held) = self.sessions[of].recalls.pop_front() {
                    match self.bug {
                        Some(LookupCacheBug::UsedAfterReturn) => self.sessions[of].undone.push(held.token),
                        _ => self.sessions[of].looks.recalled(held.token),
                    }
                    self.sessions[of].returns.push_back(held);
                }
            }
            5 => {
                let undone = std::mem::take(&mut self.sessions[of].undone);
                undone.into_iter().for_each(|token| self.sessions[of].looks.recalled(token));
            }
            _ => {
                if let Some(held) = self.sessions[of].returns.pop_front() {
                    self.server.returned(of as u64, held);
                }
            }
        }
        self.act();
        Ok(())
    }

    /// Drops a name at a session that the server wants to be dropped.
    fn drop_name(&mut self, of: usize) {
        let Some((number, name)) = self.sessions[of].name_changes.pop_front() else { return };
        match self.bug {
            Some(LookupCacheBug::NameNotDropped) => {}
            Some(LookupCacheBug::LateNameKept) => self.sessions[of].looks.forget_name_alone(DIRECTORY, &name),
            Some(LookupCacheBug::AbsentNameKept) => self.sessions[of].looks.take_name_for_absent(DIRECTORY, &name),
            _ => self.sessions[of].looks.name_changes(DIRECTORY, &name),
        }
        self.sessions[of].dropped.push_back(number);
    }

    fn is_idle(&self) -> bool {
        let is_idle = |session: &LookupTestSession| {
            session.up.is_empty()
                && session.down.is_empty()
                && session.behind.is_empty()
                && session.recalls.is_empty()
                && session.returns.is_empty()
                && session.name_changes.is_empty()
                && session.dropped.is_empty()
        };
        self.sessions.iter().all(is_idle)
    }

    fn run(&mut self) -> Result<(), String> {
        for _ in 0..STEPS {
            self.step()?;
        }
        // Every call ends.
        for _ in 0..10_000 {
            if self.is_idle() {
                return Ok(());
            }
            for of in 0..SESSIONS {
                self.take_up(of);
                self.take_down(of);
                while let Some(held) = self.sessions[of].recalls.pop_front() {
                    self.sessions[of].looks.recalled(held.token);
                    self.server.returned(of as u64, held);
                }
                while let Some(held) = self.sessions[of].returns.pop_front() {
                    self.server.returned(of as u64, held);
                }
                while !self.sessions[of].name_changes.is_empty() {
                    self.drop_name(of);
                }
                while let Some(number) = self.sessions[of].dropped.pop_front() {
                    self.server.name_dropped(of as u64, number);
                }
                self.act();
            }
        }
        Err("calls have no end".to_owned())
    }
}

#[test]
fn cached_names_match_the_server() {
    let (mut hits, mut waits) = (0, 0);
    for seed in 1..=3000 {
        let mut run = LookupTestRun::new(seed, None);
        run.run().unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
        (hits, waits) = (hits + run.hits, waits + run.waits);
    }
    println!("{hits} look-ups from what was kept, {waits} changes waited");
    assert!(hits > 10_000 && waits > 1_000, "{hits} {waits}");
}

#[test]
fn lookup_cache_bugs_are_caught() {
    for bug in BUGS {
        let found =
            (1..=3000).find_map(|seed| LookupTestRun::new(seed, Some(bug)).run().err().map(|broken| (seed, broken)));
        let (seed, broken) = found.unwrap_or_else(|| panic!("{bug:?} is not found"));
        println!("{bug:?}: seed {seed}: {broken}");
    }
}
