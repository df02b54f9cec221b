//! Stripes whose copies may differ.
//!
//! Owns: the use of marked stripes, and the decision when a mark is removed. Promises: a stripe with a write in
//! progress stays marked, and so does one that still has to be resynchronised. Leaves to others: the marks (`group`).

use std::collections::BTreeMap;

use crate::group::Moment;
use crate::planted::{MirrorBug, planted};

/// The use of a marked stripe.
#[derive(Debug, Clone, Copy)]
struct StripeUse {
    writers: u32,
    last_us: Moment,
}

/// The marked stripes.
#[derive(Debug, Default)]
pub(super) struct DirtyStripes {
    uses: BTreeMap<u64, StripeUse>,
}

impl DirtyStripes {
    /// Notes that a write begins.
    pub fn begin(&mut self, stripe: u64) {
        self.uses.entry(stripe).or_insert(StripeUse { writers: 0, last_us: 0 }).writers += 1;
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
        let mut dirty = DirtyStripes::default();
        dirty.begin(3);
        dirty.begin(3);
        dirty.end(3, 10);
        assert!(dirty.clean(99).is_empty());
        dirty.end(3, 20);
        assert!(dirty.clean(19).is_empty());
        assert_eq!(dirty.clean(20), [3]);
        assert!(dirty.clean(20).is_empty());
    }
}
