//! The results of a run, and the figures that follow from them.
//!
//! Owns: executions by workload and lane, their means, and the figures with their targets. Savings in percent are
//! computed for each program and then averaged, as in the paper. Leaves to others: running (`run`) and presentation
//! (`text`, `plot`).

use super::cost::Cost;
use super::execute::Execution;
use super::replay::Known;
use super::{AGAIN, BASE, Lane, PAGES, Program, name_of};
use crate::Figure;
use crate::statistics::Estimate;

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
pub struct Workload {
    /// The programs.
    pub programs: Vec<&'static Program>,
    /// The executions of each lane, in the order of the plan.
    pub lanes: Vec<(Lane, Vec<Execution>)>,
    /// The results of replays of the program's references; `None` for a mix.
    pub known: Option<Known>,
}

impl Workload {
    /// Its name.
    pub fn name(&self) -> String {
        name_of(&self.programs)
    }

    /// Whether one program ran alone.
    pub fn is_alone(&self) -> bool {
        self.programs.len() == 1
    }

    /// The executions of a lane.
    pub fn lane(&self, name: &str) -> &[Execution] {
        self.lanes.iter().find(|lane| lane.0.name == name).map_or(&[], |lane| &lane.1)
    }

    /// The mean of a value over a lane's executions.
    pub fn mean(&self, lane: &str, of: impl Fn(&Execution) -> f64) -> f64 {
        mean(self.lane(lane).iter().map(of))
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

/// Computes all figures, in this order: the noise, figures that miss their target, the rest.
pub fn figures(workloads: &[Workload], cost: Option<&Cost>, is_judged: bool) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (is_alone, when, targets) in [(true, "alone", ALONE_MIN), (false, "together", TOGETHER_MIN)] {
        let some: Vec<&Workload> = workloads.iter().filter(|workload| workload.is_alone() == is_alone).collect();
        let Some(first) = some.first() else { continue };
        for (lane, _) in first.lanes.iter().filter(|lane| lane.0.name != BASE && lane.0.name != PAGES) {
            let is_aimed = JUDGED.contains(&lane.name);
            let reads = |execution: &Execution| execution.block_reads as f64;
            let aim = |target| is_aimed.then_some(target);
            figures.push(saving(format!("reads_saved.{when}.{}", lane.name), &some, lane.name, reads, aim(targets.0)));
            let time = Execution::response_s;
            figures.push(saving(format!("time_saved.{when}.{}", lane.name), &some, lane.name, time, aim(targets.1)));
        }
        let limits = some.iter().filter_map(|workload| workload.known.as_ref());
        let limit = mean(limits.map(|known| saved(known.lru.reads as f64, known.min.reads as f64)));
        if limit.is_finite() {
            figures.push(figure(format!("reads_saved.{when}.min"), "%", (limit, limit, limit), None, false));
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

/// The saving of a lane compared with the base: the mean over workloads, with its range over executions.
fn saving(
    name: String,
    workloads: &[&Workload],
    lane: &str,
    of: impl Fn(&Execution) -> f64,
    target: Option<f64>,
) -> Figure {
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

fn figure(name: String, unit: &'static str, value: (f64, f64, f64), target: Option<f64>, is_at_most: bool) -> Figure {
    let (value, low, high) = value;
    let figure = Figure::new(name, unit, Estimate { value, low, high });
    if is_at_most { figure.at_most(target) } else { figure.at_least(target) }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::dear::LANES;

    /// Makes a workload in which the reads and the time of each lane are `ratio` times those of LRU.
    pub fn workload(programs: &[&'static Program], ratio: impl Fn(&str) -> f64) -> Workload {
        let lanes = LANES.iter().map(|lane| {
            let reads = (1000.0 * ratio(lane.name)) as u64;
            let execution = Execution {
                block_reads: reads,
                stall_s: reads as f64 / 100.0,
                elapsed_s: vec![reads as f64 / 100.0; programs.len()],
                is_virtual: programs.len() == 1,
                sums: vec![1; programs.len()],
                ..Execution::default()
            };
            (*lane, vec![execution; 3])
        });
        Workload { programs: programs.to_vec(), lanes: lanes.collect(), known: None }
    }

    #[test]
    fn savings_are_averaged_over_programs_and_short_ones_come_first() {
        let programs = &super::super::PROGRAMS;
        // Half of the programs save 40 % under dear, the others nothing; adaptive saves 30 % with each.
        let all: Vec<Workload> = programs
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
        let found = figures(&all, None, true);
        let of = |name: &str| found.iter().find(|figure| figure.name == name).expect("a figure");
        assert!((of("reads_saved.alone.dear").value - 20.0).abs() < 0.1);
        assert!(of("reads_saved.alone.dear").is_short() && !of("time_saved.alone.dear").is_short());
        assert!(!of("reads_saved.alone.adaptive").is_short() && of("reads_saved.alone.lirs").target.is_none());
        assert!(found[0].name.ends_with(AGAIN) && found[0].value == 0.0, "the noise is first");
        assert_eq!(found.iter().position(Figure::is_short), Some(2));
        // A quick run has no verdict.
        assert!(figures(&all, None, false).iter().all(|figure| !figure.is_short()));
    }
}
