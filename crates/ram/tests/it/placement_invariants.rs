//! Random operations on full devices are compared with a naive model: every promise of the placement is checked.
//!
//! `PLACEMENT_SEED` is the first seed, 0 by default, and `PLACEMENT_RUNS` the number of runs for each policy.

use crate::world::StepCounts;
use nectary_ram::placement::RedundancyPolicy;

const RUNS: u64 = 24;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Runs a policy with all seeds; returns the counts of all runs together.
fn all(policy: RedundancyPolicy) -> StepCounts {
    let first = number("PLACEMENT_SEED").unwrap_or(0);
    let runs = number("PLACEMENT_RUNS").unwrap_or(RUNS);
    let mut all = StepCounts::default();
    for seed in (0..runs).map(|run| first.wrapping_add(run)) {
        let account = crate::world::run(seed, policy).unwrap_or_else(|broken| panic!("{policy}: {broken}"));
        all.steps += account.steps;
        all.sent += account.sent;
        all.cleaned += account.cleaned;
        all.freed += account.freed;
        all.flushes += account.flushes;
        all.trims += account.trims;
        all.reordered += account.reordered;
    }
    println!("{policy}: {runs} runs from seed {first}: {all:?}");
    all
}

/// Checks that the runs cleaned, flushed and trimmed: otherwise they would prove nothing.
fn is_covered(account: StepCounts) {
    let StepCounts { cleaned, freed, flushes, trims, reordered, .. } = account;
    assert!([cleaned, freed, flushes, trims, reordered].iter().all(|&count| count > 0), "{account:?}");
}

#[test]
fn parity_log_keeps_its_promises() {
    is_covered(all(RedundancyPolicy::ParityLog));
}

#[test]
fn parity_cache_keeps_its_promises() {
    is_covered(all(RedundancyPolicy::ParityCache));
}

#[test]
fn adaptive_keeps_its_promises() {
    is_covered(all(RedundancyPolicy::Adaptive));
}
