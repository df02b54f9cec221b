//! Deleting a device without redundancy, or what one donor has of it; the result of deleting any device.
//!
//! Owns: the checks before anything is deleted, and the error that names what was not deleted. Promises: a device that a
//! client has, or that the SPEC names wrongly, is not deleted.

use nectary_block::{BlockDevice, DeviceErrorKind, Error, IoContext};
use nectary_host::log::{self, LogLevel};

use super::connect::{LabelledSession, is_in_use};
use super::label::{DonorLabel, LABEL_AREA_BYTES, LabelContent};
use super::opening::{
    CandidateState, DISCARD_BYTES, DonorCandidate, check_distinct, check_plain, draw_client, error, survey,
};
use super::options::RamOptions;
use super::together::together;
use crate::device::owner::survey::{owned_elsewhere, redundancy_on};

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

/// Deletes a device: trims all its bytes on every donor that has a part, which frees the memory.
///
/// *Errors*: as [`delete`](super::delete).
pub(super) async fn delete(options: &RamOptions) -> Result<usize, Error> {
    let candidates = survey(options, draw_client(options)?).await;
    check_distinct(options, &candidates)?;
    check_unused(options, &candidates).await?;
    check_plain(options, &candidates).await?;
    let members = check_labels(options, &candidates)?;
    conclude(options, members, together(candidates.into_iter().map(|one| delete_on(one, false)).collect()).await)
}

/// Deletes what the only donor of the SPEC has of a device, which by itself needs `is_forced`: the device without
/// redundancy cannot do without it.
pub(super) async fn delete_part(options: &RamOptions, is_forced: bool) -> Result<(), Error> {
    let candidates = survey(options, draw_client(options)?).await;
    check_unused(options, &candidates).await?;
    let part = candidates.iter().find_map(|candidate| label(candidate).filter(|label| label.id == options.id));
    if let Some(label) = part.filter(|_| !is_forced) {
        let detail = format!(
            "the device has no redundancy and needs this donor, number {} of {}: delete the whole device with `nectary \
             ram delete SPEC`; if the other donors have nothing of it any more, add --force",
            label.number + 1,
            label.shares.len()
        );
        return Err(error(options, DeviceErrorKind::Busy, detail));
    }
    check_ids(options, &candidates)?;
    let outcomes = together(candidates.into_iter().map(|one| delete_on(one, is_forced)).collect()).await;
    conclude(options, 1, outcomes).map(drop)
}

/// Refuses a device that a client has.
async fn check_unused(options: &RamOptions, candidates: &[DonorCandidate]) -> Result<(), Error> {
    let refused = |candidate: &DonorCandidate| match &candidate.state {
        CandidateState::Refused(why) => Some((candidate.target.address.text.clone(), why.clone())),
        _ => None,
    };
    let refused: Vec<(String, String)> = candidates.iter().filter_map(refused).collect();
    if refused.is_empty() {
        return Ok(());
    }
    if let Some(client) = redundancy_on(options, draw_client(options)?).await.1 {
        return Err(error(options, DeviceErrorKind::Busy, owned_elsewhere(&client)));
    }
    let in_use: Vec<String> =
        refused.iter().filter(|(_, why)| is_in_use(why)).map(|(name, why)| format!("{name}: {why}")).collect();
    match in_use.is_empty() {
        true => Ok(()),
        false => {
            let detail = format!("{}; detach it there first: nothing is deleted", in_use.join("; "));
            Err(error(options, DeviceErrorKind::Busy, detail))
        }
    }
}

fn label(candidate: &DonorCandidate) -> Option<&DonorLabel> {
    match &candidate.state {
        CandidateState::Reached(LabelledSession { found: LabelContent::Label(label), .. }) => Some(label),
        _ => None,
    }
}

/// Refuses a donor with the label of another device, which only other NBD servers can have.
fn check_ids(options: &RamOptions, candidates: &[DonorCandidate]) -> Result<(), Error> {
    let id = &options.id;
    let other = candidates.iter().find_map(|one| Some((one, label(one).filter(|label| label.id != *id)?)));
    let Some((DonorCandidate { target, .. }, DonorLabel { id: other, .. })) = other else { return Ok(()) };
    let detail = format!("{}: it holds device \"{other}\", not \"{id}\"", target.address.text);
    Err(error(options, DeviceErrorKind::Invalid, detail))
}

/// Returns the number of donors of the device, by the labels that are there. Refuses a SPEC that names other donors than
/// the device has.
fn check_labels(options: &RamOptions, candidates: &[DonorCandidate]) -> Result<usize, Error> {
    let invalid = |detail: String| Err(error(options, DeviceErrorKind::Invalid, detail));
    let (id, named) = (&options.id, options.donors.len());
    check_ids(options, candidates)?;
    let mut first: Option<&DonorLabel> = None;
    for candidate in candidates {
        let (name, Some(label)) = (&candidate.target.address.text, label(candidate)) else { continue };
        if !first.get_or_insert(label).is_same_device(label) {
            return invalid(format!("{name}: its device \"{id}\" is another one, made at another time"));
        }
    }
    match first.map(|label| label.shares.len()) {
        Some(all) if all != named => {
            invalid(format!("the device has {all} donors, {named} are named: name all; nothing is deleted"))
        }
        _ => Ok(named),
    }
}

/// Deletes the part on one donor. Bytes without a label are deleted only if the user insists.
async fn delete_on(candidate: DonorCandidate, is_forced: bool) -> (String, DeletionOutcome) {
    let (name, is_ours) = (candidate.target.address.text.clone(), candidate.target.can_return());
    let (device, found) = match candidate.state {
        CandidateState::Unreachable(why) | CandidateState::Refused(why) => return (name, DeletionOutcome::Away(why)),
        CandidateState::Empty => return (name, DeletionOutcome::Nothing),
        CandidateState::Reached(LabelledSession { device, found }) => (device, found),
    };
    // A Nectary donor has it under the id of the device: a deletion was interrupted, or the label is damaged.
    let is_part = match &found {
        LabelContent::Label(_) => true,
        LabelContent::Empty | LabelContent::Unusable(_) => is_ours,
        LabelContent::SomethingElse => is_ours && is_forced,
    };
    let outcome = match found {
        _ if is_part => trim(&device).await.map_or_else(DeletionOutcome::Failed, |()| DeletionOutcome::Deleted),
        LabelContent::Unusable(why) => DeletionOutcome::Away(why),
        LabelContent::SomethingElse => {
            let remedy = if is_ours { "; `nectary ram delete --part --force` frees it nevertheless" } else { "" };
            DeletionOutcome::Away(format!("it holds something that is no network RAM disk{remedy}"))
        }
        _ => DeletionOutcome::Nothing,
    };
    (name, outcome)
}

/// Zeroes the label, because a trim has no effect on some servers, and trims the rest.
async fn trim(device: &nectary_nbd::NbdDevice) -> Result<(), String> {
    let size_bytes = device.geometry().size_bytes;
    let failed = |error: Error| error.detail;
    device.write_zeroes(0, LABEL_AREA_BYTES, IoContext::default()).await.map_err(failed)?;
    let mut offset = LABEL_AREA_BYTES;
    while offset < size_bytes {
        let length = DISCARD_BYTES.min(size_bytes - offset);
        device.discard(offset, length, IoContext::default()).await.map_err(failed)?;
        offset += length;
    }
    device.flush(IoContext::default()).await.map_err(failed)
}
