//! Loads a proxy for minutes with a working set that is larger than memory and store: memory must stay in its budget,
//! and the hit rate must be that of a ring of segments.
//!
//! Owns the run (origin, proxy, `wrk`), and the comparison: the requests of the access log are repeated in
//! [`SimulatedRing`](crate::ring::SimulatedRing), which shares no code with the store, and the two hit rates are compared. Each run also
//! checks the comparison with two planted bugs on the same data: a simulation with half the segments, and a memory
//! limit that the process must have exceeded.
//!
//! The simulation is only a ring, so the proxy must not rewrite objects (`--rewrite 0`). If the proxy rewrites objects,
//! it may hit more often than the simulation, and then the planted bug of half the segments proves nothing.

use crate::access_log::{self, AccessLogEntry};
use crate::content;
use crate::guard;
use crate::load::wrk::{self, ERROR_KINDS, WrkResult, WrkSettings};
use crate::nectary::{NectaryProxy, ProxyCommand, find};
use crate::origin::DeterministicOrigin;
use crate::ring::{RingShape, SimulatedRing};
use crate::rng::{SeededRng, Zipf};
use crate::scratch::ScratchFolder;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::time::Duration;

/// The memory that the process may use beyond `--memory`.
pub const MEMORY_BEYOND_BYTES_MAX: u64 = 64 << 20;
/// The largest difference between the hit rate and that of the simulation.
pub const HIT_RATE_DIFFERENCE_MAX: f64 = 0.01;
/// The exponent of the Zipf law of the working set.
const EXPONENT: f64 = 0.8;
/// The number of requests of the list before it repeats.
const REQUESTS: usize = 300_000;
/// The size of an entry in the store in addition to body and key: its header and the response's fields.
const OVERHEAD_BYTES: u64 = 192 + 256;

/// The names of the memory figures in the status.
const ACCOUNTS: [&str; 5] =
    ["memory_capacity_bytes", "memory_used_bytes", "memory_unwritten_bytes", "fill_bytes", "index_bytes"];

/// What to run.
#[derive(Clone, Debug)]
pub struct PressurePlan {
    /// The seed of the order in which objects are requested.
    pub seed: u64,
    /// The duration of the load.
    pub duration: Duration,
    /// The proxy's `--memory`, in MiB.
    pub memory_mib: u64,
    /// The proxy's `--size`, in MiB.
    pub store_mib: u64,
    /// The total size of all objects, in MiB.
    pub working_set_mib: u64,
    /// The number of connections.
    pub connections: usize,
    /// Further arguments of the proxy; without `--rewrite` among them, no object is rewritten.
    pub arguments: Vec<String>,
}

impl PressurePlan {
    /// A plan with 128 MiB of memory, 512 MiB of store and 2 GiB of objects.
    pub fn new(seed: u64, duration: Duration) -> Self {
        let arguments = vec!["--workers".to_owned(), "1".to_owned()];
        Self { seed, duration, memory_mib: 128, store_mib: 512, working_set_mib: 2048, connections: 64, arguments }
    }
}

/// The results of a run.
#[derive(Clone, Debug)]
pub struct PressureOutcome {
    /// What wrk measured.
    pub measured: WrkResult,
    /// The number of objects in the working set.
    pub objects: usize,
    /// The peak resident memory of the process.
    pub resident_bytes_max: u64,
    /// The proxy's `--memory`, in bytes.
    pub memory_bytes: u64,
    /// The number of lines in the access log with each cache result.
    pub results: Vec<(String, u64)>,
    /// The number of requests in the access log that went to the store.
    pub references: usize,
    /// The share of hits in the access log.
    pub hit_rate: f64,
    /// Whether the proxy may have kept more objects than a plain ring, by rewriting.
    pub keeps: bool,
    /// The share of hits in the simulation.
    pub simulated: f64,
    /// The share of hits in the simulation with half the segments: the planted bug.
    pub simulated_half: f64,
    /// Shape of the store, from its status.
    pub shape: RingShape,
    /// The number of segments that were overwritten.
    pub segments_reclaimed: u64,
    /// Answers that were not 200, and lines on the process's standard error that look like errors.
    pub errors: Vec<String>,
    /// The counters of the store at the end.
    pub counts: Value,
    /// Memory at the end, in bytes: by purpose, from the store's report, and in total, from the kernel.
    pub accounted: Vec<(&'static str, u64)>,
}

impl PressureOutcome {
    /// The errors, in words.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.errors.clone();
        if self.measured.errors > 0 {
            let kinds = ERROR_KINDS.iter().zip(self.measured.errors_by_kind).filter(|(_, errors)| *errors > 0);
            problems.push(format!("wrk saw errors: {:?}", kinds.collect::<Vec<_>>()));
        }
        let limit = self.memory_bytes + MEMORY_BEYOND_BYTES_MAX;
        if self.resident_bytes_max > limit {
            problems.push(format!("VmHWM {} MiB, at most {} MiB allowed", self.resident_bytes_max >> 20, limit >> 20));
        }
        if !self.fits(self.simulated) {
            let (rate, refused) = (self.hit_rate, self.refused_rate());
            problems.push(format!("hit rate {rate:.4}, simulated {:.4}, refused {refused:.4}", self.simulated));
        }
        problems
    }

    /// The share of references whose put the store refused.
    pub fn refused_rate(&self) -> f64 {
        let refused = self.counts.get("puts_refused").and_then(Value::as_u64).unwrap_or(0);
        refused as f64 / self.references.max(1) as f64
    }

    /// Whether the hit rate is close enough to that of a simulation.
    fn fits(&self, simulated: f64) -> bool {
        // If the disk is too slow, puts are refused: each refused object costs at most one more miss.
        let least = -HIT_RATE_DIFFERENCE_MAX - self.refused_rate();
        let most = if self.keeps { 1.0 } else { HIT_RATE_DIFFERENCE_MAX };
        (least..=most).contains(&(self.hit_rate - simulated))
    }

    /// Planted bugs that were not caught; empty if both were.
    pub fn uncaught(&self) -> Vec<String> {
        let mut uncaught = Vec::new();
        if !self.keeps && self.fits(self.simulated_half) {
            uncaught.push(format!("half a store simulates {:.4}, which passes", self.simulated_half));
        }
        if self.resident_bytes_max <= 4 << 20 {
            uncaught.push(format!("VmHWM of {} bytes is no measurement", self.resident_bytes_max));
        }
        uncaught
    }
}

/// Runs a plan. Call it from a thread that lives as long as the run.
pub fn run(plan: &PressurePlan) -> Result<PressureOutcome> {
    let scratch = ScratchFolder::new("pressure")?;
    let origin = DeterministicOrigin::start()?;
    let mut command = ProxyCommand::new(scratch.path(), Some(origin.url()))?;
    command.size = format!("{}M", plan.store_mib);
    command.memory = format!("{}M", plan.memory_mib);
    command.access_log = true;
    command.arguments.clone_from(&plan.arguments);
    let keeps = plan.arguments.iter().any(|argument| argument == "--rewrite");
    if !keeps {
        command.arguments.extend(["--rewrite", "0"].map(str::to_owned));
    }
    let targets = targets(plan.working_set_mib << 20);
    let zipf = Zipf::new(targets.len(), EXPONENT);
    let mut rng = SeededRng::new(plan.seed);
    let file = scratch.join("targets");
    wrk::write_targets(&file, (0..REQUESTS).map(|_| targets[zipf.sample(&mut rng)].clone()))?;
    let mut nectary = command.start()?;
    let load = WrkSettings {
        address: nectary.listen,
        targets: file,
        threads: 1,
        connections: plan.connections,
        duration: plan.duration,
        cpu: None,
    };
    let measured = wrk::run(&load, scratch.path()).with_context(|| nectary.process.log_tail())?;
    let status = nectary.control()?.status()?;
    let resident_bytes_max = nectary.process.resident_bytes_max()?;
    let resident = |field| Ok((field, nectary.process.status_bytes(field)?));
    let resident = ["RssAnon", "RssFile", "RssShmem"].into_iter().map(resident).collect::<Result<Vec<_>>>()?;
    stop(&mut nectary)?;
    let lines = access_log::read(&command.access_log_path())?;
    let results = results(&lines);
    let errors = errors(&lines, &nectary.process.log_text());
    // Requests that bypassed the store are not accesses of the store.
    let is_reference =
        |line: &AccessLogEntry| matches!(line.result.as_str(), "HIT" | "REVALIDATED" | "MISS" | "COLLAPSED");
    let lines: Vec<AccessLogEntry> = lines.into_iter().filter(is_reference).collect();
    let shape = shape(&status)?;
    let half = RingShape { segment_count: shape.segment_count / 2, ..shape };
    // One fetch serves all requests that wait for it. In the simulation the waiting requests are hits, because its
    // fetches take no time.
    let hits = lines.iter().filter(|line| line.is_hit() || line.result == "COLLAPSED").count();
    let counts = find(&status, "counts").cloned().unwrap_or_default();
    Ok(PressureOutcome {
        measured,
        objects: targets.len(),
        resident_bytes_max,
        memory_bytes: plan.memory_mib << 20,
        results,
        references: lines.len(),
        hit_rate: hits as f64 / lines.len().max(1) as f64,
        keeps,
        simulated: simulate(&lines, shape),
        simulated_half: simulate(&lines, half),
        shape,
        segments_reclaimed: find(&counts, "segments_reclaimed").and_then(Value::as_u64).unwrap_or(0),
        errors,
        counts,
        accounted: ACCOUNTS
            .iter()
            .map(|name| (*name, find(&status, name).and_then(Value::as_u64).unwrap_or(0)))
            .chain(resident)
            .collect(),
    })
}

/// The paths of objects with sizes from the distribution, as many objects as fit into `bytes` in total.
fn targets(bytes: u64) -> Vec<String> {
    let mut sum = 0;
    let fits = |id: &u64| {
        sum += content::law_bytes(*id);
        sum <= bytes
    };
    (0..).take_while(fits).map(|id| format!("/w/{id}")).collect()
}

fn stop(nectary: &mut NectaryProxy) -> Result<()> {
    let status = nectary.terminate(Duration::from_secs(30))?;
    if !status.success() {
        bail!("SIGTERM: {}\n{}", guard::describe(status), nectary.process.log_tail());
    }
    Ok(())
}

fn shape(status: &Value) -> Result<RingShape> {
    let number = |name: &str| {
        let value = find(status, name).and_then(Value::as_u64);
        value.with_context(|| format!("no {name} in the status {status}"))
    };
    Ok(RingShape {
        segment_bytes: number("segment_bytes")?,
        segment_count: number("segment_count")? as usize,
        overhead_bytes: OVERHEAD_BYTES,
        unit_bytes: 64,
        fragment_bytes: 1 << 20,
        whole_bytes_max: number("whole_bytes_max")?,
        reinsert_percent: number("reinsert_percent")?,
    })
}

/// Returns the hit rate of the simulation for the requests of the log.
fn simulate(lines: &[AccessLogEntry], shape: RingShape) -> f64 {
    let mut ring = SimulatedRing::new(shape);
    for line in lines {
        // Use the size of the object, because the end of the run may have truncated the sent part.
        let object_bytes = line.object_bytes.unwrap_or(line.body_bytes);
        ring.reference(&line.url, object_bytes);
    }
    ring.hit_rate()
}

fn results(lines: &[AccessLogEntry]) -> Vec<(String, u64)> {
    let mut counts = std::collections::BTreeMap::<&str, u64>::new();
    for line in lines {
        *counts.entry(&line.result).or_default() += 1;
    }
    counts.into_iter().map(|(result, count)| (result.to_owned(), count)).collect()
}

fn errors(lines: &[AccessLogEntry], log: &str) -> Vec<String> {
    let bad = lines.iter().filter(|line| line.status != 200);
    let mut errors: Vec<String> = bad.map(|line| format!("status {} for {}", line.status, line.url)).collect();
    let is_error = |line: &&str| line.contains("error") || line.contains("panicked") || line.contains("warning");
    errors.extend(log.lines().filter(is_error).map(str::to_owned));
    errors.truncate(20);
    errors
}

/// Describes the outcome in lines of text.
pub fn describe(outcome: &PressureOutcome) -> String {
    let PressureOutcome { measured, shape, .. } = outcome;
    format!(
        "pressure: {} requests, {:.0}/s, p50 {} us, p99 {} us, {} errors; {} objects\n\
         pressure: VmHWM {} MiB with --memory {} MiB (at most {} more); at the end {:?}\n\
         pressure: hit rate {:.4}, simulated {:.4} (half a store: {:.4}), puts refused {:.4}; log {:?}\n\
         pressure: {} segments of {} MiB, {} overwritten; store {}",
        measured.requests,
        measured.requests_per_second,
        measured.p50_us,
        measured.p99_us,
        measured.errors,
        outcome.objects,
        outcome.resident_bytes_max >> 20,
        outcome.memory_bytes >> 20,
        MEMORY_BEYOND_BYTES_MAX >> 20,
        outcome.accounted,
        outcome.hit_rate,
        outcome.simulated,
        outcome.simulated_half,
        outcome.refused_rate(),
        outcome.results,
        shape.segment_count,
        shape.segment_bytes >> 20,
        outcome.segments_reclaimed,
        outcome.counts,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn working_set_has_requested_bytes() {
        let bytes: u64 = targets(100 << 20).iter().map(|target| crate::origin::TargetAnswer::parse(target).bytes).sum();
        assert!((90 << 20..=100 << 20).contains(&bytes), "{bytes}");
    }
}
