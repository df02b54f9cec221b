//! Compares the simulator, on random traces, with LRU, FIFO and MIN in their simplest form: a list that is searched
//! from its beginning.

use nectary_cache::StreamId;
use nectary_trace::simulate::{SimulationRun, TraceWorkload, policies, run_all};
use proptest::prelude::*;

/// The misses of a policy that is a list. For LRU and FIFO, the next victim is the first block of the list.
fn naive(policy: &str, blocks: &[u64], size: usize) -> u64 {
    let mut resident: Vec<u64> = Vec::new();
    let mut misses = 0;
    for (now, &block) in blocks.iter().enumerate() {
        if let Some(place) = resident.iter().position(|&other| other == block) {
            if policy == "lru" {
                resident.remove(place);
                resident.push(block);
            }
            continue;
        }
        misses += 1;
        if resident.len() == size {
            let victim = match policy {
                "min" => {
                    let next = |block: u64| blocks[now + 1..].iter().position(|&other| other == block);
                    let far = |&place: &usize| next(resident[place]).unwrap_or(usize::MAX);
                    (0..resident.len()).max_by_key(far).unwrap_or(0)
                }
                _ => 0,
            };
            resident.remove(victim);
        }
        resident.push(block);
    }
    misses
}

fn simulated(policy: &'static str, workload: &TraceWorkload, size: u64) -> u64 {
    let runs = [SimulationRun::new(workload, policy, size)];
    run_all(&runs, Some(1), &|_| {}).expect("a policy that there is")[0].counts.misses
}

proptest! {
    #[test]
    fn simulator_matches_naive_list(
        blocks in prop::collection::vec(0..40_u64, 1..600),
        size in 1..50_u64,
    ) {
        let workload = TraceWorkload::new("random", blocks.iter().map(|&block| (block, StreamId(0))));
        for policy in ["lru", "fifo", policies::MIN] {
            let expected = naive(policy, &blocks, size as usize);
            prop_assert_eq!(simulated(policy, &workload, size), expected, "{} at {}", policy, size);
        }
    }

    /// Every policy works at one block and at more blocks than there are.
    #[test]
    fn policies_work_at_extreme_sizes(
        blocks in prop::collection::vec(0..40_u64, 1..300),
        streams in prop::collection::vec(0..3_u32, 300),
    ) {
        let references = blocks.iter().zip(&streams).map(|(&block, &stream)| (block, StreamId(stream)));
        let workload = TraceWorkload::new("random", references);
        for policy in policies::names() {
            let distinct = workload.distinct();
            prop_assert!(simulated(policy, &workload, 1) >= distinct, "{}", policy);
            prop_assert!(simulated(policy, &workload, 3) >= distinct, "{}", policy);
            prop_assert_eq!(simulated(policy, &workload, 100_000), distinct, "{}", policy);
        }
    }

    #[test]
    fn results_are_independent_of_threads(blocks in prop::collection::vec(0..99_u64, 1..200)) {
        let workload = TraceWorkload::new("random", blocks.iter().map(|&block| (block, StreamId(0))));
        let runs: Vec<SimulationRun<'_>> = policies::names()
            .into_iter()
            .flat_map(|policy| [5, 20].map(|size| SimulationRun::new(&workload, policy, size)))
            .collect();
        let counts = |threads| -> Vec<u64> {
            run_all(&runs, Some(threads), &|_| {}).expect("policies").iter().map(|row| row.counts.misses).collect()
        };
        prop_assert_eq!(counts(1), counts(3));
    }
}
