//! `nectary ram grow`: a device in the memory of donors gets larger.
//!
//! Owns: what it prints. Leaves to others: growing (`nectary-ram`).

use clap::Args;
use nectary_block::parse_size;
use nectary_ram::device;

use super::create::{options, print};
use crate::exit::CommandFailure;

/// The examples of the command.
pub const EXAMPLES: &str = "Examples:
  nectary detach /dev/loop0
  nectary ram grow 'ram(h1:7070,h2:7070,id=build)' --size 12G
  nectary attach 'ram(h1:7070,h2:7070,id=build)'
  e2fsck -f -p /dev/loop0 && resize2fs /dev/loop0";

/// `ram grow`.
#[derive(Debug, Args)]
pub struct GrowArguments {
    /// The device: its donors, id and redundancy, as `ram(h1:7070,h2:7070,id=safe,redundancy=mirror)`
    #[arg(value_name = "SPEC")]
    pub spec: String,
    /// The new size, for example 12G
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Makes a device larger.
pub async fn run(arguments: &GrowArguments) -> Result<u8, CommandFailure> {
    let grown = device::grow(&options(&arguments.spec, false)?, arguments.size).await?;
    print(&grown, "has grown", arguments.json)
}
