//! Runs a plan: makes the image once, then does every execution in turn.
//!
//! Owns: the order of steps. For each program the lanes take turns, alternately forwards and backwards. The first
//! execution of a program is recorded and not measured: it loads the programs' own files into memory. The output and
//! files of all later executions are compared with those of the first.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use super::execute::{Execution, Order, Place, compare};
use super::report::report;
use super::results::Workload;
use super::{BASE, LANES, Lane, PAGES, Plan, Program, cost, image, name_of, replay};
use crate::disk::{SharedClock, Timekeeping};
use crate::group::MemoryGroup;
use crate::guardian::Guardian;
use crate::statistics::order;
use crate::store::{Programs, Progress};
use crate::{Error, Report, machine, sys};

/// The memory of the page cache's group in addition to the largest resident size of the program. *Units*: bytes.
const PAGES_BYTES: u64 = 6 << 20;

/// Runs a plan; `programs.worker` has to call [`serve`](super::serve).
///
/// It moves the calling thread into its own mount namespace; the thread must live as long as the process. *Errors*:
/// [`ErrorKind::Void`](crate::ErrorKind::Void) if a program's output or files differ between policies;
/// [`ErrorKind::Missing`](crate::ErrorKind::Missing) if this machine cannot run the plan.
pub fn run(plan: &Plan, programs: &Programs, progress: &mut (dyn FnMut(&Progress) + Send)) -> Result<Report, Error> {
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
    let (workloads, cost) = result?;
    Ok(report(plan, workloads, cost, began.elapsed()))
}

fn run_all(
    plan: &Plan,
    programs: &Programs,
    folder: PathBuf,
    progress: &mut (dyn FnMut(&Progress) + Send),
) -> Result<(Vec<Workload>, cost::Cost), Error> {
    let each = plan.executions * plan.lanes.len() + 1;
    let of = (plan.workloads.len() * each + 2) as u64;
    let mut done = 0;
    let mut step = |what: String| {
        progress(&Progress { done, of, what });
        done += 1;
    };
    let clock = Arc::new(SharedClock::create(&folder.join("clock"))?);
    let image = folder.join("image");
    let place = Place { folder, image, clock, mounted: &*programs.worker, next: 0 };
    let mut all: Vec<&'static Program> = plan.workloads.iter().flatten().copied().collect();
    all.sort_by_key(|program| super::PROGRAMS.iter().position(|other| other.name == program.name));
    all.dedup_by_key(|program| program.name);
    step("making inputs".to_owned());
    image::make(&place.shown(), &place.image, &all)?;
    let mut place = place;
    let mut workloads = Vec::new();
    for programs in &plan.workloads {
        workloads.push(run_workload(plan, programs, &mut place, &mut step)?);
    }
    step("what a hit costs".to_owned());
    let cost = cost::cost(&place.folder)?;
    Ok((workloads, cost))
}

fn run_workload(
    plan: &Plan,
    programs: &[&'static Program],
    place: &mut Place<'_>,
    step: &mut dyn FnMut(String),
) -> Result<Workload, Error> {
    let name = name_of(programs);
    let is_alone = programs.len() == 1;
    let time = if is_alone { Timekeeping::Virtual } else { Timekeeping::Real { speed: plan.speed } };
    step(format!("{name}: recording"));
    // The streams are the same as those of the lane `dear`.
    let recording = Lane { by_session: true, ..LANES[0] };
    let record = is_alone.then(|| place.folder.join("record"));
    let virtually = Order { programs, lane: &recording, time: Timekeeping::Virtual, record, memory_bytes: None };
    let first = place.execute(&virtually)?;
    let known = match &virtually.record {
        Some(path) => {
            let mut policies: Vec<&str> = plan.lanes.iter().filter_map(|lane| lane.policy).collect();
            policies.dedup();
            let references = replay::read(path)?;
            std::fs::remove_file(path).map_err(|error| Error::failed(path.display(), error))?;
            Some(replay::know(&references, &policies))
        }
        None => None,
    };
    let mut lanes: Vec<(Lane, Vec<Execution>)> = plan.lanes.iter().map(|lane| (*lane, Vec::new())).collect();
    for execution in 0..plan.executions {
        for index in order(lanes.len(), execution) {
            let lane = lanes[index].0;
            step(format!("{name} under {}, {} of {}", lane.name, execution + 1, plan.executions));
            let memory_bytes = (lane.name == PAGES).then_some(first.resident_bytes + PAGES_BYTES);
            let found = place.execute(&Order { programs, lane: &lane, time, record: None, memory_bytes })?;
            compare(&first, &found, programs, lane.name)?;
            lanes[index].1.push(found);
        }
    }
    debug_assert_eq!(lanes[0].0.name, BASE);
    Ok(Workload { programs: programs.to_vec(), lanes, known })
}
