//! The keys that were requested lately, remembered in two Bloom filters that are used in turn.
//!
//! Owns: the memory of past requests. A request is noted in the younger filter and looked up in both. When the younger
//! filter is full, the older one is emptied and becomes the new younger filter. So at least the last `count_max`
//! requested keys are remembered, and at most twice as many. Only newer requests displace older ones; time alone does
//! not. All bits of a key are in one cache line.
//!
//! *Cost*: [`BITS_PER_REQUEST`] bits per request in each filter; two cache lines per request. Fewer than 3 of 100 keys
//! that were never requested count as known (measured by a test); such a key is admitted too early, with no other
//! effect. A restart forgets all requests.

use crate::names::key::KeyHash;

/// The size of a filter, in bits per request that it can hold.
const BITS_PER_REQUEST: u64 = 12;
/// The number of bits that a key sets.
const PROBES: u32 = 6;
/// The size of a cache line, in words of 64 bits.
const LINE_WORDS: usize = 8;
const LINE_BITS_LOG: u32 = 9;

/// The requests that are remembered.
pub struct RequestSketch {
    younger: Vec<u64>,
    older: Vec<u64>,
    /// Requests in the younger filter.
    count: u64,
    count_max: u64,
}

impl RequestSketch {
    /// Makes an empty sketch of `bytes` of memory.
    pub fn new(bytes: u64) -> RequestSketch {
        let words = (bytes as usize / 2 / 8 / LINE_WORDS).max(1) * LINE_WORDS;
        let count_max = words as u64 * 64 / BITS_PER_REQUEST;
        RequestSketch { younger: vec![0; words], older: vec![0; words], count: 0, count_max }
    }

    /// The memory of the sketch, in bytes.
    pub fn bytes(&self) -> u64 {
        (self.younger.len() + self.older.len()) as u64 * 8
    }

    /// The sketch remembers at least this many of the different keys that were requested last.
    pub fn count_max(&self) -> u64 {
        self.count_max
    }

    /// Notes a request; returns whether its key was requested before.
    pub fn note(&mut self, hash: KeyHash) -> bool {
        let lines = self.younger.len() / LINE_WORDS;
        // The upper half of the hash chooses the line, the lower half the bits in it.
        let upper = (hash.0 >> 64) as u64;
        let line = ((u128::from(upper) * lines as u128) >> 64) as usize * LINE_WORDS;
        let mut mask = [0_u64; LINE_WORDS];
        for probe in 0..PROBES {
            let bit = (hash.0 as u64 >> (probe * LINE_BITS_LOG)) as usize % (LINE_WORDS * 64);
            mask[bit / 64] |= 1 << (bit % 64);
        }
        let has = |filter: &[u64]| mask.iter().zip(&filter[line..]).all(|(mask, word)| word & mask == *mask);
        let (in_younger, in_older) = (has(&self.younger), has(&self.older));
        if !in_younger {
            for (word, mask) in self.younger[line..].iter_mut().zip(mask) {
                *word |= mask;
            }
            self.count += 1;
            if self.count >= self.count_max {
                self.turn();
            }
        }
        in_younger || in_older
    }

    fn turn(&mut self) {
        std::mem::swap(&mut self.younger, &mut self.older);
        // Zeroed pages from the system cost less than writing zeroes under the lock.
        self.younger = vec![0; self.older.len()];
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::key::{KeyRef, hash_key};

    fn hash(number: u64) -> KeyHash {
        hash_key(5, KeyRef::new(&number.to_le_bytes(), b"")).1
    }

    fn note_all(sketch: &mut RequestSketch, numbers: std::ops::Range<u64>) {
        for number in numbers {
            sketch.note(hash(number));
        }
    }

    #[test]
    fn sketch_forgets_older_requests() {
        let mut sketch = RequestSketch::new(64 << 10);
        let most = sketch.count_max();
        assert!((sketch.bytes(), most) == (64 << 10, (32 << 10) * 8 / BITS_PER_REQUEST));
        for offset in [0, 1, most / 2, most - 1, most, 3 * most / 2] {
            let mut sketch = RequestSketch::new(64 << 10);
            note_all(&mut sketch, 0..offset);
            sketch.note(hash(1 << 40));
            note_all(&mut sketch, (1 << 41) + 1..(1 << 41) + most);
            assert!(sketch.note(hash(1 << 40)), "asked for {most} requests ago, after {offset}");
        }
        note_all(&mut sketch, 0..4 * most);
        let known = (0..1000).filter(|&number| sketch.note(hash(number))).count();
        assert!(known < 60, "{known} of 1000 that were asked for long ago are remembered");
    }

    /// Few keys that were never requested are mistaken for known ones.
    #[test]
    fn few_unknown_keys_look_known() {
        let mut sketch = RequestSketch::new(1 << 20);
        let most = sketch.count_max();
        // Both filters are as full as they can be.
        note_all(&mut sketch, 0..2 * most - 1000);
        let wrong = (0..1000).filter(|&number| sketch.note(hash(1 << 40 | number))).count();
        println!("{wrong} of 1000 mistaken for known");
        assert!(wrong < 30, "{wrong} of 1000");
    }
}
