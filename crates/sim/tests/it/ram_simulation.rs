//! A sample of mirrored RAM disks under faults; `ram-simulation` runs more.

use nectary_ram::placement::RedundancyPolicy;
use nectary_sim::ram::{RamBug, replay_planted, run_many, run_planted};

use crate::support::{alone, replay_of_another_process_says_the_same, seed_or};

fn seed() -> u64 {
    seed_or(1_000_000)
}

/// The mirror survives the loss of any one donor, and of the client together with it.
#[test]
fn mirror_survives_donor_and_client_loss() {
    let _alone = alone();
    let report = run_many(seed(), RedundancyPolicy::Mirror, 2000, (0, 1), |_| true);
    println!("seed {}: {report:?}", seed());
    assert!(report.broken.is_empty(), "{}", report.broken.join("\n"));
    assert!(report.is_enough(), "too few: {:?}; {report:?}", report.missing());
    let mut last = None;
    for bug in RamBug::all(RedundancyPolicy::Mirror) {
        let caught = run_planted(bug, RedundancyPolicy::Mirror, seed(), 5000);
        println!("planted: {}: {caught:?}", bug.name());
        let Some(caught) = caught else { panic!("{} survived", bug.name()) };
        assert_eq!(
            replay_planted(bug, RedundancyPolicy::Mirror, caught.case.seed).as_ref(),
            Some(&caught),
            "a seed repeats its run"
        );
        last = Some((bug, caught));
    }
    let (bug, caught) = last.expect("there are bugs");
    replay_of_another_process_says_the_same("ram-simulation", bug.name(), &caught);
}
