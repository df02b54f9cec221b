//! A sample of crash states of a shared volume under real clients and a real server; `volume-crash-states` runs more.
//! It is alone in its process, because planted bugs affect the whole process.

use nectary_sim::volume_clients::run::{Amount, BUGS, run, run_planted};

/// A planted bug must be caught within this many runs.
const PLANTED_RUNS_MAX: u64 = 50;
/// The minimum number of distinct images of the sample.
const DISTINCT_MIN: u64 = 60;

fn seed() -> u64 {
    std::env::var("NECTARY_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1_000_000)
}

#[test]
fn what_was_synced_or_seen_is_there_after_any_crash_and_planted_bugs_are_caught() {
    let amount = Amount { seed: seed(), runs: 4, states_per_run: 20 };
    let report = run(amount, |_| {});
    println!("seed {}: {report:?}", seed());
    assert_eq!(report.violation_count, 0, "seed {}: {}", seed(), report.violations.join("\n"));
    assert!(report.distinct >= DISTINCT_MIN && report.files > 0, "{report:?}");
    for bug in BUGS {
        let caught = run_planted(bug, Amount { runs: PLANTED_RUNS_MAX, ..amount });
        println!("planted: {}: {caught:?}", bug.name());
        assert!(caught.is_some(), "{} survived", bug.name());
    }
}
