//! `nectary cache`: its commands and options.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use nectary_trace::curve::{SAMPLES, SAMPLES_MAX};
use nectary_trace::simulate::counting::TraceExtent;

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
      jq '.rows[] | {policy, misses}'
  Objects with sizes: misses and missed bytes after a day, hour by hour:
    nectary cache simulate cluster52.zst --format twitter --size 1G,4G \\
      --policy lru,s3fifo,gdsf --warm-up 1d --window 1h --csv",
        after_help = exit::HELP
    )]
    Simulate(SimulateArguments),
    /// Compute the LRU curve of traces of any length in one pass, from a sample, with its error
    #[command(
        help_template = TEMPLATE,
        before_help = "Examples:
  Misses of LRU at all sizes, within the printed error:
    nectary cache curve cluster52.zst --format twitter
  A smaller error, at these sizes:
    nectary cache curve prxy_0.csv.gz --size 1000..100000:1000 \\
      --samples 1000000 --csv",
        after_help = exit::HELP
    )]
    Curve(CurveArguments),
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
    /// The traces, plain, gzip, xz or zstd; - is the standard input
    #[arg(value_name = "TRACE", required = true)]
    pub traces: Vec<PathBuf>,
    #[command(flatten)]
    pub read: ReadArguments,
    /// Policies, separated by commas, or all; for objects with sizes, all has gdsf and lhd, too
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "all")]
    pub policy: Vec<String>,
    /// Sizes of the cache: blocks or objects (768), bytes (6MiB), percent of distinct blocks, or of the bytes of distinct
    /// objects (10%), lists (512,768) and ranges (100..1000:100)
    #[arg(long, value_name = "SIZES", default_value = "5%,10%,20%,40%,60%")]
    pub size: String,
    /// Simulate the traces together, in proportion to their lengths, each with separate streams and blocks
    #[arg(long)]
    pub mix: bool,
    /// Take only the first N references of each trace
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// Read each trace once, in memory that does not depend on its length, or twice if something is in percent; this
    /// is the default for traces of more than 134217728 references
    #[arg(long)]
    pub stream: bool,
    /// Leave out writes
    #[arg(long)]
    pub only_reads: bool,
    /// Objects are valid for this time (90s, 5m, 1h, 2d), instead of that in the trace
    #[arg(long, value_name = "TIME", value_parser = parse_ttl)]
    pub ttl: Option<u32>,
    /// Do not count the first references: their number (100000), percent of all (20%), or a time (90s, 5m, 1h, 2d)
    #[arg(long, value_name = "EXTENT", value_parser = TraceExtent::parse)]
    pub warm_up: Option<TraceExtent>,
    /// Count misses over time, in windows of so many references, percent of all, or time
    #[arg(long, value_name = "EXTENT", value_parser = parse_window)]
    pub window: Option<TraceExtent>,
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
    /// Print CSV: a line for each policy and size, or for each window of them
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Runs at a time [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

/// `cache curve`.
#[derive(Debug, Args)]
pub struct CurveArguments {
    /// The traces, plain, gzip, xz or zstd; - is the standard input
    #[arg(value_name = "TRACE", required = true)]
    pub traces: Vec<PathBuf>,
    #[command(flatten)]
    pub read: ReadArguments,
    /// Sizes of the cache: blocks (768), or bytes (6MiB) for objects with sizes, lists and ranges (100..1000:100)
    /// [default: powers of two]
    #[arg(long, value_name = "SIZES")]
    pub size: Option<String>,
    /// Blocks or objects in the sample, each for 128 bytes of memory; with no more of them in the trace, the curve is exact
    #[arg(long, value_name = "N", default_value_t = SAMPLES as u64,
        value_parser = clap::value_parser!(u64).range(1000..=SAMPLES_MAX as u64))]
    pub samples: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print CSV: a line for each size
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
}

/// Reads a time to live. *Units*: seconds.
fn parse_ttl(text: &str) -> Result<u32, String> {
    match TraceExtent::parse(text) {
        Ok(TraceExtent::Seconds(seconds @ 1..)) => u32::try_from(seconds).map_err(|_| "at most 136 years".to_owned()),
        _ => Err("expected a time of at least a second (90s, 5m, 1h, 2d)".to_owned()),
    }
}

/// Reads the length of windows.
fn parse_window(text: &str) -> Result<TraceExtent, String> {
    match TraceExtent::parse(text)? {
        TraceExtent::References(0) | TraceExtent::Seconds(0) => Err("a window of nothing; make it longer".to_owned()),
        TraceExtent::Percent(percent) if percent <= 0.0 => Err("a window of nothing; make it longer".to_owned()),
        extent => Ok(extent),
    }
}
