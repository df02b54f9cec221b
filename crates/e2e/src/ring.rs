//! What the store should hold, computed without the store: a ring of segments, first in, first out.
//!
//! The simulation knows four things, none of them from the store's code: an object takes its body, its key, its metadata and
//! a fixed overhead, rounded up to a unit; objects are appended to the open segment; an object that does not fit opens the
//! next segment, whose former contents are dropped; what is dropped is gone from memory too. An object of several fragments
//! lives as long as its first. References are hits or misses; misses append.

use std::collections::HashMap;

/// The shape of a store.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bytes of one segment.
    pub segment_bytes: u64,
    /// Segments in the ring.
    pub segment_count: usize,
    /// Bytes that every fragment costs beside its body and its key.
    pub overhead_bytes: u64,
    /// Everything is rounded up to a multiple of this.
    pub unit_bytes: u64,
    /// Bodies are split into fragments of this size.
    pub fragment_bytes: u64,
}

/// The simulation.
#[derive(Debug)]
pub struct Ring {
    shape: Shape,
    /// Objects by segment; the open one is `open`.
    segments: Vec<Vec<String>>,
    open: usize,
    used: u64,
    live: HashMap<String, usize>,
    hits: u64,
    references: u64,
}

impl Ring {
    /// An empty store of this shape.
    pub fn new(shape: Shape) -> Self {
        let segments = vec![Vec::new(); shape.segment_count.max(1)];
        Self { shape, segments, open: 0, used: 0, live: HashMap::new(), hits: 0, references: 0 }
    }

    /// References an object: true for a hit; a miss stores it.
    pub fn reference(&mut self, key: &str, body_bytes: u64) -> bool {
        self.references += 1;
        if self.live.contains_key(key) {
            self.hits += 1;
            return true;
        }
        self.store(key, body_bytes);
        false
    }

    /// Share of the references that were hits.
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / self.references.max(1) as f64
    }

    /// Objects that are held now.
    pub fn object_count(&self) -> usize {
        self.live.len()
    }

    fn store(&mut self, key: &str, body_bytes: u64) {
        let mut left = body_bytes;
        let mut first = None;
        loop {
            let fragment = left.min(self.shape.fragment_bytes);
            let bytes =
                (fragment + self.shape.overhead_bytes + key.len() as u64).next_multiple_of(self.shape.unit_bytes);
            if self.used + bytes > self.shape.segment_bytes {
                self.next_segment();
            }
            self.used += bytes;
            first.get_or_insert(self.open);
            left -= fragment;
            if left == 0 {
                break;
            }
        }
        let segment = first.unwrap_or(self.open);
        self.segments[segment].push(key.to_owned());
        self.live.insert(key.to_owned(), segment);
    }

    fn next_segment(&mut self) {
        self.open = (self.open + 1) % self.segments.len();
        self.used = 0;
        for key in self.segments[self.open].drain(..) {
            self.live.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape =
        Shape { segment_bytes: 1000, segment_count: 3, overhead_bytes: 0, unit_bytes: 1, fragment_bytes: 1000 };

    #[test]
    fn the_oldest_segment_is_dropped_first() {
        let mut ring = Ring::new(SHAPE);
        for key in ["a", "b", "c", "d", "e", "f"] {
            assert!(!ring.reference(key, 400), "{key}");
        }
        assert!(ring.reference("a", 400));
        assert!(!ring.reference("g", 400)); // opens the first segment again: a and b go
        assert_eq!(ring.object_count(), 5);
        assert!(!ring.reference("b", 400) && ring.reference("c", 400));
        assert!((ring.hit_rate() - 2.0 / 10.0).abs() < 1e-9);
    }

    #[test]
    fn a_hit_does_not_refresh_and_units_count() {
        let mut ring = Ring::new(Shape { overhead_bytes: 10, unit_bytes: 64, ..SHAPE });
        assert!(!ring.reference("k", 1)); // 64 bytes
        for serial in 0..45 {
            assert!(ring.reference("k", 1), "{serial}");
            ring.reference(&format!("o{serial}"), 30); // 15 to a segment
        }
        assert!(!ring.reference("k", 1));
    }
}
