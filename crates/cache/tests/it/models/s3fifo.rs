//! The model of S3-FIFO.

use super::{Evict, Item, Items, PolicyModel, take, weight_of};

pub struct S3Fifo {
    capacity: u64,
    small: Items,
    main: Items,
    ghost: Items,
    was_full: bool,
    was_ghost: bool,
}

impl S3Fifo {
    pub fn new(capacity: u64) -> S3Fifo {
        let empty = Items::new;
        S3Fifo { capacity, small: empty(), main: empty(), ghost: empty(), was_full: false, was_ghost: false }
    }

    fn step_of_small(&mut self, evict: Evict<'_>) -> bool {
        while let Some((id, weight, hits)) = self.small.pop_back() {
            if hits <= 1 && evict(id) {
                self.ghost.push_front((id, weight, 0));
                self.tidy(0);
                return true;
            }
            self.main.push_front((id, weight, 0));
            if hits <= 1 {
                return false;
            }
        }
        true
    }
}

impl PolicyModel for S3Fifo {
    fn hit(&mut self, id: u64) -> bool {
        let found = self.small.iter_mut().chain(&mut self.main).find(|item| item.0 == id);
        found.map(|item| item.2 = (item.2 + 1).min(3)).is_some()
    }

    fn miss(&mut self, id: u64, _: u64) {
        self.was_ghost = take(&mut self.ghost, id).is_some();
    }

    fn step(&mut self, refusals: usize, evict: Evict<'_>) -> Option<bool> {
        self.was_full = true;
        let small_turn = (weight_of(&self.small) >= self.capacity / 10) != (refusals % 2 == 1);
        if !self.small.is_empty() && (small_turn || self.main.is_empty()) {
            return Some(self.step_of_small(evict));
        }
        let (id, weight, hits) = self.main.pop_back()?;
        if hits == 0 && evict(id) {
            return Some(true);
        }
        self.main.push_front((id, weight, hits.saturating_sub(1)));
        Some(hits > 0)
    }

    fn insert(&mut self, id: u64, weight: u64) {
        let filling = !self.was_full && weight_of(&self.small) >= self.capacity / 10;
        if self.was_ghost || filling { &mut self.main } else { &mut self.small }.push_front((id, weight, 0));
    }

    fn tidy(&mut self, _: u64) {
        while weight_of(&self.ghost) > self.capacity * 9 / 10 {
            self.ghost.pop_back();
        }
    }

    fn remove(&mut self, id: u64) -> bool {
        take(&mut self.ghost, id);
        take(&mut self.small, id).or_else(|| take(&mut self.main, id)).is_some()
    }

    fn resize(&mut self, capacity: u64) -> usize {
        self.capacity = capacity;
        8 * self.resident().len()
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn resident(&self) -> Vec<Item> {
        self.small.iter().chain(&self.main).copied().collect()
    }
}
