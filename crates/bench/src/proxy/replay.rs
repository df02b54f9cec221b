//! The stage that replays a workload: hit rates at equal memory and disk, what is used and written for them, and what is
//! left of them after SIGKILL.
//!
//! Owns: the order of its steps for one proxy. An empty cache gets the requests of the workload in order. Then the probes,
//! the objects that were requested last, are requested twice: the second time, at planned times, gives the hit rate and
//! the latencies before. The proxy is killed and started again at once, and each probe is requested once more, in another order, at planned times:
//! no probe can be a hit because it was fetched after the start.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::load::{self, AnsweredRequest, LoadPace, LoadPlan};
use super::origin::OriginCounts;
use super::site::RunningProxy;
use super::steady::named;
use crate::Error;
use crate::group::GroupUsage;
use crate::random::SeededRandom;
use crate::workload::ProxyRequest;

/// The connections of the replay: requests of different connections may overtake each other.
const CONNECTIONS: usize = 8;
/// The longest time of a replay.
const REPLAY_MAX: Duration = Duration::from_secs(3600);
/// The time for what a proxy writes late, before it is killed.
const SETTLE: Duration = Duration::from_secs(2);
/// The connections of the load after a restart.
const RESTART_CONNECTIONS: usize = 64;
/// The length of the windows in which the hit rate after a restart is looked at, and the fewest answers in one.
const WINDOW: Duration = Duration::from_millis(250);
const WINDOW_ANSWERS_MIN: usize = 20;
/// The share of the hit rate before that counts as recovered.
pub(super) const RECOVERED_SHARE: f64 = 0.95;
/// The percentile of latencies that is looked at.
const P99: f64 = 0.99;

/// What one proxy did.
#[derive(Debug, Clone, serde::Serialize)]
pub(super) struct ReplayResult {
    /// The contender's name.
    pub name: String,
    pub requests_per_s: f64,
    pub hit_rate: f64,
    pub byte_hit_rate: f64,
    /// Memory of its processes, and of its group with the page cache, at the end of the replay. *Units*: bytes.
    pub resident_bytes: u64,
    pub group_bytes: u64,
    /// Bytes that its disk wrote, and bytes that the origin gave it to store.
    pub written_bytes: u64,
    pub stored_bytes: u64,
    /// What happened after SIGKILL.
    pub restart: RestartResult,
}

impl ReplayResult {
    /// The bytes that the disk wrote for each byte that the origin gave.
    pub fn written_per_byte_stored(&self) -> f64 {
        self.written_bytes as f64 / self.stored_bytes.max(1) as f64
    }
}

/// What happened after SIGKILL. *Units*: seconds since the signal; `None` if it did not happen.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
pub(super) struct RestartResult {
    /// The hit rate of the probes before, and the 99th percentile of their latencies. *Units*: microseconds.
    pub hit_rate_before: f64,
    pub p99_before_us: f64,
    /// The first answer, and the first hit.
    pub first_answer_s: Option<f64>,
    pub first_hit_s: Option<f64>,
    /// The ends of the first windows with 95 % of the hit rate before, with 95 % of the planned answers, and with a
    /// 99th percentile of at most that before over 0.95.
    pub recovered_s: Option<f64>,
    pub requests_recovered_s: Option<f64>,
    pub p99_recovered_s: Option<f64>,
    /// The hit rate of the second half of the time.
    pub hit_rate_after: f64,
    /// Requests without an answer.
    pub failed: u64,
    /// The end and the hit rate of each window with answers.
    pub windows: Vec<(f64, f64)>,
}

/// The settings of the restart.
#[derive(Debug, Clone, Copy)]
pub(super) struct RestartPlan {
    pub per_s: f64,
    pub seconds: u64,
}

/// Runs the stage on a proxy with an empty cache.
pub(super) fn run(
    proxy: &mut RunningProxy,
    requests: &[ProxyRequest],
    plan: &RestartPlan,
    counts: &Arc<OriginCounts>,
    step: &mut dyn FnMut(&str),
) -> Result<ReplayResult, Error> {
    let closed = LoadPlan {
        address: proxy.address,
        connections: CONNECTIONS,
        pace: LoadPace::Closed,
        duration: REPLAY_MAX,
        is_checked: true,
        may_fail: false,
    };
    step(&format!("{}: replaying {} requests", proxy.name, requests.len()));
    let (written, stored) = (proxy.written_bytes()?, counts.body_bytes());
    let mut asked = requests.iter().map(|request| (request.object, request.bytes));
    let outcome = named(proxy, load::run(&closed, counts, &mut asked, &mut |_| {}))?;
    std::thread::sleep(SETTLE);
    let GroupUsage { resident_bytes, used_bytes, .. } = proxy.usage();
    let (written_bytes, stored_bytes) = (proxy.written_bytes()? - written, counts.body_bytes() - stored);
    let mut probes = probes(requests, (plan.per_s * plan.seconds as f64) as usize);
    step(&format!("{}: probes before SIGKILL, pass 1", proxy.name));
    named(proxy, load::run(&closed, counts, &mut probes.iter().copied(), &mut |_| {}))?;
    step(&format!("{}: probes before SIGKILL, pass 2", proxy.name));
    let open = LoadPlan {
        connections: RESTART_CONNECTIONS,
        pace: LoadPace::Open(plan.per_s),
        duration: Duration::from_secs(plan.seconds),
        ..closed
    };
    let before = named(proxy, load::run(&open, counts, &mut probes.iter().copied(), &mut |_| {}))?;
    let before = ProbeRates {
        per_s: plan.per_s,
        hit_rate: before.hit_rate(),
        p99_us: before.latency_us.value_at_quantile(P99) as f64,
    };
    std::thread::sleep(SETTLE);
    shuffle(&mut probes);
    step(&format!("{}: SIGKILL", proxy.name));
    let killed = proxy.kill_and_start()?;
    let open = LoadPlan { may_fail: true, ..open };
    let mut answers = Vec::with_capacity(probes.len());
    let load = load::run(&open, counts, &mut probes.iter().copied(), &mut |answer| answers.push(*answer));
    named(proxy, load)?;
    Ok(ReplayResult {
        name: proxy.name.clone(),
        requests_per_s: outcome.per_s(),
        hit_rate: outcome.hit_rate(),
        byte_hit_rate: outcome.byte_hit_rate(),
        resident_bytes,
        group_bytes: used_bytes,
        written_bytes,
        stored_bytes,
        restart: restart_of(&answers, killed, &before),
    })
}

/// The objects that were requested last, each once, at most `count`.
fn probes(requests: &[ProxyRequest], count: usize) -> Vec<(u32, u32)> {
    let mut known = HashSet::new();
    let last = requests.iter().rev().filter(|request| known.insert(request.object));
    last.take(count).map(|request| (request.object, request.bytes)).collect()
}

/// Shuffles objects (Fisher and Yates).
fn shuffle(objects: &mut [(u32, u32)]) {
    let mut random = SeededRandom::new(objects.len() as u64);
    for last in (1..objects.len()).rev() {
        objects.swap(last, random.below(last as u64 + 1) as usize);
    }
}

/// What the probes did before SIGKILL, at their planned rate.
#[derive(Debug, Clone, Copy, Default)]
struct ProbeRates {
    per_s: f64,
    hit_rate: f64,
    p99_us: f64,
}

/// An answer after SIGKILL. *Units*: seconds since the signal, microseconds since the planned time.
#[derive(Debug, Clone, Copy)]
struct LateAnswer {
    at_s: f64,
    is_hit: bool,
    latency_us: f64,
}

/// What the answers after a restart say.
fn restart_of(answers: &[AnsweredRequest], killed: Instant, before: &ProbeRates) -> RestartResult {
    let late = |answer: &AnsweredRequest| {
        Some(LateAnswer {
            at_s: answer.ended.saturating_duration_since(killed).as_secs_f64(),
            is_hit: answer.is_hit?,
            latency_us: answer.ended.saturating_duration_since(answer.planned).as_secs_f64() * 1e6,
        })
    };
    let mut answered: Vec<LateAnswer> = answers.iter().filter_map(late).collect();
    answered.sort_by(|left, right| left.at_s.total_cmp(&right.at_s));
    let rate = |part: &[LateAnswer]| part.iter().filter(|one| one.is_hit).count() as f64 / part.len().max(1) as f64;
    let last_s = answered.last().map_or(0.0, |one| one.at_s);
    let windows = (last_s / WINDOW.as_secs_f64()) as usize + 1;
    let place = |at_s: f64| answered.partition_point(|one| one.at_s < at_s);
    let windows: Vec<(f64, &[LateAnswer])> = (0..windows)
        .map(|index| (index as f64 * WINDOW.as_secs_f64(), (index + 1) as f64 * WINDOW.as_secs_f64()))
        .map(|(from_s, to_s)| (to_s, &answered[place(from_s)..place(to_s)]))
        .filter(|window| !window.1.is_empty())
        .collect();
    let first = |is_recovered: &dyn Fn(&[LateAnswer]) -> bool| {
        let good = windows.iter().find(|window| window.1.len() >= WINDOW_ANSWERS_MIN && is_recovered(window.1));
        good.map(|window| window.0)
    };
    RestartResult {
        hit_rate_before: before.hit_rate,
        p99_before_us: before.p99_us,
        first_answer_s: answered.first().map(|one| one.at_s),
        first_hit_s: answered.iter().find(|one| one.is_hit).map(|one| one.at_s),
        recovered_s: first(&|inside| before.hit_rate > 0.0 && rate(inside) >= RECOVERED_SHARE * before.hit_rate),
        requests_recovered_s: first(&|inside| {
            inside.len() as f64 >= RECOVERED_SHARE * before.per_s * WINDOW.as_secs_f64()
        }),
        p99_recovered_s: first(&|inside| p99_us(inside) * RECOVERED_SHARE <= before.p99_us),
        hit_rate_after: rate(&answered[answered.len() / 2..]),
        failed: answers.iter().filter(|answer| answer.is_hit.is_none()).count() as u64,
        windows: windows.iter().map(|window| (window.0, rate(window.1))).collect(),
    }
}

fn p99_us(answers: &[LateAnswer]) -> f64 {
    let mut all: Vec<f64> = answers.iter().map(|one| one.latency_us).collect();
    all.sort_by(f64::total_cmp);
    let place = (all.len() as f64 * P99).ceil() as usize;
    all.get(place.saturating_sub(1)).copied().unwrap_or(f64::INFINITY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(killed: Instant, of: &[(u64, Option<bool>)]) -> Vec<AnsweredRequest> {
        let answer = |&(ms, is_hit): &(u64, Option<bool>)| {
            let ended = killed + Duration::from_millis(ms);
            AnsweredRequest { planned: killed, ended, is_hit, bytes: 1 }
        };
        of.iter().map(answer).collect()
    }

    fn before(hit_rate: f64) -> ProbeRates {
        ProbeRates { per_s: 200.0, hit_rate, p99_us: 5000.0 }
    }

    /// Few and slow answers, then many slow ones, then many fast ones.
    #[test]
    fn rate_and_latency_recover_apart() {
        let killed = Instant::now();
        let answer = |planned_ms: u64, took_ms: u64| {
            let planned = killed + Duration::from_millis(planned_ms);
            AnsweredRequest { planned, ended: planned + Duration::from_millis(took_ms), is_hit: Some(true), bytes: 1 }
        };
        let window = |index: u64, count: u64, took_ms: u64| {
            (0..count).map(move |one| answer(index * 250 + one * 4, took_ms)).collect::<Vec<_>>()
        };
        let all = [window(0, 30, 40), window(1, 48, 40), window(2, 48, 4)].concat();
        let found = restart_of(&all, killed, &before(1.0));
        assert_eq!((found.requests_recovered_s, found.p99_recovered_s), (Some(0.5), Some(0.75)));
        let slow = restart_of(&all, killed, &ProbeRates { p99_us: 1000.0, per_s: 1000.0, ..before(1.0) });
        assert_eq!((slow.requests_recovered_s, slow.p99_recovered_s), (None, None));
    }

    /// Failures, misses and then hits: each time is that of the first, and of the end of the first good window.
    #[test]
    fn restart_times_count_from_signal() {
        let killed = Instant::now();
        let mut all: Vec<(u64, Option<bool>)> = (0..10).map(|ms| (ms, None)).collect();
        all.extend((0..50).map(|index| (100 + index, Some(index == 40))));
        all.extend((0..50).map(|index| (600 + index, Some(true))));
        let found = restart_of(&answers(killed, &all), killed, &before(1.0));
        assert_eq!((found.first_answer_s, found.first_hit_s, found.recovered_s), (Some(0.1), Some(0.14), Some(0.75)));
        assert_eq!((found.failed, found.hit_rate_after), (10, 1.0));
        assert_eq!(found.windows, [(0.25, 0.02), (0.75, 1.0)]);
        let lost: Vec<(u64, Option<bool>)> = (0..100).map(|ms| (ms, Some(false))).collect();
        let found = restart_of(&answers(killed, &lost), killed, &before(0.9));
        assert_eq!((found.first_hit_s, found.recovered_s, found.hit_rate_after), (None, None, 0.0));
        assert_eq!(restart_of(&[], killed, &ProbeRates::default()), RestartResult::default());
    }

    #[test]
    fn probes_are_latest_objects_once() {
        let request = |object| ProxyRequest { client: 0, object, bytes: object * 10, site: 0, page: None };
        let requests: Vec<ProxyRequest> = [1, 2, 3, 2, 1].map(request).to_vec();
        assert_eq!(probes(&requests, 2), [(1, 10), (2, 20)]);
        let mut all = probes(&requests, 9);
        shuffle(&mut all);
        all.sort_unstable();
        assert_eq!(all, [(1, 10), (2, 20), (3, 30)]);
    }
}
