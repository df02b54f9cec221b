//! A sample of the blocks of a store that cannot be read; `store-unreadable` tries all of them.

use nectary_sim::store::unreadable::{UnreadableRunPlan, replay_planted, run};
use nectary_store::planted::Bug;

use crate::support::{alone, seed_or};

#[test]
fn unreadable_block_costs_what_is_stated() {
    let _alone = alone();
    let seed = seed_or(1);
    let report = run(UnreadableRunPlan { seed, store_bytes: 64 << 20, stride: 512, keys: 12 }, |_| {});
    println!("seed {seed}: {report:?}");
    assert!(report.differences.is_empty(), "{}", report.differences.join("\n"));
    assert!(
        report.refused > 0 && report.purged_all > 0 && report.pairs > 10 && report.lost_count() > 100,
        "{report:?}"
    );
    for bug in Bug::UNREADABLE {
        let caught = (seed..seed + 40).find_map(|seed| replay_planted(bug, seed));
        println!("planted: {}: {caught:?}", bug.name());
        let Some(caught) = caught else { panic!("{} survived", bug.name()) };
        assert_eq!(replay_planted(bug, caught.case.seed), Some(caught), "a seed repeats its run");
    }
}
