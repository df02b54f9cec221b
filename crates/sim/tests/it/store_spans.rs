//! A sample of the runs of stores whose spans are lost and return; `store-spans` runs more.

use nectary_sim::late::in_virtual_time;
use nectary_sim::store::spans_run::{SpansOptions, SpansReport, replay_planted, run, run_planted};
use nectary_store::planted::Bug;

use crate::support::{alone, seed_or};

/// Bugs that are caught within a few stores. The third bug of [`Bug::SPANS`] shows only in one of hundreds of stores;
/// `store-spans` searches for it.
const PLANTED: [Bug; 4] =
    [Bug::ReturningSpanTrusted, Bug::StandInTrusted, Bug::OlderCopyTrusted, Bug::LossDuringPurgeIgnored];

fn run_sample(seed: u64, stores: u64) -> SpansReport {
    let options = SpansOptions { seed, stores, events: 12, keys: 120, stops_at_difference: true };
    in_virtual_time(run(options, |_| {}))
}

/// Replaced objects do not return either, and only objects of lost spans are lost.
#[test]
fn returning_spans_restore_nothing_purged() {
    let _alone = alone();
    let seed = seed_or(3);
    let report = run_sample(seed, 12);
    println!("seed {seed}: {report:?}");
    assert!(report.differences.is_empty(), "{}", report.differences.join("\n"));
    assert!(
        report.losses > 10
            && report.returns > 5
            && report.demanded > 300
            && report.demanded_after_end > 100
            && report.refused > 0
            && report.failed_in_purge.iter().all(|count| *count > 0)
            && report.opened_without > 0
            && report.put_back.iter().all(|count| *count > 0),
        "{report:?}"
    );
    for bug in PLANTED {
        let caught = run_planted(bug, 1000, 400);
        println!("planted: {}: {caught:?}", bug.name());
        let Some(caught) = caught else { panic!("{} survived", bug.name()) };
        assert_eq!(replay_planted(bug, caught.case.seed), Some(caught), "a seed repeats its run");
    }
}
