//! The crash-state check, the model run and the directed scenarios catch each of their planted bugs, and the same seed
//! catches it again.

use nectary_sim::store::crash_run::{self, CrashRunOptions};
use nectary_sim::store::directed::{self, SCENARIOS};
use nectary_sim::store::random_run::{self, RandomRunBug};
use nectary_store::planted::Bug;

use crate::support::{alone, replay_of_another_process_says_the_same, seed_or};

#[test]
fn each_planted_bug_is_caught() {
    let _alone = alone();
    let mut found = Vec::new();
    for bug in Bug::ALL {
        let options = CrashRunOptions { seed: 7_000_000, workloads: 100, states_per_workload: 100 };
        let caught = crash_run::run_planted(bug, options);
        println!("planted: {}: {caught:?}", bug.name());
        let Some(caught) = caught else { panic!("{} survived", bug.name()) };
        assert_eq!(crash_run::replay_planted(bug, caught.case), Some(caught.clone()), "a seed repeats its run");
        found.push(caught);
    }
    replay_of_another_process_says_the_same("store-crash-states", Bug::ALL[0].name(), &found[0]);
    for plant in RandomRunBug::all() {
        let caught = random_run::run_planted(plant, 11, 4);
        println!("planted: {}: {caught:?}", plant.name());
        let Some(caught) = caught else { panic!("{} survived in a running store", plant.name()) };
        assert_eq!(random_run::replay_planted(plant, caught.case.seed), Some(caught.clone()), "a seed repeats its run");
        replay_of_another_process_says_the_same("store-model", plant.name(), &caught);
    }
}

#[test]
fn crashes_losses_and_readers_keep_promises() {
    let _alone = alone();
    let seed = seed_or(1);
    let broken = directed::run(seed..seed + 2);
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    let bugs = Bug::RECOVERY.into_iter().chain(Bug::SPAN_RETURNS).chain(Bug::READ_ONLY);
    for bug in bugs {
        let caught = directed::replay_planted(bug, seed);
        println!("planted: {}: {caught:?}", bug.name());
        let Some(caught) = caught else { panic!("{} survived", bug.name()) };
        assert_eq!(directed::replay_planted(bug, seed), Some(caught), "a seed repeats its run");
    }
    let is_listed =
        |bug| Bug::RECOVERY.contains(&bug) || Bug::SPAN_RETURNS.contains(&bug) || Bug::READ_ONLY.contains(&bug);
    assert!(SCENARIOS.iter().all(|scenario| is_listed(scenario.bug)), "each scenario has a bug that shows in it");
}
