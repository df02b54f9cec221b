//! Runs the rounds of `sigkill.rs` with a ring that completes cycles between kills, 48 clients and purges of every
//! kind. Planted bugs must be found, too.
//!
//! `NECTARY_E2E_SEED` repeats a workload. This file has only one test, for the reasons given in `sigkill.rs`.

use nectary_e2e::report::seed_or_new;
use nectary_e2e::sigkill::{self, InTime, LAPPING, SigkillCampaign};

const ROUNDS: u64 = 5;

/// SIGKILL loses only objects that the ring has overwritten, and no purge of any kind.
#[test]
fn sigkill_of_lapping_ring() {
    let seed = seed_or_new(std::env::var("NECTARY_E2E_SEED").ok().and_then(|text| text.parse().ok()));
    println!("seed {seed}");
    let are_caught = sigkill::run_planted(&LAPPING, seed).unwrap_or_else(|error| panic!("planted: {error:#}"));
    assert!(are_caught, "seed {seed}: a planted bug survived");
    let summary = sigkill::run(&SigkillCampaign::new(&LAPPING, seed, ROUNDS), |_| Ok(()))
        .unwrap_or_else(|error| panic!("{error:#}"));
    println!("{}", sigkill::describe(&summary));
    let problems = summary.problems(InTime::Median);
    assert!(problems.is_empty(), "seed {seed}: {problems:?}\n{}", summary.tally.complaints.join("\n"));
}
