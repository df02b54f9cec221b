//! A sample of RAM disks without redundancy under faults; `ram-simulation --policy none` runs more.

use nectary_ram::placement::RedundancyPolicy;
use nectary_sim::ram::{RamBug, replay_planted, run_many, run_planted};

use crate::support::{alone, seed_or};

const POLICY: RedundancyPolicy = RedundancyPolicy::None;

fn seed() -> u64 {
    seed_or(1_000_000)
}

/// A donor that loses its memory loses exactly its blocks, until they are written. A second client fences the first.
#[test]
fn lost_donor_loses_its_blocks_alone() {
    let _alone = alone();
    let report = run_many(seed(), POLICY, 1000, (0, 1), |_| true);
    println!("seed {}: {report:?}", seed());
    assert!(report.broken.is_empty(), "{}", report.broken.join("\n"));
    assert!(report.is_enough(), "too few: {:?}; {report:?}", report.missing());
    for bug in RamBug::all(POLICY) {
        let caught = run_planted(bug, POLICY, seed(), 5000);
        println!("planted: {}: {caught:?}", bug.name());
        let Some(caught) = caught else { panic!("{} survived", bug.name()) };
        let again = replay_planted(bug, POLICY, caught.case.seed);
        assert_eq!(again.as_ref(), Some(&caught), "a seed repeats its run");
    }
}
