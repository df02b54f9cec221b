//! Adaptive: follows the best of several policies, divides the cache between streams where that is better, and explains
//! itself.
//!
//! # Idea
//! No policy is the best on all accesses, and which one is shows only while they come. So LIRS, LRU, S3-FIFO and W-TinyLFU run as
//! *shadow caches*, on metadata alone and on a sample of the ids: those whose hash falls into one of 2^k parts, in
//! caches of one 2^k-th of the size (`shadows.rs`). The one that misses fewest beyond chance leads (`choice.rs`), and
//! the contents move to its order as they are accessed (`live.rs`).
//!
//! From the second stream on there is one more shadow cache, which is divided between the streams, a policy and a share
//! for each (`divided.rs`), by what each stream's curve of misses against size says the next block is worth
//! (`curve.rs`, `division.rs`).
//!
//! The files hang together as a tree: `shadows.rs` has the candidates, the choice and the division, `division.rs` the curves
//! and a divided cache, `divided.rs` a changing cache for each stream; `candidate.rs` and `tuning.rs` are its leaves. Nobody knows who
//! uses it.
//!
//! # Cost
//! An access of the sample is one of each shadow cache, of the divided one, and of the curve's 18 small caches where its id is
//! in their sample; all of that is at most 4 Ki units large. Detection and windows are there only where somebody listens.
//!
//! # What it says
//! [`Adaptive::explain_to`] gives away every period of every stream (`verdict.rs`), every change of the leader with its
//! reason, and after each window the misses of the optimum from the same contents (`window.rs`). [`Adaptive::ledger`]
//! is what was saved and lost against LRU (`streams.rs`). Where ids are sampled these are of the sample.
//!
//! # Invariants
//! 1. Those of [`Policy`].
//! 2. `saved - lost` of all ledgers is exactly the misses of LRU less those of the cache (of a sample, where it is sampled).
//!
//! # Source
//! Following shadow caches: R. Subramanian, Y. Smaragdakis, G. H. Loh, "Adaptive caches: effective shaping of cache
//! behavior to workloads", MICRO 2006. Marginal gain: D. Thiébaut, H. S. Stone, J. L. Wolf, "Improving disk cache
//! hit-ratios through cache partitioning", IEEE Transactions on Computers 41(6), 1992.

mod candidate;
mod choice;
mod curve;
mod division;
mod follower;
mod live;
mod report;
mod shadows;
mod streams;
mod tuning;
mod verdict;
mod window;

pub use choice::Reason;
pub use report::{Event, EventSink, LeaderChange, StreamPeriod};
pub use streams::Ledger;
pub use tuning::Tuning;
pub use window::WindowReport;

use crate::detect::{PeriodEvent, PeriodSink};
use crate::structures::hash::hash;
use crate::{Access, Policy, Stream};

use candidate::{DIVIDED, candidate};
use follower::Follower;
use live::{Lead, Live};
use report::Explanation;
use shadows::Shadows;
use streams::Streams;

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
/// let ledger = cache.ledger(Stream(7)).expect("accessed");
/// assert_eq!((ledger.saved, ledger.lost), (u64::from(hits), 0));
/// ```
pub struct Adaptive {
    tuning: Tuning,
    /// Ids are sampled one in 2^shift.
    shift: u32,
    live: Live,
    shadows: Shadows,
    streams: Streams,
    leader: &'static str,
    reason: Reason,
    /// Accesses, those outside the sample as an estimate.
    accesses: u64,
    explanation: Option<Explanation>,
}

impl Adaptive {
    /// An empty policy of `capacity` units of weight.
    pub fn new(capacity: u64) -> Adaptive {
        Adaptive::with(capacity, Tuning::default())
    }

    /// As [`Adaptive::new`] with other constants, to see what each of them is worth.
    pub fn with(capacity: u64, tuning: Tuning) -> Adaptive {
        let shift = shift_of(capacity, &tuning);
        let shadows = Shadows::new(capacity >> shift, shift == 0, "", tuning);
        let leader = shadows.leader();
        Adaptive {
            tuning,
            shift,
            live: Live::new(lead(leader, capacity, shift)),
            shadows,
            streams: Streams::default(),
            leader,
            reason: Reason::Start,
            accesses: 0,
            explanation: None,
        }
    }

    /// Gives everything that there is to say to `sink` from here on, in place of any sink before.
    pub fn explain_to(&mut self, sink: EventSink) {
        self.explanation = Some(Explanation::to(sink));
    }

    /// Gives every period of every stream to `sink` from here on, and nothing else.
    pub fn explain_periods_to(&mut self, mut sink: PeriodSink) {
        self.explain_to(Box::new(move |event| {
            if let Event::Period(period) = event {
                sink(period.period);
            }
        }));
    }

    /// What was saved and lost against LRU for a stream; an estimate where ids are sampled. The sixteenth stream and
    /// all after it share one ledger, with those that ended and were forgotten; it is that of every stream without one
    /// of its own. Before, `None` says that the stream did not access anything yet.
    pub fn ledger(&self, stream: Stream) -> Option<Ledger> {
        self.streams.ledger(stream)
    }

    /// The streams that are told apart.
    pub fn streams(&self) -> impl Iterator<Item = Stream> + '_ {
        self.streams.slots.iter().map(|slot| slot.stream)
    }

    /// The policy by name: a candidate's, or `partition`.
    pub fn leader(&self) -> &'static str {
        self.leader
    }

    /// What the shadow caches missed that led, of a sample where ids are sampled: the misses if contents came along
    /// with a change of leader. The misses beyond these are the price of following.
    pub fn misses_of_leaders(&self) -> u64 {
        self.shadows.misses_of_leaders()
    }

    /// One in how many ids the shadow caches see, as a power of two; 0 where they see all.
    pub fn sample_shift(&self) -> u32 {
        self.shift
    }

    /// An access of the sample.
    #[inline(never)]
    fn access_sampled(&mut self, id: u64, weight: u64, stream: Stream, evict: &mut dyn FnMut(u64) -> bool) -> Access {
        let ended = (self.tuning.window * (self.live.capacity() >> self.shift) as f64) as u64;
        let slot = self.streams.access(stream, ended);
        if let (Some(slot), Some(division)) = (self.streams.forgotten, &mut self.shadows.division) {
            division.forget(slot);
        }
        let change = self.shadows.access(id, weight, slot);
        self.accesses += 1 << self.shift;
        if let Some((from, leader, misses, misses_best)) = change {
            self.reason = Reason::Evidence { from, misses, misses_best };
            self.leader = leader;
            let change = LeaderChange { reference: self.accesses, leader, reason: self.reason };
            self.explanation.iter_mut().for_each(|explanation| (explanation.sink)(Event::Leader(change)));
        }
        let Adaptive { live, shadows, explanation, shift, .. } = self;
        if let Some(follower) = live.follower() {
            match shadows.lost().filter(|_| change.is_none()) {
                Some(lost) => follower.guide(shadows.holds(id), lost),
                None => {
                    follower.regroup(&|id| shadows.holds(id));
                    follower.guide(shadows.holds(id), &[]);
                }
            }
        } else if self.leader != live.name() && !live.is_busy() {
            live.change(lead(self.leader, live.capacity(), *shift));
        }
        let mut evict = |victim| evicts(victim, *shift, explanation, evict);
        let access = live.reference(id, weight, Stream(slot as u32), &mut evict);
        let is_hit = access == Access::Hit;
        self.streams.slots[slot].ledger.count(self.shift, is_hit, self.shadows.is_lru_hit());
        self.explain(slot, id, weight, is_hit);
        access
    }

    fn explain(&mut self, slot: usize, id: u64, weight: u64, is_hit: bool) {
        let Some(explanation) = &mut self.explanation else { return };
        if let Some(report) = explanation.window.count(id, weight, is_hit, self.live.capacity() >> self.shift) {
            (explanation.sink)(Event::Window(report));
        }
        let is_new = self.streams.forgotten == Some(slot);
        let Some(report) = explanation.detection(slot, is_new).count(id) else { return };
        let plan = self.shadows.division.as_ref().and_then(|division| division.share(slot));
        let plan = plan.filter(|_| self.leader == DIVIDED);
        let slot = &self.streams.slots[slot];
        let replacement = plan.map_or(self.leader, |(_, name)| name);
        (explanation.sink)(Event::Period(StreamPeriod {
            period: PeriodEvent { stream: slot.stream, report: &report, replacement },
            reason: self.reason,
            share: plan.map(|(share, _)| share),
            ledger: slot.ledger,
        }));
    }
}

/// An empty cache that follows exact shadow caches, or is of the leader's policy.
fn lead(leader: &str, capacity: u64, shift: u32) -> Lead {
    match shift {
        0 => Lead::Follower(Follower::new(capacity)),
        _ => Lead::Alone(candidate(leader, capacity)),
    }
}

/// Offers a victim, and notes it where somebody listens.
fn evicts(id: u64, shift: u32, explanation: &mut Option<Explanation>, evict: &mut dyn FnMut(u64) -> bool) -> bool {
    let is_given_up = evict(id);
    if let Some(explanation) = explanation.as_mut().filter(|_| is_given_up && is_sampled(id, shift)) {
        explanation.window.evict(id);
    }
    is_given_up
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
        let weight = weight.max(1);
        if is_sampled(id, self.shift) {
            return self.access_sampled(id, weight, stream, evict);
        }
        // Little stands between two accesses here, so that the processor waits for the memory of several at once.
        if self.explanation.is_none()
            && let Some(policy) = self.live.sole()
        {
            return policy.reference(id, weight, stream, evict);
        }
        let Adaptive { live, explanation, shift, .. } = self;
        live.reference(id, weight, stream, &mut |victim| evicts(victim, *shift, explanation, evict))
    }

    fn prepare(&self, id: u64) {
        self.live.prepare(id);
    }

    fn remove(&mut self, id: u64) -> bool {
        if is_sampled(id, self.shift) {
            self.shadows.remove(id);
            self.explanation.iter_mut().for_each(|explanation| explanation.window.remove(id));
        }
        self.live.remove(id)
    }

    fn contains(&self, id: u64) -> bool {
        self.live.contains(id)
    }

    fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        let (shift, before) = (shift_of(capacity, &self.tuning), self.shift);
        if shift == before {
            self.shadows.set_capacity(capacity >> shift);
        } else {
            // Another sample: its shadow caches begin empty, with the leader that there is where it is one of them.
            self.shift = shift;
            self.shadows = Shadows::new(capacity >> shift, shift == 0, self.leader, self.tuning);
        }
        self.leader = self.shadows.leader();
        if (shift == 0) != (before == 0) {
            self.live.change(lead(self.leader, self.live.capacity(), shift));
        }
        self.live.follower().into_iter().for_each(|follower| follower.regroup(&|id| self.shadows.holds(id)));
        let Adaptive { live, explanation, .. } = self;
        live.set_capacity(capacity, &mut |victim| evicts(victim, shift, explanation, evict));
        self.explanation.iter_mut().for_each(|explanation| explanation.window.resize());
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
