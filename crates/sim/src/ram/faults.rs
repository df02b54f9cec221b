//! Faults: their kinds, times and targets.
//!
//! Owns: the choice of faults by the seed. Promises: all faults together never exceed what the policy survives, unless
//! the run is marked as lossy first. A donor loses its memory only while every other donor has all data.

use nectary_ram::mirror::{DonorStanding, LinkState, MirrorEvent, MirrorPhase};

use super::coverage::Scenario;
use super::network::{ClientId, MILLISECOND, RamNetworkEvent};
use super::world::{RamRunStage, RamWorld};
use super::{FAULTS, client::TIMES};
use crate::random::SimulationRandom;

/// How long a run continues after more was lost than the policy survives. *Units*: microseconds.
const LOSSY_US: u64 = 1500 * MILLISECOND;

/// The number of operations that users begin on a client that is cut off while another takes over the device.
const MORE_OPERATIONS: u64 = 40;

/// A fault that waits for a rebuild.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RebuildFault {
    /// Another donor loses its memory.
    SecondLoss,
    /// The client is killed.
    Kill,
}

/// The faults of a run.
#[derive(Debug)]
pub struct RamFaults {
    wanted: u64,
    /// The number of faults so far.
    pub done: u64,
    /// The time at which a lossy run ends.
    pub ends_us: u64,
    /// The time at which the last fault ends.
    until_us: u64,
    hunt: Option<RebuildFault>,
    may_lose: bool,
    /// The phase and step in which the next client is killed.
    pub kill_at: Option<(MirrorPhase, u64)>,
    pub kills_left: u64,
}

impl RamFaults {
    pub fn new(random: &mut SimulationRandom) -> RamFaults {
        RamFaults {
            wanted: FAULTS + random.below(5),
            done: 0,
            ends_us: u64::MAX,
            until_us: 0,
            hunt: None,
            may_lose: random.chance(8),
            kill_at: None,
            kills_left: 0,
        }
    }

    /// Whether the last fault has ended.
    pub fn are_over(&self, now_us: u64) -> bool {
        self.done >= self.wanted && now_us >= self.until_us
    }
}

/// Draws the phase in which the next client is killed, and the number of steps before that.
pub fn kill_at(random: &mut SimulationRandom) -> (MirrorPhase, u64) {
    match random.below(4) {
        0 => (MirrorPhase::Survey, 1 + random.below(6)),
        1 => (MirrorPhase::Claim, 1 + random.below(4)),
        2 => (MirrorPhase::Opening, 1 + random.below(3)),
        _ => (MirrorPhase::Resync, 1 + random.below(3)),
    }
}

impl RamWorld {
    /// Makes the next fault happen.
    pub fn fault(&mut self) {
        if self.stage != RamRunStage::Work || self.faults.done >= self.faults.wanted {
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
            10..20 => {
                self.break_connection(client, donor);
                if self.random.chance(50) {
                    self.network.cut(client, donor, now_us + short_us);
                }
            }
            20..27 => self.donors[donor].paused_until_us = now_us + any_us,
            27..33 => self.donors[donor].slow_until_us = now_us + any_us,
            33..46 => {
                if !self.may_lose_memory() {
                    return None;
                }
                let down_us = short_us * self.random.below(2) + 100;
                self.lose_memory(donor, down_us);
                self.hunt_later();
                if self.random.chance(25) {
                    self.kill(client);
                }
            }
            46..58 if is_attached => {
                if self.random.chance(60) {
                    self.faults.kill_at = Some(kill_at(&mut self.random));
                    self.faults.kills_left = self.random.below(3);
                }
                self.kill(client);
            }
            58..65 => {
                self.clients[client].paused_until_us = now_us + any_us;
                if self.random.chance(60) {
                    (0..self.donors.len()).for_each(|donor| self.network.cut(client, donor, now_us + any_us));
                    self.network.plan(now_us + any_us, RamNetworkEvent::PauseEnds { client });
                }
            }
            65..73 if is_attached => self.take_over(donor, long_us),
            73..78 => (0..self.donors.len()).for_each(|donor| self.network.cut(client, donor, now_us + any_us)),
            78..83 => {
                let until_us = now_us + TIMES.lease_us + any_us;
                let others = (0..self.donors.len()).filter(|other| *other != donor);
                others.for_each(|other| self.network.cut(client, other, until_us));
                return Some(TIMES.lease_us + any_us);
            }
            83..91 => {
                if !self.lie() {
                    return None;
                }
            }
            91..98 if is_attached => {
                // The client leaves the donor and is killed, and the donor returns to the next client.
                self.network.cut(client, donor, now_us + 2 * long_us);
                self.network.cut(self.clients.len(), donor, now_us + 2 * long_us);
                let kill_us = now_us + TIMES.leave_us + short_us;
                self.network.plan(kill_us, RamNetworkEvent::Kill { client });
                self.hunt_later();
                return Some(2 * long_us);
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

    fn hunt_later(&mut self) {
        if self.faults.hunt.is_none() && self.random.chance(50) {
            self.faults.hunt = Some(if self.faults.may_lose { RebuildFault::SecondLoss } else { RebuildFault::Kill });
        }
    }

    /// Makes the fault happen that waits for a rebuild, if a rebuild is in progress.
    pub fn hunt(&mut self, client: ClientId) {
        let Some(hunt) = self.faults.hunt.filter(|_| self.stage == RamRunStage::Work) else { return };
        let standing = self.clients[client].machine.standing();
        let others: Vec<usize> =
            (0..standing.len()).filter(|donor| standing[*donor] == DonorStanding::Trusted).collect();
        if !standing.contains(&DonorStanding::Rebuilding) || others.is_empty() || !self.random.chance(10) {
            return;
        }
        self.faults.hunt = None;
        match hunt {
            RebuildFault::Kill => self.network.plan(self.now_us(), RamNetworkEvent::Kill { client }),
            RebuildFault::SecondLoss => {
                self.coverage.met(Scenario::SecondLoss);
                self.is_lossy = true;
                self.faults.ends_us = self.now_us() + LOSSY_US;
                let other = others[self.random.below(others.len() as u64) as usize];
                self.lose_memory(other, MILLISECOND);
            }
        }
    }

    fn break_connection(&mut self, client: ClientId, donor: usize) {
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
                && self.believed[at]
                && self.network.cut_until(self.current, at).is_none()
        };
        let is_open = client.is_alive && client.machine.phase() == MirrorPhase::Open;
        is_open && is_whole && is_alone && (0..self.donors.len()).all(is_well) && self.is_told
    }

    fn lose_memory(&mut self, donor: usize, down_us: u64) {
        self.tell(|| format!("donor {donor} loses its memory"));
        self.heal_lies();
        let (incarnation, until_us) = (self.random.bits(), self.now_us() + down_us);
        self.donors[donor].restart(incarnation, until_us);
        for connection in self.network.served(donor) {
            self.network.end(connection, &mut self.random);
        }
        self.records_changed();
    }

    /// Makes another client take over the device while the old client lives: it runs, is paused, or is cut off from
    /// some donors.
    fn take_over(&mut self, donor: usize, long_us: u64) {
        self.heal_lies();
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

    /// Makes a donor change bytes of a random block or parity; returns false if the client does not know their
    /// checksum, or if this fault is not allowed now.
    pub fn lie(&mut self) -> bool {
        let client = &self.clients[self.current];
        let is_whole = client.machine.standing().iter().all(|standing| *standing == DonorStanding::Trusted);
        let is_alone = self.clients.iter().filter(|client| client.is_alive).count() == 1;
        let is_open = client.is_alive && client.machine.phase() == MirrorPhase::Open;
        let is_everywhere = self.is_told && self.believed.iter().all(|believed| *believed);
        let place = match self.geometry.is_parity() {
            true => self.draw_member(),
            false => self.draw_copy(),
        };
        let Some(place) = place.filter(|_| is_open && is_whole && is_everywhere && is_alone) else { return false };
        self.spoil(place);
        true
    }

    /// Draws a copy of a block that the client knows.
    fn draw_copy(&mut self) -> Option<(usize, u64)> {
        let block = self.random.below(self.geometry.blocks());
        let place = self.places(block)[self.random.below(2) as usize];
        let is_known = self.clients[self.current].machine.knows_checksum(block) && !self.blocks.is_pending(block);
        (is_known && !self.has_lie(block)).then_some(place)
    }

    /// Draws a member of a column that the client knows.
    fn draw_member(&mut self) -> Option<(usize, u64)> {
        let column = self.random.below(self.rows.columns());
        let member = self.random.below(self.donors.len() as u64) as usize;
        let mut blocks = (0..self.rows.parity()).map(|member| self.rows.block(column, member));
        let is_pending = |block: u64| block < self.geometry.blocks() && self.blocks.is_pending(block);
        let is_known = self.clients[self.current].machine.knows_member(column, member);
        let is_free = !blocks.any(is_pending) && !self.has_lie(self.rows.block(column, 0));
        (is_known && is_free).then(|| self.member_place(column, member))
    }
}
