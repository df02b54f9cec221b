//! How long requests take, by what the cache did with them.
//!
//! Owns: histograms with fixed bounds. Every worker has its own, which only it writes, as with the counters (`stats`).

use crate::access_log::Outcome;
use crate::stats::Counter;

/// The upper bounds of the buckets; one more bucket is for what takes longer. *Units*: microseconds.
pub const LATENCY_BOUNDS_US: [u64; 15] =
    [50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 5_000_000];

const BUCKETS: usize = LATENCY_BOUNDS_US.len() + 1;

/// The outcomes that are told apart, with their names. A tunnel is not among them: it takes as long as its peers like.
const OUTCOMES: [(Outcome, &str); 11] = [
    (Outcome::Hit, "hit"),
    (Outcome::Revalidated, "revalidated"),
    (Outcome::Stale, "stale"),
    (Outcome::Miss, "miss"),
    (Outcome::Collapsed, "collapsed"),
    (Outcome::Pass, "pass"),
    (Outcome::TooLarge, "pass"),
    (Outcome::Bypass, "pass"),
    (Outcome::Purged, "purged"),
    (Outcome::Failed, "failed"),
    (Outcome::Own, "own"),
];

/// The histograms of one worker.
#[derive(Debug, Default)]
pub(crate) struct Latencies([OneLatency; OUTCOMES.len()]);

#[derive(Debug, Default)]
struct OneLatency {
    buckets: [Counter; BUCKETS],
    sum_us: Counter,
}

impl Latencies {
    /// Counts a request. Only the owning worker may call this.
    pub fn note(&self, outcome: Outcome, duration: std::time::Duration) {
        let Some(index) = OUTCOMES.iter().position(|(known, _)| *known == outcome) else { return };
        let us = duration.as_micros() as u64;
        let latency = &self.0[index];
        latency.buckets[LATENCY_BOUNDS_US.partition_point(|bound| *bound < us)].add(1);
        latency.sum_us.add(us);
    }
}

/// How long the requests with one outcome took, from the end of their head to the last byte of their response.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Latency {
    /// The outcome, in the words of the metrics.
    pub result: &'static str,
    /// The number of requests in each bucket, which ends at the bound of [`LATENCY_BOUNDS_US`] with the same index; the
    /// last has no bound.
    pub buckets: Vec<u64>,
    /// The time of all of them. *Units*: microseconds.
    pub sum_us: u64,
}

/// Adds up the histograms of all workers.
pub(crate) fn sum<'a>(workers: impl Iterator<Item = &'a Latencies> + Clone) -> Vec<Latency> {
    let mut all: Vec<Latency> = Vec::new();
    for (index, (_, result)) in OUTCOMES.iter().enumerate() {
        if all.last().is_none_or(|last| last.result != *result) {
            all.push(Latency { result, buckets: vec![0; BUCKETS], sum_us: 0 });
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
        let workers = [Latencies::default(), Latencies::default()];
        for (outcome, us) in [(Outcome::Hit, 0), (Outcome::Hit, 50), (Outcome::Hit, 51), (Outcome::Bypass, 5_000_000)] {
            workers[0].note(outcome, Duration::from_micros(us));
        }
        workers[1].note(Outcome::Pass, Duration::from_micros(5_000_001));
        workers[1].note(Outcome::Tunnel, Duration::from_secs(5));
        let all = sum(workers.iter());
        let of = |result: &str| all.iter().find(|latency| latency.result == result).expect("one").clone();
        assert_eq!((&of("hit").buckets[..3], of("hit").sum_us), (&[2, 1, 0][..], 101));
        assert_eq!((&of("pass").buckets[BUCKETS - 2..], of("pass").sum_us), (&[1, 1][..], 10_000_001));
        assert_eq!(all.iter().flat_map(|latency| &latency.buckets).sum::<u64>(), 5);
        assert_eq!(all.len(), 9);
    }
}
