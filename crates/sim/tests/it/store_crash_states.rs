//! A sample of the crash states of the store; `store-crash-states` runs more.

use nectary_sim::store::crash_run::{CrashRunOptions, run};

use crate::support::{seed_or, unplanted};

#[tokio::test]
async fn every_crash_state_keeps_what_was_promised() {
    let _unplanted = unplanted();
    let seed = seed_or(42_000_000);
    let options = CrashRunOptions { seed, workloads: 25, states_per_workload: 60 };
    let report = run(options, |_| {}).await;
    println!(
        "seed {seed}: {} workloads, {} distinct images, {} with live objects, {} objects re-inserted, {} hits demanded, {} broken promises",
        report.workloads, report.distinct, report.live, report.reinserted, report.demanded, report.violation_count
    );
    assert!(report.violations.is_empty(), "{}", report.violations.join("\n"));
    assert!(
        report.reinserted > 0
            && report.tied > 0
            && report.rewritten > 0
            && report.neighbours > 0
            && report.tag_purges > 0,
        "{report:?}"
    );
    // The campaign demands live objects in 95 % of the images. In this small sample, a larger share of the images may
    // be from workloads that do not admit all objects; such images have fewer objects.
    assert!(report.distinct >= 500 && report.live * 100 >= report.distinct * 90, "{report:?}");
}
