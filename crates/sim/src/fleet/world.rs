//! A run: nodes, etcd and the origin, in virtual time.
//!
//! Owns: the order of events, and the stages of a run. Promises: the same seed repeats a run exactly. Leaves to
//! others: what each event does.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use nectary_fleet::machine::{FleetEvent, FleetRules};
use nectary_host::fleet::RulesHash;

use super::coverage::FleetCoverage;
use super::etcd_model::{EtcdModel, EtcdReply, EtcdRequest};
use super::facts::{PurgeFact, URLS, name_of};
use super::node::SimulatedNode;
use super::requests::{ObjectRequest, PeerRequest};
use crate::random::SimulationRandom;

/// *Units*: microseconds.
pub const MILLISECOND: u64 = 1000;
/// *Units*: microseconds.
pub const SECOND: u64 = 1_000_000;
/// How much a clock may be faster or slower. *Units*: millionths.
const DRIFT_MAX: u64 = 40_000;

/// Something that happens.
#[derive(Debug, Clone)]
pub enum FleetWorldEvent {
    Tick {
        node: usize,
        run: u64,
    },
    Event {
        node: usize,
        run: u64,
        event: FleetEvent,
    },
    Execute {
        node: usize,
        run: u64,
        call: u64,
        ask: EtcdRequest,
        is_late: bool,
    },
    Reply {
        node: usize,
        run: u64,
        call: u64,
        reply: EtcdReply,
        at_us: u64,
    },
    /// A call has failed; its time is over if it was sent.
    Failed {
        node: usize,
        run: u64,
        call: u64,
        is_unsent: bool,
    },
    Watch {
        node: usize,
        run: u64,
        number: u64,
    },
    Progress {
        node: usize,
        run: u64,
        number: u64,
    },
    LeasesEnd,
    Storing {
        node: usize,
        run: u64,
        number: u64,
    },
    FlushObjects {
        node: usize,
    },
    Request {
        node: usize,
        request: ObjectRequest,
    },
    Lookup {
        node: usize,
        run: u64,
        request: ObjectRequest,
    },
    OriginAnswers {
        node: usize,
        run: u64,
        request: ObjectRequest,
        began: u64,
    },
    Filled {
        node: usize,
        run: u64,
        request: ObjectRequest,
        began: u64,
        version: u64,
    },
    PeerAsks(PeerRequest),
    OwnerFetches {
        run: u64,
        began: u64,
        ask: PeerRequest,
    },
    PeerAnswers(PeerRequest, u64),
    Impatient(PeerRequest),
    SomeRequest,
    SomePurge,
    /// A purge at this node.
    Purge {
        node: usize,
    },
    Fault,
    Start {
        node: usize,
    },
    End {
        node: usize,
        run: u64,
    },
    Reload {
        node: usize,
        rules: RulesHash,
    },
    Table {
        node: usize,
        run: u64,
        rules: RulesHash,
    },
    EtcdBack,
    Settled,
}

struct ScheduledEvent {
    at_us: u64,
    number: u64,
    happening: FleetWorldEvent,
}

impl PartialEq for ScheduledEvent {
    fn eq(&self, other: &ScheduledEvent) -> bool {
        self.number == other.number
    }
}

impl Eq for ScheduledEvent {}

impl PartialOrd for ScheduledEvent {
    fn partial_cmp(&self, other: &ScheduledEvent) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ScheduledEvent {
    fn cmp(&self, other: &ScheduledEvent) -> std::cmp::Ordering {
        (self.at_us, self.number).cmp(&(other.at_us, other.number))
    }
}

/// The stage of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FleetRunStage {
    /// Faults happen.
    Work,
    /// Nothing fails any more; all nodes have to become members.
    Settle,
    /// Each node purges once more, and every purge has to be applied.
    Last,
    Done,
}

/// What is fixed for a run.
#[derive(Debug, Clone)]
pub struct FleetRunSettings {
    pub rules: FleetRules,
    pub lease_us: u64,
    pub tick_us: u64,
    pub work_us: u64,
    pub fault_us: u64,
    /// Purges of a page of the log.
    pub page_max: usize,
    /// Whether nodes ask the owners of objects.
    pub are_shared: bool,
    /// How long it takes after the last fault until all nodes run again with the same rules.
    pub heal_us: u64,
}

/// etcd, and what becomes of it.
#[derive(Debug, Default)]
pub struct EtcdState {
    pub model: EtcdModel,
    /// Another one has another number.
    pub epoch: u64,
    pub backup: Option<EtcdModel>,
    pub down_until_us: u64,
    /// What comes back instead of it.
    pub successor: Option<EtcdModel>,
    pub leases: i64,
}

/// A run.
pub struct FleetWorld {
    pub random: SimulationRandom,
    pub now_us: u64,
    pub settings: FleetRunSettings,
    planned: BinaryHeap<Reverse<ScheduledEvent>>,
    numbers: u64,
    pub nodes: Vec<SimulatedNode>,
    pub etcd: EtcdState,
    pub versions: [u64; URLS],
    pub facts: Vec<PurgeFact>,
    /// The purges that were answered as applied, in this order, and what each URL shows at least afterwards.
    pub applied: Vec<usize>,
    pub least: [u64; URLS],
    /// The newest rules that any node has had.
    pub newest_rules: RulesHash,
    pub stage: FleetRunStage,
    /// When the stage began, and the first purge of the last stage.
    pub stage_us: u64,
    pub first_of_last: usize,
    pub coverage: FleetCoverage,
    pub broken: Option<String>,
    pub purges: u64,
    pub responses: u64,
    pub faults: u64,
    /// A hash of all that happened.
    pub trace: u64,
    /// A description of what happened, if requested.
    pub story: Option<Vec<String>>,
}

impl FleetWorld {
    pub fn new(seed: u64) -> FleetWorld {
        let mut random = SimulationRandom::new(seed);
        let settings = settings(&mut random);
        let count = 2 + random.below(3) as usize;
        let newest_rules = RulesHash(1);
        let node = |at| {
            let rate = SECOND - DRIFT_MAX + random.below(2 * DRIFT_MAX);
            SimulatedNode::new(name_of(at), newest_rules, (1000 * SECOND + random.below(1000 * SECOND), rate))
        };
        let nodes = (0..count).map(node).collect();
        let mut world = FleetWorld {
            random,
            now_us: 0,
            settings,
            planned: BinaryHeap::new(),
            numbers: 0,
            nodes,
            etcd: EtcdState::default(),
            versions: [1; URLS],
            facts: Vec::new(),
            applied: Vec::new(),
            least: [0; URLS],
            newest_rules,
            stage: FleetRunStage::Work,
            stage_us: 0,
            first_of_last: 0,
            coverage: FleetCoverage::default(),
            broken: None,
            purges: 0,
            responses: 0,
            faults: 0,
            trace: seed,
            story: None,
        };
        for node in 0..count {
            let at_us = world.random.below(2 * SECOND);
            world.plan(at_us, FleetWorldEvent::Start { node });
        }
        for happening in [
            FleetWorldEvent::SomeRequest,
            FleetWorldEvent::SomePurge,
            FleetWorldEvent::Fault,
            FleetWorldEvent::LeasesEnd,
        ] {
            world.plan(3 * SECOND, happening);
        }
        world.plan(world.settings.work_us, FleetWorldEvent::Settled);
        world
    }

    /// Plans something for later. *Units*: microseconds from now.
    pub fn plan(&mut self, after_us: u64, happening: FleetWorldEvent) {
        self.numbers += 1;
        self.planned.push(Reverse(ScheduledEvent { at_us: self.now_us + after_us, number: self.numbers, happening }));
    }

    /// A number that nothing else has.
    pub fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// A time between two.
    pub fn between(&mut self, from_us: u64, to_us: u64) -> u64 {
        from_us + self.random.below(to_us - from_us + 1)
    }

    /// Runs to the end.
    pub fn run(&mut self) {
        while self.stage != FleetRunStage::Done && self.broken.is_none() {
            let Some(Reverse(next)) = self.planned.pop() else {
                return self.break_with("nothing happens any more".to_owned());
            };
            self.now_us = next.at_us;
            self.trace = (self.trace ^ self.now_us).wrapping_mul(0x0100_0000_01b3);
            self.happen(next.happening);
        }
    }

    /// Records what happened, if a description is requested.
    pub fn tell(&mut self, what: impl FnOnce() -> String) {
        let now_us = self.now_us;
        if let Some(story) = &mut self.story {
            story.push(format!("{:>10.3} ms: {}", now_us as f64 / 1000.0, what()));
        }
    }

    /// Notes that a promise is broken.
    pub fn break_with(&mut self, what: String) {
        let at = self.now_us;
        self.broken.get_or_insert(format!("{what} (at {at} us)"));
    }

    /// Whether a node can reach etcd.
    pub fn is_reachable(&self, node: usize) -> bool {
        self.now_us >= self.nodes[node].cut_until_us && self.now_us >= self.etcd.down_until_us
    }

    /// The time of a node's clock.
    pub fn clock(&self, node: usize) -> Duration {
        self.nodes[node].clock(self.now_us)
    }

    /// Puts off what a suspended node has to do; returns whether it is suspended.
    fn is_put_off(&mut self, happening: &FleetWorldEvent) -> bool {
        let node = match happening {
            FleetWorldEvent::Tick { node, .. }
            | FleetWorldEvent::Event { node, .. }
            | FleetWorldEvent::Reply { node, .. }
            | FleetWorldEvent::Failed { node, .. }
            | FleetWorldEvent::Watch { node, .. }
            | FleetWorldEvent::Progress { node, .. }
            | FleetWorldEvent::Storing { node, .. }
            | FleetWorldEvent::FlushObjects { node }
            | FleetWorldEvent::Request { node, .. }
            | FleetWorldEvent::Lookup { node, .. }
            | FleetWorldEvent::OriginAnswers { node, .. }
            | FleetWorldEvent::Filled { node, .. }
            | FleetWorldEvent::Reload { node, .. }
            | FleetWorldEvent::Table { node, .. } => *node,
            FleetWorldEvent::PeerAsks(ask) | FleetWorldEvent::OwnerFetches { ask, .. } => ask.owner,
            FleetWorldEvent::PeerAnswers(ask, _) | FleetWorldEvent::Impatient(ask) => ask.node,
            _ => return false,
        };
        let until_us = self.nodes[node].suspended_until_us;
        let is_suspended = until_us > self.now_us;
        if is_suspended {
            self.plan(until_us - self.now_us, happening.clone());
        }
        is_suspended
    }

    fn happen(&mut self, happening: FleetWorldEvent) {
        if self.is_put_off(&happening) {
            return;
        }
        match happening {
            FleetWorldEvent::Tick { node, run } => {
                if self.nodes[node].of(run).is_some() {
                    let tick_us = self.settings.tick_us;
                    self.plan(tick_us, FleetWorldEvent::Tick { node, run });
                    self.feed(node, FleetEvent::Tick);
                }
            }
            FleetWorldEvent::Event { node, run, event } => {
                if self.nodes[node].of(run).is_some() {
                    self.feed(node, event);
                }
            }
            FleetWorldEvent::Execute { node, run, call, ask, is_late } => self.execute(node, run, call, ask, is_late),
            FleetWorldEvent::Reply { node, run, call, reply, at_us } => self.on_reply(node, run, call, reply, at_us),
            FleetWorldEvent::Failed { node, run, call, is_unsent } => self.on_failed(node, run, call, is_unsent),
            FleetWorldEvent::Watch { node, run, number } => self.on_watch(node, run, number),
            FleetWorldEvent::Progress { node, run, number } => self.on_progress(node, run, number),
            FleetWorldEvent::LeasesEnd => self.end_leases(),
            FleetWorldEvent::Storing { node, run, number } => self.store_more(node, run, number),
            FleetWorldEvent::FlushObjects { node } => self.nodes[node].store.flush_objects(),
            FleetWorldEvent::Request { node, request } => self.on_request(node, request),
            FleetWorldEvent::Lookup { node, run, request } => self.look_up(node, run, request),
            FleetWorldEvent::OriginAnswers { node, run, request, began } => self.on_origin(node, run, request, began),
            FleetWorldEvent::Filled { node, run, request, began, version } => {
                self.on_filled(node, run, request, (began, version));
            }
            FleetWorldEvent::PeerAsks(ask) => self.on_peer(ask),
            FleetWorldEvent::OwnerFetches { run, began, ask } => self.on_owner_fetch(run, began, ask),
            FleetWorldEvent::PeerAnswers(ask, version) => self.on_peer_answer(ask, version),
            FleetWorldEvent::Impatient(ask) => self.on_impatience(ask),
            FleetWorldEvent::SomeRequest => self.some_request(),
            FleetWorldEvent::SomePurge => self.some_purge(),
            FleetWorldEvent::Purge { node } => self.purge_something(node),
            FleetWorldEvent::Fault => self.fault(),
            FleetWorldEvent::Start { node } => self.start(node),
            FleetWorldEvent::End { node, run } => self.end_process(node, run),
            FleetWorldEvent::Reload { node, rules } => self.reload(node, rules),
            FleetWorldEvent::Table { node, run, rules } => {
                if let Some(process) = self.nodes[node].of(run) {
                    process.table = rules;
                }
            }
            FleetWorldEvent::EtcdBack => self.etcd_back(),
            FleetWorldEvent::Settled => self.advance_stage(),
        }
    }
}

fn settings(random: &mut SimulationRandom) -> FleetRunSettings {
    let lease_s = 3 + random.below(4);
    let lease_us = lease_s * SECOND;
    let rules = FleetRules {
        lease: Duration::from_secs(lease_s),
        serve_when_cut: Duration::from_secs(if random.chance(40) { 0 } else { 1 + random.below(15) }),
        queues_when_cut: random.chance(40),
        queue_max: 3,
        purge_time: Duration::from_secs(lease_s * (1 + random.below(6))),
        purge_rate: (1000, Duration::from_secs(1)),
        log_bytes_max: if random.chance(50) { 500 } else { 1 << 20 },
        log_age_max: Duration::from_secs(if random.chance(50) { 5 + random.below(20) } else { 86_400 }),
    };
    let tick_us = (50 * MILLISECOND + random.below(300 * MILLISECOND)).min(lease_us / 10);
    FleetRunSettings {
        rules,
        lease_us,
        tick_us,
        work_us: 40 * SECOND + random.below(50 * SECOND),
        are_shared: random.chance(60),
        page_max: 1 + random.below(3) as usize,
        heal_us: 5 * SECOND + 3 * lease_us,
        fault_us: SECOND + random.below(4 * SECOND),
    }
}
