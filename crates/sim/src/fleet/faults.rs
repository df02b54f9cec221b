//! Faults: of nodes, of their network, clocks, stores and rules, and of etcd.
//!
//! Owns: their kinds, times and targets. etcd is replaced only after it was away for longer than a lease, and the
//! identity is removed when an older one comes back, as `docs/fleet.md` says.

use nectary_fleet::machine::FleetEvent;
use nectary_host::fleet::RulesHash;

use super::bugs::{FleetBug, is_planted};
use super::etcd_model::EtcdModel;
use super::store_model::StoreModel;
use super::world::{FleetRunStage, FleetWorld, FleetWorldEvent, MILLISECOND, SECOND};

impl FleetWorld {
    /// Makes the next fault happen.
    pub fn fault(&mut self) {
        if self.stage != FleetRunStage::Work {
            return;
        }
        let (lease_us, fault_us) = (self.settings.lease_us, self.settings.fault_us);
        let short_us = self.between(50 * MILLISECOND, 2 * SECOND);
        let long_us = self.between(lease_us / 2, lease_us * 3);
        let any_us = if self.random.chance(50) { short_us } else { long_us };
        let at = self.random.below(self.nodes.len() as u64) as usize;
        let until_us = self.now_us + any_us;
        let kind = self.random.below(100);
        self.faults += 1;
        self.tell(|| format!("fault {kind} at node {at}, {} ms", any_us / 1000));
        match kind {
            0..12 => {
                self.nodes[at].cut_until_us = until_us;
                self.trouble(at, until_us);
            }
            12..24 => self.kill(at, any_us),
            24..28 => self.leave(at, any_us),
            28..36 => self.suspend(at, any_us),
            36..42 => self.etcd_away(any_us),
            42..46 => self.replace_etcd(),
            46..47 => self.remove_identity(),
            47..52 => self.etcd.backup = Some(self.etcd.model.clone()),
            52..60 => self.compact(),
            60..66 => {
                self.nodes[at].slow_until_us = until_us;
                self.trouble(at, until_us);
            }
            66..72 => {
                self.nodes[at].lossy_until_us = until_us;
                self.trouble(at, until_us);
            }
            72..77 => {
                self.nodes[at].deaf_until_us = until_us;
                self.trouble(at, until_us);
            }
            77..79 => self.mislead(at, any_us),
            79..81 => self.nodes[at].store_slow_until_us = until_us,
            81..85 => {
                let times = 1 + self.random.below(3);
                self.nodes[at].store_fails_until_us = self.now_us + any_us * times;
            }
            85..92 => self.roll_out(),
            92..95 => self.change_and_return(at, any_us),
            95..97 => self.replace_store(at, any_us),
            _ => {
                // All are cut off, as if etcd had lost its majority for them.
                for node in 0..self.nodes.len() {
                    self.nodes[node].cut_until_us = until_us;
                    self.trouble(node, until_us);
                }
            }
        }
        let after_us = self.between(fault_us / 4, fault_us);
        self.plan(after_us, FleetWorldEvent::Fault);
    }

    /// The member of etcd of a node leads no longer, and does not know it. Who leads now has made all leases longer.
    fn mislead(&mut self, at: usize, time_us: u64) {
        if self.is_reachable(at) {
            self.etcd.model.restart(self.now_us + self.settings.lease_us);
            self.nodes[at].misled_until_us = self.now_us + time_us;
            self.trouble(at, self.now_us + time_us);
        }
    }

    fn trouble(&mut self, at: usize, until_us: u64) {
        let node = &mut self.nodes[at];
        node.troubled_until_us = node.troubled_until_us.max(until_us);
    }

    fn kill(&mut self, at: usize, down_us: u64) {
        let Some(process) = &self.nodes[at].process else { return };
        self.coverage.met("process killed");
        self.end_process(at, process.run);
        if self.random.chance(15) {
            self.nodes[at].rules = self.newest_rules;
            self.coverage.met("rules changed while a node was down");
        }
        self.plan(down_us, FleetWorldEvent::Start { node: at });
    }

    fn leave(&mut self, at: usize, down_us: u64) {
        let Some(process) = self.nodes[at].process.as_mut() else { return };
        let run = process.run;
        process.is_leaving = true;
        self.coverage.met("process left");
        self.plan(0, FleetWorldEvent::Event { node: at, run, event: FleetEvent::Leave });
        let end_us = self.between(0, SECOND);
        self.plan(end_us, FleetWorldEvent::End { node: at, run });
        self.plan(end_us + down_us, FleetWorldEvent::Start { node: at });
    }

    /// Suspends a node for some time.
    pub fn suspend(&mut self, at: usize, time_us: u64) {
        let node = &mut self.nodes[at];
        if node.process.is_none() || node.suspended_until_us > self.now_us {
            return;
        }
        node.suspended_until_us = self.now_us + time_us;
        if is_planted(FleetBug::ClockStandsStill) {
            node.clock.0 = node.clock.0.saturating_sub(time_us);
        }
        self.trouble(at, self.now_us + time_us);
        if time_us > self.settings.lease_us {
            self.coverage.met("node suspended for longer than its lease");
        }
    }

    fn etcd_away(&mut self, time_us: u64) {
        self.etcd.down_until_us = self.etcd.down_until_us.max(self.now_us + time_us);
        if time_us > self.settings.lease_us {
            self.coverage.met("etcd away for longer than a lease");
        }
        self.plan(time_us, FleetWorldEvent::EtcdBack);
    }

    fn replace_etcd(&mut self) {
        let time_us = self.settings.lease_us * 6 / 5 + self.random.below(self.settings.lease_us);
        let (successor, situation) = match self.etcd.backup.take() {
            Some(mut backup) => {
                if !is_planted(FleetBug::OneIdentity) {
                    backup.remove_identity();
                }
                (backup, "etcd replaced by an older one")
            }
            None => (EtcdModel::default(), "etcd replaced by an empty one"),
        };
        self.etcd.successor = Some(successor);
        self.coverage.met(situation);
        self.etcd_away(time_us);
    }

    /// An operator makes every node purge everything.
    fn remove_identity(&mut self) {
        if self.now_us < self.etcd.down_until_us || is_planted(FleetBug::OneIdentity) {
            return;
        }
        self.coverage.met("identity removed");
        self.etcd.model.remove_identity();
        self.wake_watches();
    }

    /// All nodes get new rules, one after another; perhaps not all of them.
    fn roll_out(&mut self) {
        self.newest_rules = RulesHash(self.newest_rules.0 + 1);
        self.coverage.met("rules rolled out");
        let most_us = if self.random.chance(50) { SECOND / 2 } else { 4 * SECOND };
        for node in 0..self.nodes.len() {
            if self.random.chance(90) {
                let after_us = self.random.below(most_us);
                self.plan(after_us, FleetWorldEvent::Reload { node, rules: self.newest_rules });
            }
        }
    }

    fn change_and_return(&mut self, at: usize, time_us: u64) {
        let before = self.nodes[at].rules;
        self.newest_rules = RulesHash(self.newest_rules.0 + 1);
        self.coverage.met("rules changed at one node and back");
        self.plan(0, FleetWorldEvent::Reload { node: at, rules: self.newest_rules });
        self.plan(time_us, FleetWorldEvent::Reload { node: at, rules: before });
    }

    /// A node gets other rules: its fleet learns of them first, and its workers a moment later.
    pub fn reload(&mut self, at: usize, rules: RulesHash) {
        self.nodes[at].rules = rules;
        let Some(run) = self.nodes[at].process.as_ref().map(|process| process.run) else { return };
        self.plan(0, FleetWorldEvent::Event { node: at, run, event: FleetEvent::RulesChanged(rules) });
        let after_us = self.between(0, 5 * MILLISECOND);
        self.plan(after_us, FleetWorldEvent::Table { node: at, run, rules });
    }

    fn replace_store(&mut self, at: usize, down_us: u64) {
        let Some(process) = &self.nodes[at].process else { return };
        self.end_process(at, process.run);
        self.nodes[at].store = StoreModel::new(self.now_us);
        self.coverage.met("store replaced by an empty one");
        self.plan(down_us, FleetWorldEvent::Start { node: at });
    }

    /// Ends all faults.
    pub fn heal(&mut self) {
        let now_us = self.now_us;
        if self.etcd.successor.is_none() {
            self.etcd.down_until_us = self.etcd.down_until_us.min(now_us);
            self.etcd_back();
        }
        // A node that has the newest rules is not told again.
        self.newest_rules = RulesHash(self.newest_rules.0 + self.random.below(2) as u128);
        for node in &mut self.nodes {
            for until_us in [
                &mut node.suspended_until_us,
                &mut node.cut_until_us,
                &mut node.slow_until_us,
                &mut node.lossy_until_us,
                &mut node.deaf_until_us,
                &mut node.misled_until_us,
                &mut node.store_slow_until_us,
                &mut node.store_fails_until_us,
            ] {
                *until_us = (*until_us).min(now_us);
            }
        }
        // After the reloads that are planned already.
        for node in 0..self.nodes.len() {
            let after_us = self.settings.heal_us;
            self.plan(after_us, FleetWorldEvent::Reload { node, rules: self.newest_rules });
            self.plan(after_us, FleetWorldEvent::Start { node });
        }
        self.tell(|| "nothing fails any more".to_owned());
    }
}
