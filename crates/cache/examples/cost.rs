//! The cost of a reference: nanoseconds per policy at 1 Mi blocks, on a skewed and on a uniform trace.
//!
//! `cargo run --release -p nectary-cache --example cost [ROUNDS [POLICY…]]`. Each round runs every policy once, so that
//! other load on the machine affects all policies alike. The program prints the medians of the rounds (5 by default)
//! and their differences from LRU's median. The cache is filled before the measurement. Time is this thread's processor
//! time, or elapsed time if the kernel does not report it.
//!
//! Much of the cost is waiting for memory, because the program does not prefetch the entries of the next accesses
//! ([`Policy::prepare`]) and because the tables still grow. The cost of a simulation is printed by `research
//! cache-figures --only cost` of `nectary-bench`.

use std::fs;
use std::sync::LazyLock;
use std::time::Instant;

use nectary_cache::{AccessResult, NAMES, Policy, StreamId, by_name};

/// The number of blocks that fit in the cache.
const CAPACITY: u64 = 1 << 20;
/// The number of distinct blocks in the traces.
const BLOCKS: u64 = 1 << 22;
/// The number of accesses that fill the cache, and the number of timed accesses.
const FILLING: usize = 1 << 22;
const TIMED: usize = 1 << 22;

/// A function that draws the next block of a trace.
type Draw = fn(&mut u64) -> u64;

/// A random number from 0 to 1 (SplitMix64).
fn random(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

/// Draws a block by a power law of exponent 0.9; the popularity of a block does not depend on its number.
fn skewed(state: &mut u64) -> u64 {
    let rank = ((BLOCKS as f64).powf(0.1) - 1.0).mul_add(random(state), 1.0).powf(10.0) as u64;
    rank.wrapping_mul(0x9e37_79b1) % BLOCKS
}

/// Draws a block uniformly from twice as many blocks as fit in the cache.
fn uniform(state: &mut u64) -> u64 {
    (random(state) * (2 * CAPACITY) as f64) as u64
}

fn play(policy: &mut dyn Policy, trace: &[u64]) -> usize {
    let is_hit = |&&id: &&u64| policy.reference(id, 1, StreamId(0), &mut |_| true) == AccessResult::Hit;
    trace.iter().filter(is_hit).count()
}

/// The time for which this thread has run. *Units*: nanoseconds.
fn now() -> f64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let told = fs::read_to_string("/proc/thread-self/schedstat").ok();
    let ran = told.as_deref().and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    ran.map_or_else(|| START.elapsed().as_nanos() as f64, |ran| ran as f64)
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let rounds: usize = arguments.first().and_then(|text| text.parse().ok()).unwrap_or(5).max(1);
    let wanted = arguments.get(1..).unwrap_or_default();
    let names: Vec<&str> = NAMES
        .iter()
        .copied()
        .filter(|name| wanted.is_empty() || *name == "lru" || wanted.iter().any(|wanted| wanted == name))
        .collect();
    println!("{CAPACITY} blocks, {TIMED} references after {FILLING}, medians of {rounds} rounds");
    let traces: [(&str, Draw); 2] = [("skewed", skewed), ("uniform", uniform)];
    for (trace_name, draw) in traces {
        let mut state = 7;
        let trace: Vec<u64> = (0..FILLING + TIMED).map(|_| draw(&mut state)).collect();
        let mut times = vec![Vec::new(); names.len()];
        let mut hits = vec![0; names.len()];
        for _ in 0..rounds {
            for (index, name) in names.iter().enumerate() {
                let mut policy = by_name(name, CAPACITY).expect("listed");
                play(policy.as_mut(), &trace[..FILLING]);
                let start = now();
                hits[index] = play(policy.as_mut(), &trace[FILLING..]);
                times[index].push((now() - start) / TIMED as f64);
            }
        }
        let medians: Vec<f64> = times.iter_mut().map(|times| median(times)).collect();
        let of_lru = names.iter().position(|name| *name == "lru").map_or(0.0, |index| medians[index]);
        println!("{trace_name:<10} {:>12} {:>10} {:>10} {:>8}", "ns/reference", "above LRU", "M/s", "hits");
        for ((name, median), hits) in names.iter().zip(&medians).zip(&hits) {
            let percent = 100.0 * *hits as f64 / TIMED as f64;
            println!("{name:<10} {median:>12.1} {:>+10.1} {:>10.1} {percent:>7.2}%", median - of_lru, 1000.0 / median);
        }
    }
}
