//! Faults: their kinds, times and targets.
//!
//! Owns: the choice of faults by the seed. Promises: all faults together never exceed what the policy survives, unless
//! the run is marked as lossy first. A donor loses its memory only while every other donor has all data.

use nectary_ram::log::{ParityLogPhase, RecoveryStage as Recovery};
use nectary_ram::mirror::{DonorStanding, LinkState, MirrorEvent, MirrorPhase as Base};

use super::FAULTS;
use super::client::KillAt;
use super::world::{LogRunStage, RamLogWorld};
use crate::ram::client::TIMES;
use crate::ram::network::{ClientId, MILLISECOND, RamNetworkEvent};
use crate::random::SimulationRandom;

/// How long a run continues after more was lost than the policy survives. *Units*: microseconds.
const LOSSY_US: u64 = 1500 * MILLISECOND;
/// How many operations users begin on a client that is cut off while another takes over the device.
const MORE_OPERATIONS: u64 = 40;

/// A fault that waits for a donor to be filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DonorFillFault {
    /// Another donor loses its memory.
    SecondLoss,
    /// The client is killed.
    Kill,
}

/// The faults of a run.
#[derive(Debug)]
pub struct RamLogFaults {
    wanted: u64,
    /// The number of faults so far.
    pub done: u64,
    /// The time at which a lossy run ends.
    pub ends_us: u64,
    /// The time at which the last fault ends.
    until_us: u64,
    hunt: Option<DonorFillFault>,
    may_lose: bool,
    /// Whether the donors become slow as soon as the client is leaving one of them.
    slows_on_leave: bool,
    /// The phase and step in which the next client is killed.
    pub kill_at: Option<(KillAt, u64)>,
    /// A donor from which the next client is cut off while it recovers, and the duration of the cut in microseconds.
    pub cut_in_recovery: Option<(usize, u64)>,
    pub kills_left: u64,
}

impl RamLogFaults {
    pub fn new(random: &mut SimulationRandom) -> RamLogFaults {
        RamLogFaults {
            wanted: FAULTS + random.below(5),
            done: 0,
            ends_us: u64::MAX,
            until_us: 0,
            hunt: None,
            may_lose: random.chance(16),
            slows_on_leave: random.chance(30),
            kill_at: None,
            cut_in_recovery: None,
            kills_left: 0,
        }
    }

    /// Whether the last fault has ended.
    pub fn are_over(&self, now_us: u64) -> bool {
        self.done >= self.wanted && now_us >= self.until_us
    }
}

/// Draws the phase in which the next client is killed, and the number of steps before that.
pub fn kill_at(random: &mut SimulationRandom) -> (KillAt, u64) {
    match random.below(8) {
        0 => (KillAt::Base(Base::Survey), 1 + random.below(6)),
        1 => (KillAt::Base(Base::Claim), 1 + random.below(4)),
        2 => (KillAt::Base(Base::Opening), 1 + random.below(3)),
        3 => (KillAt::Recovery(Recovery::Heads), 1 + random.below(3)),
        4 => (KillAt::Recovery(Recovery::Headers), 1 + random.below(20)),
        5 => (KillAt::Recovery(Recovery::Rows), 1 + random.below(3)),
        _ => (KillAt::Recovery(Recovery::Writing), 1 + random.below(8)),
    }
}

impl RamLogWorld {
    /// Makes the next fault happen.
    pub fn fault(&mut self) {
        if self.stage != LogRunStage::Work || self.faults.done >= self.faults.wanted {
            return;
        }
        let now_us = self.now_us();
        let next_us = match self.inject() {
            Some(duration_us) => {
                self.faults.done += 1;
                self.faults.until_us = self.faults.until_us.max(now_us + duration_us);
                let from_us = if self.random.chance(35) { now_us } else { self.faults.until_us };
                from_us + self.random.below(250 * MILLISECOND)
            }
            None => now_us + self.random.below(20 * MILLISECOND),
        };
        self.network.plan(next_us, RamNetworkEvent::Fault);
    }

    /// Makes a fault happen; returns its duration, or `None` if it cannot happen now.
    fn inject(&mut self) -> Option<u64> {
        let donor = self.random.below(self.donors.len() as u64) as usize;
        let client = self.current;
        let (now_us, is_attached) = (self.now_us(), self.clients[client].is_attached && self.clients[client].is_alive);
        let short_us = (10 + self.random.below(140)) * MILLISECOND;
        let long_us = (250 + self.random.below(600)) * MILLISECOND;
        let any_us = if self.random.chance(60) { short_us } else { long_us };
        let kind = self.random.below(100);
        self.tell(|| format!("fault {kind} of client {client} and donor {donor}, {any_us} us"));
        match kind {
            0..10 => self.network.cut(client, donor, now_us + any_us),
            10..18 => {
                self.break_connection(client, donor);
                if self.random.chance(50) {
                    self.network.cut(client, donor, now_us + short_us);
                }
            }
            18..25 => self.donors[donor].paused_until_us = now_us + any_us,
            25..31 => self.donors[donor].slow_until_us = now_us + any_us,
            31..44 => {
                if !self.may_lose_memory() {
                    return None;
                }
                let down_us = short_us * self.random.below(2) + 100;
                self.lose_memory(donor, down_us);
                self.hunt_later();
                if self.random.chance(35) {
                    self.kill(client);
                }
            }
            44..64 if is_attached => {
                if self.random.chance(70) {
                    self.faults.kill_at = Some(kill_at(&mut self.random));
                    self.faults.kills_left = self.random.below(3);
                }
                self.kill(client);
            }
            64..69 => {
                self.clients[client].paused_until_us = now_us + any_us;
                if self.random.chance(60) {
                    (0..self.donors.len()).for_each(|donor| self.network.cut(client, donor, now_us + any_us));
                    self.network.plan(now_us + any_us, RamNetworkEvent::PauseEnds { client });
                }
            }
            69..76 if is_attached => self.take_over(donor, long_us),
            76..80 => (0..self.donors.len()).for_each(|donor| self.network.cut(client, donor, now_us + any_us)),
            80..84 => {
                let until_us = now_us + TIMES.lease_us + any_us;
                let others = (0..self.donors.len()).filter(|other| *other != donor);
                others.for_each(|other| self.network.cut(client, other, until_us));
                return Some(TIMES.lease_us + any_us);
            }
            84..92 if is_attached => {
                // The client leaves the donor and is killed, and the donor returns to the next client.
                self.network.cut(client, donor, now_us + 2 * long_us);
                self.network.cut(self.clients.len(), donor, now_us + 2 * long_us);
                let kill_us = now_us + TIMES.leave_us + short_us;
                self.network.plan(kill_us, RamNetworkEvent::Kill { client });
                self.hunt_later();
                return Some(2 * long_us);
            }
            92..98 if is_attached => {
                // The next client is cut off from a donor while it recovers.
                self.faults.cut_in_recovery = Some((donor, long_us));
                self.kill(client);
                return Some(long_us);
            }
            98..100 => {
                let outage_us = TIMES.patience_us + short_us;
                (0..self.donors.len()).for_each(|donor| self.network.cut(client, donor, now_us + outage_us));
                return Some(outage_us);
            }
            _ => return None,
        }
        Some(any_us)
    }

    /// Makes the donors slow while the client is leaving one of them. So their answers about the new view may arrive
    /// later than their answers to newer requests.
    pub fn slow_on_leave(&mut self, client: ClientId) {
        let standing = self.clients[client].machine.standing();
        let is_due = self.faults.slows_on_leave && self.stage == LogRunStage::Work;
        if !is_due || !standing.contains(&DonorStanding::Leaving) {
            return;
        }
        self.faults.slows_on_leave = false;
        self.coverage.met("donors slow while another is left", 1);
        let until_us = self.now_us() + 200 * MILLISECOND;
        self.donors.iter_mut().for_each(|donor| donor.slow_until_us = until_us);
    }

    fn hunt_later(&mut self) {
        if self.faults.hunt.is_none() && self.random.chance(50) {
            self.faults.hunt =
                Some(if self.faults.may_lose { DonorFillFault::SecondLoss } else { DonorFillFault::Kill });
        }
    }

    /// Makes the fault happen that waits for the filling of a donor, if a donor is being filled.
    pub fn hunt(&mut self, client: ClientId) {
        let Some(hunt) = self.faults.hunt.filter(|_| self.stage == LogRunStage::Work) else { return };
        let standing = self.clients[client].machine.standing();
        let others: Vec<usize> =
            (0..standing.len()).filter(|donor| standing[*donor] == DonorStanding::Trusted).collect();
        if !standing.contains(&DonorStanding::Rebuilding) || others.is_empty() || !self.random.chance(10) {
            return;
        }
        self.faults.hunt = None;
        match hunt {
            DonorFillFault::Kill => self.network.plan(self.now_us(), RamNetworkEvent::Kill { client }),
            DonorFillFault::SecondLoss => {
                self.coverage.met("second loss while a donor is filled", 1);
                self.is_lossy = true;
                self.lost_client = Some(client);
                self.faults.ends_us = self.now_us() + LOSSY_US;
                let other = others[self.random.below(others.len() as u64) as usize];
                self.lose_memory(other, MILLISECOND);
            }
        }
    }

    pub fn break_connection(&mut self, client: ClientId, donor: usize) {
        if !self.clients[client].is_alive {
            return;
        }
        if let Some(connection) = self.clients[client].connections[donor].take() {
            self.network.give_up(connection, &mut self.random);
            self.step(client, MirrorEvent::Disconnected { donor });
            let at_us = self.now_us() + MILLISECOND;
            self.network.plan(at_us, RamNetworkEvent::Connect { client, donor });
        }
    }

    /// Whether any one donor may lose its memory: all its data are also on other donors, and the client knows that.
    fn may_lose_memory(&self) -> bool {
        let (client, now_us) = (&self.clients[self.current], self.now_us());
        let is_whole = client.machine.standing().iter().all(|standing| *standing == DonorStanding::Trusted);
        let is_alone = self.clients.iter().filter(|client| client.is_alive).count() == 1;
        let is_well = |at: usize| {
            let model = &self.donors[at];
            client.machine.link_state(at) == Some(LinkState::Claimed)
                && model.paused_until_us <= now_us
                && model.slow_until_us <= now_us
                && self.network.cut_until(self.current, at).is_none()
                && client.machine.view().members[at].incarnation == model.incarnation
        };
        let is_open = client.is_alive && client.machine.phase() == ParityLogPhase::Open;
        is_open && is_whole && is_alone && (0..self.donors.len()).all(is_well) && self.is_told()
    }

    fn lose_memory(&mut self, donor: usize, down_us: u64) {
        self.tell(|| format!("donor {donor} loses its memory"));
        self.lie_at_loss(donor);
        self.heal_lie();
        let (incarnation, until_us) = (self.random.bits(), self.now_us() + down_us);
        self.donors[donor].restart(incarnation, until_us);
        for connection in self.network.served(donor) {
            self.network.end(connection, &mut self.random);
        }
        self.check_recoveries("after the loss of a donor");
    }

    /// Makes another client take over the device while the old client lives: it runs, is paused, or is cut off from
    /// some donors.
    fn take_over(&mut self, donor: usize, long_us: u64) {
        self.heal_lie();
        let (old, new, now_us) = (self.current, self.clients.len(), self.now_us());
        match self.random.below(4) {
            0 => self.clients[old].paused_until_us = now_us + long_us,
            1 => {}
            _ => {
                // The old client reaches only one donor, the new client all others.
                let until_us = now_us + TIMES.lease_us + long_us;
                self.network.cut(new, donor, until_us);
                let others = (0..self.donors.len()).filter(|other| *other != donor);
                others.for_each(|other| self.network.cut(old, other, until_us));
                // The old client's users continue, though most of their requests wait.
                for more in 0..MORE_OPERATIONS {
                    let at_us = now_us + (more + 1) * TIMES.lease_us / MORE_OPERATIONS;
                    self.network.plan(at_us, RamNetworkEvent::Submit { client: old });
                }
            }
        }
        self.network.plan(now_us, RamNetworkEvent::Start { take_over: true, trust_remaining: false });
    }
}
