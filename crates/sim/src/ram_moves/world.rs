//! A run: hosts, clients, their users, one procedure, and one fault in it.
//!
//! Owns: the order of events, and the stages of a run. Promises: the same seed repeats a run exactly. Leaves to others:
//! what a client's owner does (`client`), the fault (`faults`), attaching (`life`).
//!
//! *Circle*: this file imports `client` and `faults`, and they import it: [`RamMovesWorld`] has fields of their types, and both
//! add methods to it or change it.

use nectary_ram::format::{RecordGeometry, RecordStamp};
use nectary_ram::group::{DonorRequest, MachineEvent, MachineIntent, UserRequest};
use nectary_ram::placement::RedundancyPolicy;

use super::client::{LOOK_EVERY_US, MoveClientModel, MoveUserOperation};
use super::device::{data, donor_bytes, draw};
use super::faults::RamMovesFaults;
use super::network::{HostNetwork, LendingHost, MILLISECOND, MoveNetworkEvent, RequestPurpose};
use super::values::MovedBlocks;
use super::{RUNS_PER_SCENARIO, SCENARIOS};
use crate::ram::blocks::BLOCK_BYTES;
use crate::ram::coverage::RamCoverage;
use crate::ram::donor::DonorModel;
use crate::random::SimulationRandom;

/// A longer run counts as hanging. *Units*: microseconds of virtual time.
const TIME_MAX_US: u64 = 180_000 * MILLISECOND;
/// The operations that users have in progress.
const THREADS: u64 = 3;
/// How long a leaving donor waits for its clients.
const GRACE_US: u64 = 15_000 * MILLISECOND;
/// After the last fault, this long may pass until everything works.
const SETTLED_US: u64 = 9_000 * MILLISECOND;

/// What is done to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveProcedure {
    Replace,
    Drain,
    Sparing,
    Growth,
    TakeOver,
}

/// The stage of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveRunStage {
    /// Users work before the procedure begins.
    Before,
    /// The procedure runs, and the fault happens.
    Procedure,
    /// No more faults; every request must succeed.
    Final,
    /// Another client reads everything.
    Reread,
    Done,
}

/// A run.
pub struct RamMovesWorld {
    pub random: SimulationRandom,
    pub policy: RedundancyPolicy,
    pub network: HostNetwork,
    pub clients: Vec<MoveClientModel>,
    /// The client that has the device, or is acquiring it.
    pub current: usize,
    /// The hosts in the order of the SPEC: donors, then spares, then others.
    pub names: Vec<usize>,
    pub geometry: RecordGeometry,
    /// The geometry with which it may grow.
    pub grown: RecordGeometry,
    pub stage: MoveRunStage,
    pub procedure: MoveProcedure,
    /// The other donor of a replacement, until it has begun.
    pub other: Option<usize>,
    pub wants_growth: bool,
    pub is_created: bool,
    pub values: MovedBlocks,
    pub faults: RamMovesFaults,
    pub coverage: RamCoverage,
    /// When the next stage begins at the earliest.
    pub until_us: u64,
    pub operations: u64,
    pub failed: u64,
    pub final_left: u64,
    numbers: u64,
    pub broken: Option<String>,
    pub story: Option<Vec<String>>,
    pub trace: u64,
}

impl RamMovesWorld {
    pub fn new(seed: u64, policy: RedundancyPolicy) -> RamMovesWorld {
        let mut random = SimulationRandom::new(seed);
        let (geometry, grown) = draw(&mut random, policy, seed);
        let bytes = donor_bytes(&geometry).max(donor_bytes(&grown));
        let procedures = [
            MoveProcedure::Replace,
            MoveProcedure::Drain,
            MoveProcedure::Sparing,
            MoveProcedure::Growth,
            MoveProcedure::TakeOver,
        ];
        let procedure = match random.below(12) {
            0..4 => MoveProcedure::Replace,
            4..7 => MoveProcedure::Drain,
            7..9 => MoveProcedure::Sparing,
            9 => MoveProcedure::Growth,
            at => procedures[(at - 7) as usize + if at == 11 { 0 } else { 1 }],
        };
        let members = usize::from(geometry.members);
        let spares = match procedure {
            MoveProcedure::Replace => random.below(3) as usize,
            _ => 1 + random.below(2) as usize,
        };
        let others = usize::from(procedure == MoveProcedure::Replace);
        let host = |random: &mut SimulationRandom| LendingHost {
            model: DonorModel::new(random.bits(), bytes, 1),
            is_up: true,
            is_leaving: false,
            paused_until_us: 0,
        };
        let hosts: Vec<LendingHost> = (0..members + spares + others).map(|_| host(&mut random)).collect();
        let names = (0..hosts.len()).collect();
        let faults = RamMovesFaults::draw(&mut random, procedure);
        let mut world = RamMovesWorld {
            policy,
            network: HostNetwork::new(hosts),
            clients: Vec::new(),
            current: 0,
            names,
            values: MovedBlocks::new(geometry.blocks()),
            geometry,
            grown,
            stage: MoveRunStage::Before,
            procedure,
            other: (others > 0).then_some(members + spares),
            wants_growth: false,
            is_created: false,
            faults,
            coverage: RamCoverage::new(SCENARIOS, &[], RUNS_PER_SCENARIO),
            until_us: 0,
            operations: 0,
            failed: 0,
            final_left: 0,
            numbers: 0,
            broken: None,
            story: None,
            trace: seed,
            random,
        };
        world.begin_client(MachineIntent::Create, world.geometry, (0..members).collect());
        world
    }

    pub fn now_us(&self) -> u64 {
        self.network.now_us
    }

    /// Runs to the end.
    pub fn run(&mut self) {
        while self.stage != MoveRunStage::Done && self.broken.is_none() {
            let Some(happening) = self.network.pop() else {
                return self.break_with("nothing happens any more".to_owned());
            };
            self.trace = (self.trace ^ self.now_us()).wrapping_mul(0x0100_0000_01b3);
            if self.now_us() > TIME_MAX_US {
                let client = &self.clients[self.current];
                let (state, stage) = (client.machine.describe(), self.stage);
                let moving = client.mover.moving().map(|moving| moving.plan().stage());
                return self.break_with(format!("stuck in {stage:?}, {state}, move {moving:?}"));
            }
            self.happen(happening);
            self.check_move();
            self.inject();
            self.advance();
        }
    }

    /// Records what happened, if a description is requested.
    pub fn tell(&mut self, what: impl FnOnce() -> String) {
        let now_us = self.network.now_us;
        if let Some(story) = &mut self.story {
            story.push(format!("{now_us} us: {}", what()));
        }
    }

    pub fn break_with(&mut self, what: String) {
        let at = self.now_us();
        self.broken.get_or_insert(format!("{what} (at {at} us, {:?})", self.procedure));
    }

    fn happen(&mut self, happening: MoveNetworkEvent) {
        match happening {
            MoveNetworkEvent::Connect { client, place, attempt } => self.connect(client, place, attempt),
            MoveNetworkEvent::Connected { connection } => match self.held_at_client(connection) {
                Some(until_us) => self.network.plan(until_us, MoveNetworkEvent::Connected { connection }),
                None => self.connected(connection),
            },
            MoveNetworkEvent::AtHost { connection, tag, body } => self.at_host(connection, tag, body),
            MoveNetworkEvent::AtClient { connection, tag, reply } => {
                let at = &self.network.connections[connection];
                if !at.is_client_open || !self.clients[at.client].is_alive {
                    return;
                }
                match self.held_at_client(connection) {
                    Some(until_us) => {
                        self.network.plan(until_us, MoveNetworkEvent::AtClient { connection, tag, reply })
                    }
                    None => self.answered(connection, tag, reply),
                }
            }
            MoveNetworkEvent::HostSeesEnd { connection } => self.network.connections[connection].is_host_open = false,
            MoveNetworkEvent::ClientSeesEnd { connection } => match self.held_at_client(connection) {
                Some(until_us) => self.network.plan(until_us, MoveNetworkEvent::ClientSeesEnd { connection }),
                None => self.client_sees_end(connection),
            },
            MoveNetworkEvent::Wake { client } => self.wake(client),
            MoveNetworkEvent::Look { client } => self.look_at_leaving(client),
            MoveNetworkEvent::MoveFails { client, number } => self.move_fails(client, number),
            MoveNetworkEvent::Submit { client } => self.submit(client),
            MoveNetworkEvent::Start { take_over, trust_remaining } => self.start(take_over, trust_remaining),
            MoveNetworkEvent::Begin => self.begin_procedure(),
            MoveNetworkEvent::Kill { client } => self.kill(client),
            MoveNetworkEvent::Return { host } => self.network.hosts[host].is_up = true,
            MoveNetworkEvent::Leaves { host } => self.leaves(host),
        }
    }

    fn held_at_client(&self, connection: usize) -> Option<u64> {
        let at = &self.network.connections[connection];
        let paused_us = self.clients[at.client].paused_until_us;
        let cut_us = self.network.cuts.get(&(at.client, at.host)).copied().unwrap_or(0);
        Some(paused_us.max(cut_us)).filter(|until_us| *until_us > self.now_us())
    }

    fn at_host(&mut self, connection: usize, tag: RequestPurpose, body: DonorRequest) {
        let at = &self.network.connections[connection];
        let (client, host) = (at.client, at.host);
        if !at.is_host_open || !self.network.hosts[host].is_up {
            return;
        }
        if let Some(until_us) = self.network.held_until(client, host) {
            return self.network.plan(until_us, MoveNetworkEvent::AtHost { connection, tag, body });
        }
        if let DonorRequest::SwapMetadata { expected, .. } = &body
            && RecordStamp::of(&self.network.hosts[host].model.area) == *expected
        {
            self.network.end_all(host, Some(connection), true, &mut self.random);
        }
        let connections = &self.network.connections;
        let reply = self.network.hosts[host].model.execute(connection, &body, |other| connections[other].is_host_open);
        if self.network.hosts[host].is_leaving && self.network.hosts[host].model.area.is_empty() {
            let at_us = self.now_us() + 50 * MILLISECOND;
            self.network.plan(at_us, MoveNetworkEvent::Leaves { host });
        }
        if self.network.connections[connection].is_client_open {
            self.network.answer(connection, MoveNetworkEvent::AtClient { connection, tag, reply }, &mut self.random);
        }
    }

    fn wake(&mut self, client: usize) {
        let (now_us, state) = (self.now_us(), &self.clients[client]);
        let Some(wake_us) = state.machine.wake_at().filter(|_| state.is_alive) else { return };
        if state.paused_until_us > now_us {
            return self.network.plan(state.paused_until_us, MoveNetworkEvent::Wake { client });
        }
        if wake_us <= now_us {
            self.step(client, MachineEvent::Time);
        }
        let next_us = self.clients[client].machine.wake_at().unwrap_or(now_us).max(now_us + 1);
        self.network.plan(next_us, MoveNetworkEvent::Wake { client });
    }

    fn look_at_leaving(&mut self, client: usize) {
        let state = &self.clients[client];
        if !state.is_alive {
            return;
        }
        let is_leaving =
            |host: &usize| self.network.is_reachable(client, *host) && self.network.hosts[*host].is_leaving;
        let leaving: Vec<bool> = state.places.iter().map(is_leaving).collect();
        if state.mover.moving().is_none() {
            self.clients[client].mover.need.leaving = leaving;
        }
        self.drive(client);
        self.network.plan(self.now_us() + LOOK_EVERY_US, MoveNetworkEvent::Look { client });
    }

    pub fn submit(&mut self, client: usize) {
        let state = &self.clients[client];
        if !state.is_alive
            || !state.is_attached
            || !matches!(self.stage, MoveRunStage::Before | MoveRunStage::Procedure)
        {
            return;
        }
        let block = self.random.below(self.values.count());
        let kind = self.random.below(100);
        if self.values.is_busy(block) && kind < 65 || state.paused_until_us > self.now_us() {
            return self.plan_submit(client);
        }
        self.numbers += 1;
        match kind {
            0..55 => self.submit_change(client, block, self.numbers),
            55..62 => self.submit_change(client, block, 0),
            62..92 => self.submit_read(client, block),
            _ => {
                let versions = self.values.acknowledged();
                self.hand_in(client, MoveUserOperation::Flush { versions }, UserRequest::Flush);
            }
        }
    }

    pub fn submit_change(&mut self, client: usize, block: u64, number: u64) {
        let is_forced = self.random.chance(20) && number != 0;
        let version = self.values.begin(block, number);
        let offset = block * BLOCK_BYTES as u64;
        let request = match number {
            0 => UserRequest::Trim { offset, bytes: BLOCK_BYTES as u64 },
            _ => UserRequest::Write { offset, data: data(number, block), force: is_forced },
        };
        self.hand_in(client, MoveUserOperation::Change { block, version, is_forced }, request);
    }

    pub fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub fn submit_read(&mut self, client: usize, block: u64) {
        let floor = self.values.floor(block);
        let request = UserRequest::Read { offset: block * BLOCK_BYTES as u64, bytes: BLOCK_BYTES as u64 };
        self.hand_in(client, MoveUserOperation::Read { block, floor }, request);
    }

    fn hand_in(&mut self, client: usize, pending: MoveUserOperation, request: UserRequest) {
        self.operations += 1;
        let state = &mut self.clients[client];
        let id = state.next_id;
        state.next_id += 1;
        state.pending.insert(id, pending);
        self.step(client, MachineEvent::Submitted { id, request });
    }

    pub fn plan_submit(&mut self, client: usize) {
        let wait_us = self.random.below(60 * MILLISECOND);
        self.network.plan(self.now_us() + wait_us, MoveNetworkEvent::Submit { client });
    }

    pub fn start_threads(&mut self, client: usize) {
        (0..THREADS).for_each(|_| self.plan_submit(client));
    }

    fn begin_procedure(&mut self) {
        let client = self.current;
        let is_ready = self.clients[client].is_attached && self.clients[client].is_alive;
        if !is_ready {
            return self.network.plan(self.now_us() + 20 * MILLISECOND, MoveNetworkEvent::Begin);
        }
        self.stage = MoveRunStage::Procedure;
        let members = self.clients[client].places.len();
        let place = self.random.below(members as u64) as usize;
        let host = self.clients[client].places[place];
        self.tell(|| format!("procedure, place {place} of host {host}"));
        match self.procedure {
            MoveProcedure::Replace => {
                self.coverage.met("replace", 1);
                if let Some(other) = self.other.take() {
                    self.replace(client, place, other);
                    self.drive(client);
                }
            }
            MoveProcedure::Drain => {
                self.coverage.met("drain, or the SIGTERM of a donor", 1);
                self.network.hosts[host].is_leaving = true;
                self.network.plan(self.now_us() + GRACE_US, MoveNetworkEvent::Leaves { host });
                self.until_us = self.until_us.max(self.now_us() + GRACE_US + SETTLED_US);
            }
            MoveProcedure::Sparing => {
                self.coverage.met("a spare for a lost donor", 1);
                self.kill_host(host, true);
            }
            MoveProcedure::Growth => {
                self.coverage.met("growth", 1);
                self.wants_growth = true;
                self.step(client, MachineEvent::Detach);
            }
            MoveProcedure::TakeOver => {
                self.coverage.met("take-over", 1);
                self.network.plan(self.now_us(), MoveNetworkEvent::Start { take_over: true, trust_remaining: false });
            }
        }
        self.until_us = self.until_us.max(self.now_us() + SETTLED_US);
    }

    /// A host that is leaving has nothing any more, or its time is over.
    fn leaves(&mut self, host: usize) {
        if self.network.hosts[host].is_up {
            self.tell(|| format!("host {host} ends"));
            self.faults.have_cost = true;
            self.network.hosts[host].model.restart(self.network.now_us, 0);
            self.network.hosts[host].is_up = false;
            self.network.end_all(host, None, true, &mut self.random);
            self.until_us = self.until_us.max(self.now_us() + SETTLED_US);
        }
    }

    /// A host loses its memory.
    pub fn kill_host(&mut self, host: usize, is_seen: bool) {
        self.tell(|| format!("host {host} is killed"));
        let incarnation = self.random.bits();
        let at = &mut self.network.hosts[host];
        at.model.restart(incarnation, 0);
        at.is_up = false;
        self.network.end_all(host, None, is_seen, &mut self.random);
        self.until_us = self.until_us.max(self.now_us() + SETTLED_US);
    }

    fn advance(&mut self) {
        let now_us = self.now_us();
        let client = &self.clients[self.current];
        let is_there = client.is_alive && client.is_attached;
        match self.stage {
            MoveRunStage::Before if !self.is_created => {}
            MoveRunStage::Procedure if self.faults.are_over() && now_us >= self.until_us && is_there => {
                if client.mover.moving().is_some() {
                    return;
                }
                self.tell(|| "no more faults: everything has to work".to_owned());
                self.stage = MoveRunStage::Final;
            }
            MoveRunStage::Final if self.final_left == 0 && client.pending.is_empty() && is_there => {
                self.final_left = self.values.count();
                for block in 0..self.values.count() {
                    let number = self.next_number();
                    self.submit_change(self.current, block, number);
                }
                let versions = self.values.acknowledged();
                self.hand_in(self.current, MoveUserOperation::Flush { versions }, UserRequest::Flush);
            }
            MoveRunStage::Final if self.final_left == self.values.count() && client.pending.is_empty() && is_there => {
                self.final_left += 1;
                (0..self.values.count()).for_each(|block| self.submit_read(self.current, block));
            }
            MoveRunStage::Final if self.final_left > self.values.count() && client.pending.is_empty() && is_there => {
                self.stage = MoveRunStage::Reread;
                let current = self.current;
                match self.random.chance(50) {
                    true => self.kill(current),
                    false => self.step(current, MachineEvent::Detach),
                }
            }
            MoveRunStage::Reread if is_there && client.pending.is_empty() && self.final_left == 0 => {
                self.stage = MoveRunStage::Done
            }
            _ => {}
        }
    }
}
