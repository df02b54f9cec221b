//! Samples of moments of a running store that other simulations seldom meet, and of devices with faults; `store-moments`
//! and `store-faults` run more.

use nectary_sim::store::{fault_run, shard_run, waiting_run};
use nectary_store::planted::Bug;

use crate::support::{alone, replay_of_another_process_says_the_same, seed_or};

#[test]
fn purge_of_a_waiting_object_holds() {
    let _alone = alone();
    let seed = seed_or(44_000_000);
    let report = waiting_run::run(seed, 8, |_| {});
    println!("seed {seed}: {report:?}");
    assert!(report.differences.is_empty(), "{}", report.differences.join("\n"));
    assert!(report.purged_late > 50 && report.purges > report.purged_late && report.hits > 100, "{report:?}");
    for bug in Bug::WAITING {
        let caught = (seed..seed + 20).find_map(|seed| waiting_run::replay_planted(bug, seed));
        println!("planted: {}: {caught:?}", bug.name());
        let Some(caught) = caught else { panic!("{} survived", bug.name()) };
        replay_of_another_process_says_the_same("store-moments", bug.name(), &caught);
    }
}

/// A get between two shards of a loading index returns no replaced version.
#[test]
fn get_between_shards_finds_current() {
    let _alone = alone();
    let seed = seed_or(45_000_000);
    let report = shard_run::run(seed, 8, |_| {});
    println!("seed {seed}: {report:?}");
    assert!(report.differences.is_empty(), "{}", report.differences.join("\n"));
    assert!(report.early > 100 && report.neighbours > 100, "{report:?}");
    for bug in Bug::SHARDS {
        let caught = (seed..seed + 20).find_map(|seed| shard_run::replay_planted(bug, seed));
        println!("planted: {}: {caught:?}", bug.name());
        let Some(caught) = caught else { panic!("{} survived", bug.name()) };
        replay_of_another_process_says_the_same("store-moments", bug.name(), &caught);
    }
}

#[test]
fn device_faults_cost_documented_losses() {
    let _alone = alone();
    let seed = seed_or(46_000_000);
    let report = fault_run::run(seed, 60, |_| {});
    println!("seed {seed}: {report:?}");
    assert!(report.violations.is_empty(), "{}", report.violations.join("\n"));
    let seldom = [report.silences, report.failed_reads, report.errors, report.demanded, report.purges[1]];
    assert!(seldom.iter().all(|&count| count > 30) && report.stopped > 30, "{report:?}");
    for bug in Bug::FAULTS {
        let caught = (seed..seed + 20).find_map(|seed| fault_run::replay_planted(bug, seed));
        println!("planted: {}: {caught:?}", bug.name());
        let Some(caught) = caught else { panic!("{} survived", bug.name()) };
        replay_of_another_process_says_the_same("store-faults", bug.name(), &caught);
    }
}
