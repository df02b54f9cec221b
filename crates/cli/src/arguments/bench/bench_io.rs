//! The options of `bench io`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use nectary_bench::io::{BenchIoOptions, NcarOptions, OpenMode, RequestOperation, SubmissionEngine};
use nectary_block::parse_size;

/// What requests do.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum IoOperation {
    /// all requests read
    Read,
    /// all requests write
    Write,
    /// some read and some write (--read-percent)
    Mixed,
}

/// How files are opened.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum IoMode {
    /// through the page cache
    Buffered,
    /// past the page cache (O_DIRECT)
    Direct,
    /// through the page cache, each write durable (O_SYNC)
    Sync,
    /// through the page cache, each write's data durable (O_DSYNC)
    Dsync,
    /// past the page cache, each write's data durable
    DirectDsync,
}

/// How requests are in flight at once.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum BenchIoEngine {
    /// a thread a request, as xdd
    Threads,
    /// a thread a stream, with io_uring
    Uring,
}

/// Whose conditions.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum IoMatrix {
    /// figures 1 to 20 of the NCAR report: 256 MB files, one and two streams, hosts of 3 GB and of 128 MB; a shared
    /// volume, XFS, the raw device, a bare FUSE server (root)
    Ncar,
}

/// `bench io`.
#[derive(Debug, Args)]
pub struct BenchIoArguments {
    /// A directory, in which files are made; an existing file; or a block device
    #[arg(value_name = "TARGET")]
    pub target: PathBuf,
    /// What requests do; read and write by default
    #[arg(long, value_name = "OP", value_enum, value_delimiter = ',')]
    pub op: Vec<IoOperation>,
    /// How files are opened; buffered and direct by default, only direct with --check-fio
    #[arg(long, value_name = "MODE", value_enum, value_delimiter = ',')]
    pub mode: Vec<IoMode>,
    /// Sizes of requests; by default 4K to 16M by doubling, fewer with --quick or --check-fio
    #[arg(long, value_name = "SIZE", value_parser = parse_size, value_delimiter = ',')]
    pub request: Vec<u64>,
    /// Numbers of streams; no two streams share a part of the target; 1 by default
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub streams: Vec<usize>,
    /// Requests of a stream in flight at once; 1 by default, or 1 and 8 with --check-fio
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub depth: Vec<usize>,
    /// Passes of each combination; 3 by default, or 1 with --quick; with --check-fio the number of pairs, 10 by default
    #[arg(long, value_name = "N")]
    pub passes: Option<usize>,
    /// Length of each stream; 256M by default, or 64M with --quick
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<u64>,
    /// Of mixed requests, how many read, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 50)]
    pub read_percent: u64,
    /// End of a pass that is not done by then, in seconds
    #[arg(long, value_name = "S")]
    pub seconds: Option<f64>,
    /// How requests are in flight at once; by default threads at depth 1 and in mode sync, otherwise io_uring
    #[arg(long, value_name = "ENGINE", value_enum)]
    pub engine: Option<BenchIoEngine>,
    /// Overwrite a file that this command did not write, or a block device; never one that is mounted
    #[arg(long)]
    pub overwrite: bool,
    /// Leave the streams' pages in the kernel's cache between passes
    #[arg(long)]
    pub warm: bool,
    /// Include a final flush (fdatasync) of each stream in the time of a pass that writes
    #[arg(long)]
    pub fsync: bool,
    /// A look, in less than a minute
    #[arg(long)]
    pub quick: bool,
    /// Compare with fio, in pairs; exit code 1 if the two are more than 3 % apart
    #[arg(long, conflicts_with_all = ["matrix", "dry_run", "timestamps", "quick"])]
    pub check_fio: bool,
    /// Whose conditions
    #[arg(long, value_name = "MATRIX", value_enum)]
    #[arg(conflicts_with_all = ["op", "mode", "streams", "depth", "timestamps"])]
    pub matrix: Option<IoMatrix>,
    /// Only series with this in their name, as volume.server or read.direct; may be repeated
    #[arg(long, value_name = "NAME", requires = "matrix")]
    pub only: Vec<String>,
    /// Print the xdd command lines that do the same, and run nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Write when each request began and ended to this file, comma separated
    #[arg(long, value_name = "FILE")]
    pub timestamps: Option<PathBuf>,
    /// Write figures and rows to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a picture of MiB/s over request size to this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write the report as a page with its picture into this directory, for example docs/results
    #[arg(long, value_name = "DIR")]
    pub write: Option<PathBuf>,
}

impl BenchIoArguments {
    /// A sweep, or a comparison with fio.
    pub fn options(&self) -> BenchIoOptions {
        let operation = |op: &IoOperation| match op {
            IoOperation::Read => RequestOperation::Read,
            IoOperation::Write => RequestOperation::Write,
            IoOperation::Mixed => RequestOperation::Mixed,
        };
        let mode = |mode: &IoMode| match mode {
            IoMode::Buffered => OpenMode::Buffered,
            IoMode::Direct => OpenMode::Direct,
            IoMode::Sync => OpenMode::Sync,
            IoMode::Dsync => OpenMode::Dsync,
            IoMode::DirectDsync => OpenMode::DirectDsync,
        };
        let engine = |engine| match engine {
            BenchIoEngine::Threads => SubmissionEngine::Threads,
            BenchIoEngine::Uring => SubmissionEngine::Uring,
        };
        BenchIoOptions {
            target: self.target.clone(),
            operations: self.op.iter().map(operation).collect(),
            modes: self.mode.iter().map(mode).collect(),
            sizes: self.request.clone(),
            streams: self.streams.clone(),
            depths: self.depth.clone(),
            passes: self.passes,
            bytes: self.size,
            read_percent: self.read_percent,
            seconds: self.seconds,
            engine: self.engine.map(engine),
            overwrite: self.overwrite,
            is_warm: self.warm,
            is_synced: self.fsync,
            quick: self.quick,
            keep: self.timestamps.is_some(),
        }
    }

    /// The NCAR report's conditions.
    pub fn ncar_options(&self) -> NcarOptions {
        NcarOptions {
            target: self.target.clone(),
            overwrite: self.overwrite,
            quick: self.quick,
            passes: self.passes,
            bytes: self.size,
            sizes: self.request.clone(),
            only: self.only.clone(),
        }
    }
}
