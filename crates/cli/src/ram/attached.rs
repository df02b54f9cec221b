//! Requests to the process that has a network RAM disk attached.
//!
//! Owns: adding the methods of this process, finding it, waiting for its answer, and showing progress meanwhile. Leaves to
//! others: the methods, one file each.

use std::future::Future;
use std::time::Duration;

use nectary_host::control::{Part, parts, request};
use nectary_host::{Error, Fault, FaultKind, Methods, RuntimeDirectory};
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

/// A method of the process that has a network RAM disk with redundancy attached.
pub struct Method {
    /// Its name in requests.
    pub name: &'static str,
    /// What it does, for the list of methods.
    pub about: &'static str,
    /// What it does, in one word, for the display of progress.
    pub doing: &'static str,
    /// The figures of the device that say how much is done, and how much there is to do. *Units*: bytes.
    pub figures: (&'static str, &'static str),
    /// What a user can do if it fails.
    pub remedy: &'static str,
}

impl Method {
    /// Adds the method to a process that has devices open. `work` gets the disk and the parameters, and returns the
    /// answer, or in words why there is none.
    pub fn register<F>(
        &'static self,
        disks: Opened,
        methods: &mut Methods,
        work: impl Fn(Remote, Value) -> F + Clone + Send + Sync + 'static,
    ) where
        F: Future<Output = Result<Value, String>> + Send,
    {
        methods.register(self.name, self.about, move |parameters| {
            let (disk, work) = (disk(&disks), work.clone());
            async move { work(disk?, parameters).await.map_err(|why| Fault::new(FaultKind::Failed, why, self.remedy)) }
        });
    }
}

/// Returns the network RAM disk with redundancy that this process has open.
fn disk(disks: &Opened) -> Result<Remote, Fault> {
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
pub fn ask(device: &str, method: &Method, parameters: Value) -> Result<Value, Failure> {
    let directory = RuntimeDirectory::open()?;
    let Some(part) = parts(&directory, PATIENCE)?.into_iter().find(|part| is_meant(part, device)) else {
        let what = format!("{device} is not attached");
        return Err(Failure::new(NOT_FOUND, what, "name an attached device: `nectary status` lists them"));
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
    let ended = working.join().map_err(|_| Failure::bare(FAILED, "the request ended without an answer"))?;
    ended.map_err(|error| match error {
        Error::Fault { fault, .. } => {
            let code = if fault.kind == FaultKind::Busy { BUSY } else { FAILED };
            Failure::new(code, fault.message, fault.remedy)
        }
        error => error.into(),
    })
}
