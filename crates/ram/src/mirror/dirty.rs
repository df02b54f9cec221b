//! Stripes whose copies may differ.
//!
//! Owns: the set of stripes to mark, and the decision when a mark is removed. Promises: a stripe with a write in
//! progress stays marked, and so does one that still has to be resynchronised. Leaves to others: storing the marks.

use std::collections::BTreeMap;

use super::event::Moment;
use crate::format::StripeSet;
use crate::planted::{MirrorBug, planted};

/// The use of a marked stripe.
#[derive(Debug, Clone, Copy)]
struct StripeUse {
    writers: u32,
    last_us: Moment,
}

/// The marked stripes.
#[derive(Debug)]
pub(super) struct DirtyStripes {
    marked: StripeSet,
    uses: BTreeMap<u64, StripeUse>,
}

impl DirtyStripes {
    pub fn new(stripes: u64) -> DirtyStripes {
        DirtyStripes { marked: StripeSet::none(stripes), uses: BTreeMap::new() }
    }

    /// Returns the marks that have to be stored.
    pub fn marked(&self) -> &StripeSet {
        &self.marked
    }

    /// Notes that a write begins; returns whether the stripe was not marked yet.
    pub fn begin(&mut self, stripe: u64) -> bool {
        self.uses.entry(stripe).or_insert(StripeUse { writers: 0, last_us: 0 }).writers += 1;
        self.marked.set(stripe, true)
    }

    /// Notes that a write, or the resynchronisation of the stripe, has ended.
    pub fn end(&mut self, stripe: u64, now_us: Moment) {
        if let Some(used) = self.uses.get_mut(&stripe) {
            used.writers = used.writers.saturating_sub(1);
            used.last_us = now_us;
        }
    }

    /// Removes the marks of stripes that were not used since this time; returns these stripes.
    pub fn clean(&mut self, unused_since_us: Moment) -> Vec<u64> {
        let is_unused = |used: &StripeUse| used.writers == 0 || planted(MirrorBug::MarkClearedEarly);
        let is_clean = |used: &StripeUse| is_unused(used) && used.last_us <= unused_since_us;
        let clean: Vec<u64> = self.uses.iter().filter(|(_, used)| is_clean(used)).map(|(stripe, _)| *stripe).collect();
        for stripe in &clean {
            self.uses.remove(stripe);
            self.marked.set(*stripe, false);
        }
        clean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mark stays while a write is in progress, and for a while after it.
    #[test]
    fn dirty_mark_outlives_writes() {
        let mut dirty = DirtyStripes::new(8);
        assert!(dirty.begin(3) && !dirty.begin(3));
        dirty.end(3, 10);
        assert!(dirty.clean(99).is_empty());
        dirty.end(3, 20);
        assert!(dirty.clean(19).is_empty());
        assert!(dirty.marked().has(3));
        assert_eq!(dirty.clean(20), [3]);
        assert!(!dirty.marked().has(3));
    }
}
