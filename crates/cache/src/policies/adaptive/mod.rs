//! Adaptive: follows the best of several policies, and divides the cache between streams where that is better.
//!
//! # Idea
//! No policy is best for all workloads, and the best one is only known while the accesses happen. So LIRS, LRU, S3-FIFO
//! and W-TinyLFU run as *shadow caches*: they hold metadata only. They see a sample of the ids, one in 2^k by their
//! hash, and have 1/2^k of the capacity. If the capacity is at most [`Tuning::sample_max`], k is 0 and they see all
//! ids. The shadow cache with the fewest misses leads, if its advantage is beyond chance; users are shown the misses as
//! the reason (`panel.rs`). If the shadow caches see all ids, the cache holds the blocks that the leader holds and that
//! were read (`follower.rs`). A sample does not show which blocks to hold. So with a sample, a new leader's policy
//! begins empty; accessed blocks move to it, and the former policy evicts blocks to make room.
//!
//! With several streams, and if the shadow caches see all ids, one more shadow cache is divided between the streams
//! (`division.rs`). Each stream's curve of misses against size shows how many misses more memory would save
//! (`curve.rs`). The imports between the files have no circle: this file is at the top and `tuning.rs` at the bottom.
//!
//! # Cost
//! An access to a sampled id also accesses each shadow cache, those of its stream's part, and the curve's 18 small
//! caches if they sample the id; each holds at most 4 Ki units. Any other access costs as much as in a plain policy.
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
/// // Under LRU a loop of 1000 blocks in a cache of 500 never hits.
/// assert!((0..100_000).filter(|step| is_hit(step)).count() > 45_000);
/// ```
pub struct Adaptive {
    tuning: Tuning,
    capacity: u64,
    /// One in 2^`shift` ids is sampled.
    shift: u32,
    panel: Panel,
    current: Contents,
    /// Former contents that are not empty yet, in the order in which they are emptied.
    leaving: Vec<Contents>,
    /// The first stream that accessed the cache.
    stream: Option<Stream>,
    /// The number of accesses so far, estimated from the sampled ones.
    accesses: u64,
    change: Option<LeaderChange>,
}

/// Residents, and the rule that chooses which of them is evicted.
enum Contents {
    /// A policy that decides without shadow caches.
    Alone(Box<dyn Policy>),
    /// A cache that follows the contents of the leader. It is created only if the shadow caches see all ids.
    Following(Follower),
}

impl Contents {
    /// Empty contents.
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

    /// As [`Adaptive::new`], but with other constants, to measure the effect of each constant.
    pub fn with(capacity: u64, tuning: Tuning) -> Adaptive {
        let shift = shift_of(capacity, &tuning);
        let panel = panel("", capacity, shift, tuning);
        let current = Contents::new(panel.leader().name(), capacity, shift);
        let leaving = Vec::new();
        Adaptive { tuning, capacity, shift, panel, current, leaving, stream: None, accesses: 0, change: None }
    }

    /// The name of the policy that leads: a candidate, or `partition`.
    pub fn leader(&self) -> &'static str {
        self.panel.leader().name()
    }

    /// Handles an access to a sampled id.
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

    /// Makes empty contents the current ones; the former contents are emptied as room is needed.
    fn take_over(&mut self) {
        let new = Contents::new(self.leader(), self.capacity, self.shift);
        self.leaving.push(std::mem::replace(&mut self.current, new));
    }

    /// Handles an access, after the shadow caches have seen it (if its id is sampled).
    fn access(&mut self, id: u64, weight: u64, stream: Stream, evict: &mut dyn FnMut(u64) -> bool) -> Access {
        if self.leaving.is_empty() {
            return self.current.policy_mut().reference(id, weight, stream, evict);
        }
        let fits = self.used() <= self.capacity;
        let current = self.current.policy_mut();
        let mut leaving = self.leaving.iter_mut().map(Contents::policy_mut);
        if let Some(old) = leaving.find(|old| old.contains(id)) {
            if !fits {
                // The caller refused to evict victims, so the new contents may have no room for the id.
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

    /// Evicts from the former contents until there is room; `false` if the caller refuses too many victims.
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

/// The shadow caches of a cache of `capacity`, which see one in 2^`shift` ids.
fn panel(leader: &str, capacity: u64, shift: u32, tuning: Tuning) -> Panel {
    let lead = if shift == 0 { [tuning.prior[0], 0.0] } else { [tuning.prior[1], tuning.change] };
    Panel::new(leader, capacity >> shift, lead, tuning)
}

fn shift_of(capacity: u64, tuning: &Tuning) -> u32 {
    (0..).find(|shift| capacity >> shift <= tuning.sample_max).unwrap_or(0)
}

/// Whether an id is in the sample of one in 2^`shift` ids. The sample uses other bits of the hash (from bit 40 on) than
/// tables (top and low bits) and curves (from bit 24 on).
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
            // The sample changes, so new shadow caches begin empty. The leader stays, if it is a candidate.
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
        // The current contents must not use room that the former contents have not given up yet.
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
