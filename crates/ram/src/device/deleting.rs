//! Deleting what an earlier version has made; the result of deleting any device.
//!
//! Owns: the error that names what was not deleted. Leaves to others: the checks before anything is deleted (`owner`).

use nectary_block::{BlockDevice, DeviceErrorKind, Error};
use nectary_host::log::{self, LogLevel};
use nectary_nbd::{ConnectOptions, ExportUrl, NbdDevice};

use super::address::DonorAddress;
use super::foreign::DonorExport;
use super::options::RamOptions;
use super::owner::remnants::trim;
use super::owner::session::CONNECT_TIME_MAX;
use super::owner::survey::error;
use crate::donor::name::ExportName;

/// What became of the part on one donor.
pub(crate) enum DeletionOutcome {
    Deleted,
    /// The donor answers, and has nothing of the device.
    Nothing,
    /// The donor does not answer, or gives no access, for this reason.
    Away(String),
    /// The donor failed meanwhile, for this reason.
    Failed(String),
}

/// Returns the number of donors on which a device of `members` donors was deleted, and logs it.
///
/// *Errors*: [`DeviceErrorKind::Absent`] names the donors that do not answer, and those without a part if parts are missing;
/// [`DeviceErrorKind::Io`] if a donor has failed.
pub(crate) fn conclude(
    options: &RamOptions,
    members: usize,
    outcomes: Vec<(String, DeletionOutcome)>,
) -> Result<usize, Error> {
    let (mut deleted, mut is_failed) = (0, false);
    let (mut problems, mut empty) = (Vec::new(), Vec::new());
    for (name, outcome) in outcomes {
        match outcome {
            DeletionOutcome::Deleted => deleted += 1,
            DeletionOutcome::Nothing => empty.push(name),
            DeletionOutcome::Away(why) => problems.push(format!("{name}: {why}")),
            DeletionOutcome::Failed(why) => {
                is_failed = true;
                problems.push(format!("{name}: {why}"));
            }
        }
    }
    let id = &options.id;
    if deleted == 0 && problems.is_empty() {
        return Err(error(options, DeviceErrorKind::Absent, format!("no donor has a part of device \"{id}\"")));
    }
    if deleted + problems.len() < members && !empty.is_empty() {
        problems.push(format!(
            "{}: nothing of the device is there; if it was not started again, another donor has that part, and \
             `nectary ram delete --part 'ram(DONOR,id={id})'` frees it",
            empty.join(", ")
        ));
    }
    if problems.is_empty() {
        log::write(LogLevel::Note, "ram", format_args!("device {id} is deleted on {deleted} donors"));
        return Ok(deleted);
    }
    let kind = if is_failed { DeviceErrorKind::Io } else { DeviceErrorKind::Absent };
    Err(error(options, kind, format!("deleted on {deleted} donors, not on others: {}", problems.join("; "))))
}

/// Frees an export that has no record: what an earlier version of this program has made without redundancy, or another NBD
/// client. *Errors*: in words.
pub(crate) async fn free_export(address: &DonorAddress, id: &str) -> Result<(), String> {
    let name = ExportName { id: id.to_owned(), size_bytes: None, session: None };
    let url = ExportUrl { connections: Some(1), ..address.export(&name.to_string()) };
    let mut options = ConnectOptions::default();
    options.is_single_session = true;
    let connected = tokio::time::timeout(CONNECT_TIME_MAX, NbdDevice::connect(&url, options)).await;
    let device = connected.map_err(|_| format!("it does not answer within {CONNECT_TIME_MAX:?}"))?;
    let device = device.map_err(|error| error.message)?;
    let size_bytes = device.geometry().size_bytes;
    trim(&DonorExport::own(device), 0..size_bytes).await
}
