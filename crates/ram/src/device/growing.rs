//! Growing a device without redundancy that no client has.
//!
//! Owns: the order of the steps. Promises: nothing that the device has moves; a client that dies at any step leaves a
//! device of the former or of the new size.
//!
//! | step | after it |
//! |---|---|
//! | every donor gets room for its larger share, which reads as zeroes | the former size |
//! | every donor gets a label with the new size | the new size, as soon as one donor has the label |

use nectary_block::{BlockDevice, DeviceErrorKind, Error, IoContext, exact_size, format_size};

use super::connect::{DonorSessionError, LabelledSession, LinkTarget, write_label};
use super::label::{DonorLabel, GROWTHS_MAX, LABEL_AREA_BYTES};
use super::layout::more_shares;
use super::opening::{
    CandidateState, DISCARD_BYTES, DonorCandidate, all_donors, check_distinct, check_plain, draw_client, error, survey,
};
use super::options::RamOptions;
use crate::device::owner::planted::{Bug, before_durable_step, planted};
use crate::donor::PROMISE_BYTES;

/// Makes a device larger, and returns its new label.
///
/// *Errors*: as [`grow`](super::grow).
pub(super) async fn grow(options: &RamOptions, size_bytes: u64) -> Result<DonorLabel, Error> {
    let invalid = |detail: String| error(options, DeviceErrorKind::Invalid, detail);
    let client = draw_client(options)?;
    let candidates = survey(options, client).await;
    check_distinct(options, &candidates)?;
    check_plain(options, &candidates).await?;
    let (label, donors) = all_donors(options, candidates)?;
    if size_bytes < label.size_bytes {
        let (has, wanted) = (exact_size(label.size_bytes), exact_size(size_bytes));
        return Err(invalid(format!("the device has {has}, and does not shrink to {wanted}")));
    }
    let Some(generation) = label.generation.checked_add(1) else {
        return Err(error(options, DeviceErrorKind::Io, "its generations are used up".to_owned()));
    };
    let shares = new_shares(options, &label, &donors, size_bytes)?;
    let mut formers = label.formers.clone();
    if shares != label.shares {
        formers.push(label.shares.clone());
    }
    if formers.len() > GROWTHS_MAX {
        return Err(invalid(format!("it has grown {GROWTHS_MAX} times, which is the most")));
    }
    let grown = DonorLabel { size_bytes, generation, client, shares, formers, ..label.clone() };
    let failed = |donor: &DonorCandidate, why: String| {
        error(options, DeviceErrorKind::Io, format!("{}: {why}; what it has is as before", donor.target.address.text))
    };
    if planted(Bug::SizeBeforeRoom)
        && let Some(CandidateState::Reached(first)) = donors.first().map(|donor| &donor.state)
    {
        let _ = write_label(&first.device, &DonorLabel { number: 0, ..grown.clone() }).await;
    }
    let mut ready = Vec::new();
    for (number, donor) in donors.iter().enumerate() {
        let made = room(donor, label.shares[number]..grown.shares[number], options).await;
        ready.push(made.map_err(|why| failed(donor, why))?);
    }
    for (number, donor) in donors.iter().enumerate() {
        before_durable_step().await;
        let (CandidateState::Reached(first), later) = (&donor.state, &ready[number]) else { continue };
        let device = later.as_ref().map_or(&first.device, |later| &later.device);
        let label = DonorLabel { number, ..grown.clone() };
        write_label(device, &label).await.map_err(|why| failed(donor, why))?;
    }
    Ok(grown)
}

/// Returns the bytes of data that a donor could have.
fn capacity(donor: &DonorCandidate) -> u64 {
    let CandidateState::Reached(reached) = &donor.state else { return 0 };
    let part = reached.device.geometry().size_bytes;
    let free = if donor.target.can_return() { donor.free_bytes } else { 0 };
    // The donor lends whole slabs.
    let lent = if donor.target.can_return() { part.checked_next_multiple_of(PROMISE_BYTES) } else { None };
    let all = lent.unwrap_or(part).saturating_add(free);
    donor.quota_bytes.map_or(all, |quota| all.min(quota)).saturating_sub(LABEL_AREA_BYTES)
}

/// Divides what the device gets more among the donors.
fn new_shares(
    options: &RamOptions,
    label: &DonorLabel,
    donors: &[DonorCandidate],
    size_bytes: u64,
) -> Result<Vec<u64>, Error> {
    let has: u64 = label.shares.iter().sum();
    let free: Vec<u64> =
        donors.iter().zip(&label.shares).map(|(donor, share)| capacity(donor).saturating_sub(*share)).collect();
    let more_bytes = size_bytes.saturating_sub(has);
    match more_shares(more_bytes, &free) {
        Some(more) => Ok(label.shares.iter().zip(more).map(|(share, more)| share + more).collect()),
        None => {
            let each = donors.iter().zip(&free).map(|(donor, &free)| {
                let quota = donor.quota_bytes.map(|quota| format!(" (its quota is {})", format_size(quota)));
                format!("{} {}{}", donor.target.address.text, format_size(free), quota.unwrap_or_default())
            });
            let each: Vec<String> = each.collect();
            let more = format_size(more_bytes);
            Err(error(options, DeviceErrorKind::Full, format!("{more} more do not fit: free are {}", each.join(", "))))
        }
    }
}

/// Gives a donor room for its larger share, as zeroes. Returns the session that has it, if this is not the first one.
async fn room(
    donor: &DonorCandidate,
    shares: std::ops::Range<u64>,
    options: &RamOptions,
) -> Result<Option<LabelledSession>, String> {
    let CandidateState::Reached(first) = &donor.state else { return Ok(None) };
    let part_bytes = LABEL_AREA_BYTES + shares.end;
    let later = match part_bytes > first.device.geometry().size_bytes {
        true => Some(larger(&donor.target, part_bytes, options).await?),
        false => None,
    };
    let device = later.as_ref().map_or(&first.device, |later| &later.device);
    let mut offset = LABEL_AREA_BYTES + shares.start;
    while offset < part_bytes {
        before_durable_step().await;
        let length = DISCARD_BYTES.min(part_bytes - offset);
        device.write_zeroes(offset, length, IoContext::default()).await.map_err(|error| error.detail)?;
        offset += length;
    }
    Ok(later)
}

/// Begins a session for which the donor makes its part larger.
async fn larger(target: &LinkTarget, part_bytes: u64, options: &RamOptions) -> Result<LabelledSession, String> {
    before_durable_step().await;
    match target.connect(2, Some(part_bytes), options.patience).await {
        Ok(reached) => Ok(reached),
        Err(DonorSessionError::Absent) => Err("it does not have the device any more".to_owned()),
        Err(DonorSessionError::Failed(why) | DonorSessionError::Refused(why)) => Err(why),
    }
}
