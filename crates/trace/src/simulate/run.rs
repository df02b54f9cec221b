//! Makes one run: gives the references of a workload to a policy, and counts the misses.
//!
//! Owns: the loop. Promises: the loop allocates nothing; if the caller knows the policy's type, the loop is compiled
//! for that type.

use nectary_cache::{Access, Policy, Stream};

use super::workload::Workload;

/// The number of references by which a block is announced to the policy in advance.
const AHEAD: usize = 16;

/// Gives the references of `workload` to `policy`, in order. *Returns* the number of misses.
pub fn misses<P: Policy + ?Sized>(policy: &mut P, workload: &Workload) -> u64 {
    let blocks = workload.blocks();
    let mut ahead = blocks.iter().skip(AHEAD);
    let mut misses = 0;
    let mut evict = |_| true;
    let mut refer = |block, stream| {
        if let Some(&soon) = ahead.next() {
            policy.prepare(soon);
        }
        misses += u64::from(policy.reference(block, 1, stream, &mut evict) != Access::Hit);
    };
    if workload.streams().is_empty() {
        blocks.iter().for_each(|&block| refer(block, Stream(0)));
    } else {
        blocks.iter().zip(workload.streams()).for_each(|(&block, &stream)| refer(block, stream));
    }
    misses
}
