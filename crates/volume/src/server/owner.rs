//! The owner of a volume's metadata: one task that does all work on the image and the journal, in order.
//!
//! Owns: the image, the log, and answers that wait until what they show is durable (`storing`). Promises:
//! 1. Operations are applied in the order of their arrival. At most one append is in flight; the next one contains
//!    everything that was applied meanwhile.
//! 2. No answer shows what another session has done before it is durable, even if it only reads. So no client sees a
//!    state of others that a crash could undo. What a session did itself may be answered before it is durable (`early`):
//!    then the client repeats it to the next server.
//! 3. An operation is done once: a repeated one is answered with the stored reply.
//! 4. Answers leave a connection only under the leader's lease (`connection`).
//! 5. After a failed append, no request is answered any more, and the server ends.
//!
//! Leaves to others: the effect of operations (`metadata`), and room for the journal (`room`).

mod answering;
mod early;
mod ending;
mod grace;
mod local;
mod operating;
mod storing;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nectary_block::SharedDevice;
use nectary_host::log::LogLevel;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::changing::{RequestedOperation, WaitingOperations};
use super::connection::{ConnectionsState, ROLE_BULK, ROLE_CONTROL, ReplySender};
use super::grants::{TokenQueue, WaitHistory, WaitingQuestion};
use super::leading::{NewLeader, lead};
use super::locking::LockQueue;
use super::long_waits::{WAIT_SHOWN, WaitCollector, WaitSubject};
use super::newest::NewestConnections;
use super::presence::LeaseRenewals;
use super::proofs::SessionProofs;
use super::pushes::SizePushes;
use super::request::{HeldAnswer, OwnerRequest, ServerOverview, active, replaced, wall_ns};
use super::room::JournalRoom;
use super::waits::{appended, ticking, until};
use super::{ServerError, ServerOptions};
use crate::format::{SessionRecord, SessionState, TableKind};
use crate::journal::DiskPulse;
use crate::metadata::{AppendStamp, MetadataImage};
#[cfg(test)]
use crate::protocol::MetadataOperation;
use crate::protocol::{FileId, MetadataQuestion, ServerAnswer, ServerRefusal, VolumeMessage};
use crate::tokens::{LookRounds, SessionVerdict};
use early::{EarlyAnswers, EarlyDefect, shows_names};
use ending::is_about_siblings;
use grace::RestartGrace;
use local::{OfferedDirectories, UntoldLocals};
use operating::FinishedOperation;
use storing::OwnerJournal;

/// The bound on the appends that the append in flight and the next one may be split into, together.
const APPENDS_MAX: u64 = 64;
/// The maximum number of requests that are handled before what follows from them is done.
const REQUESTS_OF_TURN: usize = 1024;
/// If periodic work is late by more than this, no request is handled before it.
const TICK_LATE: Duration = Duration::from_millis(300);
/// The lease of a session. *Units*: milliseconds.
const SESSION_LEASE_MS: u32 = 5000;
/// The most time by which a client's clock may fall behind during a lease.
const DRIFT: Duration = Duration::from_secs(1);
/// After this time without an answered renewal a client answers nothing from what it keeps.
const LEASE_AND_DRIFT: Duration = Duration::from_millis(SESSION_LEASE_MS as u64).saturating_add(DRIFT);

/// The owner of a volume's metadata.
pub(super) struct MetadataOwner {
    image: MetadataImage,
    journal: OwnerJournal,
    room: JournalRoom,
    presence: LeaseRenewals,
    grants: TokenQueue,
    changing: WaitingOperations,
    grace: RestartGrace,
    /// What sessions have done themselves and the disk has not stored.
    local: UntoldLocals,
    /// Directories that sessions may get.
    offered: Vec<OfferedDirectories>,
    /// Operations that are done, and answered once their sessions' earlier ones are.
    behind: HashMap<u64, VecDeque<FinishedOperation>>,
    started: Instant,
    locking: LockQueue,
    newest: NewestConnections,
    pushes: SizePushes,
    proofs: SessionProofs,
    /// When a request last found no space while space was being freed.
    short_at: Option<Instant>,
    shared: Arc<ConnectionsState>,
    early: EarlyAnswers,
    overview: ServerOverview,
}

impl MetadataOwner {
    /// Becomes leader, and reads all metadata.
    pub async fn start(
        device: SharedDevice,
        options: &ServerOptions,
    ) -> Result<(MetadataOwner, Arc<ConnectionsState>, DiskPulse), ServerError> {
        let NewLeader { log, image, sequence } = lead(device.clone(), options).await?;
        let pulse = log.pulse();
        let shared = Arc::new(ConnectionsState {
            label: log.label().clone(),
            epoch: log.epoch(),
            lease: log.lease().clone(),
            lease_ms: SESSION_LEASE_MS,
            drained_to: AtomicU64::new(0),
            barred: Mutex::default(),
            stored: Mutex::default(),
        });
        let done = image.sessions().into_iter().map(|(number, _)| (number, image.next_number(number) - 1));
        let early = EarlyAnswers::new(shared.clone(), done.collect());
        let proofs = SessionProofs::new(device, image.sessions().into_iter().map(|(number, _)| number));
        let sessions = image.sessions().into_iter();
        let sessions = sessions.filter(|(_, session)| session.state == SessionState::Active);
        let active: Vec<u64> = sessions.map(|(number, _)| number).collect();
        let grants = TokenQueue::new(log.epoch(), active.iter().copied());
        let grace = RestartGrace::of(active.into_iter());
        let overview = ServerOverview { epoch: log.epoch(), ..ServerOverview::default() };
        let mut owner = MetadataOwner {
            image,
            journal: OwnerJournal::new(log, sequence),
            room: JournalRoom::default(),
            presence: LeaseRenewals::default(),
            grants,
            changing: WaitingOperations::default(),
            grace,
            local: UntoldLocals::default(),
            offered: Vec::new(),
            behind: HashMap::new(),
            started: Instant::now(),
            locking: LockQueue::default(),
            newest: NewestConnections::default(),
            pushes: SizePushes::default(),
            proofs,
            short_at: None,
            shared: shared.clone(),
            early,
            overview,
        };
        owner.keep_room();
        Ok((owner, shared, pulse))
    }

    /// Returns the server's present state.
    pub fn overview(&self) -> ServerOverview {
        let (free, blocks) = self.image.room();
        let inodes = self.image.tables().table(TableKind::Inodes).len() as u64;
        let sessions = self.image.sessions();
        let named = |(number, session): &(u64, SessionRecord)| (*number, session.host.clone());
        let (active, ended): (Vec<_>, Vec<_>) =
            sessions.iter().partition(|(_, session)| session.state == SessionState::Active);
        let silent = active.into_iter().filter(|(number, _)| self.presence.is_silent(*number)).map(named).collect();
        let set_aside = ended.into_iter().map(named).collect();
        let expected = self.grants.expected().0.len();
        let hosts = sessions.iter().map(|(number, session)| (*number, &*session.host)).collect();
        let waits = self.collected(WAIT_SHOWN).waits(&hosts);
        ServerOverview {
            sessions,
            silent,
            set_aside,
            free,
            blocks,
            reserved: self.image.reserved(),
            quarantined: self.image.quarantined(),
            is_short: self.room.is_short(),
            inodes,
            tokens: self.grants.token_counts(),
            expected,
            locks: self.locking.counts(),
            locals: self.grants.local_counts(),
            waits,
            made_at: Some(Instant::now()),
            ..self.overview.clone()
        }
    }

    /// Collects what has waited for longer than `longer_than`.
    fn collected(&self, longer_than: Duration) -> WaitCollector {
        let mut collected = WaitCollector::new(longer_than);
        let waiting = self.grants.waiting().chain(self.locking.waiting()).chain(self.pushes.waiting());
        let waiting = waiting.chain(self.changing.waiting());
        waiting.for_each(|(subject, inode, reply)| collected.request(subject, inode, reply));
        let storing = self.journal.held.iter().chain(&self.journal.next_held).filter_map(HeldAnswer::reply);
        let behind = self.behind.values().flatten().map(|done| &done.reply);
        storing.chain(behind).for_each(|reply| collected.request(WaitSubject::Storing, 0, reply));
        self.grants.asked().for_each(|(session, inode, age)| collected.add(WaitSubject::Asked, session, inode, age));
        if collected.has_some() {
            let (expected, age) = self.grants.expected();
            expected.into_iter().for_each(|session| collected.add(WaitSubject::Expected, session, 0, age));
        }
        collected
    }

    /// Serves requests until it is told to stop.
    ///
    /// *Errors*: the journal cannot be written or is full, or the server's own changes of the records fail. No request
    /// is answered after an error.
    pub async fn run(
        mut self,
        mut requests: mpsc::Receiver<OwnerRequest>,
        seen: watch::Sender<ServerOverview>,
        mut stopped: watch::Receiver<bool>,
    ) -> Result<(), ServerError> {
        let (mut ticks, mut ticked_at) = (ticking(), Instant::now());
        loop {
            // Requests that come faster than they are done hold up no recall and no periodic work.
            let is_late = ticked_at.elapsed() > TICK_LATE;
            tokio::select! {
                biased;
                (log, result) = appended(&mut self.journal.in_flight) => self.settle(log, result)?,
                Some(request) = requests.recv(), if !self.journal.next.is_full() && !is_late => {
                    self.apply_turn(request, &mut requests);
                }
                () = until(self.grants.wake_at()) => {}
                () = until(self.journal.next.due_at()), if self.journal.in_flight.is_none() => {}
                gone = self.proofs.gone() => self.confirm_gone(&gone, "a lock on the disk says so"),
                _ = ticks.tick() => {
                    self.look_for_gone();
                    self.end_late_sessions();
                    self.background().await?;
                    let _ = seen.send_replace(self.overview());
                    ticked_at = Instant::now();
                }
                // The value changes only once, to stop the server.
                _ = stopped.changed() => break,
            }
            self.grants.wake();
            self.act();
            if self.is_append_due() {
                self.begin_append()?;
            }
        }
        // Everything that was applied is stored before the server ends; clients without an answer repeat their requests
        // to the next server.
        while self.journal.in_flight.is_some() || !self.journal.next.is_empty() {
            self.begin_append()?;
            let (log, result) = appended(&mut self.journal.in_flight).await;
            self.settle(log, result)?;
        }
        match self.journal.log.take() {
            Some(log) => Ok(log.resign().await?),
            None => Ok(()),
        }
    }

    fn stamp(&self) -> AppendStamp {
        // The append in flight and the next one may be split. While the server is idle, `drained_to` is the number of
        // its last append plus `APPENDS_MAX`, so blocks that are freed from now on must get a later number.
        let sequence = self.journal.sequence + APPENDS_MAX + 1;
        AppendStamp { now_ns: i64::try_from(wall_ns()).unwrap_or(i64::MAX), sequence }
    }

    /// Handles a request, and those that have come meanwhile.
    fn apply_turn(&mut self, request: OwnerRequest, requests: &mut mpsc::Receiver<OwnerRequest>) {
        self.apply(request);
        for _ in 1..REQUESTS_OF_TURN {
            if self.journal.next.is_full() {
                return;
            }
            let Ok(request) = requests.try_recv() else { return };
            if self.grants.has_ready() {
                self.act();
            }
            self.apply(request);
        }
    }

    fn apply(&mut self, request: OwnerRequest) {
        // A request that arrives on a replaced connection is dropped: the client has sent it again on the newer
        // connection.
        if let Some((session, connection)) = request.caller()
            && !self.newest.is_newest(session, ROLE_BULK, connection)
        {
            return;
        }
        self.keep_room();
        match request {
            OwnerRequest::Operate { session, number, terms, operation, reply } => {
                let waited = WaitHistory::default();
                let asked = RequestedOperation { session, number, terms, operation, reply, waited };
                if let Some(asked) = self.changing.in_turn(asked) {
                    self.begin_operation(asked);
                }
            }
            OwnerRequest::Ask { session, question, reply } if is_about_siblings(&question) => {
                self.about_siblings(session, question, reply);
            }
            OwnerRequest::Ask { session, question, reply } => {
                self.overview.questions += 1;
                if let MetadataQuestion::Push { file, size } = question {
                    return self.push(session, (file, size), reply);
                }
                let (rounds, waited) = (LookRounds::default(), WaitHistory::default());
                let looking = WaitingQuestion { session, question, reply, rounds, waited };
                // A session may still repeat what its programs were told is done.
                let is_graced = self.grace.is_on() && !self.early.has(EarlyDefect::QuestionsUngraced);
                match is_graced && shows_names(&looking.question) {
                    true => self.grace.keep(looking),
                    false => {
                        self.note_served(session);
                        self.ask(looking);
                    }
                }
            }
            OwnerRequest::Acquire { session, wanted, reply } => match self.image.is_active(session) {
                Ok(()) => self.grants.acquire(session, wanted, reply),
                Err(failure) => reply.send(Err(failure)),
            },
            OwnerRequest::Wish { session, wish, reply } => match self.image.is_active(session) {
                Ok(()) => {
                    let (is_grace, is_expected) = (self.grants.is_expecting(), self.grants.is_expected(session));
                    self.locking.wish(session, wish, reply, is_grace, is_expected);
                }
                Err(failure) => reply.send(Err(failure)),
            },
            OwnerRequest::Return { session, held } => self.grants.returned(session, held),
            OwnerRequest::ReturnInOrder { session, held, reply } => {
                self.grants.returned(session, held);
                reply.send(Ok(ServerAnswer::Done));
            }
            OwnerRequest::NameDropped { session, number } => self.grants.name_dropped(session, number),
            OwnerRequest::Pushed { session, number } => self.pushes.pushed(session, number),
            OwnerRequest::Controlled { session, connection, frames } => match self.image.is_active(session) {
                // A later control connection has sent its greeting meanwhile, and recalls go there.
                Ok(()) if !self.newest.is_newest(session, ROLE_CONTROL, connection) => {}
                Ok(()) => {
                    self.grants.controlled(session, frames);
                    self.pushes.repeat(session).iter().for_each(|message| self.grants.tell(session, message));
                }
                // The session was ended after the greeting, and nothing else would tell its client.
                Err(failure) => drop(frames.send(VolumeMessage::Failure(failure).encode(0, self.shared.epoch))),
            },
            OwnerRequest::Begin { session, connection, reply } => {
                let begun = self.image.begin_session(&session).map(|(number, transaction)| {
                    self.journal.next.push(transaction);
                    self.newest.greet(number, ROLE_BULK, connection);
                    self.presence.begun(number);
                    number
                });
                self.hold(HeldAnswer::Number(reply, begun));
            }
            OwnerRequest::Resume { session, incarnation, link: (role, connection), reply } => {
                let resumed = self.image.resume(session, incarnation).and_then(|()| {
                    match self.newest.greet(session, role, connection) {
                        true => Ok(session),
                        false => Err(replaced(session)),
                    }
                });
                if resumed.is_ok() {
                    self.proofs.returned(session);
                }
                self.hold(HeldAnswer::Number(reply, resumed));
            }
            OwnerRequest::Reclaim { session, held, is_last, reply } => {
                // What this session holds beside is recorded, too.
                while let Some(wrong) = self.grants.reclaim(session, &held, is_last) {
                    let was_active = self.image.is_active(wrong).is_ok();
                    self.evict(wrong, "it says that it holds a token which it cannot have, or another session has");
                    if wrong == session || !was_active {
                        break;
                    }
                }
                self.grace.end_for(session);
                let said = if is_last { self.image.reclaimed(session) } else { self.image.is_active(session) };
                self.hold(HeldAnswer::Call(reply, said.map(|()| ServerAnswer::Done)));
            }
            OwnerRequest::Acknowledge { session, acknowledged, drained, is_answered } => {
                if self.image.is_active(session).is_ok() {
                    self.presence.renewed(session, is_answered);
                }
                self.image.acknowledge(session, acknowledged, drained);
                // Replies are forgotten at once, because ticks are delayed while requests arrive. An error occurs again
                // at the next tick and ends the server.
                if let Ok(transactions) = self.image.forget() {
                    self.journal.next.extend(transactions);
                }
            }
            OwnerRequest::Left { session, role, connection } => {
                if self.newest.is_newest(session, role, connection) && self.image.is_active(session).is_ok() {
                    self.proofs.left(session);
                }
            }
            OwnerRequest::Goodbye { session, reply } => {
                let ended = self.end(session).map(|_| ServerAnswer::Done);
                self.hold(HeldAnswer::Call(reply, ended));
            }
            OwnerRequest::Release { session, reply } => {
                let found = self.image.sessions().into_iter().find(|(number, _)| *number == session);
                let ended = match found.filter(|_| !self.presence.is_silent(session)) {
                    None => self.end(session),
                    Some((_, found)) => Err(active(session, &found.host)),
                };
                // If its host goes on nevertheless, it cannot renew the lease.
                if ended.is_ok() {
                    self.shared.barred().insert(session);
                }
                self.hold(HeldAnswer::Number(reply, ended));
            }
        }
    }

    /// Tells the kernels of other hosts where a file ends.
    fn push(&mut self, session: u64, end: (FileId, u64), reply: ReplySender) {
        match self.image.is_active(session) {
            Ok(()) => {
                let told = self.pushes.push(session, end, reply, self.grants.is_expecting());
                told.iter().for_each(|(watcher, message)| self.grants.tell(*watcher, message));
            }
            Err(failure) => reply.send(Err(failure)),
        }
    }

    /// Executes the actions of the tokens, and those that follow from them.
    fn act(&mut self) {
        loop {
            self.end_grace();
            self.keep_room();
            let acted = self.grants.act();
            let is_last = acted.is_empty();
            acted.changes.into_iter().for_each(|ticket| self.go_on(ticket));
            for (session, reply, held) in acted.granted {
                let is_early = self.early.may_show(session, &[held.token.object.inode]);
                self.grant(session, reply, held, is_early);
            }
            for looking in acted.ready {
                self.ask(looking);
            }
            if is_last && self.offered.is_empty() {
                return;
            }
            if is_last {
                self.give_offered();
            }
        }
    }

    /// Does what waited for sessions from before a restart: until each has said what it holds; or, for names, until each
    /// has begun to say it, before which it drops what it keeps, or may not use that any more.
    fn end_grace(&mut self) {
        if !self.grants.is_expecting() {
            if self.locking.is_early() {
                self.locking.end_grace();
            }
            let told = self.pushes.end_grace();
            told.iter().for_each(|(watcher, message)| self.grants.tell(*watcher, message));
        }
        if self.started.elapsed() > LEASE_AND_DRIFT {
            self.grace.wait_no_more();
        }
        if self.grace.is_on() {
            return;
        }
        for asked in self.changing.end_grace() {
            let session = asked.session;
            self.begin_operation(asked);
            self.do_those_behind(session);
        }
        for looking in self.grace.questions() {
            self.note_served(looking.session);
            self.ask(looking);
        }
    }

    /// As [`RestartGrace::note_served`].
    fn note_served(&mut self, session: u64) {
        self.grace.note_served(session);
    }

    /// Ends sessions that others wait for and whose clients no longer answer programs.
    fn end_late_sessions(&mut self) {
        let presence = &self.presence;
        let silence = |session| presence.silence(session);
        self.grants.forget_looks_of_silent(silence, LEASE_AND_DRIFT);
        let mut lockers = self.locking.awaited();
        lockers.extend(self.pushes.awaited());
        lockers.extend(self.awaited_for_space());
        let is_early = self.locking.is_early() || self.pushes.is_early();
        for (session, late) in self.grants.late((&lockers, is_early), silence, LEASE_AND_DRIFT) {
            match late {
                SessionVerdict::Bar => drop(self.shared.barred().insert(session)),
                SessionVerdict::Unbar => drop(self.shared.barred().remove(&session)),
                SessionVerdict::End => {
                    self.evict(session, "it renewed its lease no more while others waited for what it held");
                }
            }
        }
    }

    /// Ends a session because others wait for it. Blocks to which its host may still write are not reused until its
    /// process is known to be gone, or the session is released.
    fn evict(&mut self, session: u64, why: &str) {
        let host = self.image.sessions().into_iter().find(|(number, _)| *number == session);
        let host = host.map_or_else(String::new, |(_, session)| session.host);
        let words = format!("session {session} of host {host} is ended: {why}");
        match self.image.evict_session(session, wall_ns()) {
            Ok(transaction) => self.journal.next.push(transaction),
            // The session is over already.
            Err(_) => return,
        }
        nectary_host::log::write(LogLevel::Warning, "volume", format_args!("{words}"));
        self.grants.tell(session, &VolumeMessage::Evicted { session, words });
        // The session stays barred, so that its client cannot renew its lease.
        self.shared.barred().insert(session);
        self.forget(session);
    }

    fn forget(&mut self, session: u64) {
        self.grace.end_for(session);
        self.early.forget(session);
        self.behind.remove(&session);
        self.local.forget(session);
        self.presence.forget(session);
        self.newest.forget(session);
        self.pushes.forget(session);
        let (gone, changes) = self.changing.forget(session);
        // They are not done.
        if let Err(over) = self.image.is_active(session) {
            gone.into_iter().for_each(|asked| asked.reply.send(Err(over.clone())));
        }
        changes.iter().for_each(|change| self.grants.end_change(&change.tokens));
        self.grants.forget(session);
        self.locking.forget(session);
        self.proofs.forget(session);
        self.keep_room();
    }

    fn end(&mut self, session: u64) -> Result<u64, ServerRefusal> {
        let transaction = self.image.end_session(session)?;
        self.forget(session);
        self.journal.next.push(transaction);
        Ok(session)
    }
}

#[cfg(test)]
mod local_tests;
#[cfg(test)]
mod moment_tests;
#[cfg(test)]
mod room_tests;
#[cfg(test)]
mod tests;
