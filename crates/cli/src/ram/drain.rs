//! `nectary ram drain`: what a donor has is moved to a spare, while the device is used.
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
  A device whose SPEC names a spare:
    nectary attach 'ram(h1:7070,h2:7070,h5:7070;spare,id=new,redundancy=mirror)'
    nectary ram drain /dev/loop0 h2:7070";

static METHOD: RedundancyMethod = RedundancyMethod {
    name: "ram-drain",
    about: "moves what a donor of a network RAM disk has to a spare",
    doing: "draining",
    figures: ("move_copied_bytes", "move_bytes"),
};

/// How a user names another donor.
const ANOTHER: &str = "use `nectary ram replace DEVICE DONOR NEW`, or attach the device with another spare in the SPEC, as \
                       h5:7070;spare";

/// `ram drain`.
#[derive(Debug, Args)]
pub struct DrainArguments {
    /// The device, as `nectary status` names it: /dev/loop0, or its SPEC
    #[arg(value_name = "DEVICE")]
    pub device: String,
    /// The donor to drain: its address in the SPEC, or its number there, from 1
    #[arg(value_name = "DONOR")]
    pub donor: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Adds the method to a process that has devices open.
pub fn register(disks: OpenDevices, methods: &mut ControlMethods) {
    METHOD.register(disks, methods, |disk, parameters| async move {
        let donor = parameters["donor"].as_str().unwrap_or_default();
        let spare = disk.drain(donor).await.map_err(|error| attached::fault(error, ANOTHER))?;
        Ok(json!({ "donor": donor, "spare": spare }))
    });
}

/// Drains a donor; ends when a spare has everything and all donors were told.
pub fn run(arguments: &DrainArguments) -> Result<u8, CommandFailure> {
    let donor = &arguments.donor;
    let done = |answer: &Value| {
        let spare = answer["spare"].as_str().unwrap_or_default();
        format!("{donor} has nothing of the device any more; {spare} has its place")
    };
    attached::ask_to_move(&arguments.device, &METHOD, json!({ "donor": donor }), arguments.json, done)
}
