//! `nectary ram replace`: another donor takes the place of one, while the device is used.
//!
//! Owns: the method of the process that has the device. Leaves to others: the move (`nectary-ram`), and what is printed
//! (`attached`).

use clap::Args;
use nectary_host::ControlMethods;
use nectary_ram::device::OpenDevices;
use serde_json::{Value, json};

use super::attached::{self, RedundancyMethod};
use crate::exit::CommandFailure;

/// The examples of the command.
pub const EXAMPLES: &str = "Examples:
  nectary ram replace /dev/loop0 h2:7070 h5:7070
  By the number in the SPEC, and while another shell looks how far it is:
    nectary ram replace /dev/loop0 2 h5:7070
    nectary status
  Only the SPEC that names the present donors:
    nectary ram replace --json /dev/loop0 h2:7070 h5:7070 | jq -r .spec";

static METHOD: RedundancyMethod = RedundancyMethod {
    name: "ram-replace",
    about: "puts another donor in the place of one of a network RAM disk",
    doing: "replacing",
    figures: ("move_copied_bytes", "move_bytes"),
};

/// `ram replace`.
#[derive(Debug, Args)]
pub struct ReplaceArguments {
    /// The device, as `nectary status` names it: /dev/loop0, or its SPEC
    #[arg(value_name = "DEVICE")]
    pub device: String,
    /// The donor whose place is taken: its address in the SPEC, or its number there, from 1
    #[arg(value_name = "OLD")]
    pub old: String,
    /// The donor that takes it, as h5:7070
    #[arg(value_name = "NEW")]
    pub new: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Adds the method to a process that has devices open.
pub fn register(disks: OpenDevices, methods: &mut ControlMethods) {
    METHOD.register(disks, methods, |disk, parameters| async move {
        let text = |name: &str| parameters[name].as_str().unwrap_or_default();
        let (old, new) = (text("old"), text("new"));
        disk.replace(old, new).await.map_err(|error| attached::fault(error, "give another donor"))?;
        Ok(json!({ "donor": old, "new": new }))
    });
}

/// Replaces a donor; ends when everything is on the other one and all donors were told.
pub fn run(arguments: &ReplaceArguments) -> Result<u8, CommandFailure> {
    let (old, new) = (&arguments.old, &arguments.new);
    let done = |_: &Value| format!("{new} has the place of {old}");
    attached::ask_to_move(&arguments.device, &METHOD, json!({ "old": old, "new": new }), arguments.json, done)
}
