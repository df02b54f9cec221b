//! The options of `cache mount`, `cache umount` and `cache stat`.

use std::path::PathBuf;

use clap::Args;
use nectary_block::parse_size;

/// `cache mount`.
#[derive(Debug, Args)]
pub struct CacheMountArguments {
    /// The directory whose files are cached
    #[arg(value_name = "SOURCE")]
    pub source: PathBuf,
    /// Where the tree is shown; it hides the files there while it is mounted, and may be SOURCE itself
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Memory for blocks and the tables about them, for example 512M
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256M")]
    pub memory: u64,
    /// The replacement policy
    #[arg(long, value_name = "NAME", default_value = "adaptive")]
    pub policy: String,
    /// The unit of caching: a power of two from 4K to 64K
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "8K")]
    pub block: u64,
    /// writethrough: a write returns when SOURCE has it; readonly: nothing is changed
    #[arg(long, value_name = "MODE", default_value = "writethrough", value_parser = ["writethrough", "readonly"])]
    pub mode: String,
    /// Nobody else changes SOURCE: names and attributes are believed for an hour, not for a second
    #[arg(long)]
    pub exclusive: bool,
    /// The kernel itself reads files of at most this size, through its page cache; 0: none, all go through the cache
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "0")]
    pub passthrough: u64,
    /// Open files again by their names, as where SOURCE has no file handles; for tests
    #[arg(long, hide = true)]
    pub by_names: bool,
    /// Return once it is mounted, and go on in the background
    #[arg(long)]
    pub background: bool,
    /// Leave the terminal once mounted; given by the command to itself
    #[arg(long, hide = true, conflicts_with = "background")]
    pub leave_terminal: bool,
}

/// `cache umount`.
#[derive(Debug, Args)]
pub struct CacheUmountArguments {
    /// The directory that it is shown at
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Take it off the tree also while programs use it; it ends with the last of them
    #[arg(long)]
    pub lazy: bool,
}

/// `cache stat`.
#[derive(Debug, Args)]
pub struct CacheStatArguments {
    /// The directory that it is shown at [default: all that are mounted]
    #[arg(value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
