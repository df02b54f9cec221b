//! Adaptive: follows the best of several policies, divides the cache between streams where that is better, and explains
//! itself.
//!
//! # Idea
//! No policy is the best on all references, and which one is shows only while they come. So `adaptive` runs several of them
//! as *ghosts* on metadata alone (`ghosts.rs`), counts what each would have missed, and lets its own contents follow those
//! that miss least (`live.rs`, `guard.rs`). That learns from evidence and costs no reads of its own: a block that a better
//! ghost holds is kept when it comes, and nothing is fetched for the sake of a change.
//!
//! Policies differ sooner in smaller caches, so the candidates run at a half and at a quarter of the size too (`smaller.rs`), and
//! who is better there has a bounded bonus.
//!
//! Detection tells it what to expect (`streams.rs`): a stream's verdict makes one candidate the favourite, which is
//! believed until it loses by more than a bonus; then the *guard* takes the choice back and says so.
//!
//! | verdict | favourite |
//! |---|---|
//! | sequential, looping | LIRS: keeps a fixed part of a loop, and lets a scan through one percent of the cache |
//! | probabilistic | LIRS |
//! | clustered | LRU |
//! | none | none: the best of the ghosts |
//!
//! From the second stream on one more ghost, the *partition* (`partition.rs`), divides the cache between streams, each with
//! a follower of its own, by what each stream's curve of misses against size says the next block is worth
//! (`allocation.rs`). It leads where streams are separate and different; it is not followed where one policy over all of
//! them does better.
//!
//! # Large caches
//! Up to 16 Ki units of capacity all of that is exact. Above, a *scout* does it on a sample: ids whose hash falls into one of
//! 2^k parts, in a cache of one 2^k-th of the size, at most 4 Ki units. The cache itself then has one policy in force, LRU to begin with,
//! takes over the scout's leader where that is clearly ahead, and changes without losing its contents (`migrating.rs`,
//! `divided.rs`). Ledgers are estimates from the sample then, and windows count its references alone. A cache whose
//! capacity grows over the limit becomes a large one with what it holds, and stays one; where another k is called for, the
//! scout begins anew.
//!
//! # What it says
//! [`Adaptive::explain_to`] gives away every period of every stream, every change of the leader with its reason, and after
//! each window the misses of the optimum from the same contents (`window.rs`). [`Adaptive::ledger`] is what was saved and
//! lost against LRU (`ledger.rs`).
//!
//! # Invariants
//! 1. Those of [`Policy`].
//! 2. `saved - lost` of all ledgers is exactly the misses of LRU less those of the cache (of a sample, where it is sampled).
//!
//! # Cost
//! Exact: some 40 small policies for each stream, about 2 to 6 µs a reference; 700 bytes a unit of capacity for each ghost
//! set, that is for the cache and again for each stream's share of it; candidates at smaller sizes are most of the time and nearly half
//! of that memory. Sampled: the policy in force, and one 2^k-th of
//! that. Detection: histories of up to 64 Ki blocks a stream, at most 56 MB for all 16; 60 bytes a reference of a window, at
//! most 4 MB.
//!
//! # Source
//! Following ghosts: R. Subramanian, Y. Smaragdakis, G. H. Loh, "Adaptive caches: effective shaping of cache behavior to
//! workloads", MICRO 2006. Votes of experts with exponential weights: N. Littlestone, M. Warmuth, "The weighted majority
//! algorithm", Information and Computation 108(2), 1994. Detection: see [`crate::detect`]. Marginal gain: D. Thiébaut,
//! H. S. Stone, J. L. Wolf, "Improving disk cache hit-ratios through cache partitioning", IEEE Transactions on Computers
//! 41(6), 1992.

mod allocation;
mod divided;
mod follower;
mod ghosts;
mod guard;
mod large;
mod ledger;
mod live;
mod migrating;
mod partition;
mod report;
mod scout;
mod smaller;
mod streams;
mod window;

pub use guard::Reason;
pub use ledger::Ledger;
pub use report::{Event, EventSink, LeaderChange, StreamPeriod};
pub use window::WindowReport;

use crate::detect::PeriodSink;
use crate::structures::hash::hash;
use crate::{Access, Policy, Stream};

use large::Large;
use scout::Scout;

/// Ghosts are exact up to this capacity. *Units*: units of weight.
const EXACT_MAX: u64 = 16 << 10;
/// A sample of a larger cache is of one of at most this capacity. *Units*: units of weight.
const SAMPLE_MAX: u64 = 4 << 10;
/// A large cache takes over the scout's division once in so many references of the sample.
const TAKE_OVER_REFERENCES: u64 = 256;

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
/// let ledger = cache.ledger(Stream(7)).expect("referred");
/// assert_eq!((ledger.saved, ledger.lost), (u64::from(hits), 0));
/// ```
pub struct Adaptive {
    capacity: u64,
    /// Ids are sampled one in 2^shift; 0 where the scout is the cache.
    shift: u32,
    scout: Scout,
    /// The cache itself, where the scout sees a sample only.
    large: Option<Large>,
}

impl Adaptive {
    /// An empty policy of `capacity` units of weight.
    pub fn new(capacity: u64) -> Adaptive {
        let shift = shift_of(capacity);
        Adaptive {
            capacity,
            shift,
            scout: Scout::new(capacity, shift),
            large: (shift > 0).then(|| Large::new(capacity)).flatten(),
        }
    }

    /// Gives everything that there is to say to `sink` from here on, in place of any sink before.
    pub fn explain_to(&mut self, sink: EventSink) {
        self.scout.sink = Some(sink);
    }

    /// Gives every period of every stream to `sink` from here on, and nothing else.
    pub fn explain_periods_to(&mut self, mut sink: PeriodSink) {
        self.explain_to(Box::new(move |event| {
            if let Event::Period(period) = event {
                sink(period.period);
            }
        }));
    }

    /// What was saved and lost against LRU for a stream; an estimate where ids are sampled. The sixteenth stream and all
    /// after it share one ledger, which is that of every stream without one of its own; before, `None` says that the stream
    /// did not refer yet.
    pub fn ledger(&self, stream: Stream) -> Option<Ledger> {
        self.scout.ledger(stream)
    }

    /// The streams that are told apart.
    pub fn streams(&self) -> impl Iterator<Item = Stream> + '_ {
        self.scout.streams()
    }

    /// The policy in force by name: a candidate's, or `partition`.
    pub fn leader(&self) -> &'static str {
        self.large.as_ref().map_or_else(|| self.scout.leader(), Large::name)
    }

    /// What the ghosts missed that led, of a sample where ids are sampled: the misses if contents came along with a change
    /// of leader. The misses beyond these are the price of following.
    pub fn misses_of_leaders(&self) -> u64 {
        self.scout.misses_of_leaders()
    }

    /// One in how many ids the ghosts see, as a power of two; 0 where they see all.
    pub fn sample_shift(&self) -> u32 {
        self.shift
    }
}

fn shift_of(capacity: u64) -> u32 {
    let most = if capacity <= EXACT_MAX { EXACT_MAX } else { SAMPLE_MAX };
    (0..).find(|shift| capacity >> shift <= most).unwrap_or(0)
}

/// Whether an id is in the sample of one in 2^`shift`. Tables use the top and the low bits of the hash, curves those from 24
/// on.
#[inline]
fn is_sampled(id: u64, shift: u32) -> bool {
    (hash(id) >> 40) & ((1 << shift) - 1) == 0
}

impl Policy for Adaptive {
    fn name(&self) -> &'static str {
        "adaptive"
    }

    fn reference(&mut self, id: u64, weight: u64, stream: Stream, evict: &mut dyn FnMut(u64) -> bool) -> Access {
        let weight = weight.max(1);
        let Some(large) = &mut self.large else { return self.scout.reference(id, weight, stream, evict) };
        if is_sampled(id, self.shift) {
            return large.reference_sampled(id, weight, stream, &mut self.scout, self.shift, evict);
        }
        large.reference(id, weight, stream, &mut self.scout, evict)
    }

    fn prepare(&self, id: u64) {
        if let Some(large) = &self.large {
            large.prepare(id);
        }
    }

    fn remove(&mut self, id: u64) -> bool {
        let was_in_scout = is_sampled(id, self.shift) && self.scout.remove(id);
        self.large.as_mut().map_or(was_in_scout, |large| large.remove(id))
    }

    fn contains(&self, id: u64) -> bool {
        match &self.large {
            Some(large) => large.contains(id),
            None => self.scout.contains(id),
        }
    }

    fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        self.capacity = capacity;
        let shift = shift_of(capacity);
        if shift > 0 && self.large.is_none() {
            self.large = Large::with_residents(capacity, &self.scout.residents());
        }
        if shift != self.shift {
            self.shift = shift;
            self.scout.begin_anew(capacity, shift);
        }
        match &mut self.large {
            Some(large) => {
                self.scout.set_capacity(capacity, &mut |_| true);
                large.set_capacity(capacity, evict);
            }
            None => self.scout.set_capacity(capacity, evict),
        }
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn used(&self) -> u64 {
        self.large.as_ref().map_or_else(|| self.scout.used(), |large| large.used())
    }

    fn len(&self) -> usize {
        self.large.as_ref().map_or_else(|| self.scout.len(), |large| large.len())
    }
}

#[cfg(test)]
mod tests;
