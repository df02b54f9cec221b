//! With a working set larger than memory and store, the process stays in its memory budget and hits as often as its
//! ring allows.

use nectary_e2e::guard::find_program;
use nectary_e2e::pressure::{self, PressurePlan};
use nectary_e2e::report::{not_run, seed_or_new};
use std::time::Duration;

/// Memory stays within its budget, and the hit rate is that of the simulated ring.
#[test]
fn pressure_keeps_memory_in_budget() {
    if find_program("wrk").is_none() {
        return not_run("pressure: wrk is not installed");
    }
    let seed = seed_or_new(std::env::var("NECTARY_E2E_SEED").ok().and_then(|text| text.parse().ok()));
    println!("seed {seed}");
    let mut plan = PressurePlan::new(seed, Duration::from_secs(20));
    (plan.memory_mib, plan.store_mib, plan.working_set_mib) = (64, 256, 1024);
    let outcome = pressure::run(&plan).expect("the run ends");
    println!("{}", pressure::describe(&outcome));
    assert!(outcome.segments_reclaimed > 0, "the store was not filled: it proves nothing");
    assert_eq!(outcome.uncaught(), Vec::<String>::new(), "planted bugs survive");
    assert_eq!(outcome.problems(), Vec::<String>::new(), "seed {seed}");
}
