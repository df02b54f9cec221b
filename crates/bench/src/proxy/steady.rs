//! The stages at a steady state: a set of objects that fits in memory, and one of four times the memory.
//!
//! Owns: warming, the rounds, and the rate of the open loads. First each proxy is asked as fast as it answers, which gives
//! its capacity; then all get 70 % of the best one's capacity at planned times. Rounds alternate forwards and backwards.
//! All proxies run and are warm the whole time; only the measured one is asked.

use std::sync::Arc;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::load::{self, LoadOutcome, LoadPace, LoadPlan};
use super::objects::ObjectSet;
use super::origin::OriginCounts;
use super::site::RunningProxy;
use crate::statistics::{median, order};
use crate::{Error, ExperimentErrorKind};

/// The load of all proxies, as a share of the best one's capacity.
pub(super) const RATE_SHARE: f64 = 0.7;
/// The most passes over all objects until none is asked of the origin, and the share of misses that is none.
const PASSES_MAX: usize = 6;
const MISSES_NONE: f64 = 0.001;
/// The longest time of a pass, and the connections of it.
const PASS_MAX: Duration = Duration::from_secs(600);
const PASS_CONNECTIONS: usize = 16;

/// What one proxy did in a stage.
#[derive(Debug, Clone)]
pub(super) struct SteadyResult {
    /// The contender's name.
    pub name: String,
    /// Requests a second as fast as it answers, by round.
    pub capacity: Vec<f64>,
    /// Requests a second at the planned rate, by round.
    pub answered: Vec<f64>,
    /// Latencies of all rounds at the planned rate. *Units*: microseconds.
    pub latency_us: Histogram<u64>,
    /// The 50th, 99th and 99.9th percentiles by round.
    pub percentiles_us: Vec<[f64; 3]>,
    /// Requests without an answer at the planned rate.
    pub failed: u64,
    /// The share of requests that it answered itself.
    pub hit_rate: f64,
}

/// How the stages are run.
#[derive(Debug, Clone, Copy)]
pub(super) struct SteadyPlan {
    pub connections: usize,
    pub rounds: usize,
    pub seconds: u64,
}

/// The percentiles that are reported.
pub(super) const QUANTILES: [f64; 3] = [0.5, 0.99, 0.999];

/// Requests every object until the proxy answers all itself, as far as it can; returns the share of the last pass that it
/// did answer itself.
pub(super) fn warm(proxy: &RunningProxy, set: &ObjectSet, counts: &Arc<OriginCounts>) -> Result<f64, Error> {
    let plan = LoadPlan {
        address: proxy.address,
        connections: PASS_CONNECTIONS,
        pace: LoadPace::Closed,
        duration: PASS_MAX,
        is_checked: true,
        may_fail: false,
    };
    let mut rate = 0.0;
    for _ in 0..PASSES_MAX {
        let outcome = named(proxy, load::run(&plan, counts, &mut set.objects.iter().copied(), &mut |_| {}))?;
        let before = rate;
        rate = outcome.hit_rate();
        // A proxy that cannot keep all objects does not get better.
        if rate >= 1.0 - MISSES_NONE || rate <= before && before > 0.0 {
            break;
        }
    }
    Ok(rate)
}

/// Runs the rounds of a stage; returns the results and the planned rate.
pub(super) fn run(
    plan: &SteadyPlan,
    proxies: &[RunningProxy],
    set: &ObjectSet,
    counts: &Arc<OriginCounts>,
    step: &mut dyn FnMut(&str),
) -> Result<(Vec<SteadyResult>, f64), Error> {
    let mut results: Vec<SteadyResult> = proxies
        .iter()
        .map(|proxy| SteadyResult {
            name: proxy.name.clone(),
            capacity: Vec::new(),
            answered: Vec::new(),
            latency_us: load::histogram(),
            percentiles_us: Vec::new(),
            failed: 0,
            hit_rate: 0.0,
        })
        .collect();
    let asked = |proxy: &RunningProxy, pace, from| -> Result<LoadOutcome, Error> {
        let duration = Duration::from_secs(plan.seconds);
        let (address, connections) = (proxy.address, plan.connections);
        let load = LoadPlan { address, connections, pace, duration, is_checked: false, may_fail: false };
        named(proxy, load::run(&load, counts, &mut set.requests(from), &mut |_| {}))
    };
    for round in 0..plan.rounds {
        for index in order(proxies.len(), round) {
            step(&format!("{}, as fast as it answers, round {}", proxies[index].name, round + 1));
            let outcome = asked(&proxies[index], LoadPace::Closed, round * 7919)?;
            results[index].capacity.push(outcome.per_s());
        }
    }
    let best = results.iter().map(|result| median(&result.capacity)).fold(0.0, f64::max);
    let rate = best * RATE_SHARE;
    if rate <= 0.0 {
        return Err(Error::new(ExperimentErrorKind::Failed, "no proxy answered"));
    }
    for round in 0..plan.rounds {
        for index in order(proxies.len(), round) {
            step(&format!("{}, {rate:.0} requests a second, round {}", proxies[index].name, round + 1));
            let outcome = asked(&proxies[index], LoadPace::Open(rate), round * 104_729)?;
            let result = &mut results[index];
            result.answered.push(outcome.per_s());
            result.failed += outcome.failed;
            result.percentiles_us.push(QUANTILES.map(|share| outcome.latency_us.value_at_quantile(share) as f64));
            result.latency_us.add(&outcome.latency_us).map_err(|error| Error::failed("latencies", error))?;
            result.hit_rate += outcome.hit_rate() / plan.rounds as f64;
        }
    }
    Ok((results, rate))
}

/// An outcome with the proxy's name in its error.
pub(super) fn named<T>(proxy: &RunningProxy, outcome: Result<T, Error>) -> Result<T, Error> {
    outcome.map_err(|error| Error::new(error.kind, format!("{}: {}", proxy.name, error.message)))
}
