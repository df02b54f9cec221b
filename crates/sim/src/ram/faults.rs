//! Faults: their times and targets.
//!
//! Owns: the choice of faults by the seed. Promises: all faults together never exceed what the policy survives, unless
//! the run is marked as lossy first. A donor loses its memory only while every other donor has all data.

use nectary_ram::device::owner::DeviceMachine as _;
use nectary_ram::group::{DonorStanding, LinkState, MachineEvent};

use super::client::TIMES;
use super::fault_plan::{FillingFault, RamFaultKind};
use super::network::{ClientId, MILLISECOND, RamNetworkEvent};
use super::world::{RamRunStage, RamWorld, SimulatedLayout};

/// How long a run continues after more was lost than the policy survives. *Units*: microseconds.
const LOSSY_US: u64 = 1500 * MILLISECOND;
/// The number of operations that users begin on a client that is cut off while another takes over the device.
const MORE_OPERATIONS: u64 = 40;

impl<L: SimulatedLayout> RamWorld<L> {
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
        let number = self.random.below(100);
        self.tell(|| format!("fault {number} of client {client} and donor {donor}, {any_us} us"));
        let (_, kind) = L::FAULTS.iter().find(|(below, _)| number < *below)?;
        match kind {
            RamFaultKind::Cut => self.network.cut(client, donor, now_us + any_us),
            RamFaultKind::Break => {
                self.break_connection(client, donor);
                if self.random.chance(50) {
                    self.network.cut(client, donor, now_us + short_us);
                }
            }
            RamFaultKind::PauseDonor => self.donors[donor].paused_until_us = now_us + any_us,
            RamFaultKind::SlowDonor => self.donors[donor].slow_until_us = now_us + any_us,
            RamFaultKind::LoseMemory => {
                if !self.may_lose_memory() {
                    return None;
                }
                let down_us = short_us * self.random.below(2) + 100;
                self.lose_memory(donor, down_us);
                self.hunt_later();
                if self.random.chance(L::KILL_AFTER_LOSS_PERCENT) {
                    self.kill(client);
                }
            }
            RamFaultKind::Kill if is_attached => {
                if self.random.chance(L::KILL_AGAIN_PERCENT) {
                    self.faults.kill_at = Some(L::draw_kill(&mut self.random));
                    self.faults.kills_left = self.random.below(3);
                }
                self.kill(client);
            }
            RamFaultKind::PauseClient => {
                self.clients[client].paused_until_us = now_us + any_us;
                if self.random.chance(60) {
                    self.cut_all(client, now_us + any_us);
                    self.network.plan(now_us + any_us, RamNetworkEvent::PauseEnds { client });
                }
            }
            RamFaultKind::TakeOver if is_attached => self.take_over(donor, long_us),
            RamFaultKind::CutAll => self.cut_all(client, now_us + any_us),
            RamFaultKind::CutOthers => {
                self.cut_others(client, donor, now_us + TIMES.lease_us + any_us);
                return Some(TIMES.lease_us + any_us);
            }
            RamFaultKind::Damage => {
                if !L::damage(self) {
                    return None;
                }
            }
            RamFaultKind::LeaveAndKill if is_attached => {
                self.network.cut(client, donor, now_us + 2 * long_us);
                self.network.cut(self.clients.len(), donor, now_us + 2 * long_us);
                let kill_us = now_us + TIMES.leave_us + short_us;
                self.network.plan(kill_us, RamNetworkEvent::Kill { client });
                self.hunt_later();
                return Some(2 * long_us);
            }
            RamFaultKind::CutInRecovery if is_attached => {
                self.faults.cut_in_recovery = Some((donor, long_us));
                self.kill(client);
                return Some(long_us);
            }
            RamFaultKind::Outage => {
                let outage_us = TIMES.patience_us + short_us;
                self.cut_all(client, now_us + outage_us);
                return Some(outage_us);
            }
            RamFaultKind::Kill | RamFaultKind::TakeOver | RamFaultKind::LeaveAndKill | RamFaultKind::CutInRecovery => {
                return None;
            }
        }
        Some(any_us)
    }

    fn cut_all(&mut self, client: ClientId, until_us: u64) {
        (0..self.donors.len()).for_each(|donor| self.network.cut(client, donor, until_us));
    }

    fn cut_others(&mut self, client: ClientId, donor: usize, until_us: u64) {
        let others = (0..self.donors.len()).filter(|other| *other != donor);
        others.for_each(|other| self.network.cut(client, other, until_us));
    }

    fn hunt_later(&mut self) {
        if self.faults.hunt.is_none() && self.random.chance(50) {
            self.faults.hunt = Some(if self.faults.may_lose { FillingFault::SecondLoss } else { FillingFault::Kill });
        }
    }

    /// Makes the fault happen that waits for the filling of a donor, if a donor is being filled.
    pub fn hunt(&mut self, client: ClientId) {
        let Some(hunt) = self.faults.hunt.filter(|_| self.stage == RamRunStage::Work) else { return };
        let standing = self.clients[client].machine.group().standing();
        let others: Vec<usize> =
            (0..standing.len()).filter(|donor| standing[*donor] == DonorStanding::Trusted).collect();
        if !standing.contains(&DonorStanding::Rebuilding) || others.is_empty() || !self.random.chance(10) {
            return;
        }
        self.faults.hunt = None;
        match hunt {
            FillingFault::Kill => self.network.plan(self.now_us(), RamNetworkEvent::Kill { client }),
            FillingFault::SecondLoss => {
                self.coverage.met("second loss while a donor is filled", 1);
                if !self.layout.knows_losses() {
                    (self.is_lossy, self.lost_client) = (true, Some(client));
                    self.faults.ends_us = self.now_us() + LOSSY_US;
                }
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
            self.step(client, MachineEvent::Disconnected { donor });
            let at_us = self.now_us() + MILLISECOND;
            self.network.plan(at_us, RamNetworkEvent::Connect { client, donor });
        }
    }

    /// Whether the current client is the only one, serves its users, and trusts every donor.
    pub fn is_whole(&self) -> bool {
        let client = &self.clients[self.current];
        let is_alone = self.clients.iter().filter(|client| client.is_alive).count() == 1;
        client.is_alive && client.machine.is_open() && client.is_whole() && is_alone
    }

    /// Whether any one donor may lose its memory: all its data are also on other donors, and the client knows that.
    fn may_lose_memory(&self) -> bool {
        let (client, now_us) = (&self.clients[self.current], self.now_us());
        let is_well = |at: usize| {
            let model = &self.donors[at];
            client.machine.group().link_state(at) == Some(LinkState::Claimed)
                && model.paused_until_us <= now_us
                && model.slow_until_us <= now_us
                && self.network.cut_until(self.current, at).is_none()
                && L::is_believed(self, at)
        };
        self.is_whole() && (0..self.donors.len()).all(is_well) && L::is_told(self)
    }

    fn lose_memory(&mut self, donor: usize, down_us: u64) {
        self.tell(|| format!("donor {donor} loses its memory"));
        L::before_loss(self, donor);
        L::heal(self);
        let (incarnation, until_us) = (self.random.bits(), self.now_us() + down_us);
        self.donors[donor].restart(incarnation, until_us);
        for connection in self.network.served(donor) {
            self.network.end(connection, &mut self.random);
        }
        L::records_changed(self, "after the loss of a donor");
    }

    /// Makes another client take over the device while the old client lives: it runs, is paused, or is cut off from
    /// some donors.
    fn take_over(&mut self, donor: usize, long_us: u64) {
        L::heal(self);
        let (old, new, now_us) = (self.current, self.clients.len(), self.now_us());
        match self.random.below(4) {
            0 => self.clients[old].paused_until_us = now_us + long_us,
            1 => {}
            _ => {
                // The old client reaches only one donor, the new client all others.
                let until_us = now_us + TIMES.lease_us + long_us;
                self.network.cut(new, donor, until_us);
                self.cut_others(old, donor, until_us);
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
