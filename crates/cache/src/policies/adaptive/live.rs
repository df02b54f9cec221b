//! A cache that changes its policy without losing what it holds.
//!
//! Owns: the policy, and those that it took over from. Promises: an id is resident in just one of them; together they
//! hold at most the capacity, save after refusals. Leaves to others: when to change.
//!
//! The new policy begins empty; the old one goes on holding what it holds. What is accessed moves to the new one, and
//! room is made by the old one, in its own order, until it is empty. Between changes this costs nothing.

use super::follower::Follower;
use crate::{Access, Policy, REFUSALS_MAX, Stream};

/// What decides.
pub(super) enum Lead {
    /// A policy for itself.
    Alone(Box<dyn Policy>),
    /// Contents that follow a shadow cache.
    Follower(Follower),
}

/// A cache whose policy can be changed.
pub(super) struct Live {
    capacity: u64,
    current: Lead,
    /// The oldest first; it is emptied first.
    leaving: Vec<Lead>,
}

impl Lead {
    fn policy(&self) -> &dyn Policy {
        match self {
            Lead::Alone(policy) => &**policy,
            Lead::Follower(follower) => follower,
        }
    }

    fn policy_mut(&mut self) -> &mut dyn Policy {
        match self {
            Lead::Alone(policy) => &mut **policy,
            Lead::Follower(follower) => follower,
        }
    }
}

impl Live {
    /// Begins with an empty policy.
    pub(super) fn new(current: Lead) -> Live {
        Live { capacity: current.policy().capacity(), current, leaving: Vec::new() }
    }

    /// The contents that follow, where they do.
    pub(super) fn follower(&mut self) -> Option<&mut Follower> {
        match &mut self.current {
            Lead::Follower(follower) => Some(follower),
            Lead::Alone(_) => None,
        }
    }

    /// Whether a change is under way, which another one should wait for.
    pub(super) fn is_busy(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Changes to another policy, which is empty and of the same capacity.
    pub(super) fn change(&mut self, lead: Lead) {
        self.leaving.push(std::mem::replace(&mut self.current, lead));
    }

    /// Lets those who leave make room; `false` where they refuse.
    fn make_room(&mut self, room: u64, refusals_max: usize, evict: &mut dyn FnMut(u64) -> bool) -> bool {
        let mut refusals = 0;
        for position in 0..self.leaving.len() {
            let over = self.used().saturating_add(room).saturating_sub(self.capacity);
            let old = self.leaving[position].policy_mut();
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
        self.leaving.iter().chain([&self.current]).map(Lead::policy)
    }
}

impl Policy for Live {
    fn name(&self) -> &'static str {
        self.current.policy().name()
    }

    fn reference(&mut self, id: u64, weight: u64, stream: Stream, evict: &mut dyn FnMut(u64) -> bool) -> Access {
        if self.leaving.is_empty() {
            return self.current.policy_mut().reference(id, weight, stream, evict);
        }
        let fits = self.used() <= self.capacity;
        let Live { capacity, current, leaving, .. } = self;
        if let Some(old) = leaving.iter_mut().map(Lead::policy_mut).find(|old| old.contains(id)) {
            if !fits {
                // The new policy might have no room for it.
                return old.reference(id, weight, stream, &mut |_| false);
            }
            let used = old.used();
            old.remove(id);
            current.policy_mut().reference(id, used - old.used(), stream, evict);
            return Access::Hit;
        }
        let is_there = current.policy().contains(id);
        if !is_there && (weight > *capacity || !self.make_room(weight, REFUSALS_MAX, evict)) {
            return Access::Bypassed;
        }
        self.current.policy_mut().reference(id, weight, stream, evict)
    }

    fn prepare(&self, id: u64) {
        self.all().for_each(|policy| policy.prepare(id));
    }

    fn remove(&mut self, id: u64) -> bool {
        let all = self.leaving.iter_mut().chain([&mut self.current]);
        all.fold(false, |was, lead| was | lead.policy_mut().remove(id))
    }

    fn contains(&self, id: u64) -> bool {
        self.all().any(|policy| policy.contains(id))
    }

    fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        self.capacity = capacity;
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
