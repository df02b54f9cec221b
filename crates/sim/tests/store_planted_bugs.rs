//! The crash-state check and the model run catch each planted bug. Alone in its process, because a bug is planted process-wide.

use nectary_sim::store::crash_run::{CrashRunOptions, run_planted};
use nectary_sim::store::random_run::{self, RunOptions};
use nectary_store::planted::Bug;

#[tokio::test]
async fn each_planted_bug_is_caught() {
    for bug in Bug::ALL {
        let options =
            CrashRunOptions { seed: 7_000_000, workloads: 100, states_per_workload: 100, stop_at_violation: true };
        let caught = run_planted(bug, options).await;
        println!("planted: {}: {caught:?}", bug.name());
        assert!(caught.is_some(), "{} survived", bug.name());
    }
    for bug in Bug::RUNNING.into_iter().chain(Bug::ADMISSION) {
        let options = RunOptions {
            seed: 11,
            operations: 100_000,
            keys: 10_000,
            operations_per_restart: 8_000,
            damage_per_restart: 0,
            store_bytes: 64 << 20,
            is_late: false,
            plant_wrong_model: false,
        };
        assert!(random_run::run_planted(bug, options).await, "{} survived in a running store", bug.name());
    }
}
