//! Requests of nodes to etcd, on a network that is slow, loses answers and delivers requests late.
//!
//! Owns: the driver's part of `nectary_fleet::etcd`: which requests an action is made of, and the event that ends it.
//! A request whose time is over may be executed nevertheless.

use std::collections::VecDeque;

use nectary_fleet::machine::{FleetEvent, LogSnapshot, LogTotals, trim_through};

use super::bugs::{FleetBug, is_planted};
use super::etcd_model::{EtcdReply, EtcdRequest, LogKey};
use super::node::AnswerAction;
use super::world::{FleetRunStage, FleetWorld, FleetWorldEvent, MILLISECOND, SECOND};

/// The shortest time that a request may take.
const CALL_TIME_MIN_US: u64 = 500 * MILLISECOND;

impl FleetWorld {
    /// The time of a message between a node and etcd.
    pub fn latency(&mut self, node: usize) -> u64 {
        let is_slow = self.now_us < self.nodes[node].slow_until_us;
        let most_us = match self.random.below(100) {
            0..40 if is_slow => self.settings.lease_us / 3,
            _ if is_slow => self.settings.lease_us / 12,
            0..4 => 300 * MILLISECOND,
            4..20 => 20 * MILLISECOND,
            _ => 2 * MILLISECOND,
        };
        self.between(MILLISECOND / 4, most_us)
    }

    /// Sends a request.
    pub fn send(&mut self, at: usize, ask: EtcdRequest, goal: AnswerAction) {
        let call = self.number();
        let Some(process) = self.nodes[at].process.as_mut() else { return };
        let run = process.run;
        process.pending.insert(call, goal);
        let time_us = (self.settings.lease_us / 4).max(CALL_TIME_MIN_US);
        if !self.is_reachable(at) && self.random.chance(50) {
            let after_us = self.between(MILLISECOND, 20 * MILLISECOND);
            return self.plan(after_us, FleetWorldEvent::Failed { node: at, run, call, is_unsent: true });
        }
        self.plan(time_us, FleetWorldEvent::Failed { node: at, run, call, is_unsent: false });
        let is_lost = self.now_us < self.nodes[at].lossy_until_us && self.random.chance(20);
        if !is_lost {
            let after_us = self.latency(at);
            self.plan(after_us, FleetWorldEvent::Execute { node: at, run, call, ask, is_late: false });
        }
    }

    /// Executes a request that has reached etcd.
    pub fn execute(&mut self, at: usize, run: u64, call: u64, ask: EtcdRequest, is_late: bool) {
        if !self.is_reachable(at) {
            let back_us = self.nodes[at].cut_until_us.max(self.etcd.down_until_us) - self.now_us;
            if self.random.chance(50) && !is_late {
                let after_us = back_us + self.latency(at);
                self.plan(after_us, FleetWorldEvent::Execute { node: at, run, call, ask, is_late: true });
            }
            return;
        }
        let is_over = self.nodes[at].of(run).is_none_or(|process| !process.pending.contains_key(&call));
        if is_over {
            self.coverage.met("request executed after its time");
        }
        if self.now_us < self.nodes[at].misled_until_us {
            self.coverage.met("request at a member of etcd that leads no longer");
            // It keeps leases alone, and nobody else knows of it.
            if matches!(ask, EtcdRequest::Keep(_)) {
                let (after_us, at_us) = (self.latency(at), self.now_us);
                self.plan(
                    after_us,
                    FleetWorldEvent::Reply { node: at, run, call, reply: EtcdReply::Done(true), at_us },
                );
            }
            return;
        }
        self.etcd.leases += 1;
        let (lease, before) = (self.etcd.leases, self.etcd.model.revision);
        let append = match &ask {
            EtcdRequest::Append { key, .. } => Some(key.clone()),
            _ => None,
        };
        let reply = self.etcd.model.execute(ask, lease, self.now_us + self.settings.lease_us);
        if self.etcd.model.revision != before {
            if let Some((name, run, ticket)) = append {
                let (now_us, of) = (self.now_us, self.nodes.iter().position(|node| node.name == name));
                let fact = self.facts.iter_mut().find(|fact| Some(fact.key) == of.map(|of| (of, run, ticket)));
                fact.into_iter().for_each(|fact| fact.logged_us = fact.logged_us.or(Some(now_us)));
            }
            self.wake_watches();
        }
        if self.now_us < self.nodes[at].lossy_until_us && self.random.chance(30) {
            return self.coverage.met("answer lost");
        }
        let (after_us, at_us) = (self.latency(at), self.now_us);
        self.plan(after_us, FleetWorldEvent::Reply { node: at, run, call, reply, at_us });
    }

    /// Takes an answer; `at_us` is when etcd has given it.
    pub fn on_reply(&mut self, at: usize, run: u64, call: u64, reply: EtcdReply, at_us: u64) {
        if self.now_us < self.nodes[at].cut_until_us {
            return;
        }
        let clock = self.clock(at);
        let Some(process) = self.nodes[at].of(run) else { return };
        let Some(goal) = process.pending.remove(&call) else { return };
        let created = process.created;
        let count_from = |asked| if is_planted(FleetBug::LeaseFromAnswer) { clock } else { asked };
        let event = match (goal, reply) {
            (AnswerAction::Grant { asked }, EtcdReply::Granted(lease)) => {
                process.kept_us = at_us;
                FleetEvent::LeaseGranted { lease, asked: count_from(asked) }
            }
            (AnswerAction::Holds { lease, asked }, EtcdReply::Done(has_key)) => {
                let goal = AnswerAction::Keep { lease, asked, has_key, held_us: at_us };
                return self.send(at, EtcdRequest::Keep(lease), goal);
            }
            (AnswerAction::Holds { .. }, _) => FleetEvent::LeaseFailed { why: "refused".to_owned() },
            (AnswerAction::Keep { lease, asked, has_key, held_us }, EtcdReply::Done(true)) => {
                process.kept_us = held_us;
                match has_key {
                    true => FleetEvent::LeaseKept { lease, asked: count_from(asked) },
                    false => FleetEvent::KeyMissing { lease, asked: count_from(asked) },
                }
            }
            (AnswerAction::Keep { lease, .. }, _) => {
                self.coverage.met("lease ended by etcd");
                FleetEvent::LeaseEnded { lease }
            }
            (AnswerAction::Identity { lease, node, mark }, EtcdReply::Identity { identity, created }) => {
                process.created = created;
                let applied = if mark.fleet == identity { mark.revision } else { 0 };
                let ask = EtcdRequest::JoinAbsent { lease, created, node: node.clone(), applied };
                return self.send(at, ask, AnswerAction::JoinAbsent { lease, node, identity, applied });
            }
            (AnswerAction::JoinAbsent { lease, node, identity, applied }, EtcdReply::Found { run, modified })
                if run == node.run =>
            {
                let ask = EtcdRequest::JoinSame { lease, created, node, applied, modified };
                return self.send(at, ask, AnswerAction::JoinSame { lease, identity });
            }
            (AnswerAction::JoinAbsent { .. }, EtcdReply::Found { .. }) => {
                self.coverage.met("name still that of an earlier process");
                FleetEvent::NameTaken { process: "another one".to_owned(), is_gone: false }
            }
            (
                AnswerAction::JoinAbsent { lease, identity, .. } | AnswerAction::JoinSame { lease, identity },
                EtcdReply::Done(true),
            ) => FleetEvent::Joined { lease, identity },
            (AnswerAction::Identity { .. } | AnswerAction::JoinAbsent { .. } | AnswerAction::JoinSame { .. }, _) => {
                FleetEvent::JoinFailed { why: "refused".to_owned() }
            }
            (AnswerAction::Read { above }, EtcdReply::Snapshot(snapshot)) => {
                return self.send(at, EtcdRequest::List(snapshot.through), AnswerAction::Entries { above, snapshot });
            }
            (AnswerAction::Entries { above, mut snapshot }, EtcdReply::Listed(Some(entries))) => {
                let above = if snapshot.identity == above.fleet { above.revision } else { 0 };
                snapshot.newest = entries.iter().map(|(entry, _)| entry.revision).max().unwrap_or(0);
                let missed = entries.into_iter().filter(|(entry, _)| entry.revision > above);
                let missed: Vec<_> = missed.map(|(_, key)| key).collect();
                let mut pages: VecDeque<_> = missed.chunks(self.settings.page_max).map(<[_]>::to_vec).collect();
                if is_planted(FleetBug::PageSkips) && pages.len() > 1 {
                    pages.pop_back();
                }
                if pages.len() > 3 && self.stage == FleetRunStage::Work && self.random.chance(6) {
                    let time_us = self.between(self.settings.lease_us, self.settings.lease_us * 2);
                    self.suspend(at, time_us);
                    self.coverage.met("node suspended while it reads the log");
                }
                return self.read_more(at, snapshot, pages);
            }
            (AnswerAction::ReadPages { mut snapshot, pages }, EtcdReply::Page(Some(page))) => {
                snapshot.purges.extend(page);
                self.coverage.met("log read in pages");
                return self.read_more(at, snapshot, pages);
            }
            (AnswerAction::Read { .. } | AnswerAction::Entries { .. } | AnswerAction::ReadPages { .. }, _) => {
                FleetEvent::ReadFailed { why: "no page".to_owned() }
            }
            (AnswerAction::Append { ticket }, EtcdReply::Appended(Some((revision, mut living)))) => {
                if is_planted(FleetBug::LivingLeftOut) && living.len() > 1 {
                    living.pop();
                }
                FleetEvent::Appended { ticket, revision, living }
            }
            (AnswerAction::Append { ticket }, _) => {
                FleetEvent::AppendFailed { ticket, is_unknown: false, why: "another fleet".to_owned() }
            }
            (AnswerAction::Publish { lease, revision }, EtcdReply::Done(true)) => {
                FleetEvent::Published { lease, revision }
            }
            // The key of this node is gone, or the fleet has another identity.
            (AnswerAction::Publish { lease, .. }, EtcdReply::Done(false)) => FleetEvent::LeaseEnded { lease },
            (AnswerAction::Publish { lease, .. }, _) => FleetEvent::PublishFailed { lease },
            (AnswerAction::List { may_trim }, EtcdReply::Listed(Some(mut entries))) => {
                entries.sort_by_key(|(entry, _)| entry.revision);
                let now_s = self.now_us / SECOND;
                let measured: Vec<_> = entries.iter().map(|(entry, _)| *entry).collect();
                let through = trim_through(&self.settings.rules, &measured, now_s).filter(|_| may_trim).unwrap_or(0);
                let gone = entries.iter().take_while(|(entry, _)| entry.revision <= through);
                let keys: Vec<_> = gone.map(|(_, key)| key.clone()).collect();
                if !keys.is_empty() {
                    return self.send(at, EtcdRequest::Floor, AnswerAction::Floor { through, keys });
                }
                let purges = entries.len() as u64;
                FleetEvent::LogReviewed(LogTotals { purges, bytes: 100 * purges })
            }
            (AnswerAction::Floor { through, keys }, EtcdReply::Floor(floor, modified)) => {
                self.coverage.met("purges removed from the log");
                let ask = EtcdRequest::Remove { created, modified, floor: floor.max(through), keys };
                return self.send(at, ask, AnswerAction::Nothing);
            }
            _ => return,
        };
        self.feed(at, event);
    }

    fn read_more(&mut self, at: usize, mut snapshot: LogSnapshot, mut pages: VecDeque<Vec<LogKey>>) {
        let Some(keys) = pages.pop_front() else {
            if !is_planted(FleetBug::ReadByKeys) {
                snapshot.purges.sort_by_key(|purge| purge.revision);
            }
            return self.feed(at, FleetEvent::LogRead(snapshot));
        };
        let ask = EtcdRequest::ReadPage { keys, at: snapshot.through };
        self.send(at, ask, AnswerAction::ReadPages { snapshot, pages });
    }

    /// Ends a request that has had no answer in time, or could not be sent.
    pub fn on_failed(&mut self, at: usize, run: u64, call: u64, is_unsent: bool) {
        let Some(process) = self.nodes[at].of(run) else { return };
        let Some(goal) = process.pending.remove(&call) else { return };
        let why = "no answer".to_owned();
        let event = match goal {
            AnswerAction::Grant { .. } | AnswerAction::Holds { .. } | AnswerAction::Keep { .. } => {
                FleetEvent::LeaseFailed { why }
            }
            AnswerAction::Identity { .. } | AnswerAction::JoinAbsent { .. } | AnswerAction::JoinSame { .. } => {
                FleetEvent::JoinFailed { why }
            }
            AnswerAction::Read { .. } | AnswerAction::Entries { .. } | AnswerAction::ReadPages { .. } => {
                FleetEvent::ReadFailed { why }
            }
            AnswerAction::Append { ticket } => FleetEvent::AppendFailed { ticket, is_unknown: !is_unsent, why },
            AnswerAction::Publish { lease, .. } => FleetEvent::PublishFailed { lease },
            AnswerAction::Nothing | AnswerAction::List { .. } | AnswerAction::Floor { .. } => return,
        };
        self.feed(at, event);
    }

    /// Ends leases whose time is over, now and then.
    pub fn end_leases(&mut self) {
        if self.now_us >= self.etcd.down_until_us {
            let before = self.etcd.model.revision;
            self.etcd.model.end_leases(self.now_us);
            if self.etcd.model.revision != before {
                self.wake_watches();
            }
        }
        let after_us = self.between(20 * MILLISECOND, 200 * MILLISECOND);
        self.plan(after_us, FleetWorldEvent::LeasesEnd);
    }
}
