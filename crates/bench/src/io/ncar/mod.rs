//! `bench io --matrix ncar`: the conditions of the NCAR report's figures 1 to 20.
//!
//! Owns: the series of the report, in the order in which they run. The report's two hosts are two memory groups here: a
//! client with 3 GB and the metadata server's host with 128 MB; the client has its own network namespace.
//! Files of 256 MB are read or written, buffered and direct, with one and two streams, on a shared volume and on XFS.
//! Caches are emptied by unmount and mount, as in the report, and by dropping pages. The raw device below, a bare FUSE
//! server on it and conditions beyond the report are measured too.
//!
//! | file | what is in it |
//! |---|---|
//! | `figures` | which series each figure shows |
//! | `stage` | the device, the systems on it, and the hosts |
//! | `report` | tables and JSON |
//! | `pictures` | the figures, drawn from the JSON |

mod figures;
mod pictures;
mod report;
mod stage;

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::job::{Engine, Job, Mode, Operation, Place};
use super::{Cell, check_size, usage};
use crate::hosts::{CLIENT_ADDRESS, Host, SERVER_ADDRESS, VOLUME_MEMORY, Volume};
use crate::statistics::order;
use crate::store::{Programs, Progress};
use crate::{Error, Report};
use stage::Stage;

pub use pictures::{figure_id, pictures, titles};

/// The least memory of the server's host: its server, a mount and a pass need it also in a quick run. *Units*: bytes.
const SERVER_BYTES_MIN: u64 = 128 << 20;

/// The settings of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// A directory on the device, or a block device. The contents of a block device are lost.
    pub target: PathBuf,
    /// Whether a block device may be overwritten.
    pub overwrite: bool,
    /// A quick run: a quarter of the sizes and memory, three request sizes, one pass, nothing beyond the report.
    pub quick: bool,
    /// The number of passes.
    pub passes: Option<usize>,
    /// The length of each stream. *Units*: bytes.
    pub bytes: Option<u64>,
    /// The sizes of requests. *Units*: bytes.
    pub sizes: Vec<u64>,
    /// Only series whose name contains one of these; all if the list is empty.
    pub only: Vec<String>,
}

/// The system that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum System {
    /// XFS on the device, with blocks of this many bytes.
    Xfs(u32),
    /// The device, without a file system.
    Raw,
    /// A bare FUSE server on the device: the limit of file systems on FUSE.
    Bare,
    /// A shared volume on the device, mounted on the host.
    Volume,
}

/// The report's block size of XFS. *Units*: bytes.
const XFS_BLOCK_BYTES: u32 = 4096;
/// The block sizes beyond the report. *Units*: bytes.
const XFS_BLOCKS_BEYOND: [u32; 2] = [1024, 2048];

impl System {
    fn name(self) -> String {
        match self {
            System::Raw => "raw".to_owned(),
            System::Bare => "bare".to_owned(),
            System::Volume => "volume".to_owned(),
            System::Xfs(XFS_BLOCK_BYTES) => "xfs".to_owned(),
            System::Xfs(bytes) => format!("xfs-{bytes}"),
        }
    }

    /// Its place in the order of systems: first those that need no file system.
    fn place(self) -> u32 {
        match self {
            System::Raw => 0,
            System::Bare => 1,
            System::Xfs(XFS_BLOCK_BYTES) => 2,
            System::Volume => 3,
            System::Xfs(bytes) => bytes,
        }
    }

    /// The ways in which its caches are emptied before buffered reads. The bare server has no cache; pages of a volume
    /// are in its mount, which ends with it.
    fn emptied(self) -> &'static [Emptied] {
        match self {
            System::Raw | System::Bare => &[Emptied::Drop],
            System::Volume => &[Emptied::Remount],
            System::Xfs(_) => &[Emptied::Remount, Emptied::Drop],
        }
    }
}

/// How caches are emptied before a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Emptied {
    /// The file system is unmounted and mounted, as in the report.
    Remount,
    /// The pages of the streams are dropped.
    Drop,
}

/// A line of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Series {
    /// The system that is measured.
    pub system: System,
    /// The host.
    pub host: Host,
    /// The operation.
    pub operation: Operation,
    /// The mode.
    pub mode: Mode,
    /// The number of streams.
    pub streams: usize,
    /// How caches are emptied.
    pub emptied: Emptied,
}

impl Series {
    fn name(&self) -> String {
        let emptied = match (self.emptied, self.operation, self.mode) {
            (Emptied::Remount, ..) => ".remount",
            (Emptied::Drop, Operation::Read, Mode::Buffered) => ".drop",
            _ => "",
        };
        let Series { system, host, operation, mode, streams, .. } = self;
        let (system, host, operation, mode) = (system.name(), host.name(), operation.name(), mode.name());
        format!("{system}.{host}.{operation}.{mode}{emptied}.streams{streams}")
    }

    fn cell(&self, request_bytes: u64) -> Cell {
        let Series { operation, mode, streams, .. } = *self;
        Cell { operation, mode, streams, depth: 1, request_bytes }
    }
}

/// A series, and its rates: for each request size in bytes, the rate of each pass in MiB per second.
#[derive(Debug, Clone)]
struct Measured {
    series: Series,
    rates: Vec<(u64, Vec<f64>)>,
}

/// A whole run.
#[derive(Debug, Clone)]
struct Plan {
    options: Options,
    passes: usize,
    bytes: u64,
    sizes: Vec<u64>,
    /// The memory of the hosts is divided by this number.
    divisor: u64,
    series: Vec<Series>,
}

impl Plan {
    fn new(options: &Options) -> Result<Plan, Error> {
        let divisor = if options.quick { 4 } else { 1 };
        let bytes = options.bytes.unwrap_or(super::BYTES / divisor);
        let sizes = match (options.sizes.is_empty(), options.quick) {
            (false, _) => options.sizes.clone(),
            (true, true) => vec![64 << 10, 512 << 10, 4 << 20],
            (true, false) => (12..=24).map(|power| 1 << power).collect(),
        };
        for size in &sizes {
            check_size(*size, bytes)?;
            // Each of the two streams needs a buffer, in addition to the program's other memory.
            if *size > memory_bytes(Host::Server, divisor) / 8 {
                return Err(usage(format!("requests of {size} bytes do not fit into the server's memory here")));
            }
        }
        let passes = options.passes.unwrap_or(if options.quick { 1 } else { 3 });
        if !(1..=super::PASSES_MAX).contains(&passes) {
            return Err(usage(format!("{passes} passes: 1 at least, and {} at most", super::PASSES_MAX)));
        }
        let mut series = series(!options.quick);
        let is_named = |name: &str| options.only.is_empty() || options.only.iter().any(|part| name.contains(&**part));
        let known: Vec<String> = series.iter().map(Series::name).collect();
        if let Some(part) = options.only.iter().find(|part| !known.iter().any(|name| name.contains(&***part))) {
            let example = known.last().map_or("", String::as_str);
            return Err(usage(format!("no series has \"{part}\" in its name; there are such as {example}")));
        }
        series.retain(|series| is_named(&series.name()));
        Ok(Plan { options: options.clone(), passes, bytes, sizes, divisor, series })
    }

    /// The systems, in the order in which they use the device.
    fn systems(&self) -> Vec<System> {
        let mut systems: Vec<System> = self.series.iter().map(|series| series.system).collect();
        systems.dedup();
        systems
    }

    fn memory_bytes(&self, host: Host) -> u64 {
        memory_bytes(host, self.divisor)
    }
}

fn memory_bytes(host: Host, divisor: u64) -> u64 {
    (host.memory_bytes() / divisor).max(SERVER_BYTES_MIN)
}

/// All series, grouped by system.
fn series(beyond: bool) -> Vec<Series> {
    let mut all = Vec::new();
    for system in [System::Raw, System::Bare, System::Xfs(XFS_BLOCK_BYTES), System::Volume] {
        for host in Host::ALL {
            for operation in [Operation::Read, Operation::Write] {
                for mode in [Mode::Buffered, Mode::Direct] {
                    for streams in [1, 2] {
                        let one = Series { system, host, operation, mode, streams, emptied: Emptied::Drop };
                        match (operation, mode) {
                            (Operation::Read, Mode::Buffered) => {
                                all.extend(system.emptied().iter().map(|&emptied| Series { emptied, ..one }));
                            }
                            _ => all.push(one),
                        }
                    }
                }
            }
        }
    }
    if beyond {
        let host = Host::Client;
        for system in [System::Xfs(XFS_BLOCK_BYTES), System::Volume] {
            for (operation, mode) in [
                (Operation::Mixed, Mode::Buffered),
                (Operation::Mixed, Mode::Direct),
                (Operation::Write, Mode::Dsync),
                (Operation::Write, Mode::Sync),
                (Operation::Write, Mode::DirectDsync),
            ] {
                all.push(Series { system, host, operation, mode, streams: 1, emptied: Emptied::Drop });
            }
        }
        for bytes in XFS_BLOCKS_BEYOND {
            for operation in [Operation::Read, Operation::Write] {
                for mode in [Mode::Buffered, Mode::Direct] {
                    let system = System::Xfs(bytes);
                    all.push(Series { system, host, operation, mode, streams: 1, emptied: Emptied::Drop });
                }
            }
        }
    }
    all.sort_by_key(|series| series.system.place());
    all
}

/// Runs the matrix; `programs.worker` has to call [`serve`](super::serve), `programs.guardian`
/// [`serve`](crate::guardian::serve). `nectary` is the path of this program.
///
/// It moves the calling thread into its own mount and network namespaces; the thread must live as long as the process.
/// *Errors*: [`ErrorKind::Missing`](crate::ErrorKind::Missing) if this machine cannot mount, has no memory groups, or
/// lacks a program.
pub fn run(
    options: &Options,
    nectary: &Path,
    programs: &Programs,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Report, Error> {
    let plan = Plan::new(options)?;
    let began = Instant::now();
    let mut stage = Stage::new(&plan, nectary, programs)?;
    let of = (plan.series.len() * plan.sizes.len() * plan.passes) as u64;
    let mut done = 0;
    let mut measured = Vec::new();
    for system in plan.systems() {
        stage.show(system)?;
        let chosen = plan.series.iter().filter(|series| series.system == system);
        let mut of_system: Vec<Measured> = chosen
            .map(|series| Measured {
                series: *series,
                rates: plan.sizes.iter().map(|size| (*size, Vec::new())).collect(),
            })
            .collect();
        for pass in 0..plan.passes {
            for index in order(of_system.len(), pass) {
                let Measured { series, rates } = &mut of_system[index];
                for (size, rates) in rates {
                    let what = format!("{}, pass {} of {}", series.name(), pass + 1, plan.passes);
                    progress(&Progress { done, of, what });
                    done += 1;
                    rates.push(stage.pass(series, &series.cell(*size))?.rate());
                }
            }
        }
        measured.extend(of_system);
    }
    stage.finish()?;
    Ok(report::report(&plan, &measured, began.elapsed()))
}

/// The xdd command lines of the matrix, with the steps between them.
///
/// It neither reads nor makes files. *Errors*: [`ErrorKind::Usage`](crate::ErrorKind::Usage) for wrong options.
pub fn dry_run(options: &Options) -> Result<String, Error> {
    let plan = Plan::new(options)?;
    let mut text = format!(
        "# server: a host of {} MB, {SERVER_ADDRESS}; client: one of {} MB, {CLIENT_ADDRESS}, in its own network \
         namespace\n",
        plan.memory_bytes(Host::Server) >> 20,
        plan.memory_bytes(Host::Client) >> 20
    );
    let (device, root) = ("/dev/DEVICE", "/mnt/DIR");
    for system in plan.systems() {
        text += &set_up(&plan, system, device, root);
        let place = |stream: usize| match system {
            System::Raw => Place { path: device.into(), start: stream as u64 * plan.bytes },
            _ => Place { path: format!("{root}/stream-{stream}").into(), start: 0 },
        };
        for series in plan.series.iter().filter(|series| series.system == system) {
            let memory = plan.memory_bytes(series.host) >> 20;
            let shown = figures::shown_in(series);
            text += &format!("# {}: host of {memory} MB; {shown}\n", series.name());
            match series.emptied {
                Emptied::Remount => text += "# before each pass: unmount and mount\n",
                Emptied::Drop if series.operation == Operation::Read => {
                    text += "# before each pass: drop the pages of the streams\n";
                }
                Emptied::Drop => {}
            }
            for size in &plan.sizes {
                let job = Job { places: (0..series.streams).map(place).collect(), ..job(&plan, &series.cell(*size)) };
                text += &format!("{}\n", job.xdd(plan.passes));
            }
        }
    }
    Ok(text)
}

/// The commands that make a system.
fn set_up(plan: &Plan, system: System, device: &str, root: &str) -> String {
    let (spec, address) = (Volume::spec(Path::new(device)), Volume::address());
    match system {
        System::Raw => String::new(),
        System::Bare => {
            let bytes = plan.bytes;
            format!("# on the host:\nnectary bench bare-fuse --device {device} --directory {root} --bytes {bytes}\n")
        }
        System::Xfs(bytes) => format!("mkfs.xfs -f -b size={bytes} {device} && mount {device} {root}\n"),
        System::Volume => format!(
            "nectary volume format {spec} --force\n\
             # on the server's host:\nnectary volume serve {spec} --listen {address} --insecure\n\
             # on the host that is measured:\nnectary volume mount {spec} {root} --server {address} \
             --memory {VOLUME_MEMORY}\n"
        ),
    }
}

/// Describes a pass without places, for xdd's command line.
fn job(plan: &Plan, cell: &Cell) -> Job {
    Job {
        places: Vec::new(),
        is_device: false,
        bytes: plan.bytes,
        request_bytes: cell.request_bytes,
        operation: cell.operation,
        mode: cell.mode,
        depth: 1,
        engine: Engine::Threads,
        read_percent: 50,
        read_generations: Vec::new(),
        write_generation: 0,
        seconds_max: None,
        is_repeated: false,
        is_fresh: false,
        is_synced: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(quick: bool) -> Options {
        let target = PathBuf::from("/tmp");
        Options { target, overwrite: false, quick, passes: None, bytes: None, sizes: Vec::new(), only: Vec::new() }
    }

    #[test]
    fn the_matrix_has_the_conditions_of_the_report() {
        let plan = Plan::new(&options(false)).unwrap();
        assert_eq!((plan.bytes, plan.sizes.len(), plan.passes), (256 << 20, 13, 3));
        assert_eq!((plan.memory_bytes(Host::Client), plan.memory_bytes(Host::Server)), (3 << 30, 128 << 20));
        // XFS on each host has two operations, two modes and two numbers of streams; before buffered reads, caches are
        // emptied in two ways.
        let xfs = plan.series.iter().filter(|one| one.system == System::Xfs(4096) && one.streams > 0);
        assert_eq!(xfs.count(), 2 * (8 + 2) + 5);
        // The volume has no second way of emptying caches, and is measured beyond the report, too.
        let count = |system| plan.series.iter().filter(|one| one.system == system).count();
        assert_eq!((count(System::Raw), count(System::Bare), count(System::Volume)), (16, 16, 16 + 5));
        let (xfs, others) = (System::Xfs(4096), [System::Xfs(1024), System::Xfs(2048)]);
        assert_eq!(plan.systems(), [System::Raw, System::Bare, xfs, System::Volume, others[0], others[1]]);
        let mut names: Vec<String> = plan.series.iter().map(Series::name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), plan.series.len(), "each has a name");
        assert!(Plan::new(&Options { sizes: vec![32 << 20], ..options(false) }).is_err());
        assert!(Plan::new(&Options { passes: Some(0), ..options(true) }).is_err());
        let quick = Plan::new(&options(true)).unwrap();
        assert_eq!(quick.systems(), [System::Raw, System::Bare, xfs, System::Volume]);
        assert_eq!((quick.memory_bytes(Host::Client), quick.memory_bytes(Host::Server)), (768 << 20, 128 << 20));
    }

    #[test]
    fn only_series_that_are_named_run_and_others_are_refused() {
        let only = vec!["volume.server.read.direct".to_owned(), "bare.server.read.direct".to_owned()];
        let plan = Plan::new(&Options { only, ..options(true) }).unwrap();
        let names: Vec<String> = plan.series.iter().map(Series::name).collect();
        assert_eq!(
            names,
            [
                "bare.server.read.direct.streams1",
                "bare.server.read.direct.streams2",
                "volume.server.read.direct.streams1",
                "volume.server.read.direct.streams2"
            ]
        );
        let wrong = Plan::new(&Options { only: vec!["nfs".to_owned()], ..options(true) }).unwrap_err();
        assert!(wrong.message.contains("no series has \"nfs\"") && wrong.message.contains("volume."), "{wrong}");
    }

    #[test]
    fn a_dry_run_prints_a_line_of_xdd_for_each_size_and_how_systems_are_made() {
        let text = dry_run(&options(true)).unwrap();
        assert!(text.starts_with("# server: a host of 128 MB, 10.78.0.1; client: one of 768 MB, 10.78.0.2,"), "{text}");
        for part in [
            "nectary bench bare-fuse --device /dev/DEVICE --directory /mnt/DIR --bytes 67108864\n",
            "nectary volume format disk:/dev/DEVICE --force\n",
            "nectary volume serve disk:/dev/DEVICE --listen 10.78.0.1:7200 --insecure\n",
            "nectary volume mount disk:/dev/DEVICE /mnt/DIR --server 10.78.0.1:7200 --memory 32M\n",
            "# volume.client.read.buffered.remount.streams1: host of 768 MB; figures 1, 5, 9, 13\n",
            "# bare.server.write.direct.streams1: host of 128 MB; in no figure of the report\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let lines = text.lines().filter(|line| line.starts_with("xdd ")).count();
        assert_eq!(lines, series(false).len() * 3);
        assert!(
            text.contains("-op read -blocksize 1024 -reqsize 64 -mbytes 64 -passes 1 -queuedepth 1 -dio"),
            "{text}"
        );
        assert!(text.contains("# xfs.client.read.buffered.remount.streams1: host of 768 MB; figures 13"), "{text}");
    }
}
