//! Names that hosts of a shared volume make and remove themselves: strict coherence, and no loss with a server.

use nectary_sim::volume_local::run::{BUGS, run, run_planted};

use crate::support::{alone, seed_or};

/// The programs of the sample; `NECTARY_RUNS` sets another number.
const RUNS: u64 = 40;
/// A planted bug must be caught within this many programs.
const PLANTED_RUNS_MAX: u64 = 60;

fn runs() -> u64 {
    std::env::var("NECTARY_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(RUNS)
}

#[test]
fn local_names_are_coherent_and_survive() {
    let _alone = alone();
    let first = seed_or(1);
    let report = run(first..first + runs(), |_| {});
    println!("seed {first}: {report:?}");
    assert!(report.violations.is_empty(), "{}", report.violations.join("\n"));
    assert!(report.has_all(), "{report:?}");
}

#[test]
fn planted_bugs_of_local_names_are_caught() {
    let _alone = alone();
    let first = seed_or(1);
    for bug in BUGS {
        let caught = run_planted(bug, first..first + PLANTED_RUNS_MAX);
        println!("planted: {}: {caught:?}", bug.name());
        assert!(caught.is_some(), "{} survived", bug.name());
    }
}
