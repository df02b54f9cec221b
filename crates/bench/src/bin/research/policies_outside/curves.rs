//! Compares sampled curves of LRU with the counts of the outside program: each must be within the printed error.
//!
//! Owns: the comparison. To show that it can fail, each curve is also compared with the counts of `min`, and most points
//! must be outside of the error.

use std::path::Path;

use nectary_trace::curve::{CurveOptions, RatioEstimate, curve};
use nectary_trace::formats::{self, ReadOptions};
use nectary_trace::simulate::TraceWorkload;

use super::outside::MissCounts;

/// The number of objects in a sample; the traces have 1,200 to 20,000.
const SAMPLES: usize = 1000;
/// The number of samples that are drawn from each trace.
const SEEDS: u64 = 4;

/// The comparison over all traces.
#[derive(Default)]
pub struct CurveComparison {
    within: usize,
    outside: usize,
    planted: usize,
    error_sum: f64,
    distance_sum: f64,
}

impl CurveComparison {
    /// Compares the curves of the trace in the file `trace`, at `sizes`, with the outside counts of LRU and of `min`.
    pub fn compare(
        &mut self,
        workload: &TraceWorkload,
        trace: &Path,
        sizes: &[u64],
        lru: &[MissCounts],
        min: &[MissCounts],
    ) -> Result<(), String> {
        let references = workload.references() as f64;
        let bytes: f64 = (0..workload.blocks().len()).map(|index| f64::from(workload.bytes(index))).sum();
        for seed in 0..SEEDS {
            let mut reader = formats::open(trace, &ReadOptions::default()).map_err(|error| error.to_string())?;
            let options = CurveOptions { samples: SAMPLES, sizes: sizes.to_vec(), seed };
            let curve = curve(trace, &mut *reader, &options, &|_| {}).map_err(|error| error.to_string())?;
            for ((point, lru), min) in curve.points.iter().zip(lru).zip(min) {
                let what = format!("{} curve {seed} at {}", workload.name(), point.size);
                self.check(&what, point.misses, lru.count as f64 / references, min.count as f64 / references);
                if let Some(missed) = point.missed_bytes {
                    let what = format!("{what}, bytes");
                    self.check(&what, missed, lru.bytes as f64 / bytes, min.bytes as f64 / bytes);
                }
            }
        }
        Ok(())
    }

    fn check(&mut self, what: &str, RatioEstimate { ratio, error }: RatioEstimate, truth: f64, planted: f64) {
        // The outside ratio of a whole trace has a rounding error.
        let is_within = |other: f64| (ratio - other).abs() <= error + 1e-9;
        let verdict = if is_within(truth) { "within" } else { "OUTSIDE" };
        println!(
            "{what}: {:.2} ± {:.2} % here, {:.2} % outside, {verdict}",
            100.0 * ratio,
            100.0 * error,
            100.0 * truth
        );
        *if is_within(truth) { &mut self.within } else { &mut self.outside } += 1;
        self.planted += usize::from(!is_within(planted));
        self.error_sum += error;
        self.distance_sum += (ratio - truth).abs();
    }

    /// Prints the result. *Returns* whether at least `least` points were compared, all are within their errors, and the
    /// planted counts are not.
    pub fn report(&self, least: usize) -> bool {
        let CurveComparison { within, outside, planted, error_sum, distance_sum } = self;
        let points = within + outside;
        let mean = |sum: f64| 100.0 * sum / points.max(1) as f64;
        println!(
            "curves: {within} points within their printed error, {outside} outside, at least {least} wanted; mean error \
             {:.2} %, mean distance {:.2} %; {planted} planted points caught",
            mean(*error_sum),
            mean(*distance_sum)
        );
        *outside == 0 && points >= least && 2 * planted > points
    }
}
