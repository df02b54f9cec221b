//! Computes the misses that another cache would have had on the last references.
//!
//! Owns: a [`ReferenceWindow`] of the last references, replays of the window with other capacities and policies, and the
//! conclusions in words. If a window does not begin with the cache's first reference, only its second half is counted;
//! the first half fills the replayed caches. Promises: if a window has all references to all blocks, a replay with the
//! cache's policy and capacity has exactly the misses of the cache. Leaves to others: the references (`history`).

use nectary_block::format_size;
use nectary_cache::{AccessResult, Min, NextReferences, Policy, by_name};

use crate::cache::BufferCache;
use crate::options::CacheOptions;
use crate::users::history::PastReference;

/// The memory sizes that advice compares, in quarters of the cache's memory.
const QUARTERS: [u64; 5] = [1, 2, 4, 8, 16];
/// The policies that advice compares with the cache's own.
const POLICIES: [&str; 5] = ["lru", "lirs", "s3fifo", "wtinylfu", "adaptive"];
/// The fewest counted references for which advice is given.
const REFERENCES_MIN: u64 = 1000;
/// The smallest change of the misses that counts as a change. *Units*: percent.
const PERCENT_MIN: f64 = 2.0;
/// The share of hits from which the data are said to fit: the kernel's page cache is faster then.
const FITTING_HIT_RATE: f64 = 0.99;

/// A number of references, and the number of misses among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MissCount {
    /// The number of references that were counted.
    pub references: u64,
    /// The number of counted references that missed.
    pub misses: u64,
}

impl MissCount {
    /// The share of hits, from 0 to 1; it is 0 if there are no references.
    pub fn hit_rate(&self) -> f64 {
        if self.references == 0 { 0.0 } else { 1.0 - self.misses as f64 / self.references as f64 }
    }
}

/// The last references of a cache.
#[derive(Debug, Clone)]
pub struct ReferenceWindow {
    past: Vec<PastReference>,
    options: CacheOptions,
    /// The capacity of the policy when the window was taken. *Units*: blocks.
    capacity: u64,
    /// The number of pinned blocks, which is subtracted from every capacity. *Units*: blocks.
    pinned: u64,
    share: f64,
    is_whole: bool,
}

/// The result of a replay with another size of the cache, or another policy.
#[derive(Debug, Clone, PartialEq)]
pub struct AdviceRow {
    /// The memory of the replayed cache. *Units*: bytes.
    pub memory_bytes: u64,
    /// The policy of the replayed cache.
    pub policy: String,
    /// The number of blocks that the policy can hold with that memory.
    pub capacity_blocks: u64,
    /// The references and misses of the replay; `None` if the memory is too small for a cache.
    pub counted: Option<MissCount>,
    /// Whether the row has the current size and policy of the cache.
    pub is_now: bool,
}

/// The misses that other sizes and policies would have, and conclusions.
#[derive(Debug, Clone, PartialEq)]
pub struct CacheAdvice {
    /// The rows for other sizes, from small to large, then the rows for other policies.
    pub rows: Vec<AdviceRow>,
    /// The references and misses of the optimal policy at the current size.
    pub min: MissCount,
    /// The references and misses of the cache itself.
    pub live: MissCount,
    /// The share of the blocks that are in the sample, from 0 to 1.
    pub share: f64,
    /// The conclusions, one sentence each.
    pub says: Vec<String>,
}

impl BufferCache {
    /// Copies the last references into a window. *Cost*: a copy of up to 4 MiB, under the mutex.
    pub fn window(&self) -> ReferenceWindow {
        let options = self.options();
        let state = self.shared.lock();
        ReferenceWindow {
            past: state.history.past(),
            options,
            capacity: state.policy.capacity(),
            pinned: state.pins.len() as u64,
            share: state.history.share(),
            is_whole: !state.history.has_lost() && state.history.share() >= 1.0,
        }
    }
}

impl ReferenceWindow {
    /// The share of the blocks that are in the sample, from 0 to 1.
    pub fn share(&self) -> f64 {
        self.share
    }

    /// Whether the window has all references to all blocks since the cache was created. The result is `false` after any
    /// change of the cache's memory, mode, policy or pins.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    fn first_counted(&self) -> usize {
        if self.is_whole { 0 } else { self.past.len() / 2 }
    }

    fn sampled(&self, capacity: u64) -> u64 {
        ((capacity as f64 * self.share).round() as u64).max(1)
    }

    /// The references and misses of the cache itself.
    pub fn live(&self) -> MissCount {
        let counted = &self.past[self.first_counted()..];
        let misses = counted.iter().filter(|past| !past.is_hit).count() as u64;
        MissCount { references: counted.len() as u64, misses }
    }

    fn replay(&self, policy: &mut dyn Policy) -> MissCount {
        let mut counted = MissCount::default();
        for (index, past) in self.past.iter().enumerate() {
            let access = policy.reference(past.id, 1, nectary_cache::StreamId(past.stream.0), &mut |_| true);
            if index >= self.first_counted() {
                counted.references += 1;
                counted.misses += u64::from(access != AccessResult::Hit);
            }
        }
        counted
    }

    /// Replays the window with a policy and a capacity. *Returns* the references and misses; `None` for an unknown
    /// policy. *Cost*: one reference to the policy per reference in the window.
    pub fn misses(&self, policy: &str, capacity_blocks: u64) -> Option<MissCount> {
        Some(self.replay(&mut *by_name(policy, self.sampled(capacity_blocks))?))
    }

    /// The references and misses of the optimal policy with the cache's capacity. The cache's own misses are returned
    /// if they are fewer, which is possible in a window without the first references, because there the real cache
    /// began full and the replay begins empty.
    pub fn min(&self) -> MissCount {
        let replayed = self.replay_min();
        MissCount { misses: replayed.misses.min(self.live().misses), ..replayed }
    }

    fn replay_min(&self) -> MissCount {
        let ids: Vec<u64> = self.past.iter().map(|past| past.id).collect();
        match NextReferences::of(&ids) {
            Some(future) => self.replay(&mut Min::new(self.sampled(self.capacity), &future)),
            // [`NextReferences::of`] fails only for more references than a window can have.
            None => MissCount::default(),
        }
    }

    /// Computes the misses of other sizes and policies, and the conclusions. *Cost*: ten replays, together up to half a
    /// second.
    pub fn advise(&self) -> CacheAdvice {
        let own = &self.options;
        let mut rows: Vec<AdviceRow> =
            QUARTERS.iter().map(|quarters| self.row(own.memory_bytes / 4 * quarters, &own.policy)).collect();
        let others = POLICIES.iter().filter(|name| **name != own.policy);
        rows.extend(others.map(|name| self.row(own.memory_bytes, name)));
        let mut advice = CacheAdvice { rows, min: self.min(), live: self.live(), share: self.share, says: Vec::new() };
        advice.says = self.says(&advice);
        advice
    }

    fn row(&self, memory_bytes: u64, policy: &str) -> AdviceRow {
        let own = &self.options;
        let is_now = policy == own.policy && memory_bytes / 4 == own.memory_bytes / 4;
        let memory_bytes = if is_now { own.memory_bytes } else { memory_bytes };
        let options = CacheOptions { memory_bytes, policy: policy.to_owned(), ..own.clone() };
        let capacity_blocks = match (is_now, options.check()) {
            (true, _) => self.capacity,
            (false, Ok(())) => options.budget().capacity.saturating_sub(self.pinned),
            (false, Err(_)) => 0,
        };
        let counted = if capacity_blocks > 0 { self.misses(policy, capacity_blocks) } else { None };
        AdviceRow { memory_bytes, policy: policy.to_owned(), capacity_blocks, counted, is_now }
    }

    fn says(&self, advice: &CacheAdvice) -> Vec<String> {
        let Some(now) = advice.rows.iter().find(|row| row.is_now).and_then(|row| row.counted) else {
            return Vec::new();
        };
        if now.references < REFERENCES_MIN {
            let count = now.references;
            return vec![format!(
                "{count} references are too few to say anything; ask again when programs have read more"
            )];
        }
        let change = |counted: MissCount| 100.0 * (counted.misses as f64 / now.misses.max(1) as f64 - 1.0);
        let mut says = Vec::new();
        let sizes = || advice.rows.iter().filter(|row| row.policy == self.options.policy);
        let more = sizes().filter(|row| row.memory_bytes > self.options.memory_bytes);
        // This is the smallest size that saves enough misses.
        let worth =
            more.filter_map(|row| Some((row, change(row.counted?)))).find(|(_, change)| *change <= -PERCENT_MIN);
        says.push(match worth {
            Some((row, change)) => {
                format!("{} of memory would save {:.0} % of the misses", format_size(row.memory_bytes), -change)
            }
            None => "more memory would save nothing worth it".to_owned(),
        });
        let fewer = sizes().filter(|row| row.memory_bytes < self.options.memory_bytes);
        let enough =
            fewer.filter_map(|row| Some((row, change(row.counted?)))).find(|(_, change)| *change < PERCENT_MIN);
        if let Some((row, _)) = enough {
            says.push(format!("{} would do as well as this much", format_size(row.memory_bytes)));
        }
        let policies = advice.rows.iter().filter(|row| row.policy != self.options.policy);
        let best = policies.filter_map(|row| Some((row, change(row.counted?)))).min_by(|a, b| a.1.total_cmp(&b.1));
        if let Some((row, change)) = best.filter(|(_, change)| *change <= -PERCENT_MIN) {
            says.push(format!("the policy {} would save {:.0} % of the misses at this size", row.policy, -change));
        }
        if now.hit_rate() >= FITTING_HIT_RATE {
            let what = "nearly all references hit: where the machine's memory holds all data, programs are faster on what is \
                        below, or with `nectary cache mount --passthrough`";
            says.push(what.to_owned());
        }
        says
    }
}
