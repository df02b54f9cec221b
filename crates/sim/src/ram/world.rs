//! A run: donors, clients and the network between them, in virtual time.
//!
//! Owns: the order of events and their effect on donors and clients, and what a run asks of the layout of a device.
//! Promises: the same seed repeats a run exactly. Leaves to others: faults (`faults`), the lives of clients (`life`), the
//! operations of users (`user`), invariants (the layouts).

use std::ops::Range;

use bytes::Bytes;
use nectary_ram::device::owner::DeviceMachine as _;
use nectary_ram::format::RecordStamp;
use nectary_ram::group::{
    DeviceError, DonorReply, DonorRequest, DonorStanding, MachineAction, MachineEvent, MachineIntent,
};

use super::client::{KillAt, RamClientModel, RamUserOperation, SimulatedMachine, UserMix};
use super::coverage::RamCoverage;
use super::donor::{ConnectionId, DonorModel, is_change, range};
use super::fault_plan::{FaultShares, RamFaultPlan};
use super::network::{ClientId, MILLISECOND, RamNetwork, RamNetworkEvent};
use super::{TIME_MAX_US, WRITES};
use crate::random::SimulationRandom;

/// The most attempts to damage bytes at the end of a run.
pub const LAST_DAMAGE_MAX: u64 = 20;

/// The stage of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RamRunStage {
    /// Users work, faults happen.
    Work,
    /// No more faults happen; everything has to be restored.
    Settle,
    /// The device is detached, attached again and read.
    Reread,
    /// The run is over.
    Done,
}

/// The layout of a device: where its blocks are, what each may contain, and what has to hold after every step.
pub trait SimulatedLayout: Sized {
    type Machine: SimulatedMachine;

    /// Which faults happen how often.
    const FAULTS: FaultShares;
    /// How many of a hundred losses of a donor's memory also kill the client.
    const KILL_AFTER_LOSS_PERCENT: u64;
    /// After how many of a hundred kills the next client is killed, too.
    const KILL_AGAIN_PERCENT: u64;

    /// The phase in which the next client is killed, and the number of steps before that.
    fn draw_kill(random: &mut SimulationRandom) -> (KillAt, u64);
    /// What users do.
    fn mix(&self) -> UserMix;
    /// The number of blocks.
    fn blocks(&self) -> u64;
    /// Advances the time of the record of operations; returns the new time.
    fn tick(&mut self) -> u64;
    /// Records that a change begins; number 0 stands for zeroes. Returns its position.
    fn begin_change(&mut self, client: ClientId, blocks: Range<u64>, number: u64) -> u64;
    /// Makes the machine of a client.
    fn machine(world: &RamWorld<Self>, client: u64, intent: MachineIntent) -> Self::Machine;
    /// The scenarios that a machine has reached.
    fn figures(machine: &Self::Machine) -> Vec<(&'static str, u64)>;
    /// Describes the state of a machine.
    fn describe(machine: &Self::Machine, donors: usize) -> String {
        let links: Vec<_> = (0..donors).filter_map(|donor| machine.group().link_state(donor)).collect();
        format!("{}, {links:?}", machine.describe())
    }

    /// Whether an attaching client would believe a donor, whichever other one is missing.
    fn is_believed(world: &RamWorld<Self>, donor: usize) -> bool;
    /// Whether every donor has the same view.
    fn is_told(world: &RamWorld<Self>) -> bool;
    /// Whether a donor has all acknowledged data.
    fn has_everything(_world: &RamWorld<Self>, _donor: usize) -> bool {
        false
    }

    /// Checks the result of a user's request, and records it.
    fn complete(world: &mut RamWorld<Self>, client: ClientId, of: RamUserOperation, result: Result<Bytes, DeviceError>);
    /// Checks a client after its machine has processed an event.
    fn check_client(world: &mut RamWorld<Self>, client: ClientId);
    /// Checks the donors after a part of the memory of one has changed.
    fn memory_changed(world: &mut RamWorld<Self>, donor: usize, offset: u64, bytes: u64);
    /// Checks the donors after the record of one has changed.
    fn records_changed(world: &mut RamWorld<Self>, what: &str);
    /// Checks the donors once everything is restored.
    fn settled(_world: &mut RamWorld<Self>) {}
    /// A client has attached, to a device that is new or not.
    fn attached(world: &mut RamWorld<Self>, client: ClientId, is_new: bool);
    /// Notes the scenarios that the loss of a client reaches.
    fn note_death(world: &mut RamWorld<Self>, client: ClientId);
    /// A client is lost.
    fn client_lost(_world: &mut RamWorld<Self>) {}

    /// Damages bytes of a donor; returns whether it did.
    fn damage(world: &mut RamWorld<Self>) -> bool;
    /// Corrects damaged bytes, because the next fault must not be a second one for the same block.
    fn heal(world: &mut RamWorld<Self>);
    /// Describes damage that the scrub still has to find.
    fn damaged(&self) -> Option<String>;
    /// Whether one donor more may lose its memory without ending the run: the layout knows which blocks are lost.
    fn knows_losses(&self) -> bool {
        false
    }
    /// Whether no client can attach the device any more, because a donor's memory is lost.
    fn is_gone(&self) -> bool {
        false
    }

    /// Whether damage stays, because the run has damaged more than the policy survives.
    fn damage_stays(&self) -> bool {
        false
    }

    /// Describes what users have read that no order of their operations explains.
    fn unexplained(&self) -> Vec<String> {
        Vec::new()
    }

    /// A thread of a user has its turn.
    fn turn(_world: &mut RamWorld<Self>, _client: ClientId) {}
    /// A user is about to begin an operation.
    fn before_operation(_world: &mut RamWorld<Self>) {}
    /// A donor is about to lose its memory.
    fn before_loss(_world: &mut RamWorld<Self>, _donor: usize) {}
    /// A client is about to attach.
    fn before_attach(_world: &mut RamWorld<Self>, _take_over: bool) {}
    /// The former donor has its place again.
    fn restored(_world: &mut RamWorld<Self>, _client: ClientId, _donor: usize) {}
    /// Whether the connection of a request breaks while the donor executes it.
    fn is_torn(_world: &mut RamWorld<Self>, _body: &DonorRequest) -> bool {
        false
    }
    /// A request is lost with its connection.
    fn lost_in_flight(_world: &mut RamWorld<Self>, _connection: ConnectionId, _body: &DonorRequest) {}
}

/// What users have done.
#[derive(Debug, Clone, Copy, Default)]
pub struct UserCounts {
    pub writes: u64,
    pub flushes: u64,
    pub operations: u64,
    pub failed: u64,
}

/// A run.
pub struct RamWorld<L: SimulatedLayout> {
    pub seed: u64,
    pub random: SimulationRandom,
    pub network: RamNetwork,
    pub layout: L,
    pub donors: Vec<DonorModel>,
    pub clients: Vec<RamClientModel<L::Machine>>,
    /// The client that has the device, or is acquiring it.
    pub current: ClientId,
    pub is_created: bool,
    pub stage: RamRunStage,
    /// The client with which everything was restored.
    pub settled: ClientId,
    /// Whether more donors were lost than the policy survives.
    pub is_lossy: bool,
    /// The client that had the device then.
    pub lost_client: Option<ClientId>,
    /// Whether blocks were lost for good before the step in progress.
    pub was_lost: bool,
    /// The pace of the scrub; 0: no client scrubs.
    pub scrub_us: u64,
    /// The client with which everything else was restored, and the passes of its scrub until then.
    left_to_scrub: Option<(ClientId, u64)>,
    pub faults: RamFaultPlan,
    pub coverage: RamCoverage,
    pub broken: Option<String>,
    /// How many acknowledged writes end the work.
    pub writes_wanted: u64,
    pub counts: UserCounts,
    /// For each donor, whether the client that was killed last had left it.
    pub left_at_crash: Vec<bool>,
    /// The number of clients in succession that were killed before they had attached.
    pub killed_unattached: u64,
    pub numbers: u64,
    /// A hash of all that happened.
    pub trace: u64,
    /// A description of what happened, if requested.
    pub story: Option<Vec<String>>,
}

impl<L: SimulatedLayout> RamWorld<L> {
    /// A run whose layout, donors and faults are drawn; its first client creates the device.
    pub fn new(
        seed: u64,
        random: SimulationRandom,
        layout: L,
        donors: Vec<DonorModel>,
        faults: RamFaultPlan,
        coverage: RamCoverage,
    ) -> RamWorld<L> {
        RamWorld {
            seed,
            random,
            network: RamNetwork::new(),
            layout,
            clients: Vec::new(),
            current: 0,
            is_created: false,
            stage: RamRunStage::Work,
            settled: 0,
            is_lossy: false,
            lost_client: None,
            was_lost: false,
            scrub_us: 0,
            left_to_scrub: None,
            faults,
            coverage,
            broken: None,
            writes_wanted: WRITES,
            counts: UserCounts::default(),
            left_at_crash: vec![false; donors.len()],
            killed_unattached: 0,
            numbers: 0,
            trace: seed,
            story: None,
            donors,
        }
    }

    pub fn now_us(&self) -> u64 {
        self.network.now_us
    }

    /// Runs to the end.
    pub fn run(&mut self) {
        while self.stage != RamRunStage::Done && self.broken.is_none() {
            let Some(happening) = self.network.pop() else {
                return self.break_with("nothing happens any more".to_owned());
            };
            self.trace = (self.trace ^ self.now_us()).wrapping_mul(0x0100_0000_01b3);
            if self.now_us() > TIME_MAX_US {
                let state = self.state_of(self.current);
                return self.break_with(format!("stuck in {:?}, {state}", self.stage));
            }
            self.happen(happening);
            self.advance_stage();
        }
    }

    /// Records what happened, if a description is requested.
    pub fn tell(&mut self, what: impl FnOnce() -> String) {
        let now_us = self.network.now_us;
        if let Some(story) = &mut self.story {
            story.push(format!("{now_us} us: {}", what()));
        }
    }

    /// Notes that an invariant is broken.
    pub fn break_with(&mut self, what: String) {
        let at = self.now_us();
        self.broken.get_or_insert(format!("{what} (at {at} us)"));
    }

    fn happen(&mut self, happening: RamNetworkEvent) {
        match happening {
            RamNetworkEvent::Connect { client, donor } => self.connect(client, donor),
            RamNetworkEvent::AtDonor { connection, request, body, is_late } => {
                self.at_donor(connection, request, body, is_late);
            }
            RamNetworkEvent::Execute { connection, request, body } => self.execute(connection, request, body),
            RamNetworkEvent::AtClient { connection, event } => self.at_client(connection, event),
            RamNetworkEvent::DonorSeesEnd { connection } => self.network.connections[connection].is_donor_open = false,
            RamNetworkEvent::ClientSeesEnd { connection } => self.client_sees_end(connection),
            RamNetworkEvent::Wake { client } => self.wake(client),
            RamNetworkEvent::Submit { client } => {
                L::turn(self, client);
                self.submit(client);
            }
            RamNetworkEvent::Fault => self.fault(),
            RamNetworkEvent::Start { take_over, trust_remaining } => {
                self.start(MachineIntent::Attach { take_over, trust_remaining });
            }
            RamNetworkEvent::Kill { client } => self.kill(client),
            RamNetworkEvent::PauseEnds { client } => {
                if self.clients[client].is_alive {
                    self.coverage.met("client paused, all donors cut, then back", 1);
                }
            }
        }
    }

    pub fn plan_connect(&mut self, client: ClientId, donor: usize) {
        let at_us = self.now_us() + 1000 + self.random.below(15 * MILLISECOND);
        self.network.plan(at_us, RamNetworkEvent::Connect { client, donor });
    }

    fn connect(&mut self, client: ClientId, donor: usize) {
        let (now_us, at) = (self.now_us(), &self.donors[donor]);
        let state = &self.clients[client];
        if !state.is_alive || state.machine.has_ended() || state.connections[donor].is_some() {
            return;
        }
        let is_away = at.down_until_us > now_us || at.paused_until_us > now_us || state.paused_until_us > now_us;
        if is_away || self.network.cut_until(client, donor).is_some() {
            return self.plan_connect(client, donor);
        }
        let connection = self.network.connect(client, donor, &mut self.random);
        self.clients[client].connections[donor] = Some(connection);
        let event = MachineEvent::Connected { donor, incarnation: self.donors[donor].incarnation };
        let at_us = self.network.up(connection, &mut self.random);
        self.network.plan(at_us, RamNetworkEvent::AtClient { connection, event });
    }

    fn at_donor(&mut self, connection: ConnectionId, request: u64, body: DonorRequest, is_late: bool) {
        let at = &self.network.connections[connection];
        let (client, donor, now_us) = (at.client, at.donor, self.now_us());
        if !at.is_donor_open {
            return;
        }
        if !at.is_client_open && !is_late {
            match at.late_us {
                Some(late_us) => {
                    let happening = RamNetworkEvent::AtDonor { connection, request, body, is_late: true };
                    self.network.plan(now_us + late_us, happening);
                }
                None => L::lost_in_flight(self, connection, &body),
            }
            return;
        }
        let paused_us = self.donors[donor].paused_until_us;
        if let Some(until_us) = self.network.cut_until(client, donor).or((paused_us > now_us).then_some(paused_us)) {
            return self.network.plan(until_us, RamNetworkEvent::AtDonor { connection, request, body, is_late });
        }
        let service_us = match self.donors[donor].slow_until_us > now_us {
            true => 10 * MILLISECOND + self.random.below(140 * MILLISECOND),
            false => 5 + self.random.below(300),
        };
        self.network.plan(now_us + service_us, RamNetworkEvent::Execute { connection, request, body });
    }

    fn execute(&mut self, connection: ConnectionId, request: u64, body: DonorRequest) {
        let at = &self.network.connections[connection];
        let (donor, now_us) = (at.donor, self.now_us());
        let paused_us = self.donors[donor].paused_until_us;
        if paused_us > now_us {
            return self.network.plan(paused_us, RamNetworkEvent::Execute { connection, request, body });
        }
        let finishes = at.is_finished && self.donors[donor].owner == Some(connection);
        if !at.is_donor_open && !finishes {
            return L::lost_in_flight(self, connection, &body);
        }
        if let DonorRequest::SwapMetadata { expected, .. } = &body
            && RecordStamp::of(&self.donors[donor].area) == *expected
        {
            self.fence(donor, connection);
        }
        if L::is_torn(self, &body) {
            let client = self.network.connections[connection].client;
            self.break_connection(client, donor);
            return L::lost_in_flight(self, connection, &body);
        }
        let reply = self.perform(connection, &body);
        if self.network.connections[connection].is_donor_open && self.network.connections[connection].is_client_open {
            let at_us = self.network.up(connection, &mut self.random);
            let event = MachineEvent::Replied { donor, request, reply };
            self.network.plan(at_us, RamNetworkEvent::AtClient { connection, event });
        }
    }

    /// Makes a donor finish or drop the requests of other connections than `owner`, and end those connections.
    fn fence(&mut self, donor: usize, owner: ConnectionId) {
        if self.donors[donor].never_fences {
            return;
        }
        let mut others = self.network.served(donor);
        others.retain(|other| *other != owner);
        let is_drained = self.random.chance(50);
        // Include connections whose end the donor has already seen.
        let all: Vec<ConnectionId> = (0..self.network.connections.len())
            .filter(|at| self.network.connections[*at].donor == donor && *at != owner)
            .collect();
        for (other, body) in self.network.take_arrived(&all) {
            if is_drained && self.network.connections[other].is_donor_open {
                self.perform(other, &body);
            }
        }
        for other in others {
            self.network.end(other, &mut self.random);
        }
    }

    pub fn perform(&mut self, connection: ConnectionId, body: &DonorRequest) -> DonorReply {
        let donor = self.network.connections[connection].donor;
        let connections = &self.network.connections;
        let reply = self.donors[donor].execute(connection, body, |other| connections[other].is_donor_open);
        if reply != DonorReply::Done {
            return reply;
        }
        if is_change(body) {
            let is_given_up = !self.network.connections[connection].is_client_open;
            self.coverage.met("write lands after its connection was given up", u64::from(is_given_up));
            if let Some((offset, bytes)) = range(body) {
                L::memory_changed(self, donor, offset, bytes);
            }
        }
        if matches!(body, DonorRequest::SwapMetadata { .. }) {
            L::records_changed(self, "after a record");
        }
        reply
    }

    fn at_client(&mut self, connection: ConnectionId, event: MachineEvent) {
        let at = &self.network.connections[connection];
        let (client, donor, now_us) = (at.client, at.donor, self.now_us());
        if !at.is_client_open || !self.clients[client].is_alive {
            return;
        }
        let paused_us = self.clients[client].paused_until_us;
        if let Some(until_us) = self.network.cut_until(client, donor).or((paused_us > now_us).then_some(paused_us)) {
            return self.network.plan(until_us, RamNetworkEvent::AtClient { connection, event });
        }
        if let MachineEvent::Connected { incarnation, .. } = event {
            let known = std::mem::replace(&mut self.clients[client].incarnations[donor], incarnation);
            if known != 0 && known != incarnation {
                self.coverage.met("donor restarted between two connections", 1);
            }
        }
        self.step(client, event);
    }

    fn client_sees_end(&mut self, connection: ConnectionId) {
        let at = &self.network.connections[connection];
        let (client, donor) = (at.client, at.donor);
        if !at.is_client_open || !self.clients[client].is_alive {
            return;
        }
        let paused_us = self.clients[client].paused_until_us;
        if paused_us > self.now_us() {
            return self.network.plan(paused_us, RamNetworkEvent::ClientSeesEnd { connection });
        }
        self.network.connections[connection].is_client_open = false;
        self.clients[client].connections[donor] = None;
        self.step(client, MachineEvent::Disconnected { donor });
        self.plan_connect(client, donor);
    }

    fn wake(&mut self, client: ClientId) {
        let (now_us, state) = (self.now_us(), &self.clients[client]);
        let Some(wake_us) = state.machine.wake_at().filter(|_| state.is_alive) else { return };
        if state.paused_until_us > now_us {
            return self.network.plan(state.paused_until_us, RamNetworkEvent::Wake { client });
        }
        if wake_us <= now_us {
            self.step(client, MachineEvent::Time);
        }
        let next_us = self.clients[client].machine.wake_at().unwrap_or(now_us).max(now_us + 1);
        self.network.plan(next_us, RamNetworkEvent::Wake { client });
    }

    /// Passes an event to a client's machine, and executes the resulting actions.
    pub fn step(&mut self, client: ClientId, event: MachineEvent) {
        let now_us = self.now_us();
        let before = self.story.as_ref().map(|_| self.state_of(client));
        let state = &mut self.clients[client];
        self.was_lost = state.machine.group().standing().contains(&DonorStanding::Lost);
        state.machine.step(now_us, event);
        let actions = state.machine.take_actions();
        if let Some(before) = before {
            let after = self.state_of(client);
            if before != after {
                self.tell(|| format!("client {client}: {after}"));
            }
        }
        for action in actions {
            match action {
                MachineAction::Send { donor, request, body } => {
                    if let Some(connection) = self.clients[client].connections[donor] {
                        let at_us = self.network.down(connection, &mut self.random);
                        self.network
                            .plan(at_us, RamNetworkEvent::AtDonor { connection, request, body, is_late: false });
                    }
                }
                MachineAction::Disconnect { donor } => {
                    if let Some(connection) = self.clients[client].connections[donor].take() {
                        self.network.give_up(connection, &mut self.random);
                    }
                    self.plan_connect(client, donor);
                }
                MachineAction::Restore { donor } => L::restored(self, client, donor),
                MachineAction::Complete { id, result } => self.complete(client, id, result),
                MachineAction::Attached => self.attached(client),
                MachineAction::Refused(refusal) => self.refused(client, refusal),
                MachineAction::Superseded => {
                    self.coverage.met("superseded client ends", 1);
                    self.close(client);
                }
                MachineAction::Detached => {
                    self.close(client);
                    if self.stage == RamRunStage::Reread {
                        self.start(MachineIntent::Attach { take_over: false, trust_remaining: false });
                    }
                }
            }
        }
        L::check_client(self, client);
        self.kill_if_due(client);
    }

    /// Checks the result of a user's request; the user goes on.
    fn complete(&mut self, client: ClientId, id: u64, result: Result<Bytes, DeviceError>) {
        let Some(pending) = self.clients[client].pending.remove(&id) else {
            return self.break_with(format!("request {id} is completed twice"));
        };
        let is_over = matches!(result, Err(DeviceError::Superseded | DeviceError::NotAttached));
        self.counts.failed += u64::from(result.is_err());
        L::complete(self, client, pending, result);
        if self.stage == RamRunStage::Work && !is_over {
            self.plan_submit(client);
        }
    }

    fn advance_stage(&mut self) {
        let now_us = self.now_us();
        match self.stage {
            _ if now_us >= self.faults.ends_us => self.stage = RamRunStage::Done,
            RamRunStage::Work if self.counts.writes >= self.writes_wanted && self.faults.are_over(now_us) => {
                self.stage = RamRunStage::Settle;
                self.network.heal();
                for donor in &mut self.donors {
                    (donor.paused_until_us, donor.slow_until_us) = (0, 0);
                }
                let others: Vec<ClientId> = (0..self.clients.len()).filter(|at| *at != self.current).collect();
                others.into_iter().for_each(|other| self.close(other));
                if self.is_lossy {
                    self.stage = RamRunStage::Done;
                }
            }
            RamRunStage::Settle => {
                let client = &self.clients[self.current];
                if client.is_alive && client.pending.is_empty() && client.machine.is_quiet() && !self.awaits_scrub() {
                    L::settled(self);
                    (self.stage, self.settled) = (RamRunStage::Reread, self.current);
                    self.step(self.current, MachineEvent::Detach);
                }
            }
            RamRunStage::Reread => {
                let client = &self.clients[self.current];
                if self.current != self.settled && client.is_attached && client.pending.is_empty() {
                    self.stage = RamRunStage::Done;
                }
            }
            RamRunStage::Work | RamRunStage::Done => {}
        }
    }

    /// Whether the scrub still has to repair damage; it must have done so after two passes. In a run whose clients scrub,
    /// bytes are damaged once more at the end.
    fn awaits_scrub(&mut self) -> bool {
        if self.scrub_us == 0 || self.layout.damage_stays() {
            return false;
        }
        let passes = self.clients[self.current].machine.scrub_progress().passes;
        if self.left_to_scrub.is_none_or(|(client, _)| client != self.current) {
            self.left_to_scrub = Some((self.current, passes));
            (0..LAST_DAMAGE_MAX).find(|_| L::damage(self));
        }
        let before = self.left_to_scrub.map_or(passes, |(_, before)| before);
        let Some(damage) = self.layout.damaged() else { return false };
        if passes > before + 1 {
            self.break_with(format!("the scrub has left damage: {damage}"));
        }
        true
    }

    fn state_of(&self, client: ClientId) -> String {
        L::describe(&self.clients[client].machine, self.donors.len())
    }

    /// Notes that a donor which an earlier client had left is being filled.
    pub fn note_return(&mut self, client: ClientId, donor: usize) {
        let is_filled = self.clients[client].machine.group().standing()[donor] == DonorStanding::Rebuilding;
        if is_filled && std::mem::take(&mut self.left_at_crash[donor]) {
            self.coverage.met("left donor returns after the client crashed", 1);
        }
    }
}
