//! What a reference costs at 1 Mi blocks: LRU, and `dear` and `adaptive` above it.
//!
//! Owns: the references, the order of the rounds and the limits. In each round every policy plays the same references, so
//! that what disturbs the machine disturbs all; a difference is taken within a round, and printed are medians over the
//! rounds. Before it is timed each policy plays them once, so that all find the processor's caches as they left them. Time
//! is that of this thread on the processor.

use nectary_cache::{Access, Lru, Policy, Stream, by_name};
use nectary_trace::simulate::{Workload, misses};

/// Blocks that fit.
const CAPACITY: u64 = 1 << 20;
const REFERENCES: u64 = 4 << 20;
const ROUNDS: usize = 3;
/// References a second of a simulated LRU. *Units*: millions.
const LRU_MILLIONS_MIN: f64 = 10.0;
/// What a policy may cost above LRU. *Units*: nanoseconds a reference.
const ABOVE_LRU_NS_MAX: [(&str, f64); 2] = [("dear", 30.0), ("adaptive", 100.0)];

/// The time that this thread has run. *Units*: nanoseconds.
fn now() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split(' ').next()?.parse().ok()
}

fn workloads() -> [Workload; 2] {
    let mut state = 1_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let scattered = |rank: u64| rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    let highest = (16.0 * CAPACITY as f64).ln();
    let skewed: Vec<u64> = (0..REFERENCES)
        .map(|_| scattered(((random() >> 11) as f64 / (1_u64 << 53) as f64 * highest).exp() as u64))
        .collect();
    let uniform: Vec<u64> = (0..REFERENCES).map(|_| scattered(random() % (2 * CAPACITY))).collect();
    let of = |name, blocks: Vec<u64>| Workload::new(name, blocks.into_iter().map(|block| (block, Stream(0))));
    [of("skewed", skewed), of("uniform", uniform)]
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Prints the figures; gives those that are short.
pub fn cost() -> Vec<String> {
    let mut short = Vec::new();
    for workload in workloads() {
        let name = workload.name();
        println!("{name}: {REFERENCES} references, {CAPACITY} blocks fit, medians of {ROUNDS} rounds on full caches");
        let mut lru = Lru::new(CAPACITY);
        let mut others: Vec<_> = ABOVE_LRU_NS_MAX.iter().filter_map(|(name, _)| by_name(name, CAPACITY)).collect();
        let mut simulated = Vec::new();
        let mut of_lru = Vec::new();
        let mut above = vec![Vec::new(); others.len()];
        for round in 0..=ROUNDS {
            play(&mut lru, &workload);
            let simulating = timed(|| misses(&mut lru, &workload));
            let Some(simulating) = simulating else { return vec!["the kernel tells no time of a thread".to_owned()] };
            let base = timed(|| play(&mut lru, &workload)).unwrap_or(f64::NAN);
            let cost = |policy: &mut Box<dyn Policy>| {
                play(&mut **policy, &workload);
                timed(|| play(&mut **policy, &workload))
            };
            let costs: Vec<f64> = others.iter_mut().filter_map(cost).collect();
            // The first round fills the caches.
            if round > 0 {
                simulated.push(simulating);
                of_lru.push(base);
                above.iter_mut().zip(costs).for_each(|(above, cost)| above.push(cost - base));
            }
        }
        let millions = 1000.0 / median(simulated);
        println!(
            "  lru       simulates {millions:5.1} M references/s, at least {LRU_MILLIONS_MIN}; {:.1} ns each",
            median(of_lru)
        );
        if millions < LRU_MILLIONS_MIN {
            short.push(format!("{name}: lru simulates {millions:.1} M references/s, at least {LRU_MILLIONS_MIN}"));
        }
        for ((policy, ns_max), above) in ABOVE_LRU_NS_MAX.iter().zip(above) {
            let above = median(above);
            println!("  {policy:9} {above:+6.1} ns a reference above lru, at most {ns_max}");
            if above > *ns_max {
                short.push(format!("{name}: {policy} {above:+.1} ns above lru, at most {ns_max}"));
            }
        }
    }
    short
}

fn play(policy: &mut dyn Policy, workload: &Workload) -> u64 {
    let is_hit = |block: &&u64| policy.reference(**block, 1, Stream(0), &mut |_| true) == Access::Hit;
    workload.blocks().iter().filter(is_hit).count() as u64
}

/// Nanoseconds a reference.
fn timed(play: impl FnOnce() -> u64) -> Option<f64> {
    let start = now()?;
    std::hint::black_box(play());
    Some((now()? - start) / REFERENCES as f64)
}
