//! One run: a policy over a workload, counting misses.
//!
//! Owns: the loop. Promises: nothing is allocated in it; where the policy's type is known to the caller there is one copy
//! of the loop for it.

use nectary_cache::{Access, Policy, Stream};

use super::workload::Workload;

/// Refers to every block of `workload` in turn and gives the number of misses.
pub fn misses<P: Policy + ?Sized>(policy: &mut P, workload: &Workload) -> u64 {
    let mut misses = 0;
    let mut evict = |_| true;
    if workload.streams().is_empty() {
        for &block in workload.blocks() {
            misses += u64::from(policy.reference(block, 1, Stream(0), &mut evict) != Access::Hit);
        }
    } else {
        for (&block, &stream) in workload.blocks().iter().zip(workload.streams()) {
            misses += u64::from(policy.reference(block, 1, stream, &mut evict) != Access::Hit);
        }
    }
    misses
}
