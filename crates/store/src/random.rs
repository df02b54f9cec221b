//! Random numbers for identities and seeds.
//!
//! Owns: the source of random numbers. With a seed, the numbers are the same in each run, so that a simulation can be
//! repeated. Without a seed, they come from the operating system.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns a source of random numbers: from `seed` if there is one, otherwise from the operating system.
pub(crate) fn random_u64s(seed: Option<u64>) -> impl FnMut() -> u64 {
    let mut drawn = 0_u64;
    move || {
        drawn += 1;
        seed.map_or_else(random_u64, |seed| xxhash_rust::xxh3::xxh3_64_with_seed(&drawn.to_le_bytes(), seed))
    }
}

/// Returns 64 random bits. They come from the operating system: the standard library draws the keys of its hasher from
/// there.
pub(crate) fn random_u64() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.write_u64(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_nanos() as u64));
    hasher.finish()
}
