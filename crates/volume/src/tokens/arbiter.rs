//! The server's side of all tokens.
//!
//! Owns: the grants, the waiters, and recalls without an answer. Promises:
//! 1. A level is granted only when no other session holds a conflicting level.
//! 2. Waiters of a token are served in the order of their requests; consecutive readers are granted together.
//! 3. A grant is recalled for a conflict no sooner than [`MINIMUM_MS`] after it was given.
//! 4. After a restart no token is granted until every earlier session has said what it holds, or has ended.
//! 5. A question about a file that another session may have written to is answered only after a commit that was
//!    requested later than the question arrived, and its answer is of one moment: see `moments`.
//!
//! Times are in milliseconds, of any clock that never goes back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::moments::{FileMoments, LookRounds};
use super::{RecallReason, conflict, level};
use crate::protocol::{FileId, Token, TokenAspect, TokenGrant};

/// The shortest time between a grant and its recall. *Units*: milliseconds.
pub const MINIMUM_MS: u64 = 10;
/// The number of grant numbers of an epoch, more than an epoch can use.
const GRANTS_OF_EPOCH: u64 = 1 << 40;
/// The maximum number of waiters of a token.
const WAITERS_MAX: usize = 4096;

/// An action that the caller must do. Requests and questions are identified by their tickets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenAction {
    /// A request is granted.
    Grant {
        /// The session.
        session: u64,
        /// The request.
        ticket: u64,
        /// The token and its level.
        held: TokenGrant,
    },
    /// A request is refused: too many wait, or the request does not want to wait.
    Refuse {
        /// The request.
        ticket: u64,
    },
    /// A session must lower a token to the level in `held`, or commit.
    Recall {
        /// The session.
        session: u64,
        /// The token, the level to lower to, and the number of the grant.
        held: TokenGrant,
        /// The reason.
        why: RecallReason,
    },
    /// A question can be answered.
    Ready {
        /// The question.
        ticket: u64,
    },
}

/// A session's grant of a token.
#[derive(Debug, Clone, Copy)]
struct SessionGrant {
    level: u8,
    sequence: u64,
    granted_ms: u64,
    /// The level that the session was told to lower to, and the time of the recall.
    recalled: Option<(u8, u64)>,
}

#[derive(Debug, Clone, Copy)]
struct TokenWaiter {
    session: u64,
    level: u8,
    ticket: u64,
    /// Whether it is a question, which gets nothing: others must only give back what they hold.
    is_question: bool,
}

/// A commit that was requested from a holder, and the questions that wait for it.
#[derive(Debug)]
struct CommitRound {
    session: u64,
    sequence: u64,
    sent_ms: u64,
    /// What the writer commits is of this moment, or of a later one.
    moment: u64,
    questions: Vec<u64>,
}

/// The state of one token.
#[derive(Debug, Default)]
struct TokenState {
    grants: BTreeMap<u64, SessionGrant>,
    waiters: VecDeque<TokenWaiter>,
    round: Option<CommitRound>,
    /// Questions that came after the present commit was requested, and need another commit.
    later: Vec<u64>,
    moments: FileMoments,
}

impl TokenState {
    fn is_idle(&self) -> bool {
        self.grants.is_empty() && self.waiters.is_empty() && self.round.is_none() && self.later.is_empty()
    }

    /// Handles a new number of a session's grant: a commit that was requested under the old number is requested again
    /// under the new one.
    fn renumbered(&mut self, session: u64, token: Token, sequence: u64) -> Option<TokenAction> {
        let round = self.round.as_mut().filter(|round| round.session == session)?;
        round.sequence = sequence;
        let held = TokenGrant { token, level: level::WRITE, sequence };
        Some(TokenAction::Recall { session, held, why: RecallReason::Commit })
    }

    /// Returns another session that may have written to the file.
    fn writer(&self, except: u64) -> Option<(u64, SessionGrant)> {
        let mut writers =
            self.grants.iter().filter(|(session, grant)| **session != except && grant.level == level::WRITE);
        writers.next().map(|(session, grant)| (*session, *grant))
    }
}

/// All tokens of a volume.
#[derive(Debug, Default)]
pub struct TokenArbiter {
    /// The state of each token; the map is ordered, so that the same calls lead to the same actions.
    objects: BTreeMap<Token, TokenState>,
    /// The number of the last grant.
    sequence: u64,
    /// The number of moments that were told apart.
    moment: u64,
    /// Earlier sessions that, after a restart, have not yet said what they hold.
    expected: BTreeSet<u64>,
    /// Questions that wait until these sessions have said it.
    graced: Vec<u64>,
    /// The number of files whose commit each question waits for, by the question's ticket.
    questions: BTreeMap<u64, usize>,
    /// The times at which grants may be recalled, with their tokens.
    wakes: BTreeSet<(u64, Token)>,
    actions: Vec<TokenAction>,
    /// Whether questions are among the actions.
    has_ready: bool,
}

fn data(file: FileId) -> Token {
    Token { object: file, what: TokenAspect::Data }
}

impl TokenArbiter {
    /// Makes an arbiter without tokens, which expects earlier sessions to say what they hold. Grant numbers are above
    /// those of every earlier epoch.
    pub fn new(epoch: u64, expected: impl IntoIterator<Item = u64>) -> TokenArbiter {
        let sequence = epoch.saturating_mul(GRANTS_OF_EPOCH);
        TokenArbiter { sequence, expected: expected.into_iter().collect(), ..TokenArbiter::default() }
    }

    /// Returns the actions since the last call.
    pub fn take_actions(&mut self) -> Vec<TokenAction> {
        self.has_ready = false;
        std::mem::take(&mut self.actions)
    }

    /// Whether there are questions to answer. That must be done before another session gets a token and uses it.
    pub fn has_ready(&self) -> bool {
        self.has_ready
    }

    /// Returns the time at which [`wake`](Self::wake) must be called next.
    pub fn wake_at(&self) -> Option<u64> {
        self.wakes.first().map(|(at, _)| *at)
    }

    /// Handles everything that is due at `now`.
    pub fn wake(&mut self, now: u64) {
        while let Some((at, token)) = self.wakes.first().copied()
            && at <= now
        {
            self.wakes.pop_first();
            self.settle(token, now);
        }
    }

    /// Handles a session's request for a token. Returns the ticket of an earlier request of the session whose place this
    /// one takes, if there is one: that one gets no action.
    pub fn acquire(
        &mut self,
        now: u64,
        session: u64,
        token: Token,
        level: u8,
        ticket: u64,
        waits: bool,
    ) -> Option<u64> {
        let object = self.objects.entry(token).or_default();
        if let Some(grant) = object.grants.get_mut(&session)
            && grant.level >= level
        {
            // The session already has the level: either the grant was lost with its connection, or its return is still
            // on the way. The request need not wait, because sessions in conflict already wait for this grant. With the
            // new number, recalls refer to this grant, and a return of an older number has no effect.
            let is_renumbered = grant.recalled.is_none();
            if is_renumbered {
                self.sequence += 1;
                grant.sequence = self.sequence;
            }
            let held = TokenGrant { token, level: grant.level, sequence: grant.sequence };
            if is_renumbered {
                self.actions.extend(object.renumbered(session, token, self.sequence));
            }
            self.actions.push(TokenAction::Grant { session, ticket, held });
            self.settle(token, now);
            return None;
        }
        // A request that is repeated after a lost connection keeps its place.
        let mut requests = object.waiters.iter_mut().filter(|waiter| !waiter.is_question);
        let mut replaced = None;
        if let Some(known) = requests.find(|waiter| waiter.session == session) {
            replaced = Some(std::mem::replace(&mut known.ticket, ticket));
            known.level = known.level.max(level);
        } else if object.waiters.iter().filter(|waiter| !waiter.is_question).count() >= WAITERS_MAX {
            self.actions.push(TokenAction::Refuse { ticket });
            return None;
        } else {
            object.waiters.push_back(TokenWaiter { session, level, ticket, is_question: false });
        }
        self.settle(token, now);
        if !waits && let Some(object) = self.objects.get_mut(&token) {
            let before = object.waiters.len();
            object.waiters.retain(|waiter| waiter.ticket != ticket);
            if object.waiters.len() != before {
                self.actions.push(TokenAction::Refuse { ticket });
                self.settle(token, now);
            }
        }
        replaced
    }

    /// Grants a token at once, if no session holds a conflicting level and no session waits for the token. `None`: the
    /// session must send a request.
    pub fn offer(&mut self, now: u64, session: u64, token: Token, level: u8) -> Option<TokenGrant> {
        let object = self.objects.get(&token);
        let is_free = object.is_none_or(|object| {
            let conflicts = |(of, grant): (&u64, &SessionGrant)| *of == session || conflict(grant.level, level);
            object.waiters.is_empty() && !object.grants.iter().any(conflicts)
        });
        if !is_free || level == level::NONE || !self.expected.is_empty() {
            return None;
        }
        self.sequence += 1;
        let sequence = self.sequence;
        let grant = SessionGrant { level, sequence, granted_ms: now, recalled: None };
        self.moment += 1;
        let object = self.objects.entry(token).or_default();
        object.grants.insert(session, grant);
        if level == level::WRITE {
            object.moments.exact = self.moment;
        }
        Some(TokenGrant { token, level, sequence })
    }

    /// Handles a token that a session gave back or lowered, or a commit under it.
    pub fn returned(&mut self, now: u64, session: u64, held: TokenGrant) {
        let Some(object) = self.objects.get_mut(&held.token) else { return };
        let Some(grant) = object.grants.get_mut(&session).filter(|grant| grant.sequence == held.sequence) else {
            return;
        };
        let is_lower = held.level < grant.level;
        grant.level = grant.level.min(held.level);
        if grant.recalled.is_some_and(|(wanted, _)| held.level <= wanted) {
            grant.recalled = None;
        }
        if grant.level == level::NONE {
            object.grants.remove(&session);
        }
        let round = object.round.take_if(|round| round.session == session && round.sequence == held.sequence);
        let mut ready = Vec::new();
        if let Some(round) = round {
            object.moments.exact = object.moments.exact.max(round.moment);
            ready = round.questions;
        }
        if is_lower {
            // Nothing can have been written since the commit, so these questions need no other commit.
            ready.append(&mut object.later);
        }
        ready.into_iter().for_each(|question| self.one_less(question));
        self.settle(held.token, now);
    }

    /// Handles a question of `session` that shows these files. Returns whether it can be answered at once; otherwise
    /// [`TokenAction::Ready`] follows, and then this must be called again with what is shown then.
    ///
    /// The number of these waits is bounded: see [`LookRounds`].
    pub fn show(
        &mut self,
        now: u64,
        session: u64,
        files: impl IntoIterator<Item = FileId>,
        (ticket, rounds): (u64, &mut LookRounds),
    ) -> bool {
        if !self.expected.is_empty() {
            self.graced.push(ticket);
            return false;
        }
        self.moment += 1;
        rounds.arrive(self.moment);
        if rounds.are_over() {
            return true;
        }
        let mut waits = 0;
        for file in files {
            let token = data(file);
            let Some(object) = self.objects.get_mut(&token) else { continue };
            let is_known = object.writer(session).is_none() || object.moments.are_one(rounds.since);
            if is_known || object.later.last() == Some(&ticket) {
                continue;
            }
            waits += 1;
            match rounds.needs_tokens() {
                false => object.later.push(ticket),
                true => {
                    let waiter = TokenWaiter { session, level: level::READ, ticket, is_question: true };
                    object.waiters.push_back(waiter);
                }
            }
            self.settle(token, now);
        }
        if waits > 0 {
            rounds.end_one();
            self.questions.insert(ticket, waits);
        }
        waits == 0
    }

    /// Notes that attributes of a file changed at the server.
    pub fn attributes_changed(&mut self, file: FileId) {
        if let Some(object) = self.objects.get_mut(&data(file)) {
            self.moment += 1;
            object.moments.changed = self.moment;
        }
    }

    /// Whether a session other than `except` may change the file's data, or waits to.
    pub fn is_written(&self, except: u64, file: FileId) -> bool {
        self.objects.get(&data(file)).is_some_and(|object| {
            let mut waiters = object.waiters.iter();
            object.writer(except).is_some()
                || waiters.any(|waiter| waiter.session != except && waiter.level == level::WRITE)
        })
    }

    /// Frees the tokens of a session that is over.
    pub fn forget(&mut self, now: u64, session: u64) {
        let tokens: Vec<Token> = self.objects.keys().copied().collect();
        for token in tokens {
            let Some(object) = self.objects.get_mut(&token) else { continue };
            let had = object.grants.remove(&session).is_some();
            let (gone, left): (VecDeque<_>, VecDeque<_>) =
                std::mem::take(&mut object.waiters).into_iter().partition(|waiter| waiter.session == session);
            object.waiters = left;
            if !had && gone.is_empty() {
                continue;
            }
            let round = object.round.take_if(|round| round.session == session);
            let mut ready = round.map(|round| round.questions).unwrap_or_default();
            // Its questions are answered with a refusal.
            ready.extend(gone.iter().filter(|waiter| waiter.is_question).map(|waiter| waiter.ticket));
            if had {
                ready.append(&mut object.later);
            }
            ready.into_iter().for_each(|question| self.one_less(question));
            self.settle(token, now);
        }
        self.expect_no_more(now, session);
    }

    /// Records what an earlier session says it holds, after a restart. Returns a session whose claim conflicts, or has a
    /// number that no earlier server gave: this is a bug, or a host that was restored from a snapshot. When that session
    /// is over, this must be called again, as the rest is not recorded.
    pub fn reclaim(&mut self, now: u64, session: u64, held: &[TokenGrant], is_last: bool) -> Option<u64> {
        if !self.expected.contains(&session) {
            return None;
        }
        for held in held {
            if held.sequence > self.sequence {
                return Some(session);
            }
            let object = self.objects.entry(held.token).or_default();
            let other = object.grants.iter().find(|(of, grant)| **of != session && conflict(grant.level, held.level));
            if let Some((other, grant)) = other {
                return Some(if grant.sequence < held.sequence { *other } else { session });
            }
            let grant = SessionGrant { level: held.level, sequence: held.sequence, granted_ms: now, recalled: None };
            object.grants.insert(session, grant);
        }
        if is_last {
            self.expect_no_more(now, session);
        }
        None
    }

    /// Repeats recalls that a session may have missed before it reconnected.
    pub fn repeat(&mut self, session: u64) {
        for (token, object) in &self.objects {
            let held = |level, sequence| TokenGrant { token: *token, level, sequence };
            if let Some(grant) = object.grants.get(&session)
                && let Some((wanted, _)) = grant.recalled
            {
                let held = held(wanted, grant.sequence);
                self.actions.push(TokenAction::Recall { session, held, why: RecallReason::Conflict });
            }
            if let Some(round) = object.round.as_ref().filter(|round| round.session == session) {
                let held = held(level::WRITE, round.sequence);
                self.actions.push(TokenAction::Recall { session, held, why: RecallReason::Commit });
            }
        }
    }

    /// Whether an earlier session has not yet said, after a restart, what it holds.
    pub fn is_expected(&self, session: u64) -> bool {
        self.expected.contains(&session)
    }

    /// Returns the sessions that others wait for, with the time since when. `is_early`: requests outside the arbiter
    /// wait for earlier sessions after a restart.
    pub fn awaited(&self, is_early: bool) -> BTreeMap<u64, u64> {
        let mut awaited: BTreeMap<u64, u64> = BTreeMap::new();
        let mut add = |session: u64, since: u64| {
            let known = awaited.entry(session).or_insert(since);
            *known = (*known).min(since);
        };
        for object in self.objects.values() {
            for (session, grant) in &object.grants {
                if let Some((_, since)) = grant.recalled {
                    add(*session, since);
                }
            }
            if let Some(round) = &object.round {
                add(round.session, round.sent_ms);
            }
        }
        if is_early || !self.graced.is_empty() || self.objects.values().any(|object| !object.waiters.is_empty()) {
            self.expected.iter().for_each(|session| add(*session, 0));
        }
        awaited
    }

    /// Returns the sessions that must give a token back or commit, with the token and since when.
    pub fn asked(&self) -> impl Iterator<Item = (u64, Token, u64)> {
        self.objects.iter().flat_map(|(token, object)| {
            let recalled = object.grants.iter().filter_map(|(session, grant)| Some((*session, grant.recalled?.1)));
            let committing = object.round.iter().map(|round| (round.session, round.sent_ms));
            recalled.chain(committing).map(|(session, since)| (session, *token, since))
        })
    }

    /// Returns the sessions that have not yet said, after a restart, what they hold.
    pub fn expected(&self) -> impl Iterator<Item = u64> {
        self.expected.iter().copied()
    }

    /// Whether sessions are expected after a restart.
    pub fn is_expecting(&self) -> bool {
        !self.expected.is_empty()
    }

    /// Returns the numbers of tokens held, of requests that wait, and of sessions that are expected after a restart.
    pub fn counts(&self) -> (usize, usize, usize) {
        let held = self.objects.values().map(|object| object.grants.len()).sum();
        let requests = |object: &TokenState| object.waiters.iter().filter(|waiter| !waiter.is_question).count();
        let waiting: usize = self.objects.values().map(requests).sum();
        (held, waiting + self.questions.len() + self.graced.len(), self.expected.len())
    }

    fn expect_no_more(&mut self, now: u64, session: u64) {
        if !self.expected.remove(&session) || !self.expected.is_empty() {
            return;
        }
        let tokens: Vec<Token> = self.objects.keys().copied().collect();
        tokens.into_iter().for_each(|token| self.settle(token, now));
        // These questions are asked again, and then consider what is held now.
        let ready = std::mem::take(&mut self.graced).into_iter().map(|ticket| TokenAction::Ready { ticket });
        self.has_ready |= ready.len() > 0;
        self.actions.extend(ready);
    }

    fn one_less(&mut self, question: u64) {
        let Some(left) = self.questions.get_mut(&question) else { return };
        *left -= 1;
        if *left == 0 {
            self.questions.remove(&question);
            self.has_ready = true;
            self.actions.push(TokenAction::Ready { ticket: question });
        }
    }

    /// Grants what can be granted, and recalls grants that conflict with waiters.
    fn settle(&mut self, token: Token, now: u64) {
        let Some(object) = self.objects.get_mut(&token) else { return };
        let mut shown = Vec::new();
        while self.expected.is_empty()
            && let Some(waiter) = object.waiters.front().copied()
        {
            let in_the_way =
                |of: u64, grant: &SessionGrant| of != waiter.session && conflict(grant.level, waiter.level);
            let own = object.grants.get(&waiter.session).copied();
            let is_recalled = !waiter.is_question && own.is_some_and(|grant| grant.recalled.is_some());
            if is_recalled || object.grants.iter().any(|(of, grant)| in_the_way(*of, grant)) {
                let wanted = if waiter.level == level::WRITE { level::NONE } else { level::READ };
                for (session, grant) in &mut object.grants {
                    if !in_the_way(*session, grant) || grant.recalled.is_some_and(|(told, _)| told <= wanted) {
                        continue;
                    }
                    let from = grant.granted_ms.saturating_add(MINIMUM_MS);
                    if now < from {
                        self.wakes.insert((from, token));
                        continue;
                    }
                    grant.recalled = Some((wanted, grant.recalled.map_or(now, |(_, since)| since)));
                    let held = TokenGrant { token, level: wanted, sequence: grant.sequence };
                    self.actions.push(TokenAction::Recall { session: *session, held, why: RecallReason::Conflict });
                }
                break;
            }
            object.waiters.pop_front();
            if waiter.is_question {
                shown.push(waiter.ticket);
                continue;
            }
            self.sequence += 1;
            let level = own.map_or(waiter.level, |grant| grant.level.max(waiter.level));
            let granted = SessionGrant { level, sequence: self.sequence, granted_ms: now, recalled: None };
            object.grants.insert(waiter.session, granted);
            if level == level::WRITE && own.is_none_or(|grant| grant.level < level) {
                self.moment += 1;
                object.moments.exact = self.moment;
            }
            self.actions.extend(object.renumbered(waiter.session, token, self.sequence));
            let held = TokenGrant { token, level, sequence: self.sequence };
            self.actions.push(TokenAction::Grant { session: waiter.session, ticket: waiter.ticket, held });
        }
        if object.round.is_none() && !object.later.is_empty() {
            let questions = std::mem::take(&mut object.later);
            match object.writer(0) {
                Some((session, grant)) => {
                    let held = TokenGrant { token, level: grant.level, sequence: grant.sequence };
                    self.actions.push(TokenAction::Recall { session, held, why: RecallReason::Commit });
                    self.moment += 1;
                    let (sequence, moment) = (grant.sequence, self.moment);
                    object.round = Some(CommitRound { session, sequence, sent_ms: now, moment, questions });
                }
                None => shown.extend(questions),
            }
        }
        shown.into_iter().for_each(|question| self.one_less(question));
        if self.objects.get(&token).is_some_and(TokenState::is_idle) {
            self.objects.remove(&token);
        }
    }
}
