//! The model of 2Q.

use super::{Evict, Item, Items, PolicyModel, refresh, take, weight_of};

pub struct TwoQ {
    capacity: u64,
    a1in: Items,
    am: Items,
    a1out: Items,
    was_ghost: bool,
}

impl TwoQ {
    pub fn new(capacity: u64) -> TwoQ {
        TwoQ { capacity, a1in: Items::new(), am: Items::new(), a1out: Items::new(), was_ghost: false }
    }
}

impl PolicyModel for TwoQ {
    fn hit(&mut self, id: u64) -> bool {
        self.a1in.iter().any(|item| item.0 == id) || refresh(&mut self.am, id)
    }

    fn miss(&mut self, id: u64, _: u64) {
        self.was_ghost = take(&mut self.a1out, id).is_some();
    }

    fn step(&mut self, refusals: usize, evict: Evict<'_>) -> Option<bool> {
        let a1in_turn = (weight_of(&self.a1in) > self.capacity / 4) != (refusals % 2 == 1);
        let from_a1in = !self.a1in.is_empty() && (a1in_turn || self.am.is_empty());
        let queue = if from_a1in { &mut self.a1in } else { &mut self.am };
        let item = queue.pop_back()?;
        let is_given_up = evict(item.0);
        match (is_given_up, from_a1in) {
            (false, _) => queue.push_front(item),
            (true, true) => self.a1out.push_front(item),
            (true, false) => {}
        }
        self.tidy(0);
        Some(is_given_up)
    }

    fn insert(&mut self, id: u64, weight: u64) {
        if self.was_ghost { &mut self.am } else { &mut self.a1in }.push_front((id, weight, 0));
    }

    fn tidy(&mut self, _: u64) {
        while weight_of(&self.a1out) > self.capacity / 2 {
            self.a1out.pop_back();
        }
    }

    fn remove(&mut self, id: u64) -> bool {
        take(&mut self.a1out, id);
        take(&mut self.a1in, id).or_else(|| take(&mut self.am, id)).is_some()
    }

    fn resize(&mut self, capacity: u64) -> usize {
        self.capacity = capacity;
        2 * self.resident().len()
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn resident(&self) -> Vec<Item> {
        self.a1in.iter().chain(&self.am).copied().collect()
    }
}
