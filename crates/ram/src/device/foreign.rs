//! NBD servers of other makes as donors of a device without redundancy.
//!
//! Owns: the place of the record on their exports, which have no window (`docs/formats/ram.md`, "Other NBD servers"), and the
//! export of a session with any donor. Promises: what is there that is no part of this device is never overwritten, unless
//! the user insists; the memory behind a lost connection counts as lost until the device is opened again. Leaves to
//! others: what the record says.
//!
//! Such a server keeps no earlier client out. The exchange of the record is a read, a comparison and a write, so two
//! clients that attach the device at the same moment may both succeed.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use nectary_block::{BlockDevice, Buffer, Error, IoContext, SurvivalLevel, WriteFlags};
use nectary_nbd::NbdDevice;

use crate::donor::name::ID_BYTES_MAX;
use crate::donor::page::DonorPage;
use crate::format::record::METADATA_BYTES;
use crate::format::{DonorRecord, RecordStamp};
use crate::group::DonorReply;

/// The first bytes of a copy.
const MAGIC: [u8; 8] = *b"NECRAMFO";
/// The only version that is written and read.
const VERSION: u32 = 1;
/// The head of a copy: magic, version, and the id of the device. *Units*: bytes.
const HEAD_BYTES: usize = 4096;
const ID_AT: usize = 16;
/// The length of a copy, and of the two copies at the end of an export. *Units*: bytes.
const COPY_BYTES: usize = HEAD_BYTES + METADATA_BYTES;
const AREA_BYTES: u64 = 2 * COPY_BYTES as u64;

/// What the end of another server's export has.
#[derive(Debug)]
enum AreaContent {
    Empty,
    /// The record of the device.
    Record(Bytes),
    /// The record of a device with this id.
    OtherDevice(String),
    SomethingElse,
}

/// The export of a donor, in one session.
pub struct DonorExport {
    nbd: NbdDevice,
    foreign: Option<ForeignExport>,
}

/// What a session keeps of another server's export.
struct ForeignExport {
    id: String,
    /// The offset of the two copies of the record.
    area_at: u64,
    has_other_data: bool,
    /// Set when any session of the client has stored a record.
    is_used: Arc<AtomicBool>,
}

impl Deref for DonorExport {
    type Target = NbdDevice;

    fn deref(&self) -> &NbdDevice {
        &self.nbd
    }
}

fn copy_of(id: &str, record: &[u8]) -> Vec<u8> {
    let mut copy = vec![0; COPY_BYTES];
    copy[..8].copy_from_slice(&MAGIC);
    copy[8..12].copy_from_slice(&VERSION.to_le_bytes());
    copy[ID_AT..ID_AT + id.len()].copy_from_slice(id.as_bytes());
    copy[HEAD_BYTES..HEAD_BYTES + record.len()].copy_from_slice(record);
    copy
}

/// Returns the id and the record of a copy; `None` if it is damaged, or none.
fn read_copy(copy: &[u8]) -> Option<(String, DonorRecord, Bytes)> {
    let head = copy.get(..HEAD_BYTES)?;
    let id = head.get(ID_AT..ID_AT + ID_BYTES_MAX)?;
    let id = std::str::from_utf8(id).ok()?.trim_end_matches('\0');
    let is_good = head[..8] == MAGIC && head[8..12] == VERSION.to_le_bytes();
    let area = copy.get(HEAD_BYTES..).filter(|_| is_good)?;
    Some((id.to_owned(), DonorRecord::decode(area).ok()?, Bytes::copy_from_slice(area)))
}

fn content(area: &[u8], id: &str) -> AreaContent {
    let newest = area.chunks(COPY_BYTES).filter_map(read_copy).max_by_key(|(_, record, _)| record.stamp.revision);
    match newest {
        Some((found, _, record)) if found == id => AreaContent::Record(record),
        Some((found, ..)) => AreaContent::OtherDevice(found),
        None if area.iter().all(|byte| *byte == 0) => AreaContent::Empty,
        None => AreaContent::SomethingElse,
    }
}

impl DonorExport {
    /// The export of a Nectary donor.
    pub fn own(nbd: NbdDevice) -> DonorExport {
        DonorExport { nbd, foreign: None }
    }

    /// The export of another server, and its description. *Errors*: in words.
    pub async fn other(
        nbd: NbdDevice,
        id: &str,
        drawn: u128,
        is_used: Arc<AtomicBool>,
    ) -> Result<(DonorExport, DonorPage), String> {
        let bytes = nbd.geometry().size_bytes / HEAD_BYTES as u64 * HEAD_BYTES as u64;
        let Some(area_at) = bytes.checked_sub(AREA_BYTES).filter(|at| *at > 0) else {
            return Err("its export is too small for the record of a device".to_owned());
        };
        let area = read(&nbd, area_at, AREA_BYTES as usize).await?;
        let (incarnation, has_other_data) = match content(&area, id) {
            AreaContent::Record(area) => (DonorRecord::decode(&area).ok().and_then(|record| own_incarnation(&record)), false),
            AreaContent::OtherDevice(other) => return Err(format!("it holds device \"{other}\", not \"{id}\"")),
            AreaContent::Empty => (None, read(&nbd, 0, HEAD_BYTES).await?.iter().any(|byte| *byte != 0)),
            AreaContent::SomethingElse => (None, true),
        };
        let foreign = ForeignExport { id: id.to_owned(), area_at, has_other_data, is_used };
        let page = DonorPage {
            incarnation: incarnation.map_or(drawn, u128::from),
            memory_bytes: area_at,
            free_bytes: 0,
            quota_bytes: None,
            labels: String::new(),
            is_leaving: false,
        };
        Ok((DonorExport { nbd, foreign: Some(foreign) }, page))
    }

    /// Whether another server has it.
    pub fn is_foreign(&self) -> bool {
        self.foreign.is_some()
    }

    /// Whether it has data of something else.
    pub fn has_other_data(&self) -> bool {
        self.foreign.as_ref().is_some_and(|foreign| foreign.has_other_data)
    }

    /// The bytes that a device may have there, if another server has it.
    pub fn foreign_bytes(&self) -> Option<u64> {
        self.foreign.as_ref().map(|foreign| foreign.area_at)
    }

    /// Returns what completed and flushed writes survive there; nothing is assumed of other servers.
    pub fn survives(&self) -> (SurvivalLevel, SurvivalLevel) {
        let geometry = self.nbd.geometry();
        match self.is_foreign() {
            true => (geometry.write_survives, geometry.flush_survives),
            false => (SurvivalLevel::Host, SurvivalLevel::Host),
        }
    }

    /// Reads the record of another server's export, as a donor answers.
    pub async fn read_record(&self) -> Result<DonorReply, Error> {
        let Some(foreign) = &self.foreign else { return Ok(DonorReply::Failed) };
        let area = self.nbd.read_at(foreign.area_at, vec![Buffer::zeroed(AREA_BYTES as usize)], IoContext::default()).await?;
        let area = match area.first().map(|area| content(area, &foreign.id)) {
            Some(AreaContent::Record(record)) => record,
            _ => Bytes::new(),
        };
        // Nobody knows whether another client is alive.
        Ok(DonorReply::Metadata { area, is_owned: false })
    }

    /// Stores a record in the older copy, or removes both copies.
    pub async fn swap_record(&self, expected: RecordStamp, record: &[u8]) -> Result<DonorReply, Error> {
        let Some(foreign) = &self.foreign else { return Ok(DonorReply::Failed) };
        let DonorReply::Metadata { area, .. } = self.read_record().await? else { return Ok(DonorReply::Failed) };
        if RecordStamp::of(&area) != expected {
            return Ok(DonorReply::SwapRefused);
        }
        foreign.is_used.store(true, Ordering::Relaxed);
        if record.is_empty() {
            self.nbd.write_zeroes(foreign.area_at, AREA_BYTES, IoContext::default()).await?;
            self.nbd.flush(IoContext::default()).await?;
        } else {
            let at = foreign.area_at + RecordStamp::of(record).revision % 2 * COPY_BYTES as u64;
            let copy = Buffer::copy_of(&copy_of(&foreign.id, record));
            self.nbd.write_at(at, vec![copy], WriteFlags { fua: true }, IoContext::default()).await?;
        }
        Ok(DonorReply::Done)
    }
}

/// The incarnation of the donor that a record is stored on.
fn own_incarnation(record: &DonorRecord) -> Option<u64> {
    record.view.members.get(usize::from(record.position)).map(|member| member.incarnation)
}

async fn read(nbd: &NbdDevice, offset: u64, bytes: usize) -> Result<Vec<u8>, String> {
    let read = nbd.read_at(offset, vec![Buffer::zeroed(bytes)], IoContext::default()).await;
    Ok(read.map_err(|error| error.detail)?.first().map(|buffer| buffer.to_vec()).unwrap_or_default())
}
