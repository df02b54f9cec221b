//! A sample of fleets under faults, and planted bugs; `sim-campaigns fleet` runs more.

use nectary_sim::fleet::{FleetBug, replay_planted, run_many, run_planted};

use crate::support::{seed_or, unplanted};

/// The number of runs.
const RUNS: u64 = 2000;
/// A planted bug must be caught within this many runs.
const PLANTED_RUNS_MAX: u64 = 4000;

#[test]
fn applied_purges_hold_everywhere() {
    let _unplanted = unplanted();
    let seed = seed_or(1_000_000);
    let report = run_many(seed, RUNS, (0, 1), |_| true);
    println!("seed {seed}: {report:?}");
    assert!(report.broken.is_empty(), "seed {seed}: {}", report.broken.join("\n"));
    assert!(report.is_enough(), "not everything that can happen happened often enough: {report:?}");
}

#[test]
fn planted_fleet_bugs_are_caught() {
    let _unplanted = unplanted();
    let seed = seed_or(1_000_000);
    for bug in FleetBug::EVERY {
        let caught = run_planted(*bug, seed, PLANTED_RUNS_MAX);
        println!("planted: {}: {caught:?}", bug.name());
        let Some(caught) = caught else { panic!("{} survived", bug.name()) };
        assert_eq!(replay_planted(*bug, caught.case.seed).as_ref(), Some(&caught), "a seed repeats its run");
    }
}
