//! `nectary ram replace`: another donor takes the place of one, while the device is used.
//!
//! Owns: the method of the process that has the device. Leaves to others: the move (`nectary-ram`).

use clap::Args;
use nectary_host::Methods;
use nectary_ram::device::Opened;
use serde_json::{Value, json};

use super::attached::{self, Method};
use crate::exit::{Failure, GOOD};

/// The examples of the command.
pub const EXAMPLES: &str = "Examples:
  nectary ram replace /dev/loop0 h2:7070 h5:7070
  By the number in the SPEC, and while another shell looks how far it is:
    nectary ram replace /dev/loop0 2 h5:7070
    nectary status";

static METHOD: Method = Method {
    name: "ram-replace",
    about: "puts another donor in the place of one of a network RAM disk",
    doing: "replacing",
    figures: ("move_copied_bytes", "move_bytes"),
    remedy: "nothing is lost: `nectary status` shows the donors (docs/ram.md)",
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
}

/// Adds the method to a process that has devices open.
pub fn register(disks: Opened, methods: &mut Methods) {
    METHOD.register(disks, methods, |disk, parameters| async move {
        let text = |name: &str| parameters[name].as_str().unwrap_or_default();
        disk.replace(text("old"), text("new")).await.map(|()| Value::Null)
    });
}

/// Replaces a donor; ends when everything is on the other one and all donors were told.
pub fn run(arguments: &ReplaceArguments) -> Result<u8, Failure> {
    attached::ask(&arguments.device, &METHOD, json!({ "old": arguments.old, "new": arguments.new })).map(|_| GOOD)
}
