//! `nectary ram replace`: another donor takes the place of one, while the device is used.
//!
//! Owns: the method of the process that has the device. Leaves to others: the move (`nectary-ram`).

use clap::Args;
use nectary_host::{Fault, FaultKind, Methods};
use nectary_ram::device::Opened;
use serde_json::{Value, json};

use super::attached::{self, Request};
use crate::exit::{Failure, GOOD};

/// The examples of the command.
pub const EXAMPLES: &str = "Examples:
  nectary ram replace /dev/loop0 h2:7070 h5:7070
  By the number in the SPEC, and while another shell looks how far it is:
    nectary ram replace /dev/loop0 2 h5:7070
    nectary status";

const METHOD: &str = "ram-replace";

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
    methods.register(METHOD, "puts another donor in the place of one of a network RAM disk", move |parameters| {
        let disk = attached::disk(&disks);
        async move {
            let text = |name: &str| parameters[name].as_str().unwrap_or_default().to_owned();
            let (old, new) = (text("old"), text("new"));
            let remedy = "nothing is lost: `nectary status` shows the donors (docs/ram.md)";
            match disk?.replace(&old, &new).await {
                Ok(()) => Ok(Value::Null),
                Err(why) => Err(Fault::new(FaultKind::Failed, why, remedy)),
            }
        }
    });
}

/// Replaces a donor; ends when everything is on the other one and all donors were told.
pub fn run(arguments: &ReplaceArguments) -> Result<u8, Failure> {
    let parameters = json!({ "old": arguments.old, "new": arguments.new });
    let figures = ("move_copied_bytes", "move_bytes");
    attached::ask(&arguments.device, Request { method: METHOD, parameters, what: "replacing", figures }).map(|_| GOOD)
}
