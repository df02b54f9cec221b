//! The options of `ram`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use nectary_block::parse_size;
use nectary_ram::placement::{RedundancyPolicy, StaleRule};

use super::{TEMPLATE, exit};
use crate::ram::{check, create, donate, drain, grow, replace, scrub};

/// What to do about other clients of a network RAM disk with redundancy.
#[derive(Debug, Args)]
pub struct ClientArguments {
    /// Take a network RAM disk with redundancy over from a client that has it, which can then do nothing more with it
    #[arg(long)]
    pub take_over: bool,
    /// Of two donors, use the one that is there: the device was not used without it
    #[arg(long)]
    pub trust_remaining: bool,
}

/// The commands on network RAM disks.
#[derive(Debug, Subcommand)]
pub enum RamCommand {
    /// Lend memory of this machine to others
    #[command(help_template = TEMPLATE, before_help = donate::EXAMPLES, after_help = exit::HELP)]
    Donate(donate::DonateArguments),
    /// Make a device in the memory of donors
    #[command(help_template = TEMPLATE, before_help = create::CREATE_EXAMPLES, after_help = exit::HELP)]
    Create(create::CreateArguments),
    /// Delete a device, and give its memory back to the donors
    #[command(help_template = TEMPLATE, before_help = create::DELETE_EXAMPLES, after_help = exit::HELP)]
    Delete(create::DeleteArguments),
    /// Make a device larger that no client has; what it has stays
    #[command(help_template = TEMPLATE, before_help = grow::EXAMPLES, after_help = exit::HELP)]
    Grow(grow::GrowArguments),
    /// Check what the donors have of a device with redundancy that no client has
    #[command(help_template = TEMPLATE, before_help = check::EXAMPLES, after_help = exit::HELP)]
    Check(check::CheckArguments),
    /// Put another donor in the place of one, while the device is used
    #[command(help_template = TEMPLATE, before_help = replace::EXAMPLES, after_help = exit::HELP)]
    Replace(replace::ReplaceArguments),
    /// Move what a donor has to a spare, while the device is used
    #[command(help_template = TEMPLATE, before_help = drain::EXAMPLES, after_help = exit::HELP)]
    Drain(drain::DrainArguments),
    /// Compare all copies of an attached device with redundancy now, and repair wrong ones
    #[command(help_template = TEMPLATE, before_help = scrub::EXAMPLES, after_help = exit::HELP)]
    Scrub(scrub::ScrubArguments),
    /// Count the transfers of each redundancy policy for each written block, beside theory
    #[command(help_template = TEMPLATE, before_help = SIMULATE_EXAMPLES, after_help = exit::HELP)]
    Simulate(RamSimulateArguments),
}

/// What stands before everything else in the help of `ram simulate`.
const SIMULATE_EXAMPLES: &str = "Examples:
  Every policy under every workload, on 256 MiB over 4 + 1 donors:
    nectary ram simulate
  Random overwrites of a full device, with more room for overwritten copies:
    nectary ram simulate --only uniform --overflow 25
  The rules for stale streams, when there are more writers than caches:
    nectary ram simulate --policy adaptive --caches 4 --stale lru --only files-8
  Whether adaptive needs at most 1.05 times the transfers of theory:
    nectary ram simulate --policy adaptive --check";

/// `ram simulate`.
#[derive(Debug, Args)]
pub struct RamSimulateArguments {
    /// Donors that hold data, 2 to 16; parity is on one more
    #[arg(long, value_name = "S", default_value_t = 4)]
    pub donors: u8,
    /// Slots beyond the blocks of the device, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 10)]
    pub overflow: u32,
    /// Size of the device
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256M")]
    pub size: u64,
    /// Policies, separated by commas [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub policy: Vec<RedundancyPolicy>,
    /// Numbers of concurrent writers, separated by commas
    #[arg(long, value_name = "K", value_delimiter = ',', default_value = "1,2,4,8,16")]
    pub streams: Vec<u8>,
    /// Stream caches of adaptive
    #[arg(long, value_name = "P", default_value_t = 16)]
    pub caches: usize,
    /// Blocks of a column: a cache holds S times as many
    #[arg(long, value_name = "BLOCKS", default_value_t = 8)]
    pub column: u32,
    /// Which stream loses its cache to a new one: never, lru, idle, proven
    #[arg(long, value_name = "RULE", default_value_t = StaleRule::default())]
    pub stale: StaleRule,
    /// Requests have 1 block to so many
    #[arg(long, value_name = "BLOCKS", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub request: u32,
    /// How many times the device is overwritten while transfers are counted
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Only workloads with this in their names: sequential, files-K, files-K-flushed, random, uniform
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Chooses files, requests and blocks
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,
    /// Fail with exit code 1 if adaptive misses its target
    #[arg(long)]
    pub check: bool,
    /// Write the figures into a page in Markdown, too
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
