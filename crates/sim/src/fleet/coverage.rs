//! The situations that runs have to reach, with counts.

use std::collections::BTreeMap;

/// Each situation has to be reached at least once per this many runs, on average.
pub const RUNS_PER_SITUATION: u64 = 100;

/// All situations.
pub const SITUATIONS: &[&str] = &[
    "purge applied while all nodes lived",
    "purge applied although a node was away",
    "purge answered with missing nodes",
    "purge queued until etcd was back",
    "purge of unknown outcome",
    "purge refused by a node with other rules",
    "response of a member",
    "response of a node that is cut",
    "response of a node that is cut, of what was purged",
    "response of an owner",
    "copy kept in memory",
    "copy not kept, as the owner was behind",
    "slow owner not waited for",
    "request of a node that may not use its store",
    "fill stored nothing, as a purge came meanwhile",
    "node came back and missed purges",
    "log read in pages",
    "node below the floor purges everything",
    "node of another fleet purges everything",
    "node with purges by other rules purges everything",
    "purges removed from the log",
    "watch broken and resumed",
    "watch compacted",
    "batch failed and made again",
    "answer lost",
    "request executed after its time",
    "lease ended by etcd",
    "request at a member of etcd that leads no longer",
    "node suspended for longer than its lease",
    "node suspended while it reads the log",
    "process killed",
    "process killed while a batch was made",
    "process left",
    "name still that of an earlier process",
    "etcd away for longer than a lease",
    "etcd replaced by an empty one",
    "etcd replaced by an older one",
    "identity removed",
    "rules rolled out",
    "rules changed at one node and back",
    "rules changed while a node was down",
    "store replaced by an empty one",
];

/// How often each situation was reached.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FleetCoverage {
    counts: BTreeMap<&'static str, u64>,
}

impl FleetCoverage {
    /// Counts a situation. *Panics* if it is none of [`SITUATIONS`].
    pub fn met(&mut self, name: &str) {
        self.add(name, 1);
    }

    fn add(&mut self, name: &str, count: u64) {
        let known = SITUATIONS.iter().find(|known| **known == name);
        let known = known.unwrap_or_else(|| panic!("{name} is no situation"));
        *self.counts.entry(known).or_insert(0) += count;
    }

    /// How often a situation was reached.
    pub fn count(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or(0)
    }

    /// Adds the counts of another run.
    pub fn join(&mut self, other: &FleetCoverage) {
        other.counts.iter().for_each(|(name, count)| self.add(name, *count));
    }

    /// How often each situation has to be reached in `runs` runs.
    pub fn wanted(runs: u64) -> u64 {
        (runs / RUNS_PER_SITUATION).max(1)
    }

    /// The situations that were reached too rarely in `runs` runs.
    pub fn missing(&self, runs: u64) -> Vec<&'static str> {
        SITUATIONS.iter().copied().filter(|name| self.count(name) < FleetCoverage::wanted(runs)).collect()
    }
}
