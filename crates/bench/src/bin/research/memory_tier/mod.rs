//! Measures the hit rates of a web cache's memory tier under each suitable policy. The store's default policy was
//! chosen by these rates.
//!
//! Owns: the choice of policies and memory sizes, and the tables. Every policy gets the same requests, generated from a
//! seed (see `workload.rs`), with the objects' sizes as weights and a capacity in bytes. MIN, which knows the future,
//! is added as a bound on hits (if objects differ in size, MIN is good but not optimal).
//!
//! `cargo run --release -p nectary-bench -- memory-tier`

mod workload;

use std::process::ExitCode;
use std::time::Instant;

use nectary_cache::{AccessResult, Min, NextReferences, Policy, StreamId, by_name};

use workload::{KINDS, WebRequest, WebWorkload};

const HELP: &str = "\
Usage: research memory-tier [--seeds N] [--requests N]

  --seeds N      how many seeds each workload is made from, 1 to N [default: 3]
  --requests N   requests of each workload; the first third fills the cache and is not counted [default: 1500000]

Printed are the shares of requests and of bytes that memory answers, in percent, means over the seeds.";

/// The policies that need no streams and do not keep formerly popular ids for ever. Only LFU keeps them, and is here to
/// show the effect.
const POLICIES: [&str; 12] =
    ["fifo", "lru", "lfu", "lfu-aged", "clock", "2q", "arc", "lirs", "s3fifo", "sieve", "wtinylfu", "gdsf"];
const MIN: &str = "min";
/// The sizes of memory, as a share of the bytes of all distinct objects. *Units*: percent.
const PERCENT: [f64; 4] = [0.5, 2.0, 6.0, 20.0];
/// The memory that the store needs per object, in addition to the object itself. *Units*: bytes.
const OVERHEAD_BYTES: u64 = 416;

/// The share of requests and the share of bytes that memory answered, in percent, and the time per request.
#[derive(Debug, Clone, Copy, Default)]
struct TierHitRates {
    requests: f64,
    bytes: f64,
    nanoseconds: f64,
}

impl TierHitRates {
    fn add(&mut self, other: TierHitRates, share: f64) {
        self.requests += other.requests * share;
        self.bytes += other.bytes * share;
        self.nanoseconds += other.nanoseconds * share;
    }
}

/// Runs the subcommand with the arguments after its name.
pub fn main(words: &[String]) -> ExitCode {
    let Some((seeds, requests)) = options(words) else {
        eprintln!("{HELP}");
        return ExitCode::from(2);
    };
    println!("{requests} requests, the last two thirds counted; means of {seeds} seeds; requests % / bytes %");
    let mut means = [TierHitRates::default(); POLICIES.len()];
    let mut worst = [0.0_f64; POLICIES.len()];
    for kind in &KINDS {
        let mut table = vec![[TierHitRates::default(); PERCENT.len()]; POLICIES.len() + 1];
        let mut described = String::new();
        for seed in 1..=seeds {
            let workload = WebWorkload::new(kind, seed, requests);
            described = workload.description();
            let ids: Vec<u64> = workload.requests.iter().map(|request| request.id).collect();
            let Some(future) = NextReferences::of(&ids) else { continue };
            for (column, percent) in PERCENT.iter().enumerate() {
                let capacity = (workload.distinct_bytes as f64 * percent / 100.0) as u64;
                for (name, row) in POLICIES.iter().chain([&MIN]).zip(&mut table) {
                    let mut policy =
                        by_name(name, capacity).unwrap_or_else(|| Box::new(Min::bypassing(capacity, &future)));
                    row[column].add(play(policy.as_mut(), &workload.requests), 1.0 / seeds as f64);
                }
            }
        }
        print(kind.name, &described, &table);
        let cells = (KINDS.len() * PERCENT.len()) as f64;
        for column in 0..PERCENT.len() {
            let best = table[..POLICIES.len()].iter().map(|row| row[column].requests).fold(0.0, f64::max);
            for (index, row) in table[..POLICIES.len()].iter().enumerate() {
                means[index].add(row[column], 1.0 / cells);
                worst[index] = worst[index].max(best - row[column].requests);
            }
        }
    }
    println!("\nover all workloads and sizes");
    println!(
        "{:<10} {:>10} {:>8} {:>20} {:>14}",
        "policy", "requests %", "bytes %", "worst below the best", "ns a request"
    );
    let mut order: Vec<usize> = (0..POLICIES.len()).collect();
    order.sort_by(|left, right| means[*right].requests.total_cmp(&means[*left].requests));
    for index in order {
        let TierHitRates { requests, bytes, nanoseconds } = means[index];
        println!("{:<10} {requests:>10.2} {bytes:>8.2} {:>20.2} {nanoseconds:>14.0}", POLICIES[index], worst[index]);
    }
    ExitCode::SUCCESS
}

/// Reads the number of seeds and the number of requests from the command line.
fn options(words: &[String]) -> Option<(u64, usize)> {
    let (mut seeds, mut requests) = (3, 1_500_000);
    let mut rest = words.iter();
    while let Some(name) = rest.next() {
        let value: usize = rest.next()?.parse().ok().filter(|value| (1..=1 << 30).contains(value))?;
        match name.as_str() {
            "--seeds" => seeds = value as u64,
            "--requests" => requests = value.max(1000),
            _ => return None,
        }
    }
    Some((seeds, requests))
}

/// Plays all requests, and counts those after the first third.
fn play(policy: &mut dyn Policy, requests: &[WebRequest]) -> TierHitRates {
    let filling = requests.len() / 3;
    let (mut hits, mut hit_bytes, mut bytes) = (0_u64, 0_u64, 0_u64);
    let start = Instant::now();
    for (number, request) in requests.iter().enumerate() {
        let weight = u64::from(request.bytes) + OVERHEAD_BYTES;
        let is_hit = policy.reference(request.id, weight, StreamId(0), &mut |_| true) == AccessResult::Hit;
        if number >= filling {
            bytes += u64::from(request.bytes);
            hits += u64::from(is_hit);
            hit_bytes += if is_hit { u64::from(request.bytes) } else { 0 };
        }
    }
    TierHitRates {
        requests: 100.0 * hits as f64 / (requests.len() - filling) as f64,
        bytes: 100.0 * hit_bytes as f64 / bytes.max(1) as f64,
        nanoseconds: start.elapsed().as_nanos() as f64 / requests.len() as f64,
    }
}

fn print(name: &str, described: &str, table: &[[TierHitRates; PERCENT.len()]]) {
    println!("\n{name}: {described}");
    print!("{:<10}", "memory");
    PERCENT.iter().for_each(|percent| print!("{:>16}", format!("{percent} %")));
    println!();
    for (name, row) in POLICIES.iter().chain([&MIN]).zip(table) {
        print!("{name:<10}");
        row.iter().for_each(|rates| print!("{:>16}", format!("{:.2} / {:.2}", rates.requests, rates.bytes)));
        println!();
    }
}
