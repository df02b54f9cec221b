//! The metadata server: the state machine of `nectary_volume::tokens`, and a model of the code around it, which is in
//! `server/owner.rs` and `server/grants.rs`.
//!
//! Owns: the image and its durable version, answers that wait until changes are durable, requests and questions that
//! wait for tokens, and the decision to end a session. Promises: it keeps the promises of `server/owner.rs`, and
//! handles messages in the order of their arrival; every message leaves through the gate (`gate`). Times are those of
//! the server's clock. Leaves to others: appends (`append`), file locks (`locking`), leadership (`leader`).

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use nectary_volume::protocol::{FileId, Token, TokenAspect, TokenGrant};
use nectary_volume::tokens::{
    GIVE_BACK_MAX_MS, LookRounds, MINIMUM_MS, RecallReason, SessionSilence, SessionVerdict, TokenAction, TokenArbiter,
    verdict,
};

use super::append::DurableOutput;
use super::gate::{LeaderGate, SendReason};
use super::image::{MetadataModel, ModelAnswer, ModelRefusal, Reply, without_map};
use super::journal::DurableMetadata;
use super::locking::{LockQueueModel, Said};
use crate::volume::bugs::{VolumeModelBug, planted};
use crate::volume::executor::MS;
use crate::volume::network::{ClientMessage, ModelConnection, ModelQuestion, ServerMessage};
use crate::volume::world::{DRIFT_MS, LEASE_MS, SLOWER, VolumeWorld};

/// The interval at which the server looks for late sessions and for blocks that became free. *Units*: microseconds.
const TICK_US: u64 = 10 * MS;

/// A question that waits for commits.
struct PendingQuestion {
    connection: Rc<ModelConnection>,
    request: u64,
    question: ModelQuestion,
    is_graced: bool,
}

/// The server.
#[derive(Default)]
pub struct ServerModel {
    pub index: usize,
    pub incarnation: u64,
    /// Whether it leads as far as it knows.
    pub is_leading: bool,
    pub epoch: u64,
    pub gate: LeaderGate,
    pub image: MetadataModel,
    /// The image after the last append that is known to be stored.
    pub durable: Rc<MetadataModel>,
    pub in_flight: Option<Rc<MetadataModel>>,
    pub held: Vec<DurableOutput>,
    pub next_held: Vec<DurableOutput>,
    pub is_dirty: bool,
    /// Whether a session has waited for free blocks since late sessions were last looked for.
    is_short: bool,
    /// Whether the machine has actions to do.
    pub has_actions: bool,
    pub sequence: u64,
    pub arbiter: TokenArbiter,
    pub locking: LockQueueModel,
    started_ms: u64,
    next_ticket: u64,
    acquiring: BTreeMap<u64, (Rc<ModelConnection>, u64)>,
    looking: BTreeMap<u64, PendingQuestion>,
    pub controls: BTreeMap<u64, Rc<ModelConnection>>,
    bulks: BTreeMap<u64, Rc<ModelConnection>>,
    drained: BTreeMap<u64, u64>,
    /// For each session, the time of its last renewal, that of its last answered renewal, and the time since which its
    /// renewals are not answered. *Units*: milliseconds.
    heard: BTreeMap<u64, u64>,
    answered: BTreeMap<u64, u64>,
    barred: BTreeMap<u64, u64>,
    /// Each grant and the time at which its level was granted, to check that it is not recalled too soon.
    granted: BTreeMap<(u64, Token), (TokenGrant, u64)>,
    wake_ms: Option<u64>,
}

impl ServerModel {
    /// Makes a server that does not lead.
    pub fn new(index: usize, incarnation: u64) -> ServerModel {
        ServerModel { index, incarnation, ..ServerModel::default() }
    }

    pub fn ms(&self, world: &VolumeWorld) -> u64 {
        world.clock_of(self.index) / MS
    }

    /// Begins to lead with the stored metadata. `since_us` is the time before the last renewal of the lease was
    /// written.
    pub fn lead(
        &mut self,
        world: &Rc<VolumeWorld>,
        epoch: u64,
        since_us: u64,
        (sequence, stored): (u64, DurableMetadata),
    ) {
        let sessions = stored.image.sessions.iter();
        let expected: Vec<u64> = sessions.filter(|(_, session)| !session.is_ended).map(|(number, _)| *number).collect();
        world.coverage.add("9: sessions that a new server waits for", expected.len() as u64);
        let expected = if planted(VolumeModelBug::NoGrace) { Vec::new() } else { expected };
        let started_ms = match planted(VolumeModelBug::ShortGrace) {
            true => self.ms(world).saturating_sub(LEASE_MS + DRIFT_MS),
            false => self.ms(world),
        };
        *self = ServerModel {
            index: self.index,
            incarnation: self.incarnation,
            is_leading: true,
            epoch,
            gate: LeaderGate::new(since_us, world.server_lease_ms),
            sequence,
            arbiter: TokenArbiter::new(epoch, expected),
            started_ms,
            image: MetadataModel::clone(&stored.image),
            durable: stored.image,
            ..ServerModel::default()
        };
        self.tick_later(world);
    }

    fn tick_later(&self, world: &Rc<VolumeWorld>) {
        world.at_clock(self, world.clock_of(self.index) + TICK_US, |world, server| {
            server.end_late(world);
            let active = server.durable.sessions.iter().filter(|(_, session)| !session.is_ended);
            let drained = active.map(|(number, _)| server.drained.get(number).copied().unwrap_or(0)).min();
            let count = server.image.drained(drained.unwrap_or(u64::MAX));
            world.coverage.add("11: freed blocks that waited for every map", count as u64);
            server.is_dirty |= count > 0;
            server.go_on(world);
            server.tick_later(world);
        });
    }

    /// Whether an earlier session has not yet said what it holds.
    pub fn is_grace(&self) -> bool {
        self.arbiter.counts().2 > 0
    }

    /// Handles a message from a client.
    pub fn hear(&mut self, world: &Rc<VolumeWorld>, connection: &Rc<ModelConnection>, message: ClientMessage) {
        let (now, session) = (self.ms(world), connection.session.get());
        let current = self.bulks.get(&session).filter(|_| !connection.is_control && session != 0);
        if current.is_some_and(|current| !Rc::ptr_eq(current, connection)) && !planted(VolumeModelBug::StaleConnection)
        {
            world.coverage.met("a request of a connection that another one replaced is not served");
            // Its client may have kept it, if the answer to this connection's greeting came first.
            return world.lose(connection);
        }
        match message {
            ClientMessage::Hello { session } => self.greet(connection, session),
            ClientMessage::Renew { sent, acknowledged, drained } => {
                let known = self.drained.entry(session).or_default();
                *known = (*known).max(drained);
                if let Some(found) = self.image.sessions.get_mut(&session) {
                    found.replies = found.replies.split_off(&(acknowledged + 1));
                }
                self.heard.insert(session, now);
                if self.barred.contains_key(&session) || !self.image.is_active(session) {
                    return world.coverage.met("a renewal is not answered");
                }
                if self.silence(now, session).answered_ms > LEASE_MS + DRIFT_MS {
                    world.coverage.met("6: a suspended session resumes");
                }
                self.answered.insert(session, now);
                // If the client requests a map after this answer, the map has no block that append `sequence` or an
                // earlier one removed.
                let sequence = if self.is_idle() { self.sequence + 1 } else { self.sequence };
                self.send(world, connection, ServerMessage::Renewed { sent, sequence }, SendReason::Direct);
            }
            ClientMessage::Return(held) => {
                let key = (session, held.token);
                if let Some((known, _)) =
                    self.granted.get_mut(&key).filter(|(known, _)| known.sequence == held.sequence)
                {
                    known.level = known.level.min(held.level);
                }
                self.arbiter.returned(now, session, held);
            }
            ClientMessage::Reclaim { request, held } => {
                for held in &held {
                    self.granted.entry((session, held.token)).or_insert((*held, 0));
                }
                if let Some(wrong) = self.arbiter.reclaim(now, session, &held, true) {
                    world.break_with(format!("session {session} reclaims what another one holds: {wrong} is to end"));
                }
                let reply =
                    if self.image.is_active(session) { Ok(ModelAnswer::Done) } else { Err(ModelRefusal::Ended) };
                self.hold(DurableOutput::Say(connection.clone(), ServerMessage::Answer { request, reply }));
            }
            ClientMessage::Wish { request, wish } if self.image.is_active(session) => {
                let (is_grace, is_expected) = (self.is_grace(), self.arbiter.is_expected(session));
                let said = self.locking.wish(world, (connection, request), wish, is_grace, is_expected);
                self.say_locks(world, said);
            }
            ClientMessage::Acquire { request, token, level } if self.image.is_active(session) => {
                self.next_ticket += 1;
                self.acquiring.insert(self.next_ticket, (connection.clone(), request));
                self.arbiter.acquire(now, session, token, level, self.next_ticket, true);
            }
            ClientMessage::Acquire { request, .. } | ClientMessage::Wish { request, .. } => {
                self.hold(DurableOutput::Say(
                    connection.clone(),
                    ServerMessage::Answer { request, reply: Err(ModelRefusal::Ended) },
                ));
            }
            ClientMessage::Operate { request, number, operation } => {
                let last = self.image.sessions.get(&session).map_or(0, |session| session.last);
                if number <= last {
                    world.coverage.met("10: an operation comes again");
                    if planted(VolumeModelBug::DoneTwice)
                        && let Some(found) = self.image.sessions.get_mut(&session)
                    {
                        found.last = number - 1;
                    }
                }
                let reply = self.image.operate(self.sequence + 3, session, number, &operation);
                if reply == Err(ModelRefusal::Stale) {
                    world.coverage.met("10: a late extension is refused after a truncate");
                }
                self.is_dirty = true;
                if planted(VolumeModelBug::DoneTwice)
                    && let Some(found) = self.image.sessions.get_mut(&session)
                {
                    found.last = found.last.max(last);
                }
                self.hold(DurableOutput::Say(connection.clone(), ServerMessage::Answer { request, reply }));
            }
            ClientMessage::Ask { request, question } => {
                let connection = connection.clone();
                self.ask(world, PendingQuestion { connection, request, question, is_graced: true });
            }
        }
    }

    fn greet(&mut self, connection: &Rc<ModelConnection>, session: u64) {
        let session = match session {
            0 => {
                self.is_dirty = true;
                self.image.begin()
            }
            session => session,
        };
        if planted(VolumeModelBug::ResumedAfterConflict)
            && let Some(found) = self.image.sessions.get_mut(&session)
        {
            found.is_ended = false;
            self.barred.remove(&session);
        }
        if !self.image.is_active(session) {
            return self.hold(DurableOutput::Say(connection.clone(), ServerMessage::Evicted));
        }
        let of = if connection.is_control { &self.controls } else { &self.bulks };
        if of.get(&session).is_some_and(|current| current.is_newer(connection)) {
            // This connection is late: its client has already replaced it.
            return;
        }
        connection.session.set(session);
        self.hold(DurableOutput::Say(connection.clone(), ServerMessage::Welcome { session }));
        if !connection.is_control {
            self.bulks.insert(session, connection.clone());
        }
    }

    fn is_idle(&self) -> bool {
        self.in_flight.is_none() && !self.is_dirty
    }

    fn silence(&self, now: u64, session: u64) -> SessionSilence {
        let since = |times: &BTreeMap<u64, u64>| now - times.get(&session).copied().unwrap_or(self.started_ms);
        SessionSilence { heard_ms: since(&self.heard), answered_ms: since(&self.answered) }
    }

    fn ask(&mut self, world: &Rc<VolumeWorld>, looking: PendingQuestion) {
        let session = looking.connection.session.get();
        if !self.image.is_active(session) {
            let message = ServerMessage::Answer { request: looking.request, reply: Err(ModelRefusal::Ended) };
            return self.hold(DurableOutput::Say(looking.connection, message));
        }
        let file = match looking.question {
            ModelQuestion::Attributes(file) if looking.is_graced => Some(file),
            _ => None,
        };
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        if let Some(file) = file {
            let is_graced = self.is_grace();
            // The attributes here have no part that changes without the writer: one round is enough.
            let waiting = (ticket, &mut LookRounds::default());
            if !self.arbiter.show(self.ms(world), session, [world.file_id(file)], waiting) {
                world.coverage.met("13: a stat waits for a commit");
                self.looking.insert(ticket, PendingQuestion { is_graced, ..looking });
                return;
            }
        }
        let reply = self.answer(session, looking.question);
        self.hold(DurableOutput::Say(looking.connection, ServerMessage::Answer { request: looking.request, reply }));
    }

    fn answer(&mut self, session: u64, question: ModelQuestion) -> Reply {
        match question {
            ModelQuestion::Attributes(file) => Ok(ModelAnswer::Attributes(without_map(&self.image.files[file]))),
            ModelQuestion::Map(file) => Ok(ModelAnswer::Map(self.image.files[file].clone(), self.sequence)),
            ModelQuestion::Lookup(name) => Ok(ModelAnswer::Named(self.image.names.get(&name).copied().unwrap_or(0), 0)),
            ModelQuestion::Space(count) => {
                self.is_dirty = true;
                let granted = self.image.grant(session, count);
                self.is_short |= granted.is_err();
                granted
            }
        }
    }

    /// Does the actions of the machine, and begins to store the changes.
    pub fn go_on(&mut self, world: &Rc<VolumeWorld>) {
        loop {
            let actions = self.arbiter.take_actions();
            if actions.is_empty() {
                break;
            }
            actions.into_iter().for_each(|action| self.act(world, action));
        }
        if self.arbiter.wake_at() != self.wake_ms {
            self.wake_ms = self.arbiter.wake_at();
            if let Some(ms) = self.wake_ms {
                world.at_clock(self, ms * MS, |world, server| {
                    server.wake_ms = None;
                    server.arbiter.wake(server.ms(world));
                    world.coverage.met("13: a recall waited until a grant was held long enough");
                    server.go_on(world);
                });
            }
        }
        if !self.is_grace() && self.locking.is_early() {
            let said = self.locking.end_grace(world);
            self.say_locks(world, said);
        }
        self.begin_append(world);
    }

    fn act(&mut self, world: &Rc<VolumeWorld>, action: TokenAction) {
        let now = self.ms(world);
        match action {
            TokenAction::Grant { session, ticket, held } => {
                let known = self.granted.entry((session, held.token)).or_insert((held, now));
                let since = if known.0.level < held.level { now } else { known.1 };
                *known = (held, since);
                let Some((connection, request)) = self.acquiring.remove(&ticket) else { return };
                if connection.session.get() != session {
                    world.break_with(format!("a grant for session {session} goes to another one"));
                }
                self.send(world, &connection, ServerMessage::Grant { request, held }, SendReason::Direct);
                world.after_grant(self.index);
            }
            TokenAction::Refuse { ticket } => {
                if let Some((connection, request)) = self.acquiring.remove(&ticket) {
                    let message = ServerMessage::Answer { request, reply: Err(ModelRefusal::Conflict) };
                    self.send(world, &connection, message, SendReason::Direct);
                }
            }
            TokenAction::Recall { session, held, why } => {
                // A grant of the former server counts as held long enough.
                let granted = self.granted.get(&(session, held.token));
                if why == RecallReason::Conflict && granted.is_some_and(|(_, at)| now < at + MINIMUM_MS) {
                    world.break_with(format!("grant {} is recalled too soon", held.sequence));
                }
                self.tell(world, session, ServerMessage::Recall(held, why));
            }
            TokenAction::Ready { ticket } => {
                if let Some(looking) = self.looking.remove(&ticket) {
                    self.ask(world, looking);
                }
            }
        }
    }

    pub fn tell(&mut self, world: &Rc<VolumeWorld>, session: u64, message: ServerMessage) {
        match self.controls.get(&session).cloned() {
            Some(connection) => self.send(world, &connection, message, SendReason::Direct),
            None => world.coverage.met("a recall has no connection yet"),
        }
    }

    pub fn say_locks(&mut self, world: &Rc<VolumeWorld>, said: Vec<Said>) {
        for (connection, request, reply) in said {
            self.send(world, &connection, ServerMessage::Answer { request, reply }, SendReason::Locked);
        }
    }

    fn end_late(&mut self, world: &Rc<VolumeWorld>) {
        let now = self.ms(world);
        let mut awaited = self.arbiter.awaited(self.locking.is_early());
        let mut others = self.locking.awaited();
        if std::mem::take(&mut self.is_short) {
            // Blocks stay in use while a session may still know them.
            others.extend(self.image.sessions.keys());
        }
        others.into_iter().for_each(|session| _ = awaited.entry(session).or_insert(0));
        let sessions: BTreeSet<u64> = awaited.keys().chain(self.barred.keys()).copied().collect();
        for session in sessions {
            if !self.image.is_active(session) {
                continue;
            }
            let barred_for = self.barred.get(&session).map(|since| now - since);
            // The time limit for giving back is shorter here, so that runs are short.
            let waited = |since: u64| if since == 0 { 0 } else { now.saturating_sub(since) * SLOWER };
            let waited = awaited.get(&session).map(|since| waited(*since));
            if waited.is_some_and(|waited| waited > GIVE_BACK_MAX_MS) {
                world.coverage.met("13: a session gives back too slowly");
            }
            match verdict(barred_for, self.silence(now, session), waited, LEASE_MS + DRIFT_MS) {
                Some(SessionVerdict::Bar) => drop(self.barred.insert(session, now)),
                Some(SessionVerdict::Unbar) => {
                    world.coverage.met("6: a barred session is heard again");
                    self.barred.remove(&session);
                }
                Some(SessionVerdict::End) => self.evict(world, session),
                None => {}
            }
        }
    }

    fn evict(&mut self, world: &Rc<VolumeWorld>, session: u64) {
        world.coverage.met("6: a session is ended for another one");
        if let Some(found) = self.image.sessions.get_mut(&session) {
            found.is_ended = true;
        }
        if planted(VolumeModelBug::NoQuarantine) {
            self.image.release(session);
        }
        self.is_dirty = true;
        let (since, values) = world.unsaved(session, &self.image);
        self.hold(DurableOutput::Lost((session, since, values)));
        self.barred.insert(session, self.ms(world));
        self.heard.remove(&session);
        self.answered.remove(&session);
        if planted(VolumeModelBug::GrantBeforeEnd) {
            self.arbiter.forget(self.ms(world), session);
        }
    }

    /// Frees the blocks that were granted to a session whose host writes nothing any more; returns their number, or
    /// `None` if the end of the session is not durable.
    pub fn release(&mut self, session: u64) -> Option<usize> {
        self.durable.sessions.get(&session).filter(|found| found.is_ended)?;
        self.is_dirty = true;
        Some(self.image.release(session))
    }
}

/// Makes the token of a file's data or of a directory's names.
pub fn token(object: FileId, what: TokenAspect) -> Token {
    Token { object, what }
}
