//! Finishing a switch that a lost client has left, before the device is attached.
//!
//! Owns: storing the two records. Leaves to others: which records these are, and why they are safe (`crate::device::moves`).

use nectary_host::log::{self, LogLevel};

use super::session::{DonorRequestOutcome, begin};
use super::survey::{SurveyResult, SurveyedDonor, look_patiently, newest, owner};
use crate::device::RamOptions;
use crate::device::moves::{RecordHolder, unfinished};
use crate::format::{DonorRecord, RecordStamp};
use crate::group::{DonorReply, DonorRequest};

/// Finishes the switch, if there is one, and looks at the donors again. The SPEC must name both donors.
pub async fn finish(options: &RamOptions, client: u64, seen: Vec<SurveyResult>) -> Vec<SurveyResult> {
    if owner(&seen).is_some() && !options.take_over {
        return seen;
    }
    let Some(((former, fenced), (other, finished))) = find(&seen, client) else { return seen };
    let (former, other) = (&seen[former], &seen[other]);
    let note = |level: LogLevel, what: String| log::write(level, "ram", format_args!("{}: {what}", options.id));
    for (donor, record) in [(former, fenced), (other, finished)] {
        if let Err(why) = store(donor, &record).await {
            note(
                LogLevel::Warning,
                format!("a switch that an earlier client began is not finished: {}: {why}", donor.name()),
            );
            return look_patiently(options, client, false).await;
        }
    }
    let what = format!("donor {} has the place of {}, as an earlier client has decided", other.name(), former.name());
    note(LogLevel::Note, what);
    drop(seen);
    look_patiently(options, client, false).await
}

/// A donor by its place in the SPEC, and the record that it gets.
type Given = (usize, DonorRecord);

fn find(seen: &[SurveyResult], client: u64) -> Option<(Given, Given)> {
    let newest = newest(seen)?;
    let found = |at: usize| {
        let SurveyedDonor { record, reached, .. } = seen[at].state.as_ref().ok()?;
        Some(RecordHolder { record: record.as_ref()?, incarnation: super::session::incarnation(&reached.page) })
    };
    let pairs = (0..seen.len()).flat_map(|former| (0..seen.len()).map(move |other| (former, other)));
    pairs.into_iter().find_map(|(former, other)| {
        let (fenced, finished) = unfinished(newest, found(former)?, found(other)?, client)?;
        Some(((former, fenced), (other, finished)))
    })
}

async fn store(donor: &SurveyResult, record: &DonorRecord) -> Result<(), String> {
    let Ok(there) = &donor.state else { return Err("it does not answer any more".to_owned()) };
    let body = DonorRequest::SwapMetadata { expected: RecordStamp::of(&there.area), record: record.encode().into() };
    match begin(&there.reached.device, body).await {
        DonorRequestOutcome::Answered(DonorReply::Done) => Ok(()),
        DonorRequestOutcome::Answered(_) => Err("another client uses it at this moment".to_owned()),
        DonorRequestOutcome::Lost(reason) => Err(reason),
    }
}
