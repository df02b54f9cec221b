//! Tests that programs on three mounts see nothing wrong while servers of a volume take over from each other.
//!
//! `NECTARY_E2E_SEED` repeats the rounds. This file has only one test, because it has its own load, and the machine has
//! few processors.

use nectary_e2e::report::{not_run, seed_or_new};
use nectary_e2e::volume::takeover::campaign::{TakeoverTotals, round};
use nectary_e2e::volume::takeover::plan::TakeoverPlan;
use nectary_e2e::volume::takeover::site::missing;

/// A round whose leader's disk hangs, one whose leader is stopped, and one with three takeovers.
const ROUNDS: u64 = 3;

/// No read is stale, histories are linearizable, no lock is held twice, and nothing synced is lost.
#[test]
fn takeovers_keep_history_linearizable() {
    if let Some(reason) = missing() {
        return not_run(format!("volume takeover: {reason}"));
    }
    let seed = seed_or_new(std::env::var("NECTARY_E2E_SEED").ok().and_then(|text| text.parse().ok()));
    println!("seed {seed}");
    let mut totals = TakeoverTotals::default();
    for number in 0..ROUNDS {
        let plan = TakeoverPlan::draw(number, seed.wrapping_add(number), false);
        println!("{plan:?}");
        match round(&plan) {
            Ok(done) => {
                println!("{done}");
                if !done.problems.is_empty() {
                    println!("{:#?}\n{:#?}", done.problems, done.timeline);
                }
                totals.add(&plan, &done);
            }
            Err(error) => totals.fail(&plan, format!("{error:#}")),
        }
    }
    println!("{totals}");
    let problems = totals.problems(ROUNDS);
    assert!(problems.is_empty(), "seed {seed}: {problems:#?}");
}
