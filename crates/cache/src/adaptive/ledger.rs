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
    /// References; of a sampled ledger those of the sample.
    pub references: u64,
    /// Misses among them.
    pub misses: u64,
    /// Hits that LRU would have missed.
    pub saved: u64,
    /// Misses that LRU would have hit.
    pub lost: u64,
}

impl Ledger {
    /// Counts one reference.
    pub(super) fn count(&mut self, is_hit: bool, is_lru_hit: bool) {
        self.references += 1;
        self.misses += u64::from(!is_hit);
        self.saved += u64::from(is_hit && !is_lru_hit);
        self.lost += u64::from(!is_hit && is_lru_hit);
    }

    /// The misses of LRU over the same references.
    pub fn misses_lru(&self) -> u64 {
        self.misses + self.saved - self.lost
    }

    /// The ledger of a sample of one in 2^`shift` as an estimate of the whole.
    pub(super) fn scaled(&self, shift: u32) -> Ledger {
        Ledger {
            references: self.references << shift,
            misses: self.misses << shift,
            saved: self.saved << shift,
            lost: self.lost << shift,
        }
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
            (0..times).for_each(|_| ledger.count(is_hit, is_lru_hit));
        }
        assert_eq!(ledger, Ledger { references: 14, misses: 5, saved: 4, lost: 3 });
        assert_eq!(ledger.misses_lru(), 6);
        assert_eq!(ledger.to_string(), "5 of 14 missed, 4 saved and 3 lost against LRU");
    }
}
