//! Makes many runs on all cores; a run is a policy, a size and a workload.
//!
//! Owns: the threads, which end before the call returns, and the order of the results, which is that of the runs. Each
//! run has one thread and is deterministic, so the results do not depend on the number of threads.

use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nectary_cache::Lru;

use super::counting::{CountingWindows, RunCounts, WHOLE};
use super::run::count;
use super::said::PolicyReport;
use super::sizes::CapacityUnit;
use super::{TraceWorkload, policies};
use crate::error::{Error, Result};

/// The description of one run.
#[derive(Debug, Clone, Copy)]
pub struct SimulationRun<'a> {
    /// The references.
    pub workload: &'a TraceWorkload,
    /// The name of the policy.
    pub policy: &'static str,
    /// The capacity.
    pub size: u64,
    /// The unit of the capacity.
    pub unit: CapacityUnit,
    /// What is counted.
    pub counting: &'a CountingWindows,
    /// Whether a policy that detects patterns reports its findings of each period.
    pub is_explained: bool,
}

impl<'a> SimulationRun<'a> {
    /// A run of `policy` at `size` blocks that counts all references.
    pub fn new(workload: &'a TraceWorkload, policy: &'static str, size: u64) -> SimulationRun<'a> {
        SimulationRun { workload, policy, size, unit: CapacityUnit::Blocks, counting: &WHOLE, is_explained: false }
    }
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct SimulationRow {
    /// The workload's name.
    pub trace: String,
    /// The policy's name.
    pub policy: &'static str,
    /// The capacity.
    pub size: u64,
    /// The unit of the capacity.
    pub unit: CapacityUnit,
    /// The counts of all windows together.
    pub counts: RunCounts,
    /// The counts of each window.
    pub windows: Vec<RunCounts>,
    /// The duration of the run.
    pub elapsed: Duration,
    /// The policy's reports, if they were requested and the policy makes any.
    pub said: Vec<PolicyReport>,
}

/// Makes all `runs`, on `threads` threads or, if `None`, on one thread per core. Calls `progress` with the number of
/// completed runs.
///
/// *Errors*: a run names an unknown policy; then no run is made.
pub fn run_all(
    runs: &[SimulationRun<'_>],
    threads: Option<usize>,
    progress: &(dyn Fn(usize) + Sync),
) -> Result<Vec<SimulationRow>> {
    let known = policies::names();
    if let Some(run) = runs.iter().find(|run| !known.contains(&run.policy)) {
        return Err(Error::Usage(format!("no policy is called \"{}\"; there are: {}", run.policy, known.join(", "))));
    }
    let threads = threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    let rows: Vec<Mutex<Option<SimulationRow>>> = runs.iter().map(|_| Mutex::new(None)).collect();
    let work = || {
        while let Some(index) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&index| index < runs.len()) {
            let row = one(&runs[index]);
            if let Ok(mut place) = rows[index].lock() {
                *place = row;
            }
            progress(done.fetch_add(1, Ordering::Relaxed) + 1);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.clamp(1, runs.len().max(1)) {
            scope.spawn(work);
        }
        work();
    });
    let rows: Option<Vec<SimulationRow>> = rows.into_iter().map(|row| row.into_inner().ok().flatten()).collect();
    rows.ok_or_else(|| Error::Usage("a policy that is listed could not be made".to_owned()))
}

/// Makes one run.
fn one(run: &SimulationRun<'_>) -> Option<SimulationRow> {
    let SimulationRun { workload, unit, counting, .. } = *run;
    let said = Arc::new(Mutex::new(Vec::new()));
    let start = Instant::now();
    let windows = if run.is_explained && policies::explains(run.policy) {
        let to = Arc::clone(&said);
        let sink = Box::new(move |what| {
            if let Ok(mut said) = to.lock() {
                said.push(what);
            }
        });
        count(&mut *policies::make_explaining(run.policy, run.size, unit, sink)?, workload, unit, counting)
    } else if run.policy == "lru" {
        count(&mut Lru::new(run.size), workload, unit, counting)
    } else {
        count(&mut *policies::make(run.policy, run.size, workload)?, workload, unit, counting)
    };
    let elapsed = start.elapsed();
    let trace = workload.name().to_owned();
    let said = said.lock().map(|mut said| mem::take(&mut *said)).unwrap_or_default();
    let counts = windows.iter().copied().sum();
    Some(SimulationRow { trace, policy: run.policy, size: run.size, unit, counts, windows, elapsed, said })
}
