//! The scenarios that runs have to reach, with counts.
//!
//! Owns: how often each was reached, and how often each has to be. Leaves to others: their names (the layouts). A
//! scenario counts when it has happened, not when it was attempted.

/// How often each scenario was reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RamCoverage {
    /// Each scenario has to be reached at least once per this many runs, on average.
    runs_per_scenario: u64,
    /// The scenarios that need not be reached.
    optional: &'static [&'static str],
    counts: Vec<(&'static str, u64)>,
}

impl RamCoverage {
    /// Counts these scenarios; those that are not optional have to be reached at least once per so many runs, on
    /// average.
    pub fn new(scenarios: &[&'static str], optional: &'static [&'static str], runs_per_scenario: u64) -> RamCoverage {
        RamCoverage { runs_per_scenario, optional, counts: scenarios.iter().map(|name| (*name, 0)).collect() }
    }

    /// Counts a scenario `count` times. *Panics* if it is none of those that are counted.
    pub fn met(&mut self, name: &'static str, count: u64) {
        match self.counts.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known += count,
            None => panic!("{name} is no scenario"),
        }
    }

    /// The scenarios, and how often each was reached.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.counts.iter().copied()
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &RamCoverage) {
        other.counts().for_each(|(name, count)| self.met(name, count));
    }

    /// How often each scenario has to be reached in `runs` runs.
    pub fn wanted(&self, runs: u64) -> u64 {
        (runs / self.runs_per_scenario).max(1)
    }

    /// The scenarios that were reached too rarely in `runs` runs.
    pub fn missing(&self, runs: u64) -> Vec<&'static str> {
        let is_missing =
            |(name, count): &(&'static str, u64)| *count < self.wanted(runs) && !self.optional.contains(name);
        self.counts().filter(is_missing).map(|(name, _)| name).collect()
    }
}
