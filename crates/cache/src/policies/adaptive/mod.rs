//! Adaptive: follows the best of several policies, and divides the cache between streams where that is better.
//!
//! # Idea
//! No policy is best for all workloads, and the best one is only known while the accesses happen. So LIRS, LRU, S3-FIFO
//! and W-TinyLFU run as *shadow caches*: they hold metadata only. The shadow cache with the fewest misses leads, if its
//! advantage is worth a change; users are shown the misses as the reason (`panel.rs`).
//!
//! Up to [`AdaptiveTuning::sample_max`] units they see all ids, and the cache holds the blocks that the leader holds and that
//! were read (`follower.rs`). With several streams, one more shadow cache is divided between the streams
//! (`division.rs`). Each stream's curve of misses against size shows how many misses more memory would save
//! (`curve.rs`).
//!
//! In a larger cache the shadow caches see a sample of the ids, one in 2^k by their hash, and have 1/2^k of the capacity.
//! A sample does not show which blocks to hold, so the contents have a policy: at first S3-FIFO, which is rarely far from
//! the best there. After a change the former policy hands its blocks over, the least valuable first, some at each
//! access; until then it keeps the others.
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

pub(crate) use curve::SIZES;
pub(crate) use division::STREAMS_MAX;
pub use tuning::AdaptiveTuning;

use crate::structures::hash::hash;
use crate::{AccessResult, LeaderChange, LeaderReason, Policy, StreamId};

use division::CacheDivision;
use follower::FollowerCache;
use panel::{ShadowPanel, candidate};

/// The adaptive policy, over weighted ids and streams.
///
/// ```
/// use nectary_cache::{AccessResult, Adaptive, Policy, StreamId};
///
/// let mut cache = Adaptive::new(500);
/// let mut is_hit = |step: &u64| cache.reference(step % 1000, 1, StreamId(7), &mut |_| true) == AccessResult::Hit;
/// // Under LRU a loop of 1000 blocks in a cache of 500 never hits.
/// assert!((0..100_000).filter(|step| is_hit(step)).count() > 45_000);
/// ```
pub struct Adaptive {
    tuning: AdaptiveTuning,
    capacity: u64,
    /// One in 2^`shift` ids is sampled.
    shift: u32,
    panel: ShadowPanel,
    current: ResidentContents,
    /// The former contents of a large cache while they hand their ids over; the capacity of the current ones is the rest.
    leaving: Option<Box<dyn Policy>>,
    /// The first stream that accessed the cache.
    stream: Option<StreamId>,
    /// The number of accesses so far, estimated from the sampled ones.
    accesses: u64,
    change: Option<LeaderChange>,
}

/// Residents, and the rule that chooses which of them is evicted.
enum ResidentContents {
    /// A policy that decides without shadow caches, in a large cache.
    Alone(Box<dyn Policy>),
    /// A cache that follows the contents of the leader. The shadow caches see all ids.
    Following(FollowerCache),
}

impl ResidentContents {
    fn new(leader: &str, capacity: u64, shift: u32) -> ResidentContents {
        match shift {
            0 => ResidentContents::Following(FollowerCache::new(capacity)),
            _ => ResidentContents::Alone(candidate(leader, capacity)),
        }
    }

    fn policy(&self) -> &dyn Policy {
        match self {
            ResidentContents::Alone(policy) => &**policy,
            ResidentContents::Following(follower) => follower,
        }
    }

    fn policy_mut(&mut self) -> &mut dyn Policy {
        match self {
            ResidentContents::Alone(policy) => &mut **policy,
            ResidentContents::Following(follower) => follower,
        }
    }
}

impl Adaptive {
    /// An empty policy of `capacity` units of weight.
    pub fn new(capacity: u64) -> Adaptive {
        Adaptive::with(capacity, AdaptiveTuning::default())
    }

    /// As [`Adaptive::new`], but with other constants, to measure the effect of each constant.
    pub fn with(capacity: u64, tuning: AdaptiveTuning) -> Adaptive {
        let shift = shift_of(capacity, &tuning);
        let panel = panel("", capacity, shift, tuning);
        let current = ResidentContents::new(panel.leader().name(), capacity, shift);
        Adaptive { tuning, capacity, shift, panel, current, leaving: None, stream: None, accesses: 0, change: None }
    }

    /// The name of the policy that leads: a candidate, or `partition`.
    pub fn leader(&self) -> &'static str {
        self.panel.leader().name()
    }

    /// Handles an access to a sampled id.
    #[inline(never)]
    fn access_sampled(
        &mut self,
        id: u64,
        weight: u64,
        stream: StreamId,
        evict: &mut dyn FnMut(u64) -> bool,
    ) -> AccessResult {
        let is_second = *self.stream.get_or_insert(stream) != stream;
        if is_second
            && self.shift == 0
            && self.tuning.is_divided
            && self.panel.policies.len() == self.tuning.candidates.len()
        {
            self.panel.add(Box::new(CacheDivision::new(self.capacity, self.tuning)));
        }
        self.accesses += 1 << self.shift;
        let change = self.panel.access(id, weight, stream).1;
        if let Some((from, misses_before, misses_now)) = change {
            let reason = LeaderReason { from: self.panel.policies[from].name(), misses_before, misses_now };
            self.change = Some(LeaderChange { reference: self.accesses, leader: self.leader(), reason });
        }
        match &mut self.current {
            ResidentContents::Following(follower) => {
                if change.is_some() {
                    follower.regroup(&self.panel);
                }
                follower.guide(id, &self.panel);
            }
            ResidentContents::Alone(policy)
                if self.leaving.is_none() && policy.name() != self.panel.leader().name() =>
            {
                let new = candidate(self.panel.leader().name(), 0);
                self.leaving = Some(std::mem::replace(policy, new));
            }
            ResidentContents::Alone(_) => {}
        }
        self.access(id, weight, stream, evict)
    }

    /// Handles an access, after the shadow caches have seen it (if its id is sampled).
    fn access(&mut self, id: u64, weight: u64, stream: StreamId, evict: &mut dyn FnMut(u64) -> bool) -> AccessResult {
        let Some(old) = &mut self.leaving else {
            return self.current.policy_mut().reference(id, weight, stream, evict);
        };
        if old.contains(id) {
            let used = old.used();
            old.remove(id);
            let weight = used - old.used();
            let is_kept = self.adopt(&[(id, weight)], evict);
            return if is_kept { AccessResult::Hit } else { AccessResult::Bypassed };
        }
        self.hand_over(weight, self.tuning.steps, evict);
        self.current.policy_mut().reference(id, weight, stream, evict)
    }

    /// Hands over the ids that the former contents value least: `count` of them, and as many more as make the current
    /// contents large enough for an id of weight `room`.
    fn hand_over(&mut self, room: u64, count: u64, evict: &mut dyn FnMut(u64) -> bool) {
        let mut handed = Vec::new();
        while let Some(old) = &mut self.leaving
            && ((handed.len() as u64) < count || self.capacity.saturating_sub(old.used()) < room)
        {
            let (used, place) = (old.used(), handed.len());
            old.set_capacity(used.saturating_sub(1), &mut |id| {
                handed.push((id, 0));
                true
            });
            match handed.get_mut(place) {
                Some(least) => least.1 = used - old.used(),
                None => self.leaving = None,
            }
        }
        self.adopt(&handed, evict);
    }

    /// Puts ids that have left the former contents into the current ones, each with its weight. *Returns* `false` if one
    /// had to be evicted.
    fn adopt(&mut self, ids: &[(u64, u64)], evict: &mut dyn FnMut(u64) -> bool) -> bool {
        let rest = self.capacity.saturating_sub(self.leaving.as_ref().map_or(0, |old| old.used()));
        let current = self.current.policy_mut();
        // All room is there before the first id comes, so that a policy that distinguishes ids while it fills does.
        current.set_capacity(rest, evict);
        ids.iter().fold(true, |are_kept, (id, weight)| {
            let access = current.reference(*id, *weight, StreamId(0), evict);
            (access != AccessResult::Bypassed || !evict(*id)) && are_kept
        })
    }

    fn all(&self) -> impl Iterator<Item = &dyn Policy> {
        self.leaving.as_deref().into_iter().chain([self.current.policy()])
    }
}

/// The shadow caches of a cache of `capacity`, which see one in 2^`shift` ids.
fn panel(leader: &str, capacity: u64, shift: u32, tuning: AdaptiveTuning) -> ShadowPanel {
    ShadowPanel::new(leader, capacity >> shift, shift > 0, tuning)
}

/// A large cache has shadow caches of at most half of what is small.
pub(crate) fn shift_of(capacity: u64, tuning: &AdaptiveTuning) -> u32 {
    match capacity > tuning.sample_max {
        true => (1..).find(|shift| capacity >> shift <= tuning.sample_max / 2).unwrap_or(0),
        false => 0,
    }
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

    fn reference(
        &mut self,
        id: u64,
        weight: u64,
        stream: StreamId,
        evict: &mut dyn FnMut(u64) -> bool,
    ) -> AccessResult {
        match is_sampled(id, self.shift) {
            true => self.access_sampled(id, weight.max(1), stream, evict),
            false => self.access(id, weight.max(1), stream, evict),
        }
    }

    fn prepare(&self, id: u64) {
        self.all().for_each(|policy| policy.prepare(id));
    }

    fn replacement(&self, stream: StreamId) -> &'static str {
        match &self.current {
            ResidentContents::Following(_) => self.panel.leader().replacement(stream),
            ResidentContents::Alone(policy) => policy.name(),
        }
    }

    fn take_change(&mut self) -> Option<LeaderChange> {
        self.change.take()
    }

    fn remove(&mut self, id: u64) -> bool {
        if is_sampled(id, self.shift) {
            self.panel.remove(id);
        }
        let was_leaving = self.leaving.as_mut().is_some_and(|old| old.remove(id));
        was_leaving | self.current.policy_mut().remove(id)
    }

    fn contains(&self, id: u64) -> bool {
        self.all().any(|policy| policy.contains(id))
    }

    fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        let (shift, before) = (shift_of(capacity, &self.tuning), self.shift);
        self.hand_over(0, u64::MAX, evict);
        self.current.policy_mut().set_capacity(capacity, evict);
        self.capacity = capacity;
        if shift == before {
            self.panel.set_capacity(capacity >> shift);
        } else {
            // The sample changes, so new shadow caches begin empty. The leader stays, if it is a candidate.
            self.panel = panel(self.leader(), capacity, shift, self.tuning);
            self.shift = shift;
        }
        if (shift == 0) != (before == 0) {
            let new = ResidentContents::new(self.leader(), capacity, shift);
            self.leaving = match std::mem::replace(&mut self.current, new) {
                ResidentContents::Alone(policy) => Some(policy),
                ResidentContents::Following(follower) => Some(Box::new(follower)),
            };
            self.hand_over(0, u64::MAX, evict);
        }
        if let ResidentContents::Following(follower) = &mut self.current {
            follower.regroup(&self.panel);
        }
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
