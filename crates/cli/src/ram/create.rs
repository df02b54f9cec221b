//! `nectary ram create` and `nectary ram delete`: devices in the memory of donors.
//!
//! Owns: their output. Leaves to others: making and deleting (`nectary-ram`).

use clap::Args;
use nectary_block::{OpenOptions, format_size};
use nectary_ram::device::{self, DeviceShares, RamOptions, Redundancy};
use serde_json::json;

use crate::device::registry;
use crate::exit::{CommandFailure, GOOD};
use crate::output;

/// The examples of `ram create`.
pub const CREATE_EXAMPLES: &str = "Examples:
  nectary ram create 'ram(h1:7070,h2:7070,id=build,size=8G)'
  nectary attach 'ram(h1:7070,h2:7070,id=build)'
  Every block on two donors:
    nectary ram create 'ram(h1:7070,h2:7070,id=safe,size=8G,redundancy=mirror)'
  Parity instead of copies, on three donors or more:
    donors=h1:7070,h2:7070,h3:7070
    nectary ram create \"ram($donors,id=wide,size=8G,redundancy=adaptive)\"
  With certificates, and donors that other programs serve:
    h1='\"nbds://h1:7070/?tls-certificates=/etc/pki/nbd\"'
    nectary ram create \"ram($h1,nbd://h2/disk,id=mixed,size=1G)\"";

/// The examples of `ram delete`.
pub const DELETE_EXAMPLES: &str = "Examples:
  nectary ram delete 'ram(h1:7070,h2:7070,id=build)'
  What one donor has of a device that uses other donors now:
    nectary ram delete --part 'ram(h3:7070,id=safe)'";

/// `ram create`.
#[derive(Debug, Args)]
pub struct CreateArguments {
    /// The device: its donors, id and size, for example `ram(h1:7070,h2:7070,id=build,size=8G)`
    #[arg(value_name = "SPEC")]
    pub spec: String,
    /// Overwrite what is on donors of other makes, such as an nbdkit; never a device
    #[arg(long)]
    pub force: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `ram delete`.
#[derive(Debug, Args)]
pub struct DeleteArguments {
    /// The device: all its donors, id and redundancy, for example `ram(h1:7070,h2:7070,id=build)`
    #[arg(value_name = "SPEC")]
    pub spec: String,
    /// Delete only what the one donor of the SPEC has of a device, unless a client uses it; without `redundancy=`
    #[arg(long, conflicts_with = "take_over")]
    pub part: bool,
    /// With --part: delete it also if the donor has a place in a device, which then lacks it
    #[arg(long, requires = "part")]
    pub force: bool,
    /// Delete it also if a client has it, which can then do nothing more with it; of one with redundancy
    #[arg(long)]
    pub take_over: bool,
}

pub fn options(spec: &str, take_over: bool) -> Result<RamOptions, CommandFailure> {
    let open = OpenOptions { take_over, ..OpenOptions::default() };
    Ok(RamOptions::parse(registry().arguments(spec, "ram", &open)?)?)
}

/// What a device with parity in place does not promise.
const PARITY: &str = "redundancy=parity is for comparison alone: if this machine and a donor are lost together, flushed \
                      blocks may be lost; use redundancy=adaptive for data";

/// Makes a device.
pub async fn create(arguments: &CreateArguments) -> Result<u8, CommandFailure> {
    let options = options(&arguments.spec, false)?;
    let made = device::create(&options, arguments.force).await?;
    if made.redundancy == Redundancy::Parity {
        eprintln!("nectary: {}: {PARITY}", made.id);
    }
    print(&made, "is made", arguments.json)
}

/// Prints what a device is now; `what` says what was done.
pub fn print(made: &DeviceShares, what: &str, json: bool) -> Result<u8, CommandFailure> {
    if json {
        output::json(&json!({
            "id": made.id,
            "size_bytes": made.size_bytes,
            "donors": made.shares.len(),
            "share_bytes": made.shares,
            "redundancy": made.redundancy.name(),
        }))?;
        return Ok(GOOD);
    }
    let shares: Vec<String> = made.shares.iter().map(|&bytes| format_size(bytes)).collect();
    let (id, size, shares) = (&made.id, format_size(made.size_bytes), shares.join(", "));
    output::text(&format!("device {id} of {size} {what}; its donors hold {shares}\n"))?;
    Ok(GOOD)
}

/// Deletes a device.
pub async fn delete(arguments: &DeleteArguments) -> Result<u8, CommandFailure> {
    let options = options(&arguments.spec, arguments.take_over)?;
    match arguments.part {
        true => device::delete_part(&options, arguments.force).await?,
        false => device::delete(&options).await.map(drop)?,
    }
    Ok(GOOD)
}
