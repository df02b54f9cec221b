//! A cache that changes its policy without losing what it holds.
//!
//! Owns: the policy in force and those it took over from. Promises: an id is resident in exactly one of them; together they
//! weigh at most the capacity, save after refusals in `set_capacity`. Leaves to others: when to change.
//!
//! # Idea
//! Above the size up to which ghosts are exact there is no ghost whose contents could be followed. So a change of policy
//! begins with an empty new one; the old one goes on holding what it holds. What is referred to moves to the new one,
//! and room is made by the old one, in its own order, until it is empty. In between changes this costs nothing.

use super::divided::Divided;
use crate::{Access, Policy, Stream};

/// More policies than this do not give way at once: the oldest is emptied first.
const LEAVING_MAX: usize = 2;

/// What is in force: one policy, or one a stream.
pub(super) enum Lead {
    /// One policy over all references.
    Whole(Box<dyn Policy>),
    /// One policy for each stream.
    Divided(Box<Divided>),
}

impl Lead {
    fn policy(&self) -> &dyn Policy {
        match self {
            Lead::Whole(policy) => &**policy,
            Lead::Divided(divided) => &**divided,
        }
    }

    fn policy_mut(&mut self) -> &mut dyn Policy {
        match self {
            Lead::Whole(policy) => &mut **policy,
            Lead::Divided(divided) => &mut **divided,
        }
    }
}

/// A policy that can be changed.
pub(super) struct Migrating {
    capacity: u64,
    current: Lead,
    leaving: Vec<Lead>,
}

impl Migrating {
    /// Begins with a policy.
    pub(super) fn new(lead: Lead) -> Migrating {
        Migrating { capacity: lead.policy().capacity(), current: lead, leaving: Vec::new() }
    }

    /// The policy in force where it is the only one: for all streams and with nothing left to take over.
    #[inline]
    pub(super) fn sole(&mut self) -> Option<&mut dyn Policy> {
        match &mut self.current {
            Lead::Whole(policy) if self.leaving.is_empty() => Some(&mut **policy),
            _ => None,
        }
    }

    /// What is in force.
    pub(super) fn current_mut(&mut self) -> &mut Lead {
        &mut self.current
    }

    /// Whether a change is under way that another should wait for.
    pub(super) fn is_busy(&self) -> bool {
        self.leaving.len() >= LEAVING_MAX
    }

    /// Changes to another policy of the same capacity, which must be empty.
    pub(super) fn change(&mut self, lead: Lead) {
        debug_assert!(lead.policy().is_empty());
        let old = std::mem::replace(&mut self.current, lead);
        self.leaving.push(old);
    }

    /// Lets those who leave make room; `false` where they refuse.
    fn make_room(&mut self, room: u64, evict: &mut dyn FnMut(u64) -> bool) -> bool {
        for position in 0..self.leaving.len() {
            let over = self.used().saturating_add(room).saturating_sub(self.capacity);
            if over > 0 {
                let old = self.leaving[position].policy_mut();
                let rest = old.used().saturating_sub(over);
                old.set_capacity(rest, evict);
            }
        }
        self.leaving.retain(|old| !old.policy().is_empty());
        self.leaving.is_empty() || self.used().saturating_add(room) <= self.capacity
    }
}

impl Policy for Migrating {
    fn name(&self) -> &'static str {
        self.current.policy().name()
    }

    fn reference(&mut self, id: u64, weight: u64, stream: Stream, evict: &mut dyn FnMut(u64) -> bool) -> Access {
        let Migrating { current, leaving, .. } = self;
        if leaving.is_empty() {
            return current.policy_mut().reference(id, weight, stream, evict);
        }
        let weight = weight.max(1);
        if let Some(old) = leaving.iter_mut().map(Lead::policy_mut).find(|old| old.contains(id)) {
            // It has its room already; where the new policy does not take it, it stays where it is.
            if current.policy_mut().reference(id, weight, stream, evict) == Access::Bypassed {
                old.reference(id, weight, stream, evict);
            } else {
                old.remove(id);
            }
            return Access::Hit;
        }
        if !current.policy().contains(id) && (weight > self.capacity || !self.make_room(weight, evict)) {
            return Access::Bypassed;
        }
        self.current.policy_mut().reference(id, weight, stream, evict)
    }

    fn prepare(&self, id: u64) {
        self.current.policy().prepare(id);
        self.leaving.iter().for_each(|old| old.policy().prepare(id));
    }

    fn remove(&mut self, id: u64) -> bool {
        let mut was_there = self.current.policy_mut().remove(id);
        for old in &mut self.leaving {
            was_there |= old.policy_mut().remove(id);
        }
        was_there
    }

    fn contains(&self, id: u64) -> bool {
        self.current.policy().contains(id) || self.leaving.iter().any(|old| old.policy().contains(id))
    }

    fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        self.capacity = capacity;
        self.make_room(0, evict);
        self.current.policy_mut().set_capacity(capacity, evict);
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn used(&self) -> u64 {
        self.current.policy().used() + self.leaving.iter().map(|old| old.policy().used()).sum::<u64>()
    }

    fn len(&self) -> usize {
        self.current.policy().len() + self.leaving.iter().map(|old| old.policy().len()).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::by_name;

    fn whole(name: &str, capacity: u64) -> Lead {
        Lead::Whole(by_name(name, capacity).expect("registered"))
    }

    #[test]
    fn a_change_loses_nothing_that_is_referred_to() {
        let mut cache = Migrating::new(whole("lru", 100));
        let refer = |cache: &mut Migrating, id| {
            cache.reference(id, 1, Stream(0), &mut |victim| {
                assert!(victim >= 50, "{victim}");
                true
            })
        };
        for id in 50..100 {
            refer(&mut cache, id);
        }
        for id in 0..50 {
            refer(&mut cache, id);
        }
        cache.change(whole("lirs", 100));
        for id in 0..50 {
            assert_eq!(refer(&mut cache, id), Access::Hit);
        }
        for id in 200..250 {
            assert_eq!(refer(&mut cache, id), Access::Inserted);
        }
        assert_eq!((cache.used(), cache.name(), cache.leaving.len()), (100, "lirs", 0));
    }

    #[test]
    fn pinned_ids_of_the_old_policy_are_bypassed_and_not_lost() {
        let mut cache = Migrating::new(whole("lru", 10));
        for id in 0..10 {
            cache.reference(id, 1, Stream(0), &mut |_| true);
        }
        cache.change(whole("s3fifo", 10));
        assert_eq!(cache.reference(20, 1, Stream(0), &mut |_| false), Access::Bypassed);
        assert!((0..10).all(|id| cache.contains(id)) && cache.used() == 10);
    }
}
