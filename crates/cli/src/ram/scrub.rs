//! `nectary ram scrub`: all copies of an attached device are compared now, and wrong ones are repaired.
//!
//! Owns: the method of the control socket of the process that has the device, what the command prints, and the
//! command's exit code. Leaves to others: the
//! scrub (`nectary-ram`).

use clap::Args;
use nectary_host::{ControlFault, ControlMethods, FaultKind};
use nectary_ram::device::OpenDevices;
use nectary_ram::scrub::ScrubFindings;
use serde_json::json;

use super::attached::{self, RedundancyMethod};
use crate::exit::{CommandFailure, DEGRADED, FAILED, GOOD};
use crate::output;

/// The examples of the command.
pub const EXAMPLES: &str = "Examples:
  nectary ram scrub /dev/loop0
  Only what a program has to know:
    nectary ram scrub --json /dev/loop0 | jq .repaired";

static METHOD: RedundancyMethod = RedundancyMethod {
    name: "ram-scrub",
    about: "compares all copies of a network RAM disk, and repairs wrong ones",
    doing: "scrubbing",
    figures: ("scrub_done_bytes", "scrub_bytes"),
};

const REMEDY: &str = "attach it again: `nectary status` lists what is attached";

/// `ram scrub`.
#[derive(Debug, Args)]
pub struct ScrubArguments {
    /// The device, as `nectary status` names it: /dev/loop0, or its SPEC
    #[arg(value_name = "DEVICE")]
    pub device: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Adds the method to a process that has devices open.
pub fn register(disks: OpenDevices, methods: &mut ControlMethods) {
    METHOD.register(disks, methods, |disk, _| async move {
        let ScrubFindings { repaired, lost, doubtful } =
            disk.scrub().await.map_err(|why| ControlFault::new(FaultKind::Failed, why, REMEDY))?;
        Ok(json!({ "repaired": repaired, "lost": lost, "doubtful": doubtful }))
    });
}

/// Compares all copies: 0, nothing is damaged; 3, all damage is repaired; 1, blocks are lost or doubtful.
pub fn run(arguments: &ScrubArguments) -> Result<u8, CommandFailure> {
    let found = attached::ask(&arguments.device, &METHOD, json!({}))?;
    let count = |name: &str| found[name].as_u64().unwrap_or_default();
    let (repaired, lost, doubtful) = (count("repaired"), count("lost"), count("doubtful"));
    match arguments.json {
        true => output::json(&found)?,
        false => output::text(&as_text(repaired, lost, doubtful))?,
    }
    Ok(match (repaired, lost + doubtful) {
        (0, 0) => GOOD,
        (_, 0) => DEGRADED,
        _ => FAILED,
    })
}

fn as_text(repaired: u64, lost: u64, doubtful: u64) -> String {
    if repaired + lost + doubtful == 0 {
        return "everything was compared, and nothing is damaged\n".to_owned();
    }
    let mut text = format!("{repaired} damaged copies were repaired\n");
    if lost > 0 {
        text += &format!("{lost} blocks are lost: no donor has the right bytes\n");
    }
    if doubtful > 0 {
        text += &format!("{doubtful} blocks are doubtful: their copies differ, and nobody knows which one is right\n");
    }
    text
}
