//! Values in etcd that cannot be right, and a log that is another fleet's.

use super::*;

/// Its transactions compare the identity of the join, so it would confirm nothing.
#[test]
fn logs_of_another_identity_are_not_believed() {
    let mut bench = MachineBench::member(FleetRules::default(), &[]);
    bench.event(FleetEvent::WatchEnded { end: WatchEnd::Compacted, why: "compacted".to_owned() });
    bench.tick_at(2000).take();
    bench.event(FleetEvent::LogRead(LogSnapshot { identity: FLEET + 1, ..snapshot(0, vec![purge(30)]) }));
    let actions = bench.take();
    assert_eq!(actions, [FleetAction::RevokeLease { lease: LEASE }, FleetAction::GrantLease]);
    assert_eq!((bench.machine.gate().member_until, bench.machine.applied()), (Duration::ZERO, 10));
}

#[test]
fn logs_without_own_key_are_not_believed() {
    for other in [node("b", 50), FleetNode { run: 2, ..node("a", 50) }] {
        let log = LogSnapshot { nodes: vec![(other, 0)], ..snapshot(0, Vec::new()) }.with_newest(20);
        let mut bench = MachineBench::joined(FleetRules::default(), mark(FLEET, 20), log);
        assert_eq!(bench.machine.gate().member_until, Duration::ZERO);
        assert!(bench.take().contains(&FleetAction::RevokeLease { lease: LEASE }));
    }
}

/// A floor beyond all revisions would make every later purge known, and every node confirm it.
#[test]
fn revisions_of_the_future_are_damage() {
    let nodes = vec![(node("a", 50), 0), (node("b", 51), u64::MAX)];
    let log = LogSnapshot { floor: u64::MAX, nodes, ..snapshot(0, vec![purge(30)]) };
    let mut bench = MachineBench::joined(FleetRules::default(), mark(FLEET, 20), log);
    let (batch, purges, revision) = bench.applies().expect("a batch");
    assert_eq!((purges, revision), (vec![everything(60)], 60));
    bench.event(FleetEvent::BatchApplied { batch });
    bench.event(FleetEvent::PurgeRequested { ticket: 1, purge: purge(0).purge, wish: PurgeWish::Applied });
    bench.event(FleetEvent::Appended { ticket: 1, revision: 70, living: ["a", "b"].map(name).to_vec() });
    let (batch, purges, _) = bench.changed(vec![LogChange::Purge(purge(70))], 70).applies().expect("a batch");
    assert_eq!(purges, [purge(70)]);
    bench.event(FleetEvent::BatchApplied { batch });
    assert_eq!(bench.answer(), None, "b has not said that");
    bench.changed(vec![LogChange::Applied(name("b"), 99)], 71);
    assert_eq!(bench.answer(), None, "nor that");
    bench.changed(vec![LogChange::Applied(name("b"), 70)], 72);
    assert!(bench.answer().expect("an answer").expect("applied").is_applied);
}

/// The store was of no fleet when the log was read, and is of the earlier one afterwards.
#[test]
fn late_marks_of_earlier_fleets_purge_everything() {
    let mut bench = MachineBench::joined(FleetRules::default(), AppliedMark::NONE, snapshot(0, Vec::new()));
    let (batch, purges, _) = bench.applies().expect("the identity is noted");
    assert_eq!(purges, []);
    bench.changed(vec![LogChange::Identity(Some(FLEET + 1))], 61);
    bench.event(FleetEvent::LeaseGranted { lease: LEASE + 1, asked: at(1000) });
    bench.event(FleetEvent::Joined { lease: LEASE + 1, identity: FLEET + 1 });
    bench.event(FleetEvent::LogRead(LogSnapshot { identity: FLEET + 1, ..snapshot(0, Vec::new()) }));
    assert_eq!(bench.applies(), None, "one at a time");
    bench.event(FleetEvent::BatchApplied { batch });
    let (batch, purges, _) = bench.applies().expect("a batch");
    assert_eq!(purges, [everything(0)]);
    bench.event(FleetEvent::BatchApplied { batch });
    assert_eq!(bench.machine.state(at(1000)), FleetState::Member);
}
