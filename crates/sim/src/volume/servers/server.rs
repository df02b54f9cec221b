//! The metadata server: the state machine of `nectary_volume::tokens`, and a model of the code around it, which is in
//! `server/owner.rs` and `server/grants.rs`.
//!
//! Owns: the image and its durable version, answers that wait until changes are durable, requests and questions that
//! wait for tokens, and the decision to end a session. Promises: it keeps the promises of `server/owner.rs`, and
//! handles messages in the order of their arrival; every message leaves through the gate (`gate`). Times are those of
//! the server's clock. Leaves to others: appends (`append`), file locks (`locking`), leadership (`leader`).

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use nectary_volume::protocol::{FileId, Held, Token, What};
use nectary_volume::tokens::{Action, Arbiter, GIVE_BACK_MAX_MS, Late, MINIMUM_MS, Silence, Why, verdict};

use super::append::Out;
use super::gate::{Gate, Path};
use super::image::{Answer, Image, Refusal, Reply, without_map};
use super::journal::Stored;
use super::locking::{Locking, Said};
use crate::volume::bugs::{Bug, planted};
use crate::volume::executor::MS;
use crate::volume::network::{Connection, Down, Question, Up};
use crate::volume::world::{DRIFT_MS, LEASE_MS, SLOWER, World};

/// The interval at which the server looks for late sessions and for blocks that became free. *Units*: microseconds.
const TICK_US: u64 = 10 * MS;

/// A question that waits for commits.
struct Looking {
    connection: Rc<Connection>,
    request: u64,
    question: Question,
    is_graced: bool,
}

/// The server.
#[derive(Default)]
pub struct Server {
    pub index: usize,
    pub incarnation: u64,
    /// Whether it leads as far as it knows.
    pub is_leading: bool,
    pub epoch: u64,
    pub gate: Gate,
    pub image: Image,
    /// The image after the last append that is known to be stored.
    pub durable: Rc<Image>,
    pub in_flight: Option<Rc<Image>>,
    pub held: Vec<Out>,
    pub next_held: Vec<Out>,
    pub is_dirty: bool,
    /// Whether a session has waited for free blocks since late sessions were last looked for.
    is_short: bool,
    /// Whether the machine has actions to do.
    pub has_actions: bool,
    pub sequence: u64,
    pub arbiter: Arbiter,
    pub locking: Locking,
    started_ms: u64,
    next_ticket: u64,
    acquiring: BTreeMap<u64, (Rc<Connection>, u64)>,
    looking: BTreeMap<u64, Looking>,
    pub controls: BTreeMap<u64, Rc<Connection>>,
    bulks: BTreeMap<u64, Rc<Connection>>,
    drained: BTreeMap<u64, u64>,
    /// For each session, the time of its last renewal, that of its last answered renewal, and the time since which its
    /// renewals are not answered. *Units*: milliseconds.
    heard: BTreeMap<u64, u64>,
    answered: BTreeMap<u64, u64>,
    barred: BTreeMap<u64, u64>,
    /// Each grant and the time at which its level was granted, to check that it is not recalled too soon.
    granted: BTreeMap<(u64, Token), (Held, u64)>,
    wake_ms: Option<u64>,
}

impl Server {
    /// Makes a server that does not lead.
    pub fn new(index: usize, incarnation: u64) -> Server {
        Server { index, incarnation, ..Server::default() }
    }

    pub fn ms(&self, world: &World) -> u64 {
        world.clock_of(self.index) / MS
    }

    /// Begins to lead with the stored metadata. `since_us` is the time before the last renewal of the lease was
    /// written.
    pub fn lead(&mut self, world: &Rc<World>, epoch: u64, since_us: u64, (sequence, stored): (u64, Stored)) {
        let sessions = stored.image.sessions.iter();
        let expected: Vec<u64> = sessions.filter(|(_, session)| !session.is_ended).map(|(number, _)| *number).collect();
        world.coverage.add("9: sessions that a new server waits for", expected.len() as u64);
        let expected = if planted(Bug::NoGrace) { Vec::new() } else { expected };
        let started_ms = match planted(Bug::ShortGrace) {
            true => self.ms(world).saturating_sub(LEASE_MS + DRIFT_MS),
            false => self.ms(world),
        };
        *self = Server {
            index: self.index,
            incarnation: self.incarnation,
            is_leading: true,
            epoch,
            gate: Gate::new(since_us, world.server_lease_ms),
            sequence,
            arbiter: Arbiter::new(epoch, expected),
            started_ms,
            image: Image::clone(&stored.image),
            durable: stored.image,
            ..Server::default()
        };
        self.tick_later(world);
    }

    fn tick_later(&self, world: &Rc<World>) {
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
    pub fn hear(&mut self, world: &Rc<World>, connection: &Rc<Connection>, message: Up) {
        let (now, session) = (self.ms(world), connection.session.get());
        let current = self.bulks.get(&session).filter(|_| !connection.is_control && session != 0);
        if current.is_some_and(|current| !Rc::ptr_eq(current, connection)) && !planted(Bug::StaleConnection) {
            world.coverage.met("a request of a connection that another one replaced is not served");
            // Its client may have kept it, if the answer to this connection's greeting came first.
            return world.lose(connection);
        }
        match message {
            Up::Hello { session } => self.greet(connection, session),
            Up::Renew { sent, acknowledged, drained } => {
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
                self.send(world, connection, Down::Renewed { sent, sequence }, Path::Direct);
            }
            Up::Return(held) => {
                let key = (session, held.token);
                if let Some((known, _)) =
                    self.granted.get_mut(&key).filter(|(known, _)| known.sequence == held.sequence)
                {
                    known.level = known.level.min(held.level);
                }
                self.arbiter.returned(now, session, held);
            }
            Up::Reclaim { request, held } => {
                for held in &held {
                    self.granted.entry((session, held.token)).or_insert((*held, 0));
                }
                if let Some(wrong) = self.arbiter.reclaim(now, session, &held, true) {
                    world.break_with(format!("session {session} reclaims what another one holds: {wrong} is to end"));
                }
                let reply = if self.image.is_active(session) { Ok(Answer::Done) } else { Err(Refusal::Ended) };
                self.hold(Out::Say(connection.clone(), Down::Answer { request, reply }));
            }
            Up::Wish { request, wish } if self.image.is_active(session) => {
                let (is_grace, is_expected) = (self.is_grace(), self.arbiter.is_expected(session));
                let said = self.locking.wish(world, (connection, request), wish, is_grace, is_expected);
                self.say_locks(world, said);
            }
            Up::Acquire { request, token, level } if self.image.is_active(session) => {
                self.next_ticket += 1;
                self.acquiring.insert(self.next_ticket, (connection.clone(), request));
                self.arbiter.acquire(now, session, token, level, self.next_ticket, true);
            }
            Up::Acquire { request, .. } | Up::Wish { request, .. } => {
                self.hold(Out::Say(connection.clone(), Down::Answer { request, reply: Err(Refusal::Ended) }));
            }
            Up::Operate { request, number, operation } => {
                let last = self.image.sessions.get(&session).map_or(0, |session| session.last);
                if number <= last {
                    world.coverage.met("10: an operation comes again");
                    if planted(Bug::DoneTwice)
                        && let Some(found) = self.image.sessions.get_mut(&session)
                    {
                        found.last = number - 1;
                    }
                }
                let reply = self.image.operate(self.sequence + 3, session, number, &operation);
                if reply == Err(Refusal::Stale) {
                    world.coverage.met("10: a late extension is refused after a truncate");
                }
                self.is_dirty = true;
                if planted(Bug::DoneTwice)
                    && let Some(found) = self.image.sessions.get_mut(&session)
                {
                    found.last = found.last.max(last);
                }
                self.hold(Out::Say(connection.clone(), Down::Answer { request, reply }));
            }
            Up::Ask { request, question } => {
                let connection = connection.clone();
                self.ask(world, Looking { connection, request, question, is_graced: true });
            }
        }
    }

    fn greet(&mut self, connection: &Rc<Connection>, session: u64) {
        let session = match session {
            0 => {
                self.is_dirty = true;
                self.image.begin()
            }
            session => session,
        };
        if planted(Bug::ResumedAfterConflict)
            && let Some(found) = self.image.sessions.get_mut(&session)
        {
            found.is_ended = false;
            self.barred.remove(&session);
        }
        if !self.image.is_active(session) {
            return self.hold(Out::Say(connection.clone(), Down::Evicted));
        }
        let of = if connection.is_control { &self.controls } else { &self.bulks };
        if of.get(&session).is_some_and(|current| current.is_newer(connection)) {
            // This connection is late: its client has already replaced it.
            return;
        }
        connection.session.set(session);
        self.hold(Out::Say(connection.clone(), Down::Welcome { session }));
        if !connection.is_control {
            self.bulks.insert(session, connection.clone());
        }
    }

    fn is_idle(&self) -> bool {
        self.in_flight.is_none() && !self.is_dirty
    }

    fn silence(&self, now: u64, session: u64) -> Silence {
        let since = |times: &BTreeMap<u64, u64>| now - times.get(&session).copied().unwrap_or(self.started_ms);
        Silence { heard_ms: since(&self.heard), answered_ms: since(&self.answered) }
    }

    fn ask(&mut self, world: &Rc<World>, looking: Looking) {
        let session = looking.connection.session.get();
        if !self.image.is_active(session) {
            let message = Down::Answer { request: looking.request, reply: Err(Refusal::Ended) };
            return self.hold(Out::Say(looking.connection, message));
        }
        let file = match looking.question {
            Question::Attributes(file) if looking.is_graced => Some(file),
            _ => None,
        };
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        if let Some(file) = file {
            let is_graced = self.is_grace();
            if !self.arbiter.show(self.ms(world), session, [world.file_id(file)], ticket) {
                world.coverage.met("13: a stat waits for a commit");
                self.looking.insert(ticket, Looking { is_graced, ..looking });
                return;
            }
        }
        let reply = self.answer(session, looking.question);
        self.hold(Out::Say(looking.connection, Down::Answer { request: looking.request, reply }));
    }

    fn answer(&mut self, session: u64, question: Question) -> Reply {
        match question {
            Question::Attributes(file) => Ok(Answer::Attributes(without_map(&self.image.files[file]))),
            Question::Map(file) => Ok(Answer::Map(self.image.files[file].clone(), self.sequence)),
            Question::Lookup(name) => Ok(Answer::Named(self.image.names.get(&name).copied().unwrap_or(0), 0)),
            Question::Space(count) => {
                self.is_dirty = true;
                let granted = self.image.grant(session, count);
                self.is_short |= granted.is_err();
                granted
            }
        }
    }

    /// Does the actions of the machine, and begins to store the changes.
    pub fn go_on(&mut self, world: &Rc<World>) {
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

    fn act(&mut self, world: &Rc<World>, action: Action) {
        let now = self.ms(world);
        match action {
            Action::Grant { session, ticket, held } => {
                let known = self.granted.entry((session, held.token)).or_insert((held, now));
                let since = if known.0.level < held.level { now } else { known.1 };
                *known = (held, since);
                let Some((connection, request)) = self.acquiring.remove(&ticket) else { return };
                if connection.session.get() != session {
                    world.break_with(format!("a grant for session {session} goes to another one"));
                }
                self.send(world, &connection, Down::Grant { request, held }, Path::Direct);
                world.after_grant(self.index);
            }
            Action::Refuse { ticket } => {
                if let Some((connection, request)) = self.acquiring.remove(&ticket) {
                    let message = Down::Answer { request, reply: Err(Refusal::Conflict) };
                    self.send(world, &connection, message, Path::Direct);
                }
            }
            Action::Recall { session, held, why } => {
                // A grant of the former server counts as held long enough.
                let granted = self.granted.get(&(session, held.token));
                if why == Why::Conflict && granted.is_some_and(|(_, at)| now < at + MINIMUM_MS) {
                    world.break_with(format!("grant {} is recalled too soon", held.sequence));
                }
                self.tell(world, session, Down::Recall(held, why));
            }
            Action::Ready { ticket } => {
                if let Some(looking) = self.looking.remove(&ticket) {
                    self.ask(world, looking);
                }
            }
        }
    }

    pub fn tell(&mut self, world: &Rc<World>, session: u64, message: Down) {
        match self.controls.get(&session).cloned() {
            Some(connection) => self.send(world, &connection, message, Path::Direct),
            None => world.coverage.met("a recall has no connection yet"),
        }
    }

    pub fn say_locks(&mut self, world: &Rc<World>, said: Vec<Said>) {
        for (connection, request, reply) in said {
            self.send(world, &connection, Down::Answer { request, reply }, Path::Locked);
        }
    }

    fn end_late(&mut self, world: &Rc<World>) {
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
                Some(Late::Bar) => drop(self.barred.insert(session, now)),
                Some(Late::Unbar) => {
                    world.coverage.met("6: a barred session is heard again");
                    self.barred.remove(&session);
                }
                Some(Late::End) => self.evict(world, session),
                None => {}
            }
        }
    }

    fn evict(&mut self, world: &Rc<World>, session: u64) {
        world.coverage.met("6: a session is ended for another one");
        if let Some(found) = self.image.sessions.get_mut(&session) {
            found.is_ended = true;
        }
        if planted(Bug::NoQuarantine) {
            self.image.release(session);
        }
        self.is_dirty = true;
        let (since, values) = world.unsaved(session, &self.image);
        self.hold(Out::Lost((session, since, values)));
        self.barred.insert(session, self.ms(world));
        self.heard.remove(&session);
        self.answered.remove(&session);
        if planted(Bug::GrantBeforeEnd) {
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
pub fn token(object: FileId, what: What) -> Token {
    Token { object, what }
}
