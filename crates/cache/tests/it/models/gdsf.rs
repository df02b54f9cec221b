//! The model of GDSF: the worth of an id is its references divided by its weight, plus the worth of the last victim.

use super::{Evict, Item, PolicyModel};

/// An id, its weight, its references, its worth, and the time when the worth was computed.
type Valued = (u64, u64, u64, f64, u64);

pub struct GdsfModel {
    capacity: u64,
    age: f64,
    now: u64,
    valued: Vec<Valued>,
    /// The parked ids, in the order in which they were refused.
    parked: Vec<Valued>,
}

impl GdsfModel {
    pub fn new(capacity: u64) -> GdsfModel {
        GdsfModel { capacity, age: 0.0, now: 0, valued: Vec::new(), parked: Vec::new() }
    }

    fn put(&mut self, id: u64, weight: u64, references: u64) {
        self.now += 1;
        let worth = self.age + references as f64 * 1e6 / weight as f64;
        self.valued.push((id, weight, references, worth, self.now));
    }

    fn unpark(&mut self) {
        if !self.parked.is_empty() {
            let (id, weight, references, ..) = self.parked.remove(0);
            self.put(id, weight, references);
        }
    }

    fn take(&mut self, id: u64) -> Option<Valued> {
        for list in [&mut self.valued, &mut self.parked] {
            if let Some(position) = list.iter().position(|item| item.0 == id) {
                return Some(list.remove(position));
            }
        }
        None
    }
}

impl PolicyModel for GdsfModel {
    fn hit(&mut self, id: u64) -> bool {
        let Some((_, weight, references, ..)) = self.take(id) else { return false };
        self.put(id, weight, (references + 1).min(65_535));
        true
    }

    fn step(&mut self, _: usize, evict: Evict<'_>) -> Option<bool> {
        if self.valued.is_empty() {
            self.unpark();
        }
        let victim = *self.valued.iter().min_by(|one, other| one.3.total_cmp(&other.3).then(one.4.cmp(&other.4)))?;
        self.take(victim.0);
        let is_given_up = evict(victim.0);
        if is_given_up {
            self.age = victim.3;
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
        self.valued.iter().chain(&self.parked).map(|item| (item.0, item.1, item.2)).collect()
    }
}
