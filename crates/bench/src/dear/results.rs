//! The results of a run, and the figures that follow from them.
//!
//! Owns: executions by workload and lane, their means, and the figures with their targets. Savings in percent are
//! computed for each program and then averaged, as in the paper. Leaves to others: running (`run`) and presentation
//! (`text`, `plot`).

use serde::Serialize;

use super::cost::CacheCosts;
use super::execute::ProgramExecution;
use super::replay::{ReplayAgreement, ReplayResults};
use super::{AGAIN, BASE, BLOCKS, CacheLane, DearProgram, name_of};
use crate::ReportFigure;
use crate::statistics::IntervalEstimate;

/// The smallest accepted savings compared with LRU, in percent of reads and of time: for single programs, and for
/// mixes.
const ALONE_MIN: (f64, f64) = (23.0, 12.0);
const TOGETHER_MIN: (f64, f64) = (12.0, 8.0);
/// The policies that have these targets.
const JUDGED: [&str; 2] = ["dear", "adaptive"];
/// The longest accepted time of a hit without I/O, and by how much the time under `dear` may exceed that under LRU.
/// *Units*: microseconds.
const HIT_US_MAX: f64 = 2.0;
const ABOVE_US_MAX: f64 = 0.5;

/// The executions of a program or mix.
#[derive(Debug, Clone)]
pub struct WorkloadExecutions {
    /// The programs.
    pub programs: Vec<&'static DearProgram>,
    /// The size of the cache. *Units*: blocks.
    pub blocks: u64,
    /// The executions of each lane, in the order of the plan.
    pub lanes: Vec<(CacheLane, Vec<ProgramExecution>)>,
    /// The results of replays of the program's references; `None` for a mix.
    pub known: Option<ReplayResults>,
    /// The counts of these replays beside those of the executions.
    pub agreements: Vec<ReplayAgreement>,
}

/// A program or mix all of whose blocks fit into a cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FittingProgram {
    /// Its name.
    pub name: String,
    /// The number of its distinct blocks.
    pub distinct: u64,
    /// The size of the cache. *Units*: blocks.
    pub blocks: u64,
}

/// All that a run found about programs.
#[derive(Debug, Clone, Default)]
pub struct RunResults {
    /// The programs and mixes that ran, at each size.
    pub workloads: Vec<WorkloadExecutions>,
    /// Those that fit.
    pub fitting: Vec<FittingProgram>,
}

impl RunResults {
    /// The sizes at which programs ran, in ascending order. *Units*: blocks.
    pub fn sizes(&self) -> Vec<u64> {
        let mut sizes: Vec<u64> = self.workloads.iter().map(|workload| workload.blocks).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// The programs and mixes that ran at a size.
    pub fn at(&self, blocks: u64) -> Vec<&WorkloadExecutions> {
        self.workloads.iter().filter(|workload| workload.blocks == blocks).collect()
    }

    /// Whether all replays agree with the executions.
    pub fn agrees(&self) -> bool {
        self.workloads.iter().flat_map(|workload| &workload.agreements).all(ReplayAgreement::holds)
    }
}

impl WorkloadExecutions {
    /// Its name.
    pub fn name(&self) -> String {
        name_of(&self.programs)
    }

    /// Whether one program ran alone.
    pub fn is_alone(&self) -> bool {
        self.programs.len() == 1
    }

    /// The executions of a lane.
    pub fn lane(&self, name: &str) -> &[ProgramExecution] {
        self.lanes.iter().find(|lane| lane.0.name == name).map_or(&[], |lane| &lane.1)
    }

    /// The mean of a value over a lane's executions.
    pub fn mean(&self, lane: &str, of: impl Fn(&ProgramExecution) -> f64) -> f64 {
        mean(self.lane(lane).iter().map(of))
    }

    /// The least and the greatest value over a lane's executions; NaN without executions.
    pub fn range(&self, lane: &str, of: impl Fn(&ProgramExecution) -> f64) -> (f64, f64) {
        let values = self.lane(lane).iter().map(of);
        values.fold((f64::NAN, f64::NAN), |(low, high), value| (low.min(value), high.max(value)))
    }
}

/// The mean of some values; NaN without values.
pub fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    if count == 0 { f64::NAN } else { sum / f64::from(count) }
}

/// The saving of `value` compared with `base`, as a share of `base`. *Units*: percent.
pub fn saved(base: f64, value: f64) -> f64 {
    100.0 * (1.0 - value / base)
}

/// Computes all figures, in this order: the noise, figures that miss their target, the rest. Targets are for the paper's
/// size.
pub fn figures(found: &RunResults, cost: Option<&CacheCosts>, is_judged: bool) -> Vec<ReportFigure> {
    let mut figures = Vec::new();
    for blocks in found.sizes() {
        for (is_alone, when, targets) in [(true, "alone", ALONE_MIN), (false, "together", TOGETHER_MIN)] {
            let some: Vec<&WorkloadExecutions> =
                found.at(blocks).into_iter().filter(|workload| workload.is_alone() == is_alone).collect();
            let when = if blocks == BLOCKS { when.to_owned() } else { format!("{when}.blocks{blocks}") };
            add_savings(&mut figures, &some, &when, (blocks == BLOCKS).then_some(targets));
        }
    }
    figures.iter_mut().for_each(|figure| figure.is_judged = is_judged);
    if let Some(cost) = cost {
        for (policy, found) in &cost.hit_us {
            let value = (found.value, found.low, found.high);
            figures.push(figure(format!("hit_us.{policy}"), "us", value, Some(HIT_US_MAX), true));
        }
        for (kind, all) in [("hits", &cost.above_hits_us), ("half_misses", &cost.above_misses_us)] {
            for (policy, found) in all {
                let value = (found.value, found.low, found.high);
                let target = (*policy == "dear").then_some(ABOVE_US_MAX);
                figures.push(figure(format!("above_lru_us.{kind}.{policy}"), "us", value, target, true));
            }
        }
        for found in &cost.through_fuse {
            for (what, unit, of) in
                [("us", "us", found.median_us), ("p99_us", "us", found.p99_us), ("of_fixed", "times", found.ratio)]
            {
                let name = format!("fuse_hit_{what}.{}", found.name);
                figures.push(figure(name, unit, (of.value, of.low, of.high), None, true));
            }
        }
    }
    figures.sort_by_key(|figure| (!figure.name.ends_with(AGAIN), !figure.is_short()));
    figures
}

/// Adds what each lane saves of the reads and the time of workloads.
fn add_savings(figures: &mut Vec<ReportFigure>, some: &[&WorkloadExecutions], when: &str, targets: Option<(f64, f64)>) {
    let Some(first) = some.first() else { return };
    for (lane, _) in first.lanes.iter().filter(|lane| lane.0.name != BASE && lane.0.policy.is_some()) {
        let targets = targets.filter(|_| JUDGED.contains(&lane.name));
        let reads = |execution: &ProgramExecution| execution.block_reads as f64;
        let name = format!("reads_saved.{when}.{}", lane.name);
        figures.push(saving(name, some, lane.name, reads, targets.map(|targets| targets.0)));
        let name = format!("time_saved.{when}.{}", lane.name);
        figures.push(saving(name, some, lane.name, ProgramExecution::response_s, targets.map(|targets| targets.1)));
    }
    let limits = some.iter().filter_map(|workload| workload.known.as_ref());
    let limit = mean(limits.map(|known| saved(known.lru.reads as f64, known.min.reads as f64)));
    if limit.is_finite() {
        figures.push(figure(format!("reads_saved.{when}.min"), "%", (limit, limit, limit), None, false));
    }
}

/// The saving of a lane compared with the base: the mean over workloads, with its range over executions.
fn saving(
    name: String,
    workloads: &[&WorkloadExecutions],
    lane: &str,
    of: impl Fn(&ProgramExecution) -> f64,
    target: Option<f64>,
) -> ReportFigure {
    let value = mean(workloads.iter().map(|workload| saved(workload.mean(BASE, &of), workload.mean(lane, &of))));
    let executions = workloads.iter().map(|workload| workload.lane(lane).len()).min().unwrap_or(0);
    let each = (0..executions).map(|index| {
        mean(workloads.iter().map(|workload| {
            let base = workload.lane(BASE).get(index).map_or(f64::NAN, &of);
            saved(base, of(&workload.lane(lane)[index]))
        }))
    });
    let (low, high) = each.fold((value, value), |(low, high), one| (low.min(one), high.max(one)));
    figure(name, "%", (value, low, high), target, false)
}

fn figure(
    name: String,
    unit: &'static str,
    value: (f64, f64, f64),
    target: Option<f64>,
    is_at_most: bool,
) -> ReportFigure {
    let (value, low, high) = value;
    let figure = ReportFigure::new(name, unit, IntervalEstimate { value, low, high });
    if is_at_most { figure.at_most(target) } else { figure.at_least(target) }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::dear::LANES;

    /// Makes a workload in which the reads and the time of each lane are `ratio` times those of LRU.
    pub fn workload(programs: &[&'static DearProgram], ratio: impl Fn(&str) -> f64) -> WorkloadExecutions {
        let lanes = LANES.iter().map(|lane| {
            let reads = (1000.0 * ratio(lane.name)) as u64;
            let execution = ProgramExecution {
                block_reads: reads,
                stall_s: reads as f64 / 100.0,
                elapsed_s: vec![reads as f64 / 100.0; programs.len()],
                is_virtual: programs.len() == 1,
                sums: vec![1; programs.len()],
                ..ProgramExecution::default()
            };
            (*lane, vec![execution; 3])
        });
        let (lanes, agreements) = (lanes.collect(), Vec::new());
        WorkloadExecutions { programs: programs.to_vec(), blocks: BLOCKS, lanes, known: None, agreements }
    }

    /// Savings are averaged over programs, and short figures come first.
    #[test]
    fn savings_average_over_programs() {
        let programs = &super::super::PROGRAMS;
        // Half of the programs save 40 % under dear, the others nothing; adaptive saves 30 % with each.
        let all: Vec<WorkloadExecutions> = programs
            .iter()
            .take(4)
            .enumerate()
            .map(|(index, program)| {
                workload(&[program], |lane| match lane {
                    "dear" if index % 2 == 0 => 0.6,
                    "adaptive" => 0.7,
                    _ => 1.0,
                })
            })
            .collect();
        let all = RunResults { workloads: all, ..RunResults::default() };
        let found = figures(&all, None, true);
        let of = |name: &str| found.iter().find(|figure| figure.name == name).expect("a figure");
        assert!((of("reads_saved.alone.dear").value - 20.0).abs() < 0.1);
        assert!(of("reads_saved.alone.dear").is_short() && !of("time_saved.alone.dear").is_short());
        assert!(!of("reads_saved.alone.adaptive").is_short() && of("reads_saved.alone.lirs").target.is_none());
        assert!(found[0].name.ends_with(AGAIN) && found[0].value == 0.0, "the noise is first");
        assert_eq!(found.iter().position(ReportFigure::is_short), Some(2));
        // A quick run has no verdict.
        assert!(figures(&all, None, false).iter().all(|figure| !figure.is_short()));
    }

    #[test]
    fn targets_are_for_the_paper_size() {
        let program = &super::super::PROGRAMS[0];
        let small = workload(&[program], |_| 1.0);
        let large = WorkloadExecutions { blocks: 1024, ..small.clone() };
        let found = RunResults { workloads: vec![small, large], ..RunResults::default() };
        assert_eq!(found.sizes(), [BLOCKS, 1024]);
        let figures = figures(&found, None, true);
        let target = |name: &str| figures.iter().find(|figure| figure.name == name).expect("a figure").target;
        assert_eq!(target("reads_saved.alone.dear"), Some(23.0));
        assert_eq!(target("reads_saved.alone.blocks1024.dear"), None);
    }

    #[test]
    fn ranges_are_those_of_executions() {
        let mut one = workload(&[&super::super::PROGRAMS[0]], |_| 1.0);
        for (index, execution) in one.lanes[0].1.iter_mut().enumerate() {
            execution.block_reads = 10 * (index as u64 + 1);
        }
        assert_eq!(one.range(BASE, |one| one.block_reads as f64), (10.0, 30.0));
        assert!(one.range("none", |one| one.block_reads as f64).0.is_nan());
    }
}
