//! Watches: changes in order, late, in pieces, silent, broken off, or lost to compaction.

use nectary_fleet::machine::{FleetEvent, LogChange, WatchEnd};

use super::bugs::{FleetBug, is_planted};
use super::node::EtcdWatch;
use super::world::{FleetWorld, FleetWorldEvent, MILLISECOND, SECOND};

impl FleetWorld {
    /// Begins a watch at a node; one under way ends.
    pub fn begin_watch(&mut self, at: usize, from: u64) {
        let (number, epoch) = (self.number(), self.etcd.epoch);
        let after_us = self.latency(at);
        let Some(process) = self.nodes[at].process.as_mut() else { return };
        let run = process.run;
        process.watch = Some(EtcdWatch { number, next: from, epoch, is_planned: true, has_begun: false });
        self.plan(after_us, FleetWorldEvent::Watch { node: at, run, number });
        let interval_us = self.settings.lease_us / 4;
        self.plan(after_us + interval_us, FleetWorldEvent::Progress { node: at, run, number });
    }

    /// Lets the watches bring what has changed.
    pub fn wake_watches(&mut self) {
        for node in 0..self.nodes.len() {
            let after_us = self.latency(node);
            let Some(process) = self.nodes[node].process.as_mut() else { continue };
            let run = process.run;
            if let Some(watch) = process.watch.as_mut().filter(|watch| !watch.is_planned) {
                watch.is_planned = true;
                let number = watch.number;
                self.plan(after_us, FleetWorldEvent::Watch { node, run, number });
            }
        }
    }

    /// The watch with this number, if it is the node's.
    fn watch_of(&mut self, at: usize, run: u64, number: u64) -> Option<&mut EtcdWatch> {
        self.nodes[at].of(run)?.watch.as_mut().filter(|watch| watch.number == number)
    }

    /// A message of a watch comes.
    pub fn on_watch(&mut self, at: usize, run: u64, number: u64) {
        let is_reachable = self.is_reachable(at);
        let silent_us = self.nodes[at].deaf_until_us.max(self.nodes[at].misled_until_us);
        let back_us = self.nodes[at].cut_until_us.max(self.etcd.down_until_us).max(silent_us);
        let (epoch, now_us) = (self.etcd.epoch, self.now_us);
        let Some(watch) = self.watch_of(at, run, number) else { return };
        if back_us > now_us {
            if !is_reachable && (!watch.has_begun || self.random.chance(30)) {
                return self.end_watch(at, WatchEnd::Broken);
            }
            let after_us = back_us - now_us + self.latency(at);
            return self.plan(after_us, FleetWorldEvent::Watch { node: at, run, number });
        }
        if watch.epoch != epoch && watch.has_begun {
            return self.end_watch(at, WatchEnd::Broken);
        }
        let (from, has_begun) = (watch.next, watch.has_begun);
        let (revision, created) = (self.etcd.model.revision, self.etcd.model.created());
        let is_same = self.nodes[at].of(run).is_some_and(|process| process.created == created);
        if !has_begun && (!is_same || revision + 1 < from) {
            // Another etcd, or an older one, which would wait for that revision.
            return self.end_watch(at, WatchEnd::OtherEtcd);
        }
        if from <= self.etcd.model.compacted {
            if is_planted(FleetBug::CompactionIgnored) {
                let compacted = self.etcd.model.compacted;
                self.watch_of(at, run, number).into_iter().for_each(|watch| watch.next = compacted + 1);
                return self.plan(MILLISECOND, FleetWorldEvent::Watch { node: at, run, number });
            }
            self.coverage.met("watch compacted");
            return self.end_watch(at, WatchEnd::Compacted);
        }
        let part = if self.random.chance(20) { 1 + self.random.below(3) } else { u64::MAX };
        let through = revision.min(from.saturating_add(part - 1)).max(from - 1);
        let mut changes = self.etcd.model.changes(from, through).unwrap_or_default();
        if is_planted(FleetBug::WatchSkips) && self.random.chance(20) {
            changes.retain(|change| !matches!(change, LogChange::Purge(_)));
        }
        let Some(watch) = self.watch_of(at, run, number) else { return };
        let is_first = !std::mem::replace(&mut watch.has_begun, true);
        (watch.epoch, watch.next, watch.is_planned) = (epoch, through + 1, through < revision);
        if through < revision {
            let after_us = self.latency(at);
            self.plan(after_us, FleetWorldEvent::Watch { node: at, run, number });
        }
        if is_first || !changes.is_empty() {
            self.feed(at, FleetEvent::Changed { changes, through });
        }
    }

    fn end_watch(&mut self, at: usize, end: WatchEnd) {
        if let Some(process) = self.nodes[at].process.as_mut() {
            process.watch = None;
        }
        self.coverage.met("watch broken and resumed");
        self.feed(at, FleetEvent::WatchEnded { end, why: "it has ended".to_owned() });
    }

    /// etcd reports how far a watch is, if it can.
    pub fn on_progress(&mut self, at: usize, run: u64, number: u64) {
        let epoch = self.etcd.epoch;
        let is_heard = self.is_reachable(at) && self.now_us >= self.nodes[at].deaf_until_us;
        let Some(watch) = self.watch_of(at, run, number) else { return };
        let (is_known, through) = (watch.epoch == epoch && watch.has_begun, watch.next - 1);
        let interval_us = self.settings.lease_us / 4;
        self.plan(interval_us, FleetWorldEvent::Progress { node: at, run, number });
        if is_heard && is_known {
            self.feed(at, FleetEvent::Changed { changes: Vec::new(), through });
        }
    }

    /// Removes the history of etcd, but perhaps for the last revisions.
    pub fn compact(&mut self) {
        let kept = self.random.below(4);
        let model = &mut self.etcd.model;
        model.compacted = model.compacted.max(model.revision.saturating_sub(kept));
    }

    /// etcd is back, perhaps as another one.
    pub fn etcd_back(&mut self) {
        if self.now_us < self.etcd.down_until_us {
            return;
        }
        if let Some(successor) = self.etcd.successor.take() {
            self.etcd.model = successor;
            self.etcd.epoch += 1;
            self.etcd.backup = None;
        }
        let ends_us = self.now_us + self.settings.lease_us + self.random.below(SECOND);
        self.etcd.model.restart(ends_us);
        self.wake_watches();
    }
}
