//! The crash-state check and the model run catch each planted bug, and the same seed catches it again.

use nectary_sim::store::crash_run::{self, CrashRunOptions};
use nectary_sim::store::random_run::{self, Plant};
use nectary_store::planted::Bug;

use crate::support::{alone, replay_of_another_process_says_the_same};

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
    for plant in Plant::all() {
        let caught = random_run::run_planted(plant, 11, 4);
        println!("planted: {}: {caught:?}", plant.name());
        let Some(caught) = caught else { panic!("{} survived in a running store", plant.name()) };
        assert_eq!(random_run::replay_planted(plant, caught.case.seed), Some(caught.clone()), "a seed repeats its run");
        replay_of_another_process_says_the_same("store-model", plant.name(), &caught);
    }
}
