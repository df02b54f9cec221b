//! `nectary ram replace`: another donor takes the place of one, while the device is used.
//!
//! Owns: finding the process that has the device, its method, and progress. Leaves to others: the move (`nectary-ram`).

use std::time::Duration;

use clap::Args;
use nectary_host::control::{Part, parts, request};
use nectary_host::{Error, Fault, FaultKind, Methods, RuntimeDirectory};
use nectary_ram::device::Opened;
use serde_json::{Value, json};

use crate::exit::{BUSY, FAILED, Failure, GOOD, NOT_FOUND};
use crate::progress;

/// The examples of the command.
pub const EXAMPLES: &str = "Examples:
  nectary ram replace /dev/loop0 h2:7070 h5:7070
  By the number in the SPEC, and while another shell looks how far it is:
    nectary ram replace /dev/loop0 2 h5:7070
    nectary status";

/// How long each part may take to say what it is.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a move may take.
const MOVE_PATIENCE: Duration = Duration::from_secs(7 * 24 * 3600);
/// How often progress is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
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
        let disks = disks.all();
        async move {
            let text = |name: &str| parameters[name].as_str().unwrap_or_default().to_owned();
            let (old, new) = (text("old"), text("new"));
            let none = "no network RAM disk with redundancy is open here";
            let Some(disk) = disks.first() else {
                return Err(Fault::new(FaultKind::Failed, none, "name another device: `nectary status` lists them"));
            };
            let remedy = "nothing is lost: `nectary status` shows the donors (docs/ram.md)";
            match disk.replace(&old, &new).await {
                Ok(()) => Ok(Value::Null),
                Err(why) => Err(Fault::new(FaultKind::Failed, why, remedy)),
            }
        }
    });
}

fn is_meant(part: &Part, device: &str) -> bool {
    let Ok(status) = &part.status else { return false };
    status.component == "attach"
        && (status.name == device || ["given", "spec"].iter().any(|key| status.detail[*key] == device))
}

/// Replaces a donor; ends when everything is on the other one and all donors were told.
pub fn run(arguments: &ReplaceArguments) -> Result<u8, Failure> {
    let directory = RuntimeDirectory::open()?;
    let Some(part) = parts(&directory, PATIENCE)?.into_iter().find(|part| is_meant(part, &arguments.device)) else {
        let what = format!("{} is not attached", arguments.device);
        return Err(Failure::new(NOT_FOUND, what, "name an attached device: `nectary status` lists them"));
    };
    let (path, parameters) = (part.path.clone(), json!({ "old": arguments.old, "new": arguments.new }));
    let moving = std::thread::spawn(move || request(&path, METHOD, parameters, MOVE_PATIENCE));
    let bar = progress::bytes("replacing", Some(0));
    while !moving.is_finished() {
        std::thread::sleep(LOOK_EVERY);
        let Ok(status) = request(&part.path, "status", Value::Null, PATIENCE) else { continue };
        let devices = status["detail"]["devices"].as_array().cloned().unwrap_or_default();
        let figures = devices.iter().map(|device| &device["figures"]);
        for figures in figures.filter(|figures| figures["move_bytes"].is_u64()) {
            bar.set_length(figures["move_bytes"].as_u64().unwrap_or_default());
            bar.set_position(figures["move_copied_bytes"].as_u64().unwrap_or_default());
        }
    }
    bar.finish_and_clear();
    let ended = moving.join().map_err(|_| Failure::bare(FAILED, "the request ended without an answer"))?;
    match ended {
        Ok(_) => Ok(GOOD),
        Err(Error::Fault { fault, .. }) => {
            let code = if fault.kind == FaultKind::Busy { BUSY } else { FAILED };
            Err(Failure::new(code, fault.message, fault.remedy))
        }
        Err(error) => Err(error.into()),
    }
}
