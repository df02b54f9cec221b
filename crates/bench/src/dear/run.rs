//! Runs a plan: makes the image once, then does every execution in turn.
//!
//! Owns: the order of steps. For each program and size of the cache the lanes take turns, alternately forwards and
//! backwards. The first execution of a program is recorded and not measured: it loads the programs' own files into
//! memory. The output and files of all later executions are compared with those of the first. A program whose blocks
//! all fit into a cache does not run with it: every policy reads each block once.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use super::execute::{ExecutionEnvironment, ExecutionSettings, ProgramExecution, compare};
use super::image::{self, DISK_BYTES};
use super::replay::{ReplayAgreement, ReplayResults};
use super::report::report;
use super::results::{FittingProgram, RunResults, WorkloadExecutions, mean};
use super::{BASE, BLOCKS, CacheLane, DearPlan, DearProgram, LANES, cost, name_of, replay};
use crate::disk::{DiskTimekeeping, SharedClock};
use crate::group::MemoryGroup;
use crate::guardian::Guardian;
use crate::statistics::order;
use crate::store::{ProcessCommands, RunProgress};
use crate::{Error, ExperimentReport, machine, sys};

/// The largest accepted difference between the counts of executions and those of a replay, as a share. The recorded
/// execution itself has to be equal.
const ACCEPTED: f64 = 0.02;
/// The lane of the recorded execution in a list of agreements.
const RECORD: &str = "record";

/// Runs a plan; `programs.worker` has to call [`serve`](super::serve).
///
/// It moves the calling thread into its own mount namespace; the thread must live as long as the process. *Errors*:
/// [`ExperimentErrorKind::Void`](crate::ExperimentErrorKind::Void) if a program's output or files differ between policies;
/// [`ExperimentErrorKind::Missing`](crate::ExperimentErrorKind::Missing) if this machine cannot run the plan.
pub fn run(
    plan: &DearPlan,
    programs: &ProcessCommands,
    progress: &mut (dyn FnMut(&RunProgress) + Send),
) -> Result<ExperimentReport, Error> {
    machine::check()?;
    let _ = nectary_attach::release_stale();
    let began = Instant::now();
    let mut guardian = Guardian::start((programs.guardian)())?;
    let folder = PathBuf::from(format!("/dev/shm/nectary-bench-{}", std::process::id()));
    guardian.guard(&folder)?;
    guardian.guard(&MemoryGroup::place(&format!("nectary-bench-{}", std::process::id()))?)?;
    sys::own_mounts(&folder)?;
    for folder in [folder.clone(), folder.join("source"), folder.join("shown")] {
        std::fs::create_dir(&folder).map_err(|error| Error::failed(folder.display(), error))?;
    }
    let result = run_all(plan, programs, folder, progress);
    guardian.finish();
    let (found, cost) = result?;
    Ok(report(plan, &found, cost, began.elapsed()))
}

fn run_all(
    plan: &DearPlan,
    programs: &ProcessCommands,
    folder: PathBuf,
    progress: &mut (dyn FnMut(&RunProgress) + Send),
) -> Result<(RunResults, cost::CacheCosts), Error> {
    let of = steps_of(plan);
    let mut done = 0_u64;
    let mut step = |what: String| {
        progress(&RunProgress { done: done.min(of), of, what });
        done += 1;
    };
    let clock = Arc::new(SharedClock::create(&folder.join("clock"))?);
    let image = folder.join("image");
    let mut place = ExecutionEnvironment { folder, image, disk_bytes: 0, clock, mounted: &*programs.worker, next: 0 };
    let mut found = RunResults::default();
    step("what a hit costs".to_owned());
    let cost = cost::cost(&place.folder)?;
    // The programs for a large cache have an image of their own, because each execution copies the whole image.
    for (is_large, disk_bytes) in [false, true].into_iter().zip(DISK_BYTES) {
        let some: Vec<&Vec<&'static DearProgram>> =
            plan.workloads.iter().filter(|programs| is_for_large(programs) == is_large).collect();
        if some.is_empty() {
            continue;
        }
        let mut all: Vec<&'static DearProgram> = some.iter().flat_map(|programs| programs.iter().copied()).collect();
        all.sort_by_key(|program| DearProgram::all().position(|other| other.name == program.name));
        all.dedup_by_key(|program| program.name);
        step(format!("making inputs of {}", name_of(&all)));
        place.disk_bytes = disk_bytes;
        image::make(&place.shown(), &place.image, disk_bytes, &all)?;
        for programs in some {
            run_programs(plan, programs, &mut place, &mut found, &mut step)?;
        }
        std::fs::remove_file(&place.image).map_err(|error| Error::failed(place.image.display(), error))?;
    }
    Ok((found, cost))
}

/// Whether programs are for a large cache.
fn is_for_large(programs: &[&DearProgram]) -> bool {
    programs.iter().any(|program| program.blocks > BLOCKS)
}

/// The number of steps of a plan, if no program fits into a cache.
fn steps_of(plan: &DearPlan) -> u64 {
    let of = |programs: &Vec<&DearProgram>| {
        let sizes = sizes_for(plan, programs);
        let executions: usize = sizes.iter().map(|blocks| plan.lanes_at(*blocks).len() * plan.executions).sum();
        executions + 1
    };
    (plan.workloads.iter().map(of).sum::<usize>() + 3) as u64
}

/// The sizes of the cache for which the inputs of programs are large enough.
fn sizes_for(plan: &DearPlan, programs: &[&DearProgram]) -> Vec<u64> {
    let least = programs.iter().map(|program| program.blocks).max().unwrap_or(BLOCKS);
    // Sizes below the paper's are for its programs, too.
    plan.sizes.iter().copied().filter(|blocks| *blocks >= least || least <= BLOCKS).collect()
}

/// Records programs, and runs them at each size into which they do not fit.
fn run_programs(
    plan: &DearPlan,
    programs: &[&'static DearProgram],
    place: &mut ExecutionEnvironment<'_>,
    found: &mut RunResults,
    step: &mut dyn FnMut(String),
) -> Result<(), Error> {
    let sizes = sizes_for(plan, programs);
    let Some(&first_blocks) = sizes.first() else { return Ok(()) };
    step(format!("{}: recording", name_of(programs)));
    // The streams are the same as those of the lane `dear`.
    let recording = CacheLane { by_session: true, ..LANES[0] };
    let path = place.folder.join("record");
    let (time, record) = (DiskTimekeeping::Virtual, Some(path.clone()));
    let first = place.execute(&ExecutionSettings { programs, lane: &recording, blocks: first_blocks, time, record })?;
    let record = replay::read(&path)?;
    std::fs::remove_file(&path).map_err(|error| Error::failed(path.display(), error))?;
    for blocks in sizes {
        let distinct = record.distinct();
        if distinct <= blocks {
            found.fitting.push(FittingProgram { name: name_of(programs), distinct, blocks });
            continue;
        }
        let lanes = plan.lanes_at(blocks);
        let mut policies: Vec<&str> = lanes.iter().filter_map(|lane| lane.policy).collect();
        policies.dedup();
        // Programs together never refer to blocks in the same order again.
        let known = (programs.len() == 1).then(|| replay::know(&record, &policies, blocks));
        let mut workload = run_workload(plan, programs, (blocks, lanes), place, &first, step)?;
        if let Some(known) = known {
            workload.agreements = agreements(&workload, &known, (blocks == first_blocks).then_some(&first));
            workload.known = Some(known);
        }
        found.workloads.push(workload);
    }
    Ok(())
}

/// Runs programs in turns under all lanes of a size.
fn run_workload(
    plan: &DearPlan,
    programs: &[&'static DearProgram],
    (blocks, lanes): (u64, Vec<CacheLane>),
    place: &mut ExecutionEnvironment<'_>,
    first: &ProgramExecution,
    step: &mut dyn FnMut(String),
) -> Result<WorkloadExecutions, Error> {
    let name = name_of(programs);
    let time = if programs.len() == 1 { DiskTimekeeping::Virtual } else { DiskTimekeeping::Real { speed: plan.speed } };
    let mut lanes: Vec<(CacheLane, Vec<ProgramExecution>)> = lanes.into_iter().map(|lane| (lane, Vec::new())).collect();
    for execution in 0..plan.executions {
        for index in order(lanes.len(), execution) {
            let lane = lanes[index].0;
            step(format!("{name} under {} of {blocks} blocks, {} of {}", lane.name, execution + 1, plan.executions));
            let found = place.execute(&ExecutionSettings { programs, lane: &lane, blocks, time, record: None })?;
            compare(first, &found, programs, lane.name)?;
            lanes[index].1.push(found);
        }
    }
    debug_assert_eq!(lanes[0].0.name, BASE);
    Ok(WorkloadExecutions { programs: programs.to_vec(), blocks, lanes, known: None, agreements: Vec::new() })
}

/// The counts of replays beside those of executions; `recorded` is the execution that was recorded at this size.
fn agreements(
    workload: &WorkloadExecutions,
    known: &ReplayResults,
    recorded: Option<&ProgramExecution>,
) -> Vec<ReplayAgreement> {
    let mut all = Vec::new();
    if let Some(recorded) = recorded {
        let live = (recorded.cache.misses as f64, recorded.block_reads as f64);
        let replayed = (known.lru.misses, known.lru.reads);
        all.push(ReplayAgreement { lane: RECORD.to_owned(), replayed, live, accepted: 0.0 });
    }
    for (lane, executions) in workload.lanes.iter().filter(|lane| lane.0.is_replayed()) {
        let counts = known.policies.iter().find(|entry| Some(entry.0.as_str()) == lane.policy);
        let Some((_, counts)) = counts else { continue };
        let live_misses = mean(executions.iter().map(|one| one.cache.misses as f64));
        let live = (live_misses, mean(executions.iter().map(|one| one.block_reads as f64)));
        let replayed = (counts.misses, counts.reads);
        all.push(ReplayAgreement { lane: lane.name.to_owned(), replayed, live, accepted: ACCEPTED });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::replay::ReplayCounts;
    use super::super::results::tests::workload;
    use super::super::{BenchCacheOptions, LARGE_BLOCKS, LARGE_PROGRAMS, PROGRAMS};
    use super::*;

    /// Replays whose counts differ from those of executions are found.
    #[test]
    fn replay_disagreements_are_found() {
        let counts = ReplayCounts { references: 5000, misses: 1000, reads: 1000 };
        let known =
            ReplayResults { lru: counts, policies: vec![("lru".to_owned(), counts)], ..ReplayResults::default() };
        let mut live = workload(&[&PROGRAMS[3]], |_| 1.0);
        for (_, executions) in &mut live.lanes {
            executions.iter_mut().for_each(|one| one.cache.misses = 1000);
        }
        let recorded = live.lane(BASE)[0].clone();
        let lanes = |all: &[ReplayAgreement]| all.iter().map(|one| (one.lane.clone(), one.holds())).collect::<Vec<_>>();
        let found = agreements(&live, &known, Some(&recorded));
        let expected = ["record", "lru", "lru-again"].map(|lane| (lane.to_owned(), true));
        assert_eq!(lanes(&found), expected);
        // The recorded execution has to be equal; the others may differ by 2 %.
        let off = ProgramExecution { block_reads: 1001, ..recorded };
        assert_eq!(lanes(&agreements(&live, &known, Some(&off)))[0], ("record".to_owned(), false));
        live.lanes[1].1.iter_mut().for_each(|one| one.block_reads = 1021);
        let found = lanes(&agreements(&live, &known, None));
        assert_eq!(found, [("lru".to_owned(), true), ("lru-again".to_owned(), false)]);
    }

    #[test]
    fn programs_run_at_sizes_they_exceed() {
        let only = vec!["sort".to_owned()];
        let plan = DearPlan::new(BenchCacheOptions {
            only,
            blocks: vec![600, 4096, LARGE_BLOCKS],
            ..BenchCacheOptions::default()
        })
        .unwrap();
        assert_eq!(sizes_for(&plan, &[&PROGRAMS[2]]), [600, 4096, LARGE_BLOCKS]);
        assert_eq!(sizes_for(&plan, &[&LARGE_PROGRAMS[0]]), [LARGE_BLOCKS]);
        // Eleven lanes at the first size and seven at the others, three times, and three steps of the run.
        assert_eq!(steps_of(&plan), (11 + 7 + 7) * 3 + 1 + 3);
    }
}
