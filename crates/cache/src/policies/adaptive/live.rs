//! A cache that changes its policy without losing what it holds.
//!
//! Owns: the policy, and those that it took over from. Promises: together they hold at most the capacity, save after
//! refusals in `set_capacity`. Leaves to others: when to change.
//!
//! The new policy begins empty, or as a copy of a shadow cache, which knows of more than is there. The old one goes on
//! holding what the new one does not. What is accessed moves to the new one, and room is made by the old one, in its
//! own order, until it is empty. A copy is full to begin with: what it gives up for something that was not there goes
//! to the end of those that leave, as an LRU. Where copies are in use `there` tells what is resident; without a change
//! under way an access does not look at it.

use hashbrown::HashMap;

use super::candidate::{Candidate, Plan};
use crate::{Access, Lru, Policy, REFUSALS_MAX, Stream};

/// A cache whose policy can be changed.
pub(super) struct Live {
    capacity: u64,
    current: Box<dyn Candidate>,
    /// The oldest first; it is emptied first.
    leaving: Vec<Box<dyn Candidate>>,
    there: Option<There>,
    /// Whether it goes on knowing what is there when no policy knows of more.
    pub(super) is_exact: bool,
    /// The first weight, and whether there was another one: then a shadow cache may know an id at another weight than
    /// it has here.
    weight: Option<u64>,
    is_mixed: bool,
}

/// What is resident, with its weight.
#[derive(Clone, Default)]
struct There {
    weights: HashMap<u64, u64>,
    used: u64,
}

impl There {
    fn insert(&mut self, id: u64, weight: u64) {
        self.weights.insert(id, weight);
        self.used += weight;
    }

    fn remove(&mut self, id: u64) -> bool {
        let weight = self.weights.remove(&id);
        self.used -= weight.unwrap_or(0);
        weight.is_some()
    }
}

/// Offers what a policy gives up; what is not there is given up without asking.
fn evicts(there: &mut Option<There>, id: u64, evict: &mut dyn FnMut(u64) -> bool) -> bool {
    let Some(there) = there else { return evict(id) };
    !there.weights.contains_key(&id) || evict(id) && there.remove(id)
}

impl Clone for Live {
    fn clone(&self) -> Live {
        let leaving = self.leaving.iter().map(|old| old.copy()).collect();
        Live { current: self.current.copy(), leaving, there: self.there.clone(), ..*self }
    }
}

impl Live {
    /// Begins with an empty policy; `is_exact` says whether copies of shadow caches will be changed to.
    pub(super) fn new(policy: Box<dyn Candidate>, is_exact: bool) -> Live {
        let there = is_exact.then(There::default);
        Live {
            capacity: policy.capacity(),
            current: policy,
            leaving: Vec::new(),
            there,
            is_exact,
            weight: None,
            is_mixed: false,
        }
    }

    /// The policy where it alone says what is resident.
    #[inline]
    pub(super) fn sole(&mut self) -> Option<&mut dyn Candidate> {
        (self.leaving.is_empty() && self.there.is_none()).then_some(&mut *self.current)
    }

    /// Whether it can be changed to a policy that knows of more than is there.
    pub(super) fn is_known(&self) -> bool {
        self.is_exact && !self.is_mixed && self.there.is_some()
    }

    /// Whether so many changes are under way that another one should wait.
    pub(super) fn is_busy(&self) -> bool {
        self.leaving.len() > 2
    }

    /// Lets a division follow a plan.
    pub(super) fn follow(&mut self, plan: &Plan, shift: u32, evict: &mut dyn FnMut(u64) -> bool) {
        let Live { current, there, .. } = self;
        current.follow(plan, shift, &mut |id| evicts(there, id, evict));
    }

    /// Changes to another policy of the same capacity.
    pub(super) fn change(&mut self, policy: Box<dyn Candidate>) {
        self.leaving.push(std::mem::replace(&mut self.current, policy));
        let Live { capacity, current, leaving, there, .. } = self;
        if let Some(there) = there {
            for id in there.weights.keys().filter(|id| current.contains(**id)) {
                leaving.iter_mut().for_each(|old| _ = old.remove(*id));
            }
            leaving.push(Box::new(Lru::new(*capacity)));
        }
    }

    /// Whether the policy knows exactly what is resident.
    fn is_settled(&self) -> bool {
        self.leaving.is_empty() && self.there.as_ref().is_none_or(|there| there.weights.len() == self.current.len())
    }

    /// Lets those who leave make room; `false` where they refuse.
    fn make_room(&mut self, room: u64, refusals_max: usize, evict: &mut dyn FnMut(u64) -> bool) -> bool {
        let (mut refusals, mut position) = (0, 0);
        while position < self.leaving.len() && refusals < refusals_max {
            let over = self.used().saturating_add(room).saturating_sub(self.capacity);
            let Live { leaving, there, .. } = self;
            let old = &mut leaving[position];
            let rest = old.used().saturating_sub(over);
            if over == 0 {
                break;
            }
            old.set_capacity(rest, &mut |id| {
                let is_given_up = refusals < refusals_max && evicts(there, id, evict);
                refusals += usize::from(!is_given_up);
                is_given_up
            });
            // What it gave up may not have been there.
            position += usize::from(old.is_empty() || old.used() > rest);
        }
        self.leaving.retain(|old| !old.is_empty());
        self.leaving.is_empty() || self.used().saturating_add(room) <= self.capacity
    }
}

impl Policy for Live {
    fn name(&self) -> &'static str {
        self.current.name()
    }

    fn reference(&mut self, id: u64, weight: u64, stream: Stream, evict: &mut dyn FnMut(u64) -> bool) -> Access {
        if let Some(policy) = self.sole() {
            return policy.reference(id, weight, stream, evict);
        }
        self.is_mixed |= *self.weight.get_or_insert(weight) != weight;
        let is_settled = self.is_settled();
        let was_there = !is_settled && self.contains(id);
        let lacks_room = !is_settled && !was_there && !self.leaving.is_empty();
        if lacks_room && (weight > self.capacity || !self.make_room(weight, REFUSALS_MAX, evict)) {
            return Access::Bypassed;
        }
        let Live { current, leaving, there, is_mixed, .. } = self;
        // What stays keeps the weight that it has room for.
        let mut held = None;
        for (position, old) in leaving.iter_mut().enumerate() {
            let used = old.used();
            if old.remove(id) {
                held = Some((position, used - old.used()));
            }
        }
        let weight = held.map_or(weight, |(_, weight)| weight);
        if *is_mixed && there.is_some() && !is_settled && !was_there {
            current.remove(id);
        }
        let mut handed = Vec::new();
        let access = current.reference(id, weight, stream, &mut |victim| {
            let weight = there.as_ref().filter(|_| !leaving.is_empty()).map(|there| there.weights.get(&victim));
            handed.extend(weight.flatten().map(|weight| (victim, *weight)));
            weight.is_some() || evicts(there, victim, evict)
        });
        let is_in = access != Access::Bypassed;
        let is_hit = was_there || is_settled && access == Access::Hit;
        if let Some((position, weight)) = held.filter(|_| !is_in) {
            // The new policy does not take it, and its room is still there.
            leaving[position].reference(id, weight, stream, &mut |_| false);
        }
        if let Some(last) = leaving.last_mut() {
            handed.iter().for_each(|(id, weight)| _ = last.reference(*id, *weight, stream, &mut |_| true));
        }
        if let Some(there) = there.as_mut().filter(|_| is_in && !is_hit) {
            there.insert(id, weight);
        }
        if is_settled && !self.is_exact {
            self.there = None;
        }
        match access {
            _ if is_hit => Access::Hit,
            Access::Hit => Access::Inserted,
            access => access,
        }
    }

    fn prepare(&self, id: u64) {
        self.current.prepare(id);
        self.leaving.iter().for_each(|old| old.prepare(id));
    }

    fn remove(&mut self, id: u64) -> bool {
        let in_old = self.leaving.iter_mut().fold(false, |was, old| was | old.remove(id));
        let in_any = self.current.remove(id) | in_old;
        self.there.as_mut().map_or(in_any, |there| there.remove(id))
    }

    fn contains(&self, id: u64) -> bool {
        let in_any = || self.current.contains(id) || self.leaving.iter().any(|old| old.contains(id));
        self.there.as_ref().map_or_else(in_any, |there| there.weights.contains_key(&id))
    }

    fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        self.capacity = capacity;
        self.make_room(0, usize::MAX, evict);
        let Live { current, there, .. } = self;
        current.set_capacity(capacity, &mut |id| evicts(there, id, evict));
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn used(&self) -> u64 {
        let of_all = || self.current.used() + self.leaving.iter().map(|old| old.used()).sum::<u64>();
        self.there.as_ref().map_or_else(of_all, |there| there.used)
    }

    fn len(&self) -> usize {
        let of_all = || self.current.len() + self.leaving.iter().map(|old| old.len()).sum::<usize>();
        self.there.as_ref().map_or_else(of_all, |there| there.weights.len())
    }
}
