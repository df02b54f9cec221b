//! The objects that the store should have, computed without the store: a ring of segments, first in, first out, with
//! re-insertion.
//!
//! The simulation has a few rules, none of them from the store's code. The size of an object is that of its body, key
//! and metadata plus a fixed overhead, rounded up to a unit. Objects are appended to the open segment; an object that
//! does not fit opens the next segment, whose former objects are dropped, including those in memory. When a segment is
//! opened, the objects of an old segment that were hit are appended again. This old segment is the second one that will
//! be dropped from then on, or the first one if there are fewer than eight segments. The smallest objects are appended
//! first, up to a share of the segment; objects of several fragments are not appended again. Segments are divided into
//! pieces of 4096 bytes; a hit counts for all objects that begin in the same piece. An object of several fragments
//! exists as long as its first fragment. A reference is a hit or a miss; a miss appends the object.

use std::collections::{HashMap, HashSet};

/// The shape of a store.
#[derive(Clone, Copy, Debug)]
pub struct RingShape {
    /// The size of one segment, in bytes.
    pub segment_bytes: u64,
    /// The number of segments in the ring.
    pub segment_count: usize,
    /// The number of bytes that every fragment takes in addition to its body and its key.
    pub overhead_bytes: u64,
    /// The unit, in bytes; sizes are rounded up to a multiple of it.
    pub unit_bytes: u64,
    /// The size of a fragment, in bytes, into which long bodies are split.
    pub fragment_bytes: u64,
    /// The longest body that is stored in one piece, in bytes; longer bodies are stored in fragments.
    pub whole_bytes_max: u64,
    /// The share of a segment that may be appended again, in percent.
    pub reinsert_percent: u64,
}

/// The size of a piece of a segment; a hit counts for all objects that begin in the same piece.
const PIECE_BYTES: u64 = 4096;

/// An object in a segment.
#[derive(Debug)]
struct RingObject {
    key: String,
    body_bytes: u64,
    start: u64,
}

/// The simulation.
#[derive(Debug)]
pub struct SimulatedRing {
    shape: RingShape,
    /// Objects by segment; `open` is the index of the open segment.
    segments: Vec<Vec<RingObject>>,
    /// Pieces of segments in which something was hit.
    hit_pieces: Vec<HashSet<u64>>,
    open: usize,
    used: u64,
    /// The segment of an object and its position in the segment.
    live: HashMap<String, (usize, u64)>,
    hits: u64,
    references: u64,
}

impl SimulatedRing {
    /// An empty store of this shape.
    pub fn new(shape: RingShape) -> Self {
        let count = shape.segment_count.max(1);
        let segments = (0..count).map(|_| Vec::new()).collect();
        let hit_pieces = vec![HashSet::new(); count];
        Self { shape, segments, hit_pieces, open: 0, used: 0, live: HashMap::new(), hits: 0, references: 0 }
    }

    /// References an object; returns true for a hit, and stores the object on a miss.
    pub fn reference(&mut self, key: &str, body_bytes: u64) -> bool {
        self.references += 1;
        if let Some(&(segment, start)) = self.live.get(key) {
            self.hits += 1;
            self.hit_pieces[segment].insert(start / PIECE_BYTES);
            return true;
        }
        self.store(key, body_bytes);
        false
    }

    /// Share of the references that were hits.
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / self.references.max(1) as f64
    }

    /// The current number of objects.
    pub fn object_count(&self) -> usize {
        self.live.len()
    }

    fn store(&mut self, key: &str, body_bytes: u64) {
        let mut left = body_bytes;
        let mut first = None;
        loop {
            let fragment = left.min(self.shape.fragment_bytes);
            let bytes = self.bytes_of(key, fragment);
            if self.used + bytes > self.shape.segment_bytes {
                self.next_segment();
            }
            first.get_or_insert((self.open, self.used));
            self.used += bytes;
            left -= fragment;
            if left == 0 {
                break;
            }
        }
        let (segment, start) = first.unwrap_or((self.open, self.used));
        self.segments[segment].push(RingObject { key: key.to_owned(), body_bytes, start });
        self.live.insert(key.to_owned(), (segment, start));
    }

    fn bytes_of(&self, key: &str, fragment: u64) -> u64 {
        (fragment + self.shape.overhead_bytes + key.len() as u64).next_multiple_of(self.shape.unit_bytes)
    }

    fn next_segment(&mut self) {
        self.open = (self.open + 1) % self.segments.len();
        self.used = 0;
        for held in self.segments[self.open].drain(..) {
            // Objects that were appended again are now in another segment, and stay.
            if self.live.get(&held.key) == Some(&(self.open, held.start)) {
                self.live.remove(&held.key);
            }
        }
        self.hit_pieces[self.open].clear();
        self.append_anew();
    }

    /// Appends the hit objects of an old segment again: of the second segment that will be dropped from now on, or of
    /// the first one if there are fewer than eight segments.
    fn append_anew(&mut self) {
        let ahead = if self.segments.len() < 8 { 1 } else { 2 };
        let next = (self.open + ahead) % self.segments.len();
        let hit = |held: &&RingObject| {
            held.body_bytes <= self.shape.whole_bytes_max
                && self.hit_pieces[next].contains(&(held.start / PIECE_BYTES))
                && self.live.get(&held.key) == Some(&(next, held.start))
        };
        let mut found: Vec<(u64, String)> =
            self.segments[next].iter().filter(hit).map(|held| (held.body_bytes, held.key.clone())).collect();
        found.sort();
        let mut left = self.shape.segment_bytes * self.shape.reinsert_percent / 100;
        for (body_bytes, key) in found {
            let bytes = self.bytes_of(&key, body_bytes);
            if bytes > left {
                break;
            }
            left -= bytes;
            self.live.insert(key.clone(), (self.open, self.used));
            self.segments[self.open].push(RingObject { key, body_bytes, start: self.used });
            self.used += bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: RingShape = RingShape {
        segment_bytes: 1000,
        segment_count: 3,
        overhead_bytes: 0,
        unit_bytes: 1,
        fragment_bytes: 1000,
        whole_bytes_max: 1000,
        reinsert_percent: 0,
    };

    #[test]
    fn hit_objects_are_reinserted_within_share() {
        let mut ring = SimulatedRing::new(RingShape { segment_bytes: 10_000, reinsert_percent: 10, ..SHAPE });
        for key in ["a", "b", "c"] {
            assert!(!ring.reference(key, 900), "{key}");
        }
        assert!(ring.reference("c", 900));
        // These objects fill a little more than two segments. The objects of the first segment are appended again when
        // the third is opened, and the first is dropped when the fourth is opened.
        for serial in 0..30 {
            ring.reference(&format!("o{serial}"), 1000);
        }
        assert!(ring.reference("a", 900), "one of those that share the piece that was hit");
        assert!(!ring.live.contains_key("b") && !ring.live.contains_key("c"), "the share has room for one");
    }

    #[test]
    fn the_oldest_segment_is_dropped_first() {
        let mut ring = SimulatedRing::new(SHAPE);
        for key in ["a", "b", "c", "d", "e", "f"] {
            assert!(!ring.reference(key, 400), "{key}");
        }
        assert!(ring.reference("a", 400));
        assert!(!ring.reference("g", 400)); // opens the first segment again: a and b go
        assert_eq!(ring.object_count(), 5);
        assert!(!ring.reference("b", 400) && ring.reference("c", 400));
        assert!((ring.hit_rate() - 2.0 / 10.0).abs() < 1e-9);
    }

    /// The size of an object is rounded up to whole units.
    #[test]
    fn hit_does_not_refresh_position() {
        let mut ring = SimulatedRing::new(RingShape { overhead_bytes: 10, unit_bytes: 64, ..SHAPE });
        assert!(!ring.reference("k", 1)); // 64 bytes
        for serial in 0..45 {
            assert!(ring.reference("k", 1), "{serial}");
            ring.reference(&format!("o{serial}"), 30); // 15 to a segment
        }
        assert!(!ring.reference("k", 1));
    }
}
