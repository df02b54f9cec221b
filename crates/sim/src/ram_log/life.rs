//! The lives of clients: they are started, attached, refused, and killed.
//!
//! Owns: the current client of the device, and the reaction when a client cannot attach or is killed. Promises: exactly
//! one client is current; if it ends before the run, another is started.

use nectary_ram::log::{NewestData, ParityLogPhase, RecoveryStage as Recovery};
use nectary_ram::mirror::{AttachRefusal, DonorStanding, MachineIntent, MirrorPhase as Base};

use super::client::{KillAt, LogClientModel, configuration};
use super::faults::kill_at;
use super::oracle::{Memory, RecoveryOracle};
use super::world::{LogRunStage, RamLogWorld};
use crate::ram::blocks::number_of;
use crate::ram::network::{ClientId, MILLISECOND, RamNetworkEvent};

impl RamLogWorld {
    /// Starts a client and makes it current.
    pub fn start(&mut self, intent: MachineIntent) {
        let id = self.random.bits() | 1;
        let mut configuration = configuration(&self.layout, self.seed, id, intent);
        configuration.times.scrub_us = self.lies.scrub_us;
        let mut client = LogClientModel::new(configuration, self.now_us());
        client.kill_at = self.faults.kill_at.take();
        client.cut_in_recovery = self.faults.cut_in_recovery.take();
        self.clients.push(client);
        self.current = self.clients.len() - 1;
        for donor in 0..self.donors.len() {
            self.plan_connect(self.current, donor);
        }
        self.network.plan(self.now_us(), RamNetworkEvent::Wake { client: self.current });
    }

    /// Returns the number that a newly attached client found in each block; `None` if it found none.
    fn found(&self, client: ClientId) -> Vec<Option<u64>> {
        let machine = &self.clients[client].machine;
        let is_trusted = |donor: &usize| machine.standing()[*donor] == DonorStanding::Trusted;
        let donors = (0..self.donors.len()).filter(is_trusted);
        let memory: Memory<'_> = donors.map(|donor| (donor, &self.donors[donor].memory[..])).collect();
        let oracle = RecoveryOracle { shape: self.shape, areas: self.areas, memory };
        let number = |block: u32| match machine.holds(block) {
            NewestData::Memory(data) => number_of(&data, u64::from(block)),
            NewestData::Zeroes => Some(0),
            NewestData::Coming | NewestData::Lost => None,
            NewestData::Slot { donor, group } => {
                let member = self.areas.member_on(group, donor)?;
                let contents = |bytes: &[u8]| {
                    oracle.contents(bytes, group, member).filter(|(of, ..)| *of == block).and_then(|found| found.2)
                };
                let direct = oracle.slot(donor, group).and_then(contents);
                direct.or_else(|| oracle.computed(donor, group).and_then(|bytes| contents(&bytes)))
            }
        };
        (0..self.shape.blocks).map(number).collect()
    }

    pub fn attached(&mut self, client: ClientId) {
        self.clients[client].is_attached = true;
        self.killed_unattached = 0;
        if !self.is_created {
            self.is_created = true;
            let at_us = self.now_us() + self.random.below(200 * MILLISECOND);
            self.network.plan(at_us, RamNetworkEvent::Fault);
        } else if !self.is_lossy {
            self.values.crash();
            let found = self.found(client);
            if let Err(broken) = self.values.attached(client, &found, self.lies.is_kept) {
                self.break_with(broken);
            }
        }
        self.check_recoveries("after attaching");
        match self.stage {
            LogRunStage::Work => {
                for _ in 0..3 + self.random.below(4) {
                    self.plan_submit(client);
                }
            }
            LogRunStage::Reread => {
                for block in 0..self.shape.blocks {
                    self.submit_read(client, block..block + 1);
                }
            }
            LogRunStage::Settle | LogRunStage::Done => {}
        }
    }

    pub fn refused(&mut self, client: ClientId, refusal: AttachRefusal) {
        self.close(client);
        self.tell(|| format!("client {client}: refused: {refusal}"));
        if client != self.current {
            return;
        }
        if self.is_lossy {
            self.stage = LogRunStage::Done;
            return;
        }
        let is_possible = matches!(
            &refusal,
            AttachRefusal::AttachedElsewhere { .. }
                | AttachRefusal::Contended
                | AttachRefusal::TooFew { .. }
                | AttachRefusal::Unreachable
                | AttachRefusal::Slow { .. }
        );
        if !is_possible {
            return self.break_with(format!("refused: {refusal}"));
        }
        let take_over = self.random.chance(60);
        let at_us = self.now_us() + 20 * MILLISECOND + self.random.below(200 * MILLISECOND);
        let start = RamNetworkEvent::Start { take_over, trust_remaining: false };
        self.network.plan(at_us, start);
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
        let machine = &self.clients[client].machine;
        let (figures, base) = (machine.figures(), machine.base_figures());
        let counts = [
            ("left donor filled again", base.rebuilt),
            ("answer held for a proof", figures.held),
            ("patience lost", figures.impatient),
            ("block read through parity", figures.reconstructed),
            ("block read through parity while the donor was late", figures.hedged),
            ("open group sealed by recovery", figures.recovered_open),
            ("lost slot of an open group computed by recovery", figures.recovered_lost),
            ("trim that one donor alone had", figures.recovered_trims),
            ("block moved by cleaning", figures.cleaned),
            ("group freed", figures.freed),
            ("group not used again before its successors were stored", figures.reuse_waits),
            ("group not used again while it was read", figures.pinned),
            ("donor left during recovery", figures.recoveries_repeated),
            ("all sealed groups compared by the scrub", machine.scrub_progress().passes),
            ("damage repaired by the scrub", machine.scrub_progress().repaired),
        ];
        counts.iter().for_each(|(name, count)| self.coverage.met(name, *count));
    }

    /// Kills a client if its kill is due in its current phase, and cuts it off from the donor that it must lose while
    /// it recovers.
    pub fn kill_if_due(&mut self, client: ClientId) {
        let now_us = self.now_us();
        let state = &mut self.clients[client];
        if state.machine.recovery_stage().is_some()
            && let Some((donor, cut_us)) = state.cut_in_recovery.take()
        {
            self.network.cut(client, donor, now_us + cut_us);
        }
        let state = &mut self.clients[client];
        let (base, recovery) = (state.machine.base_phase(), state.machine.recovery_stage());
        if let Some((wanted, steps)) = &mut state.kill_at {
            let is_there = match wanted {
                KillAt::Base(phase) => *phase == base,
                KillAt::Recovery(stage) => Some(*stage) == recovery,
            };
            if is_there {
                *steps = steps.saturating_sub(1);
                if *steps == 0 {
                    state.kill_at = None;
                    self.network.plan(self.now_us(), RamNetworkEvent::Kill { client });
                }
            }
        }
    }

    fn note_death(&mut self, client: ClientId) {
        let state = &self.clients[client];
        let (machine, id) = (&state.machine, state.id);
        let is_rebuilding = machine.standing().contains(&DonorStanding::Rebuilding);
        let is_attached = state.is_attached;
        let met = match (machine.base_phase(), machine.recovery_stage()) {
            (Base::Survey, _) => Some("client killed in survey"),
            (Base::Claim, _) => Some("client killed in claim"),
            (Base::Opening, _) => Some("client killed in opening"),
            (_, Some(Recovery::Heads)) => Some("client killed in recovery: heads"),
            (_, Some(Recovery::Headers)) => Some("client killed in recovery: headers"),
            (_, Some(Recovery::Rows)) => Some("client killed in recovery: rows"),
            (_, Some(Recovery::Writing)) => Some("client killed in recovery: writing"),
            _ if is_rebuilding && machine.phase() == ParityLogPhase::Open => {
                Some("client killed while a donor is filled")
            }
            _ => None,
        };
        let standing = machine.standing().iter();
        let left =
            standing.map(|at| matches!(at, DonorStanding::Out | DonorStanding::Leaving | DonorStanding::Rebuilding));
        if is_attached {
            self.left_at_crash = left.collect();
            // Whether a freed group is open again, and some of its slots still contain blocks of the former group.
            let is_over = (0..self.shape.groups).any(|group| machine.is_opened_again(group));
            self.coverage.met("open group over a freed one at a crash", u64::from(is_over));
        }
        self.coverage.met(met.unwrap_or("group freed"), u64::from(met.is_some()));
        let is_fenced = |donor: &&crate::ram::donor::DonorModel| {
            donor.record.as_ref().is_some_and(|record| record.stamp.client == id)
        };
        let fenced = self.donors.iter().filter(is_fenced).count();
        let is_half = !is_attached && fenced > 0 && fenced < self.donors.len();
        self.coverage.met("attacher dies after fencing some donors", u64::from(is_half));
        self.killed_unattached += u64::from(!is_attached);
        self.coverage.met("client killed in recovery, twice", u64::from(self.killed_unattached == 2));
        if is_attached {
            let unflushed = self.values.has_unflushed();
            self.coverage.met("client lost with acknowledged data that was not flushed", u64::from(unflushed));
            self.coverage.met("client lost after flushed zeroes", u64::from(self.values.has_flushed_zeroes()));
        }
    }

    /// Kills a client immediately, and starts another.
    pub fn kill(&mut self, client: ClientId) {
        if !self.clients[client].is_alive || self.stage != LogRunStage::Work {
            return;
        }
        self.tell(|| format!("client {client} is killed"));
        self.heal_lie();
        self.note_death(client);
        self.close(client);
        self.check_recoveries("after the loss of a client");
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
