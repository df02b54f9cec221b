//! The objects of the stages at a steady state, and the order in which they are requested.
//!
//! Owns: a set of objects of a total size, with the sizes of the seed's trace in law, and an order by Zipf's law.

use crate::random::SeededRandom;

/// Median and sigma of the log-normal law of sizes, and its bounds. *Units*: bytes.
const SIZE: (f64, f64) = (8000.0, 1.0);
const SIZE_BOUNDS: (f64, f64) = (200.0, 200_000.0);
/// The exponent of Zipf's law.
const EXPONENT: f64 = 0.9;
/// The number of requests before the order repeats.
const ORDER: usize = 200_000;

/// A set of objects.
#[derive(Debug, Clone)]
pub(super) struct ObjectSet {
    /// Number and size of each object.
    pub objects: Vec<(u32, u32)>,
    /// The order of requests, as places in `objects`.
    order: Vec<u32>,
}

impl ObjectSet {
    /// Makes a set of `bytes` in total, whose objects have numbers from `first` on.
    pub fn new(bytes: u64, first: u32, seed: u64) -> ObjectSet {
        let mut random = SeededRandom::new(seed);
        let (mut objects, mut sum) = (Vec::new(), 0);
        while sum < bytes {
            let size = random.log_normal(SIZE.0, SIZE.1).clamp(SIZE_BOUNDS.0, SIZE_BOUNDS.1) as u32;
            objects.push((first + objects.len() as u32, size));
            sum += u64::from(size);
        }
        let mut sums = Vec::with_capacity(objects.len());
        let mut weight = 0.0;
        for rank in 1..=objects.len() {
            weight += (rank as f64).powf(-EXPONENT);
            sums.push(weight);
        }
        let place = |share: f64| sums.partition_point(|sum| *sum < share * weight).min(objects.len() - 1) as u32;
        let order = (0..ORDER).map(|_| place(random.unit())).collect();
        ObjectSet { objects, order }
    }

    /// The bytes of all objects.
    pub fn bytes(&self) -> u64 {
        self.objects.iter().map(|object| u64::from(object.1)).sum()
    }

    /// The requests, without end, from a place in the order on.
    pub fn requests(&self, from: usize) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.order.iter().cycle().skip(from % ORDER).map(|place| self.objects[*place as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_set_has_size_and_zipf_order() {
        let set = ObjectSet::new(8 << 20, 100, 1);
        assert!((8 << 20..9 << 20).contains(&set.bytes()) && set.objects[0].0 == 100);
        let top = set.objects[0];
        let share = set.requests(0).take(ORDER).filter(|object| *object == top).count() as f64 / ORDER as f64;
        let weights: f64 = (1..=set.objects.len()).map(|rank| (rank as f64).powf(-EXPONENT)).sum();
        assert!((share * weights - 1.0).abs() < 0.1, "{share} of {weights}");
        let first: Vec<_> = set.requests(0).take(50).collect();
        assert_eq!(first, set.requests(ORDER).take(50).collect::<Vec<_>>());
        assert_eq!(ObjectSet::new(8 << 20, 100, 1).objects, set.objects);
    }
}
