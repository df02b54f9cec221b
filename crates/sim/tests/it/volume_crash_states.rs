//! A sample of crash states of a shared volume under real clients and a real server; `volume-crash-states` runs more.

use nectary_sim::volume_clients::run::{BUGS, ClientRunPlan, run, run_planted};
use nectary_volume::planted::Bug;

use crate::support::{alone, seed_or};

/// Seeds that catch the planted bugs. A seed fixes nearly everything of a run, so the next ones are tried, too.
const PLANTED: [(Bug, u64); 4] = [
    (Bug::CommitBeforeFlush, 1_000_004),
    (Bug::AnsweredEarly, 1_000_000),
    (Bug::ShownEarly, 1_000_001),
    (Bug::SizeBeforeData, 1_000_000),
];
/// A planted bug must be caught within this many runs.
const PLANTED_RUNS_MAX: u64 = 20;
/// The states of each of them.
const PLANTED_STATES: u64 = 60;
/// The minimum number of distinct images of the sample.
const DISTINCT_MIN: u64 = 60;

fn seed() -> u64 {
    seed_or(1_000_000)
}

/// What another session has seen survives, too; each planted bug is caught.
#[test]
fn synced_changes_survive_every_crash() {
    let _alone = alone();
    let amount = ClientRunPlan { seed: seed(), runs: 4, states_per_run: 20 };
    let report = run(amount, |_| {});
    println!("seed {}: {report:?}", seed());
    assert_eq!(report.violation_count, 0, "seed {}: {}", seed(), report.violations.join("\n"));
    assert!(report.distinct >= DISTINCT_MIN && report.files > 0, "{report:?}");
    assert_eq!(PLANTED.map(|(bug, _)| bug), BUGS);
    for (bug, seed) in PLANTED {
        let caught = run_planted(bug, ClientRunPlan { seed, runs: PLANTED_RUNS_MAX, states_per_run: PLANTED_STATES });
        println!("planted: {}: {caught:?}", bug.name());
        assert!(caught.is_some(), "{} survived", bug.name());
    }
}
