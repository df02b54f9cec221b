//! `cache-concurrent`: many concurrent clients on one cached device, and crash states of such devices.

use nectary_buffer::planted::Bug;
use nectary_sim::cache::crash::{self, CacheCrashReport};
use nectary_sim::cache::{CacheRunReport, OPERATIONS, replay_planted, run_many};
use nectary_sim::planted::CaughtBug;
use serde_json::{Value, json};

use crate::concurrent::{CampaignResult, ConcurrentCampaign};

/// The minimum share of operations that must begin while another one on the same cell is in flight, in percent.
const OVERLAPPING_PERCENT_MIN: u64 = 10;

/// The campaign.
pub struct CacheConcurrent;

impl ConcurrentCampaign for CacheConcurrent {
    const NAME: &'static str = "cache-concurrent";
    const RUNS: u64 = 20_000;
    const BUGS: &'static [Bug] = Bug::EVERY;
    type Bug = Bug;
    type Report = CacheRunReport;
    type States = CacheCrashReport;

    fn bug_name(bug: Bug) -> &'static str {
        bug.name()
    }

    fn run_many(first: u64, runs: u64, progress: &mut dyn FnMut(&CacheRunReport) -> bool) -> CacheRunReport {
        run_many(first, runs, progress)
    }

    fn run_states(
        first: u64,
        images: u64,
        states_per_workload: usize,
        progress: &mut dyn FnMut(&CacheCrashReport) -> bool,
    ) -> CacheCrashReport {
        crash::run(first, images, states_per_workload, progress)
    }

    fn replay_planted(bug: Bug, seed: u64) -> Option<CaughtBug> {
        replay_planted(bug, seed)
    }

    fn print_runs(report: &CacheRunReport, first: u64) -> bool {
        let overlapping = report.overlapping * 100 / report.operations.max(1);
        println!(
            "seeds from {first}: {} runs, {} operations (wanted {OPERATIONS} a run), {overlapping} % of them while another of the same \
             cell was under way (wanted {OVERLAPPING_PERCENT_MIN}), {} failed, {} changes of memory and mode, {} losses of power after a \
             flush, {} hits, {} misses, {} joined another's read, {} blocks used that were read ahead, {} written back, {} write-backs \
             failed, {} histories that cannot be explained, trace {:#x}",
            report.runs,
            report.operations,
            report.failed,
            report.changes,
            report.crashes,
            report.hits,
            report.misses,
            report.joined,
            report.ahead_used,
            report.written_back,
            report.write_back_errors,
            report.broken_count,
            report.trace
        );
        report.is_enough()
    }

    fn print_states(states: &CacheCrashReport, images: u64) -> bool {
        println!(
            "{} recorded runs with {} device operations begun while another was under way, {} crash states, {} distinct images (wanted \
             {images}), {} flushes before them, {} broken promises",
            states.workloads, states.in_flight, states.states, states.distinct, states.promises, states.broken_count
        );
        images == 0 || (states.in_flight > 0 && states.promises > 0)
    }

    fn figures(report: &CacheRunReport) -> Value {
        json!({"operations": report.operations, "overlapping": report.overlapping, "failed": report.failed})
    }
}

impl CampaignResult for CacheRunReport {
    fn done(&self) -> u64 {
        self.runs
    }

    fn broken(&self) -> (u64, &[String]) {
        (self.broken_count, &self.broken)
    }
}

impl CampaignResult for CacheCrashReport {
    fn done(&self) -> u64 {
        self.distinct
    }

    fn broken(&self) -> (u64, &[String]) {
        (self.broken_count, &self.broken)
    }
}
