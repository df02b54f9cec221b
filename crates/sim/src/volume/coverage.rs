//! What runs have to meet, counted.
//!
//! Owns: the names; those with a number are points of the design's list of what a simulator must include.

use std::cell::RefCell;
use std::collections::BTreeMap;

/// How often each was met.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Coverage {
    counts: RefCell<BTreeMap<&'static str, u64>>,
}

impl Coverage {
    /// It was met.
    pub fn met(&self, name: &'static str) {
        self.add(name, 1);
    }

    /// It was met so often.
    pub fn add(&self, name: &'static str, count: u64) {
        *self.counts.borrow_mut().entry(name).or_default() += count;
    }

    /// Adds those of another run.
    pub fn merge(&self, other: &Coverage) {
        other.counts.borrow().iter().for_each(|(name, count)| self.add(name, *count));
    }

    /// All that was met.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        self.counts.borrow().iter().map(|(name, count)| (*name, *count)).collect()
    }
}
