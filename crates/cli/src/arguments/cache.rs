//! `nectary cache`: its commands and options.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::TEMPLATE;
use super::cache_live::{CacheAdviseArguments, CacheFlushArguments, CachePathArguments, CacheSetArguments};
use super::cache_mount::{CacheMountArguments, CacheStatArguments, CacheUmountArguments};
use super::trace::ReadArguments;
use crate::exit;

/// The commands on caches.
#[derive(Debug, Subcommand)]
pub enum CacheCommand {
    /// Simulate replacement policies over traces: misses by policy and size
    #[command(
        help_template = TEMPLATE,
        before_help = "Examples:
  Every policy at 6 MiB of 8 KiB blocks:
    nectary cache simulate cs.trace.gz --size 6MiB
  Three policies at 10, 20, … 60 % of the distinct blocks, with a picture:
    nectary cache simulate cs.trace.gz --policy lru,dear,min \\
      --size 10%..60%:10% --svg cs.svg
  Two programs at once, a stream each:
    nectary cache simulate --mix cs.trace.gz cpp.trace.gz --size 768
  What was detected, period by period, and on which evidence:
    nectary cache simulate cs.trace.gz --policy dear --size 768 --explain
  A volume of the MSR Cambridge traces, 4 KiB blocks:
    nectary cache simulate prxy_0.csv.gz --block 4K --size 1G --json |
      jq '.rows[] | {policy, misses}'",
        after_help = exit::HELP
    )]
    Simulate(SimulateArguments),
    /// Show a directory through a cache that sees each program's reads
    #[command(
        help_template = TEMPLATE,
        before_help = "Examples:
  A source tree, for a job that scans it again and again:
    nectary cache mount /srv/sources /mnt/sources --memory 1G --background
  In its own place, with another policy:
    nectary cache mount /srv/sources /srv/sources --memory 512M --policy lirs
  What it did:
    nectary cache stat /mnt/sources",
        after_help = exit::HELP
    )]
    Mount(CacheMountArguments),
    /// Unmount a directory that `cache mount` shows
    #[command(
        help_template = TEMPLATE,
        before_help = "Examples:
  nectary cache umount /mnt/sources",
        after_help = exit::HELP
    )]
    Umount(CacheUmountArguments),
    /// Show the counters of mounted caches
    #[command(
        help_template = TEMPLATE,
        before_help = "Examples:
  nectary cache stat /mnt/sources
  nectary cache stat /mnt/sources --json",
        after_help = exit::HELP
    )]
    Stat(CacheStatArguments),
    /// Write back what is dirty in a running cache, and make it durable
    #[command(
        help_template = TEMPLATE,
        before_help = "Examples:
  nectary cache flush /mnt/sources
  sync /dev/loop0 && nectary cache flush /dev/loop0",
        after_help = exit::HELP
    )]
    Flush(CacheFlushArguments),
    /// Change memory, policy or mode of a running cache
    #[command(
        help_template = TEMPLATE,
        before_help = "Examples:
  Another size, and another policy:
    nectary cache set /mnt/sources --memory 2G
    nectary cache set /mnt/sources --policy lirs
  Write back and flush what is dirty, and write through from then on:
    nectary cache set /dev/loop0 --mode writethrough",
        after_help = exit::HELP
    )]
    Set(CacheSetArguments),
    /// Show what of a file, directory or device is cached, dirty and pinned
    #[command(
        help_template = TEMPLATE,
        before_help = "Examples:
  nectary cache show /mnt/sources/index.db      (o cached, P pinned, D dirty)
  nectary cache show /mnt/sources
  nectary cache show /dev/loop0 --offset 1G --length 64M --json | jq .files",
        after_help = exit::HELP
    )]
    Show(CachePathArguments),
    /// Send a file, directory or device out of memory; what is pinned stays
    #[command(
        help_template = TEMPLATE,
        before_help = "Examples:
  nectary cache drop /mnt/sources/old.tar
  nectary cache drop /dev/loop0 --offset 1G --length 64M",
        after_help = exit::HELP
    )]
    Drop(CachePathArguments),
    /// Hold a file, the files of a directory, or a part of a device in memory, whatever is read
    #[command(
        help_template = TEMPLATE,
        before_help = "Examples:
  nectary cache pin /mnt/sources/index.db
  nectary cache pin /mnt/sources/include
  nectary cache pin /dev/loop0 --length 64M      (the first 64 MiB)",
        after_help = exit::HELP
    )]
    Pin(CachePathArguments),
    /// Let the policy decide again over what was pinned
    #[command(
        help_template = TEMPLATE,
        before_help = "Examples:
  nectary cache unpin /mnt/sources/index.db
  nectary cache unpin /mnt/sources      (all that is pinned in it)",
        after_help = exit::HELP
    )]
    Unpin(CachePathArguments),
    /// Say what more or less memory, or another policy, would change
    #[command(
        help_template = TEMPLATE,
        before_help = "Examples:
  nectary cache advise
  nectary cache advise /mnt/sources --json | jq '.caches[].says[]'",
        after_help = exit::HELP
    )]
    Advise(CacheAdviseArguments),
}

/// `cache simulate`.
#[derive(Debug, Args)]
pub struct SimulateArguments {
    /// The traces, plain, gzip or zstd; - is the standard input
    #[arg(value_name = "TRACE", required = true)]
    pub traces: Vec<PathBuf>,
    #[command(flatten)]
    pub read: ReadArguments,
    /// Policies, separated by commas, or all
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "all")]
    pub policy: Vec<String>,
    /// Sizes of the cache: blocks (768), bytes (6MiB), percent of distinct blocks (10%), lists (512,768) and ranges
    /// (100..1000:100)
    #[arg(long, value_name = "SIZES", default_value = "5%,10%,20%,40%,60%")]
    pub size: String,
    /// Simulate the traces together, in proportion to their lengths, each with separate streams and blocks
    #[arg(long)]
    pub mix: bool,
    /// Take only the first N references of each trace
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// Show misses in percent of references
    #[arg(long)]
    pub ratio: bool,
    /// Print each stream's verdicts period by period, with the averages behind them (min has none)
    #[arg(long)]
    pub explain: bool,
    /// Show how fast each run was, beside its misses; use --threads 1 for figures
    #[arg(long)]
    pub timing: bool,
    /// Draw misses against size into an SVG file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Draw sizes on a logarithmic axis
    #[arg(long, requires = "svg")]
    pub log: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Runs at a time [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}
