//! Counts how often the leader of `adaptive` changes while the pattern of accesses stays the same.
//!
//! Owns: the sizes, on both sides of 4,096 blocks, and the limit. Leaves to others: the accesses (`generated`).

use nectary_cache::{Adaptive, Policy, StreamId};

use super::generated;

/// The sizes of the caches. *Units*: blocks.
const SIZES: [u64; 4] = [1000, 4096, 4097, 20_000];
/// The number of accesses for each block of the cache.
const ACCESSES: u64 = 60;
/// The number of accesses for each block of the cache in which the leader may change once.
const ACCESSES_PER_CHANGE: u64 = 20;

/// Prints the leaders at each size, in the order in which they led. *Returns* a line for each size with too many
/// changes.
pub fn changes() -> Vec<String> {
    let most = (ACCESSES / ACCESSES_PER_CHANGE) as usize;
    let mut short = Vec::new();
    println!("changes of leader in {ACCESSES} capacities of accesses with one pattern, at most {most}");
    for size in SIZES {
        for workload in generated::stationary(size, ACCESSES) {
            let mut adaptive = Adaptive::new(size);
            let mut leaders = vec![adaptive.leader()];
            for id in workload.blocks() {
                adaptive.reference(*id, 1, StreamId(0), &mut |_| true);
                leaders.extend(adaptive.take_change().map(|change| change.leader));
            }
            let (name, count) = (workload.name(), leaders.len() - 1);
            println!("  {name:14} {size:6} blocks: {count} changes, {}", leaders.join(", "));
            if count > most {
                short.push(format!("{name} at {size} blocks: the leader changes {count} times, at most {most}"));
            }
        }
    }
    short
}
