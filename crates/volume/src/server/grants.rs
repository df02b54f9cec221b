//! The owner's tokens: waiting requests and questions, the connections to clients, and sessions that others wait for
//! too long.
//!
//! Owns: which request each ticket of the arbiter belongs to. Promises: a session is ended for the sake of others only
//! when its last answered renewal is so old that its client no longer answers programs. Leaves to others: the rules
//! (`tokens`).
//!
//! *Circle*: as `request`: requests have the replies of `connection`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use super::connection::{Frames, ReplySender};
use super::long_waits::WaitSubject;
use crate::planted::{Bug, planted};
use crate::protocol::{
    FileId, MetadataQuestion, RefusalCode, ServerAnswer, ServerRefusal, Token, TokenAspect, TokenGrant, VolumeMessage,
};
use crate::tokens::{
    LocalCounts, LocalDirectories, LookRounds, LookupChange, LookupGrants, RecallReason, SessionSilence,
    SessionVerdict, TokenAction, TokenArbiter, TokenCounts, level, verdict,
};

/// A question that waits for commits of other hosts.
pub(super) struct WaitingQuestion {
    pub session: u64,
    pub question: MetadataQuestion,
    pub reply: ReplySender,
    /// How often it has waited for the writers of what it shows.
    pub rounds: LookRounds,
    /// What it has waited for before.
    pub waited: WaitHistory,
}

/// What a request has waited for before.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct WaitHistory {
    /// Whether it has waited for the return of a directory.
    pub for_return: bool,
    /// Whether sessions have reported all that they had made when it came.
    pub for_makers: bool,
}

/// The inodes that a request is about.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AboutInodes<'a> {
    /// Those that exist, or may.
    pub known: &'a [u64],
    /// Those that it names and that do not exist here.
    pub missing: &'a [u64],
}

/// Requests and questions that can be answered now.
#[derive(Default)]
pub(super) struct ReadyRequests {
    /// Questions that are asked again and can be answered.
    pub ready: Vec<WaitingQuestion>,
    /// Requests for tokens that are granted.
    pub granted: Vec<(u64, ReplySender, TokenGrant)>,
    /// The tickets of changes that can be made.
    pub changes: Vec<u64>,
}

impl ReadyRequests {
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.granted.is_empty() && self.changes.is_empty()
    }
}

/// A request to change a file's data, while other sessions keep its attributes.
struct DeferredAcquire {
    session: u64,
    token: Token,
    level: u8,
    waits: bool,
    reply: ReplySender,
    has_waited: bool,
}

/// A request for a token that waits in the arbiter.
struct WaitingAcquire {
    session: u64,
    file: FileId,
    reply: ReplySender,
}

/// The tokens, and the calls that wait for them.
pub(super) struct TokenQueue {
    arbiter: TokenArbiter,
    looks: LookupGrants,
    locals: LocalDirectories,
    later: HashMap<u64, DeferredAcquire>,
    /// Requests for tokens that wait until another session has returned a directory.
    gated: HashMap<u64, DeferredAcquire>,
    started: Instant,
    epoch: u64,
    next_ticket: u64,
    acquiring: HashMap<u64, WaitingAcquire>,
    looking: HashMap<u64, WaitingQuestion>,
    /// The control connection of each session.
    controls: HashMap<u64, Frames>,
    /// Sessions whose renewals are not answered, with the time since when.
    barred: BTreeMap<u64, Instant>,
}

impl TokenQueue {
    /// Makes the tokens of a new server, which waits for earlier sessions to say what they hold.
    pub fn new(epoch: u64, sessions: impl IntoIterator<Item = u64>) -> TokenQueue {
        TokenQueue {
            arbiter: TokenArbiter::new(epoch, sessions),
            looks: LookupGrants::new(epoch),
            locals: LocalDirectories::new(epoch),
            later: HashMap::new(),
            gated: HashMap::new(),
            started: Instant::now(),
            epoch,
            next_ticket: 1,
            acquiring: HashMap::new(),
            looking: HashMap::new(),
            controls: HashMap::new(),
            barred: BTreeMap::new(),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    /// Returns the time at which [`wake`](Self::wake) must be called.
    pub fn wake_at(&self) -> Option<Instant> {
        self.arbiter.wake_at().map(|ms| self.started + Duration::from_millis(ms))
    }

    /// Handles everything that is due by now.
    pub fn wake(&mut self) {
        self.arbiter.wake(self.now());
    }

    /// Returns the numbers of tokens held, of calls that wait for one, and of sessions that have not yet said what they
    /// hold.
    #[cfg(test)]
    pub fn counts(&self) -> (usize, usize, usize) {
        self.arbiter.counts()
    }

    /// Returns the numbers for the status.
    pub fn token_counts(&self) -> TokenCounts {
        let (held, waiting, _) = self.arbiter.counts();
        TokenCounts { held, waiting, kept: self.looks.count(), recalls: self.looks.recall_count() }
    }

    /// Whether earlier sessions have not yet said, after a restart, what they hold.
    pub fn is_expecting(&self) -> bool {
        self.arbiter.is_expecting()
    }

    /// Whether an earlier session has not yet said, after a restart, what it holds.
    pub fn is_expected(&self, session: u64) -> bool {
        self.arbiter.is_expected(session)
    }

    /// Handles a session's request for a token. Before a session may change a file's data, no other one keeps the
    /// file's attributes.
    pub fn acquire(&mut self, session: u64, (token, level, waits): (Token, u8, bool), reply: ReplySender) {
        self.acquire_later(DeferredAcquire { session, token, level, waits, reply, has_waited: false });
    }

    fn acquire_later(&mut self, later: DeferredAcquire) {
        let (session, token, level) = (later.session, later.token, later.level);
        let ticket = self.ticket();
        if !self.locals.wait_for(self.now(), session, &[token.object.inode], ticket, later.has_waited) {
            self.gated.insert(ticket, DeferredAcquire { has_waited: true, ..later });
            return;
        }
        let change = LookupChange { tokens: vec![attributes_of(token)], names: Vec::new() };
        if level != level::WRITE || self.looks.begin_change(self.now(), session, &change, ticket) {
            self.acquire_now(later, ticket);
        } else {
            self.later.insert(ticket, later);
        }
    }

    fn acquire_now(&mut self, later: DeferredAcquire, ticket: u64) {
        let DeferredAcquire { session, token, level, waits, reply, .. } = later;
        let replaced = self.arbiter.acquire(self.now(), session, token, level, ticket, waits);
        let mut waiting = WaitingAcquire { session, file: token.object, reply };
        // A request that came on an earlier connection may have waited for something else until now.
        if let Some(earlier) = replaced.and_then(|ticket| self.acquiring.remove(&ticket))
            && earlier.reply.connection() > waiting.reply.connection()
        {
            waiting = earlier;
        }
        self.acquiring.insert(ticket, waiting);
        if level == level::WRITE {
            // From now on the arbiter knows that the session writes, or waits to.
            self.looks.end_change(&[attributes_of(token)]);
        }
    }

    /// Grants a token at once, if no other session's token conflicts.
    pub fn offer(&mut self, session: u64, token: Token, level: u8) -> Option<TokenGrant> {
        if level == level::WRITE && self.looks.is_kept(session, attributes_of(token)) {
            return None;
        }
        self.arbiter.offer(self.now(), session, token, level)
    }

    /// Lets a session keep the names of a directory, or the attributes of an inode, that it is shown. Returns the number
    /// of the grant.
    pub fn offer_look(&mut self, session: u64, token: Token) -> Option<u64> {
        let is_written = token.what == TokenAspect::Attributes && self.arbiter.is_written(session, token.object);
        if is_written || self.locals.is_held_by_other(session, token.object.inode) || self.arbiter.is_expecting() {
            return None;
        }
        self.looks.offer(self.now(), session, token)
    }

    /// Begins an operation that is about these inodes, and has waited for this before.
    ///
    /// *Errors*: the ticket by which [`act`](Self::act) says that other sessions have returned those that they held, and
    /// what the operation will have waited for then.
    pub fn begin_about(
        &mut self,
        session: u64,
        about: AboutInodes<'_>,
        waited: WaitHistory,
    ) -> Result<(), (u64, WaitHistory)> {
        let (now, ticket) = (self.now(), self.ticket());
        if !self.locals.wait_for(now, session, about.known, ticket, waited.for_return) {
            return Err((ticket, WaitHistory { for_return: true, ..waited }));
        }
        let is_known = waited.for_makers || planted(Bug::MakerUnheard);
        if !is_known && !self.locals.wait_for_makers(now, session, about.missing, ticket) {
            return Err((ticket, WaitHistory { for_makers: true, ..waited }));
        }
        Ok(())
    }

    /// Returns a question that is about these inodes if it can be answered now; otherwise it waits until other sessions
    /// have returned those that they held, and [`act`](Self::act) returns it later.
    pub fn look_at(&mut self, looking: WaitingQuestion, about: AboutInodes<'_>) -> Option<WaitingQuestion> {
        if planted(Bug::HeldShown) {
            return Some(looking);
        }
        match self.begin_about(looking.session, about, looking.waited) {
            Ok(()) => Some(looking),
            Err((ticket, waited)) => {
                let rounds = looking.rounds.again();
                self.looking.insert(ticket, WaitingQuestion { waited, rounds, ..looking });
                None
            }
        }
    }

    /// Whether a session may get inode numbers: it uses those that it has, and gives back what it keeps.
    pub fn may_have_numbers(&self, session: u64) -> bool {
        self.locals.may_have_numbers(session) && !self.looks.is_full(session)
    }

    /// Returns the directories at level *write*, what of them waits, and the inode numbers.
    pub fn locals(&mut self) -> &mut LocalDirectories {
        &mut self.locals
    }

    /// Gives a directory, in which a session has changed a name, to this session at level *write*, if it alone uses it.
    pub fn offer_directory(&mut self, session: u64, directory: FileId) {
        let now = self.now();
        if !self.locals.changed(now, session, directory.inode) || !self.may_be_given(session) {
            return;
        }
        match self.is_free(session, directory) {
            true => self.locals.grant(now, session, directory),
            // Others have looked at it before: they give that back, and a later change gets the directory.
            false => tokens_of(directory).into_iter().for_each(|token| self.looks.recall_others(now, session, token)),
        }
    }

    /// Gives a directory that a session has made in another one to this session at level *write*, if it alone uses that
    /// one: others that keep names of it are shown the new one soon.
    pub fn offer_new_directory(&mut self, session: u64, parent: FileId, directory: FileId) {
        let now = self.now();
        let is_alone = self.locals.may_have_new(now, session, parent.inode) && self.is_free(session, parent);
        if is_alone && self.may_be_given(session) && self.is_free(session, directory) {
            self.locals.grant(now, session, directory);
        }
    }

    /// Whether no other session keeps names or attributes of a directory, and none of them changes.
    fn is_free(&self, session: u64, directory: FileId) -> bool {
        let mut tokens = tokens_of(directory).into_iter();
        tokens.all(|token| !self.looks.is_kept(session, token) && !self.looks.is_changing(token))
    }

    /// Whether a session may get any directory. One without a control connection gets no recall.
    fn may_be_given(&self, session: u64) -> bool {
        self.controls.contains_key(&session) && !self.arbiter.is_expecting() && !self.looks.is_full(session)
    }

    /// Notes what a session keeps of an operation that it has done itself: an inode that it has made there goes along with
    /// the directory.
    pub fn done_locally(&mut self, session: u64, directory: u64, tokens: &[Token], made: Option<FileId>) {
        let now = self.now();
        let of_made = made.map(|object| Token { object, what: TokenAspect::Attributes });
        tokens.iter().copied().chain(of_made).for_each(|token| self.looks.keep(now, session, token));
        if let Some(made) = made {
            self.locals.note_made(now, directory, made.inode);
        }
        if self.looks.is_full(session) {
            self.locals.recall_all(now, session);
        }
        self.locals.counts.operations += 1;
    }

    /// Returns how many names of directories and attributes sessions keep.
    #[cfg(test)]
    pub fn looks_count(&self) -> usize {
        self.looks.count()
    }

    /// Returns what happened to directories at level *write*, and how many sessions hold.
    pub fn local_counts(&self) -> (LocalCounts, usize) {
        (self.locals.counts, self.locals.count())
    }

    /// Begins a change of names and attributes by a session; [`end_change`](Self::end_change) must follow it.
    ///
    /// *Errors*: the ticket by which [`act`](Self::act) says that other sessions do not keep them any more.
    pub fn begin_change(&mut self, session: u64, change: &LookupChange) -> Result<(), u64> {
        let ticket = self.ticket();
        match self.looks.begin_change(self.now(), session, change, ticket) {
            true => Ok(()),
            false => Err(ticket),
        }
    }

    /// Forgets the names and attributes of sessions that were asked for some, and whose lease is over: a client drops what
    /// it keeps before it uses a lease again. No session is ended for this.
    pub fn forget_looks_of_silent(&mut self, silence: impl Fn(u64) -> SessionSilence, lease: Duration) {
        let is_over = |session: u64| u128::from(silence(session).answered_ms) > lease.as_millis();
        let silent: BTreeSet<u64> =
            self.looks.asked().map(|(session, ..)| session).filter(|session| is_over(*session)).collect();
        silent.into_iter().for_each(|session| self.looks.forget(session));
    }

    /// Whether another session keeps names of a directory in which this changes one.
    pub fn are_names_kept(&self, session: u64, change: &LookupChange) -> bool {
        let mut directories = change.tokens.iter().filter(|token| token.what == TokenAspect::Directory);
        directories.any(|token| self.looks.is_kept(session, *token))
    }

    /// Ends a change that was made, or is given up.
    pub fn end_change(&mut self, tokens: &[Token]) {
        self.looks.end_change(tokens);
    }

    /// Handles a token that a session returned, or the commit of a session.
    pub fn returned(&mut self, session: u64, held: TokenGrant) {
        match held.token.what {
            TokenAspect::Directory if self.locals.returned(session, held) => {}
            TokenAspect::Directory | TokenAspect::Attributes => self.looks.returned(session, held),
            _ => self.arbiter.returned(self.now(), session, held),
        }
    }

    /// Handles a name that a session has dropped.
    pub fn name_dropped(&mut self, session: u64, number: u64) {
        self.looks.name_dropped(session, number);
    }

    /// Records what an earlier session says it holds. Returns a session that must be ended because the claims conflict.
    pub fn reclaim(&mut self, session: u64, held: &[TokenGrant], is_last: bool) -> Option<u64> {
        self.arbiter.reclaim(self.now(), session, held, is_last)
    }

    /// Handles a new control connection of a session: recalls are sent on it, and those without an answer are repeated.
    pub fn controlled(&mut self, session: u64, frames: Frames) {
        self.controls.insert(session, frames);
        self.arbiter.repeat(session);
        self.looks.repeat(session);
        self.locals.repeat(session);
    }

    /// Removes a session that is over.
    pub fn forget(&mut self, session: u64) {
        self.controls.remove(&session);
        self.barred.remove(&session);
        let gone: Vec<u64> =
            self.later.iter().filter(|(_, later)| later.session == session).map(|(ticket, _)| *ticket).collect();
        for later in gone.iter().filter_map(|ticket| self.later.remove(ticket)) {
            self.looks.end_change(&[attributes_of(later.token)]);
        }
        self.gated.retain(|_, later| later.session != session);
        self.acquiring.retain(|_, waiting| waiting.session != session);
        self.looks.forget(session);
        self.locals.forget(session);
        self.arbiter.forget(self.now(), session);
    }

    /// Returns a question that shows these files if it can be answered now; otherwise the question waits, and
    /// [`act`](Self::act) returns it later.
    ///
    /// A question that shows one file waits twice at most, as [`LookRounds`] says; so it does once more each time that it
    /// has waited in [`look_at`](Self::look_at). What it waits for needs no request of a session but commits, which wait
    /// for nothing else than what sessions keep: so there is no circle of waiting.
    pub fn look(&mut self, mut looking: WaitingQuestion, files: &[FileId]) -> Option<WaitingQuestion> {
        let (now, session, ticket) = (self.now(), looking.session, self.ticket());
        if files.is_empty() || self.arbiter.show(now, session, files.iter().copied(), (ticket, &mut looking.rounds)) {
            return Some(looking);
        }
        self.looking.insert(ticket, looking);
        None
    }

    /// Notes that an operation has changed the attributes of inodes: a question that waits for the writer of one of them
    /// needs a later commit.
    pub fn attributes_changed(&mut self, change: &LookupChange) {
        let changed = change.tokens.iter().filter(|token| token.what == TokenAspect::Attributes);
        changed.for_each(|token| self.arbiter.attributes_changed(token.object));
    }

    /// Whether questions can be answered: [`act`](Self::act) must be called before the next request is handled.
    pub fn has_ready(&self) -> bool {
        self.arbiter.has_ready()
    }

    /// Sends the messages of the arbiter to clients, and returns what can be answered.
    pub fn act(&mut self) -> ReadyRequests {
        let mut acted = ReadyRequests::default();
        for ticket in self.looks.take_ready() {
            match self.later.remove(&ticket) {
                Some(later) => self.acquire_now(later, ticket),
                None => acted.changes.push(ticket),
            }
        }
        for ticket in self.locals.take_ready() {
            if let Some(later) = self.gated.remove(&ticket) {
                self.acquire_later(later);
            } else {
                match self.looking.remove(&ticket) {
                    Some(looking) => acted.ready.push(looking),
                    None => acted.changes.push(ticket),
                }
            }
        }
        for (session, held) in self.locals.take_messages() {
            let message = match held.level {
                crate::tokens::WRITE => VolumeMessage::Grant { held, minimum_ms: 0, is_watched: false, shape: None },
                _ => VolumeMessage::Recall { held, why: RecallReason::Conflict as u8 },
            };
            self.tell(session, &message);
        }
        for (session, held) in self.looks.take_recalls() {
            self.tell(session, &VolumeMessage::Recall { held, why: RecallReason::Conflict as u8 });
        }
        for (session, number, (directory, name)) in self.looks.take_name_changes() {
            self.tell(session, &VolumeMessage::NameChange { directory, number, name });
        }
        for action in self.arbiter.take_actions() {
            match action {
                TokenAction::Grant { session, ticket, held } => {
                    acted.granted.extend(self.acquiring.remove(&ticket).map(|waiting| (session, waiting.reply, held)));
                }
                TokenAction::Refuse { ticket } => {
                    if let Some(waiting) = self.acquiring.remove(&ticket) {
                        let words = "others hold the token, or too many wait for it".to_owned();
                        waiting.reply.send(Err(ServerRefusal {
                            code: RefusalCode::Conflict,
                            errno: libc::EAGAIN,
                            words,
                        }));
                    }
                }
                TokenAction::Recall { session, held, why } => {
                    self.tell(session, &VolumeMessage::Recall { held, why: why as u8 });
                }
                TokenAction::Ready { ticket } => acted.ready.extend(self.looking.remove(&ticket)),
            }
        }
        acted
    }

    /// Sends a message to a session. A session without a connection gets the message when it connects again.
    pub fn tell(&self, session: u64, message: &VolumeMessage) {
        if let Some(frames) = self.controls.get(&session) {
            let _ = frames.send(message.encode(0, self.epoch));
        }
    }

    /// Returns the requests that wait: what each is about, the inode, and its reply.
    pub fn waiting(&self) -> impl Iterator<Item = (WaitSubject, u64, &ReplySender)> {
        let acquiring = self.acquiring.values();
        let acquiring = acquiring.map(|waiting| (WaitSubject::Token, waiting.file.inode, &waiting.reply));
        let looking = self.looking.values().map(|looking| {
            let inode = match &looking.question {
                MetadataQuestion::Lookup { directory, .. } | MetadataQuestion::ReadDirectory { directory, .. } => {
                    directory.inode
                }
                MetadataQuestion::GetAttributes { file } => file.inode,
                _ => 0,
            };
            (WaitSubject::Commit, inode, &looking.reply)
        });
        let later = self
            .later
            .values()
            .chain(self.gated.values())
            .map(|later| (WaitSubject::Token, later.token.object.inode, &later.reply));
        acquiring.chain(looking).chain(later)
    }

    /// Returns the sessions that must give a token back or commit, with its inode and for how long they have been asked.
    pub fn asked(&self) -> impl Iterator<Item = (u64, u64, Duration)> {
        let now = self.now();
        let of_arbiter = self.arbiter.asked().map(|(session, token, since)| (session, token.object.inode, since));
        of_arbiter
            .chain(self.looks.asked())
            .chain(self.locals.awaited())
            .map(move |(session, inode, since)| (session, inode, Duration::from_millis(now.saturating_sub(since))))
    }

    /// Returns the sessions from before a restart that have not yet said what they hold, and the time since the start.
    pub fn expected(&self) -> (Vec<u64>, Duration) {
        (self.arbiter.expected().collect(), self.started.elapsed())
    }

    /// Decides about sessions that others wait for too long, and about barred sessions, whose renewals are not
    /// answered. After `lease` without an answered renewal a client does not answer programs. `lockers` hold locks that
    /// others want; `is_early`: requests for locks, or pushes, wait for the sessions from before a restart.
    pub fn late(
        &mut self,
        (lockers, is_early): (&[u64], bool),
        silence: impl Fn(u64) -> SessionSilence,
        lease: Duration,
    ) -> Vec<(u64, SessionVerdict)> {
        let (now, mut awaited) = (self.now(), self.arbiter.awaited(is_early));
        // A lock may be held for any time, so waiting for it (0) does not make its session slow.
        lockers.iter().for_each(|session| _ = awaited.entry(*session).or_insert(0));
        for (session, _, since) in self.looks.asked().filter(|_| self.looks.has_waiting()) {
            let known = awaited.entry(session).or_insert(since);
            *known = if *known == 0 { since } else { since.min(*known) };
        }
        for (session, _, since) in self.locals.awaited() {
            let known = awaited.entry(session).or_insert(since);
            *known = if *known == 0 { since } else { since.min(*known) };
        }
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let sessions: BTreeSet<u64> = awaited.keys().chain(self.barred.keys()).copied().collect();
        let mut late = Vec::new();
        for session in sessions {
            let barred_for = self.barred.get(&session).map(|since| milliseconds(since.elapsed()));
            // A wait for an earlier session is counted from the restart (0); this alone does not make the session slow.
            let waited = awaited.get(&session).map(|since| if *since == 0 { 0 } else { now.saturating_sub(*since) });
            let Some(verdict) = verdict(barred_for, silence(session), waited, milliseconds(lease)) else { continue };
            match verdict {
                SessionVerdict::Bar => drop(self.barred.insert(session, Instant::now())),
                SessionVerdict::Unbar => drop(self.barred.remove(&session)),
                SessionVerdict::End => {}
            }
            late.push((session, verdict));
        }
        late
    }
}

/// Returns the tokens of what sessions may keep of a directory.
fn tokens_of(directory: FileId) -> [Token; 2] {
    [TokenAspect::Directory, TokenAspect::Attributes].map(|what| Token { object: directory, what })
}

/// Returns the token of the attributes of the file of a data token.
fn attributes_of(token: Token) -> Token {
    Token { object: token.object, what: TokenAspect::Attributes }
}

/// Returns the files whose attributes an answer shows.
pub(super) fn files_of(answer: &ServerAnswer) -> Vec<FileId> {
    match answer {
        ServerAnswer::Attributes(attributes) => vec![attributes.id()],
        ServerAnswer::Listing { names, .. } => {
            let mut files: Vec<FileId> = names.iter().map(|listed| listed.attributes.id()).collect();
            files.sort_unstable();
            files.dedup();
            files
        }
        _ => Vec::new(),
    }
}

/// Whether a question shows attributes of files that others may be writing to.
pub(super) fn is_look(question: &MetadataQuestion) -> bool {
    matches!(
        question,
        MetadataQuestion::Lookup { .. }
            | MetadataQuestion::GetAttributes { .. }
            | MetadataQuestion::ReadDirectory { .. }
    )
}
