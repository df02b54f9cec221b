//! A sample of the runs with many concurrent clients on a cached device; `cache-concurrent` runs more.

use nectary_buffer::planted::Bug;
use nectary_sim::cache::{crash, replay_planted, run_many, run_planted};

use crate::support::{alone, seed_or};

fn seed() -> u64 {
    seed_or(1_000_000)
}

/// The checker also catches each planted bug.
#[test]
fn concurrent_cache_clients_are_linearizable() {
    let _alone = alone();
    let report = run_many(seed(), 600, |_| true);
    println!("seed {}: {report:?}", seed());
    assert!(report.broken.is_empty(), "{}", report.broken.join("\n"));
    assert!(report.is_enough(), "{report:?}");
    for &bug in Bug::EVERY {
        let caught = run_planted(bug, seed(), 3000);
        println!("planted: {}: {caught:?}", bug.name());
        let Some(caught) = caught else { panic!("{} survived", bug.name()) };
        assert_eq!(replay_planted(bug, caught.case.seed), Some(caught), "a seed repeats its run");
    }
    let states = crash::run(seed(), 600, 60, |_| true);
    println!("{states:?}");
    assert!(states.broken.is_empty(), "{}", states.broken.join("\n"));
    assert!(states.in_flight > 0 && states.promises > 0, "{states:?}");
}
