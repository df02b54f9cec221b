//! A sample of mirrored RAM disks under faults; `ram-simulation` runs more.

use nectary_ram::format::Code;
use nectary_ram::planted::Bug;
use nectary_sim::ram::{replay_planted, run_many, run_planted};

use crate::support::{alone, replay_of_another_process_says_the_same, seed_or};

fn seed() -> u64 {
    seed_or(1_000_000)
}

#[test]
fn mirror_survives_the_loss_of_any_one_donor_and_of_the_client_with_it() {
    let _alone = alone();
    let report = run_many(seed(), Code::Mirror, 2000, (0, 1), |_| true);
    println!("seed {}: {report:?}", seed());
    assert!(report.broken.is_empty(), "{}", report.broken.join("\n"));
    assert!(
        report.is_enough(Code::Mirror),
        "too few: {:?}; {report:?}",
        report.coverage.missing(report.runs, Code::Mirror)
    );
    let mut last = None;
    for bug in Bug::ALL {
        let caught = run_planted(bug, Code::Mirror, seed(), 5000);
        println!("planted: {}: {caught:?}", bug.name());
        let Some(caught) = caught else { panic!("{} survived", bug.name()) };
        assert_eq!(
            replay_planted(bug, Code::Mirror, caught.case.seed).as_ref(),
            Some(&caught),
            "a seed repeats its run"
        );
        last = Some((bug, caught));
    }
    let (bug, caught) = last.expect("there are bugs");
    replay_of_another_process_says_the_same("ram-simulation", bug.name(), &caught);
}
