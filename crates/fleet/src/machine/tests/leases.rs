//! Leases that count, names that two processes have, and what a member may serve while it reads the log.

use super::*;

fn problems(bench: &MachineBench, ms: u64) -> Vec<(String, String)> {
    let found = bench.machine.figures(at(ms)).problems;
    found.into_iter().map(|problem| (problem.what, problem.remedy)).collect()
}

fn says(bench: &MachineBench, ms: u64, what: &str, remedy: &str) -> bool {
    problems(bench, ms).iter().any(|problem| problem.0.contains(what) && problem.1.contains(remedy))
}

/// As long as the lease holds, each purge waits for this node, so nothing can be applied that it has not seen.
#[test]
fn compacted_watches_leave_the_gate_open() {
    let mut bench = MachineBench::member(FleetRules { serve_when_cut: Duration::ZERO, ..FleetRules::default() }, &[]);
    let compacted = || FleetEvent::WatchEnded { end: WatchEnd::Compacted, why: "compacted".to_owned() };
    bench.event(compacted());
    let mark = bench.machine.mark();
    assert_eq!(bench.tick_at(2000).take(), [FleetAction::Read { above: mark }]);
    assert_eq!(bench.standing(), (10_000, 10_000));
    bench.event(FleetEvent::LogRead(snapshot(0, vec![purge(44)])));
    assert_eq!(bench.standing(), (10_000, 10_000));
    let actions = bench.take();
    assert!(actions.contains(&FleetAction::Watch { from: 61 }));
    bench.actions = actions;
    let (batch, purges, _) = bench.applies().expect("a batch");
    assert_eq!(purges, [purge(44)]);
    bench.event(FleetEvent::BatchApplied { batch }).event(compacted());
    bench.tick_at(5000).take();
    bench.event(FleetEvent::LogRead(snapshot(50, vec![purge(55)])));
    assert_eq!(bench.standing(), (0, 0), "it does not know what it has missed");
    let (batch, purges, _) = bench.applies().expect("a batch");
    assert_eq!(purges, [everything(55)]);
    bench.event(FleetEvent::BatchApplied { batch });
    assert_eq!(bench.standing(), (10_000, 10_000));
}

/// A lease alone makes no member: the key may have been removed, or the fleet be another one.
#[test]
fn leases_without_own_key_are_given_back() {
    let mut bench = MachineBench::member(FleetRules::default(), &[]);
    assert_eq!(bench.tick_at(3500).take(), [FleetAction::KeepLease { lease: LEASE }]);
    bench.event(FleetEvent::KeyMissing { lease: LEASE, asked: at(3500) });
    assert!(bench.take().contains(&FleetAction::RevokeLease { lease: LEASE }));
    assert_eq!(bench.machine.gate().member_until, Duration::ZERO);
}

#[test]
fn leases_are_kept_before_a_join() {
    let mut bench = MachineBench::new(FleetRules::default(), mark(FLEET, 20));
    bench.event(FleetEvent::Tick).event(FleetEvent::LeaseGranted { lease: LEASE, asked: at(1000) }).take();
    assert_eq!(bench.tick_at(3500).take(), [FleetAction::KeepLease { lease: LEASE }]);
    bench.event(FleetEvent::Joined { lease: LEASE, identity: FLEET });
    bench.event(FleetEvent::KeyMissing { lease: LEASE, asked: at(3500) });
    bench.event(FleetEvent::LogRead(snapshot(0, Vec::new()).with_newest(20)));
    assert_eq!(bench.standing(), (12_500, 63_500), "it had no key when it asked");
}

/// Its clock stood still, and etcd's did not.
#[test]
fn pauses_of_the_host_shorten_the_lease() {
    let mut bench = MachineBench::member(FleetRules::default(), &[]);
    bench.now_ms = 20_000;
    bench.changed(Vec::new(), 12).event(FleetEvent::LeaseKept { lease: LEASE, asked: at(20_000) }).take();
    assert_eq!(bench.standing(), (29_000, 80_000));
    bench.now_ms = 21_000;
    bench.event(FleetEvent::Paused { time: at(15_000) });
    assert_eq!((bench.standing(), bench.machine.state(at(21_000))), ((14_000, 65_000), FleetState::Away));
    assert_eq!(bench.take(), [FleetAction::KeepLease { lease: LEASE }]);
    bench.event(FleetEvent::LeaseKept { lease: LEASE, asked: at(20_900) });
    assert_eq!(bench.standing(), (14_000, 65_000), "it was sent before the pause");
    bench.event(FleetEvent::LeaseKept { lease: LEASE, asked: at(21_000) });
    assert_eq!(bench.standing(), (30_000, 81_000));
}

#[test]
fn leases_from_before_a_pause_are_over() {
    let mut bench = MachineBench::new(FleetRules::default(), mark(FLEET, 20));
    bench.tick_at(100_000);
    bench.now_ms = 101_000;
    bench.event(FleetEvent::Paused { time: at(60_000) });
    bench.event(FleetEvent::LeaseGranted { lease: LEASE, asked: at(100_000) });
    bench.event(FleetEvent::Joined { lease: LEASE, identity: FLEET });
    bench.event(FleetEvent::LogRead(snapshot(0, Vec::new()).with_newest(20)));
    assert_eq!(bench.machine.state(at(101_000)), FleetState::Away);
    assert!(bench.take().contains(&FleetAction::KeepLease { lease: LEASE }));
}

#[test]
fn two_processes_of_one_name_are_shown() {
    let mut bench = MachineBench::new(FleetRules::default(), AppliedMark::NONE);
    bench.event(FleetEvent::Tick).event(FleetEvent::LeaseGranted { lease: LEASE, asked: at(1000) });
    let taken = |is_gone| FleetEvent::NameTaken { process: "host b, process 7".to_owned(), is_gone };
    bench.event(taken(false));
    assert!(says(&bench, 1000, "another process (host b, process 7) is the node a", "another `node`"));
    let wanted = FleetEvent::PurgeRequested { ticket: 1, purge: purge(0).purge, wish: PurgeWish::Accepted };
    let refused = bench.event(wanted).answer().expect("an answer").expect_err("it is no member").to_string();
    assert!(refused.contains("is the node a: send it to that one"), "{refused}");
    bench.event(taken(true));
    assert!(says(&bench, 1000, "(host b, process 7) has ended: wait up to 10 s for its lease", "wait; if this lasts"));
    bench.event(FleetEvent::JoinFailed { why: "no answer".to_owned() });
    assert!(says(&bench, 1000, "no answer", "see whether etcd is up"));
    let mut bench = MachineBench::member(FleetRules::default(), &[]);
    assert_eq!(problems(&bench, 1000), []);
    bench.changed(vec![LogChange::Claimed("host c, process 8".to_owned())], 13);
    assert!(says(&bench, 10_900, "(host c, process 8) would be the node a, too", "another `node`"));
    assert!(!says(&bench, 11_000, "host c", ""), "it has not said so again");
}

/// `serve-when-cut` ends when it knows what it must not serve.
#[test]
fn returning_nodes_serve_no_known_purges() {
    let mut bench = MachineBench::member(FleetRules::default(), &[]);
    bench.event(FleetEvent::LeaseEnded { lease: LEASE });
    bench.tick_at(20_000).event(FleetEvent::LeaseGranted { lease: LEASE + 1, asked: at(20_000) });
    bench.event(FleetEvent::Joined { lease: LEASE + 1, identity: FLEET }).take();
    assert_eq!(bench.standing(), (0, 61_000));
    bench.event(FleetEvent::LogRead(snapshot(0, vec![purge(44)])));
    assert_eq!(bench.standing(), (0, 0), "it would serve what it knows to be purged");
    let (batch, ..) = bench.applies().expect("a batch");
    bench.event(FleetEvent::BatchApplied { batch });
    assert_eq!(bench.standing(), (29_000, 80_000));
}

#[test]
fn reading_the_log_is_shown() {
    let mut bench = MachineBench::new(FleetRules::default(), mark(FLEET, 20));
    bench.event(FleetEvent::Tick).event(FleetEvent::LeaseGranted { lease: LEASE, asked: at(1000) });
    bench.event(FleetEvent::Joined { lease: LEASE, identity: FLEET });
    assert!(says(&bench, 1000, "reads the log of purges", "see whether etcd is up"));
    bench.event(FleetEvent::LogRead(snapshot(0, vec![purge(30), purge(31)])));
    assert!(says(&bench, 1000, "applies 2 purges that it missed", "see the store's problems"));
}

/// Questions for one of them come to the other, which is no owner of these keys.
#[test]
fn nodes_with_one_address_are_shown() {
    let mut bench = MachineBench::member(FleetRules::default(), &["b", "c"]);
    bench.changed(vec![LogChange::Node(FleetNode { address: "a:7443".to_owned(), ..node("c", 13) })], 13);
    assert!(says(&bench, 1000, "nodes a and c have the same `address` a:7443", "give each node"));
    bench.changed(vec![LogChange::Node(FleetNode { address: String::new(), ..node("c", 14) })], 14);
    bench.changed(vec![LogChange::Node(FleetNode { address: String::new(), ..node("b", 15) })], 15);
    assert_eq!(problems(&bench, 1000), [], "they share no keys");
}

#[test]
fn nodes_that_come_and_go_are_logged() {
    let mut bench = MachineBench::member(FleetRules::default(), &["b", "c"]);
    let mut notes = |change, revision| {
        bench.actions.clear();
        bench.changed(vec![change], revision);
        let notes = bench.actions.iter().filter_map(|action| match action {
            FleetAction::Note(text) => Some(text.clone()),
            _ => None,
        });
        notes.collect::<Vec<_>>()
    };
    let gone = notes(LogChange::NodeGone(name("b")), 13);
    assert_eq!(gone, ["fleet: node b is gone: it left, or its lease has ended; nodes now: 2"]);
    let joined = ["fleet: node b has joined; nodes now: 3"];
    assert_eq!(notes(LogChange::Node(node("b", 14)), 14), joined);
    assert_eq!(notes(LogChange::Node(FleetNode { rules: RulesHash(2), ..node("b", 14) }), 15).len(), 0);
    assert_eq!(notes(LogChange::Node(FleetNode { run: 2, ..node("b", 16) }), 16), joined, "another process");
}
