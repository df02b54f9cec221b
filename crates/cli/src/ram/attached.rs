//! Requests to the process that has a network RAM disk attached.
//!
//! Owns: adding the methods of this process, finding it, waiting for its answer, and showing progress meanwhile; the
//! errors and the output of commands that replace a donor. Leaves to others: the methods, one file each.

use std::future::Future;
use std::time::Duration;

use nectary_host::control::{RunningPart, parts, request};
use nectary_host::{ControlFault, ControlMethods, Error, FaultKind, RuntimeDirectory};
use nectary_ram::device::OpenDevices;
use nectary_ram::device::owner::{DeviceController, MoveError, MoveErrorKind};
use serde_json::Value;

use crate::exit::{BUSY, CommandFailure, FAILED, GOOD, NOT_FOUND, USAGE};
use crate::{output, progress};

/// How long each part may take to say what it is.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a request may take.
const REQUEST_PATIENCE: Duration = Duration::from_secs(7 * 24 * 3600);
/// How often progress is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A method of the process that has a network RAM disk with redundancy attached.
pub struct RedundancyMethod {
    /// Its name in requests.
    pub name: &'static str,
    /// What it does, for the list of methods.
    pub about: &'static str,
    /// What it does, in one word, for the display of progress.
    pub doing: &'static str,
    /// The figures of the device that say how much is done, and how much there is to do. *Units*: bytes.
    pub figures: (&'static str, &'static str),
}

impl RedundancyMethod {
    /// Adds the method to a process that has devices open. `work` gets the disk and the parameters, and returns the
    /// answer.
    pub fn register<F>(
        &'static self,
        disks: OpenDevices,
        methods: &mut ControlMethods,
        work: impl Fn(DeviceController, Value) -> F + Clone + Send + Sync + 'static,
    ) where
        F: Future<Output = Result<Value, ControlFault>> + Send,
    {
        methods.register(self.name, self.about, move |parameters| {
            let (disk, work) = (disk(&disks), work.clone());
            async move { work(disk?, parameters).await }
        });
    }
}

/// Returns the network RAM disk with redundancy that this process has open.
fn disk(disks: &OpenDevices) -> Result<DeviceController, ControlFault> {
    let none = "no network RAM disk with redundancy is open here";
    let fault = || ControlFault::new(FaultKind::Failed, none, "name another device: `nectary status` lists them");
    disks.all().first().cloned().ok_or_else(fault)
}

/// Returns why a donor was not replaced, as an answer. `another`: how the user names another donor for its place.
pub fn fault(error: MoveError, another: &str) -> ControlFault {
    let (kind, remedy) = match error.kind {
        MoveErrorKind::NoSuchDonor => {
            (FaultKind::Invalid, "name one of them by its address, or by its number in the SPEC, from 1".to_owned())
        }
        MoveErrorKind::Invalid => (FaultKind::Invalid, "write the other donor as host:port".to_owned()),
        MoveErrorKind::Absent => {
            let remedy = format!("see whether `nectary ram donate` runs there and can be reached, or {another}");
            (FaultKind::NotFound, remedy)
        }
        MoveErrorKind::Unsuitable | MoveErrorKind::NoSpare => (FaultKind::Failed, another.to_owned()),
        MoveErrorKind::NotNow => {
            let remedy = "wait until `nectary status` shows no problem with the donors, then try it again";
            (FaultKind::Failed, remedy.to_owned())
        }
        MoveErrorKind::Failed => {
            (FaultKind::Failed, "nothing is lost: `nectary status --verbose` shows the donors".to_owned())
        }
    };
    ControlFault::new(kind, error.message, remedy)
}

fn is_meant(part: &RunningPart, device: &str) -> bool {
    let Ok(status) = &part.status else { return false };
    status.component == "attach"
        && (status.name == device || ["given", "spec"].iter().any(|key| status.detail[*key] == device))
}

/// Sends a request to the process that has a device attached, and waits for its answer.
pub fn ask(device: &str, method: &RedundancyMethod, parameters: Value) -> Result<Value, CommandFailure> {
    ask_part(device, method, parameters).map(|(answer, _)| answer)
}

/// As [`ask`], for a method that replaces a donor; then prints what was `done`, and the SPEC that names the present
/// donors.
pub fn ask_to_move(
    device: &str,
    method: &RedundancyMethod,
    parameters: Value,
    json: bool,
    done: impl FnOnce(&Value) -> String,
) -> Result<u8, CommandFailure> {
    let (mut answer, part) = ask_part(device, method, parameters)?;
    let status = request(&part.path, "status", Value::Null, PATIENCE).unwrap_or_default();
    answer["spec"] = status["detail"]["spec"].clone();
    if json {
        output::json(&answer)?;
        return Ok(GOOD);
    }
    let spec = answer["spec"].as_str().map(|spec| format!("from now on the SPEC is\n{}\n", for_shell(spec)));
    output::text(&format!("{}\n{}", done(&answer), spec.unwrap_or_default()))?;
    Ok(GOOD)
}

/// Puts a text in quotes for a shell.
fn for_shell(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn ask_part(
    device: &str,
    method: &RedundancyMethod,
    parameters: Value,
) -> Result<(Value, RunningPart), CommandFailure> {
    let directory = RuntimeDirectory::open()?;
    let Some(part) = parts(&directory, PATIENCE)?.into_iter().find(|part| is_meant(part, device)) else {
        let what = format!("{device} is not attached");
        return Err(CommandFailure::new(NOT_FOUND, what, "name an attached device: `nectary status` lists them"));
    };
    let (path, name, (done, all)) = (part.path.clone(), method.name, method.figures);
    let working = std::thread::spawn(move || request(&path, name, parameters, REQUEST_PATIENCE));
    let bar = progress::bytes(method.doing, Some(0));
    while !working.is_finished() {
        std::thread::sleep(LOOK_EVERY);
        let Ok(status) = request(&part.path, "status", Value::Null, PATIENCE) else { continue };
        let devices = status["detail"]["devices"].as_array().cloned().unwrap_or_default();
        let figures = devices.iter().map(|device| &device["figures"]);
        for figures in figures.filter(|figures| figures[all].is_u64()) {
            bar.set_length(figures[all].as_u64().unwrap_or_default());
            bar.set_position(figures[done].as_u64().unwrap_or_default());
        }
    }
    bar.finish_and_clear();
    let ended = working.join().map_err(|_| CommandFailure::bare(FAILED, "the request ended without an answer"))?;
    ended.map(|answer| (answer, part)).map_err(|error| match error {
        Error::Fault { fault, .. } => {
            let code = match fault.kind {
                FaultKind::Invalid => USAGE,
                FaultKind::NotFound => NOT_FOUND,
                FaultKind::Busy => BUSY,
                _ => FAILED,
            };
            CommandFailure::new(code, fault.message, fault.remedy)
        }
        error => error.into(),
    })
}
