//! A run: donors, clients and the network between them, in virtual time.
//!
//! Owns: the order of events and their effect on donors and clients. Promises: the same seed repeats a run exactly.
//! Leaves to others: faults (`faults`), the lives of clients (`life`), invariants (`check`), the operations of users
//! (`user`).
//!
//! *Circle*: this file and `faults` import each other: [`RamLogWorld`] has a field of type [`RamLogFaults`], and `faults` adds
//! methods to [`RamLogWorld`].

use nectary_ram::format::RecordStamp;
use nectary_ram::format::slots::{DonorAreas, SlotShape};
use nectary_ram::log::ParityLogPhase;
use nectary_ram::mirror::{DonorReply, DonorRequest, DonorStanding, MachineIntent, MirrorAction, MirrorEvent};
use nectary_ram::placement::{PlacementSettings, RedundancyPolicy};

use super::client::{LogClientModel, configuration, layout};
use super::coverage::RamLogCoverage;
use super::faults::RamLogFaults;
use super::lies::DonorDamage;
use super::values::VersionedBlocks;
use super::{TIME_MAX_US, WRITES, WRITES_OF_FULL};
use crate::ram::blocks::BLOCK_BYTES;
use crate::ram::donor::{ConnectionId, DonorModel, is_change, range};
use crate::ram::network::{ClientId, MILLISECOND, RamNetwork, RamNetworkEvent};
use crate::random::SimulationRandom;

/// A write of more than a slot may be cut off at any multiple of this. *Units*: bytes.
const CUT_BYTES: u64 = 16;
/// How many of a hundred such writes are cut off by the end of their connection.
const TORN_PERCENT: u64 = 1;

/// The stage of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogRunStage {
    /// Users work, faults happen.
    Work,
    /// No more faults happen; everything has to be restored.
    Settle,
    /// The device is detached, attached again and read.
    Reread,
    /// The run is over.
    Done,
}

/// A run.
pub struct RamLogWorld {
    pub seed: u64,
    pub random: SimulationRandom,
    pub network: RamNetwork,
    pub layout: PlacementSettings,
    pub shape: SlotShape,
    pub areas: DonorAreas,
    pub donors: Vec<DonorModel>,
    pub clients: Vec<LogClientModel>,
    /// The client that has the device, or is acquiring it.
    pub current: ClientId,
    pub is_created: bool,
    pub stage: LogRunStage,
    /// The client with which everything was restored.
    pub settled: ClientId,
    pub values: VersionedBlocks,
    /// Whether more donors were lost than the policy survives.
    pub is_lossy: bool,
    /// The client that had the device then.
    pub lost_client: Option<ClientId>,
    /// Whether blocks were lost for good before the step in progress.
    pub was_lost: bool,
    pub faults: RamLogFaults,
    pub lies: DonorDamage,
    pub coverage: RamLogCoverage,
    pub broken: Option<String>,
    /// Whether users write to all blocks equally often and trim none, so that groups have to be cleaned.
    pub is_full: bool,
    pub writes: u64,
    pub flushes: u64,
    pub operations: u64,
    pub failed: u64,
    /// For each donor, whether the client that was killed last had left it.
    pub left_at_crash: Vec<bool>,
    /// The number of clients in succession that were killed before they had attached.
    pub killed_unattached: u64,
    pub numbers: u64,
    /// The number of changes of donors' memory.
    changes: u64,
    /// A hash of all that happened.
    pub trace: u64,
    /// A description of what happened, if requested.
    pub story: Option<Vec<String>>,
}

impl RamLogWorld {
    pub fn new(seed: u64, policy: RedundancyPolicy) -> RamLogWorld {
        let mut random = SimulationRandom::new(seed);
        let layout = layout(&mut random, policy);
        let shape = configuration(&layout, seed, 1, MachineIntent::Create).shape();
        let areas = DonorAreas::new(&shape);
        let donors: Vec<DonorModel> =
            (0..usize::from(layout.donors())).map(|_| DonorModel::new(random.bits(), areas.donor_bytes, 1)).collect();
        let faults = RamLogFaults::new(&mut random);
        let is_full = random.chance(25);
        let mut lies = DonorDamage::default();
        if random.chance(50) {
            let step_us = MILLISECOND + random.below(15 * MILLISECOND);
            lies.scrub_us = step_us * ((1 << 20) / (u64::from(shape.members) * BLOCK_BYTES as u64));
            lies.is_kept_at_loss = random.chance(30);
        }
        let mut world = RamLogWorld {
            seed,
            is_full,
            network: RamNetwork::new(),
            layout,
            shape,
            areas,
            clients: Vec::new(),
            current: 0,
            is_created: false,
            stage: LogRunStage::Work,
            settled: 0,
            values: VersionedBlocks::new(shape.blocks),
            is_lossy: false,
            lost_client: None,
            was_lost: false,
            faults,
            lies,
            coverage: RamLogCoverage::default(),
            broken: None,
            writes: 0,
            flushes: 0,
            operations: 0,
            failed: 0,
            left_at_crash: vec![false; donors.len()],
            killed_unattached: 0,
            numbers: 0,
            changes: 0,
            trace: seed,
            story: None,
            donors,
            random,
        };
        world.start(MachineIntent::Create);
        world
    }

    fn writes_wanted(&self) -> u64 {
        if self.is_full { WRITES_OF_FULL } else { WRITES }
    }

    pub fn now_us(&self) -> u64 {
        self.network.now_us
    }

    /// Runs to the end.
    pub fn run(&mut self) {
        while self.stage != LogRunStage::Done && self.broken.is_none() {
            let Some(happening) = self.network.pop() else {
                return self.break_with("nothing happens any more".to_owned());
            };
            self.trace = (self.trace ^ self.now_us()).wrapping_mul(0x0100_0000_01b3);
            if self.now_us() > TIME_MAX_US {
                let state = self.state_of(self.current);
                let step = self.clients[self.current].machine.first_step();
                return self.break_with(format!("stuck in {:?}, {state}; {step}", self.stage));
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
            RamNetworkEvent::Submit { client } => self.submit(client),
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
        if !state.is_alive || state.machine.phase() == ParityLogPhase::Ended || state.connections[donor].is_some() {
            return;
        }
        let is_away = at.down_until_us > now_us || at.paused_until_us > now_us || state.paused_until_us > now_us;
        if is_away || self.network.cut_until(client, donor).is_some() {
            return self.plan_connect(client, donor);
        }
        let connection = self.network.connect(client, donor, &mut self.random);
        self.clients[client].connections[donor] = Some(connection);
        let event = MirrorEvent::Connected { donor, incarnation: self.donors[donor].incarnation };
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
                None => self.tear(connection, &body),
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
            return self.tear(connection, &body);
        }
        if let DonorRequest::SwapMetadata { expected, .. } = &body
            && RecordStamp::of(&self.donors[donor].area) == *expected
        {
            self.fence(donor, connection);
        }
        if self.stage == LogRunStage::Work && self.is_long(&body) && self.random.chance(TORN_PERCENT) {
            let client = self.network.connections[connection].client;
            self.break_connection(client, donor);
            return self.tear(connection, &body);
        }
        let reply = self.perform(connection, &body);
        if self.network.connections[connection].is_donor_open && self.network.connections[connection].is_client_open {
            let at_us = self.network.up(connection, &mut self.random);
            let event = MirrorEvent::Replied { donor, request, reply };
            self.network.plan(at_us, RamNetworkEvent::AtClient { connection, event });
        }
    }

    /// Whether a request is a write of more than a slot. Slots of real devices are longer than summaries.
    fn is_long(&self, body: &DonorRequest) -> bool {
        matches!(body, DonorRequest::Write { data, .. } if data.len() as u64 > self.areas.slot_bytes.max(self.areas.summary_bytes))
    }

    /// Stores a part of a write whose connection ended while the donor executed it, or nothing.
    fn tear(&mut self, connection: ConnectionId, body: &DonorRequest) {
        let DonorRequest::Write { offset, data, .. } = body else { return };
        let donor = self.network.connections[connection].donor;
        if self.donors[donor].owner != Some(connection) || !self.random.chance(70) {
            return;
        }
        if !self.is_long(body) {
            return;
        }
        let bytes = self.random.below(data.len() as u64 / CUT_BYTES) * CUT_BYTES;
        self.coverage.met("write cut off in the middle", 1);
        let part = DonorRequest::Write { offset: *offset, data: data.slice(..bytes as usize), force: false };
        self.perform(connection, &part);
        self.check_recoveries("after a write that was cut off");
    }

    /// Makes a donor finish or drop the requests of other connections than `owner`, and end those connections.
    fn fence(&mut self, donor: usize, owner: ConnectionId) {
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

    fn perform(&mut self, connection: ConnectionId, body: &DonorRequest) -> DonorReply {
        let donor = self.network.connections[connection].donor;
        let connections = &self.network.connections;
        let reply = self.donors[donor].execute(connection, body, |other| connections[other].is_donor_open);
        if reply != DonorReply::Done {
            return reply;
        }
        if is_change(body) {
            if !self.network.connections[connection].is_client_open {
                self.coverage.met("write lands after its connection was given up", 1);
            }
            self.changes += 1;
            if let Some((offset, bytes)) = range(body) {
                self.overwritten(donor, offset, bytes);
            }
            // One of eight runs checks every change, the others check some; flushed data are always checked.
            if self.seed.is_multiple_of(8) || self.random.chance(20) {
                self.check_recoveries("after a change of a donor");
            }
        }
        if matches!(body, DonorRequest::SwapMetadata { .. }) {
            self.check_recoveries("after a record");
        }
        reply
    }

    fn at_client(&mut self, connection: ConnectionId, event: MirrorEvent) {
        let at = &self.network.connections[connection];
        let (client, donor, now_us) = (at.client, at.donor, self.now_us());
        if !at.is_client_open || !self.clients[client].is_alive {
            return;
        }
        let paused_us = self.clients[client].paused_until_us;
        if let Some(until_us) = self.network.cut_until(client, donor).or((paused_us > now_us).then_some(paused_us)) {
            return self.network.plan(until_us, RamNetworkEvent::AtClient { connection, event });
        }
        if let MirrorEvent::Connected { incarnation, .. } = event {
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
        self.step(client, MirrorEvent::Disconnected { donor });
        self.plan_connect(client, donor);
    }

    fn wake(&mut self, client: ClientId) {
        let (now_us, state) = (self.now_us(), &self.clients[client]);
        let Some(wake_us) = state.machine.wake_at().filter(|_| state.is_alive) else { return };
        if state.paused_until_us > now_us {
            return self.network.plan(state.paused_until_us, RamNetworkEvent::Wake { client });
        }
        if wake_us <= now_us {
            self.step(client, MirrorEvent::Time);
        }
        let next_us = self.clients[client].machine.wake_at().unwrap_or(now_us).max(now_us + 1);
        self.network.plan(next_us, RamNetworkEvent::Wake { client });
    }

    /// Passes an event to a client's machine, and executes the resulting actions.
    pub fn step(&mut self, client: ClientId, event: MirrorEvent) {
        let now_us = self.now_us();
        let before = self.story.as_ref().map(|_| self.state_of(client));
        let state = &mut self.clients[client];
        self.was_lost = state.machine.standing().contains(&DonorStanding::Lost);
        state.machine.step(now_us, event);
        let actions: Vec<MirrorAction> = state.machine.actions().collect();
        if let Some(before) = before {
            let after = self.state_of(client);
            if before != after {
                self.tell(|| format!("client {client}: {after}"));
            }
        }
        for action in actions {
            match action {
                MirrorAction::Send { donor, request, body } => {
                    if let Some(connection) = self.clients[client].connections[donor] {
                        let at_us = self.network.down(connection, &mut self.random);
                        self.network
                            .plan(at_us, RamNetworkEvent::AtDonor { connection, request, body, is_late: false });
                    }
                }
                MirrorAction::Disconnect { donor } => {
                    if let Some(connection) = self.clients[client].connections[donor].take() {
                        self.network.give_up(connection, &mut self.random);
                    }
                    self.plan_connect(client, donor);
                }
                // No donor takes a place here: `ram_moves` does that.
                MirrorAction::Restore { .. } => {}
                MirrorAction::Complete { id, result } => self.complete(client, id, result),
                MirrorAction::Attached => self.attached(client),
                MirrorAction::Refused(refusal) => self.refused(client, refusal),
                MirrorAction::Superseded => {
                    self.coverage.met("superseded client ends", 1);
                    self.close(client);
                }
                MirrorAction::Detached => {
                    self.close(client);
                    if self.stage == LogRunStage::Reread {
                        self.start(MachineIntent::Attach { take_over: false, trust_remaining: false });
                    }
                }
            }
        }
        self.check_client(client);
        self.kill_if_due(client);
    }

    fn advance_stage(&mut self) {
        let now_us = self.now_us();
        match self.stage {
            _ if now_us >= self.faults.ends_us => self.stage = LogRunStage::Done,
            LogRunStage::Work if self.writes >= self.writes_wanted() && self.faults.are_over(now_us) => {
                self.stage = LogRunStage::Settle;
                self.network.heal();
                for donor in &mut self.donors {
                    (donor.paused_until_us, donor.slow_until_us) = (0, 0);
                }
                let others: Vec<ClientId> = (0..self.clients.len()).filter(|at| *at != self.current).collect();
                others.into_iter().for_each(|other| self.close(other));
                if self.is_lossy {
                    self.stage = LogRunStage::Done;
                }
            }
            LogRunStage::Settle => {
                let client = &self.clients[self.current];
                if client.is_alive && client.pending.is_empty() && client.machine.is_quiet() && !self.awaits_scrub() {
                    (self.stage, self.settled) = (LogRunStage::Reread, self.current);
                    self.step(self.current, MirrorEvent::Detach);
                }
            }
            LogRunStage::Reread => {
                let client = &self.clients[self.current];
                if self.current != self.settled && client.is_attached && client.pending.is_empty() {
                    self.stage = LogRunStage::Done;
                }
            }
            LogRunStage::Work | LogRunStage::Done => {}
        }
    }

    pub fn state_of(&self, client: ClientId) -> String {
        let machine = &self.clients[client].machine;
        let links: Vec<_> = (0..self.donors.len()).filter_map(|donor| machine.link_state(donor)).collect();
        let (steps, writes) = machine.under_way();
        format!(
            "{:?}, {:?}, {:?}, {:?}, {links:?}, view {:?}, {} operations, {steps} steps, {writes} writes",
            machine.base_phase(),
            machine.phase(),
            machine.recovery_stage(),
            machine.standing(),
            machine.view().number(),
            machine.operations(),
        )
    }
}
