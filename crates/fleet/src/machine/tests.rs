//! The machine, event by event.

use nectary_host::fleet::{FleetError, FleetPurge, FleetState, PurgeOutcome, PurgeScope, PurgeWish};

use super::*;

mod bounds;
mod damage;
mod leases;
mod rules;

const FLEET: u128 = 7;
const LEASE: i64 = 40;

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn name(text: &str) -> NodeName {
    NodeName::new(text).expect("a name")
}

fn node(text: &str, since: u64) -> FleetNode {
    FleetNode {
        name: name(text),
        address: format!("{text}:7443"),
        zone: String::new(),
        weight: 1,
        rules: RulesHash(1),
        run: 1,
        since,
    }
}

fn purge(revision: u64) -> LoggedPurge {
    let scope = PurgeScope::Keys(vec![format!("http://a/{revision}").into_bytes()]);
    LoggedPurge { revision, purge: FleetPurge { scope, soft_since_s: None, rules: RulesHash(1) } }
}

/// A purge whose keys were made by the rules 2.
fn foreign(revision: u64) -> LoggedPurge {
    LoggedPurge { revision, purge: FleetPurge { rules: RulesHash(2), ..purge(revision).purge } }
}

/// A mark of a store whose objects have keys by the rules 1.
fn mark(fleet: u128, revision: u64) -> AppliedMark {
    AppliedMark { fleet, revision, rules: RulesRecord::NONE.begin(RulesHash(1)) }
}

fn everything(revision: u64) -> LoggedPurge {
    LoggedPurge { revision, purge: FleetPurge::EVERYTHING }
}

/// A machine, and what it has wanted so far.
struct MachineBench {
    machine: FleetMachine,
    actions: Vec<FleetAction>,
    now_ms: u64,
}

impl MachineBench {
    fn new(rules: FleetRules, mark: AppliedMark) -> MachineBench {
        MachineBench { machine: FleetMachine::new(rules, node("a", 0), mark), actions: Vec::new(), now_ms: 1000 }
    }

    fn event(&mut self, event: FleetEvent) -> &mut MachineBench {
        self.actions.extend(self.machine.on_event(at(self.now_ms), event));
        self
    }

    fn tick_at(&mut self, ms: u64) -> &mut MachineBench {
        self.now_ms = ms;
        self.event(FleetEvent::Tick)
    }

    /// Takes the actions so far, without notes.
    fn take(&mut self) -> Vec<FleetAction> {
        let is_note = |action: &FleetAction| matches!(action, FleetAction::Note(_) | FleetAction::ReviewLog { .. });
        std::mem::take(&mut self.actions).into_iter().filter(|action| !is_note(action)).collect()
    }

    /// Joins with a lease requested at 1000 ms, and reads a log.
    fn joined(rules: FleetRules, mark: AppliedMark, snapshot: LogSnapshot) -> MachineBench {
        let mut bench = MachineBench::new(rules, mark);
        bench.event(FleetEvent::Tick).event(FleetEvent::LeaseGranted { lease: LEASE, asked: at(1000) });
        bench.event(FleetEvent::Joined { lease: LEASE, identity: snapshot.identity });
        assert!(bench.take().contains(&FleetAction::Read { above: mark }));
        bench.event(FleetEvent::LogRead(snapshot));
        bench
    }

    /// A member with these other nodes, whose log ended at 10.
    fn member(rules: FleetRules, others: &[&str]) -> MachineBench {
        let nodes = std::iter::once(&"a").chain(others).map(|name| (node(name, 3), 10)).collect();
        let snapshot = LogSnapshot { identity: FLEET, floor: 0, newest: 10, purges: Vec::new(), nodes, through: 12 };
        let mut bench = MachineBench::joined(rules, mark(FLEET, 10), snapshot);
        assert_eq!(bench.machine.state(at(1000)), FleetState::Member);
        bench.take();
        bench
    }

    fn changed(&mut self, changes: Vec<LogChange>, through: u64) -> &mut MachineBench {
        self.event(FleetEvent::Changed { changes, through })
    }

    fn standing(&self) -> (u64, u64) {
        let gate = self.machine.gate();
        (gate.member_until.as_millis() as u64, gate.serve_until.as_millis() as u64)
    }

    fn applies(&mut self) -> Option<(u64, Vec<LoggedPurge>, u64)> {
        self.take().into_iter().find_map(|action| match action {
            FleetAction::Apply { batch, purges, mark } => Some((batch, purges, mark.revision)),
            _ => None,
        })
    }

    fn answer(&mut self) -> Option<Result<PurgeOutcome, FleetError>> {
        self.take().into_iter().find_map(|action| match action {
            FleetAction::Answer { result, .. } => Some(result),
            _ => None,
        })
    }
}

impl LogSnapshot {
    fn with_newest(self, newest: u64) -> LogSnapshot {
        LogSnapshot { newest, ..self }
    }
}

fn snapshot(floor: u64, purges: Vec<LoggedPurge>) -> LogSnapshot {
    let newest = purges.last().map_or(floor, |last| last.revision);
    LogSnapshot { identity: FLEET, floor, newest, purges, nodes: vec![(node("a", 50), 0)], through: 60 }
}

#[test]
fn missed_purges_are_applied_before_serving() {
    let mark = mark(FLEET, 20);
    let mut bench = MachineBench::joined(FleetRules::default(), mark, snapshot(0, vec![purge(30), purge(31)]));
    assert_eq!(bench.standing(), (0, 0), "it has missed two");
    assert_eq!(bench.machine.state(at(1000)), FleetState::CatchingUp);
    let actions = bench.take();
    assert!(actions.contains(&FleetAction::Watch { from: 61 }));
    bench.actions = actions;
    let (batch, purges, mark) = bench.applies().expect("a batch");
    assert_eq!((purges, mark), (vec![purge(30), purge(31)], 31));
    bench.event(FleetEvent::Published { lease: LEASE, revision: 20 });
    bench.event(FleetEvent::BatchFailed { batch, why: "the disk".to_owned() });
    assert_eq!(bench.standing(), (0, 0));
    assert_eq!(bench.applies(), None, "not at once");
    let (batch, purges, _) = bench.tick_at(1500).applies().expect("again");
    assert_eq!(purges.len(), 2);
    bench.event(FleetEvent::BatchApplied { batch });
    assert_eq!((bench.standing(), bench.machine.applied()), ((10_000, 61_000), 31), "counted from the request");
    assert!(bench.take().contains(&FleetAction::Publish { lease: LEASE, revision: 31 }));
}

#[test]
fn gaps_in_the_log_purge_everything() {
    let of =
        |mark, snapshot| MachineBench::joined(FleetRules::default(), mark, snapshot).applies().map(|it| (it.1, it.2));
    let log = || vec![purge(30), purge(31)];
    assert_eq!(of(mark(FLEET, 20), snapshot(21, log())), Some((vec![everything(31)], 31)), "below the floor");
    assert_eq!(of(mark(FLEET, 21), snapshot(21, log())), Some((log(), 31)), "at the floor");
    assert_eq!(of(mark(FLEET, 20), snapshot(21, Vec::new())), Some((vec![everything(21)], 21)));
    assert_eq!(of(mark(FLEET + 1, 30), snapshot(0, log())), Some((vec![everything(31)], 31)), "another fleet");
    assert_eq!(of(mark(FLEET, 32), snapshot(0, log())), Some((vec![everything(31)], 31)), "etcd is older");
    assert_eq!(of(AppliedMark::NONE, snapshot(21, log())), Some((vec![everything(31)], 31)));
    assert_eq!(of(AppliedMark::NONE, snapshot(0, log())), Some((log(), 31)), "the log is whole");
    assert_eq!(of(AppliedMark::NONE, snapshot(0, Vec::new())), Some((Vec::new(), 0)), "only its identity is noted");
    let current = LogSnapshot { newest: 31, ..snapshot(0, Vec::new()) };
    assert_eq!(of(mark(FLEET, 31), current), None);
}

#[test]
fn batches_are_applied_in_order() {
    let mut bench = MachineBench::member(FleetRules::default(), &["b"]);
    bench.changed(vec![LogChange::Purge(purge(13))], 13);
    let first = bench.applies().expect("a batch");
    bench.changed(vec![LogChange::Purge(purge(14)), LogChange::Purge(purge(13)), LogChange::Purge(purge(15))], 15);
    assert_eq!(bench.applies(), None, "one at a time");
    bench.event(FleetEvent::BatchApplied { batch: first.0 + 1 });
    assert_eq!(bench.machine.applied(), 10, "another batch");
    bench.event(FleetEvent::BatchApplied { batch: first.0 });
    assert_eq!(bench.machine.applied(), 13);
    assert_eq!(bench.applies().map(|it| (it.1, it.2)), Some((vec![purge(14), purge(15)], 15)));
}

#[test]
fn batch_size_is_bounded() {
    let mut bench = MachineBench::member(FleetRules::default(), &[]);
    bench.changed((13..200).map(|revision| LogChange::Purge(purge(revision))).collect(), 200);
    let (_, purges, mark) = bench.applies().expect("a batch");
    assert_eq!((purges.len(), mark), (64, 76));
}

#[test]
fn applied_waits_for_every_living_node() {
    let mut bench = MachineBench::member(FleetRules::default(), &["b", "c", "d"]);
    let living = || ["a", "b", "c", "d"].map(name).to_vec();
    let wanted = |wish| FleetEvent::PurgeRequested { ticket: 1, purge: purge(0).purge, wish };
    bench.event(wanted(PurgeWish::Applied));
    assert_eq!(bench.take(), [FleetAction::Append { ticket: 1, purge: purge(0).purge }]);
    bench.event(FleetEvent::Appended { ticket: 1, revision: 20, living: living() });
    bench.changed(vec![LogChange::Purge(purge(20))], 20);
    let (batch, ..) = bench.applies().expect("a batch");
    bench.event(FleetEvent::BatchApplied { batch });
    bench.changed(vec![LogChange::Applied(name("b"), 20)], 21);
    bench.changed(vec![LogChange::Applied(name("c"), 19), LogChange::NodeGone(name("d"))], 23);
    assert_eq!(bench.answer(), None, "c has not");
    bench.changed(vec![LogChange::Node(node("d", 24)), LogChange::Applied(name("d"), 0)], 24);
    bench.changed(vec![LogChange::NodeGone(name("c"))], 25);
    let outcome = bench.answer().expect("an answer").expect("applied");
    assert_eq!((outcome.revision, outcome.nodes, outcome.is_applied), (20, 4, true));
    bench.event(wanted(PurgeWish::Accepted)).event(FleetEvent::Appended { ticket: 1, revision: 30, living: living() });
    let outcome = bench.answer().expect("an answer").expect("accepted");
    assert!(!outcome.is_applied && outcome.missing.is_empty() && outcome.revision == 30);
}

#[test]
fn late_purges_name_missing_nodes() {
    let mut bench = MachineBench::member(FleetRules { purge_time: at(5000), ..FleetRules::default() }, &["b"]);
    let purge = purge(0).purge;
    bench.event(FleetEvent::PurgeRequested { ticket: 1, purge: purge.clone(), wish: PurgeWish::Applied });
    bench.event(FleetEvent::PurgeRequested { ticket: 2, purge, wish: PurgeWish::Applied });
    bench.event(FleetEvent::Appended { ticket: 1, revision: 20, living: ["a", "b", "x"].map(name).to_vec() });
    bench.take();
    assert_eq!(bench.tick_at(5999).answer(), None);
    let answers: Vec<_> = bench.tick_at(6000).take().into_iter().collect();
    let of = |wanted| {
        answers.iter().find_map(|action| match action {
            FleetAction::Answer { ticket, result } if *ticket == wanted => Some(result.clone()),
            _ => None,
        })
    };
    // What this node has seen ends at 12, so it does not know whether x is gone, and has not applied it itself.
    assert_eq!(of(1).expect("late").expect("in the log").missing, ["a", "b", "x"].map(name));
    assert!(matches!(of(2), Some(Err(FleetError::Unknown(_)))), "it may be in the log");
}

#[test]
fn lease_is_counted_from_its_request() {
    let mut bench = MachineBench::member(FleetRules::default(), &[]);
    assert_eq!(bench.tick_at(3499).take(), []);
    assert_eq!(bench.tick_at(3500).take(), [FleetAction::KeepLease { lease: LEASE }]);
    bench.now_ms = 9000;
    bench.changed(Vec::new(), 12);
    bench.event(FleetEvent::LeaseKept { lease: LEASE, asked: at(3500) });
    assert_eq!(bench.standing(), (12_500, 63_500), "not from the answer");
    bench.take();
    bench.tick_at(12_499).event(FleetEvent::LeaseFailed { why: "no answer".to_owned() });
    assert_eq!(bench.machine.state(at(12_499)), FleetState::Member);
    assert_eq!(bench.machine.state(at(12_500)), FleetState::Away);
    bench.tick_at(12_500);
    assert_eq!(bench.machine.figures(at(12_500)).cuts, 1);
    bench.event(FleetEvent::LeaseEnded { lease: LEASE });
    assert_eq!(bench.standing(), (0, 63_500), "serve-when-cut goes on, and no longer");
}

#[test]
fn returning_member_catches_up_again() {
    let mut bench = MachineBench::member(FleetRules { serve_when_cut: Duration::ZERO, ..FleetRules::default() }, &[]);
    bench.event(FleetEvent::LeaseEnded { lease: LEASE });
    bench.tick_at(20_000).event(FleetEvent::LeaseGranted { lease: LEASE + 1, asked: at(20_000) });
    bench.event(FleetEvent::Joined { lease: LEASE + 1, identity: FLEET });
    assert_eq!(bench.machine.gate().member_until, Duration::ZERO);
    bench.take();
    bench.event(FleetEvent::LogRead(snapshot(0, vec![purge(44)])));
    let (batch, purges, _) = bench.applies().expect("a batch");
    assert_eq!(purges, [purge(44)]);
    assert_eq!(bench.machine.gate().member_until, Duration::ZERO);
    bench.event(FleetEvent::BatchApplied { batch });
    assert_eq!(bench.standing(), (29_000, 29_000));
}

#[test]
fn ended_watches_resume_or_read_again() {
    let mut bench = MachineBench::member(FleetRules::default(), &[]);
    bench.changed(vec![LogChange::Purge(purge(15))], 17).take();
    bench.event(FleetEvent::WatchEnded { end: WatchEnd::Broken, why: "cut".to_owned() });
    assert_eq!(bench.take(), [], "after a pause");
    assert_eq!(bench.tick_at(1300).take(), [FleetAction::Watch { from: 18 }]);
    bench.event(FleetEvent::WatchEnded { end: WatchEnd::OtherEtcd, why: "restored".to_owned() });
    let mark = bench.machine.mark();
    assert_eq!(bench.tick_at(2000).take(), [FleetAction::Read { above: mark }]);
    assert!(!bench.machine.is_caught_up());
}

#[test]
fn silent_watches_are_begun_again() {
    let mut bench = MachineBench::member(FleetRules::default(), &[]);
    assert!(!bench.tick_at(6000).take().contains(&FleetAction::Watch { from: 13 }));
    assert!(bench.tick_at(6001).take().contains(&FleetAction::Watch { from: 13 }));
    assert!(!bench.tick_at(6100).take().contains(&FleetAction::Watch { from: 13 }));
    assert!(bench.tick_at(8501).take().contains(&FleetAction::Watch { from: 13 }));
}

/// Purges would wait for it as long as it lives.
#[test]
fn deaf_and_stuck_nodes_leave() {
    let keeps = |bench: &mut MachineBench, ms: u64| {
        let kept = bench.tick_at(ms).take().contains(&FleetAction::KeepLease { lease: LEASE });
        if kept {
            bench.event(FleetEvent::LeaseKept { lease: LEASE, asked: at(ms) });
        }
        kept
    };
    let mut deaf = MachineBench::member(FleetRules::default(), &[]);
    assert!(keeps(&mut deaf, 10_900) && !keeps(&mut deaf, 14_000), "the watch is silent for a lease");
    assert!(deaf.tick_at(20_900).take().contains(&FleetAction::RevokeLease { lease: LEASE }));
    let mut stuck = MachineBench::member(FleetRules::default(), &[]);
    stuck.changed(vec![LogChange::Purge(purge(15))], 17);
    for ms in [4000, 8000, 10_900] {
        stuck.now_ms = ms;
        assert!(keeps(stuck.changed(Vec::new(), 17), ms));
    }
    stuck.now_ms = 14_000;
    assert!(!keeps(stuck.changed(Vec::new(), 17), 14_000), "the store stands still for a lease");
    stuck.now_ms = 20_900;
    let actions = stuck.changed(Vec::new(), 17).take();
    assert!(actions.contains(&FleetAction::RevokeLease { lease: LEASE }));
    assert!(!stuck.tick_at(21_000).take().contains(&FleetAction::GrantLease), "not before its store goes on");
}

/// A store that refuses at once stands still, too.
#[test]
fn nodes_whose_store_refuses_leave() {
    let mut bench = MachineBench::member(FleetRules::default(), &[]);
    bench.changed(vec![LogChange::Purge(purge(15))], 17);
    let mut left_at = None;
    for ms in (1000..30_000).step_by(100) {
        bench.now_ms = ms;
        bench.changed(Vec::new(), 17);
        let actions = bench.take();
        for action in &actions {
            match action {
                FleetAction::Apply { batch, .. } => {
                    bench.event(FleetEvent::BatchFailed { batch: *batch, why: "read-only".to_owned() });
                }
                FleetAction::KeepLease { lease } => {
                    bench.event(FleetEvent::LeaseKept { lease: *lease, asked: at(ms) });
                }
                FleetAction::RevokeLease { .. } => left_at = left_at.or(Some(ms)),
                _ => {}
            }
        }
        assert!(ms <= 11_000 || bench.standing() == (0, 0), "at {ms} ms it serves what it cannot purge");
    }
    assert!(left_at.is_some_and(|ms| ms <= 21_100), "{left_at:?}");
    let problems = bench.machine.figures(at(29_900)).problems;
    assert!(problems[0].what.contains("its store does not apply purges (read-only)"), "{problems:?}");
    assert!(problems[0].remedy.contains("the store's problems"), "{problems:?}");
}

/// It says nothing about purges that were applied by the others while this node was no member.
#[test]
fn reads_before_join_are_outdated() {
    let mut bench = MachineBench::new(FleetRules::default(), mark(FLEET, 20));
    let join = |bench: &mut MachineBench, lease, ms| {
        bench.tick_at(ms).event(FleetEvent::LeaseGranted { lease, asked: at(ms) });
        bench.event(FleetEvent::Joined { lease, identity: FLEET });
    };
    join(&mut bench, LEASE, 1000);
    assert!(bench.take().contains(&FleetAction::Read { above: mark(FLEET, 20) }));
    bench.event(FleetEvent::LeaseEnded { lease: LEASE });
    join(&mut bench, LEASE + 1, 20_000);
    bench.take();
    bench.event(FleetEvent::LogRead(snapshot(0, Vec::new()).with_newest(20)));
    assert_eq!(bench.standing(), (0, 0), "the log may have more meanwhile");
    assert_eq!(bench.take(), [FleetAction::Read { above: mark(FLEET, 20) }]);
    bench.event(FleetEvent::LogRead(snapshot(0, vec![purge(70)])));
    assert_eq!(bench.applies().map(|it| it.1), Some(vec![purge(70)]));
}

#[test]
fn long_read_keeps_lease() {
    let mut bench = MachineBench::new(FleetRules::default(), mark(FLEET, 20));
    bench.event(FleetEvent::Tick).event(FleetEvent::LeaseGranted { lease: LEASE, asked: at(1000) });
    bench.event(FleetEvent::Joined { lease: LEASE, identity: FLEET }).take();
    for ms in (3500..60_000).step_by(2500) {
        assert_eq!(bench.tick_at(ms).take(), [FleetAction::KeepLease { lease: LEASE }], "at {ms} ms");
        bench.event(FleetEvent::LeaseKept { lease: LEASE, asked: at(ms) });
    }
    bench.event(FleetEvent::ReadFailed { why: "no answer".to_owned() });
    assert!(!bench.tick_at(61_000).take().contains(&FleetAction::KeepLease { lease: LEASE }), "it is no better twice");
}

/// Its key was removed, or etcd has ended its lease: what it confirms would not count.
#[test]
fn missing_own_key_shuts_gate() {
    let mut bench = MachineBench::member(FleetRules::default(), &["b"]);
    bench.event(FleetEvent::PurgeRequested { ticket: 1, purge: purge(0).purge, wish: PurgeWish::Applied });
    bench.event(FleetEvent::Appended { ticket: 1, revision: 20, living: Vec::new() });
    assert_eq!(bench.machine.gate().member_until, Duration::ZERO);
    assert!(bench.take().contains(&FleetAction::RevokeLease { lease: LEASE }));
    assert_eq!(bench.answer(), None, "this node has not applied it");
}

#[test]
fn revisions_given_twice_apply_nothing() {
    let mut bench = MachineBench::member(FleetRules::default(), &[]);
    bench.event(FleetEvent::PurgeRequested { ticket: 1, purge: purge(0).purge, wish: PurgeWish::Applied });
    bench.event(FleetEvent::Appended { ticket: 1, revision: 9, living: vec![name("a")] });
    assert_eq!(bench.machine.gate().member_until, Duration::ZERO);
    assert!(matches!(bench.answer(), Some(Err(FleetError::Unknown(_)))));
}

#[test]
fn failed_publications_pause_and_are_shown() {
    let mut bench = MachineBench::member(FleetRules::default(), &[]);
    bench.changed(vec![LogChange::Purge(purge(15))], 15);
    let (batch, ..) = bench.applies().expect("a batch");
    bench.event(FleetEvent::BatchApplied { batch }).take();
    bench.event(FleetEvent::PublishFailed { lease: LEASE });
    let is_publish = |action: &FleetAction| matches!(action, FleetAction::Publish { .. });
    assert!(!bench.tick_at(1100).take().iter().any(is_publish));
    assert!(bench.machine.figures(at(1100)).problems.iter().any(|it| it.what.contains("cannot learn")));
    assert!(bench.tick_at(1300).take().iter().any(is_publish));
    bench.event(FleetEvent::Published { lease: LEASE, revision: 15 });
    assert_eq!(bench.machine.figures(at(1300)).problems, []);
}

#[test]
fn unconfirming_nodes_are_shown() {
    let mut bench = MachineBench::member(FleetRules::default(), &["b"]);
    let is_shown =
        |bench: &MachineBench, ms| bench.machine.figures(at(ms)).problems.iter().any(|it| it.what.contains("node b"));
    bench.changed(vec![LogChange::Purge(purge(15))], 15);
    assert!(!is_shown(&bench, 6000) && is_shown(&bench, 6001));
    bench.now_ms = 7000;
    bench.changed(vec![LogChange::Applied(name("b"), 15)], 16);
    assert!(!is_shown(&bench, 20_000));
}

#[test]
fn purges_fail_or_queue_when_cut() {
    let wanted = |ticket| FleetEvent::PurgeRequested { ticket, purge: purge(0).purge, wish: PurgeWish::Applied };
    let mut bench = MachineBench::new(FleetRules::default(), AppliedMark::NONE);
    assert!(matches!(bench.event(wanted(1)).answer(), Some(Err(FleetError::Away(_)))));
    let rules = FleetRules { queues_when_cut: true, queue_max: 1, ..FleetRules::default() };
    let mut bench = MachineBench::member(rules, &[]);
    bench.event(FleetEvent::LeaseEnded { lease: LEASE });
    bench.take();
    bench.event(wanted(1));
    assert!(bench.actions.contains(&FleetAction::ApplyHere { purge: purge(0).purge }), "at once on this node");
    assert!(bench.answer().expect("an answer").expect("queued").is_queued && bench.machine.required() == u64::MAX);
    assert_eq!(bench.event(wanted(2)).answer(), Some(Err(FleetError::QueueFull(1))));
    bench.event(FleetEvent::LeaseGranted { lease: LEASE, asked: at(1000) });
    bench.event(FleetEvent::Joined { lease: LEASE, identity: FLEET });
    assert!(bench.take().contains(&FleetAction::Append { ticket: 1, purge: purge(0).purge }));
    bench.event(FleetEvent::AppendFailed { ticket: 1, is_unknown: true, why: "no answer".to_owned() });
    assert!(bench.tick_at(2000).take().contains(&FleetAction::Append { ticket: 1, purge: purge(0).purge }));
    bench.event(FleetEvent::Appended { ticket: 1, revision: 70, living: Vec::new() });
    assert_eq!((bench.machine.figures(at(2000)).purges_queued, bench.machine.required()), (0, 70));
    bench.event(FleetEvent::LeaseEnded { lease: LEASE });
    bench.event(FleetEvent::LeaseGranted { lease: LEASE + 1, asked: at(2000) });
    bench.event(FleetEvent::Joined { lease: LEASE + 1, identity: FLEET + 1 });
    assert_eq!(bench.machine.required(), 0, "revisions of another fleet mean nothing, and nobody would be asked");
}

#[test]
fn purges_beyond_the_rate_are_refused() {
    let mut bench = MachineBench::member(FleetRules { purge_rate: (2, at(1000)), ..FleetRules::default() }, &[]);
    let purge = purge(0).purge;
    for ticket in 0..3 {
        bench.event(FleetEvent::PurgeRequested { ticket, purge: purge.clone(), wish: PurgeWish::Applied });
    }
    assert!(matches!(bench.answer(), Some(Err(FleetError::TooMany(_)))));
    let scope = PurgeScope::Tags(vec![vec![b'a'; 8193]]);
    let large = FleetPurge { scope, ..FleetPurge::EVERYTHING };
    bench.event(FleetEvent::PurgeRequested { ticket: 9, purge: large, wish: PurgeWish::Applied });
    assert!(matches!(bench.answer(), Some(Err(FleetError::TooLarge(_)))));
}

#[test]
fn leaving_shuts_the_gate_first() {
    let mut bench = MachineBench::member(FleetRules::default(), &[]);
    bench.event(FleetEvent::PurgeRequested { ticket: 1, purge: purge(0).purge, wish: PurgeWish::Applied });
    bench.take();
    bench.event(FleetEvent::Leave);
    assert_eq!(bench.standing(), (0, 0));
    let actions = bench.take();
    assert!(actions.contains(&FleetAction::RevokeLease { lease: LEASE }));
    assert!(matches!(actions[0], FleetAction::Answer { result: Err(FleetError::Unknown(_)), .. }));
    assert!(!bench.tick_at(60_000).take().contains(&FleetAction::GrantLease));
}

#[test]
fn removed_node_key_causes_rejoin() {
    let mut bench = MachineBench::member(FleetRules::default(), &[]);
    bench.changed(vec![LogChange::NodeGone(name("a"))], 20);
    assert_eq!(bench.take(), [FleetAction::RevokeLease { lease: LEASE }, FleetAction::GrantLease]);
    assert_eq!(bench.machine.gate().member_until, Duration::ZERO);
}

/// They would be applied with a mark of the other fleet, whose revisions mean something else.
#[test]
fn purges_of_earlier_fleets_are_forgotten() {
    let mut bench = MachineBench::member(FleetRules::default(), &["b"]);
    let (batch, ..) = bench.changed(vec![LogChange::Purge(purge(15))], 15).applies().expect("a batch");
    bench.event(FleetEvent::LogReviewed(LogTotals { purges: 2, bytes: 200 }));
    bench.changed(vec![LogChange::Purge(purge(16)), LogChange::Identity(Some(FLEET + 1))], 17);
    bench.event(FleetEvent::LeaseGranted { lease: LEASE + 1, asked: at(1000) });
    bench.event(FleetEvent::Joined { lease: LEASE + 1, identity: FLEET + 1 });
    bench.event(FleetEvent::BatchFailed { batch, why: "full".to_owned() });
    assert_eq!(bench.tick_at(9000).applies(), None);
    assert_eq!(bench.machine.figures(at(9000)).log_purges, 0, "those of the earlier fleet are not counted");
    bench.event(FleetEvent::LogRead(LogSnapshot { identity: FLEET + 1, ..snapshot(0, vec![purge(12)]) }));
    assert_eq!(bench.applies().map(|it| (it.1, it.2)), Some((vec![everything(12)], 12)));
}

/// The revision in a late answer is above all that the present etcd has.
#[test]
fn late_publication_in_earlier_fleet_is_ignored() {
    let mut bench = MachineBench::member(FleetRules::default(), &["b"]);
    let (batch, ..) = bench.changed(vec![LogChange::Purge(purge(99))], 99).applies().expect("a batch");
    bench.event(FleetEvent::BatchApplied { batch }).take();
    bench.changed(vec![LogChange::Identity(Some(FLEET + 1))], 100);
    let lease = LEASE + 1;
    bench.event(FleetEvent::LeaseGranted { lease, asked: at(1000) });
    bench.event(FleetEvent::Joined { lease, identity: FLEET + 1 });
    bench.event(FleetEvent::LogRead(LogSnapshot { identity: FLEET + 1, ..snapshot(0, vec![purge(12)]) }));
    bench.event(FleetEvent::Published { lease: LEASE, revision: 99 });
    let (batch, ..) = bench.applies().expect("everything is purged");
    bench.event(FleetEvent::BatchApplied { batch }).tick_at(3000);
    assert!(bench.take().contains(&FleetAction::Publish { lease, revision: 12 }));
}

/// Some nodes may have confirmed a purge that its caller still waits for.
#[test]
fn leaving_node_names_only_missing_nodes() {
    let mut bench = MachineBench::member(FleetRules::default(), &["b", "c"]);
    bench.event(FleetEvent::PurgeRequested { ticket: 1, purge: purge(0).purge, wish: PurgeWish::Applied });
    bench.event(FleetEvent::Appended { ticket: 1, revision: 15, living: ["a", "b", "c"].map(name).to_vec() });
    bench.changed(vec![LogChange::Purge(purge(15)), LogChange::Applied(name("c"), 15)], 16);
    let outcome = bench.event(FleetEvent::Leave).answer().expect("an answer").expect("in the log");
    assert_eq!((outcome.missing, outcome.is_applied), (["a", "b"].map(name).to_vec(), false));
}
