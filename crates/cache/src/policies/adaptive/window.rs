//! Windows: how far the cache was from the optimum, exactly, after each window of accesses.
//!
//! Owns: the accesses of the running window and what was resident when it began. Promises: the optimum is that of
//! Belady's MIN with bypassing, begun with the cache's contents at the start of the window. Leaves to others: MIN
//! ([`crate::Min`]).
//!
//! Only ids that the window accesses matter. Such an id was resident at the start if its first access hit, or if it was
//! evicted in the window before that. MIN plays the contents first, which misses once for each of them, and then the
//! window. A removed id is a new one from there on, as no policy could have kept it. With weights that differ the
//! optimum is NP-hard, and with another capacity there is no one cache of which it would be the optimum: such a window
//! has no distance.

use hashbrown::{HashMap, HashSet};

use crate::{Access, Future, Min, Policy, Stream};

/// The shortest window; else it is as long as the cache is large. *Units*: accesses.
const ACCESSES_MIN: usize = 4096;

/// How far from the optimum a window was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WindowReport {
    /// Which window, from 1.
    pub number: u64,
    /// Accesses of the window; of a sampled cache those of the sample.
    pub references: u64,
    /// Misses among them.
    pub misses: u64,
    /// Misses of the optimum, where weights do not differ and the capacity stayed.
    pub misses_min: Option<u64>,
}

/// The running window.
#[derive(Default)]
pub(super) struct Window {
    number: u64,
    misses: u64,
    weight: Option<u64>,
    has_no_distance: bool,
    /// The ids of the window by what they are called in it: the count of those before.
    names: HashMap<u64, u64>,
    count: u64,
    accesses: Vec<u64>,
    /// By name: what was resident at the start.
    contents: Vec<u64>,
    /// Evicted in the window before they were accessed in it.
    evicted: HashSet<u64>,
}

impl Window {
    /// `id` was evicted.
    pub(super) fn evict(&mut self, id: u64) {
        if !self.names.contains_key(&id) {
            self.evicted.insert(id);
        }
    }

    /// `id` was removed, by no choice of the policy.
    pub(super) fn remove(&mut self, id: u64) {
        self.names.remove(&id);
        self.evicted.remove(&id);
    }

    /// The capacity is another.
    pub(super) fn resize(&mut self) {
        self.has_no_distance = true;
    }

    /// Counts an access; the report where it ended the window of a cache of `capacity`.
    pub(super) fn count(&mut self, id: u64, weight: u64, is_hit: bool, capacity: u64) -> Option<WindowReport> {
        self.misses += u64::from(!is_hit);
        self.has_no_distance |= *self.weight.get_or_insert(weight) != weight;
        let name = *self.names.entry(id).or_insert_with(|| {
            if is_hit || self.evicted.contains(&id) {
                self.contents.push(self.count);
            }
            self.count += 1;
            self.count - 1
        });
        self.accesses.push(name);
        let length = usize::try_from(capacity).unwrap_or(usize::MAX).max(ACCESSES_MIN);
        (self.accesses.len() >= length).then(|| self.end(capacity / weight.max(1)))
    }

    fn end(&mut self, capacity: u64) -> WindowReport {
        let Window { number, misses, weight, has_no_distance, accesses, contents, .. } = std::mem::take(self);
        self.number = number + 1;
        self.weight = weight;
        let all: Vec<u64> = contents.iter().chain(&accesses).copied().collect();
        let misses_min = Future::of(&all).filter(|_| !has_no_distance).map(|future| {
            let mut min = Min::bypassing(capacity, &future);
            let misses =
                all.iter().filter(|id| min.reference(**id, 1, Stream(0), &mut |_| true) != Access::Hit).count();
            misses as u64 - contents.len() as u64
        });
        WindowReport { number: number + 1, references: accesses.len() as u64, misses, misses_min }
    }
}
