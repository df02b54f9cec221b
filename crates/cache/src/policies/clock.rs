//! CLOCK: first in, first out, with a second chance for ids that were referenced since their insertion.
//!
//! # Idea
//! CLOCK approximates LRU, but a hit only writes one bit. Ids form a circle in the order of their insertion; a hand
//! moves around it. An id under the hand whose bit is set loses the bit and stays for another lap; the first id whose
//! bit is not set is the victim. The circle is a queue here: an id that the hand passes becomes the newest, so
//! newcomers are behind the hand. CLOCK misses about as often as LRU on most traces, and shares LRU's weakness for
//! scans and loops.
//!
//! # Invariants
//! 1. The queue holds exactly the resident ids; the hand is at the oldest of them.
//! 2. `hits` is 1 if the id was referenced since it was inserted or passed by the hand, else 0.
//!
//! # Cost
//! The same as for all policies with a hand ([`SweptPolicy`]).
//!
//! # Source
//! F. J. Corbató, "A paging experiment with the Multics system", MIT Project MAC Report MAC-M-384, 1968.

use crate::eviction::EvictionStep;
use crate::policies::swept::{HandCircle, HandRule, SweptPolicy};

/// CLOCK with one bit, over weighted ids.
pub type Clock = SweptPolicy<SecondChance>;

/// The hand is at the oldest id; an id that it passes becomes the newest.
#[derive(Debug, Default)]
pub struct SecondChance;

impl HandRule for SecondChance {
    const NAME: &'static str = "clock";

    fn step(&mut self, circle: &mut HandCircle, evict: &mut dyn FnMut(u64) -> bool) -> EvictionStep {
        let Some(victim) = circle.queue.oldest() else { return EvictionStep::Nothing };
        let entry = circle.arena.entry_mut(victim);
        let has_second_chance = entry.hits > 0;
        entry.hits = 0;
        if !has_second_chance && evict(entry.id) {
            circle.remove(victim);
            return EvictionStep::Done;
        }
        circle.arena.refresh(&mut circle.queue, victim);
        EvictionStep::answered(has_second_chance)
    }
}
