//! Generated accesses for large caches: Zipf's law, loops, phases, scans, drifts, and streams that end.
//!
//! Owns: the generated accesses, which are the same at each call. Promises: no kind was made to suit a policy; each is
//! scaled only by the cache's size. Leaves to others: the simulation.

use nectary_cache::StreamId;
use nectary_trace::simulate::TraceWorkload;

/// The sizes of the caches. *Units*: blocks.
pub const SIZES: [u64; 4] = [20_000, 40_000, 80_000, 200_000];
/// The number of accesses for each block of the cache.
const ACCESSES: u64 = 15;

/// A random generator (SplitMix64).
struct AccessRandom(u64);

impl AccessRandom {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// Draws a rank below `count` by Zipf's law, from the inverse of its continuous distribution.
    fn zipf(&mut self, count: u64, exponent: f64) -> u64 {
        let (unit, count) = ((self.next() >> 11) as f64 / (1_u64 << 53) as f64, count as f64);
        let rest = 1.0 - exponent;
        let rank = match rest.abs() < 1e-9 {
            true => count.powf(unit),
            false => ((count.powf(rest) - 1.0) * unit + 1.0).powf(1.0 / rest),
        };
        rank as u64 - 1
    }
}

/// A kind of accesses: its name, and a function from the number of the access, the size of the cache, and a random
/// generator to the block and the stream of the access.
type Kind = (&'static str, fn(u64, u64, &mut AccessRandom) -> (u64, u32));

const FAR: u64 = 1 << 32;
/// The number of kinds whose pattern stays the same; they are the first ones.
const STATIONARY: usize = 7;

const KINDS: [Kind; 15] = [
    ("zipf-0.7", |_, size, random| (random.zipf(5 * size, 0.7), 0)),
    ("zipf-0.8", |_, size, random| (random.zipf(5 * size, 0.8), 0)),
    ("zipf-0.9", |_, size, random| (random.zipf(5 * size, 0.9), 0)),
    ("zipf-1.0", |_, size, random| (random.zipf(5 * size, 1.0), 0)),
    ("zipf-1.1", |_, size, random| (random.zipf(5 * size, 1.1), 0)),
    ("loop", |step, size, _| (step % (size * 3 / 2), 0)),
    // An inner loop that fits in the cache makes eight rounds for each part of an outer loop that does not fit.
    ("loops-nested", |step, size, _| match step % size < size / 2 {
        true => (step % (size / 16), 0),
        false => (FAR + step / 2 % (2 * size), 0),
    }),
    ("phases", |step, size, random| match step / (4 * size) % 2 {
        0 => (random.zipf(4 * size, 0.9), 0),
        _ => (FAR + step % (size * 6 / 5), 0),
    }),
    ("phases-sets", |step, size, random| (step / (3 * size) * FAR + random.zipf(3 * size, 0.8), 0)),
    ("scans", |step, size, random| match step % (2 * size) < size / 2 {
        true => (FAR + step, 0),
        false => (random.zipf(3 * size, 0.9), 0),
    }),
    ("drift", |step, size, random| (step / 8 + random.zipf(2 * size, 0.8), 0)),
    ("drift-fast", |step, size, random| (step / 3 + random.below(size * 9 / 10), 0)),
    ("streams", |step, size, random| match step % 3 {
        0 => (step / 3 % (size * 3 / 4), 0),
        1 => (FAR + step / 6 + random.below(size / 4), 1),
        _ => (2 * FAR + random.zipf(2 * size, 0.9), 2),
    }),
    // Forty streams make ten accesses each, and then two streams follow.
    ("streams-ended", |step, size, random| match step {
        0..400 => (FAR * (3 + step / 10) + step, 3 + (step / 10) as u32),
        _ if step % 2 == 0 => (step / 2 % (size * 5 / 4), 1),
        _ => (FAR + step / 8 + random.below(size / 3), 2),
    }),
    // One stream stays. Beside it, one stream after the other loops over its blocks, and ends after as many accesses of
    // both streams as two capacities.
    ("streams-in-turn", |step, size, random| {
        let turn = step / (2 * size);
        match step % 2 {
            0 => (FAR * (2 + turn) + step / 2 % (size * 3 / 4), 2 + turn as u32),
            _ => (random.zipf(2 * size, 0.8), 1),
        }
    }),
];

/// All generated workloads for a cache of `size`.
pub fn generated(size: u64) -> impl Iterator<Item = TraceWorkload> {
    KINDS.iter().zip(1..).map(move |(kind, seed)| workload(kind, seed, size, ACCESSES * size))
}

/// The workloads whose pattern stays the same, with `accesses` for each block of a cache of `size`.
pub fn stationary(size: u64, accesses: u64) -> impl Iterator<Item = TraceWorkload> {
    KINDS.iter().take(STATIONARY).zip(1..).map(move |(kind, seed)| workload(kind, seed, size, accesses * size))
}

fn workload((name, access): &Kind, seed: u64, size: u64, accesses: u64) -> TraceWorkload {
    let mut random = AccessRandom(seed);
    let accesses = (0..accesses).map(|step| access(step, size, &mut random));
    TraceWorkload::new(*name, accesses.map(|(block, stream)| (block, StreamId(stream))))
}
