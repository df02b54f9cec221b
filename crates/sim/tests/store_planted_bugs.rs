//! The crash-state check catches each planted bug. Alone in its process, because a bug is planted process-wide.

use nectary_sim::store::crash_run::{CrashRunOptions, run_planted};
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
}
