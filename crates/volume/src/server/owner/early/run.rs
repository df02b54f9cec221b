//! Sessions that are answered before the disk has stored what they do, and the loss of the server, and of sessions, at
//! any moment.
//!
//! Owns: seeded runs of three sessions with several operations and questions in flight, whose server crashes again and
//! again. The promises:
//! 1. What an answer shows is what the durable operations and the session's own give: a crash that takes the operations
//!    of all other sessions takes back nothing that was shown.
//! 2. After a crash the state is that of the durable operations and of those that living sessions were told of, with the
//!    same inodes and times, before anybody is shown anything.
//! 3. No living session is ended.
//!
//! Leaves to others: how many runs there are, and which defects are planted (`tests`).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use nectary_block::{DeviceSnapshot, MemoryDevice, SharedDevice};
use tokio::sync::mpsc;

use super::super::super::ServerOptions;
use super::super::super::connection::{Frames, ROLE_BULK, ROLE_CONTROL, ReplySender};
use super::super::super::request::OwnerRequest;
use super::super::super::waits::appended;
use super::super::MetadataOwner;
use super::super::tests::{begin, operate, settle};
use super::EarlyDefect;
use super::disk::SurvivingDisk;
use crate::format::{VolumeIdentity, VolumeLabel};
use crate::journal::{FormatOptions, format};
use crate::metadata::{AppendStamp, MetadataImage, check, first};
use crate::protocol::{
    AnswerTerms, AttributeChanges, FileId, InodeAttributes, MayKeep, MetadataOperation, MetadataQuestion, RefusalCode,
    ServerAnswer, ServerRefusal, TokenGrant, VolumeMessage,
};
use crate::tables::MetadataTables;

pub(super) const ROOT: FileId = FileId { inode: 1, generation: 1 };
pub(super) const SESSIONS: usize = 3;
const STEPS: u64 = 400;
const NAMES: u64 = 8;
pub(super) const DIRECTORIES: u64 = 3;
const IN_FLIGHT_MAX: usize = 4;
/// How many operations a session may have that are answered and not durable.
const UNSTORED_MAX: usize = 24;
pub(super) const STAMP: AppendStamp = AppendStamp { now_ns: 8, sequence: 5 };

pub(super) struct EarlyTestRandom(u64);

impl EarlyTestRandom {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    pub fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }
}

/// An operation that a server has done.
#[derive(Debug, Clone)]
pub(super) struct DoneOperation {
    pub session: u64,
    pub number: u64,
    /// It names the inode that it made.
    pub operation: MetadataOperation,
    pub is_refused: bool,
    /// Whether the session was told that it is done.
    pub is_told: bool,
}

/// What a question shows, without times.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ShownAnswer {
    Gone,
    Refused(i32),
    Inode(u64, u32, u32),
    Names(Vec<(Vec<u8>, u64)>),
    Value(Vec<u8>),
    Nothing,
}

pub(super) fn shown(answer: &Result<ServerAnswer, ServerRefusal>) -> ShownAnswer {
    match answer {
        Err(failure) if failure.errno == libc::ESTALE || failure.errno == libc::ENOENT => ShownAnswer::Gone,
        Err(failure) => ShownAnswer::Refused(failure.errno),
        // A file that lost its name may stay as long as a session may have it open.
        Ok(ServerAnswer::Attributes(found)) if found.inode.links == 0 => ShownAnswer::Gone,
        Ok(ServerAnswer::Attributes(found)) => ShownAnswer::Inode(found.number, found.inode.mode, found.inode.links),
        Ok(ServerAnswer::Listing { names, .. }) => {
            ShownAnswer::Names(names.iter().map(|listed| (listed.name.clone(), listed.attributes.number)).collect())
        }
        Ok(ServerAnswer::Bytes(value)) => ShownAnswer::Value(value.clone()),
        Ok(_) => ShownAnswer::Nothing,
    }
}

pub(super) struct OutstandingQuestion {
    question: MetadataQuestion,
    /// The operations that were done when it was asked; `None`: the server was to wait for others first.
    behind: Option<usize>,
}

pub(super) enum QueuedRequest {
    Operation { request: u64, number: u64, terms: AnswerTerms, operation: MetadataOperation },
    Reclaim,
}

/// Frames that a session gets.
type Heard = mpsc::UnboundedReceiver<Vec<u8>>;

#[derive(Default)]
pub(super) struct EarlyTestHost {
    pub session: u64,
    pub incarnation: u8,
    pub connection: u64,
    pub next_number: u64,
    pub next_request: u64,
    pub out: VecDeque<QueuedRequest>,
    /// Operations without an answer, by request.
    pub waiting: BTreeMap<u64, (u64, MetadataOperation)>,
    /// Operations that were answered and are not known to be durable, by request, with what repeats them.
    pub unstored: BTreeMap<u64, (u64, AnswerTerms, MetadataOperation)>,
    /// The time that came before an answer.
    pub early: BTreeMap<u64, i64>,
    /// What the session may keep, which came before an answer.
    pub may_keep: BTreeMap<u64, MayKeep>,
    pub asking: BTreeMap<u64, OutstandingQuestion>,
    /// What the session saw last of inodes, with all times.
    pub seen: BTreeMap<u64, InodeAttributes>,
    pub frames: Option<(Frames, Heard)>,
    pub control: Option<Heard>,
    pub is_reclaimed: bool,
}

pub(super) struct EarlyTestRun {
    pub random: EarlyTestRandom,
    pub defect: Option<EarlyDefect>,
    pub device: Arc<SurvivingDisk>,
    pub label: VolumeLabel,
    pub owner: MetadataOwner,
    pub hosts: Vec<EarlyTestHost>,
    /// The tables before the first operation, and what was done since.
    pub base: MetadataTables,
    pub done: Vec<DoneOperation>,
    /// What was done before the last crash.
    pub history: Vec<DoneOperation>,
    /// How many of these are durable, and how many the append in flight makes durable.
    pub durable: usize,
    pub in_flight: usize,
    pub seen_in_batch: usize,
    pub is_recovering: bool,
    pub early: u64,
    pub crashes: u64,
    pub repeated: u64,
    pub checked: u64,
    /// How many attributes sessions may have kept of their changes.
    pub kept: u64,
    pub incarnations: u8,
}

/// A broken promise.
pub(super) type Outcome = Result<(), String>;

pub(super) fn options() -> ServerOptions {
    ServerOptions {
        listen: Vec::new(),
        tls: None,
        number: 0,
        host: "h".to_owned(),
        previous_gone: true,
        said_gone: Vec::new(),
    }
}

/// Returns a disk with a new volume.
pub(super) async fn formatted() -> DeviceSnapshot {
    let device = Arc::new(SurvivingDisk(MemoryDevice::new(256 << 20)));
    let shared: SharedDevice = device.clone();
    let options = FormatOptions {
        name: String::new(),
        segment_blocks: 2048,
        lease_ms: 1000,
        drift_per_mille: 10,
        force: false,
        volume: VolumeIdentity([7; 16]),
        hash_key: [3; 16],
        created_s: 1,
    };
    format(&shared, &options, |layout| first(layout, 1)).await.expect("it is formatted");
    device.0.snapshot()
}

fn name_of(number: u64) -> Vec<u8> {
    format!("n{number}").into_bytes()
}

impl EarlyTestRun {
    pub async fn new(snapshot: &DeviceSnapshot, seed: u64, defect: Option<EarlyDefect>) -> EarlyTestRun {
        let device = Arc::new(SurvivingDisk(MemoryDevice::from_snapshot(snapshot)));
        let (mut owner, shared, _) = MetadataOwner::start(device.clone(), &options()).await.expect("it starts");
        owner.early.defect = defect;
        let mut hosts: Vec<EarlyTestHost> = Vec::new();
        for incarnation in 1..=SESSIONS as u8 {
            let session = begin(&mut owner, incarnation);
            hosts.push(EarlyTestHost {
                session,
                incarnation,
                next_number: 1,
                next_request: 1,
                ..EarlyTestHost::default()
            });
        }
        let session = hosts[0].session;
        for directory in 0..DIRECTORIES {
            let (name, mode) = (format!("d{directory}").into_bytes(), libc::S_IFDIR | 0o755);
            operate(&mut owner, session, create(ROOT, name, mode));
        }
        hosts[0].next_number = DIRECTORIES + 1;
        settle(&mut owner).await;
        let base = owner.image.tables().clone();
        let mut run = EarlyTestRun {
            random: EarlyTestRandom(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            defect,
            device,
            label: shared.label.clone(),
            owner,
            hosts,
            base,
            done: Vec::new(),
            history: Vec::new(),
            durable: 0,
            in_flight: 0,
            seen_in_batch: 0,
            is_recovering: false,
            early: 0,
            crashes: 0,
            repeated: 0,
            checked: 0,
            kept: 0,
            incarnations: SESSIONS as u8,
        };
        for host in 0..SESSIONS {
            run.connect(host);
            run.hosts[host].is_reclaimed = true;
        }
        run
    }

    /// Gives a session two new connections.
    pub fn connect(&mut self, host: usize) {
        let this = &mut self.hosts[host];
        this.connection += 2;
        let (session, incarnation, connection) = (this.session, [this.incarnation; 16], this.connection);
        let (control, hears) = mpsc::unbounded_channel();
        (this.frames, this.control) = (Some(mpsc::unbounded_channel()), Some(hears));
        for (role, connection) in [(ROLE_BULK, connection), (ROLE_CONTROL, connection + 1)] {
            let (reply, _) = tokio::sync::oneshot::channel();
            self.owner.apply(OwnerRequest::Resume { session, incarnation, link: (role, connection), reply });
        }
        self.owner.apply(OwnerRequest::Controlled { session, connection: connection + 1, frames: control });
    }

    pub fn reply(&self, host: usize, request: u64) -> ReplySender {
        let host = &self.hosts[host];
        let frames = &host.frames.as_ref().expect("it is connected").0;
        ReplySender::of_request(frames, (host.session, host.connection, request))
    }

    /// Returns the state that the durable ones of the first operations, and those that `also` names, give.
    fn reference(&self, upto: usize, also: impl Fn(usize, &DoneOperation) -> bool) -> MetadataImage {
        let done = self.done.iter().enumerate().take(upto);
        self.image_of(done.filter(|(index, done)| *index < self.durable || also(*index, done)).map(|(_, done)| done))
    }

    /// Notes what the server has done since the last call.
    fn note(&mut self) -> Outcome {
        let batch: Vec<(u64, u64)> = self.owner.journal.next.operations().skip(self.seen_in_batch).collect();
        self.seen_in_batch += batch.len();
        for (session, number) in batch {
            let host = self.hosts.iter().find(|host| host.session == session);
            let Some(host) = host else { continue };
            let sent = host.waiting.values().find(|(sent, _)| *sent == number).map(|(_, operation)| operation);
            let again = host.unstored.values().find(|(sent, ..)| *sent == number).map(|(.., operation)| operation);
            let is_told = again.is_some();
            let mut operation = sent.or(again).cloned().ok_or(format!("nobody sent {number} of {session}"))?;
            let reply = self.owner.image.stored_reply(session, number).ok_or("it has no reply")?;
            if let (MetadataOperation::Create { inode, .. }, Ok(ServerAnswer::Attributes(made))) =
                (&mut operation, &reply)
            {
                *inode = made.number;
            }
            self.done.push(DoneOperation { session, number, operation, is_refused: reply.is_err(), is_told });
        }
        Ok(())
    }

    /// Lets the server go on after a request.
    pub fn go_on(&mut self) -> Outcome {
        self.owner.act();
        self.note()?;
        for host in 0..self.hosts.len() {
            self.hear(host)?;
        }
        Ok(())
    }

    /// Handles what a session is told.
    fn hear(&mut self, host: usize) -> Outcome {
        while let Some(bytes) = self.hosts[host].control.as_mut().and_then(|control| control.try_recv().ok()) {
            let session = self.hosts[host].session;
            match VolumeMessage::decode(&bytes).map_err(|error| error.to_string())?.1 {
                VolumeMessage::Recall { held, .. } => {
                    self.owner.apply(OwnerRequest::Return { session, held: TokenGrant { level: 0, ..held } });
                }
                VolumeMessage::NameChange { number, .. } => {
                    self.owner.apply(OwnerRequest::NameDropped { session, number })
                }
                VolumeMessage::Evicted { words, .. } => return Err(format!("session {session} was ended: {words}")),
                _ => {}
            }
            self.owner.act();
            self.note()?;
        }
        while let Some(bytes) = self.hosts[host].frames.as_mut().and_then(|(_, frames)| frames.try_recv().ok()) {
            let (header, message) = VolumeMessage::decode(&bytes).map_err(|error| error.to_string())?;
            let answer = match message {
                VolumeMessage::Early { now_ns, stored } => {
                    self.stored(host, stored);
                    self.hosts[host].early.insert(header.request, now_ns);
                    continue;
                }
                VolumeMessage::MayKeep(may_keep) => {
                    self.hosts[host].may_keep.insert(header.request, may_keep);
                    continue;
                }
                VolumeMessage::Answer(answer) => Ok(answer),
                VolumeMessage::Failure(failure) if failure.code == RefusalCode::Ended => {
                    return Err(failure.to_string());
                }
                VolumeMessage::Failure(failure) => Err(failure),
                VolumeMessage::Looked { found: Some(found), .. } => Ok(ServerAnswer::Attributes(found)),
                VolumeMessage::Looked { found: None, .. } => {
                    Err(ServerRefusal { code: RefusalCode::Posix, errno: libc::ENOENT, words: String::new() })
                }
                VolumeMessage::Listed { names, is_end, .. } => Ok(ServerAnswer::Listing { names, is_end }),
                VolumeMessage::Grant { held, shape: Some(shape), .. } => {
                    let session = self.hosts[host].session;
                    self.owner.apply(OwnerRequest::Return { session, held: TokenGrant { level: 0, ..held } });
                    Ok(ServerAnswer::Attributes(shape.attributes))
                }
                other => return Err(format!("an answer is none: {other:?}")),
            };
            self.answered(host, header.request, answer)?;
        }
        Ok(())
    }

    fn stored(&mut self, host: usize, upto: u64) {
        self.hosts[host].unstored.retain(|_, (number, ..)| *number > upto);
    }

    fn answered(&mut self, host: usize, request: u64, answer: Result<ServerAnswer, ServerRefusal>) -> Outcome {
        let session = self.hosts[host].session;
        if let Some(asking) = self.hosts[host].asking.remove(&request) {
            let Some(behind) = asking.behind else { return Ok(()) };
            let mut image = self.reference(behind, |_, done| done.session == session && done.is_told);
            let expected = image.ask(STAMP, session, &asking.question).map(|asked| asked.answer);
            if let MetadataQuestion::ReadXattr { file, .. } = &asking.question
                && !image.attributes(*file).is_ok_and(|found| found.inode.links > 0)
            {
                return Ok(());
            }
            self.checked += 1;
            if let Ok(ServerAnswer::Attributes(found)) = &answer {
                self.hosts[host].seen.insert(found.number, found.clone());
            }
            return match shown(&answer) == shown(&expected) {
                true => Ok(()),
                false => Err(format!(
                    "session {session} was shown {:?}, and a crash leaves {:?}: {:?}",
                    shown(&answer),
                    shown(&expected),
                    asking.question
                )),
            };
        }
        if let Some((number, mut operation)) = self.hosts[host].waiting.remove(&request) {
            let errno = answer.as_ref().err().map_or(0, |failure| failure.errno);
            let made = if let Ok(ServerAnswer::Attributes(made)) = &answer { made.number } else { 0 };
            if let Ok(ServerAnswer::Attributes(found)) = &answer {
                self.hosts[host].seen.insert(found.number, found.clone());
            }
            let at = self.done.iter().position(|done| (done.session, done.number) == (session, number));
            let Some(at) = at else { return Err(format!("{number} of {session} is answered and not done")) };
            self.done[at].is_told = true;
            let mut image = self.reference(at, |_, done| done.session == session);
            let next = image.next_number(session);
            let (expected, _) = image.operate_again(STAMP, session, next, &self.done[at].operation);
            self.check_kept(host, request, &image)?;
            match self.hosts[host].early.remove(&request) {
                Some(now_ns) => {
                    self.early += 1;
                    self.checked += 1;
                    if errno != 0 || expected.is_err() {
                        return Err(format!(
                            "session {session} was told {errno}, a crash makes it {expected:?}: {operation:?}"
                        ));
                    }
                    if let MetadataOperation::Create { inode, .. } = &mut operation {
                        *inode = made;
                    }
                    let terms = AnswerTerms::Repeated { now_ns };
                    self.hosts[host].unstored.insert(request, (number, terms, operation));
                }
                None if at >= self.durable => return Err(format!("{number} of {session} is not durable")),
                None => self.stored(host, number),
            }
            return Ok(());
        }
        if let Some((number, ..)) = self.hosts[host].unstored.get(&request) {
            let number = *number;
            self.stored(host, number);
        }
        Ok(())
    }

    /// A directory: mostly the session's own, sometimes another one.
    fn directory(&mut self, host: usize) -> FileId {
        // The first inodes are the directories.
        let any = self.random.below(DIRECTORIES + 1);
        let number = if self.random.below(4) > 0 { host as u64 } else { any };
        if number == DIRECTORIES { ROOT } else { FileId { inode: 16 + number, generation: 1 } }
    }

    fn name(&mut self) -> Vec<u8> {
        match self.random.below(8) {
            0 => format!("d{}", self.random.below(DIRECTORIES)).into_bytes(),
            _ => name_of(self.random.below(NAMES)),
        }
    }

    fn file(&mut self) -> FileId {
        let seen: Vec<u64> = self.hosts.iter().flat_map(|host| host.seen.keys().copied()).collect();
        let inode = match seen.is_empty() {
            true => 16 + self.random.below(24),
            false => self.random.of(&seen),
        };
        FileId { inode, generation: 1 }
    }

    fn operation(&mut self, host: usize) -> MetadataOperation {
        let (directory, name) = (self.directory(host), self.name());
        match self.random.below(14) {
            0..=3 => create(directory, name, libc::S_IFREG | 0o644),
            4 => create(directory, name, libc::S_IFDIR | 0o755),
            5..=6 => {
                MetadataOperation::Unlink { directory, name, is_directory: self.random.below(3) == 0, expected: 0 }
            }
            7..=9 => {
                let flags = self.random.of(&[0, 0, 0, 1, 2]);
                MetadataOperation::Rename {
                    directory,
                    name,
                    new_directory: self.directory(host),
                    new_name: self.name(),
                    flags,
                }
            }
            10 => MetadataOperation::Link { file: self.file(), directory, name },
            11 => {
                let (value, flags) = (vec![self.random.below(200) as u8], self.random.of(&[0, 1, 2]));
                MetadataOperation::SetXattr { file: self.file(), name: b"user.x".to_vec(), value, flags }
            }
            _ => {
                let mode = Some(0o600 + self.random.below(64) as u32);
                MetadataOperation::SetAttributes {
                    file: self.file(),
                    changes: AttributeChanges { mode, ..AttributeChanges::default() },
                }
            }
        }
    }

    fn question(&mut self, host: usize) -> MetadataQuestion {
        match self.random.below(6) {
            0..=2 => MetadataQuestion::Lookup { directory: self.directory(host), name: self.name() },
            3 => MetadataQuestion::GetAttributes { file: self.file() },
            4 => MetadataQuestion::ReadXattr { file: self.file(), name: b"user.x".to_vec() },
            _ => MetadataQuestion::ReadDirectory { directory: self.directory(host), cookie: 0, entries: 100 },
        }
    }

    /// Sends the next message of a session, if it has one.
    pub fn send(&mut self, host: usize) -> Outcome {
        let session = self.hosts[host].session;
        let request = match self.hosts[host].out.pop_front() {
            None => return Ok(()),
            Some(QueuedRequest::Operation { request, number, terms, operation }) => {
                self.repeated += u64::from(matches!(terms, AnswerTerms::Repeated { .. }));
                OwnerRequest::Operate { session, number, terms, operation, reply: self.reply(host, request) }
            }
            Some(QueuedRequest::Reclaim) => {
                self.hosts[host].is_reclaimed = true;
                OwnerRequest::Reclaim { session, held: Vec::new(), is_last: true, reply: self.reply(host, u64::MAX) }
            }
        };
        self.owner.apply(request);
        self.go_on()
    }

    pub async fn append(&mut self) -> Outcome {
        if self.owner.journal.log.is_some() {
            self.in_flight = self.done.len();
            self.seen_in_batch = 0;
        }
        self.owner.begin_append().map_err(|error| error.to_string())?;
        if self.owner.journal.in_flight.is_none() {
            self.durable = self.done.len();
        }
        self.go_on()
    }

    pub async fn settle(&mut self) -> Outcome {
        if self.owner.journal.in_flight.is_some() {
            let (log, result) = appended(&mut self.owner.journal.in_flight).await;
            self.durable = self.in_flight;
            self.owner.settle(log, result).map_err(|error| error.to_string())?;
        }
        self.go_on()
    }

    pub fn ask(&mut self, host: Option<usize>) -> Outcome {
        let host = host.unwrap_or_else(|| self.random.below(SESSIONS as u64) as usize);
        if self.hosts[host].frames.is_none() || self.owner.image.is_active(self.hosts[host].session).is_err() {
            return Ok(());
        }
        let question = self.question(host);
        let this = &mut self.hosts[host];
        let (session, request) = (this.session, this.next_request);
        this.next_request += 1;
        // While sessions have not repeated what they were told, it is to wait.
        let is_early = self.owner.grace.is_on();
        self.hosts[host].asking.insert(
            request,
            OutstandingQuestion { question: question.clone(), behind: (!is_early).then_some(self.done.len()) },
        );
        let reply = self.reply(host, request);
        self.owner.apply(OwnerRequest::Ask { session, question, reply });
        self.go_on()?;
        let is_answered = !self.hosts[host].asking.contains_key(&request);
        match is_early && is_answered && self.owner.grace.is_on() {
            true => Err(format!("session {session} was shown something before all had repeated what they were told")),
            false => Ok(()),
        }
    }

    async fn step(&mut self) -> Outcome {
        let host = self.random.below(SESSIONS as u64) as usize;
        match self.random.below(20) {
            0..=7 => {
                let operation = self.operation(host);
                let this = &mut self.hosts[host];
                if this.waiting.len() < IN_FLIGHT_MAX && this.unstored.len() < UNSTORED_MAX {
                    let (request, number) = (this.next_request, this.next_number);
                    (this.next_request, this.next_number) = (request + 1, number + 1);
                    this.waiting.insert(request, (number, operation.clone()));
                    this.out.push_back(QueuedRequest::Operation {
                        request,
                        number,
                        terms: AnswerTerms::Early,
                        operation,
                    });
                }
                self.send(host)
            }
            8..=13 => self.ask(Some(host)),
            14..=15 => self.append().await,
            16..=17 => self.settle().await,
            18 if self.random.below(12) == 0 => self.crash().await,
            _ => self.send(host),
        }
    }

    /// Makes a run.
    ///
    /// *Errors*: the promise that was broken.
    pub async fn go(&mut self) -> Outcome {
        for _ in 0..STEPS {
            self.step().await?;
        }
        for _ in 0..4 {
            self.append().await?;
            self.settle().await?;
        }
        let open: usize = self.hosts.iter().map(|host| host.waiting.len() + host.asking.len()).sum();
        if open > 0 {
            return Err(format!("{open} calls have no answer"));
        }
        let problems = check(self.owner.image.tables(), &self.label);
        if !problems.is_empty() {
            return Err(format!("{problems:?}"));
        }
        Ok(())
    }
}

/// Makes an inode whose number the server chooses.
pub(super) fn create(directory: FileId, name: Vec<u8>, mode: u32) -> MetadataOperation {
    super::super::tests::create(directory, name, mode, 0)
}
