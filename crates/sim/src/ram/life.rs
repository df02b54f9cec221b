//! The lives of clients: they are started, attached, refused, and killed.
//!
//! Owns: the current client of the device, the reaction when a client cannot attach or is killed, and the confirmations
//! of its user. Promises: exactly one client is current; if it ends before the run, another is started.

use nectary_ram::mirror::{AttachRefusal, DonorStanding, MachineIntent, MachineTimes, MirrorPhase};

use super::client::{RamClientModel, TIMES};
use super::coverage::Scenario;
use super::faults::kill_at;
use super::network::{ClientId, MILLISECOND, RamNetworkEvent};
use super::world::{RamRunStage, RamWorld};

impl RamWorld {
    /// Starts a client and makes it current.
    pub fn start(&mut self, intent: MachineIntent) {
        let id = self.random.bits() | 1;
        let times = MachineTimes { scrub_us: self.scrub_us, ..TIMES };
        let mut client = RamClientModel::new(self.geometry, id, intent, times, self.now_us());
        client.kill_at = self.faults.kill_at.take();
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
        if !self.is_created {
            self.is_created = true;
            self.records_changed();
            let at_us = self.now_us() + self.random.below(200 * MILLISECOND);
            self.network.plan(at_us, RamNetworkEvent::Fault);
        }
        match self.stage {
            RamRunStage::Work => {
                for _ in 0..3 + self.random.below(4) {
                    self.plan_submit(client);
                }
            }
            RamRunStage::Reread => {
                for block in 0..self.geometry.blocks() {
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
        let is_possible = match &refusal {
            AttachRefusal::AttachedElsewhere { .. } | AttachRefusal::Contended => true,
            AttachRefusal::TooFew { .. } | AttachRefusal::Unreachable | AttachRefusal::Slow { .. } => true,
            AttachRefusal::CannotSettle { .. } => self.donors.len() == 2,
            _ => false,
        };
        if self.is_lossy {
            self.stage = RamRunStage::Done;
            return;
        }
        if !is_possible {
            return self.break_with(format!("refused: {refusal}"));
        }
        let mut trust_remaining = false;
        if let AttachRefusal::CannotSettle { present, .. } = refusal {
            self.coverage.met(Scenario::CannotSettle);
            // The user makes sure that no other client exists, and knows whether the donor that is left has all data.
            let others: Vec<ClientId> = (0..self.clients.len()).filter(|other| *other != client).collect();
            others.into_iter().for_each(|other| self.close(other));
            trust_remaining = self.random.chance(50) && self.has_everything(present);
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
        let figures = self.clients[client].machine.figures();
        let scrub = self.clients[client].machine.scrub_progress();
        let mut add = |scenario, count: u64| self.coverage.met_times(scenario, count);
        add(Scenario::Rebuilt, figures.rebuilt);
        add(Scenario::LieRepaired, figures.repaired);
        add(Scenario::Replaced, figures.replaced);
        add(Scenario::Scrubbed, scrub.passes);
        add(Scenario::ScrubRepaired, scrub.repaired);
        add(Scenario::LateReply, figures.late_replies);
        add(Scenario::LeaseWaited, figures.lease_waits);
        add(Scenario::ReadHeld, figures.held_reads);
        add(Scenario::Impatient, figures.impatient);
        add(Scenario::Resynchronised, figures.resynchronised);
        add(Scenario::Reconstructed, figures.reconstructed);
        add(Scenario::Lost, figures.lost_blocks);
        add(Scenario::ComesAndGoes, figures.taken_back.min(figures.replayed));
    }

    /// Kills a client if its kill is due in its current phase.
    pub fn kill_if_due(&mut self, client: ClientId) {
        let state = &mut self.clients[client];
        let phase = state.machine.phase();
        if let Some((wanted, steps)) = &mut state.kill_at
            && *wanted == phase
        {
            *steps = steps.saturating_sub(1);
            if *steps == 0 {
                state.kill_at = None;
                self.network.plan(self.now_us(), RamNetworkEvent::Kill { client });
            }
        }
    }

    /// Kills a client immediately, and starts another.
    pub fn kill(&mut self, client: ClientId) {
        if !self.clients[client].is_alive || self.stage != RamRunStage::Work {
            return;
        }
        self.tell(|| format!("client {client} is killed"));
        self.heal_lies();
        let state = &self.clients[client];
        let (machine, id) = (&state.machine, state.id);
        let phase = machine.phase();
        let is_fenced =
            |donor: &&super::donor::DonorModel| donor.record.as_ref().is_some_and(|record| record.stamp.client == id);
        let fenced = self.donors.iter().filter(is_fenced).count();
        let is_attached = state.is_attached;
        let is_rebuilding = machine.standing().contains(&DonorStanding::Rebuilding);
        if is_attached {
            self.left_at_crash = self.left_by(client);
        }
        match phase {
            MirrorPhase::Survey => self.coverage.met(Scenario::KilledInSurvey),
            MirrorPhase::Claim => self.coverage.met(Scenario::KilledInClaim),
            MirrorPhase::Opening => self.coverage.met(Scenario::KilledInOpening),
            MirrorPhase::Resync => self.coverage.met(Scenario::KilledInResync),
            MirrorPhase::Open if is_rebuilding => self.coverage.met(Scenario::KilledInRebuild),
            _ => {}
        }
        if !is_attached && fenced > 0 && fenced < self.donors.len() {
            self.coverage.met(Scenario::HalfFenced);
        }
        self.killed_unattached += u64::from(!is_attached);
        if self.killed_unattached == 2 {
            self.coverage.met(Scenario::KilledTwice);
        }
        if self.blocks.has_trimmed() {
            self.coverage.met(Scenario::TrimThenCrash);
        }
        self.close(client);
        if client != self.current {
            return;
        }
        if self.faults.kills_left > 0 && self.faults.kill_at.is_none() {
            self.faults.kills_left -= 1;
            self.faults.kill_at = Some(kill_at(&mut self.random));
        }
        let at_us = self.now_us() + self.random.below(80 * MILLISECOND);
        let take_over = self.random.chance(50);
        self.network.plan(at_us, RamNetworkEvent::Start { take_over, trust_remaining: false });
    }
}
