//! Cache contents that follow shadow caches of the same size: the blocks that were read and that the leader holds.
//!
//! Owns: the resident ids, in two queues: those that the leader holds, and the others. Promises: ids that the leader
//! does not hold are evicted first; a change of leader evicts nothing. Leaves to others: the choice of the leader.
//!
//! To make room, ids that the leader does not hold are evicted, the oldest first. If there are none (after refusals, or
//! because weights differ), a new id is bypassed; but if the leader holds the new id, it replaces the oldest id.

use super::panel::ShadowPanel;
use crate::structures::arena::{Arena, ArenaQueue};
use crate::{AccessResult, Policy, REFUSALS_MAX, StreamId};

/// A cache whose contents follow the leader of a panel.
pub(super) struct FollowerCache {
    capacity: u64,
    arena: Arena,
    /// The ids that the leader does not hold, then those that it holds; the newest id of a queue entered it last.
    queues: [ArenaQueue; 2],
    /// Whether the leader holds the id of the next access.
    is_held: bool,
}

impl FollowerCache {
    /// An empty cache.
    pub(super) fn new(capacity: u64) -> FollowerCache {
        FollowerCache { capacity, arena: Arena::new(), queues: [0, 1].map(ArenaQueue::new), is_held: true }
    }

    /// Prepares for an access to `id` that the panel has already seen.
    pub(super) fn guide(&mut self, id: u64, panel: &ShadowPanel) {
        self.is_held = panel.leader().contains(id);
        for id in panel.lost() {
            if let Some(index) = self.arena.find(id) {
                self.put(index, false);
            }
        }
    }

    /// Follows another leader. Ids that neither leader holds are evicted first; then those that only the former one
    /// held, the newest first, because a policy keeps the ids of highest value longest. *Cost*: O(resident ids).
    pub(super) fn regroup(&mut self, panel: &ShadowPanel) {
        let mut moved = Vec::new();
        for was_held in [true, false] {
            let mut next = self.queues[usize::from(was_held)].oldest();
            while let Some(index) = next {
                next = self.arena.newer(index);
                match (was_held, panel.leader().contains(self.arena.entry(index).id)) {
                    (true, false) => moved.push(index),
                    (false, true) => self.put(index, true),
                    _ => {}
                }
            }
        }
        moved.into_iter().rev().for_each(|index| self.put(index, false));
    }

    /// Makes a resident the newest id of a queue.
    fn put(&mut self, index: u32, is_held: bool) {
        let from = self.arena.entry(index).queue;
        self.arena.unlink(&mut self.queues[usize::from(from)], index);
        self.arena.link(&mut self.queues[usize::from(is_held)], index);
    }

    /// Offers residents of the first `queues` queues for eviction until there is room. *Returns* whether there is room.
    fn make_room(&mut self, room: u64, queues: usize, refusals_max: usize, evict: &mut dyn FnMut(u64) -> bool) -> bool {
        let mut refusals = 0;
        for number in 0..queues {
            for _ in 0..self.queues[number].count {
                if self.used().saturating_add(room) <= self.capacity || refusals >= refusals_max {
                    break;
                }
                let queue = &mut self.queues[number];
                let Some(index) = queue.oldest() else { break };
                if evict(self.arena.entry(index).id) {
                    self.arena.remove(queue, index);
                } else {
                    self.arena.refresh(queue, index);
                    refusals += 1;
                }
            }
        }
        self.used().saturating_add(room) <= self.capacity
    }
}

impl Policy for FollowerCache {
    fn name(&self) -> &'static str {
        "follower"
    }

    fn reference(&mut self, id: u64, weight: u64, _: StreamId, evict: &mut dyn FnMut(u64) -> bool) -> AccessResult {
        if let Some(index) = self.arena.find(id) {
            self.put(index, self.is_held);
            return AccessResult::Hit;
        }
        let to = usize::from(self.is_held);
        let has_room = weight <= self.capacity && self.make_room(weight, 1 + to, REFUSALS_MAX, evict);
        let is_in = has_room && self.arena.insert(&mut self.queues[to], id, weight);
        if is_in { AccessResult::Inserted } else { AccessResult::Bypassed }
    }

    fn remove(&mut self, id: u64) -> bool {
        let found = self.arena.find(id);
        if let Some(index) = found {
            let queue = self.arena.entry(index).queue;
            self.arena.remove(&mut self.queues[usize::from(queue)], index);
        }
        found.is_some()
    }

    fn contains(&self, id: u64) -> bool {
        self.arena.find(id).is_some()
    }

    fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        self.capacity = capacity;
        self.make_room(0, 2, usize::MAX, evict);
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn used(&self) -> u64 {
        self.queues.iter().map(|queue| queue.weight).sum()
    }

    fn len(&self) -> usize {
        self.queues.iter().map(|queue| queue.count).sum()
    }
}
