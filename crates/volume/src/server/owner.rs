//! The owner of a volume's metadata: one task that does all work on the image and the journal, in order.
//!
//! Owns: the image, the log, and answers that wait until what they show is durable. Promises:
//! 1. Operations are applied in the order of their arrival. At most one append is in flight; the next one contains
//!    everything that was applied meanwhile.
//! 2. No answer is sent before everything that was applied before it is durable, even if it only reads. So no client
//!    sees a state that a crash could undo.
//! 3. An operation is done once: a repeated one is answered with the stored reply.
//! 4. After an append failed, nothing is answered any more, and the server ends.
//!
//! *Circle*: requests have the replies of `connection`.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering as AtomicOrdering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nectary_block::SharedDevice;
use nectary_host::log::Level;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::connection::{Frames, ROLE_BULK, ROLE_CONTROL, Reply, Shared};
use super::grants::{Grants, Looking, files_of, is_look};
use super::locking::{Locking, Wish};
use super::newest::Newest;
use super::pushes::Pushes;
use super::{ServerError, ServerOptions};
use crate::client::random_id;
use crate::format::{Session, SessionState, Table, Transaction};
use crate::journal::{self, Log, StartOptions};
use crate::metadata::{Image, Stamp};
use crate::planted::{Bug, planted};
use crate::protocol::{Answer, Code, Failure, FileId, Held as Granted, Message, Operation, Question, Token, What};
use crate::tokens::{Late, Silence, level};

/// Requests that wait for the owner.
pub(super) const REQUESTS_MAX: usize = 4096;
/// Transactions of an append.
const BATCH_MAX: usize = 1024;
/// The most appends that the one in flight and the next one may be split into.
const APPENDS_MAX: u64 = 64;
/// The lease of a session. *Units*: milliseconds.
const SESSION_LEASE_MS: u32 = 5000;
/// A session is silent after so long without a renewal.
const SILENCE: Duration = Duration::from_secs(10);
/// How much a client's clock may be slow during a lease.
const DRIFT: Duration = Duration::from_secs(1);
/// How often the owner looks for background work.
const TICK: Duration = Duration::from_millis(100);

/// What the owner is asked to do.
pub(super) enum Request {
    /// An operation of a session.
    Operate { session: u64, number: u64, operation: Operation, reply: Reply },
    /// A question of a session.
    Ask { session: u64, question: Question, reply: Reply },
    /// A session begins: its number.
    Begin { session: Session, connection: u64, reply: Number },
    /// A session is there again: with a connection of this role and number.
    Resume { session: u64, incarnation: [u8; 16], link: (u8, u64), reply: Number },
    /// A session says which tokens it held before the server started; with the last part it has opened everything
    /// that it had open.
    Reclaim { session: u64, held: Vec<Granted>, is_last: bool, reply: Reply },
    /// Replies up to this number are not needed, and freed extents of appends up to this one are in no cached map.
    Acknowledge { session: u64, acknowledged: u64, drained: u64, is_answered: bool },
    /// A session wants a token.
    Acquire { session: u64, wanted: (Token, u8, bool), reply: Reply },
    /// A session wants something of a file lock.
    Wish { session: u64, wish: Wish, reply: Reply },
    /// A session gave a token back, or committed.
    Return { session: u64, held: Granted },
    /// A session's kernel knows an end that it was told.
    Pushed { session: u64, number: u64 },
    /// A session has a control connection, of this number.
    Controlled { session: u64, connection: u64, frames: Frames },
    /// A session ended by itself: everything is returned.
    Goodbye { session: u64, reply: Reply },
    /// An operator says that a session's host writes nothing any more.
    Release { session: u64, reply: Number },
}

impl Request {
    /// Whose call this is, and the number of the connection that it came on.
    fn caller(&self) -> Option<(u64, u64)> {
        match self {
            Request::Operate { session, reply, .. }
            | Request::Ask { session, reply, .. }
            | Request::Reclaim { session, reply, .. }
            | Request::Acquire { session, reply, .. }
            | Request::Wish { session, reply, .. }
            | Request::Goodbye { session, reply } => Some((*session, reply.connection())),
            _ => None,
        }
    }
}

/// An answer with a number.
pub(super) type Number = oneshot::Sender<Result<u64, Failure>>;

/// An answer that waits until it may be given.
enum Held {
    Call(Reply, Result<Answer, Failure>),
    Grant(Reply, Box<Message>),
    Number(Number, Result<u64, Failure>),
}

impl Held {
    fn release(self) {
        // The client may be gone.
        match self {
            Held::Call(reply, answer) => reply.send(answer),
            Held::Grant(reply, message) => reply.say(&message),
            Held::Number(reply, answer) => drop(reply.send(answer)),
        }
    }
}

/// What a server has, for its status.
#[derive(Debug, Clone, Default)]
pub struct Overview {
    /// The epoch of this leadership.
    pub epoch: u64,
    /// Sessions, with what is stored of them.
    pub sessions: Vec<(u64, Session)>,
    /// Operations that were done.
    pub operations: u64,
    /// Questions that were answered.
    pub questions: u64,
    /// Appends of the journal.
    pub appends: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// *Units*: blocks.
    pub blocks: u64,
    /// *Units*: blocks.
    pub free: u64,
    /// In use.
    pub inodes: u64,
    /// Sessions that do not renew their leases, and their hosts.
    pub silent: Vec<(u64, String)>,
    /// Tokens that are held, and calls that wait for one.
    pub tokens: (usize, usize),
    /// File locks that are held, and requests that wait for one.
    pub locks: (usize, usize),
    /// Sessions that have not said yet, after a restart, what they hold.
    pub expected: usize,
    /// When the server's own lease was last renewed.
    renewed: Option<Instant>,
}

/// The server's clock. *Units*: nanoseconds since 1970.
pub(super) fn wall_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// An append in flight; it gives the log back.
type InFlight = Pin<Box<dyn Future<Output = (Log, Result<u64, journal::Error>)> + Send>>;

/// The owner.
pub(super) struct Owner {
    image: Image,
    /// Not there while an append is in flight.
    log: Option<Log>,
    in_flight: Option<InFlight>,
    /// Answers that wait for the append in flight.
    held: Vec<Held>,
    /// What was applied since it began, and the answers that wait for that.
    next: Vec<Transaction>,
    next_held: Vec<Held>,
    /// Segments for the log: of the append in flight, and of the next one.
    segments: Vec<u64>,
    next_segments: Vec<u64>,
    /// The last append that is durable.
    sequence: u64,
    /// When each session last renewed its lease, and when it last did so and was answered.
    renewals: HashMap<u64, Instant>,
    answered: HashMap<u64, Instant>,
    grants: Grants,
    locking: Locking,
    newest: Newest,
    pushes: Pushes,
    started: Instant,
    shared: Arc<Shared>,
    overview: Overview,
}

impl Owner {
    /// Becomes leader, and reads all metadata.
    pub async fn start(device: SharedDevice, options: &ServerOptions) -> Result<(Owner, Arc<Shared>), ServerError> {
        let incarnation = random_id()?;
        let start = StartOptions {
            server: options.number,
            host: options.host.clone(),
            incarnation,
            confirmed_gone: Vec::new(),
            previous_gone: options.previous_gone,
            created_s: wall_ns() / 1_000_000_000,
            fixed_ns: None,
        };
        let (mut log, tables) = Log::start(device, start).await?;
        for note in log.notes() {
            nectary_host::log::write(Level::Note, "volume", format_args!("{note}"));
        }
        let mut image = Image::load(tables, log.label(), log.epoch())?;
        let mut first = image.begin_epoch(incarnation, log.gone())?;
        first.extend(image.set_aside()?);
        let sequence = log.append(first).await?;
        let shared = Arc::new(Shared {
            label: log.label().clone(),
            epoch: log.epoch(),
            lease_ms: SESSION_LEASE_MS,
            drained_to: AtomicU64::new(0),
            barred: Mutex::default(),
        });
        let sessions = image.sessions().into_iter();
        let sessions = sessions.filter(|(_, session)| session.state == SessionState::Active);
        let grants = Grants::new(log.epoch(), sessions.map(|(number, _)| number));
        let overview = Overview { epoch: log.epoch(), ..Overview::default() };
        let owner = Owner {
            image,
            log: Some(log),
            in_flight: None,
            held: Vec::new(),
            next: Vec::new(),
            next_held: Vec::new(),
            segments: Vec::new(),
            next_segments: Vec::new(),
            sequence,
            renewals: HashMap::new(),
            answered: HashMap::new(),
            grants,
            locking: Locking::default(),
            newest: Newest::default(),
            pushes: Pushes::default(),
            started: Instant::now(),
            shared: shared.clone(),
            overview,
        };
        Ok((owner, shared))
    }

    /// What there is now.
    pub fn overview(&self) -> Overview {
        let (free, blocks) = self.image.room();
        let inodes = self.image.tables().table(Table::Inodes).len() as u64;
        let sessions = self.image.sessions();
        let silent = sessions.iter().filter(|(number, _)| self.is_silent(*number));
        let silent = silent.map(|(number, session)| (*number, session.host.clone())).collect();
        let (held, waiting, expected) = self.grants.counts();
        let tokens = (held, waiting);
        Overview {
            sessions,
            silent,
            free,
            blocks,
            inodes,
            tokens,
            expected,
            locks: self.locking.counts(),
            ..self.overview.clone()
        }
    }

    /// Whether a session has not renewed its lease for longer than that lasts.
    fn is_silent(&self, session: u64) -> bool {
        self.renewals.get(&session).unwrap_or(&self.started).elapsed() > SILENCE
    }

    /// Serves requests until it is told to stop.
    ///
    /// *Errors*: what could not be stored; nothing is answered after that.
    pub async fn run(
        mut self,
        mut requests: mpsc::Receiver<Request>,
        seen: watch::Sender<Overview>,
        mut stopped: watch::Receiver<bool>,
    ) -> Result<(), ServerError> {
        let mut ticks = ticking();
        loop {
            tokio::select! {
                biased;
                (log, result) = appended(&mut self.in_flight) => self.settle(log, result)?,
                Some(request) = requests.recv(), if self.next.len() < BATCH_MAX => {
                    self.apply(request);
                    while self.next.len() < BATCH_MAX && let Ok(request) = requests.try_recv() {
                        self.apply(request);
                    }
                }
                () = until(self.grants.wake_at()) => self.grants.wake(),
                _ = ticks.tick() => {
                    self.end_late_sessions();
                    self.background().await?;
                    let _ = seen.send_replace(self.overview());
                }
                // It changes once.
                _ = stopped.changed() => break,
            }
            self.act();
            self.begin_append()?;
        }
        // Everything applied is stored; clients without an answer ask the next server.
        while self.in_flight.is_some() || !self.next.is_empty() {
            self.begin_append()?;
            let (log, result) = appended(&mut self.in_flight).await;
            self.settle(log, result)?;
        }
        match self.log.take() {
            Some(log) => Ok(log.resign().await?),
            None => Ok(()),
        }
    }

    fn stamp(&self) -> Stamp {
        // The append in flight and the next one may be split. An idle server tells sessions that they have drained
        // everything up to `APPENDS_MAX` behind its last append, so blocks that are freed from now on must get a later
        // number.
        let sequence = self.sequence + APPENDS_MAX + 1;
        Stamp { now_ns: i64::try_from(wall_ns()).unwrap_or(i64::MAX), sequence }
    }

    fn apply(&mut self, request: Request) {
        // What a lost connection still brings was sent again on the one that replaced it.
        if let Some((session, connection)) = request.caller()
            && !self.newest.is_newest(session, ROLE_BULK, connection)
        {
            return;
        }
        match request {
            Request::Operate { session, number, operation, reply } => {
                let is_new = number == self.image.next_number(session);
                let answer = self.operate(session, number, &operation);
                self.overview.operations += 1;
                if planted(Bug::AnsweredEarly) {
                    return reply.send(answer);
                }
                let level = match operation {
                    Operation::Create { open: true, .. } if is_new => level::WRITE,
                    _ => level::NONE,
                };
                self.answer(session, reply, answer, level);
            }
            Request::Ask { session, question, reply } => {
                self.overview.questions += 1;
                if let Question::Push { file, size } = question {
                    return self.push(session, (file, size), reply);
                }
                self.ask(Looking { session, question, reply, is_graced: true });
            }
            Request::Acquire { session, wanted, reply } => match self.image.is_active(session) {
                Ok(()) => self.grants.acquire(session, wanted, reply),
                Err(failure) => reply.send(Err(failure)),
            },
            Request::Wish { session, wish, reply } => match self.image.is_active(session) {
                Ok(()) => {
                    let (is_grace, is_expected) = (self.grants.counts().2 > 0, self.grants.is_expected(session));
                    self.locking.wish(session, wish, reply, is_grace, is_expected);
                }
                Err(failure) => reply.send(Err(failure)),
            },
            Request::Return { session, held } => self.grants.returned(session, held),
            Request::Pushed { session, number } => self.pushes.pushed(session, number),
            Request::Controlled { session, connection, frames } => match self.image.is_active(session) {
                // A later one was greeted meanwhile: recalls go there.
                Ok(()) if !self.newest.is_newest(session, ROLE_CONTROL, connection) => {}
                Ok(()) => {
                    self.grants.controlled(session, frames);
                    self.pushes.repeat(session).iter().for_each(|message| self.grants.tell(session, message));
                }
                // The session was ended after the greeting; nothing else would tell its client.
                Err(failure) => drop(frames.send(Message::Failure(failure).encode(0, self.shared.epoch))),
            },
            Request::Begin { session, connection, reply } => {
                let begun = self.image.begin_session(&session).map(|(number, transaction)| {
                    self.next.push(transaction);
                    self.newest.greet(number, ROLE_BULK, connection);
                    number
                });
                self.hold(Held::Number(reply, begun));
            }
            Request::Resume { session, incarnation, link: (role, connection), reply } => {
                let resumed = self.image.resume(session, incarnation).and_then(|()| {
                    match self.newest.greet(session, role, connection) {
                        true => Ok(session),
                        false => Err(replaced(session)),
                    }
                });
                self.hold(Held::Number(reply, resumed));
            }
            Request::Reclaim { session, held, is_last, reply } => {
                if let Some(wrong) = self.grants.reclaim(session, &held, is_last) {
                    self.evict(wrong, "it holds a token that another session holds, too");
                }
                let said = if is_last { self.image.reclaimed(session) } else { self.image.is_active(session) };
                self.hold(Held::Call(reply, said.map(|()| Answer::Done)));
            }
            Request::Acknowledge { session, acknowledged, drained, is_answered } => {
                self.renewals.insert(session, Instant::now());
                if is_answered {
                    self.answered.insert(session, Instant::now());
                }
                self.image.acknowledge(session, acknowledged, drained);
                // This is done at once, because ticks are delayed while requests arrive. An error occurs again at the
                // next tick and ends the server.
                if let Ok(transactions) = self.image.forget() {
                    self.next.extend(transactions);
                }
            }
            Request::Goodbye { session, reply } => {
                let ended = self.end(session).map(|_| Answer::Done);
                self.hold(Held::Call(reply, ended));
            }
            Request::Release { session, reply } => {
                let ended = match self.is_silent(session) {
                    true => self.end(session),
                    false => Err(active(session)),
                };
                self.hold(Held::Number(reply, ended));
            }
        }
    }

    /// Answers a question, when other hosts have committed what it shows.
    fn ask(&mut self, looking: Looking) {
        let answer = self.image.ask(self.stamp(), looking.session, &looking.question);
        let looking = match &answer {
            Ok(asked) if looking.is_graced && is_look(&looking.question) => {
                self.grants.look(looking, &files_of(&asked.answer))
            }
            _ => Some(looking),
        };
        let answer = answer.map(|asked| {
            self.next.extend(asked.transaction);
            asked.answer
        });
        if let Some(Looking { session, question, reply, .. }) = looking {
            if planted(Bug::ShownEarly) {
                return reply.send(answer);
            }
            match question {
                Question::Open { file, is_direct: true, .. } if answer.is_ok() => {
                    self.pushes.watch(session, file.inode)
                }
                Question::Close { file } if answer.is_ok() => self.pushes.unwatch(session, file.inode),
                _ => {}
            }
            let level = if let Question::Open { level, .. } = question { level } else { level::NONE };
            self.answer(session, reply, answer, level);
        }
    }

    /// Answers with attributes, or with this level of the file's token where nobody is in its way.
    fn answer(&mut self, session: u64, reply: Reply, answer: Result<Answer, Failure>, level: u8) {
        if level != level::NONE
            && let Ok(Answer::Attributes(attributes)) = &answer
            && attributes.inode.mode & libc::S_IFMT == libc::S_IFREG
            && let token = (Token { object: attributes.id(), what: What::Data })
            && let Some(held) = self.grants.offer(session, token, level)
        {
            return self.grant(session, reply, held);
        }
        self.hold(Held::Call(reply, answer));
    }

    /// Tells the kernels of other hosts where a file ends.
    fn push(&mut self, session: u64, end: (FileId, u64), reply: Reply) {
        match self.image.is_active(session) {
            Ok(()) => {
                let told = self.pushes.push(session, end, reply, self.grants.counts().2 > 0);
                told.iter().for_each(|(watcher, message)| self.grants.tell(*watcher, message));
            }
            Err(failure) => reply.send(Err(failure)),
        }
    }

    /// Says that a token is granted, with what the file is now: nobody changes that before it is returned.
    fn grant(&mut self, session: u64, reply: Reply, held: Granted) {
        let (minimum_ms, shape) = (crate::tokens::MINIMUM_MS as u32, self.image.shape(held.token.object));
        let is_watched = self.pushes.is_watched(held.token.object.inode, session);
        self.hold(Held::Grant(reply, Box::new(Message::Grant { held, minimum_ms, is_watched, shape })));
    }

    /// Executes the actions of the arbiter.
    fn act(&mut self) {
        let acted = self.grants.act();
        for (session, reply, held) in acted.granted {
            self.grant(session, reply, held);
        }
        for looking in acted.ready {
            self.ask(looking);
        }
        if self.locking.is_early() && self.grants.counts().2 == 0 {
            self.locking.end_grace();
        }
        if self.grants.counts().2 == 0 {
            let told = self.pushes.end_grace();
            told.iter().for_each(|(watcher, message)| self.grants.tell(*watcher, message));
        }
    }

    /// Ends sessions that others wait for, and whose clients do not answer programs any more.
    fn end_late_sessions(&mut self) {
        let (renewals, answered, started) = (&self.renewals, &self.answered, self.started);
        let since = |times: &HashMap<u64, Instant>, session| {
            let elapsed = times.get(&session).unwrap_or(&started).elapsed();
            u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
        };
        let silence = |session| Silence { heard_ms: since(renewals, session), answered_ms: since(answered, session) };
        let lease = Duration::from_millis(SESSION_LEASE_MS.into()) + DRIFT;
        let mut lockers = self.locking.awaited();
        lockers.extend(self.pushes.awaited());
        for (session, late) in self.grants.late((&lockers, self.locking.is_early()), silence, lease) {
            match late {
                Late::Bar => drop(self.shared.barred().insert(session)),
                Late::Unbar => drop(self.shared.barred().remove(&session)),
                Late::End => {
                    self.evict(session, "it renewed its lease no more while others waited for what it held");
                }
            }
        }
    }

    /// Ends a session because others wait for it. Blocks that it may still write to are not used until it is released.
    fn evict(&mut self, session: u64, why: &str) {
        let host = self.image.sessions().into_iter().find(|(number, _)| *number == session);
        let host = host.map_or_else(String::new, |(_, session)| session.host);
        let words = format!("session {session} of host {host} is ended: {why}");
        match self.image.evict_session(session, wall_ns()) {
            Ok(transaction) => self.next.push(transaction),
            // It is over already.
            Err(_) => return,
        }
        nectary_host::log::write(Level::Warning, "volume", format_args!("{words}"));
        self.grants.tell(session, &Message::Evicted { session, words });
        // The session stays barred, so that its client cannot renew its lease.
        self.shared.barred().insert(session);
        self.forget(session);
    }

    fn forget(&mut self, session: u64) {
        self.renewals.remove(&session);
        self.answered.remove(&session);
        self.newest.forget(session);
        self.pushes.forget(session);
        self.grants.forget(session);
        self.locking.forget(session);
    }

    fn end(&mut self, session: u64) -> Result<u64, Failure> {
        let transaction = self.image.end_session(session)?;
        self.forget(session);
        self.next.push(transaction);
        Ok(session)
    }

    fn operate(&mut self, session: u64, number: u64, operation: &Operation) -> Result<Answer, Failure> {
        let next = self.image.next_number(session);
        match number.cmp(&next) {
            Ordering::Less => self.image.repeat(session, number, operation).unwrap_or_else(|| {
                let words = format!("operation {number} of session {session} was acknowledged");
                Err(Failure { code: Code::Forgotten, errno: libc::EIO, words })
            }),
            Ordering::Greater => {
                let words = format!("operation {number} came, {next} is the next");
                Err(Failure { code: Code::OutOfOrder, errno: libc::EIO, words })
            }
            Ordering::Equal => {
                let (answer, transaction) = self.image.operate(self.stamp(), session, number, operation);
                self.next.extend(transaction);
                answer
            }
        }
    }

    /// Begins an append if none is in flight and there is something to store or to answer.
    fn begin_append(&mut self) -> Result<(), ServerError> {
        let Some(mut log) = self.log.take() else { return Ok(()) };
        if log.wants_segment() && self.next_segments.is_empty() {
            // Without room the journal continues in its present segments, and stops at their end.
            if let Ok((block, transaction)) = self.image.take_segment(log.epoch()) {
                self.next.push(transaction);
                self.next_segments.push(block);
            }
        }
        if self.next.is_empty() {
            // Everything that was applied is durable.
            self.next_held.drain(..).for_each(Held::release);
            self.shared.drained_to.store(self.sequence + APPENDS_MAX, AtomicOrdering::Release);
            self.log = Some(log);
            return Ok(());
        }
        let transactions = std::mem::take(&mut self.next);
        self.held = std::mem::take(&mut self.next_held);
        self.segments = std::mem::take(&mut self.next_segments);
        self.in_flight = Some(Box::pin(async move {
            let result = log.append(transactions).await;
            (log, result)
        }));
        Ok(())
    }

    fn settle(&mut self, mut log: Log, result: Result<u64, journal::Error>) -> Result<(), ServerError> {
        self.in_flight = None;
        self.sequence = result?;
        self.segments.drain(..).for_each(|block| log.give_segment(block));
        self.log = Some(log);
        self.overview.appends += 1;
        self.shared.drained_to.store(self.sequence, AtomicOrdering::Release);
        self.held.drain(..).for_each(Held::release);
        Ok(())
    }

    /// Gives an answer when everything that was applied so far is durable.
    fn hold(&mut self, held: Held) {
        match (&self.in_flight, self.next.is_empty()) {
            (Some(_), true) => self.held.push(held),
            _ => self.next_held.push(held),
        }
    }

    /// Renewals, checkpoints, and what the image has to do by itself.
    async fn background(&mut self) -> Result<(), ServerError> {
        let transactions = self.image.background(self.stamp())?;
        self.next.extend(transactions);
        let Some(mut log) = self.log.take() else { return Ok(()) };
        let done = self.with_log(&mut log).await;
        self.log = Some(log);
        done
    }

    async fn with_log(&mut self, log: &mut Log) -> Result<(), ServerError> {
        let lease_ms = u64::from(self.shared.label.lease_ms);
        if self.overview.renewed.is_none_or(|renewed| renewed.elapsed() >= Duration::from_millis(lease_ms / 4)) {
            log.renew().await?;
            self.overview.renewed = Some(Instant::now());
        }
        if !log.checkpoint_due() {
            return Ok(());
        }
        let mut segments = Vec::new();
        while segments.len() < log.segments_for_checkpoint(self.image.tables()) {
            let (block, transaction) = self.image.take_segment(log.epoch())?;
            segments.push(block);
            self.next.push(transaction);
        }
        // The tables are those of the appends so far.
        self.sequence = log.append(std::mem::take(&mut self.next)).await?;
        self.next_held.drain(..).for_each(Held::release);
        self.next_segments.drain(..).for_each(|block| log.give_segment(block));
        let left = log.checkpoint(self.image.tables(), segments).await?;
        self.overview.checkpoints += 1;
        for block in left {
            self.next.push(self.image.retire_segment(block)?);
        }
        Ok(())
    }
}

fn active(session: u64) -> Failure {
    let words = format!("session {session} renews its lease, or did so a moment ago: it is in use");
    Failure { code: Code::Conflict, errno: libc::EBUSY, words }
}

fn replaced(session: u64) -> Failure {
    let words = format!("session {session} has a later connection than this one");
    Failure { code: Code::Conflict, errno: libc::EAGAIN, words }
}

/// Waits until a time; for ever if there is none.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn ticking() -> Interval {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Waits for the append in flight; for ever if there is none.
async fn appended(in_flight: &mut Option<InFlight>) -> (Log, Result<u64, journal::Error>) {
    match in_flight {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
#[path = "owner_tests.rs"]
mod tests;
