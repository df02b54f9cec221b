//! The scenarios that runs have to reach, with counts.
//!
//! Owns: their names, and how often each has to be reached. A scenario counts when it has happened, not when it was
//! attempted.

use std::collections::BTreeMap;

/// Each scenario has to be reached at least once per this many runs, on average.
pub const RUNS_PER_SCENARIO: u64 = 100;

/// All scenarios.
pub const SCENARIOS: &[&str] = &[
    "write lands after its connection was given up",
    "write cut off in the middle",
    "donors slow while another is left",
    "flush beside a write",
    "overlapping writes",
    "client lost with acknowledged data that was not flushed",
    "client lost after flushed zeroes",
    "attacher dies after fencing some donors",
    "left donor returns after the client crashed",
    "client paused, all donors cut, then back",
    "client killed in survey",
    "client killed in claim",
    "client killed in opening",
    "client killed in recovery: heads",
    "client killed in recovery: headers",
    "client killed in recovery: rows",
    "client killed in recovery: writing",
    "client killed while a donor is filled",
    "client killed in recovery, twice",
    "donor left during recovery",
    "second loss while a donor is filled",
    "donor lost while a slot is damaged",
    "donor restarted between two connections",
    "left donor filled again",
    "superseded client ends",
    "answer held for a proof",
    "patience lost",
    "block read through parity",
    "block read through parity while the donor was late",
    "open group sealed by recovery",
    "lost slot of an open group computed by recovery",
    "trim that one donor alone had",
    "block moved by cleaning",
    "group freed",
    "group not used again before its successors were stored",
    "group not used again while it was read",
    "open group over a freed one at a crash",
    "all sealed groups compared by the scrub",
    "damage repaired by the scrub",
];

/// How often each scenario was reached.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RamLogCoverage {
    counts: BTreeMap<&'static str, u64>,
}

impl RamLogCoverage {
    /// Counts a scenario `count` times. *Panics* if it is none of [`SCENARIOS`].
    pub fn met(&mut self, name: &str, count: u64) {
        let known = SCENARIOS.iter().find(|known| **known == name);
        let known = known.unwrap_or_else(|| panic!("{name} is no scenario"));
        *self.counts.entry(known).or_insert(0) += count;
    }

    /// How often a scenario was reached.
    pub fn count(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or(0)
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &RamLogCoverage) {
        other.counts.iter().for_each(|(name, count)| self.met(name, *count));
    }

    /// How often each scenario has to be reached in `runs` runs.
    pub fn wanted(runs: u64) -> u64 {
        (runs / RUNS_PER_SCENARIO).max(1)
    }

    /// The scenarios that were reached too rarely in `runs` runs.
    pub fn missing(&self, runs: u64) -> Vec<&'static str> {
        SCENARIOS.iter().copied().filter(|name| self.count(name) < RamLogCoverage::wanted(runs)).collect()
    }
}
