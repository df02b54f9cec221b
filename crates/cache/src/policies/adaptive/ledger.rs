//! The ledger: reads saved and lost against LRU, for each stream, counted live.
//!
//! Owns: the four sums. Promises: after each reference `saved - lost` is the misses of one LRU over all streams, of the same
//! capacity, less the misses of the cache, both over the references of that stream. Leaves to others: the LRU itself, which
//! is one of the ghosts.
//!
//! A reference is *saved* where that LRU would have missed and the cache hit, *lost* where the LRU would have hit and the
//! cache missed.

use std::fmt;

/// What the cache did for one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ledger {
    /// References; where ids are sampled, as an estimate, those of the sample times the ids for which one stands.
    pub references: u64,
    /// Misses among them.
    pub misses: u64,
    /// Hits that LRU would have missed.
    pub saved: u64,
    /// Misses that LRU would have hit.
    pub lost: u64,
}

impl Ledger {
    /// Counts a reference that stands for 2^`shift`.
    pub(super) fn count(&mut self, shift: u32, is_hit: bool, is_lru_hit: bool) {
        self.references += 1 << shift;
        self.misses += u64::from(!is_hit) << shift;
        self.saved += u64::from(is_hit && !is_lru_hit) << shift;
        self.lost += u64::from(!is_hit && is_lru_hit) << shift;
    }

    /// The misses of LRU over the same references.
    pub fn misses_lru(&self) -> u64 {
        self.misses + self.saved - self.lost
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ledger { references, misses, saved, lost } = self;
        write!(formatter, "{misses} of {references} missed, {saved} saved and {lost} lost against LRU")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_less_lost_is_the_difference_to_lru() {
        let mut ledger = Ledger::default();
        for (is_hit, is_lru_hit, times) in [(true, true, 5), (true, false, 4), (false, true, 3), (false, false, 2)] {
            (0..times).for_each(|_| ledger.count(0, is_hit, is_lru_hit));
        }
        assert_eq!(ledger, Ledger { references: 14, misses: 5, saved: 4, lost: 3 });
        assert_eq!(ledger.misses_lru(), 6);
        assert_eq!(ledger.to_string(), "5 of 14 missed, 4 saved and 3 lost against LRU");
    }
}
