//! What a store remembers of the rules under which its objects got their keys.
//!
//! Owns: [`RulesRecord`], and when a store has to purge everything because a purge may have missed some of its objects. A
//! purge names keys by the rules of the node that accepted it. It removes what has these keys, under whatever rules that
//! was stored; it misses the same URL's object if other rules gave that another key. So such an object must not be found
//! again: not by a node whose rules are other ones than the purge's, and not after a return to earlier rules.

use super::node::RulesHash;
use super::purge::{FleetPurge, PurgeScope};

/// The rules of a store's objects. Hashes are halves of a [`RulesHash`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RulesRecord {
    /// The rules by which objects are stored now; 0 if there were none yet.
    pub current: u64,
    /// A Bloom filter, with four bits for each, of rules whose objects may have missed a purge. It may have more: that
    /// costs a purge of everything at a change of the rules.
    pub missed: u64,
}

impl RulesRecord {
    /// The record of a store that has no rules yet.
    pub const NONE: RulesRecord = RulesRecord { current: 0, missed: 0 };

    /// The record when objects are stored by these rules from now on. What the former rules have stored misses the purges
    /// that come.
    pub fn begin(self, rules: RulesHash) -> RulesRecord {
        let current = rules.half();
        if self.current == current {
            return self;
        }
        let former = if self.current == 0 { 0 } else { bits(self.current) };
        RulesRecord { current, missed: self.missed | former }
    }

    /// The record when a purge is applied.
    pub fn after(self, purge: &FleetPurge) -> RulesRecord {
        let missed = match purge.scope {
            _ if purge.is_everything() => 0,
            PurgeScope::All => self.missed,
            _ if purge.rules.half() == self.current => self.missed,
            _ => self.missed | bits(self.current),
        };
        RulesRecord { missed, ..self }
    }

    /// Whether objects of the current rules may have missed a purge: then everything is to be purged first.
    pub fn must_purge_all(self) -> bool {
        let own = bits(self.current);
        self.missed & own == own
    }

    /// Whether objects may be served and stored by these rules.
    pub fn fits(self, rules: RulesHash) -> bool {
        self.current == rules.half() && !self.must_purge_all()
    }
}

/// The bits of a hash in the filter.
fn bits(half: u64) -> u64 {
    let mixed = half.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..4).fold(0, |bits, number| bits | 1 << (mixed >> (40 + 6 * number) & 63))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn purge(rules: u128) -> FleetPurge {
        let scope = PurgeScope::Keys(vec![b"http://a/".to_vec()]);
        FleetPurge { scope, soft_since_s: None, rules: RulesHash(rules) }
    }

    #[test]
    fn purge_of_other_rules_misses() {
        let one = RulesRecord::NONE.begin(RulesHash(1));
        assert!(one.fits(RulesHash(1)) && !one.fits(RulesHash(2)));
        assert_eq!(one.after(&purge(1)), one);
        let missed = one.after(&purge(2));
        assert!(missed.must_purge_all() && !missed.fits(RulesHash(1)));
        assert!(missed.after(&purge(1)).must_purge_all(), "a later purge mends nothing");
        assert_eq!(missed.after(&FleetPurge::EVERYTHING), one);
        let soft = FleetPurge { soft_since_s: Some(5), ..FleetPurge::EVERYTHING };
        assert_eq!((one.after(&soft), missed.after(&soft)), (one, missed), "stale objects are still there");
    }

    #[test]
    fn return_to_earlier_rules_purges_everything() {
        let first = RulesRecord::NONE.begin(RulesHash(1)).begin(RulesHash(2));
        assert!(first.fits(RulesHash(2)), "nothing was stored by these yet");
        assert!(first.after(&purge(2)).fits(RulesHash(2)));
        assert!(first.begin(RulesHash(1)).must_purge_all());
        let later = (3..9).fold(first, |record, rules| record.begin(RulesHash(rules)));
        assert!((1..8).all(|rules| later.begin(RulesHash(rules)).must_purge_all()));
        assert_eq!(later.begin(RulesHash(8)), later);
    }
}
