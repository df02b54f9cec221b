//! A sample of the crash states of the store, and of chains of crashes; `store-crash-states` and `store-crash-chains` run
//! more.

use nectary_sim::store::chain_run::{self, ChainOptions};
use nectary_sim::store::crash_run::{CrashRunOptions, run};
use nectary_store::planted::Bug;

use crate::support::{alone, replay_of_another_process_says_the_same, seed_or, unplanted};

#[tokio::test]
async fn store_crash_states_keep_promises() {
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

#[test]
fn crashes_in_a_row_keep_promises() {
    let _alone = alone();
    let seed = seed_or(43_000_000);
    let options = ChainOptions { seed, chains: 60, states_per_link: 2 };
    let report = chain_run::run(options, |_| {});
    println!("seed {seed}: {report:?}");
    assert!(report.violations.is_empty(), "{}", report.violations.join("\n"));
    assert!(
        report.power_losses > 30 && report.long_links > 30 && report.rolled_back > 10 && report.demanded > 1000,
        "{report:?}"
    );
    for bug in Bug::CHAINS {
        let caught = chain_run::run_planted(bug, ChainOptions { chains: 1000, ..options });
        println!("planted: {}: {caught:?}", bug.name());
        let Some(caught) = caught else { panic!("{} survived", bug.name()) };
        replay_of_another_process_says_the_same("store-crash-chains", bug.name(), &caught);
    }
}
