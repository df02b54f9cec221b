//! `store-concurrent`: many concurrent clients on one store, and crash states of such stores.

use nectary_sim::planted::CaughtBug;
use nectary_sim::store::concurrent::crash::{self, ConcurrentCrashReport};
use nectary_sim::store::concurrent::{ConcurrentStoreReport, OPERATIONS, replay_planted, run_many};
use nectary_store::planted::Bug;
use serde_json::{Value, json};

use crate::concurrent::{CampaignResult, ConcurrentCampaign};

/// The minimum share of operations that must begin while another one on the same key is in flight, in percent.
const OVERLAPPING_PERCENT_MIN: u64 = 4;
/// The minimum shares of gets that hit, and of gets that had to hit, in percent.
const HITS_PERCENT_MIN: u64 = 30;
const DEMANDED_PERCENT_MIN: u64 = 10;
/// The minimum number of gets, per hundred runs, during which the ring overwrites every segment.
const LAPPED_MIN: u64 = 10;

/// The minimum number of such gets in `runs` runs.
fn lapped_min(runs: u64) -> u64 {
    runs * LAPPED_MIN / 100
}

/// The campaign.
pub struct StoreConcurrent;

impl ConcurrentCampaign for StoreConcurrent {
    const NAME: &'static str = "store-concurrent";
    const RUNS: u64 = 100_000;
    const BUGS: &'static [Bug] = &Bug::CONCURRENT;
    type Bug = Bug;
    type Report = ConcurrentStoreReport;
    type States = ConcurrentCrashReport;

    fn bug_name(bug: Bug) -> &'static str {
        bug.name()
    }

    fn run_many(
        first: u64,
        runs: u64,
        progress: &mut dyn FnMut(&ConcurrentStoreReport) -> bool,
    ) -> ConcurrentStoreReport {
        run_many(first, runs, progress)
    }

    fn run_states(
        first: u64,
        images: u64,
        states_per_workload: usize,
        progress: &mut dyn FnMut(&ConcurrentCrashReport) -> bool,
    ) -> ConcurrentCrashReport {
        crash::run(first, images, states_per_workload, progress)
    }

    fn replay_planted(bug: Bug, seed: u64) -> Option<CaughtBug> {
        replay_planted(bug, seed)
    }

    fn print_runs(report: &ConcurrentStoreReport, first: u64) -> bool {
        let percent = |part: u64, of: u64| part * 100 / of.max(1);
        let overlapping = percent(report.overlapping, report.operations);
        let (hits, demanded) = (percent(report.hits, report.gets), percent(report.demanded, report.gets));
        println!(
            "seeds from {first}: {} runs, {} operations (wanted {OPERATIONS} a run), {overlapping} % of them while another of the same key \
             was under way (wanted {OVERLAPPING_PERCENT_MIN}), {} gets, {hits} % of them hits (wanted {HITS_PERCENT_MIN}), {demanded} % \
             demanded (wanted {DEMANDED_PERCENT_MIN}), {} faults (wanted one a run), lives ended by kills, stops, losses of power and cut \
             logs: {:?}, {} segments overwritten, {} reads held at the device, {} gets during which the ring overwrote each segment (wanted \
             {}), {} reads shared, {} purges, {} histories that cannot be explained, trace {:#x}",
            report.runs,
            report.operations,
            report.gets,
            report.faults(),
            report.ends,
            report.reclaimed,
            report.reads_held,
            report.gets_lapped,
            lapped_min(report.runs),
            report.reads_shared,
            report.purges,
            report.broken_count,
            report.trace
        );
        println!("situations (wanted at least one of each): {}", report.situations.describe());
        let missing = report.situations.missing();
        missing.iter().for_each(|missing| println!("NEVER REACHED: {missing}"));
        report.operations >= OPERATIONS * report.runs
            && overlapping >= OVERLAPPING_PERCENT_MIN
            && hits >= HITS_PERCENT_MIN
            && demanded >= DEMANDED_PERCENT_MIN
            && report.faults() >= report.runs
            && report.gets_lapped >= lapped_min(report.runs)
            && report.reads_shared > 0
            && report.reclaimed > 0
            && missing.is_empty()
    }

    fn print_states(states: &ConcurrentCrashReport, images: u64) -> bool {
        println!(
            "{} recorded runs with {} device operations begun while another was under way, {} crash states, {} distinct images (wanted \
             {images}), each written to and ended again; {} hits, {} demanded, {} broken promises",
            states.workloads,
            states.in_flight,
            states.states,
            states.distinct,
            states.hits,
            states.demanded,
            states.broken_count
        );
        images == 0 || (states.in_flight > 0 && states.demanded > 0)
    }

    fn figures(report: &ConcurrentStoreReport) -> Value {
        json!({
            "operations": report.operations, "overlapping": report.overlapping, "gets": report.gets,
            "hits": report.hits, "demanded": report.demanded, "faults": report.faults(),
            "reads_held": report.reads_held, "gets_lapped": report.gets_lapped,
            "situations": report.situations.describe(), "situations_missing": report.situations.missing(),
        })
    }
}

impl CampaignResult for ConcurrentStoreReport {
    fn done(&self) -> u64 {
        self.runs
    }

    fn broken(&self) -> (u64, &[String]) {
        (self.broken_count, &self.broken)
    }
}

impl CampaignResult for ConcurrentCrashReport {
    fn done(&self) -> u64 {
        self.distinct
    }

    fn broken(&self) -> (u64, &[String]) {
        (self.broken_count, &self.broken)
    }
}
