//! A sample of RAM disks that log parity, under faults; `ram-simulation --policy parity-log` runs more.

use nectary_ram::logged::planted::Bug;
use nectary_ram::placement::RedundancyPolicy;
use nectary_sim::ram::{RamBug, replay_planted, run_many, run_planted};

use crate::support::{alone, seed_or};

/// The number of runs of each policy.
const RUNS: u64 = 25;
/// A planted bug must be caught within this many runs.
const PLANTED_RUNS_MAX: u64 = 400;

fn seed() -> u64 {
    seed_or(1_000_000)
}

/// Flushed data also survives the loss of the client together with one donor.
#[test]
fn log_survives_one_donor_loss() {
    let _alone = alone();
    for policy in [RedundancyPolicy::ParityLog, RedundancyPolicy::ParityCache, RedundancyPolicy::Adaptive] {
        let report = run_many(seed(), policy, RUNS, (0, 1), |_| true);
        println!("{policy}, seed {}: {report:?}", seed());
        assert!(report.broken.is_empty(), "{policy}: {}", report.broken.join("\n"));
        assert_eq!(report.short, 0, "{policy}: {report:?}");
    }
    // Both need a crash while a parity is being stored; `ram-simulation` finds them in some 3,000 runs.
    let is_rare = |bug: &RamBug| [Bug::ParityInPlace, Bug::ParityBeforeMembers].map(RamBug::Log).contains(bug);
    for bug in RamBug::betrayed(RedundancyPolicy::ParityLog).into_iter().filter(|bug| !is_rare(bug)) {
        let caught = run_planted(bug, RedundancyPolicy::ParityLog, seed(), PLANTED_RUNS_MAX);
        println!("planted: {}: {caught:?}", bug.name());
        let Some(caught) = caught else { panic!("{} survived", bug.name()) };
        let again = replay_planted(bug, RedundancyPolicy::ParityLog, caught.case.seed);
        assert_eq!(again.as_ref(), Some(&caught), "a seed repeats its run");
    }
}
