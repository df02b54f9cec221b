//! How long requests take, by what the cache did with them.
//!
//! Owns: histograms with fixed bounds. Every worker has its own, which only it writes, as with the counters (`stats`).

use crate::access_log::CacheOutcome;
use crate::stats::Counter;

/// The upper bounds of the buckets; one more bucket is for what takes longer. *Units*: microseconds.
pub const LATENCY_BOUNDS_US: [u64; 15] =
    [50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 5_000_000];

const BUCKETS: usize = LATENCY_BOUNDS_US.len() + 1;

/// The outcomes that are told apart, with their names. A tunnel is not among them: it takes as long as its peers like.
const OUTCOMES: [(CacheOutcome, &str); 11] = [
    (CacheOutcome::Hit, "hit"),
    (CacheOutcome::Revalidated, "revalidated"),
    (CacheOutcome::Stale, "stale"),
    (CacheOutcome::Miss, "miss"),
    (CacheOutcome::Collapsed, "collapsed"),
    (CacheOutcome::Pass, "pass"),
    (CacheOutcome::TooLarge, "pass"),
    (CacheOutcome::Bypass, "pass"),
    (CacheOutcome::Purged, "purged"),
    (CacheOutcome::Failed, "failed"),
    (CacheOutcome::Own, "own"),
];

/// The histograms of one worker.
#[derive(Debug, Default)]
pub(crate) struct WorkerLatencies([OneLatency; OUTCOMES.len()]);

#[derive(Debug, Default)]
struct OneLatency {
    buckets: [Counter; BUCKETS],
    sum_us: Counter,
}

impl WorkerLatencies {
    /// Counts a request. Only the owning worker may call this.
    pub fn note(&self, outcome: CacheOutcome, duration: std::time::Duration) {
        let Some(index) = OUTCOMES.iter().position(|(known, _)| *known == outcome) else { return };
        let us = duration.as_micros() as u64;
        let latency = &self.0[index];
        latency.buckets[LATENCY_BOUNDS_US.partition_point(|bound| *bound < us)].add(1);
        latency.sum_us.add(us);
    }
}

/// How long the requests with one outcome took, from the end of their head to the last byte of their response.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct OutcomeLatency {
    /// The outcome, in the words of the metrics.
    pub result: &'static str,
    /// The number of requests in each bucket, which ends at the bound of [`LATENCY_BOUNDS_US`] with the same index; the
    /// last has no bound.
    pub buckets: Vec<u64>,
    /// The time of all of them. *Units*: microseconds.
    pub sum_us: u64,
}

/// Adds up the histograms of all workers.
pub(crate) fn sum<'a>(workers: impl Iterator<Item = &'a WorkerLatencies> + Clone) -> Vec<OutcomeLatency> {
    let mut all: Vec<OutcomeLatency> = Vec::new();
    for (index, (_, result)) in OUTCOMES.iter().enumerate() {
        if all.last().is_none_or(|last| last.result != *result) {
            all.push(OutcomeLatency { result, buckets: vec![0; BUCKETS], sum_us: 0 });
        }
        let Some(into) = all.last_mut() else { continue };
        for worker in workers.clone() {
            let from = &worker.0[index];
            into.buckets.iter_mut().zip(&from.buckets).for_each(|(sum, bucket)| *sum += bucket.get());
            into.sum_us += from.sum_us.get();
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn request_is_in_its_bucket() {
        let workers = [WorkerLatencies::default(), WorkerLatencies::default()];
        for (outcome, us) in [
            (CacheOutcome::Hit, 0),
            (CacheOutcome::Hit, 50),
            (CacheOutcome::Hit, 51),
            (CacheOutcome::Bypass, 5_000_000),
        ] {
            workers[0].note(outcome, Duration::from_micros(us));
        }
        workers[1].note(CacheOutcome::Pass, Duration::from_micros(5_000_001));
        workers[1].note(CacheOutcome::Tunnel, Duration::from_secs(5));
        let all = sum(workers.iter());
        let of = |result: &str| all.iter().find(|latency| latency.result == result).expect("one").clone();
        assert_eq!((&of("hit").buckets[..3], of("hit").sum_us), (&[2, 1, 0][..], 101));
        assert_eq!((&of("pass").buckets[BUCKETS - 2..], of("pass").sum_us), (&[1, 1][..], 10_000_001));
        assert_eq!(all.iter().flat_map(|latency| &latency.buckets).sum::<u64>(), 5);
        assert_eq!(all.len(), 9);
    }
}
