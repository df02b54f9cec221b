//! Compares curves with the simulator: exact ones at every size, sampled ones within their printed error.

use std::path::Path;

use nectary_cache::StreamId;
use nectary_trace::curve::{CurveOptions, MissCurve, curve};
use nectary_trace::formats::ReferenceReader;
use nectary_trace::simulate::sizes::CapacityUnit;
use nectary_trace::simulate::{RunCounts, SimulationRun, TraceWorkload, run_all};
use nectary_trace::{Result, TraceReference};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// References in memory as a trace.
struct InMemory {
    references: Vec<(u64, u32)>,
    at: usize,
    has_objects: bool,
}

impl ReferenceReader for InMemory {
    fn read(&mut self, to: &mut Vec<TraceReference>) -> Result<bool> {
        let Some(&(block, bytes)) = self.references.get(self.at) else { return Ok(false) };
        self.at += 1;
        to.push(TraceReference { block, bytes, ..TraceReference::default() });
        Ok(true)
    }

    fn has_objects(&self) -> bool {
        self.has_objects
    }
}

fn of(references: &[(u64, u32)], has_objects: bool, options: &CurveOptions) -> MissCurve {
    let mut reader = InMemory { references: references.to_vec(), at: 0, has_objects };
    curve(Path::new("a"), &mut reader, options, &|_| {}).expect("references")
}

/// The counts of LRU at each size.
fn exact(references: &[(u64, u32)], has_objects: bool, sizes: &[u64]) -> Vec<RunCounts> {
    let workload = match has_objects {
        true => TraceWorkload::of_objects("a", references.iter().copied()),
        false => TraceWorkload::new("a", references.iter().map(|reference| (reference.0, StreamId(0)))),
    };
    let unit = if has_objects { CapacityUnit::Bytes } else { CapacityUnit::Blocks };
    let runs: Vec<SimulationRun<'_>> =
        sizes.iter().map(|&size| SimulationRun { unit, ..SimulationRun::new(&workload, "lru", size) }).collect();
    run_all(&runs, None, &|_| {}).expect("lru").into_iter().map(|row| row.counts).collect()
}

fn skewed(random: &mut SplitMix64, bound: u64, power: i32) -> u64 {
    let uniform = (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
    (bound as f64 * uniform.powi(power)) as u64
}

/// A function that returns the object that is referenced at a given time.
type Next = fn(&mut SplitMix64, u64) -> u64;

/// Traces of `count` references, each with some 30,000 objects, most of which have sizes of about 100 to 30,000 bytes.
fn traces(seed: u64, count: u64) -> Vec<(&'static str, Vec<(u64, u32)>)> {
    let kinds: [(&str, Next); 4] = [
        ("skewed", |random, _| skewed(random, 40_000, 3)),
        ("drifting", |random, time| time / 10 + skewed(random, 8_000, 3)),
        ("looped", |_, time| time * 7919 % 30_011),
        ("mixed", |random, time| match time % 3 {
            0 => 1_000_000 + time / 3 % 12_007,
            _ => skewed(random, 30_000, 5),
        }),
    ];
    let made = kinds.iter().zip(0..).map(|((name, next), number)| {
        let mut random = SplitMix64::seed_from_u64(seed * 100 + number);
        let reference = |time| {
            let object = next(&mut random, time);
            let mut own = SplitMix64::seed_from_u64(object);
            (object, 100 + skewed(&mut own, 30_000, 4) as u32)
        };
        (*name, (0..count).map(reference).collect())
    });
    made.collect()
}

#[test]
fn full_curve_matches_simulator() {
    for (name, references) in traces(1, 60_000) {
        for has_objects in [false, true] {
            let scale = if has_objects { 30_100 } else { 1 };
            let sizes: Vec<u64> = [1, 2, 10, 77, 500, 3000, 20_000, 50_000].map(|size| size * scale).to_vec();
            let options = CurveOptions { sizes: sizes.clone(), ..CurveOptions::default() };
            let curve = of(&references, has_objects, &options);
            assert_eq!((curve.rate, curve.is_in_bytes), (1.0, has_objects));
            for (point, counts) in curve.points.iter().zip(exact(&references, has_objects, &sizes)) {
                assert_eq!(point.misses.error, 0.0);
                assert_eq!((point.misses.ratio * 60_000.0).round() as u64, counts.misses, "{name} at {}", point.size);
                if let Some(bytes) = point.missed_bytes {
                    let missed = (bytes.ratio * counts.bytes as f64).round() as u64;
                    assert_eq!(missed, counts.missed_bytes, "{name} at {}", point.size);
                }
            }
        }
    }
}

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Traces of 60,000 references to objects whose sizes have no usual value: a few objects have most of the bytes, and most
/// samples have none of these.
fn heavy_traces(seed: u64) -> Vec<Vec<(u64, u32)>> {
    let spreads = [1.0_f64, 1.6, 2.2];
    let made = spreads.iter().zip(0..).map(|(spread, number)| {
        let mut random = SplitMix64::seed_from_u64(seed * 100 + 50 + number);
        let reference = |_| {
            let object = skewed(&mut random, 20_000, 2);
            let mut own = SplitMix64::seed_from_u64(object + seed);
            let normal: f64 = (0..12).map(|_| (own.next_u64() >> 11) as f64 / (1_u64 << 53) as f64).sum::<f64>() - 6.0;
            (object, 1 + (8.0 + spread * normal).exp() as u32)
        };
        (0..60_000).map(reference).collect()
    });
    made.collect()
}

#[test]
fn few_huge_objects_stay_within_error() {
    // Of the first seeds, 10 and 13 have samples without the largest objects.
    let first = 10 + from_environment("CURVE_SEED", 0);
    let (mut points, mut wrong) = (0, Vec::new());
    for seed in first..first + from_environment("CURVE_SEEDS", 4) {
        for references in heavy_traces(seed) {
            let largest = references.iter().map(|reference| u64::from(reference.1)).max().unwrap_or(0);
            let sizes: Vec<u64> = (0..6).map(|step| largest << step >> 1).map(|size| size + largest).collect();
            let truth = exact(&references, true, &sizes);
            for samples in [1000, 4000] {
                let options = CurveOptions { samples, sizes: sizes.clone(), seed };
                let curve = of(&references, true, &options);
                for (point, counts) in curve.points.iter().zip(&truth) {
                    let bytes = point.missed_bytes.expect("sizes");
                    let (ratio, byte_ratio) = (counts.miss_ratio(), counts.byte_miss_ratio().expect("sizes"));
                    for (estimate, truth) in [(point.misses, ratio), (bytes, byte_ratio)] {
                        points += 1;
                        if (estimate.ratio - truth).abs() > estimate.error + 1e-9 {
                            wrong.push(format!("seed {seed} {samples} at {}: {estimate:?}, truth {truth}", point.size));
                        }
                    }
                }
            }
        }
    }
    println!("{points} points of traces with a few huge objects");
    assert!(wrong.is_empty(), "{} of {points} points\n{}", wrong.len(), wrong.join("\n"));
}

/// `CURVE_SEED` sets the seed of the traces and of the first sample, `CURVE_SEEDS` the number of samples that are drawn
/// from each trace.
#[test]
fn sampled_curve_is_within_error() {
    let first = from_environment("CURVE_SEED", 0);
    let seeds = first..first + from_environment("CURVE_SEEDS", 4);
    let (mut points, mut wrong, mut error_sum, mut distance_sum) = (0, Vec::new(), 0.0, 0.0);
    let mut check = |estimate: nectary_trace::curve::RatioEstimate, truth: f64, what: String| {
        points += 1;
        error_sum += estimate.error;
        distance_sum += (estimate.ratio - truth).abs();
        if (estimate.ratio - truth).abs() > estimate.error + 1e-9 {
            wrong.push(format!("{what}: {} ± {}, truth {truth}", estimate.ratio, estimate.error));
        }
    };
    for (name, references) in traces(2 + first, 300_000) {
        for has_objects in [false, true] {
            let scale = if has_objects { 6_100 } else { 1 };
            let sizes: Vec<u64> = (0..24).map(|step| 1.5_f64.powi(step + 4) as u64 * scale).collect();
            let truth = exact(&references, has_objects, &sizes);
            for seed in seeds.clone() {
                for samples in [1000, 4000] {
                    let options = CurveOptions { samples, sizes: sizes.clone(), seed };
                    let curve = of(&references, has_objects, &options);
                    assert!(curve.rate < 0.3 && curve.samples <= samples as u64);
                    for (point, counts) in curve.points.iter().zip(&truth) {
                        let what = format!("{name} {has_objects} seed {seed} samples {samples} at {}", point.size);
                        check(point.misses, counts.miss_ratio(), what.clone());
                        if let (Some(bytes), Some(truth)) = (point.missed_bytes, counts.byte_miss_ratio()) {
                            check(bytes, truth, format!("{what}, bytes"));
                        }
                    }
                }
            }
        }
    }
    let mean = |sum: f64| 100.0 * sum / f64::from(points);
    println!("{points} points, mean error {:.2} %, mean distance {:.2} %", mean(error_sum), mean(distance_sum));
    assert!(wrong.is_empty(), "{} of {points} points\n{}", wrong.len(), wrong.join("\n"));
    // Errors that are far too large would make every curve pass.
    assert!(error_sum < 20.0 * distance_sum, "the printed errors say nothing");
}
