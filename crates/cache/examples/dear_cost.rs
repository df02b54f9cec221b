//! Measures the cost of detection: the time per reference that `dear` takes longer than LRU. Rounds of the two policies
//! alternate; the result is the median of the differences. *Units*: nanoseconds.
//!
//! `cargo run --release -p nectary-cache --example dear_cost [BLOCKS] [ROUNDS] [KIND]`. By default the cache has
//! 1,048,576 blocks, there are 7 rounds, and all kinds of references are measured.
//!
//! There are four kinds of references: `zipf`, `shared`, `uniform` and `loop`. Each goes to twice as many blocks as fit
//! in the cache; `shared` is `zipf` spread over eight streams. Time is the thread's processor time, so other load
//! disturbs the result only if it competes for processor caches and memory.

use nectary_cache::{Dear, Lru, Policy, StreamId};

/// The number of references per round.
const REFERENCES: usize = 1 << 21;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize| arguments.get(index).and_then(|argument| argument.parse::<u64>().ok());
    let blocks = number(0).unwrap_or(1 << 20).max(1);
    let rounds = number(1).unwrap_or(7).max(1);
    let only = arguments.get(2);
    println!("{blocks} blocks, {REFERENCES} references a round, medians of {rounds} rounds, ns a reference");
    for (name, references) in workloads(blocks).into_iter().filter(|(name, _)| only.is_none_or(|only| only == name)) {
        let mut lru = Lru::new(blocks);
        let mut dear = Dear::new(blocks);
        let (mut of_lru, mut of_dear, mut differences) = (Vec::new(), Vec::new(), Vec::new());
        for policy in [&mut lru as &mut dyn Policy, &mut dear] {
            round(policy, &references);
        }
        for _ in 0..rounds {
            let (lru, dear) = (round(&mut lru, &references), round(&mut dear, &references));
            of_lru.push(lru);
            of_dear.push(dear);
            differences.push(dear - lru);
        }
        let least = least(&of_dear) - least(&of_lru);
        let (lru, dear, difference) = (median(of_lru), median(of_dear), median(differences));
        println!("{name:<8} lru {lru:6.1}  dear {dear:6.1}  above {difference:6.1}  of the fastest rounds {least:6.1}");
    }
}

/// Plays all references once. *Returns* the nanoseconds per reference.
fn round(policy: &mut dyn Policy, references: &[(u64, StreamId)]) -> f64 {
    let start = on_processor_ns();
    for &(block, stream) in references {
        policy.reference(block, 1, stream, &mut |_| true);
    }
    (on_processor_ns() - start) as f64 / references.len() as f64
}

/// The time for which this thread has used the processor. *Units*: nanoseconds.
fn on_processor_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux tells of its threads");
    text.split(' ').next().and_then(|field| field.parse().ok()).expect("the first field is a time")
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn workloads(blocks: u64) -> Vec<(&'static str, Vec<(u64, StreamId)>)> {
    let all = blocks * 2;
    let mut state = 88_172_645_463_325_252_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut fraction = move || (random() >> 11) as f64 / (1_u64 << 53) as f64;
    let mut zipf = move || ((all as f64).powf(fraction()) as u64 - 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) % all;
    let skewed: Vec<u64> = (0..REFERENCES).map(|_| zipf()).collect();
    let uniform: Vec<u64> = (0..REFERENCES as u64).map(|at| at.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 20).collect();
    let of_one = |references: &[u64]| references.iter().map(|&block| (block, StreamId(0))).collect();
    vec![
        ("zipf", of_one(&skewed)),
        ("shared", skewed.iter().map(|&block| (block, StreamId((block % 8) as u32))).collect()),
        ("uniform", of_one(&uniform.iter().map(|block| block % all).collect::<Vec<u64>>())),
        ("loop", of_one(&(0..REFERENCES as u64).map(|at| at % all).collect::<Vec<u64>>())),
    ]
}
