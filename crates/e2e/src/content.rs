//! The bytes of an object: a pure function of its target and version, so that every answer can be checked alone.
//!
//! Promises that bodies of different targets or versions differ in nearly every 8-byte word, at every offset. So a mix
//! of two versions, a shifted range or another key's bytes never compare equal. This file also owns the distribution of
//! object sizes.

use crate::rng::{GOLDEN, SeededRng, mix};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The smallest object of the size distribution.
pub const SIZE_BYTES_MIN: u64 = 200;
/// The largest object of the size distribution: several fragments of 1 MiB.
pub const SIZE_BYTES_MAX: u64 = 4 << 20;

/// The seed of the bytes of one version of one target.
pub fn seed(target: &str, version: u64) -> u64 {
    xxh3_64_with_seed(target.as_bytes(), version.wrapping_mul(GOLDEN))
}

/// Writes the bytes `offset..offset + out.len()` of the body with this seed.
pub fn fill(seed: u64, offset: u64, out: &mut [u8]) {
    let mut at = 0;
    while at < out.len() {
        let position = offset + at as u64;
        let word = mix(seed.wrapping_add((position / 8).wrapping_mul(GOLDEN))).to_le_bytes();
        let skip = (position % 8) as usize;
        let count = (8 - skip).min(out.len() - at);
        out[at..at + count].copy_from_slice(&word[skip..skip + count]);
        at += count;
    }
}

/// The whole body of a version.
pub fn body(target: &str, version: u64, bytes: u64) -> Vec<u8> {
    let mut out = vec![0; bytes as usize];
    fill(seed(target, version), 0, &mut out);
    out
}

/// Finds the first index at which `found` differs from the bytes of the body that begin at `offset`.
pub fn first_difference(seed: u64, offset: u64, found: &[u8]) -> Option<usize> {
    let mut expected = vec![0; found.len().min(64 << 10)];
    for (chunk_index, chunk) in found.chunks(expected.len().max(1)).enumerate() {
        let start = chunk_index * expected.len();
        let expected = &mut expected[..chunk.len()];
        fill(seed, offset + start as u64, expected);
        if expected != chunk {
            return expected.iter().zip(chunk).position(|(left, right)| left != right).map(|index| start + index);
        }
    }
    None
}

/// The size of object `id`: log-normal, median 8 KiB, clamped, with one object in 64 between 1 and 4 MiB.
pub fn law_bytes(id: u64) -> u64 {
    let mut rng = SeededRng::new(mix(id ^ GOLDEN));
    if rng.below(64) == 0 {
        return (1 << 20) + rng.below(SIZE_BYTES_MAX - (1 << 20) + 1);
    }
    // This is the Box-Muller transform. `unit()` may be 0, so take the logarithm of `1 - unit()`, which is in (0, 1].
    let normal = (-2.0 * (1.0 - rng.unit()).ln()).sqrt() * (std::f64::consts::TAU * rng.unit()).cos();
    let bytes = (9.0 + 1.4 * normal).exp();
    (bytes as u64).clamp(SIZE_BYTES_MIN, 1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_matches_whole_content() {
        let whole = body("/o/1", 3, 1000);
        let mut part = vec![0; 101];
        fill(seed("/o/1", 3), 333, &mut part);
        assert_eq!(part, whole[333..434]);
        assert_eq!(first_difference(seed("/o/1", 3), 333, &part), None);
    }

    #[test]
    fn wrong_byte_version_or_key_found() {
        let mut bytes = body("/o/1", 3, 200_000);
        bytes[150_001] ^= 1;
        assert_eq!(first_difference(seed("/o/1", 3), 0, &bytes), Some(150_001));
        assert!(first_difference(seed("/o/1", 4), 0, &bytes).is_some_and(|at| at < 8));
        assert!(first_difference(seed("/o/2", 3), 0, &bytes).is_some_and(|at| at < 8));
    }

    #[test]
    fn sizes_follow_the_law() {
        let mut sizes: Vec<u64> = (0..10_000).map(law_bytes).collect();
        sizes.sort_unstable();
        assert!((6_000..11_000).contains(&sizes[5_000]), "{}", sizes[5_000]);
        assert!(sizes[0] >= SIZE_BYTES_MIN && sizes[9_999] > 1 << 20 && sizes[9_999] <= SIZE_BYTES_MAX);
    }
}
