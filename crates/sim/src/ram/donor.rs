//! A simulated donor: memory, a metadata area, an incarnation, and one owning connection.
//!
//! Owns: the execution of a request. Promises: the donor's side of `nectary_ram::mirror`: only the owner reads and
//! writes; a record is replaced only if the old one is as expected, and this exchange makes the connection that
//! requested it the owner.

use bytes::Bytes;
use nectary_ram::format::{DonorRecord, RecordStamp};
use nectary_ram::group::{DonorReply, DonorRequest};
use nectary_ram::planted::{MirrorBug, is_planted};

/// The number of a connection.
pub type ConnectionId = usize;

/// A donor.
#[derive(Debug)]
pub struct DonorModel {
    /// The number of its current start; each restart has another number.
    pub incarnation: u64,
    /// Its memory for the device.
    pub memory: Vec<u8>,
    /// Its metadata area.
    pub area: Vec<u8>,
    /// The record in the metadata area.
    pub record: Option<DonorRecord>,
    /// The only connection that may read and write.
    pub owner: Option<ConnectionId>,
    /// The time until which it is paused.
    pub paused_until_us: u64,
    /// The time until which requests take longer.
    pub slow_until_us: u64,
    /// The time until which it does not run.
    pub down_until_us: u64,
    /// Planted bug: the donor does not fence, and so also serves connections that do not own it.
    pub never_fences: bool,
}

impl DonorModel {
    /// An empty donor.
    pub fn new(incarnation: u64, bytes: u64, position: usize) -> DonorModel {
        DonorModel {
            incarnation,
            memory: vec![0; bytes as usize],
            area: Vec::new(),
            record: None,
            owner: None,
            paused_until_us: 0,
            slow_until_us: 0,
            down_until_us: 0,
            never_fences: position == 0 && is_planted(MirrorBug::FencingSkipped),
        }
    }

    /// Restarts the donor without its memory.
    pub fn restart(&mut self, incarnation: u64, down_until_us: u64) {
        self.incarnation = incarnation;
        self.memory.fill(0);
        self.area.clear();
        self.record = None;
        self.owner = None;
        (self.paused_until_us, self.down_until_us) = (0, down_until_us);
    }

    /// Executes a request of a connection. `is_alive` tells whether, to the donor's knowledge, a connection still
    /// exists.
    pub fn execute(&mut self, from: ConnectionId, body: &DonorRequest, is_alive: impl Fn(usize) -> bool) -> DonorReply {
        let is_owner = self.owner == Some(from) || self.never_fences && self.owner.is_some();
        match body {
            DonorRequest::ReadMetadata => {
                let is_owned = self.owner.is_some_and(|owner| owner != from && is_alive(owner));
                return DonorReply::Metadata { area: Bytes::copy_from_slice(&self.area), is_owned };
            }
            DonorRequest::SwapMetadata { expected, record } => {
                if RecordStamp::of(&self.area) != *expected {
                    return DonorReply::SwapRefused;
                }
                self.area = record.to_vec();
                self.record = DonorRecord::decode(record).ok();
                self.owner = Some(from);
                return DonorReply::Done;
            }
            _ if !is_owner => return DonorReply::NotOwner,
            _ => {}
        }
        let (offset, bytes) = range(body).unwrap_or_default();
        let end = offset.saturating_add(bytes);
        let Some(memory) = self.memory.get_mut(offset as usize..end as usize) else { return DonorReply::Failed };
        match body {
            DonorRequest::Read { .. } => return DonorReply::Data(Bytes::copy_from_slice(memory)),
            DonorRequest::Write { data, .. } => memory.copy_from_slice(data),
            _ => memory.fill(0),
        }
        DonorReply::Done
    }
}

/// Returns the range of a request that changes or reads memory, as its offset and its length in bytes.
pub fn range(body: &DonorRequest) -> Option<(u64, u64)> {
    match body {
        DonorRequest::Write { offset, data, .. } => Some((*offset, data.len() as u64)),
        DonorRequest::Read { offset, bytes }
        | DonorRequest::WriteZeroes { offset, bytes, .. }
        | DonorRequest::Trim { offset, bytes } => Some((*offset, *bytes)),
        DonorRequest::ReadMetadata | DonorRequest::SwapMetadata { .. } => None,
    }
}

/// Whether a request changes blocks.
pub fn is_change(body: &DonorRequest) -> bool {
    matches!(body, DonorRequest::Write { .. } | DonorRequest::WriteZeroes { .. } | DonorRequest::Trim { .. })
}
