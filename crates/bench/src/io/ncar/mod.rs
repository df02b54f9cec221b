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

use super::job::{IoPass, OpenMode, RequestOperation, StreamPlace, SubmissionEngine};
use super::{SweepCell, check_size, usage};
use crate::hosts::{CLIENT_ADDRESS, HostRole, SERVER_ADDRESS, ServedVolume, VOLUME_MEMORY};
use crate::statistics::order;
use crate::store::{ProcessCommands, RunProgress};
use crate::{Error, ExperimentReport};
use stage::NcarStage;

pub use pictures::{figure_id, pictures, titles};

/// The least memory of the server's host: its server, a mount and a pass need it also in a quick run. *Units*: bytes.
const SERVER_BYTES_MIN: u64 = 128 << 20;

/// The settings of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct NcarMatrixOptions {
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
pub enum MeasuredSystem {
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

impl MeasuredSystem {
    fn name(self) -> String {
        match self {
            MeasuredSystem::Raw => "raw".to_owned(),
            MeasuredSystem::Bare => "bare".to_owned(),
            MeasuredSystem::Volume => "volume".to_owned(),
            MeasuredSystem::Xfs(XFS_BLOCK_BYTES) => "xfs".to_owned(),
            MeasuredSystem::Xfs(bytes) => format!("xfs-{bytes}"),
        }
    }

    /// Its place in the order of systems: first those that need no file system.
    fn place(self) -> u32 {
        match self {
            MeasuredSystem::Raw => 0,
            MeasuredSystem::Bare => 1,
            MeasuredSystem::Xfs(XFS_BLOCK_BYTES) => 2,
            MeasuredSystem::Volume => 3,
            MeasuredSystem::Xfs(bytes) => bytes,
        }
    }

    /// The ways in which its caches are emptied before buffered reads. The bare server has no cache; pages of a volume
    /// are in its mount, which ends with it.
    fn emptied(self) -> &'static [CacheEmptying] {
        match self {
            MeasuredSystem::Raw | MeasuredSystem::Bare => &[CacheEmptying::Drop],
            MeasuredSystem::Volume => &[CacheEmptying::Remount],
            MeasuredSystem::Xfs(_) => &[CacheEmptying::Remount, CacheEmptying::Drop],
        }
    }
}

/// How caches are emptied before a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CacheEmptying {
    /// The file system is unmounted and mounted, as in the report.
    Remount,
    /// The pages of the streams are dropped.
    Drop,
}

/// A line of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct NcarSeries {
    /// The system that is measured.
    pub system: MeasuredSystem,
    /// The host.
    pub host: HostRole,
    /// The operation.
    pub operation: RequestOperation,
    /// The mode.
    pub mode: OpenMode,
    /// The number of streams.
    pub streams: usize,
    /// How caches are emptied.
    pub emptied: CacheEmptying,
}

impl NcarSeries {
    fn name(&self) -> String {
        let emptied = match (self.emptied, self.operation, self.mode) {
            (CacheEmptying::Remount, ..) => ".remount",
            (CacheEmptying::Drop, RequestOperation::Read, OpenMode::Buffered) => ".drop",
            _ => "",
        };
        let NcarSeries { system, host, operation, mode, streams, .. } = self;
        let (system, host, operation, mode) = (system.name(), host.name(), operation.name(), mode.name());
        format!("{system}.{host}.{operation}.{mode}{emptied}.streams{streams}")
    }

    fn cell(&self, request_bytes: u64) -> SweepCell {
        let NcarSeries { operation, mode, streams, .. } = *self;
        SweepCell { operation, mode, streams, depth: 1, request_bytes }
    }
}

/// A series, and its rates: for each request size in bytes, the rate of each pass in MiB per second.
#[derive(Debug, Clone)]
struct SeriesRates {
    series: NcarSeries,
    rates: Vec<(u64, Vec<f64>)>,
}

/// A whole run.
#[derive(Debug, Clone)]
struct NcarMatrixPlan {
    options: NcarMatrixOptions,
    passes: usize,
    bytes: u64,
    sizes: Vec<u64>,
    /// The memory of the hosts is divided by this number.
    divisor: u64,
    series: Vec<NcarSeries>,
}

impl NcarMatrixPlan {
    fn new(options: &NcarMatrixOptions) -> Result<NcarMatrixPlan, Error> {
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
            if *size > memory_bytes(HostRole::Server, divisor) / 8 {
                return Err(usage(format!("requests of {size} bytes do not fit into the server's memory here")));
            }
        }
        let passes = options.passes.unwrap_or(if options.quick { 1 } else { 3 });
        if !(1..=super::PASSES_MAX).contains(&passes) {
            return Err(usage(format!("{passes} passes: 1 at least, and {} at most", super::PASSES_MAX)));
        }
        let mut series = series(!options.quick);
        let is_named = |name: &str| options.only.is_empty() || options.only.iter().any(|part| name.contains(&**part));
        let known: Vec<String> = series.iter().map(NcarSeries::name).collect();
        if let Some(part) = options.only.iter().find(|part| !known.iter().any(|name| name.contains(&***part))) {
            let example = known.last().map_or("", String::as_str);
            return Err(usage(format!("no series has \"{part}\" in its name; there are such as {example}")));
        }
        series.retain(|series| is_named(&series.name()));
        Ok(NcarMatrixPlan { options: options.clone(), passes, bytes, sizes, divisor, series })
    }

    /// The systems, in the order in which they use the device.
    fn systems(&self) -> Vec<MeasuredSystem> {
        let mut systems: Vec<MeasuredSystem> = self.series.iter().map(|series| series.system).collect();
        systems.dedup();
        systems
    }

    fn memory_bytes(&self, host: HostRole) -> u64 {
        memory_bytes(host, self.divisor)
    }
}

fn memory_bytes(host: HostRole, divisor: u64) -> u64 {
    (host.memory_bytes() / divisor).max(SERVER_BYTES_MIN)
}

/// All series, grouped by system.
fn series(beyond: bool) -> Vec<NcarSeries> {
    let mut all = Vec::new();
    for system in
        [MeasuredSystem::Raw, MeasuredSystem::Bare, MeasuredSystem::Xfs(XFS_BLOCK_BYTES), MeasuredSystem::Volume]
    {
        for host in HostRole::ALL {
            for operation in [RequestOperation::Read, RequestOperation::Write] {
                for mode in [OpenMode::Buffered, OpenMode::Direct] {
                    for streams in [1, 2] {
                        let one = NcarSeries { system, host, operation, mode, streams, emptied: CacheEmptying::Drop };
                        match (operation, mode) {
                            (RequestOperation::Read, OpenMode::Buffered) => {
                                all.extend(system.emptied().iter().map(|&emptied| NcarSeries { emptied, ..one }));
                            }
                            _ => all.push(one),
                        }
                    }
                }
            }
        }
    }
    if beyond {
        let host = HostRole::Client;
        for system in [MeasuredSystem::Xfs(XFS_BLOCK_BYTES), MeasuredSystem::Volume] {
            for (operation, mode) in [
                (RequestOperation::Mixed, OpenMode::Buffered),
                (RequestOperation::Mixed, OpenMode::Direct),
                (RequestOperation::Write, OpenMode::Dsync),
                (RequestOperation::Write, OpenMode::Sync),
                (RequestOperation::Write, OpenMode::DirectDsync),
            ] {
                all.push(NcarSeries { system, host, operation, mode, streams: 1, emptied: CacheEmptying::Drop });
            }
        }
        for bytes in XFS_BLOCKS_BEYOND {
            for operation in [RequestOperation::Read, RequestOperation::Write] {
                for mode in [OpenMode::Buffered, OpenMode::Direct] {
                    let system = MeasuredSystem::Xfs(bytes);
                    all.push(NcarSeries { system, host, operation, mode, streams: 1, emptied: CacheEmptying::Drop });
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
/// *Errors*: [`ExperimentErrorKind::Missing`](crate::ExperimentErrorKind::Missing) if this machine cannot mount, has no memory groups, or
/// lacks a program.
pub fn run(
    options: &NcarMatrixOptions,
    nectary: &Path,
    programs: &ProcessCommands,
    progress: &mut dyn FnMut(&RunProgress),
) -> Result<ExperimentReport, Error> {
    let plan = NcarMatrixPlan::new(options)?;
    let began = Instant::now();
    let mut stage = NcarStage::new(&plan, nectary, programs)?;
    let of = (plan.series.len() * plan.sizes.len() * plan.passes) as u64;
    let mut done = 0;
    let mut measured = Vec::new();
    for system in plan.systems() {
        stage.show(system)?;
        let chosen = plan.series.iter().filter(|series| series.system == system);
        let mut of_system: Vec<SeriesRates> = chosen
            .map(|series| SeriesRates {
                series: *series,
                rates: plan.sizes.iter().map(|size| (*size, Vec::new())).collect(),
            })
            .collect();
        for pass in 0..plan.passes {
            for index in order(of_system.len(), pass) {
                let SeriesRates { series, rates } = &mut of_system[index];
                for (size, rates) in rates {
                    let what = format!("{}, pass {} of {}", series.name(), pass + 1, plan.passes);
                    progress(&RunProgress { done, of, what });
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
/// It neither reads nor makes files. *Errors*: [`ExperimentErrorKind::ResourceUsage`](crate::ExperimentErrorKind::ResourceUsage) for wrong options.
pub fn dry_run(options: &NcarMatrixOptions) -> Result<String, Error> {
    let plan = NcarMatrixPlan::new(options)?;
    let mut text = format!(
        "# server: a host of {} MB, {SERVER_ADDRESS}; client: one of {} MB, {CLIENT_ADDRESS}, in its own network \
         namespace\n",
        plan.memory_bytes(HostRole::Server) >> 20,
        plan.memory_bytes(HostRole::Client) >> 20
    );
    let (device, root) = ("/dev/DEVICE", "/mnt/DIR");
    for system in plan.systems() {
        text += &set_up(&plan, system, device, root);
        let place = |stream: usize| match system {
            MeasuredSystem::Raw => StreamPlace { path: device.into(), start: stream as u64 * plan.bytes },
            _ => StreamPlace { path: format!("{root}/stream-{stream}").into(), start: 0 },
        };
        for series in plan.series.iter().filter(|series| series.system == system) {
            let memory = plan.memory_bytes(series.host) >> 20;
            let shown = figures::shown_in(series);
            text += &format!("# {}: host of {memory} MB; {shown}\n", series.name());
            match series.emptied {
                CacheEmptying::Remount => text += "# before each pass: unmount and mount\n",
                CacheEmptying::Drop if series.operation == RequestOperation::Read => {
                    text += "# before each pass: drop the pages of the streams\n";
                }
                CacheEmptying::Drop => {}
            }
            for size in &plan.sizes {
                let job =
                    IoPass { places: (0..series.streams).map(place).collect(), ..job(&plan, &series.cell(*size)) };
                text += &format!("{}\n", job.xdd(plan.passes));
            }
        }
    }
    Ok(text)
}

/// The commands that make a system.
fn set_up(plan: &NcarMatrixPlan, system: MeasuredSystem, device: &str, root: &str) -> String {
    let (spec, address) = (ServedVolume::spec(Path::new(device)), ServedVolume::address());
    match system {
        MeasuredSystem::Raw => String::new(),
        MeasuredSystem::Bare => {
            let bytes = plan.bytes;
            format!("# on the host:\nnectary bench bare-fuse --device {device} --directory {root} --bytes {bytes}\n")
        }
        MeasuredSystem::Xfs(bytes) => format!("mkfs.xfs -f -b size={bytes} {device} && mount {device} {root}\n"),
        MeasuredSystem::Volume => format!(
            "nectary volume format {spec} --force\n\
             # on the server's host:\nnectary volume serve {spec} --listen {address} --insecure\n\
             # on the host that is measured:\nnectary volume mount {spec} {root} --server {address} \
             --memory {VOLUME_MEMORY}\n"
        ),
    }
}

/// Describes a pass without places, for xdd's command line.
fn job(plan: &NcarMatrixPlan, cell: &SweepCell) -> IoPass {
    IoPass {
        places: Vec::new(),
        is_device: false,
        bytes: plan.bytes,
        request_bytes: cell.request_bytes,
        operation: cell.operation,
        mode: cell.mode,
        depth: 1,
        engine: SubmissionEngine::Threads,
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

    fn options(quick: bool) -> NcarMatrixOptions {
        let target = PathBuf::from("/tmp");
        NcarMatrixOptions {
            target,
            overwrite: false,
            quick,
            passes: None,
            bytes: None,
            sizes: Vec::new(),
            only: Vec::new(),
        }
    }

    #[test]
    fn matrix_matches_report_conditions() {
        let plan = NcarMatrixPlan::new(&options(false)).unwrap();
        assert_eq!((plan.bytes, plan.sizes.len(), plan.passes), (256 << 20, 13, 3));
        assert_eq!((plan.memory_bytes(HostRole::Client), plan.memory_bytes(HostRole::Server)), (3 << 30, 128 << 20));
        // XFS on each host has two operations, two modes and two numbers of streams; before buffered reads, caches are
        // emptied in two ways.
        let xfs = plan.series.iter().filter(|one| one.system == MeasuredSystem::Xfs(4096) && one.streams > 0);
        assert_eq!(xfs.count(), 2 * (8 + 2) + 5);
        // The volume has no second way of emptying caches, and is measured beyond the report, too.
        let count = |system| plan.series.iter().filter(|one| one.system == system).count();
        assert_eq!(
            (count(MeasuredSystem::Raw), count(MeasuredSystem::Bare), count(MeasuredSystem::Volume)),
            (16, 16, 16 + 5)
        );
        let (xfs, others) = (MeasuredSystem::Xfs(4096), [MeasuredSystem::Xfs(1024), MeasuredSystem::Xfs(2048)]);
        assert_eq!(
            plan.systems(),
            [MeasuredSystem::Raw, MeasuredSystem::Bare, xfs, MeasuredSystem::Volume, others[0], others[1]]
        );
        let mut names: Vec<String> = plan.series.iter().map(NcarSeries::name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), plan.series.len(), "each has a name");
        assert!(NcarMatrixPlan::new(&NcarMatrixOptions { sizes: vec![32 << 20], ..options(false) }).is_err());
        assert!(NcarMatrixPlan::new(&NcarMatrixOptions { passes: Some(0), ..options(true) }).is_err());
        let quick = NcarMatrixPlan::new(&options(true)).unwrap();
        assert_eq!(quick.systems(), [MeasuredSystem::Raw, MeasuredSystem::Bare, xfs, MeasuredSystem::Volume]);
        assert_eq!(
            (quick.memory_bytes(HostRole::Client), quick.memory_bytes(HostRole::Server)),
            (768 << 20, 128 << 20)
        );
    }

    /// Only the named series run.
    #[test]
    fn matrix_refuses_unknown_series() {
        let only = vec!["volume.server.read.direct".to_owned(), "bare.server.read.direct".to_owned()];
        let plan = NcarMatrixPlan::new(&NcarMatrixOptions { only, ..options(true) }).unwrap();
        let names: Vec<String> = plan.series.iter().map(NcarSeries::name).collect();
        assert_eq!(
            names,
            [
                "bare.server.read.direct.streams1",
                "bare.server.read.direct.streams2",
                "volume.server.read.direct.streams1",
                "volume.server.read.direct.streams2"
            ]
        );
        let wrong =
            NcarMatrixPlan::new(&NcarMatrixOptions { only: vec!["nfs".to_owned()], ..options(true) }).unwrap_err();
        assert!(wrong.message.contains("no series has \"nfs\"") && wrong.message.contains("volume."), "{wrong}");
    }

    /// It prints a line of xdd for each size, and the commands that make the systems.
    #[test]
    fn dry_run_prints_xdd_commands() {
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
