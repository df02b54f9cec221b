//! Contents that follow a shadow cache of the same size: as near to what the leader holds as reads allow.
//!
//! Owns: what is resident, in two queues: what the leader holds, and what it does not. Promises: nothing that the leader
//! holds leaves before what it does not hold; a change of leader evicts nothing. Leaves to others: who leads.
//!
//! Room is made by what the leader does not hold, the oldest first. Where there is none of that, an id that the leader
//! does not hold is bypassed; one that it holds takes the place of the oldest, which is needed only after refusals and
//! where weights differ.

use crate::structures::arena::{Arena, Queue};
use crate::{Access, Policy, REFUSALS_MAX, Stream};

const HELD: u8 = 0;
const SPARE: u8 = 1;

/// A cache whose contents follow.
pub(super) struct Follower {
    capacity: u64,
    arena: Arena,
    /// By [`HELD`] and [`SPARE`]; newest what was accessed last, or came to its queue last.
    queues: [Queue; 2],
    /// Whether the leader holds the id of the next access.
    is_held: bool,
}

impl Follower {
    /// An empty one.
    pub(super) fn new(capacity: u64) -> Follower {
        Follower { capacity, arena: Arena::new(), queues: [HELD, SPARE].map(Queue::new), is_held: false }
    }

    /// Says of the next access whether the leader holds its id now, and which ids the leader gave up for it.
    pub(super) fn guide(&mut self, is_held: bool, lost: &[u64]) {
        self.is_held = is_held;
        for index in lost.iter().filter_map(|id| self.arena.find(*id)).collect::<Vec<_>>() {
            self.put(index, SPARE);
        }
    }

    /// Follows another leader, which holds what `holds` says. What it does not hold leaves after what the leader before
    /// did not hold either, the newest first: the oldest that a policy held is what it thought most of. *Cost*:
    /// O(resident ids).
    pub(super) fn regroup(&mut self, holds: &dyn Fn(u64) -> bool) {
        let mut moved = Vec::new();
        for number in [HELD, SPARE] {
            let mut next = self.queues[usize::from(number)].oldest();
            while let Some(index) = next {
                next = self.arena.newer(index);
                match (number, holds(self.arena.entry(index).id)) {
                    (HELD, false) => moved.push(index),
                    (SPARE, true) => self.put(index, HELD),
                    _ => {}
                }
            }
        }
        moved.into_iter().rev().for_each(|index| self.put(index, SPARE));
    }

    /// Makes a resident the newest of a queue.
    fn put(&mut self, index: u32, to: u8) {
        let from = self.arena.entry(index).queue;
        self.arena.unlink(&mut self.queues[usize::from(from)], index);
        self.arena.link(&mut self.queues[usize::from(to)], index);
    }

    /// Offers the residents of some queues until there is room; `false` where there is none.
    fn make_room(&mut self, room: u64, queues: &[u8], refusals_max: usize, evict: &mut dyn FnMut(u64) -> bool) -> bool {
        let mut refusals = 0;
        for number in queues {
            for _ in 0..self.queues[usize::from(*number)].count {
                if self.used().saturating_add(room) <= self.capacity || refusals >= refusals_max {
                    break;
                }
                let queue = &mut self.queues[usize::from(*number)];
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

impl Policy for Follower {
    fn name(&self) -> &'static str {
        "follower"
    }

    fn reference(&mut self, id: u64, weight: u64, _: Stream, evict: &mut dyn FnMut(u64) -> bool) -> Access {
        let to = if self.is_held { HELD } else { SPARE };
        if let Some(index) = self.arena.find(id) {
            self.put(index, to);
            return Access::Hit;
        }
        let queues = if self.is_held { &[SPARE, HELD][..] } else { &[SPARE] };
        if weight > self.capacity || !self.make_room(weight, queues, REFUSALS_MAX, evict) {
            return Access::Bypassed;
        }
        match self.arena.insert(&mut self.queues[usize::from(to)], id, weight) {
            true => Access::Inserted,
            false => Access::Bypassed,
        }
    }

    fn prepare(&self, id: u64) {
        self.arena.prepare(id);
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
        self.make_room(0, &[SPARE, HELD], usize::MAX, evict);
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
