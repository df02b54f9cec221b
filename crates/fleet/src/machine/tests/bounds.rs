//! What is bounded: bytes of purges, purges that wait, and the work for each event.

use std::time::Instant;

use super::*;

/// A purge whose value has about this many thousand bytes.
fn large(revision: u64, thousands: usize) -> LoggedPurge {
    let scope = PurgeScope::Keys(vec![vec![b'a'; 8000]; thousands / 8]);
    LoggedPurge { revision, purge: FleetPurge { scope, ..purge(revision).purge } }
}

/// Else one client fills etcd before anybody looks at the log.
#[test]
fn purges_beyond_the_size_are_refused() {
    let mut bench = MachineBench::member(FleetRules { log_bytes_max: 1 << 20, ..FleetRules::default() }, &[]);
    let mut is_refused = |ticket, ms| {
        bench.now_ms = ms;
        bench.changed(Vec::new(), 12);
        bench.event(FleetEvent::LeaseKept { lease: LEASE, asked: at(ms) });
        let purge = large(0, 200).purge;
        bench.event(FleetEvent::PurgeRequested { ticket, purge, wish: PurgeWish::Accepted });
        let said = bench.answer();
        assert!(said.as_ref().is_none_or(|said| said.as_ref().is_err_and(|it| it.to_string().contains("log-size"))));
        said.is_some()
    };
    let found: Vec<bool> = (0..6).map(|ticket| is_refused(ticket, 2000)).collect();
    assert_eq!(found, [false, false, false, false, false, true]);
    assert!(is_refused(6, 8000) && !is_refused(7, 14_000), "one more in 12 seconds");
}

/// Else a log that is smaller than a purge would take none, and say that there are too many.
#[test]
fn small_logs_take_whole_purges() {
    for queues_when_cut in [false, true] {
        let rules = FleetRules { queues_when_cut, log_bytes_max: 1000, ..FleetRules::default() };
        let mut bench = match queues_when_cut {
            false => MachineBench::member(rules, &[]),
            true => MachineBench::new(rules, AppliedMark::NONE),
        };
        let purge = large(0, 200).purge;
        bench.event(FleetEvent::PurgeRequested { ticket: 1, purge, wish: PurgeWish::Accepted });
        let answer = bench.answer();
        assert!(answer.is_none_or(|answer| answer.is_ok()), "queued: {queues_when_cut}");
    }
}

#[test]
fn queued_purges_have_bounded_bytes() {
    let rules = FleetRules { queues_when_cut: true, log_bytes_max: 1 << 20, ..FleetRules::default() };
    let mut bench = MachineBench::new(rules, AppliedMark::NONE);
    for ticket in 0..7 {
        // Slower than the limit on their rate.
        bench.now_ms += 20_000;
        let purge = large(0, 200).purge;
        bench.event(FleetEvent::PurgeRequested { ticket, purge, wish: PurgeWish::Accepted });
        let answer = bench.answer().expect("an answer");
        assert_eq!(answer.is_ok(), ticket < 5, "{ticket}");
    }
    assert_eq!(bench.machine.figures(at(bench.now_ms)).purges_queued, 5);
}

/// A store that is slower than all other nodes together must not fill the memory.
#[test]
fn waiting_purges_become_one_of_everything() {
    let mut bench = MachineBench::member(FleetRules::default(), &["b"]);
    let (batch, ..) = bench.changed(vec![LogChange::Purge(purge(13))], 13).applies().expect("a batch");
    for revision in 14..380 {
        bench.changed(vec![LogChange::Purge(large(revision, 200))], revision);
    }
    assert!(bench.machine.figures(at(1000)).purges_behind < 40);
    let (_, purges, _) = bench.event(FleetEvent::BatchApplied { batch }).applies().expect("a batch");
    let revision = purges[0].revision;
    assert!(purges[0] == everything(revision) && revision > 300, "{revision}");
    assert_eq!(bench.machine.figures(at(1000)).everything_purged, 1);
}

#[test]
fn large_logs_are_looked_at_sooner() {
    let rules = FleetRules { log_bytes_max: 100_000, ..FleetRules::default() };
    let mut bench = MachineBench::member(rules, &[]);
    bench.event(FleetEvent::LogReviewed(LogTotals { purges: 1, bytes: 50_000 }));
    let mut is_due = |ms, changes| {
        bench.now_ms = ms;
        bench.actions.clear();
        bench.changed(changes, 12 + ms).event(FleetEvent::LeaseKept { lease: LEASE, asked: at(ms) });
        bench.actions.contains(&FleetAction::ReviewLog { may_trim: true })
    };
    assert!(!is_due(2000, vec![LogChange::Purge(large(13, 200))]), "it was just looked at");
    assert!(is_due(6000, Vec::new()) && !is_due(10_999, Vec::new()) && is_due(11_000, Vec::new()));
    bench.event(FleetEvent::LogReviewed(LogTotals { purges: 1, bytes: 90_000 }));
    bench.actions.clear();
    bench.changed(Vec::new(), 20_000).tick_at(17_000);
    assert!(!bench.actions.contains(&FleetAction::ReviewLog { may_trim: true }), "it is small enough");
}

/// The time of one event must not grow with the purges that wait: keeping the lease waits behind it.
#[test]
fn events_do_not_look_at_all_purges() {
    let rules = FleetRules { purge_rate: (u32::MAX, at(1000)), ..FleetRules::default() };
    let time_with = |waiting: u64| {
        let mut bench = MachineBench::member(rules.clone(), &["b"]);
        for ticket in 0..waiting {
            bench.event(FleetEvent::PurgeRequested { ticket, purge: purge(0).purge, wish: PurgeWish::Applied });
            let living = ["a", "b"].map(name).to_vec();
            bench.event(FleetEvent::Appended { ticket, revision: 100 + ticket, living });
        }
        let begun = Instant::now();
        (0..2000).for_each(|_| drop(bench.changed(Vec::new(), 12).take()));
        begun.elapsed().as_secs_f64()
    };
    let (few, many) = (time_with(50), time_with(5000));
    assert!(many < few * 20.0 + 0.01, "{few} s with 50 waiting purges, {many} s with 5000");
}

#[test]
fn lost_queued_purges_are_named() {
    let rules = FleetRules { queues_when_cut: true, ..FleetRules::default() };
    let mut bench = MachineBench::new(rules, AppliedMark::NONE);
    for ticket in 1..=4 {
        let purge = purge(ticket).purge;
        bench.event(FleetEvent::PurgeRequested { ticket, purge, wish: PurgeWish::Accepted });
    }
    bench.event(FleetEvent::Leave);
    let expected = "again: key \"http://a/1\", key \"http://a/2\", key \"http://a/3\", and 1 more";
    let is_told = |action: &FleetAction| matches!(action, FleetAction::Note(text) if text.ends_with(expected));
    assert!(bench.actions.iter().any(is_told), "{:?}", bench.actions);
}
