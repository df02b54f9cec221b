//! Runs a plan: starts every contender of a disk size, lets them take turns, and removes everything.
//!
//! Owns: the order of steps, and which contender is charged for which time. First each file system runs with several
//! shares of dirty pages; the fastest share is used in the comparison. Then each disk size runs once with each seed of
//! the workload. Contenders are stopped between their turns. File systems and stores are made outside the memory
//! groups. Only then is the worker moved into its group and started, so its caches are cold and all its memory is
//! charged.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::lanes::StoreLane;
use super::limit::DiskSpeed;
use super::plan::{DiskSizeGroup, StorePlan};
use super::report::report;
use super::results::{DirtyShareResult, GroupResult, LaneResult};
use super::simulation;
use crate::contender::{ContenderKind, ContenderResources};
use crate::disk::{DiskCounts, DiskTimekeeping, MeasuredDisk, SharedClock};
use crate::group::MemoryGroup;
use crate::guardian::Guardian;
use crate::statistics::order;
use crate::worker::{PieceResult, WorkerClient, WorkerSetup};
use crate::workload::{self, TraceReader, write_trace};
use crate::{Error, ExperimentReport, machine};

/// The shares of dirty pages that are compared, in percent of the buffer cache.
const DIRTY_PERCENTS: [u64; 4] = [10, 20, 40, 80];
/// The shares are compared with only the beginning of the workload: the number of its requests is the number of all
/// requests divided by this.
const SWEEP_SHARE: u64 = 4;
/// The largest number of concurrent runs on virtual clocks. Their disks are in memory; all of them together use at most
/// the free memory divided by `FREE_SHARE`.
const AT_ONCE_MAX: u64 = 3;
const FREE_SHARE: u64 = 2;

/// The commands that start the processes of a run.
pub struct ProcessCommands {
    /// A process that calls [`worker::serve`](crate::worker::serve).
    pub worker: Box<dyn Fn() -> Command + Sync>,
    /// A process that calls [`guardian::serve`](crate::guardian::serve).
    pub guardian: Box<dyn Fn() -> Command + Sync>,
}

/// The progress of a run.
#[derive(Debug, Clone)]
pub struct RunProgress {
    /// The number of completed steps.
    pub done: u64,
    /// The number of all steps; they take about equally long.
    pub of: u64,
    /// The current step.
    pub what: String,
}

/// The settings that all runs of a plan share.
struct RunEnvironment<'a> {
    programs: &'a ProcessCommands,
    guardian: Mutex<Guardian>,
    folder: PathBuf,
    progress: Mutex<ProgressSteps<'a>>,
    /// The number of the next run; names of directories and groups contain it.
    next: AtomicU64,
}

struct ProgressSteps<'a> {
    done: u64,
    of: u64,
    tell: &'a mut (dyn FnMut(&RunProgress) + Send),
}

impl RunEnvironment<'_> {
    fn step(&self, what: String) {
        let mut steps = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let ProgressSteps { done, of, tell } = &mut *steps;
        tell(&RunProgress { done: *done, of: *of, what });
        *done += 1;
    }

    fn guard(&self, path: &Path) -> Result<(), Error> {
        self.guardian.lock().unwrap_or_else(PoisonError::into_inner).guard(path)
    }
}

/// The directory of one run, and the state that its processes share in it.
struct RunFolder {
    number: u64,
    folder: PathBuf,
    trace: PathBuf,
    clock_path: PathBuf,
    clock: Arc<SharedClock>,
}

/// A running contender. The fields are dropped in this order: the process, its memory, its disks.
struct RunningLane {
    client: WorkerClient,
    group: MemoryGroup,
    disks: Vec<MeasuredDisk>,
    lane: StoreLane,
    pieces: Vec<PieceResult>,
    before: Vec<DiskCounts>,
}

/// Runs a plan.
///
/// Call it from a thread that lives as long as the process. *Errors*: [`ExperimentErrorKind::Void`](crate::ExperimentErrorKind::Void) if a
/// byte was wrong; [`ExperimentErrorKind::Missing`](crate::ExperimentErrorKind::Missing) if this machine cannot run the plan.
pub fn run(
    plan: &StorePlan,
    programs: &ProcessCommands,
    progress: &mut (dyn FnMut(&RunProgress) + Send),
) -> Result<ExperimentReport, Error> {
    machine::check()?;
    // Releases the loop devices of a run that was killed together with its guardian.
    let _ = nectary_attach::release_stale();
    let began = Instant::now();
    let mut guardian = Guardian::start((programs.guardian)())?;
    let folder = PathBuf::from(format!("/dev/shm/nectary-bench-{}", std::process::id()));
    guardian.guard(&folder)?;
    let mut plan = plan.clone();
    if let Some(below) = &mut plan.disk.folder {
        *below = below.join(format!("nectary-bench-{}", std::process::id()));
        guardian.make_folder(below)?;
    }
    std::fs::create_dir(&folder).map_err(|error| Error::failed(folder.display(), error))?;
    let sweep = sweep_of(&plan);
    let of = plan.seeds.len() as u64 * plan.groups.iter().map(|group| steps(group, plan.pairs)).sum::<u64>()
        + sweep.iter().map(|group| steps(group, 1)).sum::<u64>();
    let shared = RunEnvironment {
        programs,
        guardian: Mutex::new(guardian),
        folder,
        progress: Mutex::new(ProgressSteps { done: 0, of, tell: progress }),
        next: AtomicU64::new(0),
    };
    let result = run_all(&mut plan, sweep, &shared);
    shared.guardian.into_inner().unwrap_or_else(PoisonError::into_inner).finish();
    let (groups, swept) = result?;
    Ok(report(&plan, groups, swept, began.elapsed()))
}

/// The number of steps of a run: each contender has one step for its start and one for each piece of the workload; the
/// simulation is one more step.
fn steps(group: &DiskSizeGroup, pairs: usize) -> u64 {
    (group.lanes.len() * (pairs + 1) + 1) as u64
}

/// The group that compares the shares of dirty pages: the first group's disk, and each file system once per share.
/// `None` if the shares are not compared.
fn sweep_of(plan: &StorePlan) -> Option<DiskSizeGroup> {
    let is_wanted =
        plan.disk.time == DiskTimekeeping::Virtual && !plan.options.quick && plan.options.dirty_percent.is_none();
    let group = plan.groups.first().filter(|_| is_wanted)?;
    let mut lanes: Vec<StoreLane> = Vec::new();
    for lane in &plan.groups.iter().flat_map(|group| &group.lanes).collect::<Vec<_>>() {
        let ContenderKind::Files { system, .. } = &lane.kind else { continue };
        if lanes
            .iter()
            .any(|known| matches!(&known.kind, ContenderKind::Files { system: known, .. } if known == system))
        {
            continue;
        }
        lanes.extend(DIRTY_PERCENTS.iter().map(|percent| {
            let mut lane = StoreLane { name: format!("{}-dirty-{percent}", lane.name), ..(*lane).clone() };
            set_dirty(&mut lane, *percent);
            lane
        }));
    }
    (!lanes.is_empty()).then(|| DiskSizeGroup { lanes, ..group.clone() })
}

fn set_dirty(lane: &mut StoreLane, percent: u64) {
    if let ContenderKind::Files { dirty_percent, .. } = &mut lane.kind {
        *dirty_percent = percent;
    }
}

fn run_all(
    plan: &mut StorePlan,
    sweep: Option<DiskSizeGroup>,
    shared: &RunEnvironment<'_>,
) -> Result<(Vec<GroupResult>, Vec<DirtyShareResult>), Error> {
    let mut swept = Vec::new();
    if let Some(group) = sweep {
        let pieces = StorePlan { pairs: 1, requests: (plan.requests / SWEEP_SHARE).max(1), ..plan.clone() };
        let result = run_group(&pieces, group, shared)?;
        for (lane, result) in result.group.lanes.iter().zip(&result.lanes) {
            if let ContenderKind::Files { system, dirty_percent, .. } = lane.kind {
                swept.push(DirtyShareResult { system, dirty_percent, run_s: result.total.run_s });
            }
        }
    }
    for lane in plan.groups.iter_mut().flat_map(|group| &mut group.lanes) {
        let ContenderKind::Files { system, .. } = lane.kind else { continue };
        let of_system = swept.iter().filter(|swept| swept.system == system);
        let best = of_system.min_by(|left, right| left.run_s.total_cmp(&right.run_s)).map(|best| best.dirty_percent);
        if let Some(percent) = plan.options.dirty_percent.or(best) {
            set_dirty(lane, percent);
        }
    }
    let plan = &*plan;
    let runs: Vec<DiskSizeGroup> = plan
        .seeds
        .iter()
        .flat_map(|seed| {
            let of_seed =
                |group: &DiskSizeGroup| DiskSizeGroup { source: group.source.with_seed(*seed), ..group.clone() };
            plan.groups.iter().map(of_seed).collect::<Vec<_>>()
        })
        .collect();
    // Runs on virtual clocks may be concurrent, because other work on the machine does not change their times.
    let threads = match plan.disk.time {
        DiskTimekeeping::Virtual => {
            let largest = plan.groups.iter().map(disks_bytes).max().unwrap_or(0).max(1);
            (machine::free_bytes() / FREE_SHARE / largest).clamp(1, AT_ONCE_MAX)
        }
        DiskTimekeeping::Real { .. } => 1,
    };
    let (next, results) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed) as usize;
                    let Some(group) = runs.get(index) else { break };
                    let result = run_group(plan, group.clone(), shared);
                    let is_bad = result.is_err();
                    let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
                    results.push((index % plan.groups.len(), index / plan.groups.len(), result));
                    if is_bad {
                        next.store(runs.len() as u64, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(group, seed, _)| (*group, *seed));
    let results = results.into_iter().map(|(_, _, result)| result).collect::<Result<Vec<_>, Error>>()?;
    shared.step("done".to_owned());
    Ok((results, swept))
}

/// The size of each device of a contender, in bytes.
fn device_bytes(group: &DiskSizeGroup, lane: &StoreLane) -> u64 {
    let each = group.disk_bytes / lane.disks as u64;
    match lane.kind {
        ContenderKind::Files { system, .. } => system.device_bytes(each),
        _ => each.next_multiple_of(1 << 20),
    }
}

/// The size of all devices of a group, in bytes.
fn disks_bytes(group: &DiskSizeGroup) -> u64 {
    group.lanes.iter().map(|lane| device_bytes(group, lane) * lane.disks as u64).sum()
}

/// Runs all contenders of a group with the group's workload.
fn run_group(plan: &StorePlan, group: DiskSizeGroup, shared: &RunEnvironment<'_>) -> Result<GroupResult, Error> {
    let number = shared.next.fetch_add(1, Ordering::Relaxed);
    let folder = shared.folder.join(format!("run-{number}"));
    std::fs::create_dir(&folder).map_err(|error| Error::failed(folder.display(), error))?;
    let (trace, clock_path) = (folder.join("requests"), folder.join("clock"));
    let totals = write_trace(&trace, group.source.requests(), plan.requests)?;
    let requests = TraceReader::open(&trace)?.read(0, totals.requests)?;
    let demand = workload::demand(&requests, plan.memory_bytes);
    let locality = workload::locality(requests.iter().copied(), plan.memory_bytes, group.disk_bytes);
    drop(requests);
    let clock = Arc::new(SharedClock::create(&clock_path)?);
    let shop = RunFolder { number, folder, trace, clock_path, clock };
    let limit = DiskSpeed::measure(&plan.disk, group.disk_bytes, totals.unique_bytes, &shop.clock, 0)?;
    let name = format!("{}, seed {}", group.label, group.source.seed());
    let mut running = Vec::new();
    let mut slot = 1;
    for lane in &group.lanes {
        shared.step(format!("{name}: making {}", lane.name));
        running.push(start(plan, &group, lane, shared, &shop, slot)?);
        slot += lane.disks;
    }
    for index in 0..plan.pairs {
        let (first, count) = plan.piece(index);
        for lane in order(running.len(), index) {
            shared.step(format!("{name}: {} ({} of {})", running[lane].lane.name, index + 1, plan.pairs));
            for one in &running {
                one.client.rest()?;
            }
            let one = &mut running[lane];
            one.pieces.push(one.client.replay(first, count)?);
        }
    }
    let mut results = running.into_iter().map(|one| one.end(plan)).collect::<Result<Vec<_>, Error>>()?;
    shared.step(format!("{name}: comparing hits with the simulation"));
    simulation::compare(plan, &group, &mut results, &mut TraceReader::open(&shop.trace)?)?;
    Ok(GroupResult { group, limit, demand, locality, totals, lanes: results })
}

fn start(
    plan: &StorePlan,
    group: &DiskSizeGroup,
    lane: &StoreLane,
    shared: &RunEnvironment<'_>,
    shop: &RunFolder,
    slot: usize,
) -> Result<RunningLane, Error> {
    let device_bytes = device_bytes(group, lane);
    let slots: Vec<usize> = (slot..slot + lane.disks).collect();
    let disks = slots.iter().map(|slot| {
        let name = format!("{}-{}-{slot}", lane.name, shop.number);
        MeasuredDisk::attach(&plan.disk, device_bytes, &name, &shop.clock, *slot)
    });
    let disks = disks.collect::<Result<Vec<_>, Error>>()?;
    let (speed, is_virtual) = match plan.disk.time {
        DiskTimekeeping::Virtual => (1.0, true),
        DiskTimekeeping::Real { speed } => (speed, false),
    };
    let name = format!("nectary-bench-{}-{}-{slot}", std::process::id(), shop.number);
    shared.guard(&MemoryGroup::place(&name)?)?;
    let memory = MemoryGroup::new(&name, plan.hard_bytes())?;
    let place = ContenderResources {
        devices: disks.iter().map(|disk| disk.path().to_owned()).collect(),
        folder: shop.folder.join(format!("lane-{slot}")),
        disk_bytes: group.disk_bytes,
        speed,
        is_virtual,
    };
    let setup = WorkerSetup {
        kind: lane.kind.clone(),
        place,
        time: plan.disk.time,
        clock: Some((shop.clock_path.clone(), slots)),
        trace: shop.trace.clone(),
        threads: plan.threads,
        memory: Some(memory.allowance(plan.group_bytes(), plan.hard_bytes())),
    };
    let worker = match (&lane.kind, &plan.options.foyer) {
        (ContenderKind::Foyer { .. }, Some(program)) => {
            let mut command = Command::new(program);
            command.arg("worker");
            command
        }
        _ => (shared.programs.worker)(),
    };
    let mut client = WorkerClient::start(&lane.name, worker, setup)?;
    memory.add(client.id())?;
    client.begin()?;
    let before = disks.iter().map(MeasuredDisk::counts).collect();
    Ok(RunningLane { client, group: memory, disks, lane: lane.clone(), pieces: Vec::new(), before })
}

impl RunningLane {
    fn end(mut self, plan: &StorePlan) -> Result<LaneResult, Error> {
        let counts = self.disks.iter().zip(&self.before).map(|(disk, before)| disk.counts().since(before)).collect();
        let mut total = PieceResult::default();
        self.pieces.iter().for_each(|piece| total.add(piece));
        let speed = match plan.disk.time {
            DiskTimekeeping::Virtual => 1.0,
            DiskTimekeeping::Real { speed } => speed,
        };
        let (counters, keeping) = self.client.counters()?;
        Ok(LaneResult {
            usage: self.group.usage(),
            counters,
            keeping,
            is_virtual: plan.disk.time == DiskTimekeeping::Virtual,
            simulated: None,
            name: self.lane.name.clone(),
            seed_name: self.lane.seed_name.to_owned(),
            memory: self.lane.memory.clone(),
            disks: self.lane.disks,
            pieces: std::mem::take(&mut self.pieces),
            total,
            counts,
            speed,
        })
    }
}

impl LaneResult {
    /// The sum of its disks' counters.
    pub fn disk(&self) -> DiskCounts {
        DiskCounts::sum(&self.counts)
    }

    /// The mean time of an operation of its disks, measured as in the paper: from the moment at which the disk begins
    /// to serve the operation. *Units*: milliseconds. For disks without a model, the mean includes the time in queues.
    pub fn disk_io_ms(&self) -> f64 {
        let disk = self.disk();
        match disk.served {
            0 => disk.kernel_ms as f64 * self.speed / disk.operations.max(1) as f64,
            served => disk.busy_us as f64 / 1e3 / served as f64,
        }
    }

    /// The number of bytes that its disks wrote for each byte that was put.
    pub fn written_per_byte(&self) -> f64 {
        self.disk().written_bytes as f64 / self.total.put_bytes.max(1) as f64
    }

    /// The time of each piece, in seconds.
    pub fn times(&self) -> Vec<f64> {
        self.pieces.iter().map(|piece| piece.run_s).collect()
    }

    /// The time of the whole run.
    pub fn run_time(&self) -> Duration {
        Duration::from_secs_f64(self.total.run_s.max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BenchStoreOptions, StorePreset};
    use super::*;

    /// Each file system runs once with each share of dirty pages; a quick run has no sweep.
    #[test]
    fn sweep_tries_each_dirty_share() {
        let plan = StorePlan::new(BenchStoreOptions::new(StorePreset::Table4)).unwrap();
        let mut systems: Vec<&str> = plan.groups[0]
            .lanes
            .iter()
            .filter_map(|lane| match lane.kind {
                ContenderKind::Files { system, .. } => Some(system.name()),
                _ => None,
            })
            .collect();
        systems.sort_unstable();
        systems.dedup();
        let swept = sweep_of(&plan).map_or(0, |group| group.lanes.len());
        assert_eq!(swept, systems.len() * DIRTY_PERCENTS.len());
        for options in [
            BenchStoreOptions { quick: true, ..BenchStoreOptions::new(StorePreset::Table4) },
            BenchStoreOptions { dirty_percent: Some(40), ..BenchStoreOptions::new(StorePreset::Table4) },
        ] {
            assert!(sweep_of(&StorePlan::new(options).unwrap()).is_none());
        }
    }
}
