//! SIEVE: a hand that finds unreferenced ids in a queue that never moves.
//!
//! # Idea
//! As CLOCK, but survivors keep their place and newcomers join at the head, far from the hand. So what the hand has
//! spared is old and proven and lies together at the tail, and newcomers that are not referenced leave on the hand's
//! next lap without having pushed anything proven out (*quick demotion*, in a single queue). Hits write one bit. It is
//! as simple as FIFO, good on skewed web traces, and weak against scans after the hand has come round, as every
//! newcomer has a whole lap, and against loops, like LRU.
//!
//! # What happens
//! | event | |
//! |---|---|
//! | hit | the id's bit is set |
//! | miss | the newcomer becomes the newest, its bit clear |
//! | room is needed | from its position the hand goes towards the newest, clears set bits, and takes the first id without one; past the newest it begins again at the oldest |
//! | victim refused | it stays; the hand goes on |
//!
//! # Invariants
//! 1. The queue holds exactly the resident ids, in the order of their insertion.
//! 2. The hand is none (it then begins at the oldest) or a resident id.
//!
//! # Cost
//! As every policy of a hand ([`Swept`]).
//!
//! # Source
//! Y. Zhang, J. Yang, Y. Yue, Y. Vigfusson, K. V. Rashmi, "SIEVE is simpler than LRU", NSDI 2024.

use crate::eviction::Step;
use crate::policies::swept::{Circle, Hand, Swept};

/// SIEVE, over weighted ids.
pub type Sieve = Swept<Sorting>;

/// The hand goes from the oldest to the newest and begins again; what it passes stays where it is.
#[derive(Debug, Default)]
pub struct Sorting {
    /// Where the hand stands; none before the oldest.
    at: Option<u32>,
}

impl Hand for Sorting {
    const NAME: &'static str = "sieve";

    fn step(&mut self, circle: &mut Circle, evict: &mut dyn FnMut(u64) -> bool) -> Step {
        let Some(victim) = self.at.or(circle.queue.oldest()) else { return Step::Nothing };
        self.at = circle.arena.newer(victim);
        let entry = circle.arena.entry_mut(victim);
        if entry.hits > 0 {
            entry.hits = 0;
            return Step::Done;
        }
        let is_given_up = evict(entry.id);
        if is_given_up {
            circle.remove(victim);
        }
        Step::answered(is_given_up)
    }

    fn before_removal(&mut self, circle: &Circle, index: u32) {
        if self.at == Some(index) {
            self.at = circle.arena.newer(index);
        }
    }
}
