//! Adaptive: follows the best of several policies, and divides the cache between streams where that is better.
//!
//! # Idea
//! No policy is the best on all accesses, and which one is shows only while they come. So LIRS, LRU, S3-FIFO and
//! W-TinyLFU run as *shadow caches*, on metadata alone and on a sample of the ids: those whose hash falls into one of
//! 2^k parts, in caches of one 2^k-th of the size; up to [`Tuning::sample_max`] k is 0. The one that misses fewest beyond
//! chance leads (`panel.rs`). Where the shadow caches see all, the contents are what the leader holds, as far as it was
//! read (`follower.rs`). A sample does not say that; there a cache of the leader's policy takes over from the one before
//! (`live.rs`).
//!
//! From the second stream on one more shadow cache, where they see all, is divided between the streams, with a policy and
//! a share for each (`division.rs`), by what each stream's curve of misses against size says that the next block is
//! worth (`curve.rs`). The files import each other as a tree, this one at the top and `tuning.rs` at the bottom.
//!
//! # Cost
//! An access of the sample is one of each shadow cache, of those of its stream's part, and of the curve's 18 small caches
//! where its id is in their sample; all of that is at most 4 Ki units large. Any other access is one of a plain policy.
//!
//! # Invariants
//! Those of [`Policy`]. The reason that a change shows is what it was made by: the counts of its panel.
//!
//! # Source
//! Following shadow caches: R. Subramanian, Y. Smaragdakis, G. H. Loh, "Adaptive caches: effective shaping of cache
//! behavior to workloads", MICRO 2006. Marginal gain: D. Thiébaut, H. S. Stone, J. L. Wolf, "Improving disk cache
//! hit-ratios through cache partitioning", IEEE Transactions on Computers 41(6), 1992.

mod curve;
mod division;
mod follower;
mod live;
mod panel;
#[cfg(test)]
mod tests;
mod tuning;

pub use tuning::Tuning;

use crate::structures::hash::hash;
use crate::{Access, LeaderChange, Policy, Reason, Stream};

use division::Division;
use follower::Follower;
use live::{Lead, Live};
use panel::{Panel, candidate};

/// The adaptive policy, over weighted ids and streams.
///
/// ```
/// use nectary_cache::{Access, Adaptive, Policy, Stream};
///
/// let mut cache = Adaptive::new(500);
/// let mut hits = 0;
/// for step in 0..100_000 {
///     hits += u32::from(cache.reference(step % 1000, 1, Stream(7), &mut |_| true) == Access::Hit);
/// }
/// // Under LRU a loop of 1000 blocks in a cache of 500 hits never.
/// assert!(hits > 45_000);
/// assert_ne!(cache.leader(), "lru");
/// ```
pub struct Adaptive {
    tuning: Tuning,
    /// Ids are sampled one in 2^shift.
    shift: u32,
    panel: Panel,
    live: Live,
    /// Who accessed first.
    stream: Option<Stream>,
    /// Accesses, those outside the sample as an estimate.
    accesses: u64,
    misses_of_leaders: u64,
    change: Option<LeaderChange>,
}

impl Adaptive {
    /// An empty policy of `capacity` units of weight.
    pub fn new(capacity: u64) -> Adaptive {
        Adaptive::with(capacity, Tuning::default())
    }

    /// As [`Adaptive::new`] with other constants, to see what each of them is worth.
    pub fn with(capacity: u64, tuning: Tuning) -> Adaptive {
        let shift = shift_of(capacity, &tuning);
        let panel = panel("", capacity, shift, tuning);
        let live = Live::new(lead(panel.leader().name(), capacity, shift));
        Adaptive { tuning, shift, panel, live, stream: None, accesses: 0, misses_of_leaders: 0, change: None }
    }

    /// The policy by name: a candidate's, or `partition`.
    pub fn leader(&self) -> &'static str {
        self.panel.leader().name()
    }

    /// What the shadow caches missed that led, of a sample where ids are sampled: the misses if contents came along
    /// with a change of leader. The misses beyond these are the price of following.
    pub fn misses_of_leaders(&self) -> u64 {
        self.misses_of_leaders
    }

    /// An access of the sample.
    #[inline(never)]
    fn access_sampled(&mut self, id: u64, weight: u64, stream: Stream, evict: &mut dyn FnMut(u64) -> bool) -> Access {
        let is_second = *self.stream.get_or_insert(stream) != stream;
        if is_second
            && self.shift == 0
            && self.tuning.is_divided
            && self.panel.policies().len() == self.tuning.candidates.len()
        {
            self.panel.add(Box::new(Division::new(self.live.capacity(), self.tuning)));
        }
        self.accesses += 1 << self.shift;
        let (is_miss, change) = self.panel.access(id, weight, stream);
        self.misses_of_leaders += u64::from(is_miss);
        let leader = self.leader();
        if let Some((from, misses_before, misses_now)) = change {
            let reason = Reason { from: self.panel.policies()[from].name(), misses_before, misses_now };
            self.change = Some(LeaderChange { reference: self.accesses, leader, reason });
        }
        if let Some(follower) = self.live.follower() {
            if change.is_some() {
                follower.regroup(&self.panel);
            }
            follower.guide(id, &self.panel);
        } else if leader != self.live.name() && !self.live.is_busy() {
            self.live.change(lead(leader, self.live.capacity(), self.shift));
        }
        self.live.reference(id, weight, stream, evict)
    }
}

/// The shadow caches of a cache of `capacity`, of which one in 2^`shift` ids is sampled.
fn panel(leader: &str, capacity: u64, shift: u32, tuning: Tuning) -> Panel {
    let at = usize::from(shift > 0);
    Panel::new(leader, capacity >> shift, [tuning.prior[at], tuning.change[at]], tuning)
}

/// An empty cache that follows shadow caches that see all, or is of the leader's policy.
fn lead(leader: &str, capacity: u64, shift: u32) -> Lead {
    match shift {
        0 => Lead::Follower(Follower::new(capacity)),
        _ => Lead::Alone(candidate(leader, capacity)),
    }
}

fn shift_of(capacity: u64, tuning: &Tuning) -> u32 {
    (0..).find(|shift| capacity >> shift <= tuning.sample_max).unwrap_or(0)
}

/// Whether an id is in the sample of one in 2^`shift`. Tables use the top and the low bits of the hash, curves those
/// from 24 on.
#[inline]
fn is_sampled(id: u64, shift: u32) -> bool {
    (hash(id) >> 40) & ((1 << shift) - 1) == 0
}

impl Policy for Adaptive {
    fn name(&self) -> &'static str {
        "adaptive"
    }

    fn reference(&mut self, id: u64, weight: u64, stream: Stream, evict: &mut dyn FnMut(u64) -> bool) -> Access {
        // Little stands between two accesses here, so that the processor waits for the memory of several at once.
        match is_sampled(id, self.shift) {
            true => self.access_sampled(id, weight.max(1), stream, evict),
            false => self.live.reference(id, weight.max(1), stream, evict),
        }
    }

    fn prepare(&self, id: u64) {
        self.live.prepare(id);
    }

    fn replacement(&self, stream: Stream) -> &'static str {
        match self.shift {
            0 => self.panel.leader().replacement(stream),
            _ => self.live.name(),
        }
    }

    fn take_change(&mut self) -> Option<LeaderChange> {
        self.change.take()
    }

    fn remove(&mut self, id: u64) -> bool {
        if is_sampled(id, self.shift) {
            self.panel.remove(id);
        }
        self.live.remove(id)
    }

    fn contains(&self, id: u64) -> bool {
        self.live.contains(id)
    }

    fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        let (shift, before) = (shift_of(capacity, &self.tuning), self.shift);
        if shift == before {
            self.panel.set_capacity(capacity >> shift);
        } else {
            // Another sample: its shadow caches begin empty, with the leader that there is where it is a candidate.
            self.panel = panel(self.leader(), capacity, shift, self.tuning);
            self.shift = shift;
        }
        if (shift == 0) != (before == 0) {
            self.live.change(lead(self.leader(), self.live.capacity(), shift));
        }
        self.live.follower().into_iter().for_each(|follower| follower.regroup(&self.panel));
        self.live.set_capacity(capacity, evict);
    }

    fn capacity(&self) -> u64 {
        self.live.capacity()
    }

    fn used(&self) -> u64 {
        self.live.used()
    }

    fn len(&self) -> usize {
        self.live.len()
    }
}
