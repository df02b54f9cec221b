//! The model of ARC; it trims the ghosts in one place.

use super::{Evict, Item, Items, PolicyModel, refresh, take, weight_of};

pub struct ArcModel {
    capacity: u64,
    t1: Items,
    t2: Items,
    b1: Items,
    b2: Items,
    target: f64,
    /// The number of the ghost queue that held the referenced id: 1 for B1, 2 for B2.
    was_in: Option<u8>,
}

impl ArcModel {
    pub fn new(capacity: u64) -> ArcModel {
        let empty = Items::new;
        ArcModel { capacity, t1: empty(), t2: empty(), b1: empty(), b2: empty(), target: 0.0, was_in: None }
    }
}

impl PolicyModel for ArcModel {
    fn hit(&mut self, id: u64) -> bool {
        match take(&mut self.t1, id) {
            Some(item) => {
                self.t2.push_front(item);
                true
            }
            None => refresh(&mut self.t2, id),
        }
    }

    fn miss(&mut self, id: u64, weight: u64) {
        let (b1, b2, weight) = (weight_of(&self.b1) as f64, weight_of(&self.b2) as f64, weight as f64);
        self.was_in = None;
        if take(&mut self.b1, id).is_some() {
            self.target = (self.target + weight * f64::max(1.0, b2 / b1)).min(self.capacity as f64);
            self.was_in = Some(1);
        } else if take(&mut self.b2, id).is_some() {
            self.target = (self.target - weight * f64::max(1.0, b1 / b2)).max(0.0);
            self.was_in = Some(2);
        }
    }

    fn step(&mut self, refusals: usize, evict: Evict<'_>) -> Option<bool> {
        let t1 = weight_of(&self.t1) as f64;
        let t1_turn = (t1 > self.target || (t1 == self.target && self.was_in == Some(2))) != (refusals % 2 == 1);
        let from_t1 = !self.t1.is_empty() && (t1_turn || self.t2.is_empty());
        let (queue, ghosts) = if from_t1 { (&mut self.t1, &mut self.b1) } else { (&mut self.t2, &mut self.b2) };
        let item = queue.pop_back()?;
        let is_given_up = evict(item.0);
        if is_given_up { ghosts } else { queue }.push_front(item);
        Some(is_given_up)
    }

    fn tidy(&mut self, room: u64) {
        let in_t1 = if self.was_in.is_none() { room } else { 0 };
        while weight_of(&self.t1) + weight_of(&self.b1) + in_t1 > self.capacity && self.b1.pop_back().is_some() {}
        let all = |arc: &ArcModel| [&arc.t1, &arc.t2, &arc.b1, &arc.b2].into_iter().map(weight_of).sum::<u64>();
        while all(self) + room > 2 * self.capacity && self.b2.pop_back().or_else(|| self.b1.pop_back()).is_some() {}
    }

    fn insert(&mut self, id: u64, weight: u64) {
        if self.was_in.is_none() { &mut self.t1 } else { &mut self.t2 }.push_front((id, weight, 0));
    }

    fn remove(&mut self, id: u64) -> bool {
        take(&mut self.b1, id).or_else(|| take(&mut self.b2, id));
        take(&mut self.t1, id).or_else(|| take(&mut self.t2, id)).is_some()
    }

    fn resize(&mut self, capacity: u64) -> usize {
        self.capacity = capacity;
        self.target = self.target.min(capacity as f64);
        self.was_in = None;
        2 * self.resident().len()
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn resident(&self) -> Vec<Item> {
        self.t1.iter().chain(&self.t2).copied().collect()
    }
}
