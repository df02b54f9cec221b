//! The options of `bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{TEMPLATE, exit};

/// The experiments.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// A proxy's workload straight on storage: the store beside one file per object on file systems (root)
    #[command(help_template = TEMPLATE, before_help = "Examples:
  A look, in less than a minute:
    nectary bench store --seed table4 --quick
  The seeds' table 4 at a 32nd of its sizes, disks of 4 GB alone, against XFS:
    nectary bench store --seed table4 --scale 0.03125 --size 4 --only xfs.50 --json table4.json
  Four threads and two disks:
    nectary bench store --seed table5", after_help = exit::HELP)]
    Store(BenchStoreArguments),
    /// The process of one contender; started by the command itself
    #[command(hide = true)]
    Worker,
    /// Takes away what a run made; started by the command itself
    #[command(hide = true)]
    Guardian,
}

/// The seeds' tables.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum SeedTable {
    /// one thread, one disk of 4, 9 and 18 GB, 256 MB divided in two ways; EFS and XFS
    Table4,
    /// four threads, two disks of 4 and 8 GB together; UFS in three forms
    Table5,
}

/// `bench store`.
#[derive(Debug, Args)]
pub struct BenchStoreArguments {
    /// Whose conditions
    #[arg(long, value_name = "TABLE", value_enum)]
    pub seed: SeedTable,
    /// Share of the seeds' sizes, memory and trace; by default 0.0625 for table4, 0.125 for table5
    #[arg(long, value_name = "F")]
    pub scale: Option<f64>,
    /// The smallest disk and the beginning of the trace alone, in less than a minute
    #[arg(long)]
    pub quick: bool,
    /// Write figures and rows to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Pieces of the workload, each of which gives one pair; at least 10, or 2 with --quick
    #[arg(long, value_name = "N")]
    pub pairs: Option<usize>,
    /// Only contenders with this in their name, as xfs or ext4-dirsync.50; may be repeated
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
    /// Only this disk size of the table, in GB; may be repeated
    #[arg(long, value_name = "GB")]
    pub size: Vec<u64>,
    /// Chooses the requests
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub random_seed: u64,
}
