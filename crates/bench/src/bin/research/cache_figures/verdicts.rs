//! Counts the periods of uniform random references that get a verdict, although the references have no pattern.
//!
//! Owns: the capacities of the cache, and the numbers of blocks that are referenced. These range from far fewer blocks
//! than fit in the cache to far more than the detector can remember.

use std::sync::mpsc::channel;

use nectary_cache::detect::PatternVerdict;
use nectary_cache::{Adaptive, Policy, PolicyEvent, StreamId, WatchedPolicy};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// The largest allowed share of periods with a verdict. *Units*: percent.
const VERDICTS_PERCENT_MAX: f64 = 5.0;
const REFERENCES: u64 = 250_000;
/// The capacities, and the numbers of blocks that are referenced with equal probability.
const SIZES: [(u64, &[u64]); 3] = [
    (768, &[100, 1000, 3000, 20_000, 200_000, 2_000_000, 20_000_000]),
    (4000, &[10_000, 2_000_000]),
    (10_000, &[40_000, 20_000_000]),
];

/// Prints a line for each size. *Returns* a line for each size with too many verdicts.
pub fn verdicts() -> Vec<String> {
    let mut short = Vec::new();
    println!("verdicts on uniform random references, {REFERENCES} each, in periods of 500");
    for (capacity, universes) in SIZES {
        for &universe in universes {
            let (periods, given) = count(capacity, universe);
            let percent = 100.0 * given as f64 / periods as f64;
            println!("  {universe:9} blocks, {capacity:6} fit: {given} of {periods} periods, {percent:.1} %");
            if percent > VERDICTS_PERCENT_MAX {
                short.push(format!(
                    "verdicts on {universe} random blocks: {percent:.1} %, at most {VERDICTS_PERCENT_MAX} %"
                ));
            }
        }
    }
    short
}

/// The number of periods, and the number of periods with a verdict.
fn count(capacity: u64, universe: u64) -> (usize, usize) {
    let (sender, receiver) = channel();
    let mut adaptive = WatchedPolicy::new(
        Box::new(Adaptive::new(capacity)),
        8192,
        Box::new(move |event| {
            if let PolicyEvent::Period(period) = event {
                let _ = sender.send(period.period.report.verdict);
            }
        }),
    );
    let mut random = SplitMix64::seed_from_u64(capacity ^ universe);
    for _ in 0..REFERENCES {
        adaptive.reference(random.next_u64() % universe, 1, StreamId(0), &mut |_| true);
    }
    drop(adaptive);
    let verdicts: Vec<PatternVerdict> = receiver.iter().collect();
    (verdicts.len(), verdicts.iter().filter(|verdict| **verdict != PatternVerdict::None).count())
}
