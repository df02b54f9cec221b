//! Whether what the donors have of a device is right: `nectary ram check`.
//!
//! Owns: one look at all data on the donors, by sessions that only read, and the list of problems. Promises: nothing is
//! stored, and no client is kept from the device. A device that a client has is refused, because its donors agree only
//! between that client's steps; if a client attaches during the check, the check fails at its end. Leaves to others:
//! the text for people, and exit codes (the command).
//!
//! | file | what is in it |
//! |---|---|
//! | `report` | the findings |
//! | `members` | a device that is changed in place: the members of every stripe yield each other |
//! | `slots` | logged parity: reading all slots of all groups |
//! | `group` | logged parity: the check of one group |
//! | `blocks` | logged parity: the valid copy of each block, and whether it can be read |
//!
//! *Cost*: all data of the device on the donors is read once; with logged parity, 16 bytes of memory for each block,
//! plus the areas before the slots.

mod blocks;
mod group;
mod members;
mod report;
mod slots;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use nectary_block::{DeviceErrorKind, Error};

use crate::device::foreign::DonorExport;
use crate::device::owner::client::machine;
use crate::device::owner::device::draw_client;
use crate::device::owner::session::{DonorRequestOutcome, begin};
use crate::device::owner::survey::{
    self, DeviceDonors, SurveyResult, SurveyedDonor, describe, error, found, look_patiently, owned_elsewhere, place,
};
use crate::device::RamOptions;
use crate::format::{DonorRecord, MemberState, RecordStamp, RedundancyCode};
use crate::group::{Donor, DonorReply, DonorRequest, MachineIntent, MachineTimes, merge};

pub use report::{CheckCounts, CheckFindings, CheckProblem, CheckedDonor, PROBLEMS_MAX, ProblemKind, RedundancyHealth};

/// The maximum number of bytes of one read from a donor.
const READ_BYTES: u64 = 1 << 20;

/// The callback for progress: the bytes read so far, and all bytes to read.
pub type Progress<'a> = &'a mut (dyn FnMut(u64, u64) + Send);

/// The donors, by position; those whose data is not trusted are omitted.
struct TrustedDonors {
    devices: Vec<Option<Arc<DonorExport>>>,
}

impl TrustedDonors {
    fn is_there(&self, donor: Donor) -> bool {
        self.devices[donor].is_some()
    }

    /// Reads from a donor; `None` if its data is not trusted. *Errors*: the donor's error, in words.
    async fn read(&self, donor: Donor, offset: u64, bytes: u64) -> Result<Option<bytes::Bytes>, String> {
        let Some(device) = &self.devices[donor] else { return Ok(None) };
        match begin(device, DonorRequest::Read { offset, bytes }).await {
            DonorRequestOutcome::Answered(DonorReply::Data(data)) if data.len() as u64 == bytes => Ok(Some(data)),
            DonorRequestOutcome::Answered(_) => Err(format!("donor {} does not give what it has", donor + 1)),
            DonorRequestOutcome::Lost(reason) => Err(reason),
        }
    }
}

/// Checks a device that is not attached.
///
/// *Errors*: a client has it, or attaches during the check ([`DeviceErrorKind::Busy`]); too few
/// donors are present, and all missing ones are named; a donor disconnects during the check.
pub async fn check(options: &RamOptions, progress: Progress<'_>) -> Result<CheckFindings, Error> {
    // If only one of two donors is present, its data is checked as it is.
    let options = &RamOptions { trust_remaining: true, ..options.clone() };
    let client = draw_client(options)?;
    let seen = look_patiently(options, client, true).await;
    let busy = |other: &survey::LivingClient| {
        error(options, DeviceErrorKind::Busy, format!("a check needs it alone: {}", owned_elsewhere(other)))
    };
    if let Some(other) = survey::owner(&seen) {
        return Err(busy(&other));
    }
    let DeviceDonors { geometry, places } = place(options, &seen)?;
    let names: Vec<&str> = places.iter().map(|place| seen[*place].name()).collect();
    let refuse = |refusal| {
        let (kind, detail) = describe(&refusal, &names);
        error(options, kind, detail)
    };
    let merged = merge(&found(&seen, &places), true).map_err(refuse)?;
    // A machine is made, but never run, only to check that geometry and labels are possible.
    let labels: Vec<String> = places.iter().map(|place| seen[*place].label()).collect();
    let intent = MachineIntent::Attach { take_over: false, trust_remaining: true };
    let mut checked = CheckFindings::new(options, &geometry);
    if let Err(refusal) = machine(geometry, labels, client, intent, MachineTimes::default(), 0) {
        let (_, detail) = describe(&refusal, &names);
        checked.problem(CheckProblem::of(ProblemKind::Shape, detail));
    }
    checked.view = merged.view.number();
    let records: Vec<Option<&DonorRecord>> = places.iter().map(|place| record(&seen[*place])).collect();
    let trusted = |donor: Donor| if merged.trusted[donor] { records[donor] } else { None };
    checked.is_detached = (0..places.len()).filter_map(trusted).all(|record| record.stamp.client == 0);
    for (donor, place) in places.iter().enumerate() {
        let state = merged.view.members[donor].state;
        let why = match (merged.trusted[donor], &seen[*place].state) {
            (true, _) => None,
            (false, Err(away)) => Some(away.reason()),
            (false, Ok(SurveyedDonor { record: None, .. })) => {
                Some("it has nothing of the device, or damaged records".into())
            }
            (false, Ok(_)) if state == MemberState::Left => Some("it was left, and not filled since".to_owned()),
            (false, Ok(_)) if state == MemberState::Rebuilding => Some("it was not filled completely".to_owned()),
            (false, Ok(_)) => {
                Some("it was started again or replaced, and has a part that the device does not use".to_owned())
            }
        };
        if let Some(why) = &why {
            checked.problem(CheckProblem {
                donor: Some(*place),
                ..CheckProblem::of(ProblemKind::DonorMissing, why.clone())
            });
        }
        let generation = records[donor].map(|record| record.stamp.generation);
        checked.donors.push(CheckedDonor { name: names[donor].to_owned(), place: *place, generation, why });
    }
    let device = |donor: Donor| {
        let there = seen[places[donor]].state.as_ref().ok().filter(|_| merged.trusted[donor])?;
        Some(there.reached.device.clone())
    };
    let donors = TrustedDonors { devices: (0..places.len()).map(device).collect() };
    let generation = records.iter().flatten().map(|record| record.stamp.generation).max().unwrap_or(0);
    let failed = |reason: String| error(options, DeviceErrorKind::Io, reason);
    match geometry.code {
        RedundancyCode::Log(_) => {
            slots::check(&mut checked, &geometry, generation, &donors, progress).await.map_err(failed)?
        }
        RedundancyCode::None(_) | RedundancyCode::Mirror | RedundancyCode::Parity => {
            let of_donor = |donor: Donor| trusted(donor).map(|record| &record.dirty);
            let dirty: Vec<_> = (0..places.len()).map(of_donor).collect();
            members::check(&mut checked, &geometry, &dirty, &donors, progress).await.map_err(failed)?;
        }
    }
    // If a client has changed the data during the check, the findings are useless.
    for donor in &seen {
        let Ok(SurveyedDonor { reached, area, .. }) = &donor.state else { continue };
        let name = donor.name();
        match begin(&reached.device, DonorRequest::ReadMetadata).await {
            DonorRequestOutcome::Answered(DonorReply::Metadata { is_owned: true, area: now }) => {
                return Err(busy(&RecordStamp::of(&now).client.into()));
            }
            DonorRequestOutcome::Answered(DonorReply::Metadata { area: now, .. })
                if RecordStamp::of(&now) == RecordStamp::of(area) => {}
            DonorRequestOutcome::Answered(_) => {
                let detail = format!("{name}: a client has used the device meanwhile: check it again");
                return Err(error(options, DeviceErrorKind::Busy, detail));
            }
            DonorRequestOutcome::Lost(reason) => return Err(failed(format!("{name}: {reason}"))),
        }
    }
    checked.finish();
    Ok(checked)
}

fn record(seen: &SurveyResult) -> Option<&DonorRecord> {
    seen.state.as_ref().ok()?.record.as_ref()
}
