//! A sample of RAM disks with parity in place under faults; `ram-simulation --policy parity` runs more.

use nectary_ram::format::Code;
use nectary_ram::planted::Bug;
use nectary_sim::ram::{replay_planted, run_many, run_planted};

use crate::support::{alone, seed_or};

/// The bugs that only parity in place can have, and some that it shares with a mirror.
const BUGS: [Bug; 9] = [
    Bug::ParityUnmarked,
    Bug::MarkClearedEarly,
    Bug::StaleDataUsed,
    Bug::UnfinishedBelieved,
    Bug::ColumnsUnlocked,
    Bug::MarkAfterWrite,
    Bug::RebuildUnlocked,
    Bug::ScrubFromDamaged,
    Bug::ChecksumIgnored,
];

fn seed() -> u64 {
    seed_or(1_000_000)
}

#[test]
fn parity_in_place_survives_any_one_donor_and_loses_with_the_client_only_what_it_was_changing() {
    let _alone = alone();
    let report = run_many(seed(), Code::Parity, 1000, (0, 1), |_| true);
    println!("seed {}: {report:?}", seed());
    assert!(report.broken.is_empty(), "{}", report.broken.join("\n"));
    let missing = report.coverage.missing(report.runs, Code::Parity);
    assert!(report.is_enough(Code::Parity), "too few: {missing:?}; {report:?}");
    for bug in BUGS {
        let caught = run_planted(bug, Code::Parity, seed(), 5000);
        println!("planted: {}: {caught:?}", bug.name());
        let Some(caught) = caught else { panic!("{} survived", bug.name()) };
        assert_eq!(
            replay_planted(bug, Code::Parity, caught.case.seed).as_ref(),
            Some(&caught),
            "a seed repeats its run"
        );
    }
}
