//! Splits the loss of a point into two parts: the cost of choosing the wrong policy, and the cost of changing the
//! contents after a choice.
//!
//! Owns: choosers that are simpler than `adaptive`: their ghosts see all references and have the size of the cache, and
//! no policy has a bonus. Promises: each chooser starts with LIRS and learns only from the past. The result at a point
//! is that of the best window, which cannot be known beforehand. Leaves to others: divisions between streams.
//!
//! A chooser has two counts of misses. The *free* misses are those of the leaders' ghosts, as if a new leader's blocks
//! were in memory at once. The *paid* misses are those of a cache that keeps the blocks of the leader's ghost, and has
//! to read the blocks that it lacks.

use std::collections::BTreeSet;

use hashbrown::HashMap;

use nectary_cache::{AccessResult, Policy, StreamId, by_name};
use nectary_trace::simulate::TraceWorkload;

/// The candidates; the first one leads at the start.
const CANDIDATES: [&str; 6] = ["lirs", "lru", "wtinylfu", "s3fifo", "arc", "lfu-aged"];
/// The windows, in references for each unit of capacity; with the last one, a chooser never forgets.
const WINDOWS: [f64; 6] = [1.0, 2.0, 5.0, 10.0, 20.0, f64::INFINITY];
/// The number of choices of a leader in as many references as the capacity.
const CHOICES: u64 = 64;
const REFERENCES_MIN: u64 = 16;

/// The fewest misses of the choosers at one point.
#[derive(Debug, PartialEq, Eq)]
pub struct ChooserLimit {
    /// The fewest free misses.
    pub free: u64,
    /// The fewest paid misses.
    pub paid: u64,
}

/// A ghost cache of one candidate, with the outcome of the last reference.
struct CandidateGhost {
    policy: Box<dyn Policy>,
    is_hit: bool,
    is_held: bool,
    lost: Vec<u64>,
}

/// A chooser: it follows the policy that has the fewest misses in the chooser's window.
struct PolicyChooser {
    decay: f64,
    lately: [f64; CANDIDATES.len()],
    leader: usize,
    free: u64,
    paid: u64,
    /// The time of the last reference to each resident.
    residents: HashMap<u64, u64>,
    /// Residents that the leader's ghost does not hold, oldest first.
    spare: BTreeSet<(u64, u64)>,
}

impl PolicyChooser {
    fn new(window: f64, size: u64) -> PolicyChooser {
        PolicyChooser {
            decay: 1.0 - 1.0 / (window * size as f64).max(1.0),
            lately: [0.0; CANDIDATES.len()],
            leader: 0,
            free: 0,
            paid: 0,
            residents: HashMap::new(),
            spare: BTreeSet::new(),
        }
    }

    fn refer(&mut self, ghosts: &[CandidateGhost], id: u64, now: u64, size: u64) {
        for (lately, ghost) in self.lately.iter_mut().zip(ghosts) {
            *lately = *lately * self.decay + f64::from(!ghost.is_hit);
        }
        let leader = &ghosts[self.leader];
        self.free += u64::from(!leader.is_hit);
        for lost in leader.lost.iter().filter(|lost| **lost != id) {
            if let Some(&last) = self.residents.get(lost) {
                self.spare.insert((last, *lost));
            }
        }
        if let Some(last) = self.residents.get_mut(&id) {
            self.spare.remove(&(*last, id));
            *last = now;
        } else {
            self.paid += 1;
            let is_full = self.residents.len() as u64 >= size;
            if is_full && !leader.is_held {
                return;
            }
            if is_full && let Some((_, victim)) = self.spare.pop_first() {
                self.residents.remove(&victim);
            }
            self.residents.insert(id, now);
        }
        if !leader.is_held {
            self.spare.insert((now, id));
        }
    }

    fn choose(&mut self, ghosts: &[CandidateGhost]) {
        let before = self.leader;
        for other in 0..ghosts.len() {
            if self.lately[other] < self.lately[self.leader] {
                self.leader = other;
            }
        }
        if self.leader != before {
            let holder = &ghosts[self.leader].policy;
            let spare = self.residents.iter().filter(|(id, _)| !holder.contains(**id));
            self.spare = spare.map(|(id, last)| (*last, *id)).collect();
        }
    }
}

/// Measures the fewest misses of the choosers for a workload at a cache size.
pub fn limit(workload: &TraceWorkload, size: u64) -> ChooserLimit {
    let ghost = |name: &&str| {
        Some(CandidateGhost { policy: by_name(name, size)?, is_hit: false, is_held: false, lost: Vec::new() })
    };
    let mut ghosts: Vec<CandidateGhost> = CANDIDATES.iter().filter_map(ghost).collect();
    let mut choosers = WINDOWS.map(|window| PolicyChooser::new(window, size));
    let between = (size / CHOICES).max(REFERENCES_MIN);
    for (now, &id) in (1_u64..).zip(workload.blocks()) {
        for CandidateGhost { policy, is_hit, is_held, lost } in &mut ghosts {
            lost.clear();
            *is_hit = policy.reference(id, 1, StreamId(0), &mut |victim| {
                lost.push(victim);
                true
            }) == AccessResult::Hit;
            *is_held = policy.contains(id);
        }
        for chooser in &mut choosers {
            chooser.refer(&ghosts, id, now, size);
            if now.is_multiple_of(between) {
                chooser.choose(&ghosts);
            }
        }
    }
    let fewest = |of: fn(&PolicyChooser) -> u64| choosers.iter().map(of).min().unwrap_or(0);
    ChooserLimit { free: fewest(|chooser| chooser.free), paid: fewest(|chooser| chooser.paid) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(ids: impl Iterator<Item = u64>) -> TraceWorkload {
        TraceWorkload::new("test", ids.map(|id| (id, StreamId(0))))
    }

    /// A scan always misses, and a set of blocks that fits misses each block once.
    #[test]
    fn limit_separates_scan_and_fit() {
        let scan = limit(&workload(0..5000), 100);
        assert_eq!(scan, ChooserLimit { free: 5000, paid: 5000 });
        let fitting = limit(&workload((0..5000).map(|step| step % 50)), 100);
        assert_eq!(fitting, ChooserLimit { free: 50, paid: 50 });
    }
}
