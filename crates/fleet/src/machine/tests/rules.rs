//! Rules that make keys: nodes whose rules differ, purges by other rules, and the way back to earlier ones.

use super::*;

#[test]
fn other_rules_shut_the_gate() {
    let mut bench = MachineBench::member(FleetRules::default(), &["b", "c"]);
    bench.event(FleetEvent::RulesChanged(RulesHash(2)));
    assert!(matches!(bench.take()[..], [FleetAction::Rewrite { lease: LEASE, .. }]));
    assert_eq!((bench.standing(), bench.machine.state(at(1000))), ((0, 0), FleetState::RulesDiffer));
    let wanted = FleetEvent::PurgeRequested { ticket: 1, purge: purge(0).purge, wish: PurgeWish::Accepted };
    assert_eq!(bench.event(wanted).answer(), Some(Err(FleetError::RulesDiffer)));
    bench.changed(vec![LogChange::Purge(purge(15))], 15);
    let (batch, ..) = bench.applies().expect("it applies purges nevertheless");
    bench.event(FleetEvent::BatchApplied { batch });
    assert_eq!(bench.applies(), None, "its objects have the rules 1 still");
    bench.changed(vec![other_rules("b")], 16);
    assert_eq!(bench.standing(), (0, 0), "the store must know the rules first");
    let (batch, purges, revision) = bench.applies().expect("a batch");
    assert_eq!((purges, revision), (Vec::new(), 15), "nothing has missed a purge");
    bench.event(FleetEvent::BatchApplied { batch });
    assert_eq!(bench.standing(), (10_000, 61_000));
}

fn other_rules(name: &str) -> LogChange {
    LogChange::Node(FleetNode { rules: RulesHash(2), ..node(name, 3) })
}

/// Another node may not know yet that its rules are no longer those of most nodes.
#[test]
fn purges_by_other_rules_purge_everything() {
    let mut bench = MachineBench::member(FleetRules::default(), &["b", "c"]);
    bench.event(FleetEvent::Published { lease: LEASE, revision: 10 }).tick_at(1050);
    bench.changed(vec![LogChange::Purge(foreign(15)), LogChange::Purge(purge(16))], 16);
    let (batch, purges, revision) = bench.applies().expect("a batch");
    assert_eq!((purges.len(), revision), (2, 16));
    bench.event(FleetEvent::BatchApplied { batch });
    assert_eq!(bench.standing(), (0, 0), "it says that it has applied them, and serves nothing that they missed");
    let actions = bench.take();
    assert!(actions.contains(&FleetAction::Publish { lease: LEASE, revision: 16 }));
    bench.actions = actions;
    let (batch, purges, revision) = bench.applies().expect("a batch");
    assert_eq!((purges, revision), (vec![everything(16)], 16));
    bench.event(FleetEvent::BatchApplied { batch });
    assert_eq!((bench.standing(), bench.machine.mark()), ((10_000, 61_000), mark(FLEET, 16)));
    bench.changed(
        vec![LogChange::Purge(LoggedPurge {
            revision: 17,
            purge: FleetPurge { rules: RulesHash(2), ..FleetPurge::EVERYTHING },
        })],
        17,
    );
    let (batch, ..) = bench.applies().expect("a batch");
    bench.event(FleetEvent::BatchApplied { batch });
    assert_eq!((bench.standing(), bench.applies()), ((10_000, 61_000), None), "it misses nothing");
}

#[test]
fn missed_purges_are_remembered_across_restart() {
    let mut bench = MachineBench::member(FleetRules::default(), &[]);
    bench.changed(vec![LogChange::Purge(foreign(15))], 15);
    let (batch, ..) = bench.applies().expect("a batch");
    bench.event(FleetEvent::BatchApplied { batch });
    let durable = bench.machine.mark();
    let mut bench = MachineBench::joined(FleetRules::default(), durable, snapshot(0, Vec::new()).with_newest(15));
    assert_eq!(bench.standing(), (0, 0));
    let (batch, purges, revision) = bench.applies().expect("a batch");
    assert_eq!((purges, revision), (vec![everything(15)], 15));
    bench.event(FleetEvent::BatchApplied { batch });
    assert_eq!(bench.standing(), (10_000, 61_000));
}

/// What the rules 1 have stored has missed what was purged by the rules 2, also if the process began between.
#[test]
fn returning_to_earlier_rules_purges_everything() {
    let mut store = mark(FLEET, 20);
    for (rules, purged) in [(1, false), (2, false), (1, true), (3, false)] {
        let mut log = snapshot(0, Vec::new()).with_newest(20);
        log.nodes[0].0.rules = RulesHash(rules);
        let mut bench = MachineBench::new(FleetRules::default(), store);
        bench.machine.on_event(at(1000), FleetEvent::RulesChanged(RulesHash(rules)));
        bench.event(FleetEvent::Tick).event(FleetEvent::LeaseGranted { lease: LEASE, asked: at(1000) });
        bench.event(FleetEvent::Joined { lease: LEASE, identity: FLEET }).event(FleetEvent::LogRead(log));
        assert_eq!(bench.standing() == (0, 0), rules != 1 || purged, "{rules}");
        if let Some((batch, purges, _)) = bench.applies() {
            assert_eq!(purges, if purged { vec![everything(20)] } else { Vec::new() }, "{rules}");
            bench.event(FleetEvent::BatchApplied { batch });
        }
        assert_eq!(bench.standing(), (10_000, 61_000), "{rules}");
        store = bench.machine.mark();
    }
}

#[test]
fn lost_rewrites_are_sent_again() {
    let mut bench = MachineBench::member(FleetRules::default(), &["b"]);
    let is_rewrite =
        |action: &FleetAction| matches!(action, FleetAction::Rewrite { node, .. } if node.rules == RulesHash(2));
    bench.event(FleetEvent::RulesChanged(RulesHash(2)));
    assert!(bench.take().iter().any(is_rewrite));
    assert!(!bench.tick_at(2000).take().iter().any(is_rewrite), "it is under way");
    bench.changed(vec![LogChange::Node(node("a", 3))], 13);
    assert_eq!(bench.machine.view().node(&name("a")).map(|node| node.rules), Some(RulesHash(2)), "its own word counts");
    assert!(bench.tick_at(3500).take().iter().any(is_rewrite), "nothing came of it");
    bench.changed(vec![other_rules("a")], 14);
    assert!(!bench.tick_at(9000).take().iter().any(is_rewrite));
}

#[test]
fn differing_rules_are_counted() {
    let mut bench = MachineBench::member(FleetRules::default(), &["b", "c"]);
    bench.changed(vec![LogChange::Node(FleetNode { rules: RulesHash(9 << 96), ..node("c", 3) })], 13);
    let problems = bench.machine.figures(at(1000)).problems;
    assert!(problems[0].what.ends_with("at node c: 00000000 at 2 of 3, 00000009 at 1 of 3"), "{problems:?}");
}
