//! LRU: evicts the least recently used id.
//!
//! Ids form one queue, ordered by the last reference. A hit moves its id to the newest end; a victim is taken from the
//! oldest end. LRU adapts immediately and needs little bookkeeping, but a single scan over more ids than fit replaces
//! everything, and each hit writes to the queue, so concurrent readers contend for it. Every other policy is measured
//! against it, and it serves callers whose references have no scans.
//!
//! Invariants: (1) the queue holds exactly the resident ids; (2) an id is newer than every id that was last referenced
//! before it; a refused victim counts as referenced when it is refused.
//!
//! Cost: O(1) per reference plus O(1) per victim; 30 to 48 bytes per resident id, less if few ids are hit.
//!
//! Source: P. J. Denning, "The working set model for program behavior", CACM 11(5), 1968, and folklore.

use crate::policies::ordered::{OrderDiscipline, OrderedPolicy};

/// Least recently used, over weighted ids.
pub type Lru = OrderedPolicy<LeastRecent>;

/// The rule that makes an order LRU.
#[derive(Debug, Clone)]
pub struct LeastRecent;

impl OrderDiscipline for LeastRecent {
    const NAME: &'static str = "lru";
    const HIT_RENEWS: bool = true;
    const NEWEST_LEAVES: bool = false;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AccessResult, Policy, StreamId};

    fn refer(policy: &mut Lru, id: u64, weight: u64) -> (AccessResult, Vec<u64>) {
        let mut victims = Vec::new();
        let access = policy.reference(id, weight, StreamId::default(), &mut |victim| {
            victims.push(victim);
            true
        });
        (access, victims)
    }

    #[test]
    fn the_least_recently_used_leaves_first() {
        let mut policy = Lru::new(3);
        for id in [1, 2, 3, 1] {
            refer(&mut policy, id, 1);
        }
        assert_eq!(refer(&mut policy, 4, 2), (AccessResult::Inserted, vec![2, 3]));
        assert_eq!((policy.used(), policy.len()), (3, 2));
    }

    #[test]
    fn too_heavy_id_evicts_nothing() {
        let mut policy = Lru::new(3);
        refer(&mut policy, 1, 3);
        assert_eq!(refer(&mut policy, 2, 4), (AccessResult::Bypassed, vec![]));
        assert!(policy.contains(1));
    }
}
