//! A sample of the runs with many concurrent clients; `store-concurrent` runs more.

use nectary_sim::store::concurrent::crash;
use nectary_sim::store::concurrent::{OPERATIONS, replay_planted, run_many, run_planted};
use nectary_store::planted::Bug;

use crate::support::{alone, seed_or};

fn seed() -> u64 {
    seed_or(1_000_000)
}

#[test]
fn concurrent_store_clients_are_linearizable() {
    let _alone = alone();
    let report = run_many(seed(), 2000, |_| true);
    println!("seed {}: {report:?}", seed());
    println!("{}", report.situations.describe());
    assert!(report.broken.is_empty(), "{}", report.broken.join("\n"));
    assert!(
        report.operations >= OPERATIONS * report.runs
            && report.overlapping * 100 >= report.operations * 4
            && report.hits * 100 >= report.gets * 30
            && report.demanded * 100 >= report.gets * 10
            && report.gets_lapped * 10 >= report.runs
            && report.faults() >= report.runs,
        "{report:?}"
    );
    let missing = report.situations.missing();
    assert!(missing.is_empty(), "never reached: {missing:?}");
    for bug in Bug::CONCURRENT {
        let caught = run_planted(bug, seed(), 10_000);
        println!("planted: {}: {caught:?}", bug.name());
        let Some(caught) = caught else { panic!("{} survived", bug.name()) };
        assert_eq!(replay_planted(bug, caught.case.seed), Some(caught), "a seed repeats its run");
    }
    let states = crash::run(seed(), 600, 60, |_| true);
    println!("{states:?}");
    assert!(states.broken.is_empty(), "{}", states.broken.join("\n"));
    assert!(states.in_flight > 0 && states.demanded > 0, "{states:?}");
}
