//! SIEVE: a hand finds unreferenced ids in a queue whose ids never move.
//!
//! # Idea
//! SIEVE is like CLOCK, but survivors keep their place and newcomers join at the head, far from the hand. So the ids
//! that the hand has spared are together at the tail, and newcomers that are not referenced are evicted on the hand's
//! next lap without displacing proven ids (*quick demotion*, in a single queue). Hits write one bit. SIEVE is as simple
//! as FIFO and good on skewed web traces. It is weak against scans after the first lap, because every newcomer stays
//! for a whole lap, and against loops, like LRU.
//!
//! # What happens
//! | event | |
//! |---|---|
//! | hit | the id's bit is set |
//! | miss | the newcomer becomes the newest, its bit clear |
//! | room is needed | the hand moves from its position towards the newest, clears set bits, and evicts the first id without a set bit; after the newest it continues at the oldest |
//! | victim refused | it stays; the hand moves on |
//!
//! # Invariants
//! 1. The queue holds exactly the resident ids, in the order of their insertion.
//! 2. The hand is at a resident id, or at none. If it is at none, it begins at the oldest id.
//!
//! # Cost
//! The same as for all policies with a hand ([`SweptPolicy`]).
//!
//! # Source
//! Y. Zhang, J. Yang, Y. Yue, Y. Vigfusson, K. V. Rashmi, "SIEVE is simpler than LRU", NSDI 2024.

use crate::eviction::EvictionStep;
use crate::policies::swept::{HandCircle, HandRule, SweptPolicy};

/// SIEVE, over weighted ids.
pub type Sieve = SweptPolicy<SieveHand>;

/// The hand moves from the oldest to the newest and starts again; ids that it passes do not move.
#[derive(Debug, Default)]
pub struct SieveHand {
    /// The id at the hand; `None` if the hand starts at the oldest id.
    at: Option<u32>,
}

impl HandRule for SieveHand {
    const NAME: &'static str = "sieve";

    fn step(&mut self, circle: &mut HandCircle, evict: &mut dyn FnMut(u64) -> bool) -> EvictionStep {
        let Some(victim) = self.at.or(circle.queue.oldest()) else { return EvictionStep::Nothing };
        self.at = circle.arena.newer(victim);
        let entry = circle.arena.entry_mut(victim);
        if entry.hits > 0 {
            entry.hits = 0;
            return EvictionStep::Done;
        }
        let is_given_up = evict(entry.id);
        if is_given_up {
            circle.remove(victim);
        }
        EvictionStep::answered(is_given_up)
    }

    fn before_removal(&mut self, circle: &HandCircle, index: u32) {
        if self.at == Some(index) {
            self.at = circle.arena.newer(index);
        }
    }
}
