//! The lives of clients: they are started, attached, refused, and killed.
//!
//! Owns: the current client of the device, the reaction when a client cannot attach or is killed, and the confirmations
//! of its user. Promises: exactly one client is current; if it ends before the run, another is started.

use nectary_ram::device::owner::DeviceMachine as _;
use nectary_ram::group::{AttachRefusal, DonorStanding, GroupPhase, MachineIntent};
use nectary_ram::logged::RecoveryStage;

use super::client::{KillAt, RamClientModel, SimulatedMachine};
use super::donor::DonorModel;
use super::network::{ClientId, MILLISECOND, RamNetworkEvent};
use super::world::{RamRunStage, RamWorld, SimulatedLayout};

impl<L: SimulatedLayout> RamWorld<L> {
    /// Starts a client and makes it current.
    pub fn start(&mut self, intent: MachineIntent) {
        if let MachineIntent::Attach { take_over, .. } = intent {
            L::before_attach(self, take_over);
        }
        let id = self.random.bits() | 1;
        let mut client = RamClientModel::new(L::machine(self, id, intent), id, self.donors.len());
        client.kill_at = self.faults.kill_at.take();
        client.cut_in_recovery = self.faults.cut_in_recovery.take();
        self.clients.push(client);
        self.current = self.clients.len() - 1;
        for donor in 0..self.donors.len() {
            self.plan_connect(self.current, donor);
        }
        self.network.plan(self.now_us(), RamNetworkEvent::Wake { client: self.current });
    }

    pub fn attached(&mut self, client: ClientId) {
        self.clients[client].is_attached = true;
        self.killed_unattached = 0;
        let is_new = !std::mem::replace(&mut self.is_created, true);
        if is_new {
            let at_us = self.now_us() + self.random.below(200 * MILLISECOND);
            self.network.plan(at_us, RamNetworkEvent::Fault);
        }
        L::attached(self, client, is_new);
        match self.stage {
            RamRunStage::Work => {
                for _ in 0..3 + self.random.below(4) {
                    self.plan_submit(client);
                }
            }
            RamRunStage::Reread => {
                for block in 0..self.layout.blocks() {
                    self.submit_read(client, block..block + 1);
                }
            }
            RamRunStage::Settle | RamRunStage::Done => {}
        }
    }

    pub fn refused(&mut self, client: ClientId, refusal: AttachRefusal) {
        self.close(client);
        self.tell(|| format!("client {client}: refused: {refusal}"));
        if client != self.current {
            return;
        }
        self.is_lossy |= self.layout.is_gone();
        if self.is_lossy {
            self.stage = RamRunStage::Done;
            return;
        }
        let mut trust_remaining = false;
        match refusal {
            AttachRefusal::AttachedElsewhere { .. }
            | AttachRefusal::Contended
            | AttachRefusal::TooFew { .. }
            | AttachRefusal::Unreachable
            | AttachRefusal::Slow { .. } => {}
            AttachRefusal::CannotSettle { present, .. } if self.donors.len() == 2 => {
                self.coverage.met("one of two donors cannot settle", 1);
                // The user makes sure that no other client exists, and knows whether the donor that is left has all
                // data.
                let others: Vec<ClientId> = (0..self.clients.len()).filter(|other| *other != client).collect();
                others.into_iter().for_each(|other| self.close(other));
                trust_remaining = self.random.chance(50) && L::has_everything(self, present);
            }
            refusal => return self.break_with(format!("refused: {refusal}")),
        }
        let take_over = self.random.chance(60);
        let at_us = self.now_us() + 20 * MILLISECOND + self.random.below(200 * MILLISECOND);
        self.network.plan(at_us, RamNetworkEvent::Start { take_over, trust_remaining });
    }

    /// Ends a client; messages that it sent may still arrive.
    pub fn close(&mut self, client: ClientId) {
        if !std::mem::replace(&mut self.clients[client].is_alive, false) {
            return;
        }
        for donor in 0..self.donors.len() {
            if let Some(connection) = self.clients[client].connections[donor].take() {
                self.network.give_up(connection, &mut self.random);
            }
        }
        for (name, count) in L::figures(&self.clients[client].machine) {
            self.coverage.met(name, count);
        }
    }

    /// Kills a client if its kill is due in its current phase, and cuts it off from the donor that it must lose while
    /// it recovers.
    pub fn kill_if_due(&mut self, client: ClientId) {
        let now_us = self.now_us();
        let state = &mut self.clients[client];
        let (phase, recovery) = (state.machine.group().phase(), state.machine.recovery());
        if let Some((donor, cut_us)) = state.cut_in_recovery.take_if(|_| recovery.is_some()) {
            self.network.cut(client, donor, now_us + cut_us);
        }
        let is_there = |wanted: &KillAt| match wanted {
            KillAt::Group(wanted) => *wanted == phase,
            wanted => Some(*wanted) == recovery,
        };
        if let Some((_, steps)) = state.kill_at.as_mut().filter(|(wanted, _)| is_there(wanted)) {
            *steps = steps.saturating_sub(1);
            if *steps == 0 {
                state.kill_at = None;
                self.network.plan(now_us, RamNetworkEvent::Kill { client });
            }
        }
    }

    fn note_death(&mut self, client: ClientId) {
        let state = &self.clients[client];
        let (machine, id, is_attached) = (&state.machine, state.id, state.is_attached);
        let is_rebuilding = machine.group().standing().contains(&DonorStanding::Rebuilding);
        let met = match (machine.group().phase(), machine.recovery()) {
            (GroupPhase::Survey, _) => Some("client killed in survey"),
            (GroupPhase::Claim, _) => Some("client killed in claim"),
            (GroupPhase::Opening, _) => Some("client killed in opening"),
            (_, Some(KillAt::Resync)) => Some("client killed in resync"),
            (_, Some(KillAt::Recovery(RecoveryStage::Heads))) => Some("client killed in recovery: heads"),
            (_, Some(KillAt::Recovery(RecoveryStage::Headers))) => Some("client killed in recovery: headers"),
            (_, Some(KillAt::Recovery(RecoveryStage::Rows))) => Some("client killed in recovery: rows"),
            (_, Some(KillAt::Recovery(RecoveryStage::Writing))) => Some("client killed in recovery: writing"),
            _ if is_rebuilding && machine.is_open() => Some("client killed while a donor is filled"),
            _ => None,
        };
        if is_attached {
            self.left_at_crash = state.left();
        }
        if let Some(met) = met {
            self.coverage.met(met, 1);
        }
        let is_fenced = |donor: &&DonorModel| donor.record.as_ref().is_some_and(|record| record.stamp.client == id);
        let fenced = self.donors.iter().filter(is_fenced).count();
        let is_half = !is_attached && fenced > 0 && fenced < self.donors.len();
        self.coverage.met("attacher dies after fencing some donors", u64::from(is_half));
        self.killed_unattached += u64::from(!is_attached);
        self.coverage.met("client killed in recovery, twice", u64::from(self.killed_unattached == 2));
        L::note_death(self, client);
    }

    /// Kills a client immediately, and starts another.
    pub fn kill(&mut self, client: ClientId) {
        if !self.clients[client].is_alive || self.stage != RamRunStage::Work {
            return;
        }
        self.tell(|| format!("client {client} is killed"));
        L::heal(self);
        self.note_death(client);
        self.close(client);
        L::client_lost(self);
        if client != self.current {
            return;
        }
        if self.faults.kills_left > 0 && self.faults.kill_at.is_none() {
            self.faults.kills_left -= 1;
            self.faults.kill_at = Some(L::draw_kill(&mut self.random));
        }
        let at_us = self.now_us() + self.random.below(80 * MILLISECOND);
        let take_over = self.random.chance(50);
        self.network.plan(at_us, RamNetworkEvent::Start { take_over, trust_remaining: false });
    }
}
