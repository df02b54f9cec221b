//! The model of the policies with one queue.

use super::{Evict, Item, Items, PolicyModel, refresh, take};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlainKind {
    Fifo,
    Lru,
    Mru,
    Clock,
    Sieve,
}

pub struct PlainModel {
    capacity: u64,
    kind: PlainKind,
    queue: Items,
    /// The distance of the hand from the newest id; if the distance exceeds the queue, the hand is at the oldest id.
    hand: usize,
}

impl PlainModel {
    pub fn new(capacity: u64, kind: PlainKind) -> PlainModel {
        PlainModel { capacity, kind, queue: Items::new(), hand: usize::MAX }
    }

    /// A step of SIEVE: the position of the hand, counted from the newest, moves towards 0.
    fn sieve(&mut self, evict: Evict<'_>) -> Option<bool> {
        let oldest = self.queue.len().checked_sub(1)?;
        let at = self.hand.min(oldest);
        self.hand = at.checked_sub(1).unwrap_or(usize::MAX);
        if self.queue[at].2 > 0 {
            self.queue[at].2 = 0;
            return Some(true);
        }
        let is_given_up = evict(self.queue[at].0);
        if is_given_up {
            self.queue.remove(at);
        }
        Some(is_given_up)
    }
}

impl PolicyModel for PlainModel {
    fn hit(&mut self, id: u64) -> bool {
        match self.kind {
            PlainKind::Lru | PlainKind::Mru => refresh(&mut self.queue, id),
            _ => self.queue.iter_mut().find(|item| item.0 == id).map(|item| item.2 = 1).is_some(),
        }
    }

    fn step(&mut self, _: usize, evict: Evict<'_>) -> Option<bool> {
        match self.kind {
            PlainKind::Sieve => return self.sieve(evict),
            PlainKind::Mru => {
                let item = self.queue.pop_front()?;
                let is_given_up = evict(item.0);
                if !is_given_up {
                    self.queue.push_back(item);
                }
                return Some(is_given_up);
            }
            _ => {}
        }
        let (id, weight, bit) = self.queue.pop_back()?;
        if self.kind == PlainKind::Clock && bit > 0 {
            self.queue.push_front((id, weight, 0));
            return Some(true);
        }
        let is_given_up = evict(id);
        if !is_given_up {
            self.queue.push_front((id, weight, 0));
        }
        Some(is_given_up)
    }

    fn insert(&mut self, id: u64, weight: u64) {
        self.queue.push_front((id, weight, 0));
        self.hand = self.hand.saturating_add(1);
    }

    fn remove(&mut self, id: u64) -> bool {
        let position = self.queue.iter().position(|item| item.0 == id);
        if let Some(position) = position {
            // The hand stays at its id. If this id itself is removed, the hand moves to the next newer id.
            let hand = self.hand.min(self.queue.len() - 1);
            if self.hand != usize::MAX && position <= hand {
                self.hand = hand.checked_sub(1).unwrap_or(usize::MAX);
            }
        }
        take(&mut self.queue, id).is_some()
    }

    fn resize(&mut self, capacity: u64) -> usize {
        self.capacity = capacity;
        let laps = if matches!(self.kind, PlainKind::Clock | PlainKind::Sieve) { 2 } else { 1 };
        laps * self.queue.len()
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn resident(&self) -> Vec<Item> {
        self.queue.iter().copied().collect()
    }
}
