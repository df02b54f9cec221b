//! A sample of the names and attributes of shared volumes with real clients and a real server; `volume-names` runs more.

use nectary_sim::volume_names::{VolumeNamesBug, crashes, replay_planted, run_many, run_planted};
use nectary_volume::planted::Bug as VolumeBug;

use crate::support::{alone, seed_or};

/// The number of runs of the sample.
const RUNS: u64 = 250;
/// The number of crash states of the sample in which operations are answered and not durable, and of each run.
const IMAGES: u64 = 200;
const STATES_PER_RUN: u64 = 40;
/// A planted bug must be caught within this many runs.
const PLANTED_RUNS_MAX: u64 = 400;

/// Bugs with seeds from which they are caught soon; `volume-names` plants all.
const PLANTED: &[(VolumeNamesBug, u64)] = &[
    (VolumeNamesBug::LateCreate, 6_000_000),
    (VolumeNamesBug::LateSet, 1_000_000),
    (VolumeNamesBug::ReplacedShown, 5_000_020),
    (VolumeNamesBug::Volume(VolumeBug::RenamedNameForgotten), 5_000_000),
    (VolumeNamesBug::Volume(VolumeBug::DependenceIgnored), 34_000_000),
    (VolumeNamesBug::Volume(VolumeBug::AnsweredOutOfOrder), 7_000_020),
    (VolumeNamesBug::Volume(VolumeBug::MovesEarly), 7_000_100),
];

fn seed() -> u64 {
    seed_or(1_000_000)
}

#[test]
fn calls_on_names_have_an_order() {
    let _alone = alone();
    let report = run_many(seed(), RUNS, (0, 1), |_| {});
    println!("seed {}: {report:?}", seed());
    assert!(report.broken.is_empty(), "{}", report.broken.join("\n"));
    assert_eq!(report.missing(), Vec::<&str>::new(), "what never happened");
}

#[test]
fn crashes_lose_last_changes_of_names() {
    let _alone = alone();
    let report = crashes::run_many(seed(), IMAGES, STATES_PER_RUN, |_| {});
    println!("seed {}: {report:?}", seed());
    assert!(report.broken.is_empty(), "{}", report.broken.join("\n"));
    assert!(report.under_way >= IMAGES);
}

#[test]
fn planted_bugs_of_names_are_caught() {
    let _alone = alone();
    for (bug, first) in PLANTED {
        let caught = run_planted(*bug, *first, PLANTED_RUNS_MAX);
        println!("planted: {}: {caught:?}", bug.name());
        let Some(caught) = caught else { panic!("{} survived", bug.name()) };
        assert!(replay_planted(*bug, caught.case.seed).is_some(), "{} is not caught again", bug.name());
    }
}
