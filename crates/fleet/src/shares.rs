//! Which node owns a key.
//!
//! Owns: weighted rendezvous hashing over the nodes that share keys: each node has a score for each key, which grows with
//! the size of its store, and the owners are the nodes by score. Promises: every node computes the same order from the
//! same view; a node that comes or goes moves only keys to or from itself; a node's share is its part of the sum of the
//! weights. Zones do not count. The score uses a logarithm: if two machines round its last bit differently, they may
//! disagree about one key in about 2^50, which costs a miss.

use std::sync::Arc;

use nectary_host::fleet::{FleetView, NodeName, OWNERS_MAX, OwnerOrder};
use xxhash_rust::xxh3::xxh3_64;

/// A node among those that share keys.
#[derive(Debug, Clone, Copy)]
struct SharingNode {
    /// Its index in the view.
    index: u16,
    /// The hash of its name.
    seed: u64,
    weight: f64,
}

/// The shares of a view.
#[derive(Debug, Clone)]
pub struct FleetShares {
    view: Arc<FleetView>,
    sharers: Vec<SharingNode>,
    own: Option<u16>,
}

impl FleetShares {
    /// The shares of a view, as the node `own` sees them.
    pub fn new(view: Arc<FleetView>, own: &NodeName) -> FleetShares {
        let index_of = |index: usize| u16::try_from(index).ok();
        let sharer = |(index, node): (usize, &nectary_host::fleet::FleetNode)| {
            let seed = xxh3_64(node.name.as_str().as_bytes());
            Some(SharingNode { index: index_of(index)?, seed, weight: node.weight.max(1) as f64 })
        };
        let sharers = view.sharing().filter_map(sharer).collect();
        let own = view.nodes.iter().position(|node| node.name == *own).and_then(index_of);
        FleetShares { view, sharers, own }
    }

    /// The view of these shares.
    pub fn view(&self) -> &Arc<FleetView> {
        &self.view
    }

    /// The owners of a key. *Cost*: a hash of the key, and a logarithm for each node.
    pub fn owners(&self, key: &[u8]) -> OwnerOrder {
        let hash = xxh3_64(key);
        let mut best = [(f64::MIN, 0_u16); OWNERS_MAX];
        let mut count = 0;
        for sharer in &self.sharers {
            let score = score(hash, sharer);
            let Some(at) = (0..OWNERS_MAX).find(|at| *at >= count || score > best[*at].0) else { continue };
            best[at..].rotate_right(1);
            best[at] = (score, sharer.index);
            count = (count + 1).min(OWNERS_MAX);
        }
        OwnerOrder::new(self.view.clone(), best[..count].iter().map(|owner| owner.1), self.own)
    }

    /// The share of each node of the view, from 0 to 1, in the order of its nodes.
    pub fn parts(&self) -> Vec<f64> {
        let sum: f64 = self.sharers.iter().map(|sharer| sharer.weight).sum();
        let mut parts = vec![0.0; self.view.nodes.len()];
        for sharer in &self.sharers {
            parts[usize::from(sharer.index)] = sharer.weight / sum;
        }
        parts
    }
}

/// The score of a node for a key; the highest wins, with a probability in proportion to the weight.
fn score(hash: u64, sharer: &SharingNode) -> f64 {
    let mixed = (hash ^ sharer.seed).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    let mixed = mixed ^ mixed >> 29;
    // Uniformly distributed in (0, 1).
    let uniform = ((mixed >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    sharer.weight / -uniform.ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nectary_host::fleet::{FleetNode, RulesHash};

    const KEYS: u32 = 40_000;

    fn shares(nodes: &[(&str, u64)]) -> FleetShares {
        let node = |(name, weight): &(&str, u64)| FleetNode {
            name: NodeName::new(name).expect("a name"),
            address: (*name).to_owned(),
            zone: String::new(),
            weight: *weight,
            rules: RulesHash(1),
            run: 1,
            since: 1,
        };
        let view = Arc::new(FleetView::new(1, nodes.iter().map(node).collect()));
        FleetShares::new(view, &NodeName::new("a").expect("a name"))
    }

    /// The owners of a key as names. The node that asks is none of them.
    fn names(shares: &FleetShares, key: u32) -> Vec<String> {
        let stranger = FleetShares { own: None, ..shares.clone() };
        stranger.owners(&key.to_le_bytes()).others().map(|node| node.name.to_string()).collect()
    }

    #[test]
    fn shares_follow_store_sizes() {
        let shares = shares(&[("a", 100), ("b", 200), ("c", 300), ("d", 400)]);
        let mut counts = [0_u32; 4];
        for key in 0..KEYS {
            let owner = names(&shares, key).swap_remove(0);
            counts[shares.view.nodes.iter().position(|node| node.name.as_str() == owner).expect("a node")] += 1;
        }
        for (count, part) in counts.into_iter().zip(shares.parts()) {
            assert!((f64::from(count) / f64::from(KEYS) - part).abs() < 0.01, "{count} of {part}");
        }
    }

    #[test]
    fn lost_node_moves_only_its_keys() {
        let (before, after) =
            (shares(&[("a", 1), ("b", 1), ("c", 1), ("d", 1)]), shares(&[("a", 1), ("b", 1), ("d", 1)]));
        let mut moved = 0;
        for key in 0..KEYS {
            let (whole, less) = (names(&before, key), names(&after, key));
            if whole[0] == "c" {
                moved += 1;
                assert_eq!(less[0], whole[1], "the next owner has its keys");
            } else {
                assert_eq!(less[0], whole[0]);
            }
        }
        // At most 1/N + 2 %, of the keys that one of four nodes had.
        assert!(moved * 100 <= KEYS * 27, "{moved} of {KEYS}");
    }

    #[test]
    fn owners_are_ordered_and_bounded() {
        let many: Vec<_> = ["a", "b", "c", "d", "e"].iter().map(|name| (*name, 1)).collect();
        for key in 0..1000 {
            let owners = names(&shares(&many), key);
            assert_eq!(owners.len(), OWNERS_MAX);
            assert!(owners[0] != owners[1] && owners[1] != owners[2] && owners[0] != owners[2]);
        }
        assert_eq!(names(&shares(&many[..2]), 1).len(), 2);
        assert!(shares(&[]).owners(b"key").is_own() && shares(&[("a", 5)]).owners(b"key").is_own());
    }

    /// A program of another version must find the same owner, so this list never changes.
    #[test]
    fn owners_of_known_keys_stay() {
        let shares = shares(&[("a", 1), ("b", 1), ("c", 2)]);
        let firsts: String = (0..16).map(|key| names(&shares, key).swap_remove(0)).collect();
        assert_eq!(firsts, "ccaccacccabcbabb");
    }
}
