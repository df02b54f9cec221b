//! Requests to the process that has a network RAM disk attached.
//!
//! Owns: finding this process, waiting for its answer, and showing progress meanwhile. Leaves to others: the methods, one
//! file each.

use std::time::Duration;

use nectary_host::control::{Part, parts, request};
use nectary_host::{Error, Fault, FaultKind, RuntimeDirectory};
use nectary_ram::device::Opened;
use nectary_ram::live::Remote;
use serde_json::Value;

use crate::exit::{BUSY, FAILED, Failure, NOT_FOUND};
use crate::progress;

/// How long each part may take to say what it is.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a request may take.
const REQUEST_PATIENCE: Duration = Duration::from_secs(7 * 24 * 3600);
/// How often progress is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A request, and how its progress is shown.
pub struct Request {
    /// The method.
    pub method: &'static str,
    /// Its parameters.
    pub parameters: Value,
    /// What it does, in one word.
    pub what: &'static str,
    /// The figures of the device that say how much is done, and how much there is to do. *Units*: bytes.
    pub figures: (&'static str, &'static str),
}

/// Returns the network RAM disk with redundancy that this process has open.
pub fn disk(disks: &Opened) -> Result<Remote, Fault> {
    let none = "no network RAM disk with redundancy is open here";
    let fault = || Fault::new(FaultKind::Failed, none, "name another device: `nectary status` lists them");
    disks.all().first().cloned().ok_or_else(fault)
}

fn is_meant(part: &Part, device: &str) -> bool {
    let Ok(status) = &part.status else { return false };
    status.component == "attach"
        && (status.name == device || ["given", "spec"].iter().any(|key| status.detail[*key] == device))
}

/// Sends a request to the process that has a device attached, and waits for its answer.
pub fn ask(device: &str, of: Request) -> Result<Value, Failure> {
    let directory = RuntimeDirectory::open()?;
    let Some(part) = parts(&directory, PATIENCE)?.into_iter().find(|part| is_meant(part, device)) else {
        let what = format!("{device} is not attached");
        return Err(Failure::new(NOT_FOUND, what, "name an attached device: `nectary status` lists them"));
    };
    let Request { method, parameters, what, figures: (done, all) } = of;
    let path = part.path.clone();
    let working = std::thread::spawn(move || request(&path, method, parameters, REQUEST_PATIENCE));
    let bar = progress::bytes(what, Some(0));
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
    let ended = working.join().map_err(|_| Failure::bare(FAILED, "the request ended without an answer"))?;
    ended.map_err(|error| match error {
        Error::Fault { fault, .. } => {
            let code = if fault.kind == FaultKind::Busy { BUSY } else { FAILED };
            Failure::new(code, fault.message, fault.remedy)
        }
        error => error.into(),
    })
}
