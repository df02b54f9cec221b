//! Adaptive: follows the best of several policies, and divides the cache between streams where that is better.
//!
//! # Idea
//! No policy is the best on all accesses, and which one is shows only while they come. So LIRS, LRU, S3-FIFO and
//! W-TinyLFU run as *shadow caches*, on metadata alone and on a sample of the ids: those whose hash falls into one of
//! 2^k parts, in caches of one 2^k-th of the size; up to [`Tuning::sample_max`] k is 0. The one that misses fewest beyond
//! chance leads, and those counts are the reason that is shown (`panel.rs`). Where the shadow caches see all, the
//! contents are what the leader holds, as far as it was read (`follower.rs`). A sample does not say that; there the
//! leader's policy begins empty, what is accessed moves to it, and the one before makes room, in its order.
//!
//! From the second stream on one more shadow cache, where they see all, is divided between the streams (`division.rs`),
//! by what each stream's curve of misses against size says that the next block is worth (`curve.rs`). The files import
//! each other as a tree, this one at the top and `tuning.rs` at the bottom.
//!
//! # Cost
//! An access of the sample is one of each shadow cache, of those of its stream's part, and of the curve's 18 small caches
//! where its id is in their sample; all of that is at most 4 Ki units large. Any other access is one of a plain policy.
//!
//! # Source
//! Following shadow caches: R. Subramanian, Y. Smaragdakis, G. H. Loh, "Adaptive caches: effective shaping of cache
//! behavior to workloads", MICRO 2006. Marginal gain: D. Thiébaut, H. S. Stone, J. L. Wolf, "Improving disk cache
//! hit-ratios through cache partitioning", IEEE Transactions on Computers 41(6), 1992.

mod curve;
mod division;
mod follower;
mod panel;
#[cfg(test)]
mod tests;
mod tuning;

pub use tuning::Tuning;

use crate::structures::hash::hash;
use crate::{Access, LeaderChange, Policy, REFUSALS_MAX, Reason, Stream};

use division::Division;
use follower::Follower;
use panel::{Panel, candidate};

/// The adaptive policy, over weighted ids and streams.
///
/// ```
/// use nectary_cache::{Access, Adaptive, Policy, Stream};
///
/// let mut cache = Adaptive::new(500);
/// let mut is_hit = |step: &u64| cache.reference(step % 1000, 1, Stream(7), &mut |_| true) == Access::Hit;
/// // Under LRU a loop of 1000 blocks in a cache of 500 hits never.
/// assert!((0..100_000).filter(|step| is_hit(step)).count() > 45_000);
/// ```
pub struct Adaptive {
    tuning: Tuning,
    capacity: u64,
    /// Ids are sampled one in 2^shift.
    shift: u32,
    panel: Panel,
    current: Contents,
    /// What was current before and is not empty yet. The oldest first; it is emptied first.
    leaving: Vec<Contents>,
    /// Who accessed first.
    stream: Option<Stream>,
    /// Accesses, those outside the sample as an estimate.
    accesses: u64,
    change: Option<LeaderChange>,
}

/// Residents, and what decides over them.
enum Contents {
    /// A policy for itself.
    Alone(Box<dyn Policy>),
    /// The leader of shadow caches that see all.
    Following(Follower),
}

impl Contents {
    /// Empty ones.
    fn new(leader: &str, capacity: u64, shift: u32) -> Contents {
        match shift {
            0 => Contents::Following(Follower::new(capacity)),
            _ => Contents::Alone(candidate(leader, capacity)),
        }
    }

    fn policy(&self) -> &dyn Policy {
        match self {
            Contents::Alone(policy) => &**policy,
            Contents::Following(follower) => follower,
        }
    }

    fn policy_mut(&mut self) -> &mut dyn Policy {
        match self {
            Contents::Alone(policy) => &mut **policy,
            Contents::Following(follower) => follower,
        }
    }
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
        let current = Contents::new(panel.leader().name(), capacity, shift);
        let leaving = Vec::new();
        Adaptive { tuning, capacity, shift, panel, current, leaving, stream: None, accesses: 0, change: None }
    }

    /// The policy by name: a candidate's, or `partition`.
    pub fn leader(&self) -> &'static str {
        self.panel.leader().name()
    }

    /// An access of the sample.
    #[inline(never)]
    fn access_sampled(&mut self, id: u64, weight: u64, stream: Stream, evict: &mut dyn FnMut(u64) -> bool) -> Access {
        let is_second = *self.stream.get_or_insert(stream) != stream;
        if is_second
            && self.shift == 0
            && self.tuning.is_divided
            && self.panel.policies.len() == self.tuning.candidates.len()
        {
            self.panel.add(Box::new(Division::new(self.capacity, self.tuning)));
        }
        self.accesses += 1 << self.shift;
        let change = self.panel.access(id, weight, stream).1;
        let leader = self.leader();
        if let Some((from, misses_before, misses_now)) = change {
            let reason = Reason { from: self.panel.policies[from].name(), misses_before, misses_now };
            self.change = Some(LeaderChange { reference: self.accesses, leader, reason });
        }
        match &mut self.current {
            Contents::Following(follower) => {
                if change.is_some() {
                    follower.regroup(&self.panel);
                }
                follower.guide(id, &self.panel);
            }
            Contents::Alone(policy) if leader != policy.name() && self.leaving.is_empty() => self.take_over(),
            Contents::Alone(_) => {}
        }
        self.access(id, weight, stream, evict)
    }

    /// Lets empty contents take over.
    fn take_over(&mut self) {
        let new = Contents::new(self.leader(), self.capacity, self.shift);
        self.leaving.push(std::mem::replace(&mut self.current, new));
    }

    /// An access that the shadow caches have seen, if they see it.
    fn access(&mut self, id: u64, weight: u64, stream: Stream, evict: &mut dyn FnMut(u64) -> bool) -> Access {
        if self.leaving.is_empty() {
            return self.current.policy_mut().reference(id, weight, stream, evict);
        }
        let fits = self.used() <= self.capacity;
        let current = self.current.policy_mut();
        let mut leaving = self.leaving.iter_mut().map(Contents::policy_mut);
        if let Some(old) = leaving.find(|old| old.contains(id)) {
            if !fits {
                // After refusals the new contents may have no room for it.
                return old.reference(id, weight, stream, &mut |_| false);
            }
            let used = old.used();
            old.remove(id);
            current.reference(id, used - old.used(), stream, evict);
            return Access::Hit;
        }
        if !current.contains(id) && (weight > self.capacity || !self.make_room(weight, REFUSALS_MAX, evict)) {
            return Access::Bypassed;
        }
        self.current.policy_mut().reference(id, weight, stream, evict)
    }

    /// Lets those who leave make room; `false` where they refuse.
    fn make_room(&mut self, room: u64, refusals_max: usize, evict: &mut dyn FnMut(u64) -> bool) -> bool {
        let mut refusals = 0;
        for place in 0..self.leaving.len() {
            let over = self.used().saturating_add(room).saturating_sub(self.capacity);
            let old = self.leaving[place].policy_mut();
            old.set_capacity(old.used().saturating_sub(over), &mut |id| {
                let is_given_up = refusals < refusals_max && evict(id);
                refusals += usize::from(!is_given_up);
                is_given_up
            });
        }
        self.leaving.retain(|old| !old.policy().is_empty());
        self.leaving.is_empty() || self.used().saturating_add(room) <= self.capacity
    }

    fn all(&self) -> impl Iterator<Item = &dyn Policy> {
        self.leaving.iter().chain([&self.current]).map(Contents::policy)
    }
}

/// The shadow caches of a cache of `capacity`, of which one in 2^`shift` ids is sampled.
fn panel(leader: &str, capacity: u64, shift: u32, tuning: Tuning) -> Panel {
    let lead = if shift == 0 { [tuning.prior[0], 0.0] } else { [tuning.prior[1], tuning.change] };
    Panel::new(leader, capacity >> shift, lead, tuning)
}

fn shift_of(capacity: u64, tuning: &Tuning) -> u32 {
    (0..).find(|shift| capacity >> shift <= tuning.sample_max).unwrap_or(0)
}

/// Whether an id is in the sample of one in 2^`shift`. Tables use the top and the low bits of the hash, curves those
/// from 24 on.
fn is_sampled(id: u64, shift: u32) -> bool {
    (hash(id) >> 40) & ((1 << shift) - 1) == 0
}

impl Policy for Adaptive {
    fn name(&self) -> &'static str {
        "adaptive"
    }

    fn reference(&mut self, id: u64, weight: u64, stream: Stream, evict: &mut dyn FnMut(u64) -> bool) -> Access {
        match is_sampled(id, self.shift) {
            true => self.access_sampled(id, weight.max(1), stream, evict),
            false => self.access(id, weight.max(1), stream, evict),
        }
    }

    fn prepare(&self, id: u64) {
        self.all().for_each(|policy| policy.prepare(id));
    }

    fn replacement(&self, stream: Stream) -> &'static str {
        match &self.current {
            Contents::Following(_) => self.panel.leader().replacement(stream),
            Contents::Alone(policy) => policy.name(),
        }
    }

    fn take_change(&mut self) -> Option<LeaderChange> {
        self.change.take()
    }

    fn remove(&mut self, id: u64) -> bool {
        if is_sampled(id, self.shift) {
            self.panel.remove(id);
        }
        let all = self.leaving.iter_mut().chain([&mut self.current]);
        all.fold(false, |was, contents| was | contents.policy_mut().remove(id))
    }

    fn contains(&self, id: u64) -> bool {
        self.all().any(|policy| policy.contains(id))
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
            self.take_over();
        }
        self.capacity = capacity;
        if let Contents::Following(follower) = &mut self.current {
            follower.regroup(&self.panel);
        }
        self.make_room(0, usize::MAX, evict);
        let rest = capacity.saturating_sub(self.leaving.iter().map(|old| old.policy().used()).sum());
        let current = self.current.policy_mut();
        // What those who leave refuse to give up is missing here, until they do.
        if current.used() > rest {
            current.set_capacity(rest, evict);
        }
        current.set_capacity(capacity, evict);
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn used(&self) -> u64 {
        self.all().map(|policy| policy.used()).sum()
    }

    fn len(&self) -> usize {
        self.all().map(|policy| policy.len()).sum()
    }
}
