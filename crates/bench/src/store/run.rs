//! Runs a plan: starts every contender of a disk size, lets them take turns, and takes everything away.
//!
//! Owns: the order of steps, and who is charged for what. Whoever has no turn is stopped. File systems and stores are made outside of the memory groups; then
//! the worker is put into its group, and only then it begins, so that its caches are cold and all its memory is charged.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::limit::Limit;
use super::plan::{Group, Lane, Plan};
use super::report::Report;
use super::simulation::{self, Expected};
use crate::contender::{Kind, Place};
use crate::disk::{DiskCounts, MeasuredDisk, SharedClock, Timekeeping};
use crate::group::{GroupUsage, Keeping, MemoryGroup};
use crate::guardian::Guardian;
use crate::statistics::order;
use crate::worker::{Client, Piece, Setup};
use crate::workload::{Generator, Totals, TraceReader, write_trace};
use crate::{Error, machine};

/// How this program is started again for the processes of a run.
pub struct Programs {
    /// A process that calls [`worker::serve`](crate::worker::serve).
    pub worker: Box<dyn Fn() -> Command>,
    /// A process that calls [`guardian::serve`](crate::guardian::serve).
    pub guardian: Box<dyn Fn() -> Command>,
}

/// How far a run is.
#[derive(Debug, Clone)]
pub struct Progress {
    /// Steps that are done, and how many there are.
    pub done: u64,
    /// How many steps there are; all take about as long.
    pub of: u64,
    /// What runs now.
    pub what: String,
}

/// What came of one contender.
#[derive(Debug, Clone, Serialize)]
pub struct LaneResult {
    /// Its name.
    pub name: String,
    /// Whom it stands for in the seeds' table.
    pub seed_name: String,
    /// The seeds' memory and its split, in MB.
    pub memory: String,
    /// How many disks it had.
    pub disks: usize,
    /// Its pieces of the workload.
    pub pieces: Vec<Piece>,
    /// Their sum.
    pub total: Piece,
    /// What each of its disks did meanwhile.
    pub counts: Vec<DiskCounts>,
    /// How much its disks' time differed from real time: the kernel's milliseconds are so many of the disk's.
    pub speed: f64,
    /// Its memory at the end.
    pub usage: GroupUsage,
    /// Whether the disk's clock was virtual.
    pub is_virtual: bool,
    /// How its memory was kept.
    pub keeping: Keeping,
    /// Its own counters at the end.
    pub counters: serde_json::Value,
    /// What a simulation says of its hits.
    pub simulated: Option<Expected>,
}

/// What came of all contenders of a group.
#[derive(Debug, Clone)]
pub struct GroupResult {
    /// The group.
    pub group: Group,
    /// What its disk alone can do.
    pub limit: Limit,
    /// What was asked for.
    pub totals: Totals,
    /// A result a contender.
    pub lanes: Vec<LaneResult>,
}

/// The directory of a run, guarded, and what is shared in it.
struct Workshop {
    folder: PathBuf,
    trace: PathBuf,
    clock_path: PathBuf,
    clock: Arc<SharedClock>,
}

/// A contender in service. Dropped in this order: the process, its memory, its disks.
struct Running {
    client: Client,
    group: MemoryGroup,
    disks: Vec<MeasuredDisk>,
    lane: Lane,
    pieces: Vec<Piece>,
    before: Vec<DiskCounts>,
}

/// Runs a plan.
///
/// Call it from a thread that lives as long as the process. *Errors*: [`ErrorKind::Void`](crate::ErrorKind::Void) where a byte was
/// wrong; [`ErrorKind::Missing`](crate::ErrorKind::Missing) where this machine cannot run it.
pub fn run(plan: &Plan, programs: &Programs, progress: &mut dyn FnMut(&Progress)) -> Result<Report, Error> {
    machine::check()?;
    // What a run that was killed left behind, where its guardian was killed too.
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
    let result = run_in(&plan, programs, &mut guardian, &folder, progress);
    guardian.finish();
    result.map(|groups| Report::new(&plan, groups, began.elapsed()))
}

fn run_in(
    plan: &Plan,
    programs: &Programs,
    guardian: &mut Guardian,
    folder: &Path,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Vec<GroupResult>, Error> {
    std::fs::create_dir(folder).map_err(|error| Error::failed(folder.display(), error))?;
    let (trace, clock_path) = (folder.join("requests"), folder.join("clock"));
    let lanes: usize = plan.groups.iter().map(|group| group.lanes.len()).sum();
    // Making a contender counts as one step too, and so does the simulation of a disk size.
    let of = (lanes * (plan.pairs + 1) + plan.groups.len()) as u64;
    let mut done = 0;
    let mut step = |what: String| {
        progress(&Progress { done, of, what });
        done += 1;
    };
    let mut groups = Vec::new();
    for group in &plan.groups {
        let totals = write_trace(&trace, Generator::new(group.laws.clone()), plan.requests)?;
        let clock = Arc::new(SharedClock::create(&clock_path)?);
        let shop = Workshop { folder: folder.to_owned(), trace: trace.clone(), clock_path: clock_path.clone(), clock };
        let limit = Limit::measure(&plan.disk, group.disk_bytes, totals.unique_bytes, &shop.clock, 0)?;
        let mut running = Vec::new();
        let mut slot = 1;
        for lane in &group.lanes {
            step(format!("{}: making {}", group.label, lane.name));
            running.push(start(plan, group, lane, programs, guardian, &shop, slot)?);
            slot += lane.disks;
        }
        for index in 0..plan.pairs {
            let (first, count) = plan.piece(index);
            for lane in order(running.len(), index) {
                step(format!("{}: {} ({} of {})", group.label, running[lane].lane.name, index + 1, plan.pairs));
                for one in &running {
                    one.client.rest()?;
                }
                let one = &mut running[lane];
                one.pieces.push(one.client.replay(first, count)?);
            }
        }
        let mut results = running.into_iter().map(|one| one.end(plan)).collect::<Result<Vec<_>, Error>>()?;
        step(format!("{}: comparing hits with the simulation", group.label));
        simulation::compare(plan, group, &mut results, &mut TraceReader::open(&trace)?)?;
        groups.push(GroupResult { group: group.clone(), limit, totals, lanes: results });
    }
    progress(&Progress { done: of, of, what: "done".to_owned() });
    Ok(groups)
}

fn start(
    plan: &Plan,
    group: &Group,
    lane: &Lane,
    programs: &Programs,
    guardian: &mut Guardian,
    shop: &Workshop,
    slot: usize,
) -> Result<Running, Error> {
    let each = group.disk_bytes / lane.disks as u64;
    let device_bytes = match lane.kind {
        Kind::Files { system, .. } => system.device_bytes(each),
        _ => each.next_multiple_of(1 << 20),
    };
    let slots: Vec<usize> = (slot..slot + lane.disks).collect();
    let disks = slots.iter().map(|slot| {
        let name = format!("{}-{slot}", lane.name);
        MeasuredDisk::attach(&plan.disk, device_bytes, &name, &shop.clock, *slot)
    });
    let disks = disks.collect::<Result<Vec<_>, Error>>()?;
    let (speed, is_virtual) = match plan.disk.time {
        Timekeeping::Virtual => (1.0, true),
        Timekeeping::Real { speed } => (speed, false),
    };
    let name = format!("nectary-bench-{}-{slot}", std::process::id());
    guardian.guard(&MemoryGroup::place(&name)?)?;
    let memory = MemoryGroup::new(&name, plan.hard_bytes())?;
    let place = Place {
        devices: disks.iter().map(|disk| disk.path().to_owned()).collect(),
        folder: shop.folder.join(format!("lane-{slot}")),
        disk_bytes: group.disk_bytes,
        speed,
        is_virtual,
    };
    let setup = Setup {
        kind: lane.kind.clone(),
        place,
        time: plan.disk.time,
        clock: Some((shop.clock_path.clone(), slots)),
        trace: shop.trace.clone(),
        threads: plan.threads,
        memory: Some(memory.allowance(plan.group_bytes(), plan.hard_bytes())),
    };
    let worker = match (&lane.kind, &plan.options.foyer) {
        (Kind::Foyer { .. }, Some(program)) => {
            let mut command = Command::new(program);
            command.arg("worker");
            command
        }
        _ => (programs.worker)(),
    };
    let mut client = Client::start(&lane.name, worker, setup)?;
    memory.add(client.id())?;
    client.begin()?;
    let before = disks.iter().map(MeasuredDisk::counts).collect();
    Ok(Running { client, group: memory, disks, lane: lane.clone(), pieces: Vec::new(), before })
}

impl Running {
    fn end(mut self, plan: &Plan) -> Result<LaneResult, Error> {
        let counts = self.disks.iter().zip(&self.before).map(|(disk, before)| disk.counts().since(before)).collect();
        let mut total = Piece::default();
        self.pieces.iter().for_each(|piece| total.add(piece));
        let speed = match plan.disk.time {
            Timekeeping::Virtual => 1.0,
            Timekeeping::Real { speed } => speed,
        };
        let (counters, keeping) = self.client.counters()?;
        Ok(LaneResult {
            usage: self.group.usage(),
            counters,
            keeping,
            is_virtual: plan.disk.time == Timekeeping::Virtual,
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
    /// All its disks together.
    pub fn disk(&self) -> DiskCounts {
        DiskCounts::sum(&self.counts)
    }

    /// Mean time of an operation of its disks, as the seeds give it: from when the disk begins to serve it. *Units*: milliseconds.
    pub fn disk_io_ms(&self) -> f64 {
        let disk = self.disk();
        match disk.served {
            0 => disk.kernel_ms as f64 * self.speed / disk.operations.max(1) as f64,
            served => disk.busy_us as f64 / 1e3 / served as f64,
        }
    }

    /// Bytes that its disks wrote for each byte that was put.
    pub fn written_per_byte(&self) -> f64 {
        self.disk().written_bytes as f64 / self.total.put_bytes.max(1) as f64
    }

    /// Time for each piece, in seconds.
    pub fn times(&self) -> Vec<f64> {
        self.pieces.iter().map(|piece| piece.run_s).collect()
    }

    /// Time of the whole run.
    pub fn run_time(&self) -> Duration {
        Duration::from_secs_f64(self.total.run_s.max(0.0))
    }
}
