//! A sample of moves under faults; `ram-moves` runs more.

use nectary_ram::placement::RedundancyPolicy;
use nectary_ram::planted::MirrorBug;
use nectary_sim::ram_moves::{replay_planted, run_many, run_planted};

use crate::support::{alone, seed_or};

/// A planted bug must be caught within this many runs.
const PLANTED_RUNS_MAX: u64 = 2000;
/// The planted bugs that a sample catches soon; `ram-moves` catches all.
const PLANTED: [MirrorBug; 8] = [
    MirrorBug::MoveNotReverted,
    MirrorBug::MoveForgets,
    MirrorBug::AnswerForgotten,
    MirrorBug::LossForgotten,
    MirrorBug::FailureForgotten,
    MirrorBug::ChangedWhileCopied,
    MirrorBug::DoneUntold,
    MirrorBug::TakerLossIgnored,
];

fn seed() -> u64 {
    seed_or(1_000_000)
}

#[test]
fn moves_survive_one_donor_down() {
    let _alone = alone();
    let policies = [
        (RedundancyPolicy::Mirror, 24),
        (RedundancyPolicy::Parity, 16),
        (RedundancyPolicy::ParityLog, 6),
        (RedundancyPolicy::ParityCache, 6),
        (RedundancyPolicy::Adaptive, 8),
    ];
    for (policy, runs) in policies {
        let report = run_many(seed(), policy, runs, (0, 1), |_| true);
        println!("{policy}, seed {}: {report:?}", seed());
        assert_eq!(report.lost, 0, "{policy}: {}", report.broken.join("\n"));
    }
}

#[test]
fn planted_bugs_of_moves_are_caught() {
    let _alone = alone();
    for bug in PLANTED {
        let caught = run_planted(bug, RedundancyPolicy::Mirror, seed(), PLANTED_RUNS_MAX);
        println!("planted: {}: {caught:?}", bug.name());
        let Some(caught) = caught else { panic!("{} survived", bug.name()) };
        let again = replay_planted(bug, RedundancyPolicy::Mirror, caught.case.seed);
        assert_eq!(again.as_ref(), Some(&caught), "a seed repeats its run");
    }
}
