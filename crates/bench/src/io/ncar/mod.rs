//! `bench io --matrix ncar`: the conditions of the NCAR report's figures 1 to 20.
//!
//! Owns: the series of the report, in the order in which they run. The report's two hosts are two memory groups here: a
//! client with 3 GB and the metadata server's host with 128 MB. Files of 256 MB are read or written, buffered and
//! direct, with one and two streams. Caches are emptied by unmount and mount, as in the report, and by dropping pages;
//! both are shown. The raw device below XFS and conditions beyond the report are measured too. The volume is not
//! measured yet.
//!
//! | file | what is in it |
//! |---|---|
//! | `figures` | which series each figure shows |
//! | `stage` | the device, the file system, and the hosts |
//! | `report` | tables, JSON, the pictures |

mod figures;
mod report;
mod stage;

use std::path::PathBuf;
use std::time::Instant;

use super::job::{Engine, Job, Mode, Operation, Place};
use super::{Cell, Report, check_size, usage};
use crate::Error;
use crate::statistics::order;
use crate::store::{Programs, Progress};
use stage::Stage;

/// The message that stands in place of the volume's rows.
const NOT_RUN: &str = "volume: NOT RUN: this matrix does not mount one yet";

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
}

/// A host of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    /// The report's Onyx2: 3 GB, and no metadata server.
    Client,
    /// The report's Origin 200: 128 MB, with the metadata server.
    Server,
}

impl Host {
    const ALL: [Host; 2] = [Host::Client, Host::Server];

    fn name(self) -> &'static str {
        match self {
            Host::Client => "client",
            Host::Server => "server",
        }
    }

    fn memory_bytes(self) -> u64 {
        match self {
            Host::Client => 3 << 30,
            Host::Server => 128 << 20,
        }
    }
}

/// The system that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum System {
    /// XFS on the device, with blocks of this many bytes.
    Xfs(u32),
    /// The device, without a file system.
    Raw,
}

/// The report's block size of XFS. *Units*: bytes.
const XFS_BLOCK_BYTES: u32 = 4096;
/// The block sizes beyond the report. *Units*: bytes.
const XFS_BLOCKS_BEYOND: [u32; 2] = [1024, 2048];

impl System {
    fn name(self) -> String {
        match self {
            System::Raw => "raw".to_owned(),
            System::Xfs(XFS_BLOCK_BYTES) => "xfs".to_owned(),
            System::Xfs(bytes) => format!("xfs-{bytes}"),
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
            if *size > Host::Server.memory_bytes() / divisor / 8 {
                return Err(usage(format!("requests of {size} bytes do not fit into the server's memory here")));
            }
        }
        let passes = options.passes.unwrap_or(if options.quick { 1 } else { 3 });
        if !(1..=super::PASSES_MAX).contains(&passes) {
            return Err(usage(format!("{passes} passes: 1 at least, and {} at most", super::PASSES_MAX)));
        }
        let series = series(!options.quick);
        Ok(Plan { options: options.clone(), passes, bytes, sizes, divisor, series })
    }

    /// The systems, in the order in which they use the device.
    fn systems(&self) -> Vec<System> {
        let mut systems: Vec<System> = self.series.iter().map(|series| series.system).collect();
        systems.dedup();
        systems
    }

    fn memory_bytes(&self, host: Host) -> u64 {
        host.memory_bytes() / self.divisor
    }
}

/// All series, grouped by system: the device first, because making a file system destroys its contents.
fn series(beyond: bool) -> Vec<Series> {
    let mut all = Vec::new();
    for system in [System::Raw, System::Xfs(XFS_BLOCK_BYTES)] {
        for host in Host::ALL {
            for operation in [Operation::Read, Operation::Write] {
                for mode in [Mode::Buffered, Mode::Direct] {
                    for streams in [1, 2] {
                        let one = Series { system, host, operation, mode, streams, emptied: Emptied::Drop };
                        if system != System::Raw && operation == Operation::Read && mode == Mode::Buffered {
                            all.push(Series { emptied: Emptied::Remount, ..one });
                        }
                        all.push(one);
                    }
                }
            }
        }
    }
    if beyond {
        let (system, host) = (System::Xfs(XFS_BLOCK_BYTES), Host::Client);
        for (operation, mode) in [
            (Operation::Mixed, Mode::Buffered),
            (Operation::Mixed, Mode::Direct),
            (Operation::Write, Mode::Dsync),
            (Operation::Write, Mode::Sync),
            (Operation::Write, Mode::DirectDsync),
        ] {
            all.push(Series { system, host, operation, mode, streams: 1, emptied: Emptied::Drop });
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
    all
}

/// Runs the matrix; `programs.worker` has to call [`serve`](super::serve), `programs.guardian`
/// [`serve`](crate::guardian::serve).
///
/// It moves the calling thread into its own mount namespace. *Errors*:
/// [`ErrorKind::Missing`](crate::ErrorKind::Missing) if this machine cannot mount or has no memory groups.
pub fn run(options: &Options, programs: &Programs, progress: &mut dyn FnMut(&Progress)) -> Result<Report, Error> {
    let plan = Plan::new(options)?;
    let began = Instant::now();
    let mut stage = Stage::new(&plan, programs)?;
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
    let mut text = format!("# {NOT_RUN}\n");
    let (device, root) = ("/dev/DEVICE", "/mnt/DIR");
    for system in plan.systems() {
        if let System::Xfs(bytes) = system {
            text += &format!("mkfs.xfs -f -b size={bytes} {device} && mount {device} {root}\n");
        }
        let place = |stream: usize| match system {
            System::Raw => Place { path: device.into(), start: stream as u64 * plan.bytes },
            System::Xfs(_) => Place { path: format!("{root}/stream-{stream}").into(), start: 0 },
        };
        for series in plan.series.iter().filter(|series| series.system == system) {
            let memory = plan.memory_bytes(series.host) >> 20;
            let shown = figures::shown_in(series);
            text += &format!("# {}: host of {memory} MB; {shown}\n", series.name());
            match series.emptied {
                Emptied::Remount => text += &format!("umount {root} && mount {device} {root}\n"),
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
        Options { target, overwrite: false, quick, passes: None, bytes: None, sizes: Vec::new() }
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
        assert_eq!(plan.systems(), [System::Raw, System::Xfs(4096), System::Xfs(1024), System::Xfs(2048)]);
        let mut names: Vec<String> = plan.series.iter().map(Series::name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), plan.series.len(), "each has a name");
        assert!(Plan::new(&Options { sizes: vec![32 << 20], ..options(false) }).is_err());
        assert!(Plan::new(&Options { passes: Some(0), ..options(true) }).is_err());
        assert_eq!(Plan::new(&options(true)).unwrap().systems(), [System::Raw, System::Xfs(4096)]);
    }

    #[test]
    fn a_dry_run_prints_a_line_of_xdd_for_each_size_and_names_what_does_not_run() {
        let text = dry_run(&options(true)).unwrap();
        assert!(text.starts_with("# volume: NOT RUN: this matrix does not mount one yet\n"), "{text}");
        let lines = text.lines().filter(|line| line.starts_with("xdd ")).count();
        assert_eq!(lines, series(false).len() * 3);
        assert!(
            text.contains("-op read -blocksize 1024 -reqsize 64 -mbytes 64 -passes 1 -queuedepth 1 -dio"),
            "{text}"
        );
        assert!(text.contains("# xfs.client.read.buffered.remount.streams1: host of 768 MB; figures 13"), "{text}");
    }
}
