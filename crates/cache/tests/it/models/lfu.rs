//! The model of LFU, with and without ageing.

use super::{Evict, Item, PolicyModel};

/// An id, its weight, its frequency, and the time when it reached that frequency.
type Counted = (u64, u64, u64, u64);

pub struct LfuModel {
    capacity: u64,
    is_aged: bool,
    now: u64,
    left: u64,
    counted: Vec<Counted>,
    /// The parked ids, in the order in which they were refused.
    parked: Vec<Counted>,
}

impl LfuModel {
    pub fn new(capacity: u64, is_aged: bool) -> LfuModel {
        LfuModel { capacity, is_aged, now: 0, left: 4, counted: Vec::new(), parked: Vec::new() }
    }

    fn unpark(&mut self) {
        if !self.parked.is_empty() {
            let (id, weight, frequency, _) = self.parked.remove(0);
            self.put(id, weight, frequency);
        }
    }

    fn put(&mut self, id: u64, weight: u64, frequency: u64) {
        self.now += 1;
        self.counted.push((id, weight, frequency, self.now));
    }

    fn take(&mut self, id: u64) -> Option<Counted> {
        for list in [&mut self.counted, &mut self.parked] {
            if let Some(position) = list.iter().position(|item| item.0 == id) {
                return Some(list.remove(position));
            }
        }
        None
    }

    fn age(&mut self) {
        self.left -= 1;
        if self.left > 0 {
            return;
        }
        self.left = 4 * self.resident().len().max(1) as u64;
        self.counted.sort_by_key(|item| (item.2, item.3));
        for item in &mut self.counted {
            self.now += 1;
            item.2 /= 2;
            item.3 = self.now;
        }
        self.parked.iter_mut().for_each(|item| item.2 /= 2);
    }
}

impl PolicyModel for LfuModel {
    fn hit(&mut self, id: u64) -> bool {
        if self.is_aged {
            self.age();
        }
        let Some((_, weight, frequency, _)) = self.take(id) else { return false };
        self.put(id, weight, frequency + 1);
        true
    }

    fn step(&mut self, _: usize, evict: Evict<'_>) -> Option<bool> {
        if self.counted.is_empty() {
            self.unpark();
        }
        let victim = *self.counted.iter().min_by_key(|item| (item.2, item.3))?;
        self.take(victim.0);
        let is_given_up = evict(victim.0);
        if is_given_up {
            self.unpark();
        } else {
            self.parked.push(victim);
        }
        Some(is_given_up)
    }

    fn insert(&mut self, id: u64, weight: u64) {
        self.put(id, weight, 1);
    }

    fn remove(&mut self, id: u64) -> bool {
        self.take(id).is_some()
    }

    fn resize(&mut self, capacity: u64) -> usize {
        self.capacity = capacity;
        self.resident().len()
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn resident(&self) -> Vec<Item> {
        self.counted.iter().chain(&self.parked).map(|item| (item.0, item.1, item.2)).collect()
    }
}
