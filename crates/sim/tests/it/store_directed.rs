//! The directed scenarios of the store, and the planted bugs that they must catch; `store-directed` runs more seeds.

use nectary_sim::store::directed::{SCENARIOS, replay_planted, run};
use nectary_store::planted::Bug;

use crate::support::{alone, seed_or};

#[test]
fn crashes_losses_and_readers_keep_promises() {
    let _alone = alone();
    let seed = seed_or(1);
    let broken = run(seed..seed + 2);
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    let bugs = Bug::RECOVERY.into_iter().chain(Bug::SPAN_RETURNS).chain(Bug::READ_ONLY);
    for bug in bugs {
        let caught = replay_planted(bug, seed);
        println!("planted: {}: {caught:?}", bug.name());
        let Some(caught) = caught else { panic!("{} survived", bug.name()) };
        assert_eq!(replay_planted(bug, seed), Some(caught), "a seed repeats its run");
    }
    let is_listed =
        |bug| Bug::RECOVERY.contains(&bug) || Bug::SPAN_RETURNS.contains(&bug) || Bug::READ_ONLY.contains(&bug);
    assert!(SCENARIOS.iter().all(|scenario| is_listed(scenario.bug)), "each scenario has a bug that shows in it");
}
