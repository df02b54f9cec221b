//! The options of `bench`.

mod bench_io;
mod bench_proxy;
mod bench_report;

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use nectary_bench::contender::ContenderFileSystem;
use nectary_bench::disk::QUEUE_DEPTH;
use nectary_bench::workload::WorkloadPreset;
use nectary_block::parse_size;

pub use bench_io::{BenchIoArguments, IoMatrix};
pub use bench_proxy::BenchProxyArguments;
pub use bench_report::{
    BenchAllArguments, BenchClaimsArguments, BenchCompareArguments, BenchFiguresArguments, BenchReportArguments,
};

use super::{TEMPLATE, exit};

/// `bench`.
#[derive(Debug, Args)]
#[command(subcommand_negates_reqs = true)]
pub struct BenchArguments {
    /// Print what each experiment shows and how long it takes
    #[arg(long, required = true)]
    pub list: bool,
    /// The experiment
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
}

/// The experiments.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// A proxy's workload straight on storage: the store beside one file per object on file systems (root)
    #[command(help_template = TEMPLATE, before_help = "Examples:
  A look, in about a minute:
    nectary bench store --seed table4 --quick
  At a 16th of the size, disks of 4 GB alone, against XFS:
    nectary bench store --seed table4 --scale 0.0625 --size 4 --only xfs.50
  Four threads and two disks:
    nectary bench store --seed table5
  The requests of an access log:
    nectary bench store --seed table4 --log access.log.gz
  On the device that /var/cache is on, as it is, in real time:
    nectary bench store --disk bare --folder /var/cache --json bare.json", after_help = exit::HELP)]
    Store(Box<BenchStoreArguments>),
    /// Real programs on the live buffer cache, under each replacement policy, on a modelled disk (root)
    #[command(help_template = TEMPLATE, before_help = "Examples:
  A look, in two minutes:
    nectary bench cache --seed dear --quick
  All of it, alone and together, at two sizes, on a quiet machine:
    nectary bench cache --seed dear --json dear.json --write docs/results
  Under the conditions of the paper alone:
    nectary bench cache --seed dear --blocks 768
  One program and one mix, once each:
    nectary bench cache --seed dear --only sort --only cscope+sort \\
      --executions 1", after_help = exit::HELP)]
    Cache(BenchCacheArguments),
    /// What a directory, file or device gives for each size of request, as xdd measures it
    #[command(help_template = TEMPLATE, before_help = "Examples:
  A look at the disk that /var/cache is on:
    nectary bench io /var/cache --quick
  Two streams, direct, four requests of each at once, and each request's times:
    nectary bench io /var/cache --mode direct --streams 2 --depth 4 \\
      --timestamps requests.csv --svg io.svg
  Reads of a disk (writes would need --overwrite):
    nectary bench io /dev/sdb --op read
  Whether fio measures the same:
    nectary bench io /var/cache --check-fio
  The figures of the NCAR report, and the xdd command lines of them:
    nectary bench io /var/cache --matrix ncar --json ncar.json
    nectary bench io /var/cache --matrix ncar --dry-run", after_help = exit::HELP)]
    Io(Box<BenchIoArguments>),
    /// The rates of the store, beside those of fio: reads at queue depth 32, and filling
    #[command(help_template = TEMPLATE, before_help = "Examples:
  The device that /var/cache is on:
    nectary bench limits --folder /var/cache --json limits.json", after_help = exit::HELP)]
    Limits(BenchLimitsArguments),
    /// Creating and deleting small files, as HBench-OS and lmbench measure it: in any directory, on network RAM disks
    /// beside local disks (root), or on a shared volume beside JuiceFS and XFS (root)
    #[command(help_template = TEMPLATE, before_help = "Examples:
  Any directory:
    nectary bench files --folder /mnt
  Other numbers and sizes:
    nectary bench files --folder /mnt --files 4096 --files 16384 --size 16K
  Network RAM disks under the conditions of the paper, a look in twenty minutes:
    nectary bench files --seed nrd --quick
  All of it:
    nectary bench files --seed nrd --json nrd.json --write docs/results
  Creates, stats and unlinks a second on a shared volume:
    nectary bench files --seed ncar --json ncar.json", after_help = exit::HELP)]
    Files(BenchFilesArguments),
    /// A donor of memory, beside nbdkit and a null server: rates and processor time with fio as client
    #[command(help_template = TEMPLATE, before_help = "Examples:
  A look, in a minute:
    nectary bench ram --quick
  Random requests alone, with a donor of one thread:
    nectary bench ram --only 4x32 --threads 1 --json ram.json", after_help = exit::HELP)]
    Ram(BenchRamArguments),
    /// Caching proxies over HTTP, all in one run, with equal memory and disks (root)
    #[command(help_template = TEMPLATE, before_help = "Examples:
  A look at the proxies that are installed, in a few minutes:
    nectary bench proxy --folder /var/cache --quick
  Nectary beside nginx and Varnish alone:
    nectary bench proxy --folder /var/cache --only nginx --only varnish
  The hit rates of the requests of an access log:
    nectary bench proxy --folder /var/cache --log access.log.gz
  A look with the suite for HTTP caches, from a clone of its repository:
    nectary bench proxy --folder /var/cache --quick --suite ./cache-tests", after_help = exit::HELP)]
    Proxy(Box<BenchProxyArguments>),
    /// Every experiment at a size that fits this machine, as one report; goes on after an interruption (root)
    #[command(help_template = TEMPLATE, before_help = "Examples:
  A look at everything, in a quarter of an hour:
    nectary bench all --report look --quick
  All of it, in up to two hours; the same command goes on after Ctrl-C:
    nectary bench all --report full --folder /var/cache
  Only the tables of the store:
    nectary bench all --report full --only store-table", after_help = exit::HELP)]
    All(BenchAllArguments),
    /// Draws the report of `bench all` from the experiments' JSON files: one HTML file
    #[command(help_template = TEMPLATE, before_help = "Examples:
  Into full/report.html:
    nectary bench report full
  Elsewhere, and which tables and figures of the seeds are in it:
    nectary bench report full --output /tmp/page.html --json", after_help = exit::HELP)]
    Report(BenchReportArguments),
    /// Two runs of `bench all`, or two JSON files: what has changed by more than the intervals
    #[command(help_template = TEMPLATE, before_help = "Examples:
  Exit code 1 if something has become worse:
    nectary bench compare before after
  One experiment:
    nectary bench compare before/ram.json after/ram.json --json", after_help = exit::HELP)]
    Compare(BenchCompareArguments),
    /// What the seed documents claim, and whether the experiments show it
    #[command(help_template = TEMPLATE, before_help = "Examples:
  Exit code 1 if an experiment is missing:
    nectary bench claims full", after_help = exit::HELP)]
    Claims(BenchClaimsArguments),
    /// The figures that Nectary should reach, and whether the experiments or pages of results have them
    #[command(help_template = TEMPLATE, before_help = "Examples:
  Of a run of `bench all`:
    nectary bench figures full --json
  Of the pages of this repository:
    nectary bench figures docs/results", after_help = exit::HELP)]
    Figures(BenchFiguresArguments),
    /// The process of one contender; started by the command itself
    #[command(hide = true)]
    Worker,
    /// The process of one pass on a host; started by the command itself
    #[command(hide = true)]
    IoWorker,
    /// The process that creates and deletes files; started by the command itself
    #[command(hide = true)]
    FilesWorker,
    /// A FUSE server that only reads and writes a device; started by the command itself
    #[command(hide = true)]
    BareFuse(BenchBareFuseArguments),
    /// Becomes another program in a memory group or an empty network; started by the command itself
    #[command(hide = true)]
    Inside(BenchInsideArguments),
    /// The process with the cache of one execution; started by the command itself
    #[command(hide = true)]
    CacheWorker,
    /// Takes away what a run made; started by the command itself
    #[command(hide = true)]
    Guardian,
}

/// Other disks than those of the papers.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum BenchDisk {
    /// the device that --folder is on, as it is: no model, real time; pages of 1, 3, 5 and 10 embedded objects
    Bare,
}

/// Laws of requests.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum BenchWorkloadLaws {
    /// those of the seeds' trace: 4.8 M requests for 27.6 GB, pages with embedded objects
    Seed,
    /// the published numbers of Wikimedia's log of text pages of 2019, without clients and embedded objects
    Wikimedia,
}

impl From<BenchWorkloadLaws> for WorkloadPreset {
    fn from(laws: BenchWorkloadLaws) -> WorkloadPreset {
        match laws {
            BenchWorkloadLaws::Seed => WorkloadPreset::Seed,
            BenchWorkloadLaws::Wikimedia => WorkloadPreset::Wikimedia,
        }
    }
}

/// The seeds' tables.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum SeedTable {
    /// one thread; one disk, of 4, 9 or 18 GB; 256 MB of memory, split in two ways; beside EFS and XFS
    Table4,
    /// four threads, two disks of 4 and 8 GB together; UFS in three forms
    Table5,
}

/// `bench store`.
#[derive(Debug, Args)]
pub struct BenchStoreArguments {
    /// Whose conditions
    #[arg(long, value_name = "TABLE", value_enum, required_unless_present = "disk", conflicts_with = "disk")]
    pub seed: Option<SeedTable>,
    /// The disk, instead of the seeds' conditions
    #[arg(long, value_name = "DISK", value_enum, requires = "folder")]
    pub disk: Option<BenchDisk>,
    /// A directory on the device that is the bare disk, for a file a contender
    #[arg(long, value_name = "DIR", requires = "disk")]
    pub folder: Option<PathBuf>,
    /// Only pages that embed this many objects on average, with --disk bare; may be repeated
    #[arg(long, value_name = "N", requires = "disk")]
    pub embedded: Vec<u64>,
    /// The program that contends with foyer, with --disk bare; by default, nectary-foyer beside this program
    #[arg(long, value_name = "PROGRAM", requires = "disk")]
    pub foyer: Option<PathBuf>,
    /// Replay the requests of this access log: Squid's native format, Common, Combined, W3C extended or JSON lines;
    /// plain, or compressed with gzip, xz or zstd
    #[arg(long, value_name = "FILE", conflicts_with_all = ["workload", "embedded"])]
    pub log: Option<PathBuf>,
    /// The laws by which requests are drawn; the seeds' by default. Only figures of the seeds' have targets
    #[arg(long, value_name = "LAWS", value_enum)]
    pub workload: Option<BenchWorkloadLaws>,
    /// Share of the seeds' sizes, memory and trace; 1/32 by default, which is the least; with --log the share that gives
    /// disks the seeds' shares of the log's bytes
    #[arg(long, value_name = "F")]
    pub scale: Option<f64>,
    /// Share of the scaled trace that is replayed, from its beginning on; all of it by default
    #[arg(long, value_name = "F")]
    pub trace: Option<f64>,
    /// The smallest disk and the beginning of the trace alone, in about a minute
    #[arg(long)]
    pub quick: bool,
    /// Nectary beside itself with one thing changed at a time, on the smallest disk; peers only where --only names them
    #[arg(long)]
    pub ablations: bool,
    /// Write figures and rows to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Pieces of the workload, each of which gives one pair; at least 10, or 2 with --quick
    #[arg(long, value_name = "N")]
    pub pairs: Option<usize>,
    /// Only contenders with this in their name, for example xfs or ext4-dirsync.50; may be repeated
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
    /// Only this disk size of the table, in GB; may be repeated
    #[arg(long, value_name = "GB")]
    pub size: Vec<u64>,
    /// Disks in real time, this many times faster, instead of a virtual clock
    #[arg(long, value_name = "N")]
    pub speed: Option<f64>,
    /// Chooses the requests: the first of the workload's seeds
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub random_seed: u64,
    /// How many seeds of the workload; by default 5 on a virtual clock, unless the run is quick
    #[arg(long, value_name = "N")]
    pub seeds: Option<usize>,
    /// Of how many waiting requests the modelled disk chooses the next; 1 is a disk of 1999
    #[arg(long, value_name = "N", default_value_t = QUEUE_DEPTH)]
    pub queue_depth: usize,
    /// How much of a file system's buffer cache may be dirty, in percent; the best of 10, 20, 40 and 80 by default
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u64).range(1..=100))]
    pub dirty: Option<u64>,
    /// Write a picture of the ratios by piece and of what a request's time was spent on to this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write the report as a page with its picture into this directory, for example docs/results
    #[arg(long, value_name = "DIR")]
    pub write: Option<PathBuf>,
}

/// The seeds' programs.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum SeedPrograms {
    /// 6 MB of cache, blocks of 8 KB: cscope, glimpse, sort, ld, cpp, gnuplot and PostgreSQL; 512 MiB: grep and SQLite
    Dear,
}

/// `bench cache`.
#[derive(Debug, Args)]
pub struct BenchCacheArguments {
    /// Whose conditions
    #[arg(long, value_name = "PAPER", value_enum)]
    pub seed: SeedPrograms,
    /// Each program once under LRU, dear and adaptive, without mixes and without verdicts
    #[arg(long)]
    pub quick: bool,
    /// Only this program or mix, for example sort or cscope+sort; may be repeated
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
    /// Sizes of the cache in blocks of 8 KiB, for example 768,65536, which is the default; 768 with --quick
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub blocks: Vec<u64>,
    /// Executions of each program under each policy; 3 by default, or 1 with --quick
    #[arg(long, value_name = "N")]
    pub executions: Option<usize>,
    /// How many times faster than real the disk is under mixes; 20 by default
    #[arg(long, value_name = "N")]
    pub speed: Option<f64>,
    /// Write figures and rows to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a picture of reads and times to this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write the report as a page with its picture into this directory, for example docs/results; refused if the
    /// current directory has changes that are in no commit, or if the load of the machine is above 0.5
    #[arg(long, value_name = "DIR")]
    pub write: Option<PathBuf>,
    /// Write the page also then; it says so
    #[arg(long, requires = "write")]
    pub anyway: bool,
}

/// The seeds' conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SeedFiles {
    /// 1,024 to 16,384 files of 2 KB, a client of 64 MB, donors of 128 MB, links of 10 and 155 Mb/s and unshaped
    Nrd,
    /// rates at which 1 and 4 threads create, stat and unlink empty files, on both hosts of a shared volume
    Ncar,
}

/// The file systems of `bench files`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BenchFileSystem {
    /// ext4 with a journal
    Ext4,
    /// XFS
    Xfs,
}

impl From<BenchFileSystem> for ContenderFileSystem {
    fn from(system: BenchFileSystem) -> ContenderFileSystem {
        match system {
            BenchFileSystem::Ext4 => ContenderFileSystem::Ext4,
            BenchFileSystem::Xfs => ContenderFileSystem::Xfs,
        }
    }
}

/// `bench files`.
#[derive(Debug, Args)]
pub struct BenchFilesArguments {
    /// Whose conditions, instead of a directory as it is
    #[arg(long, value_name = "PAPER", value_enum, required_unless_present = "folder")]
    pub seed: Option<SeedFiles>,
    /// The directory to measure; with --seed the one for the disk's file, which is the current one if it is not given
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// Number of files, not with --seed nrd; 1024 of a directory as it is, where it may be repeated, or 4096 with
    /// --seed ncar
    #[arg(long, value_name = "N")]
    pub files: Vec<u32>,
    /// Size of each file, of a directory as it is
    #[arg(long, value_name = "SIZE", default_value = "2K", value_parser = parse_size, conflicts_with = "seed")]
    pub size: u64,
    /// Only 1024 files instead of up to 16384, and two rounds, without verdicts, in a few minutes; without --seed, only
    /// one round instead of three
    #[arg(long)]
    pub quick: bool,
    /// The program of JuiceFS, with --seed ncar; by default the one that `ci/setup files` builds, or that of PATH
    #[arg(long, value_name = "PROGRAM", requires = "seed")]
    pub juicefs: Option<PathBuf>,
    /// With --seed ncar: also measure volumes that are mounted with --local-names
    #[arg(long, requires = "seed")]
    pub local_names: bool,
    /// With --seed ncar: also run `ls -l` of a large directory, git, and two hosts that create files at once
    #[arg(long, requires = "seed")]
    pub programs: bool,
    /// Only contenders with this in their name, for example none-2 or volume; may be repeated
    #[arg(long, value_name = "NAME", requires = "seed")]
    pub only: Vec<String>,
    /// Only links of so many Mb/s, 0 for the unshaped one, with --seed nrd; may be repeated
    #[arg(long, value_name = "N", requires = "seed")]
    pub link: Vec<u32>,
    /// File system of the contenders, with --seed nrd; ext4 if it is not given
    #[arg(long, value_name = "NAME", value_enum, requires = "seed")]
    pub file_system: Option<BenchFileSystem>,
    /// How often everything runs; 5, or 2 with --quick, or 3 for a directory as it is
    #[arg(long, value_name = "N")]
    pub rounds: Option<usize>,
    /// Chooses the random order of deletion
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub random_seed: u64,
    /// Write figures and rows to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the report as a page into this directory, for example docs/results
    #[arg(long, value_name = "DIR")]
    pub write: Option<PathBuf>,
}

/// `bench ram`.
#[derive(Debug, Args)]
pub struct BenchRamArguments {
    /// Three short pairs of each figure, without verdicts, in a minute
    #[arg(long)]
    pub quick: bool,
    /// Only figures with this in their name, for example 4x32 or write.depth1; may be repeated
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
    /// Paired runs of each figure; 10, or 3 with --quick
    #[arg(long, value_name = "N")]
    pub pairs: Option<usize>,
    /// How long each run takes, in milliseconds; 1000, or 400 with --quick
    #[arg(long, value_name = "N")]
    pub milliseconds: Option<u64>,
    /// Threads of the donors; as many as there are processors if it is not given
    #[arg(long, value_name = "N")]
    pub threads: Option<u64>,
    /// Write figures and rows to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the report as a page into this directory, for example docs/results
    #[arg(long, value_name = "DIR")]
    pub write: Option<PathBuf>,
}

/// `bench bare-fuse`.
#[derive(Debug, Args)]
pub struct BenchBareFuseArguments {
    /// The device; without it, directories and empty files in memory
    #[arg(long, value_name = "DEVICE", requires = "bytes")]
    pub device: Option<PathBuf>,
    /// Where its files are shown
    #[arg(long, value_name = "DIR")]
    pub directory: PathBuf,
    /// Length of each file, in bytes
    #[arg(long, value_name = "N", requires = "device")]
    pub bytes: Option<u64>,
}

/// `bench inside`.
#[derive(Debug, Args)]
pub struct BenchInsideArguments {
    /// The memory group to join
    #[arg(long, value_name = "DIR")]
    pub group: Option<PathBuf>,
    /// Take a network without links
    #[arg(long)]
    pub own_network: bool,
    /// Run on this processor alone
    #[arg(long, value_name = "N")]
    pub processor: Option<usize>,
    /// The program and its arguments
    #[arg(required = true, last = true)]
    pub program: Vec<std::ffi::OsString>,
}

/// `bench limits`.
#[derive(Debug, Args)]
pub struct BenchLimitsArguments {
    /// A directory on the device, for two files
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub folder: PathBuf,
    /// Size of each file
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_size)]
    pub size: u64,
    /// Bytes of an object
    #[arg(long, value_name = "N", default_value_t = 7000)]
    pub object: u32,
    /// Paired runs of each figure
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub pairs: usize,
    /// How long each run of reads takes, in seconds
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub seconds: u64,
    /// Write figures and rows to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the report as a page into this directory, for example docs/results
    #[arg(long, value_name = "DIR")]
    pub write: Option<PathBuf>,
}
