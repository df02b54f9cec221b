//! A sample of the volume's journal: crash states, servers that contend for it, and planted bugs; `volume-journal` runs
//! more.

use nectary_sim::volume_journal::run::{BUGS, JournalRunPlan, replay_planted, run, run_planted};

use crate::support::{alone, seed_or};

/// A planted bug must be caught within this many runs.
const PLANTED_RUNS_MAX: u64 = 200;

/// The first seed for planted bugs: from it on, each bug is caught within a few runs.
const SEED: u64 = 1_000_014;

fn seed() -> u64 {
    seed_or(SEED)
}

/// No epoch has two leaders.
#[test]
fn acknowledged_transactions_survive_every_crash() {
    let _alone = alone();
    let amount = JournalRunPlan { seed: seed(), runs: 6, states_per_run: 30, contentions: 2 };
    let report = run(amount, |_| {});
    println!("seed {}: {report:?}", seed());
    assert_eq!(report.violation_count, 0, "seed {}: {}", seed(), report.violations.join("\n"));
    assert!(report.has_all(), "not everything that can happen happened: {report:?}");
    for bug in &BUGS {
        let begun = std::time::Instant::now();
        let caught = run_planted(*bug, JournalRunPlan { runs: PLANTED_RUNS_MAX, ..amount });
        println!("planted: {} in {:.1} s: {caught:?}", bug.name(), begun.elapsed().as_secs_f64());
        let Some(caught) = caught else { panic!("{} survived", bug.name()) };
        let again = replay_planted(*bug, caught.case);
        assert_eq!(again.as_ref(), Some(&caught), "a seed repeats its run");
    }
}
