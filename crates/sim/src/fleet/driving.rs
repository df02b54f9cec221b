//! The driver of a node's machine: events go in, and what comes out is begun.
//!
//! Owns: the order of the real driver: the gate is set before an action is begun. The store's part is at the end:
//! purges are valid one after another, each before it is durable, and then the mark.

use std::collections::BTreeMap;
use std::time::Duration;

use nectary_fleet::machine::{FleetAction, FleetEvent, FleetMachine};
use nectary_host::fleet::{AppliedMark, FleetPurge, FleetState, LoggedPurge};

use super::bugs::{FleetBug, is_planted};
use super::etcd_model::EtcdRequest;
use super::facts::{URLS, number_of};
use super::node::{AnswerAction, NodeProcess, StorePurgeBatch};
use super::world::{FleetRunStage, FleetWorld, FleetWorldEvent, MILLISECOND, SECOND};

impl FleetWorld {
    /// Starts the process of a node.
    pub fn start(&mut self, at: usize) {
        let (run, node) = (self.number(), &self.nodes[at]);
        if node.process.is_some() {
            return;
        }
        let (rules, mark) = (node.rules, node.store.mark);
        let own = NodeProcess::own_node(&node.name, run, rules);
        let machine = FleetMachine::new(self.settings.rules.clone(), own, mark);
        self.tell(|| format!("{at} starts with {mark:?} and rules {rules}"));
        self.nodes[at].process = Some(NodeProcess {
            run,
            gate: machine.gate(),
            gate_rules: rules,
            machine,
            table: rules,
            created: 0,
            pending: BTreeMap::new(),
            watch: None,
            batches: BTreeMap::new(),
            begun: mark.revision,
            asks: BTreeMap::new(),
            accepted_s: BTreeMap::new(),
            tickets: 0,
            kept_us: 0,
            is_leaving: false,
        });
        self.plan(0, FleetWorldEvent::Tick { node: at, run });
    }

    /// The process of a node is no more.
    pub fn end_process(&mut self, at: usize, run: u64) {
        let Some(process) = self.nodes[at].of(run) else { return };
        if !process.batches.is_empty() {
            self.coverage.met("process killed while a batch was made");
        }
        self.nodes[at].process = None;
        let node = &mut self.nodes[at];
        node.store.crash(&mut self.random);
        node.suspended_until_us = 0;
        node.member_us = 0;
        self.tell(|| format!("{at} ends"));
    }

    /// Gives the machine of a node an event, and begins what it wants.
    pub fn feed(&mut self, at: usize, event: FleetEvent) {
        let clock = self.clock(at);
        self.note_event(at, &event);
        let Some(process) = self.nodes[at].process.as_mut() else { return };
        let is_told = self.story.is_some() && event != FleetEvent::Tick;
        let text = if is_told { format!("{at} <- {event:?}") } else { String::new() };
        let (was_caught_up, had_all) = (process.machine.is_caught_up(), process.machine.has_applied_all());
        let actions = process.machine.on_event(clock, event);
        process.gate = process.machine.gate();
        process.gate_rules = process.machine.rules();
        let state = process.machine.state(clock);
        if is_planted(FleetBug::ServesBehind) && state == FleetState::CatchingUp {
            process.gate.member_until = clock + Duration::from_secs(1);
        }
        // An answer may be too late for a member, but etcd has kept the lease of one that has applied everything. If only its
        // rules differ, it may serve when it has those of before again.
        if had_all || process.machine.has_applied_all() {
            let kept_us = process.kept_us;
            self.nodes[at].member_us = kept_us;
        }
        if state == FleetState::Member && !was_caught_up {
            self.ask_soon(at);
        }
        if is_told {
            self.tell(|| text);
        }
        for action in actions {
            if self.story.is_some() {
                self.tell(|| format!("{at} -> {action:?}"));
            }
            self.begin(at, action);
        }
    }

    /// Counts what an event says about the node.
    fn note_event(&mut self, at: usize, event: &FleetEvent) {
        if matches!(event, FleetEvent::Joined { .. }) && self.stage == FleetRunStage::Work && self.random.chance(20) {
            let after_us = self.between(0, 5 * MILLISECOND);
            self.plan(after_us, FleetWorldEvent::Purge { node: at });
        }
        let FleetEvent::LogRead(snapshot) = event else { return };
        let mark = self.nodes[at].store.mark;
        let situation = match mark {
            AppliedMark { fleet: 0, .. } => return,
            mark if mark.fleet != snapshot.identity => "node of another fleet purges everything",
            mark if mark.revision < snapshot.floor => "node below the floor purges everything",
            _ if !snapshot.purges.is_empty() => "node came back and missed purges",
            _ => return,
        };
        self.coverage.met(situation);
    }

    fn begin(&mut self, at: usize, action: FleetAction) {
        let (clock, identity) = (self.clock(at), u128::from(self.number()));
        let Some(process) = self.nodes[at].process.as_mut() else { return };
        let (run, created) = (process.run, process.created);
        match action {
            FleetAction::GrantLease => self.send(at, EtcdRequest::Grant, AnswerAction::Grant { asked: clock }),
            FleetAction::KeepLease { lease } if is_planted(FleetBug::KeptAlone) => {
                let goal = AnswerAction::Keep { lease, asked: clock, has_key: true, held_us: self.now_us };
                self.send(at, EtcdRequest::Keep(lease), goal);
            }
            FleetAction::KeepLease { lease } => {
                let name = self.nodes[at].name.clone();
                self.send(at, EtcdRequest::Holds { created, lease, name }, AnswerAction::Holds { lease, asked: clock });
            }
            FleetAction::RevokeLease { lease } => self.send(at, EtcdRequest::Revoke(lease), AnswerAction::Nothing),
            FleetAction::Join { lease, node, mark } => {
                self.send(at, EtcdRequest::Identity(identity), AnswerAction::Identity { lease, node, mark });
            }
            FleetAction::Rewrite { lease, node } => {
                self.send(at, EtcdRequest::Rewrite { created, lease, node }, AnswerAction::Nothing);
            }
            FleetAction::Read { above } => self.send(at, EtcdRequest::Read, AnswerAction::Read { above }),
            FleetAction::Watch { from } => self.begin_watch(at, from),
            FleetAction::Apply { batch, purges, mark } => {
                self.check_batch(at, &purges, mark);
                let has = self.nodes[at].store.mark;
                if (mark.fleet, mark.revision) == (has.fleet, has.revision) && !purges.is_empty() {
                    self.coverage.met("node with purges by other rules purges everything");
                }
                if is_planted(FleetBug::ReportedBeforeApplied) {
                    self.plan(0, FleetWorldEvent::Event { node: at, run, event: FleetEvent::BatchApplied { batch } });
                }
                self.begin_batch(at, Some(batch), purges, Some(mark));
            }
            FleetAction::ApplyHere { purge } => {
                self.begin_batch(at, None, vec![LoggedPurge { revision: 0, purge }], None);
            }
            FleetAction::Append { ticket, purge } => {
                let now_s = self.now_us / SECOND;
                let accepted_s = *process.accepted_s.entry(ticket).or_insert(now_s);
                let key = (self.nodes[at].name.clone(), run, ticket);
                self.send(at, EtcdRequest::Append { created, key, purge, accepted_s }, AnswerAction::Append { ticket });
            }
            FleetAction::Publish { lease, revision } => {
                let name = self.nodes[at].name.clone();
                self.send(
                    at,
                    EtcdRequest::Publish { created, lease, name, revision },
                    AnswerAction::Publish { lease, revision },
                );
            }
            FleetAction::ReviewLog { may_trim } => self.send(at, EtcdRequest::List(0), AnswerAction::List { may_trim }),
            FleetAction::Answer { ticket, result } => self.on_answer(at, (at, run, ticket), result),
            FleetAction::Note(_) => {}
        }
    }

    fn begin_batch(&mut self, at: usize, batch: Option<u64>, purges: Vec<LoggedPurge>, mark: Option<AppliedMark>) {
        let number = self.number();
        if let (Some(mark), true) = (mark, is_planted(FleetBug::MarkBeforePurges)) {
            self.nodes[at].store.durable_mark = mark;
        }
        let Some(process) = self.nodes[at].process.as_mut() else { return };
        let run = process.run;
        process.begun = mark.map_or(process.begun, |mark| mark.revision);
        process.batches.insert(number, StorePurgeBatch { batch, purges, mark, done: 0, begun: None });
        self.plan(MILLISECOND / 10, FleetWorldEvent::Storing { node: at, run, number });
    }

    /// The store goes on with purges: the last one that it began is durable, and the next one becomes valid.
    pub fn store_more(&mut self, at: usize, run: u64, number: u64) {
        let fails = self.now_us < self.nodes[at].store_fails_until_us;
        let is_slow = self.now_us < self.nodes[at].store_slow_until_us;
        let (now_us, versions) = (self.now_us, self.versions);
        let after_us = match is_slow {
            true => self.between(0, self.settings.lease_us * 2),
            false => self.between(MILLISECOND / 5, 10 * MILLISECOND),
        };
        let node = &mut self.nodes[at];
        let Some(process) = node.process.as_mut().filter(|process| process.run == run) else { return };
        let Some(work) = process.batches.get_mut(&number) else { return };
        if let Some(begun) = work.begun.take() {
            if fails {
                let batch = work.batch;
                process.batches.remove(&number);
                if let Some(batch) = batch {
                    self.coverage.met("batch failed and made again");
                    self.feed(at, FleetEvent::BatchFailed { batch, why: "it is full".to_owned() });
                }
                return;
            }
            node.store.flush_purge(begun);
            work.done += 1;
        }
        if let Some(logged) = work.purges.get(work.done) {
            let (purge, fact) = (logged.purge.clone(), number_of(&logged.purge));
            let urls = fact.map_or(u32::MAX, |fact| self.facts[fact].urls);
            // What this store purged for itself, as also a purge that waits for etcd, may come back from an owner.
            let logged = fact.filter(|_| work.mark.is_some());
            let purged = logged.map_or([0; URLS], |fact| self.facts[fact].versions);
            let versions = if self.settings.are_shared { purged } else { versions };
            work.begun = Some(node.store.begin_purge(purge, (fact, urls, work.mark.is_some()), (now_us, versions)));
            return self.plan(after_us, FleetWorldEvent::Storing { node: at, run, number });
        }
        let is_marked = work.mark.is_none_or(|mark| node.store.durable_mark == mark && node.store.mark == mark);
        if let (Some(mark), false) = (work.mark, is_marked) {
            // The mark is durable a moment after it is valid.
            if node.store.mark == mark {
                node.store.durable_mark = mark;
            }
            node.store.set_mark(mark, now_us);
            return self.plan(after_us / 2, FleetWorldEvent::Storing { node: at, run, number });
        }
        let (batch, mark) = (work.batch, work.mark);
        process.batches.remove(&number);
        mark.iter().for_each(|_| node.store.end_batch(now_us));
        mark.into_iter().for_each(|mark| self.check_mark(at, mark));
        if let (Some(batch), false) = (batch, is_planted(FleetBug::ReportedBeforeApplied)) {
            self.feed(at, FleetEvent::BatchApplied { batch });
        }
    }

    /// Whether a purge is of everything, and made by the machine.
    pub fn is_everything(purge: &FleetPurge) -> bool {
        purge.is_everything()
    }
}
