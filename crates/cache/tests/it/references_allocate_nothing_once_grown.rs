//! Tests that a reference allocates nothing once a policy's tables have grown; the allocator counts allocations.

use nectary_cache::{NAMES, StreamId, by_name};

use crate::counting::allocations;

/// The largest number of rounds in which tables may still grow.
const GROWING_ROUNDS_MAX: usize = 12;

#[test]
fn references_allocate_nothing_once_grown() {
    for name in NAMES {
        let mut policy = by_name(name, 10_000).expect("known");
        let mut state = 7_u64;
        let mut refer = |policy: &mut dyn nectary_cache::Policy, count: u32| {
            for _ in 0..count {
                // A linear congruential generator; the square favours low ids, so there are hits, ghosts and victims.
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let id = (state >> 48) * (state >> 48) / 40_000;
                policy.reference(id, 1 + id % 5, StreamId(0), &mut |_| true);
            }
        };
        let mut allocations_of_round = || {
            let before = allocations();
            refer(policy.as_mut(), 250_000);
            allocations() - before
        };
        allocations_of_round();
        // A policy with one table per frequency grows for more than one round, but less and less.
        let rounds: Vec<usize> = std::iter::repeat_with(&mut allocations_of_round)
            .take(GROWING_ROUNDS_MAX)
            .take_while(|count| *count > 0)
            .collect();
        assert!(rounds.len() < GROWING_ROUNDS_MAX, "{name} allocates in every round: {rounds:?}");
    }
}
