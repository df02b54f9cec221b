//! A sample of the model run of the store; `store-model` runs a million operations.

use nectary_sim::store::random_run::{RunOptions, run};
use nectary_store::BackgroundRuntime;

use crate::support::{seed_or, unplanted};

fn options(seed: u64, operations: u64) -> RunOptions {
    RunOptions {
        seed,
        operations,
        keys: 10_000,
        operations_per_restart: 4_000,
        damage_per_restart: 4,
        store_bytes: 64 << 20,
        is_late: false,
        background: BackgroundRuntime::Threads,
        stops_at_difference: false,
        plant_wrong_model: false,
    }
}

/// Records are damaged between restarts; only damaged objects may be missing.
#[tokio::test]
async fn store_matches_model_through_restarts() {
    let _unplanted = unplanted();
    let seed = seed_or(11);
    let report = run(options(seed, 100_000), |_| {}).await;
    println!("seed {seed}: {report:?}");
    assert!(report.differences.is_empty(), "{}", report.differences.join("\n"));
    assert!(report.demanded_missing <= report.damaged_places, "{report:?}");
    assert!(
        report.demanded > 0
            && report.restarts == 25
            && report.reinserted > 0
            && report.neighbours > 0
            && report.regrouped > 0
            && report.kept > 0
            && report.purged_by_tag > 0
            && report.stale_hits > 0
            && report.unadmitted > 0
            && report.admitted_replacing > 0
            && report.budget_used_max > 0.0,
        "{report:?}"
    );
}

/// The operations of the device end late, and in any order.
#[tokio::test(start_paused = true)]
async fn store_matches_model_on_late_device() {
    let _unplanted = unplanted();
    let options = RunOptions { is_late: true, background: BackgroundRuntime::Caller, ..options(12, 20_000) };
    let report = run(options, |_| {}).await;
    println!("{report:?}");
    assert!(report.differences.is_empty(), "{}", report.differences.join("\n"));
    assert!(report.demanded_missing <= report.damaged_places && report.demanded > report.hits / 2, "{report:?}");
}

#[tokio::test]
async fn wrong_model_is_noticed() {
    let _unplanted = unplanted();
    let report = run(RunOptions { plant_wrong_model: true, ..options(11, 20_000) }, |_| {}).await;
    assert!(!report.differences.is_empty());
}
