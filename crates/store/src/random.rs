//! Random numbers for identities and seeds.
//!
//! Owns: the source of random numbers. With a seed, the numbers are the same in each run, so that a simulation can be
//! repeated. Without a seed, they come from the operating system.

/// Returns a source of random numbers: from `seed` if there is one, otherwise from the operating system.
pub(crate) fn random_u64s(seed: Option<u64>) -> impl FnMut() -> u64 {
    let mut drawn = 0_u64;
    move || {
        drawn += 1;
        seed.map_or_else(random_u64, |seed| xxhash_rust::xxh3::xxh3_64_with_seed(&drawn.to_le_bytes(), seed))
    }
}

/// Returns 64 random bits of the operating system.
pub(crate) fn random_u64() -> u64 {
    getrandom::u64().expect("the kernel has random numbers")
}
