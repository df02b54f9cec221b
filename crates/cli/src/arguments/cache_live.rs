//! The options of the commands on running caches, and of `top`.

use std::path::PathBuf;

use clap::Args;
use nectary_block::parse_size;

/// `cache flush`.
#[derive(Debug, Args)]
pub struct CacheFlushArguments {
    /// The directory, block device, SPEC or URL under which it runs
    #[arg(value_name = "NAME")]
    pub name: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `cache set`.
#[derive(Debug, Args)]
pub struct CacheSetArguments {
    /// The directory, block device, SPEC or URL under which it runs
    #[arg(value_name = "NAME")]
    pub name: PathBuf,
    /// Memory for blocks and the tables about them, for example 512M
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory: Option<u64>,
    /// The replacement policy; blocks stay in memory
    #[arg(long, value_name = "NAME")]
    pub policy: Option<String>,
    /// writethrough, writeback or readonly
    #[arg(long, value_name = "MODE", value_parser = ["writethrough", "writeback", "readonly"])]
    pub mode: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `cache show`, `drop`, `pin` and `unpin`.
#[derive(Debug, Args)]
pub struct CachePathArguments {
    /// A file or directory of a mounted cache, or the block device, SPEC or URL of a cached device
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// Where the part of it begins that is meant
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "0")]
    pub offset: u64,
    /// How long that part is [default: to the end]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub length: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `cache advise`.
#[derive(Debug, Args)]
pub struct CacheAdviseArguments {
    /// The directory, block device, SPEC or URL under which it runs [default: all that run]
    #[arg(value_name = "NAME")]
    pub name: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `top`.
#[derive(Debug, Args)]
pub struct TopArguments {
    /// The directory, block device, SPEC or URL of one cache [default: all caches, proxies and volumes]
    #[arg(value_name = "NAME")]
    pub name: Option<PathBuf>,
    /// Show it once, with the numbers since the start
    #[arg(long)]
    pub once: bool,
    /// Show it again after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u8).range(1..=60), default_value = "1")]
    pub every: u8,
    /// Streams of each cache [default: as the terminal has room for; 10 with --once, --json and --prometheus]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=1025))]
    pub streams: Option<u16>,
    /// Print JSON, once
    #[arg(long, conflicts_with = "prometheus")]
    pub json: bool,
    /// Print text for Prometheus, once
    #[arg(long)]
    pub prometheus: bool,
}

/// Reads a number of bytes; 0 needs no unit.
fn parse_bytes(text: &str) -> Result<u64, String> {
    text.parse().or_else(|_| parse_size(text))
}
