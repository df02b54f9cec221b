//! Measures the speed of simulations: `cargo run --release -p nectary-bench --example simulate-speed -- [SIZE]
//! [POLICIES]`.
//!
//! There are two traces of 8 Mi references: a skewed one (Zipf's law) over four times SIZE blocks, and a uniform one
//! over twice SIZE blocks, in which nearly every reference also misses the processor's caches. The result is the median
//! of five interleaved runs, in processor time on one core (from `/proc/thread-self/schedstat`). The goal is 10 M
//! references/s for LRU.

use nectary_cache::{Lru, Policy, StreamId};
use nectary_trace::simulate::{TraceWorkload, misses, policies};

const REFERENCES: u64 = 8 << 20;
const ROUNDS: usize = 5;

/// The processor time that this thread has used. *Units*: seconds.
fn now() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux with schedstat");
    let ran_ns: u64 = text.split(' ').next().and_then(|word| word.parse().ok()).expect("a number");
    ran_ns as f64 / 1e9
}

/// A random number (SplitMix64).
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The block number of a rank; neighbouring ranks get scattered block numbers.
fn scattered(rank: u64) -> u64 {
    rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}

fn skewed(blocks: u64) -> TraceWorkload {
    let mut state = 1;
    let highest = (blocks as f64).ln();
    let block = |_| {
        let unit = (random(&mut state) >> 11) as f64 / (1_u64 << 53) as f64;
        (scattered((unit * highest).exp() as u64), StreamId(0))
    };
    TraceWorkload::new("skewed", (0..REFERENCES).map(block))
}

fn uniform(blocks: u64) -> TraceWorkload {
    let mut state = 2;
    TraceWorkload::new("uniform", (0..REFERENCES).map(|_| (scattered(random(&mut state) % blocks), StreamId(0))))
}

fn main() {
    let mut words = std::env::args().skip(1);
    let size: u64 = words.next().map_or(1 << 20, |word| word.parse().expect("SIZE is a number of blocks"));
    let names = words.next().unwrap_or_else(|| "lru".to_owned());
    for workload in [skewed(4 * size), uniform(2 * size)] {
        let mut seconds: Vec<(String, Vec<f64>, u64)> = Vec::new();
        let mut note = |name: String, start: f64, misses: u64| {
            let elapsed = now() - start;
            match seconds.iter_mut().find(|entry| entry.0 == name) {
                Some(entry) => entry.1.push(elapsed),
                None => seconds.push((name, vec![elapsed], misses)),
            }
        };
        for _ in 0..ROUNDS {
            let start = now();
            let count = misses(&mut Lru::new(size), &workload);
            note("lru, its type known".to_owned(), start, count);
            for name in names.split(',') {
                let mut policy: Box<dyn Policy> = policies::make(name, size, &workload).expect("a policy");
                let start = now();
                let count = misses(&mut *policy, &workload);
                note(name.to_owned(), start, count);
            }
        }
        let (name, distinct) = (workload.name(), workload.distinct());
        println!("{name}: {REFERENCES} references, {distinct} distinct blocks, a cache of {size}");
        for (name, mut seconds, misses) in seconds {
            seconds.sort_by(f64::total_cmp);
            let median = seconds[ROUNDS / 2];
            let (speed, cost) = (REFERENCES as f64 / median / 1e6, median / REFERENCES as f64 * 1e9);
            let ratio = 100.0 * misses as f64 / REFERENCES as f64;
            println!("  {name:20} {speed:6.1} M references/s  {cost:6.1} ns each  {ratio:5.1} % misses");
        }
    }
}
