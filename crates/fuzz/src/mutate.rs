//! The mutator: it makes small random changes to an input.
//!
//! Owns: the kinds of changes. Promises: the same seed and the same inputs give the same mutants on every machine.

use nectary_sim::random::SimulationRandom;

/// The numbers that are often bounds in formats.
const EDGES: [u64; 14] = [
    0,
    1,
    63,
    64,
    127,
    255,
    4095,
    4096,
    u16::MAX as u64,
    1 << 20,
    i32::MAX as u64,
    u32::MAX as u64,
    i64::MAX as u64,
    u64::MAX,
];
/// The largest number of changes to one input.
const CHANGES_MAX: u64 = 5;
/// The largest number of bytes that one change moves or fills.
const RUN_BYTES_MAX: u64 = 64;

/// Makes a mutant of `input` with at most `bytes_max` bytes, which may contain parts of `other`, another input, and
/// `words`, typical parts of the format.
pub fn mutate(random: &mut SimulationRandom, input: &[u8], other: &[u8], words: &[&[u8]], bytes_max: usize) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(CHANGES_MAX) {
        change(random, &mut bytes, other, words);
        bytes.truncate(bytes_max);
    }
    bytes
}

fn change(random: &mut SimulationRandom, bytes: &mut Vec<u8>, other: &[u8], words: &[&[u8]]) {
    if bytes.is_empty() {
        bytes.extend((0..random.below(RUN_BYTES_MAX)).map(|_| random.bits() as u8));
        return;
    }
    let at = random.below(bytes.len() as u64) as usize;
    let end = (at + 1 + random.below(RUN_BYTES_MAX) as usize).min(bytes.len());
    match random.below(12) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.bits() as u8,
        2 => bytes[at] = bytes[at].wrapping_add(random.below(35) as u8).wrapping_sub(17),
        3 | 4 => {
            // Writes a number of 1, 2, 4 or 8 bytes that is a bound, or differs from a bound by one.
            let width = 1 << random.below(4);
            let edge = EDGES[random.below(EDGES.len() as u64) as usize];
            let number = edge.wrapping_add(random.below(3)).wrapping_sub(1).to_le_bytes();
            let end = (at + width).min(bytes.len());
            bytes[at..end].copy_from_slice(&number[..end - at]);
        }
        5 => bytes.truncate(at),
        6 => _ = bytes.drain(at..end),
        7 => {
            let copied = bytes[at..end].to_vec();
            let to = random.below(bytes.len() as u64 + 1) as usize;
            bytes.splice(to..to, copied);
        }
        8 => {
            let copied = bytes[at..end].to_vec();
            let to = random.below(bytes.len() as u64) as usize;
            let end = (to + copied.len()).min(bytes.len());
            bytes[to..end].copy_from_slice(&copied[..end - to]);
        }
        9 if !other.is_empty() => {
            let from = random.below(other.len() as u64) as usize;
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
        10 | 11 if !words.is_empty() => {
            let word = words[random.below(words.len() as u64) as usize];
            if random.chance(50) {
                bytes.splice(at..at, word.iter().copied());
            } else {
                let end = (at + word.len()).min(bytes.len());
                bytes[at..end].copy_from_slice(&word[..end - at]);
            }
        }
        _ => {
            let count = random.below(RUN_BYTES_MAX);
            let inserted: Vec<u8> = (0..count).map(|_| random.bits() as u8).collect();
            bytes.splice(at..at, inserted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_repeats_same_bounded_mutants() {
        let make = |seed| {
            let mut random = SimulationRandom::new(seed);
            (0..500).map(|_| mutate(&mut random, b"an input", b"another", &[b"word"], 100)).collect::<Vec<_>>()
        };
        assert_eq!(make(1), make(1));
        assert_ne!(make(1), make(2));
        assert!(make(1).iter().all(|mutant| mutant.len() <= 100));
        assert!(make(1).iter().any(|mutant| mutant != b"an input"));
    }
}
