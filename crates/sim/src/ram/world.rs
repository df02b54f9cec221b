//! A run: donors, clients and the network between them, in virtual time.
//!
//! Owns: the order of events and their effect on donors and clients. Promises: the same seed repeats a run exactly.
//! Leaves to others: faults (`faults`), invariants (`check`), the operations of users (`client`).
//!
//! *Circle*: this file imports `faults` and `copies`, and they import it: [`RamWorld`] has fields of their types, and both
//! add methods to [`RamWorld`].

use std::collections::BTreeMap;

use nectary_ram::format::{RecordGeometry, RecordStamp, RedundancyCode};
use nectary_ram::mirror::{
    DonorReply, DonorRequest, DonorStanding, MachineIntent, MirrorAction, MirrorEvent, MirrorPhase, MirrorRing,
    ParityLayout, StripeLayout,
};

use super::blocks::{BLOCK_BYTES, ChangedBlocks};
use super::client::RamClientModel;
use super::copies::UndetectedDamage;
use super::coverage::{RamCoverage, Scenario};
use super::donor::{ConnectionId, DonorModel, is_change, range};
use super::faults::RamFaults;
use super::network::{ClientId, MILLISECOND, RamNetwork, RamNetworkEvent};
use super::{TIME_MAX_US, WRITES};
use crate::cache::history::DeviceHistory;
use crate::random::SimulationRandom;

/// The number of blocks of a stripe of a mirror.
const STRIPE_BLOCKS: u64 = 4;
/// The number of blocks of a stripe with parity, on each donor.
const CHUNK_BLOCKS: u64 = 2;

/// Returns the pace of a scrub that compares a stripe of a mirror in `stripe_us`.
fn scrub_us(stripe_us: u64) -> u64 {
    stripe_us * ((1 << 20) / (STRIPE_BLOCKS * BLOCK_BYTES as u64))
}

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

/// A run.
pub struct RamWorld {
    pub random: SimulationRandom,
    pub network: RamNetwork,
    pub geometry: RecordGeometry,
    pub ring: MirrorRing,
    pub rows: ParityLayout,
    pub donors: Vec<DonorModel>,
    pub clients: Vec<RamClientModel>,
    /// The client that has the device, or is acquiring it.
    pub current: ClientId,
    pub is_created: bool,
    pub stage: RamRunStage,
    /// The client with which everything was restored.
    pub settled: ClientId,
    pub history: DeviceHistory,
    pub blocks: ChangedBlocks,
    /// Wrong copies that no read has detected yet.
    pub lies: Vec<UndetectedDamage>,
    pub had_lies: bool,
    /// Blocks that a crash may have lost, each with the client that found that.
    pub may_be_lost: BTreeMap<u64, ClientId>,
    /// The time of the history until which a block may have been lost.
    pub were_lost: BTreeMap<u64, u64>,
    /// Whether more donors were lost than the policy survives.
    pub is_lossy: bool,
    /// Whether other donors take the place of some.
    pub has_moves: bool,
    /// The donor whose place another one took last.
    pub former: Option<(usize, DonorModel)>,
    /// The pace of the scrub; 0: no client scrubs.
    pub scrub_us: u64,
    /// The client with which everything else was restored, and the passes of its scrub until then.
    pub left_to_scrub: Option<(ClientId, u64)>,
    pub faults: RamFaults,
    pub coverage: RamCoverage,
    pub broken: Option<String>,
    pub writes: u64,
    pub operations: u64,
    pub failed: u64,
    /// For each donor, whether an attaching client may accept its data, according to the donors' records.
    pub believed: Vec<bool>,
    /// Whether all donors have the same record.
    pub is_told: bool,
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

impl RamWorld {
    pub fn new(seed: u64, code: RedundancyCode) -> RamWorld {
        let mut random = SimulationRandom::new(seed);
        let drawn = random.below(5) as usize;
        let (members, stripe_blocks) = match code {
            RedundancyCode::Parity => {
                let members = [3, 3, 4, 4, 5][drawn];
                (members, CHUNK_BLOCKS * u64::from(members - 1))
            }
            _ => ([2, 2, 3, 3, 4][drawn], STRIPE_BLOCKS),
        };
        let blocks = 18 + random.below(14);
        let geometry = RecordGeometry {
            device: [seed as u8; 16],
            bytes: blocks * BLOCK_BYTES as u64,
            block_bytes: BLOCK_BYTES as u32,
            stripe_bytes: (stripe_blocks * BLOCK_BYTES as u64) as u32,
            members,
            code,
        };
        let (ring, rows) = (MirrorRing::new(&geometry), ParityLayout::new(&geometry));
        let donor_bytes = if geometry.is_parity() { rows.donor_bytes() } else { ring.donor_bytes() };
        let donors: Vec<DonorModel> =
            (0..usize::from(members)).map(|at| DonorModel::new(random.bits(), donor_bytes, at)).collect();
        let faults = RamFaults::new(&mut random);
        let scrub_us = if random.chance(40) { scrub_us(2 * MILLISECOND + random.below(20 * MILLISECOND)) } else { 0 };
        let has_moves = random.chance(30);
        let mut world = RamWorld {
            network: RamNetwork::new(),
            geometry,
            ring,
            rows,
            clients: Vec::new(),
            current: 0,
            is_created: false,
            stage: RamRunStage::Work,
            settled: 0,
            history: DeviceHistory::default(),
            blocks: ChangedBlocks::new(blocks),
            lies: Vec::new(),
            had_lies: false,
            may_be_lost: BTreeMap::new(),
            were_lost: BTreeMap::new(),
            is_lossy: false,
            has_moves,
            former: None,
            scrub_us,
            left_to_scrub: None,
            faults,
            coverage: RamCoverage::default(),
            broken: None,
            writes: 0,
            operations: 0,
            failed: 0,
            believed: vec![false; donors.len()],
            is_told: false,
            left_at_crash: vec![false; donors.len()],
            killed_unattached: 0,
            numbers: 0,
            trace: seed,
            story: None,
            donors,
            random,
        };
        world.start(MachineIntent::Create);
        world
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
                let client = &self.clients[self.current];
                let (phase, standing) = (client.machine.phase(), client.machine.standing());
                return self.break_with(format!("stuck in {:?}, {phase:?}, donors {standing:?}", self.stage));
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
                self.replace_sometimes(client);
                self.submit(client);
            }
            RamNetworkEvent::Fault => self.fault(),
            RamNetworkEvent::Start { take_over, trust_remaining } => {
                self.start(MachineIntent::Attach { take_over, trust_remaining });
            }
            RamNetworkEvent::Kill { client } => self.kill(client),
            RamNetworkEvent::PauseEnds { client } => {
                if self.clients[client].is_alive {
                    self.coverage.met(Scenario::PausedAndCut);
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
        if !state.is_alive || state.machine.phase() == MirrorPhase::Ended || state.connections[donor].is_some() {
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
            if let Some(late_us) = at.late_us {
                self.network
                    .plan(now_us + late_us, RamNetworkEvent::AtDonor { connection, request, body, is_late: true });
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
            return;
        }
        if let DonorRequest::SwapMetadata { expected, .. } = &body
            && RecordStamp::of(&self.donors[donor].area) == *expected
        {
            self.fence(donor, connection);
        }
        let reply = self.perform(connection, &body);
        if self.network.connections[connection].is_donor_open && self.network.connections[connection].is_client_open {
            let at_us = self.network.up(connection, &mut self.random);
            let event = MirrorEvent::Replied { donor, request, reply };
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

    fn perform(&mut self, connection: ConnectionId, body: &DonorRequest) -> DonorReply {
        let donor = self.network.connections[connection].donor;
        let connections = &self.network.connections;
        let reply = self.donors[donor].execute(connection, body, |other| connections[other].is_donor_open);
        let is_done = reply == DonorReply::Done;
        if is_done && is_change(body) {
            if !self.network.connections[connection].is_client_open {
                self.coverage.met(Scenario::LateWrite);
            }
            if let Some((offset, bytes)) = range(body) {
                self.memory_changed(donor, offset, bytes);
            }
        }
        if is_done && matches!(body, DonorRequest::SwapMetadata { .. }) {
            self.records_changed();
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
                self.coverage.met(Scenario::RestartBetween);
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
                MirrorAction::Restore { donor } => self.restored(client, donor),
                MirrorAction::Complete { id, result } => self.complete(client, id, result),
                MirrorAction::Attached => self.attached(client),
                MirrorAction::Refused(refusal) => self.refused(client, refusal),
                MirrorAction::Superseded => {
                    self.coverage.met(Scenario::Superseded);
                    self.close(client);
                }
                MirrorAction::Detached => {
                    self.close(client);
                    if self.stage == RamRunStage::Reread {
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
            _ if now_us >= self.faults.ends_us => self.stage = RamRunStage::Done,
            RamRunStage::Work if self.writes >= WRITES && self.faults.are_over(now_us) => {
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
                    self.check_copies();
                    // The next client does not know the checksums, so it could not detect wrong copies.
                    self.heal_lies();
                    (self.stage, self.settled) = (RamRunStage::Reread, self.current);
                    self.step(self.current, MirrorEvent::Detach);
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

    fn state_of(&self, client: ClientId) -> String {
        let machine = &self.clients[client].machine;
        let links: Vec<_> = (0..self.donors.len()).filter_map(|donor| machine.link_state(donor)).collect();
        format!("{:?}, {:?}, {links:?}, view {:?}", machine.phase(), machine.standing(), machine.view().number())
    }

    /// Returns for each donor whether a client has left it.
    pub fn left_by(&self, client: ClientId) -> Vec<bool> {
        let standing = self.clients[client].machine.standing().iter();
        standing
            .map(|standing| matches!(standing, DonorStanding::Out | DonorStanding::Leaving | DonorStanding::Rebuilding))
            .collect()
    }
}
