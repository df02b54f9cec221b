//! The LRU stack of the sampled objects: how many objects, and bytes of objects, were referenced since an object's last
//! reference.
//!
//! Owns: the stack. Each reference of an object takes the next place in time; the sums over places are in two Fenwick
//! trees, so that a distance takes O(log n). When the places are used up, the objects move to the first ones.
//!
//! Cost: 24 bytes per place, four places per object, and a table of 18 to 37 bytes per object.

use hashbrown::HashMap;

/// The number of places per object. With more of them, objects move less often.
const PLACES_PER_OBJECT: usize = 4;

/// The least number of places.
const PLACES_MIN: usize = 1024;

/// The objects between two references to one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StackDistance {
    /// The number of other objects.
    pub objects: u64,
    /// The sum of their sizes.
    pub bytes: u64,
}

/// The objects in the order of their last references.
#[derive(Debug, Default)]
pub struct ReferenceStack {
    places: HashMap<u64, u32>,
    /// The object at each place, and its size; the size is 0 if the object has moved on.
    objects: Vec<(u64, u32)>,
    counts: FenwickTree<u32>,
    bytes: FenwickTree<u64>,
    /// The sum of the sizes of all objects.
    total_bytes: u64,
}

impl ReferenceStack {
    /// The number of objects.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Refers to an object of `bytes` bytes, which is at least 1. *Returns* its distance; `None` if the stack does not
    /// have it.
    pub fn refer(&mut self, id: u64, bytes: u32) -> Option<StackDistance> {
        let distance = self.distance(id);
        self.remove(id);
        if self.objects.len() == self.counts.len() {
            self.compact(|_| true);
        }
        let place = self.objects.len();
        self.places.insert(id, place as u32);
        self.objects.push((id, bytes));
        self.counts.add(place, 1);
        self.bytes.add(place, u64::from(bytes));
        self.total_bytes += u64::from(bytes);
        distance
    }

    fn distance(&self, id: u64) -> Option<StackDistance> {
        let place = *self.places.get(&id)? as usize;
        Some(StackDistance {
            objects: self.places.len() as u64 - u64::from(self.counts.sum(place)),
            bytes: self.total_bytes - self.bytes.sum(place),
        })
    }

    /// Forgets an object.
    pub fn remove(&mut self, id: u64) {
        let Some(place) = self.places.remove(&id) else { return };
        let bytes = std::mem::take(&mut self.objects[place as usize].1);
        self.counts.subtract(place as usize, 1);
        self.bytes.subtract(place as usize, u64::from(bytes));
        self.total_bytes -= u64::from(bytes);
    }

    /// Forgets the objects for which `keeps` is false, and moves the others to the first places.
    pub fn compact(&mut self, keeps: impl Fn(u64) -> bool) {
        self.objects.retain(|&(id, bytes)| bytes > 0 && keeps(id));
        self.places.clear();
        let count = (self.objects.len() * PLACES_PER_OBJECT).max(PLACES_MIN);
        (self.counts, self.bytes) = (FenwickTree::of(count), FenwickTree::of(count));
        self.total_bytes = 0;
        for (place, &(id, bytes)) in self.objects.iter().enumerate() {
            self.places.insert(id, place as u32);
            self.counts.add(place, 1);
            self.bytes.add(place, u64::from(bytes));
            self.total_bytes += u64::from(bytes);
        }
    }

    /// The objects and their sizes, those that were referenced last at the end.
    pub fn objects(&self) -> impl Iterator<Item = (u64, u32)> {
        self.objects.iter().copied().filter(|object| object.1 > 0)
    }
}

/// Sums over the first places of a list, which can be changed at any place.
#[derive(Debug, Default)]
struct FenwickTree<T>(Vec<T>);

impl<T: Copy + Default + std::ops::AddAssign + std::ops::SubAssign> FenwickTree<T> {
    fn of(count: usize) -> FenwickTree<T> {
        FenwickTree(vec![T::default(); count])
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn add(&mut self, place: usize, value: T) {
        let mut at = place;
        while at < self.0.len() {
            self.0[at] += value;
            at |= at + 1;
        }
    }

    fn subtract(&mut self, place: usize, value: T) {
        let mut at = place;
        while at < self.0.len() {
            self.0[at] -= value;
            at |= at + 1;
        }
    }

    /// The sum up to and with `place`.
    fn sum(&self, place: usize) -> T {
        let mut sum = T::default();
        let mut end = place + 1;
        while end > 0 {
            sum += self.0[end - 1];
            end &= end - 1;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with a list that is searched from its end.
    #[test]
    fn distances_are_those_of_a_list() {
        let mut stack = ReferenceStack::default();
        let mut list: Vec<(u64, u32)> = Vec::new();
        let mut state = 1_u64;
        for round in 0..20_000_u32 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let id = (state >> 33) % 300 * ((state >> 50) % 3);
            let bytes = (id % 7) as u32 + 1;
            let place = list.iter().position(|object| object.0 == id);
            if round % 50 == 0 {
                stack.remove(id);
                place.map(|place| list.remove(place));
                continue;
            }
            if round == 15_000 {
                stack.compact(|id| id % 2 == 0);
                list.retain(|object| object.0 % 2 == 0);
                continue;
            }
            let expected = place.map(|place| StackDistance {
                objects: (list.len() - place - 1) as u64,
                bytes: list[place + 1..].iter().map(|object| u64::from(object.1)).sum(),
            });
            place.map(|place| list.remove(place));
            list.push((id, bytes));
            assert_eq!(stack.refer(id, bytes), expected, "round {round}");
        }
        assert_eq!(stack.objects().collect::<Vec<_>>(), list);
        assert_eq!(stack.len(), list.len());
    }
}
