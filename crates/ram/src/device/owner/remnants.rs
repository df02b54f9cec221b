//! What a donor without a place has of the device, for example after a filling that was interrupted.
//!
//! Owns: reading its metadata area, recognising it, and giving the memory back. Promises: the device of another user is never overwritten, nor what
//! a later client has stored.

use std::sync::Arc;
use std::time::Duration;

use nectary_block::{BlockDevice, IoContext};
use nectary_host::log::{self, LogLevel};

use super::session::{DonorConnectError, DonorRequestOutcome, SessionTarget, begin, window};
use crate::device::foreign::DonorExport;
use crate::format::{DonorRecord, RecordGeometry, RecordStamp};
use crate::group::{DonorReply, DonorRequest};

/// How often a donor that took no place is tried to be emptied; the pause after an attempt is twice the one before.
pub const EMPTYINGS_MAX: u64 = 8;
/// The first of these pauses.
const EMPTYING_PAUSE: Duration = Duration::from_secs(1);
/// Ranges are trimmed in steps of this size. *Units*: bytes.
const TRIM_BYTES: u64 = 1 << 30;

/// What a device has become, by which its remnants are recognised.
#[derive(Debug, Clone, Copy)]
pub struct CurrentDevice {
    pub geometry: RecordGeometry,
    /// The generation and the client of the present attachment.
    pub generation: u64,
    pub client: u64,
}

impl CurrentDevice {
    /// Whether a metadata area is empty, or has what an earlier attempt to fill the donor has left: the same device,
    /// maybe before it has grown, of this client or an earlier one.
    pub fn is_free(&self, area: &[u8]) -> bool {
        match DonorRecord::decode(area) {
            _ if DonorRecord::is_absent(area) => true,
            Ok(DonorRecord { stamp, geometry, .. }) => {
                let is_earlier = stamp.generation < self.generation;
                let is_mine = stamp.generation == self.generation && stamp.client == self.client;
                let is_same = geometry == self.geometry || geometry.may_become(&self.geometry);
                is_same && (is_earlier || is_mine)
            }
            Err(_) => false,
        }
    }
}

/// Removes the device's record and blocks from a donor that is not in use. If the donor does not answer, they stay
/// there, and the device does not use them.
pub async fn empty(device: Arc<DonorExport>) -> Result<(), String> {
    let (area, _) = area(&device).await?;
    let body = DonorRequest::SwapMetadata { expected: RecordStamp::of(&area), record: bytes::Bytes::new() };
    match begin(&device, body).await {
        DonorRequestOutcome::Answered(DonorReply::Done) => {}
        DonorRequestOutcome::Answered(_) => return Err("another client has it".to_owned()),
        DonorRequestOutcome::Lost(reason) => return Err(reason),
    }
    trim(&device, 0..window(&device)).await
}

/// Empties a donor that took no place, as often as [`EMPTYINGS_MAX`] and with as many epochs. What another client, or
/// another device, has there stays.
pub async fn give_back(target: SessionTarget, epoch: u64, present: CurrentDevice) {
    let name = target.address.text.clone();
    let mut pause = EMPTYING_PAUSE;
    for attempt in 0..EMPTYINGS_MAX {
        match give_back_once(&target, epoch + attempt, &present).await {
            Ok(()) => return,
            Err(why) if attempt + 1 == EMPTYINGS_MAX => {
                let what = "still has a part of a device that does not use it; `nectary ram delete --part` frees it";
                log::write(LogLevel::Warning, "ram", format_args!("{name} {what}: {why}"));
            }
            Err(_) => tokio::time::sleep(pause).await,
        }
        pause *= 2;
    }
}

async fn give_back_once(target: &SessionTarget, epoch: u64, present: &CurrentDevice) -> Result<(), String> {
    let reached = match target.connect(epoch, None).await {
        Ok(reached) => reached,
        Err(DonorConnectError::Absent(_)) => return Ok(()),
        Err(away) => return Err(away.reason()),
    };
    let (there, is_owned) = area(&reached.device).await?;
    let is_mine = RecordStamp::of(&there).client == present.client;
    match present.is_free(&there) && (!is_owned || is_mine) {
        true => empty(reached.device).await,
        false => Ok(()),
    }
}

/// The metadata area of a donor, and whether another client has it.
pub(super) async fn area(device: &Arc<DonorExport>) -> Result<(bytes::Bytes, bool), String> {
    match begin(device, DonorRequest::ReadMetadata).await {
        DonorRequestOutcome::Answered(DonorReply::Metadata { area, is_owned }) => Ok((area, is_owned)),
        DonorRequestOutcome::Answered(_) => Err("it does not tell its metadata".to_owned()),
        DonorRequestOutcome::Lost(reason) => Err(reason),
    }
}

/// Makes a range of a donor's memory read as zeroes.
pub(crate) async fn trim(device: &DonorExport, range: std::ops::Range<u64>) -> Result<(), String> {
    let mut offset = range.start;
    while offset < range.end {
        let length = TRIM_BYTES.min(range.end - offset);
        // A trim has no effect on some other servers.
        let trimmed = match device.is_foreign() {
            true => device.write_zeroes(offset, length, IoContext::default()),
            false => device.discard(offset, length, IoContext::default()),
        };
        trimmed.await.map_err(|error| error.detail)?;
        offset += length;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{MemberState, MembershipView, RedundancyCode, StripeSet, ViewMember};

    #[test]
    fn only_own_remnants_are_overwritten() {
        let geometry = |bytes: u64, id: u8| RecordGeometry {
            device: [id; 16],
            bytes,
            block_bytes: 4096,
            stripe_bytes: 1 << 20,
            members: 2,
            code: RedundancyCode::Mirror,
        };
        let area = |geometry: RecordGeometry, generation: u64, client: u64| {
            let member = ViewMember { incarnation: 1, joined: 1, state: MemberState::Present };
            let record = DonorRecord {
                stamp: RecordStamp { generation, client, revision: 5 },
                geometry,
                position: 1,
                is_ready: true,
                view: MembershipView { generation, epoch: 2, members: vec![member; 2] },
                dirty: StripeSet::none(geometry.stripes()),
            };
            record.encode()
        };
        let present = CurrentDevice { geometry: geometry(8 << 20, 3), generation: 7, client: 9 };
        assert!(present.is_free(&[]) && present.is_free(&[0; 64]));
        for (bytes, id, generation, client, is_free) in [
            (8 << 20, 3, 7, 9, true),
            (4 << 20, 3, 7, 9, true),
            (4 << 20, 3, 6, 1, true),
            (8 << 20, 3, 7, 1, false),
            (4 << 20, 3, 8, 1, false),
            (9 << 20, 3, 6, 1, false),
            (8 << 20, 4, 6, 1, false),
        ] {
            let area = area(geometry(bytes, id), generation, client);
            assert_eq!(present.is_free(&area), is_free, "{bytes} {id} {generation} {client}");
            let damaged: Vec<u8> = area.iter().enumerate().map(|(at, byte)| byte ^ u8::from(at == 40)).collect();
            assert!(!present.is_free(&damaged));
        }
    }
}
