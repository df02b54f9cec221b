//! The owner of a running device: one task that holds the machine and everything that the machine controls.
//!
//! Owns: the machine, the connections to its donors, requests in flight, waiting callers, the clock. Promises: the
//! actions of the machine are executed in their order; the machine gets no event of a connection that it gave up; a
//! donor without a connection is tried again as long as the device is open. All tasks are in one [`JoinSet`], and end
//! with the owner. Leaves to others: every decision (`group`).
//!
//! | what | bound |
//! |---|---|
//! | callers' requests that the owner has not seen | `REQUESTS_MAX` of `mod` |
//! | connections | one for each donor, and one attempt |
//! | requests in flight to a donor | those of callers, two for each; copies; one record, one question |

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use nectary_block::{BlockDevice, IoContext, SurvivalLevel};
use nectary_host::log::{self, LogLevel};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};

use super::client::{DeviceMachine, donor_bytes};
use super::moving::{MoveError, MoveSides, Moved, PreparedDonor, move_report};
use super::peer::{DonorPeer, PAUSE_MIN};
use super::report::{DeviceReport, DonorReport, MoveReport, RebuildReport};
use super::session::{DonorConnectError, DonorConnection, DonorRequestOutcome, SessionTarget, begin, incarnation};
use super::spares::SpareDonors;
use crate::device::RamOptions;
use crate::device::address::DonorAddress;
use crate::device::direct::{DirectGate, DirectPath};
use crate::device::foreign::DonorExport;
use crate::device::moves::{MovePlan, MoveStage, Mover};
use crate::device::together::together;
use crate::format::{DonorRecord, RecordGeometry};
use crate::group::{
    AttachRefusal, DeviceError, Donor, DonorReply, DonorRequest, DonorStanding, LinkState, MachineAction, MachineEvent,
    Moment, RequestId, UserRequest,
};
use crate::scrub::ScrubFindings;

/// The longest pause between attempts to connect.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// A command of a caller.
pub enum OwnerCommand {
    /// A request to the device.
    Submit {
        /// The request.
        request: UserRequest,
        /// The channel for the result. If the caller has gone, the request is done nevertheless.
        reply: oneshot::Sender<Result<Bytes, DeviceError>>,
    },
    /// To put another donor in the place of one.
    Replace {
        /// The donor, by its address in the SPEC, or its number there, from 1.
        old: String,
        /// The other one.
        new: Box<DonorAddress>,
        /// Its end: everything is on the other donor, and all were told.
        reply: oneshot::Sender<Moved>,
    },
    /// To say which spares there are for a donor.
    Spares {
        /// The donor, as in `Replace`.
        old: String,
        /// The spares, the addresses of those that have a place already, and the memory that one needs, in bytes.
        reply: oneshot::Sender<Result<SparesFor, MoveError>>,
    },
    /// To compare all copies now.
    Scrub {
        /// The findings, when the pass has ended.
        reply: oneshot::Sender<ScrubFindings>,
    },
    /// To give the device up after what is under way; the owner then ends.
    Detach {
        /// Whether every donor that counts was told. It is dropped without an answer if the owner ends otherwise.
        reply: oneshot::Sender<bool>,
    },
}

/// The spares of a device, the addresses of those that have a place already, and the memory that one needs, in bytes.
pub type SparesFor = (Vec<DonorAddress>, Vec<String>, u64);

/// The outcome of attaching.
pub type Opened = Result<(), (AttachRefusal, Vec<Option<String>>)>;

/// What a task in the set brings.
pub(super) enum OwnerTaskResult {
    Connected(Donor, u64, Result<DonorConnection, DonorConnectError>),
    Ended(Donor, u64, RequestId, DonorRequestOutcome),
    /// Nobody waits for it, for example because the machine had given up the connection.
    Dropped,
    /// The other donor of a move was prepared, or why this failed.
    Prepared(u64, Result<(String, Option<PreparedDonor>), MoveError>),
    /// A part of a move was copied, or why this failed and whether the other donor was at fault.
    Copied(u64, u64, Result<(), (bool, String)>),
    /// Whether each donor, by position, says that it is leaving; the addresses of spares that answer.
    Looked(u64, Vec<bool>, Vec<String>),
    /// The former donor of a move was emptied, or why this failed.
    Emptied(u64, Result<(), String>),
    /// Every request past the machine has ended, so that the device can be detached.
    LanesClosed,
    /// The servers of other makes are flushed, or not, for this caller.
    Flushed(bool, oneshot::Sender<Result<Bytes, DeviceError>>),
}

/// The owner of a device.
pub struct DeviceOwner {
    pub(super) machine: Box<dyn DeviceMachine>,
    pub(super) peers: Vec<DonorPeer>,
    /// The size of the device on each donor, by position, in bytes.
    pub(super) donor_bytes: Vec<u64>,
    pub(super) places: Vec<usize>,
    /// As given.
    pub(super) options: RamOptions,
    /// The SPEC that names the present donors.
    pub(super) spec: Arc<str>,
    started: Instant,
    pub(super) work: JoinSet<OwnerTaskResult>,
    commands: mpsc::Receiver<OwnerCommand>,
    callers: OwnerCallers,
    pub(super) opened: Option<oneshot::Sender<Opened>>,
    pub(super) reports: watch::Sender<DeviceReport>,
    reported: LastReport,
    /// By position.
    pub(super) labels: Vec<String>,
    pub(super) geometry: RecordGeometry,
    pub(super) mover: Mover<MoveSides>,
    /// Work that empties donors which took no place, by their addresses.
    pub(super) emptying: Vec<(String, AbortHandle)>,
    pub(super) spares: SpareDonors,
    /// Those who wait for a pass of the scrub, and the number of passes before it.
    pub(super) scrubbing: Vec<(u64, oneshot::Sender<ScrubFindings>)>,
    /// Requests past the machine, of a device without redundancy.
    pub(super) direct: DirectGate,
}

/// Those who wait for the machine.
#[derive(Default)]
struct OwnerCallers {
    /// Those who wait for requests, by the numbers of these.
    list: HashMap<u64, oneshot::Sender<Result<Bytes, DeviceError>>>,
    /// The number of the last request.
    last: u64,
    /// Those who wait for the end of detaching.
    detaching: Vec<oneshot::Sender<bool>>,
}

/// What was reported last.
struct LastReport {
    at_us: Moment,
    /// The donor that is filled, and since when.
    rebuild: Option<(Donor, Instant)>,
    standing: Vec<DonorStanding>,
}

/// The channels between a caller and the owner.
pub struct OwnerHandle {
    /// The commands to the owner.
    pub commands: mpsc::Sender<OwnerCommand>,
    /// The outcome of attaching, sent once.
    pub opened: oneshot::Receiver<Opened>,
    /// The newest report.
    pub reports: watch::Receiver<DeviceReport>,
    /// The way past the machine.
    pub direct: Arc<DirectPath>,
}

impl DeviceOwner {
    /// Makes an owner that begins to attach or create; `targets` are the donors by position, `places` their indexes in
    /// the SPEC.
    pub fn new(
        options: &RamOptions,
        machine: Box<dyn DeviceMachine>,
        targets: Vec<(SessionTarget, u64)>,
        places: Vec<usize>,
        labels: Vec<String>,
        geometry: RecordGeometry,
        requests_max: usize,
    ) -> (DeviceOwner, OwnerHandle) {
        let (commands, receiver) = mpsc::channel(requests_max);
        let (opened, is_opened) = oneshot::channel();
        let peers: Vec<DonorPeer> = targets.into_iter().map(|(target, epoch)| DonorPeer::new(target, epoch)).collect();
        let spec: Arc<str> = options.spec().into();
        let report = DeviceReport { spec: spec.clone(), ..report(&*machine, &peers, &places, None, None) };
        let (reports, watched) = watch::channel(report);
        let standing = machine.group().standing().to_vec();
        let mover = Mover::new(peers.len());
        let owner = DeviceOwner {
            machine,
            peers,
            donor_bytes: (0..usize::from(geometry.members)).map(|donor| donor_bytes(&geometry, donor)).collect(),
            places,
            options: options.clone(),
            spec,
            started: Instant::now(),
            work: JoinSet::new(),
            commands: receiver,
            callers: OwnerCallers::default(),
            opened: Some(opened),
            reports,
            reported: LastReport { at_us: 0, rebuild: None, standing },
            labels,
            geometry,
            mover,
            emptying: Vec::new(),
            spares: SpareDonors::default(),
            scrubbing: Vec::new(),
            direct: DirectGate::default(),
        };
        let direct = owner.direct.path.clone();
        (owner, OwnerHandle { commands, opened: is_opened, reports: watched, direct })
    }

    pub(super) fn now_us(&self) -> Moment {
        self.started.elapsed().as_micros() as Moment
    }

    /// Serves until the machine ends, or all callers have gone.
    pub async fn run(mut self) {
        for donor in 0..self.peers.len() {
            self.connect(donor, Duration::ZERO);
        }
        let timer = tokio::time::sleep(Duration::ZERO);
        tokio::pin!(timer);
        loop {
            if self.execute() || self.drive_move() && self.execute() {
                break;
            }
            self.answer_scrubs();
            self.use_spares();
            self.open_lanes();
            self.publish(false, false);
            let Some(wake_us) = self.machine.wake_at() else { break };
            timer.as_mut().reset((self.started + Duration::from_micros(wake_us)).into());
            // Only one event is handled at a time, because its actions are meant for the connections that existed when
            // it came.
            tokio::select! {
                Some(done) = self.work.join_next() => {
                    if let Ok(done) = done {
                        self.done(done);
                    }
                }
                command = self.commands.recv() => match command {
                    None => return,
                    Some(command) => self.command(command),
                },
                () = &mut timer => self.step(MachineEvent::Time),
            }
        }
        self.publish(true, true);
    }

    pub(super) fn step(&mut self, event: MachineEvent) {
        self.machine.step(self.now_us(), event);
    }

    fn command(&mut self, command: OwnerCommand) {
        match command {
            OwnerCommand::Submit { request: UserRequest::Flush, reply } if self.has_others() => self.flush_others(reply),
            OwnerCommand::Submit { request, reply } => self.submit(request, reply),
            OwnerCommand::Replace { old, new, reply } => self.replace(&old, *new, reply),
            OwnerCommand::Scrub { reply } => self.scrub(reply),
            OwnerCommand::Spares { .. } => self.answer_spares(command),
            OwnerCommand::Detach { reply } => {
                self.callers.detaching.push(reply);
                if self.callers.detaching.len() == 1 {
                    let closed = self.direct.close_for_good();
                    if closed.is_unused() {
                        return self.detach();
                    }
                    self.work.spawn(async move {
                        closed.wait().await;
                        OwnerTaskResult::LanesClosed
                    });
                }
            }
        }
    }

    fn submit(&mut self, request: UserRequest, reply: oneshot::Sender<Result<Bytes, DeviceError>>) {
        self.callers.last += 1;
        let id = self.callers.last;
        self.callers.list.insert(id, reply);
        self.step(MachineEvent::Submitted { id, request });
    }

    /// Whether a donor is a server of another make, which may have a cache.
    fn has_others(&self) -> bool {
        let is_used = |used: &Arc<AtomicBool>| used.load(Ordering::Relaxed);
        self.peers.iter().any(|peer| peer.target.others.as_ref().is_some_and(is_used))
    }

    /// Flushes the servers of other makes, and then the device. One whose session has ended is lost with what it had.
    fn flush_others(&mut self, reply: oneshot::Sender<Result<Bytes, DeviceError>>) {
        let is_other = |peer: &&DonorPeer| peer.target.others.as_ref().is_some_and(|used| used.load(Ordering::Relaxed));
        let devices: Option<Vec<_>> = self.peers.iter().filter(is_other).map(|peer| peer.device.clone()).collect();
        self.work.spawn(async move {
            let flush = |device: Arc<DonorExport>| async move { device.flush(IoContext::default()).await.is_ok() };
            let flushed = match devices {
                Some(devices) => together(devices.into_iter().map(flush).collect()).await.into_iter().all(|done| done),
                None => false,
            };
            OwnerTaskResult::Flushed(flushed, reply)
        });
    }

    fn detach(&mut self) {
        // Once all donors were told of a switch, only what the former one holds is left.
        let is_over = self.mover.moving().is_some_and(|moving| moving.plan().stage() == MoveStage::Emptying);
        self.end_move(match is_over {
            true => Ok(()),
            false => Err("the device is being detached".to_owned().into()),
        });
        self.step(MachineEvent::Detach);
    }

    /// Lets requests go past the machine while nothing else goes on, and only then.
    fn open_lanes(&mut self) {
        if self.geometry.zones().is_none() {
            return;
        }
        let group = self.machine.group();
        let is_well = |donor: usize| {
            group.standing()[donor] == DonorStanding::Trusted && group.link_state(donor) == Some(LinkState::Claimed)
        };
        let is_quiet = self.machine.is_open()
            && self.mover.moving().is_none()
            && self.callers.detaching.is_empty()
            && (0..self.peers.len()).all(is_well);
        let lanes = || self.peers.iter().map(DonorPeer::lane).collect::<Option<Vec<_>>>();
        match if is_quiet { lanes() } else { None } {
            Some(lanes) if !self.direct.is_open() => self.direct.open(&self.geometry, lanes),
            Some(_) => {}
            None if self.direct.is_open() => self.direct.close(),
            None => {}
        }
    }

    /// Executes the actions of the machine; returns whether the machine has ended.
    fn execute(&mut self) -> bool {
        loop {
            let actions = self.machine.take_actions();
            if actions.is_empty() {
                return false;
            }
            for action in actions {
                match action {
                    MachineAction::Send { donor, request, body } => self.send(donor, request, body),
                    MachineAction::Disconnect { donor } => {
                        self.lose(donor, "it was late, or its answers were wrong".to_owned());
                        self.connect(donor, Duration::ZERO);
                    }
                    MachineAction::Restore { donor } => self.restore(donor),
                    MachineAction::Complete { id, result } => {
                        if let Some(caller) = self.callers.list.remove(&id) {
                            let _ = caller.send(result);
                        }
                    }
                    MachineAction::Attached => {
                        self.publish(true, false);
                        self.opened(Ok(()));
                    }
                    MachineAction::Refused(refusal) => {
                        let reasons = self.peers.iter().map(|peer| peer.reason.clone()).collect();
                        self.opened(Err((refusal, reasons)));
                        return true;
                    }
                    MachineAction::Superseded => {
                        log::write(LogLevel::Warning, "ram", format_args!("{}", DeviceError::Superseded));
                        self.reports.send_modify(|report| {
                            report.ended = Some(DeviceError::Superseded.to_string().into());
                        });
                        return true;
                    }
                    MachineAction::Detached => {
                        let is_given_up = self.machine.group().is_given_up();
                        self.callers.detaching.drain(..).for_each(|waiting| _ = waiting.send(is_given_up));
                        return true;
                    }
                }
            }
        }
    }

    fn opened(&mut self, result: Opened) {
        if let Some(opened) = self.opened.take() {
            let _ = opened.send(result);
        }
    }

    pub(super) fn send(&mut self, donor: Donor, request: RequestId, body: DonorRequest) {
        let peer = &mut self.peers[donor];
        let Some(body) = self.mover.send(donor, request, body, peer.device.is_some()) else { return };
        let Some(device) = &peer.device else { return };
        peer.requests += 1;
        match &body {
            DonorRequest::Read { bytes, .. } => peer.read_bytes += bytes,
            DonorRequest::Write { data, .. } => peer.written_bytes += data.len() as u64,
            _ => {}
        }
        let pending = begin(device, body);
        let (epoch, ended) = (peer.epoch, peer.ended.clone());
        self.work.spawn(async move {
            tokio::select! {
                biased;
                done = pending => OwnerTaskResult::Ended(donor, epoch, request, done),
                () = ended.requested() => OwnerTaskResult::Dropped,
            }
        });
    }

    /// Begins an attempt to connect, after a pause.
    pub(super) fn connect(&mut self, donor: Donor, pause: Duration) {
        let peer = &mut self.peers[donor];
        peer.epoch += 1;
        let (target, epoch, bytes) = (peer.target.clone(), peer.epoch, self.donor_bytes[donor]);
        self.work.spawn(async move {
            tokio::time::sleep(pause).await;
            OwnerTaskResult::Connected(donor, epoch, target.connect(epoch, Some(bytes)).await)
        });
    }

    fn done(&mut self, done: OwnerTaskResult) {
        match done {
            OwnerTaskResult::Dropped => {}
            OwnerTaskResult::LanesClosed => self.detach(),
            OwnerTaskResult::Flushed(true, reply) => self.submit(UserRequest::Flush, reply),
            OwnerTaskResult::Flushed(false, reply) => _ = reply.send(Err(DeviceError::Patience { block: 0 })),
            // After a move another donor may have the place of one that said so.
            OwnerTaskResult::Looked(number, leaving, answering) => {
                let is_new = self.mover.number() == number;
                self.mover.need.leaving = if is_new { leaving } else { Vec::new() };
                self.spares.looked(answering);
            }
            OwnerTaskResult::Connected(donor, epoch, _) | OwnerTaskResult::Ended(donor, epoch, ..)
                if self.peers[donor].epoch != epoch => {}
            OwnerTaskResult::Prepared(number, _)
            | OwnerTaskResult::Copied(number, ..)
            | OwnerTaskResult::Emptied(number, _)
                if !self.mover.is_present(number) => {}
            OwnerTaskResult::Prepared(_, result) => self.prepared(result),
            OwnerTaskResult::Copied(number, part, result) => self.copied(number, part, result),
            OwnerTaskResult::Emptied(_, result) => self.emptied(result),
            OwnerTaskResult::Connected(donor, _, Ok(DonorConnection { page, device })) => {
                let peer = &mut self.peers[donor];
                (peer.device, peer.reason, peer.pause, peer.was_empty) = (Some(device), None, PAUSE_MIN, false);
                peer.sessions += 1;
                peer.survives = peer.device.as_ref().map_or(peer.survives, |device| device.survives());
                self.step(MachineEvent::Connected { donor, incarnation: incarnation(&page) });
            }
            OwnerTaskResult::Connected(donor, _, Err(away)) => {
                let peer = &mut self.peers[donor];
                peer.reason = Some(away.reason());
                let pause = peer.pause;
                peer.pause = (pause * 2).min(PAUSE_MAX);
                self.connect(donor, pause);
            }
            OwnerTaskResult::Ended(donor, _, request, DonorRequestOutcome::Answered(reply)) => {
                self.mover.answered(donor, request);
                match &reply {
                    DonorReply::NotOwner => self.peers[donor].reason = Some("it serves another client".to_owned()),
                    DonorReply::Metadata { area, .. } if DonorRecord::is_absent(area) => {
                        self.peers[donor].was_empty = true
                    }
                    _ => {}
                }
                self.step(MachineEvent::Replied { donor, request, reply });
            }
            OwnerTaskResult::Ended(donor, _, _, DonorRequestOutcome::Lost(reason)) => {
                self.lose(donor, reason);
                self.step(MachineEvent::Disconnected { donor });
                self.connect(donor, PAUSE_MIN);
            }
        }
    }

    /// Publishes a report when the machine has ticked, or now; says what has changed with the donors.
    pub(super) fn publish(&mut self, now: bool, has_ended: bool) {
        let now_us = self.now_us();
        let is_changed = self.machine.group().standing() != self.reported.standing;
        if !now && !is_changed && now_us < self.reported.at_us + crate::group::MachineTimes::default().tick_us {
            return;
        }
        self.reported.at_us = now_us;
        if is_changed {
            let standing = self.machine.group().standing().to_vec();
            for (donor, (before, after)) in self.reported.standing.iter().zip(&standing).enumerate() {
                // During attaching only missing donors are reported.
                let is_news = self.opened.is_none() || !matches!(after, DonorStanding::Trusted);
                if before != after && is_news {
                    self.say(donor, *after);
                }
            }
            for (peer, after) in self.peers.iter_mut().zip(&standing) {
                peer.was_empty &= *after != DonorStanding::Trusted;
            }
            self.reported.standing = standing;
        }
        self.say_refused();
        let rebuilding = self.machine.rebuild_progress().map(|(donor, ..)| donor);
        if self.reported.rebuild.map(|(donor, _)| donor) != rebuilding {
            self.reported.rebuild = rebuilding.map(|donor| (donor, Instant::now()));
        }
        let ended = self.reports.borrow().ended.clone();
        let ended = ended.or_else(|| has_ended.then(|| "the device is detached".into()));
        let moving = self.mover.moving().map(|moving| move_report(moving.plan(), now_us));
        let spares = (self.spares.list.len() as u64, self.spares.answering() as u64);
        let report = report(&*self.machine, &self.peers, &self.places, self.reported.rebuild, moving);
        self.reports.send_replace(DeviceReport { ended, spares, spec: self.spec.clone(), ..report });
    }

    /// Says which donors are there again, and are not filled.
    fn say_refused(&self) {
        for (donor, peer) in self.peers.iter().enumerate() {
            let was_refused = self.reports.borrow().donors.get(donor).is_some_and(|report| report.is_refused);
            if !was_refused && self.machine.group().link_state(donor) == Some(LinkState::Refused) {
                let what = "has another device of this name, or another client: it is not filled";
                let (id, address) = (&peer.target.id, &peer.target.address.text);
                log::write(LogLevel::Warning, "ram", format_args!("{id}: donor {address} {what}"));
            }
        }
    }

    fn say(&self, donor: Donor, standing: DonorStanding) {
        let peer = &self.peers[donor];
        let reason = peer.reason.as_deref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        let is_filling = |plan: &MovePlan| plan.donor == donor && plan.stage() == MoveStage::Filling;
        let takes_place = self.mover.moving().is_some_and(|moving| is_filling(moving.plan()));
        let (level, what) = match standing {
            DonorStanding::Trusted => (LogLevel::Note, "has everything that belongs on it"),
            DonorStanding::Leaving => return,
            DonorStanding::Out => (LogLevel::Warning, "is left: the device is degraded, and uses the others"),
            DonorStanding::Rebuilding if takes_place => {
                (LogLevel::Note, "takes the place of another one and is filled")
            }
            DonorStanding::Rebuilding if peer.was_empty => (
                LogLevel::Warning,
                "has nothing of this device (it was started again, or another one was meant): it is filled",
            ),
            DonorStanding::Rebuilding => (LogLevel::Note, "is there and is filled again"),
            DonorStanding::Lost => {
                (LogLevel::Warning, "is lost with another donor: blocks that no other has are I/O errors")
            }
        };
        log::write(level, "ram", format_args!("{}: donor {} {what}{reason}", peer.target.id, peer.target.address.text));
    }
}

fn report(
    machine: &dyn DeviceMachine,
    peers: &[DonorPeer],
    places: &[usize],
    rebuild: Option<(Donor, Instant)>,
    moving: Option<MoveReport>,
) -> DeviceReport {
    let donor = |(donor, peer): (usize, &DonorPeer)| DonorReport {
        standing: machine.group().standing()[donor],
        is_up: machine.group().link_state(donor) == Some(LinkState::Claimed),
        is_refused: machine.group().link_state(donor) == Some(LinkState::Refused),
        is_reached: machine.group().link_state(donor).is_some_and(|state| state != LinkState::Down),
        sessions: peer.sessions,
        requests: peer.counts().0,
        read_bytes: peer.counts().1,
        written_bytes: peer.counts().2,
    };
    let progress = machine.rebuild_progress().zip(rebuild);
    let plain_survives = peers.iter().map(|peer| peer.survives).fold((SurvivalLevel::Host, SurvivalLevel::Host), |all, one| {
        (all.0.min(one.0), all.1.min(one.1))
    });
    DeviceReport {
        plain_survives,
        view: machine.group().view().number(),
        donors: peers.iter().enumerate().map(donor).collect(),
        places: places.to_vec(),
        is_view_stored: machine.group().is_view_stored(),
        rebuild: progress.map(|((donor, copied, all), (_, since))| {
            let elapsed_ms = since.elapsed().as_millis() as u64;
            RebuildReport { donor, copied, all, elapsed_ms }
        }),
        moving,
        scrub: machine.scrub_progress(),
        spares: (0, 0),
        spec: "".into(),
        counts: machine.counts(),
        ended: None,
    }
}
