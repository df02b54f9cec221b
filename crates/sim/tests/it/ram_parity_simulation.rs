//! A sample of RAM disks with parity in place under faults; `ram-simulation --policy parity` runs more.

use nectary_ram::placement::RedundancyPolicy;
use nectary_ram::planted::MirrorBug;
use nectary_sim::ram::{RamBug, replay_planted, run_many, run_planted};

use crate::support::{alone, seed_or};

/// The bugs that only parity in place can have, and some that it shares with a mirror.
const BUGS: [MirrorBug; 9] = [
    MirrorBug::ParityUnmarked,
    MirrorBug::MarkClearedEarly,
    MirrorBug::StaleDataUsed,
    MirrorBug::UnfinishedBelieved,
    MirrorBug::ColumnsUnlocked,
    MirrorBug::MarkAfterWrite,
    MirrorBug::RebuildUnlocked,
    MirrorBug::ScrubFromDamaged,
    MirrorBug::ChecksumIgnored,
];

fn seed() -> u64 {
    seed_or(1_000_000)
}

/// If the client is lost, too, only the data that it was changing is lost.
#[test]
fn parity_survives_one_donor_loss() {
    let _alone = alone();
    let report = run_many(seed(), RedundancyPolicy::Parity, 1000, (0, 1), |_| true);
    println!("seed {}: {report:?}", seed());
    assert!(report.broken.is_empty(), "{}", report.broken.join("\n"));
    assert!(report.is_enough(), "too few: {:?}; {report:?}", report.missing());
    for bug in BUGS.map(RamBug::InPlace) {
        let caught = run_planted(bug, RedundancyPolicy::Parity, seed(), 5000);
        println!("planted: {}: {caught:?}", bug.name());
        let Some(caught) = caught else { panic!("{} survived", bug.name()) };
        assert_eq!(
            replay_planted(bug, RedundancyPolicy::Parity, caught.case.seed).as_ref(),
            Some(&caught),
            "a seed repeats its run"
        );
    }
}
