//! Fixed members in a simulated network, with their files and stores.
//!
//! Three nodes get purges while links break, processes die or stand still, files are lost, and batches and messages take
//! their time. Two promises are checked at every step, and that all nodes have everything in the end. Each planted bug
//! must be seen.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nectary_host::fleet::{
    AppliedMark, FleetError, FleetNode, FleetPurge, FleetState, NodeName, PurgeOutcome, PurgeScope, PurgeWish,
    RulesHash, RulesRecord,
};

use super::known_logs::{FixedStep, LogExtents};
use super::log_file::LoadedLog;
use super::machine::{FixedAction, FixedEvent, FixedMachine};
use super::messages::{PurgeLogHead, SyncMessage, read_message, read_step, write_message, write_step};
use crate::machine::FleetRules;

mod files;
mod processes;
mod single;

const NODES: usize = 3;
const LEASE_MS: u64 = 2000;
/// A run has trouble so long, and then as long again without.
const TROUBLE_MS: u64 = 30_000;

/// What is wrong on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PlantedFault {
    None,
    /// A node says that it has what only waits.
    ToldBeforeDurable,
    /// A node serves as soon as it runs.
    ServesAtOnce,
    /// Each node says that it serves.
    SaysItServes,
    /// What is no longer kept is not told.
    FloorForgotten,
    /// The store does not make a batch that is in the file.
    StoreSkipped,
    /// A node that lost its file numbers its purges from the beginning, in the same log.
    NumbersAgain,
    /// An answer names nobody who is missing.
    NobodyMissing,
}

const FAULTS: [PlantedFault; 7] = [
    PlantedFault::ToldBeforeDurable,
    PlantedFault::ServesAtOnce,
    PlantedFault::SaysItServes,
    PlantedFault::FloorForgotten,
    PlantedFault::StoreSkipped,
    PlantedFault::NumbersAgain,
    PlantedFault::NobodyMissing,
];

/// Random numbers that a seed decides.
struct SeededNumbers(u64);

impl SeededNumbers {
    fn below(&mut self, count: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % count.max(1)
    }

    fn is(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }
}

/// What happens later.
#[derive(Debug)]
enum WorldEvent {
    /// A request comes to a node, of a process of another one.
    Request {
        to: usize,
        from: (usize, u64),
        asked: Duration,
        bytes: Vec<u8>,
    },
    /// An answer comes back, or none.
    Response {
        to: (usize, u64),
        from: usize,
        asked: Duration,
        result: Result<Vec<u8>, bool>,
    },
    Taken {
        node: (usize, u64),
        batch: u64,
        first: u64,
        steps: Vec<FixedStep>,
        mark: AppliedMark,
    },
    Purge {
        node: usize,
    },
    Trouble,
    Start {
        node: usize,
    },
    Heal,
}

/// A node: its process, if it runs, its file and its store.
struct WorldNode {
    machine: Option<FixedMachine>,
    /// The number of the process.
    process: u64,
    stops_until: u64,
    /// When the process began, or went on.
    came_ms: u64,
    /// What the nodes that served then had in their logs, once it is that time.
    there: Option<Vec<BTreeSet<u64>>>,
    was_open: bool,
    /// Whether it had never been a member when it came, and whether another node has served since.
    is_new: bool,
    has_seen_serving: bool,
    ended_ms: u64,
    head: PurgeLogHead,
    /// The file with which the node has served.
    kept_identity: u128,
    lines: Vec<Vec<u8>>,
    mark: AppliedMark,
    /// The purges that the store has made, by the number in their key.
    made: BTreeSet<u64>,
    tickets: BTreeMap<u64, (usize, (usize, u64), Duration)>,
}

struct MembersWorld {
    numbers: SeededNumbers,
    fault: PlantedFault,
    now_ms: u64,
    queue: BTreeMap<(u64, u64), WorldEvent>,
    sequence: u64,
    nodes: Vec<WorldNode>,
    /// Pairs that cannot reach each other, and since when pairs can.
    cut: BTreeSet<(usize, usize)>,
    linked_ms: BTreeMap<(usize, usize), u64>,
    purges: u64,
    /// The purge of each ticket.
    asked: BTreeMap<u64, u64>,
    /// Purges that were answered well.
    answered: BTreeSet<u64>,
    applied: u64,
    problem: Option<String>,
}

fn name_of(node: usize) -> NodeName {
    NodeName::new(&format!("10.0.0.{node}:7443")).expect("a name")
}

fn rules() -> FleetRules {
    FleetRules {
        lease: Duration::from_millis(LEASE_MS),
        purge_time: Duration::from_millis(3 * LEASE_MS),
        // A few purges.
        log_bytes_max: 3000,
        ..FleetRules::default()
    }
}

fn key_of(purge: &FleetPurge) -> Option<u64> {
    std::str::from_utf8(purge.scope.texts().first()?).ok()?.strip_prefix("http://a/")?.parse().ok()
}

impl MembersWorld {
    fn new(seed: u64, fault: PlantedFault) -> MembersWorld {
        let mut world = MembersWorld {
            numbers: SeededNumbers(seed),
            fault,
            now_ms: 1000,
            queue: BTreeMap::new(),
            sequence: 0,
            nodes: Vec::new(),
            cut: BTreeSet::new(),
            linked_ms: BTreeMap::new(),
            purges: 0,
            asked: BTreeMap::new(),
            answered: BTreeSet::new(),
            applied: 0,
            problem: None,
        };
        for node in 0..NODES {
            let identity = u128::from(world.numbers.below(u64::MAX - 1) + 1);
            let head = PurgeLogHead { identity, node: name_of(node), base: 1, extents: LogExtents::new() };
            world.nodes.push(WorldNode {
                machine: None,
                process: 0,
                stops_until: 0,
                came_ms: 0,
                there: None,
                was_open: false,
                is_new: true,
                has_seen_serving: false,
                ended_ms: 0,
                kept_identity: 0,
                head,
                lines: Vec::new(),
                mark: AppliedMark::NONE,
                made: BTreeSet::new(),
                tickets: BTreeMap::new(),
            });
            world.later(node as u64 * 100, WorldEvent::Start { node });
        }
        for at in 0..40 {
            let node = world.numbers.below(NODES as u64) as usize;
            let delay = world.numbers.below(700) + at * 700;
            world.later(delay, WorldEvent::Purge { node });
        }
        for at in 0..10 {
            let delay = world.numbers.below(2500) + at * 2500 + 500;
            world.later(delay, WorldEvent::Trouble);
        }
        world.later(TROUBLE_MS, WorldEvent::Heal);
        world
    }

    fn later(&mut self, delay_ms: u64, event: WorldEvent) {
        self.sequence += 1;
        self.queue.insert((self.now_ms + delay_ms, self.sequence), event);
    }

    fn now(&self) -> Duration {
        Duration::from_millis(self.now_ms)
    }

    fn is_cut(&self, one: usize, other: usize) -> bool {
        self.cut.contains(&(one.min(other), one.max(other)))
    }

    fn fail(&mut self, what: String) {
        let now_ms = self.now_ms;
        self.problem.get_or_insert(format!("at {now_ms} ms: {what}"));
    }

    /// Runs to the end; returns what is wrong, and how many purges all nodes had applied.
    fn run(mut self) -> (Option<String>, u64) {
        let end = self.now_ms + 2 * TROUBLE_MS;
        while self.now_ms < end && self.problem.is_none() {
            for node in 0..NODES {
                self.nodes[node].has_seen_serving |= self.is_other_open(node);
                if self.nodes[node].there.is_none() && self.nodes[node].came_ms <= self.now_ms {
                    self.nodes[node].there = Some(self.serving_logs());
                }
            }
            while let Some(first) = self.queue.first_entry().filter(|first| first.key().0 <= self.now_ms) {
                let event = first.remove();
                self.happen(event);
            }
            for node in 0..NODES {
                self.event(node, FixedEvent::Tick { now_s: self.now_ms / 1000 });
            }
            self.check();
            self.now_ms += 50;
        }
        for node in 0..NODES {
            let lacking: Vec<u64> = self.answered.difference(&self.nodes[node].made).copied().collect();
            if !lacking.is_empty() {
                self.fail(format!("in the end node {node} lacks {lacking:?}"));
            }
            if !self.is_open(node) {
                self.fail(format!("in the end node {node} does not serve"));
            }
        }
        (self.problem, self.applied)
    }

    fn happen(&mut self, event: WorldEvent) {
        match event {
            WorldEvent::Start { node } => self.start(node),
            WorldEvent::Purge { node } => {
                self.purges += 1;
                let number = self.purges;
                let scope = PurgeScope::Keys(vec![format!("http://a/{number}").into_bytes()]);
                let purge = FleetPurge { scope, soft_since_s: None, rules: RulesHash(1) };
                let ticket = 1_000_000 + number;
                self.asked.insert(ticket, number);
                let now_s = self.now_ms / 1000;
                let wish = if self.numbers.is(4) { PurgeWish::Accepted } else { PurgeWish::Applied };
                self.event(node, FixedEvent::PurgeRequested { ticket, purge, wish, now_s });
            }
            WorldEvent::Request { to, from, asked, bytes } => self.request(to, from, asked, &bytes),
            WorldEvent::Response { to: (node, process), from, asked, result } => {
                if self.nodes[node].process != process {
                    return;
                }
                if self.stands_still(node) {
                    return self.later(50, WorldEvent::Response { to: (node, process), from, asked, result });
                }
                let member =
                    (0..NODES).filter(|other| *other != node).position(|other| other == from).expect("another");
                let event = match result {
                    Ok(bytes) => {
                        let answer = Box::new(read_message(&bytes).expect("a message"));
                        FixedEvent::Answered { member, asked, answer }
                    }
                    Err(is_refused) => FixedEvent::Silent { member, asked, is_refused, why: "silent".to_owned() },
                };
                self.event(node, event);
            }
            WorldEvent::Taken { node: (node, process), batch, first, steps, mark } => {
                if self.nodes[node].process != process {
                    return;
                }
                if self.stands_still(node) {
                    return self.later(50, WorldEvent::Taken { node: (node, process), batch, first, steps, mark });
                }
                if self.numbers.is(20) {
                    return self.event(node, FixedEvent::TakeFailed { batch, why: "full".to_owned() });
                }
                self.append(node, first, &steps);
                if self.fault != PlantedFault::StoreSkipped || !self.numbers.is(10) {
                    self.make(node, &steps);
                }
                self.nodes[node].mark = mark;
                self.event(node, FixedEvent::Taken { batch });
            }
            WorldEvent::Trouble => self.trouble(),
            WorldEvent::Heal => {
                let pairs = std::mem::take(&mut self.cut);
                pairs.into_iter().for_each(|pair| {
                    self.linked_ms.insert(pair, self.now_ms);
                });
            }
        }
    }

    fn stands_still(&self, node: usize) -> bool {
        self.now_ms < self.nodes[node].stops_until
    }

    /// Appends to the file of a node.
    fn append(&mut self, node: usize, first: u64, steps: &[FixedStep]) {
        let own = &mut self.nodes[node];
        let last = own.head.base + own.lines.len() as u64;
        let known = (last + 1).saturating_sub(first) as usize;
        own.lines.extend(steps.iter().skip(known).map(write_step));
    }

    /// Makes the purges of steps in the store of a node.
    fn make(&mut self, node: usize, steps: &[FixedStep]) {
        for step in steps {
            match step {
                FixedStep::Purge(logged) => self.nodes[node].made.extend(key_of(&logged.purge)),
                FixedStep::Everything(_) => self.nodes[node].made.extend(1..=self.purges),
            }
        }
    }

    fn request(&mut self, to: usize, from: (usize, u64), asked: Duration, bytes: &[u8]) {
        if self.is_cut(to, from.0) {
            return self.respond(to, from, asked, Err(false));
        }
        if self.nodes[to].machine.is_none() {
            return self.respond(to, from, asked, Err(true));
        }
        if self.stands_still(to) {
            return self.later(LEASE_MS / 2, WorldEvent::Response { to: from, from: to, asked, result: Err(false) });
        }
        self.sequence += 1;
        let ticket = self.sequence;
        self.nodes[to].tickets.insert(ticket, (to, from, asked));
        let message = Box::new(read_message(bytes).expect("a message"));
        self.event(to, FixedEvent::Asked { ticket, message });
    }

    fn respond(&mut self, from: usize, to: (usize, u64), asked: Duration, result: Result<Vec<u8>, bool>) {
        let result = if self.is_cut(from, to.0) { Err(false) } else { result };
        let delay = self.numbers.below(30);
        self.later(delay, WorldEvent::Response { to, from, asked, result });
    }

    /// What a node says, with what is wrong on purpose.
    fn said(&self, node: usize, mut message: SyncMessage) -> Vec<u8> {
        let machine = self.nodes[node].machine.as_ref().expect("it runs");
        match self.fault {
            PlantedFault::ToldBeforeDurable => message.extents.clone_from(machine.queued()),
            PlantedFault::SaysItServes => message.serves = true,
            PlantedFault::FloorForgotten => message.extents.values_mut().for_each(|extent| extent.floor = 0),
            _ => {}
        }
        write_message(&message)
    }

    fn event(&mut self, node: usize, event: FixedEvent) {
        if self.stands_still(node) {
            return;
        }
        let now = self.now();
        let Some(machine) = &mut self.nodes[node].machine else { return };
        let actions = machine.on_event(now, event);
        self.check_return(node);
        for action in actions {
            self.act(node, action);
        }
    }

    fn act(&mut self, node: usize, action: FixedAction) {
        let process = self.nodes[node].process;
        match action {
            FixedAction::Ask { member, message } => {
                let to = (0..NODES).filter(|other| *other != node).nth(member).expect("another");
                let (bytes, delay, asked) = (self.said(node, message), self.numbers.below(30), self.now());
                self.later(delay, WorldEvent::Request { to, from: (node, process), asked, bytes });
            }
            FixedAction::Reply { ticket, result } => {
                let Some((_, from, asked)) = self.nodes[node].tickets.remove(&ticket) else { return };
                let result = result.map(|message| self.said(node, message)).map_err(|_| false);
                self.respond(node, from, asked, result);
            }
            FixedAction::Take { batch, first, steps, mark } => {
                let slow = if self.numbers.is(10) { 1500 } else { 20 };
                let delay = self.numbers.below(slow);
                if self.numbers.is(30) {
                    // A crash may leave it in the file alone.
                    self.append(node, first, &steps);
                }
                self.later(delay, WorldEvent::Taken { node: (node, process), batch, first, steps, mark });
            }
            FixedAction::Rewrite { extents, steps } => {
                let own = &mut self.nodes[node];
                own.head.base = own.head.base + own.lines.len() as u64 - steps.len() as u64;
                own.head.extents = extents;
                own.lines = steps.iter().map(write_step).collect();
                self.event(node, FixedEvent::Rewritten);
            }
            FixedAction::Answer { ticket, result } => {
                let purge = self.asked[&ticket];
                let Ok(PurgeOutcome { mut missing, is_applied, .. }) = result else { return };
                self.answered.insert(purge);
                if self.fault == PlantedFault::NobodyMissing {
                    missing.clear();
                }
                self.applied += u64::from(is_applied);
                if !self.nodes[node].made.contains(&purge) {
                    self.fail(format!("purge {purge} is answered by node {node}, which has not made it"));
                }
                let is_all = is_applied || self.fault == PlantedFault::NobodyMissing;
                let lacking = |other: &usize| !self.nodes[*other].made.contains(&purge);
                let wrong = (0..NODES).find(|other| is_all && lacking(other) && !missing.contains(&name_of(*other)));
                if let Some(other) = wrong {
                    self.fail(format!("purge {purge} is answered as applied, and node {other} lacks it"));
                }
            }
            FixedAction::Note(_) => {}
        }
    }

    fn is_open(&self, node: usize) -> bool {
        let (now, own) = (self.now(), &self.nodes[node]);
        let is_open = own.machine.as_ref().is_some_and(|machine| machine.gate(now).member_until > now);
        is_open || (self.fault == PlantedFault::ServesAtOnce && own.machine.is_some())
    }

    /// A node that begins to serve has what any node had that has been serving, and within reach, since that one came.
    fn check_return(&mut self, node: usize) {
        if self.nodes[node].was_open || self.nodes[node].came_ms > self.now_ms || !self.is_open(node) {
            return;
        }
        self.nodes[node].was_open = true;
        let came_ms = self.nodes[node].came_ms;
        let (own, others) = (&self.nodes[node], self.nodes.iter());
        let is_down = |other: &WorldNode| other.machine.is_none() && other.ended_ms < came_ms;
        let is_early = self.now_ms < came_ms + 6 * LEASE_MS;
        // A file that does not fit to its store makes a node purge everything, and then it needs nobody.
        let is_whole = own.head.identity == own.kept_identity;
        if is_early && is_whole && !own.is_new && !own.has_seen_serving && others.clone().any(is_down) {
            self.fail(format!("node {node} serves, and nobody who serves could say what it missed"));
        }
        self.nodes[node].kept_identity = self.nodes[node].head.identity;
        let own_there = self.nodes[node].there.clone().unwrap_or_default();
        for other in (0..NODES).filter(|other| *other != node) {
            let pair = (node.min(other), node.max(other));
            let linked_ms = self.linked_ms.get(&pair).copied().unwrap_or_default();
            let there = &self.nodes[other];
            let is_there = there.was_open && there.machine.is_some() && there.came_ms < came_ms;
            if !is_there || self.is_cut(node, other) || linked_ms > came_ms || there.stops_until > came_ms {
                continue;
            }
            let had = own_there.get(other).into_iter().flatten();
            let lacking: Vec<u64> = had.filter(|purge| !self.nodes[node].made.contains(purge)).copied().collect();
            if !lacking.is_empty() {
                self.fail(format!("node {node} serves without {lacking:?}, which node {other} had"));
            }
        }
    }

    /// Whether another node serves.
    fn is_other_open(&self, node: usize) -> bool {
        (0..NODES).any(|other| other != node && self.nodes[other].was_open && self.is_open(other))
    }

    /// The purges in the log of each node that serves.
    fn serving_logs(&self) -> Vec<BTreeSet<u64>> {
        let log_of = |node: &WorldNode| {
            let machine = node.machine.as_ref().filter(|_| node.was_open)?;
            Some(machine.known.kept().filter_map(|logged| key_of(&logged.purge)).collect())
        };
        self.nodes.iter().map(|node| log_of(node).unwrap_or_default()).collect()
    }

    fn check(&mut self) {
        for node in 0..NODES {
            self.check_return(node);
        }
    }
}

#[test]
fn fixed_members_lose_no_purge() {
    let mut applied = 0;
    for seed in 0..150 {
        let (problem, count) = MembersWorld::new(seed, PlantedFault::None).run();
        assert_eq!(problem, None, "seed {seed}");
        applied += count;
    }
    assert!(applied > 150, "{applied} purges were applied by all nodes");
}

#[test]
fn planted_faults_of_members_are_seen() {
    for fault in FAULTS {
        let seen = (0..2000).find(|seed| MembersWorld::new(*seed, fault).run().0.is_some());
        eprintln!("{fault:?}: seen with seed {seen:?}");
        assert!(seen.is_some(), "{fault:?} is not seen");
    }
}

/// A store that takes nothing: the node says so, takes no purges, and does not serve.
#[test]
fn stuck_store_shuts_the_node() {
    let mut world = MembersWorld::new(1, PlantedFault::None);
    world.queue.clear();
    world.start(0);
    let at = |ms: u64| Duration::from_millis(ms);
    let machine = world.nodes[0].machine.as_mut().expect("it runs");
    let silent = |member| FixedEvent::Silent { member, asked: at(1000), is_refused: true, why: String::new() };
    let batch_of = |actions: Vec<FixedAction>| {
        actions.into_iter().find_map(|action| match action {
            FixedAction::Take { batch, .. } => Some(batch),
            _ => None,
        })
    };
    machine.on_event(at(1000), silent(0));
    let mark = batch_of(machine.on_event(at(1000), silent(1)));
    let mark = mark.unwrap_or(1);
    machine.on_event(at(1010), FixedEvent::Taken { batch: mark });
    assert!(machine.gate(at(1010)).member_until > at(1010), "it serves");
    let purge = FleetPurge::EVERYTHING;
    let asked = FixedEvent::PurgeRequested { ticket: 1, purge: purge.clone(), wish: PurgeWish::Applied, now_s: 1 };
    let mut batch = batch_of(machine.on_event(at(1020), asked)).expect("a batch");
    for ms in (1100..1100 + 2 * LEASE_MS).step_by(100) {
        let failed = FixedEvent::TakeFailed { batch, why: "full".to_owned() };
        let begun = batch_of(machine.on_event(at(ms), failed));
        batch =
            begun.or_else(|| batch_of(machine.on_event(at(ms + 50), FixedEvent::Tick { now_s: 1 }))).unwrap_or(batch);
    }
    let now = at(1100 + 2 * LEASE_MS);
    assert_eq!(machine.gate(now).member_until, Duration::ZERO);
    let figures = machine.figures(now);
    assert_eq!((figures.state, figures.purges_behind), (FleetState::Away, 1));
    assert!(figures.behind_ms >= LEASE_MS && figures.problems.iter().any(|it| it.what.contains("full")));
    let asked = FixedEvent::PurgeRequested { ticket: 2, purge, wish: PurgeWish::Applied, now_s: 1 };
    let refused =
        |action: &FixedAction| matches!(action, FixedAction::Answer { ticket: 2, result: Err(FleetError::Away(_)) });
    assert!(machine.on_event(now, asked).iter().any(refused));
}
