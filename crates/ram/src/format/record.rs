//! The record of a device in a donor's metadata area.
//!
//! Owns: the fields and the encoding of the record. Promises: the values of a decoded record are within the limits
//! here; otherwise the error names the field. So nothing that is computed from them overflows. Leaves to others: comparing and exchanging records on the donor, and
//! choosing between the records of several donors (`group`).

use xxhash_rust::xxh3::xxh3_64;

use super::bytes::FieldReader;
use super::log_shape::{FORMER_BYTES, Formers, LOG_SHAPE_BYTES, LogShape};
use super::zones::{RowZones, ZONES_BYTES};
use super::{FormatError, RedundancyCode, StripeSet};

/// The first bytes of a record.
pub const MAGIC: [u8; 8] = *b"NECRAMMR";
/// The only version that is written and read.
pub const VERSION: u32 = 1;
/// The features that this version knows, one bit each. A record with another bit is refused.
pub const FEATURES: u32 = FEATURE_GROWN;
/// The device logs parity and has grown: its former sizes follow the settings of the log.
const FEATURE_GROWN: u32 = 1;
/// The length of a donor's metadata area in bytes; no record is longer.
pub const METADATA_BYTES: usize = 16 << 10;
/// The maximum number of donors of a device with redundancy.
pub const MEMBERS_MAX: usize = 16;
/// The maximum number of donors of a device without redundancy.
pub const PLAIN_MEMBERS_MAX: usize = 64;
/// The maximum number of stripes of a device with redundancy, each of which may have a mark.
pub const STRIPES_MAX: u64 = 65_536;
/// The maximum number of stripes of a device without redundancy.
pub const PLAIN_STRIPES_MAX: u64 = 1 << 28;
/// The least and the most bytes of a block; a block's length is a power of two.
pub const BLOCK_BYTES: (u32, u32) = (16, 64 << 10);
/// The maximum number of bytes of a stripe; a stripe's length is a multiple of the block's.
pub const STRIPE_BYTES_MAX: u32 = 32 << 20;
/// The greatest generation. Devices that log parity number their slots with 24 bits for it.
pub const GENERATION_MAX: u64 = (1 << 24) - 1;
/// The greatest epoch of a view, and the greatest revision of a record.
pub const COUNT_MAX: u64 = (1 << 63) - 1;
/// The number of the policy `mirror`.
pub const POLICY_MIRROR: u16 = 1;
/// The number that stands for all policies that log parity. Their devices have no stripes; the record has a
/// [`LogShape`] instead.
pub const POLICY_LOG: u16 = 2;
/// The number of the policy `parity`, in place.
pub const POLICY_PARITY: u16 = 3;
/// The number of the policy `none`.
pub const POLICY_NONE: u16 = 4;

/// The offset of the stamp in a record.
const STAMP_AT: usize = 24;
const HEAD_BYTES: usize = 104;
const MEMBER_BYTES: usize = 24;
const CHECKSUM_BYTES: usize = 8;

/// Identifies a record: which client stored it, and its number. The donor replaces its record only if the stamp is the
/// one that the client expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecordStamp {
    /// The number of attachments of the device so far, at most [`GENERATION_MAX`].
    pub generation: u64,
    /// The random number of the attached client; 0 after it detached.
    pub client: u64,
    /// The number of records that were stored on this donor so far, at most [`COUNT_MAX`].
    pub revision: u64,
}

impl RecordStamp {
    /// Reads the stamp of a metadata area; it is all zero if there is no record. That of a damaged record may be beyond
    /// the limits: it only names the record.
    pub fn of(area: &[u8]) -> RecordStamp {
        let mut fields = FieldReader::new(area);
        let stamp = || -> Result<RecordStamp, FormatError> {
            if fields.take(MAGIC.len())? != MAGIC {
                return Ok(RecordStamp::default());
            }
            fields.take(STAMP_AT - MAGIC.len())?;
            Ok(RecordStamp { generation: fields.u64()?, client: fields.u64()?, revision: fields.u64()? })
        };
        let mut stamp = stamp;
        stamp().unwrap_or_default()
    }

    /// Returns the revision of the record that replaces the one with this stamp; after a damaged one it begins again.
    pub fn next_revision(&self) -> u64 {
        if self.revision < COUNT_MAX { self.revision + 1 } else { 1 }
    }
}

/// The geometry of a device. Only growing changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordGeometry {
    /// The identity of the device.
    pub device: [u8; 16],
    /// The size of the device, a multiple of the block. *Units*: bytes.
    pub bytes: u64,
    /// The unit of reads and writes. *Units*: bytes.
    pub block_bytes: u32,
    /// The unit of placement, dirty marks and copies; 0 if the device logs parity. *Units*: bytes.
    pub stripe_bytes: u32,
    /// The number of donors of the device.
    pub members: u16,
    /// The redundancy code.
    pub code: RedundancyCode,
}

impl RecordGeometry {
    /// Whether the device logs parity.
    pub fn is_log(&self) -> bool {
        self.log().is_some()
    }

    /// Returns the settings of logging parity, if the device logs parity.
    pub fn log(&self) -> Option<LogShape> {
        match self.code {
            RedundancyCode::Log(shape) => Some(shape),
            RedundancyCode::None(_) | RedundancyCode::Mirror | RedundancyCode::Parity => None,
        }
    }

    /// Returns the zones of a device without redundancy.
    pub fn zones(&self) -> Option<RowZones> {
        match self.code {
            RedundancyCode::None(zones) => Some(zones),
            RedundancyCode::Mirror | RedundancyCode::Parity | RedundancyCode::Log(_) => None,
        }
    }

    /// Returns how many donors may be missing without loss of data.
    pub fn losses_max(&self) -> usize {
        usize::from(self.zones().is_none())
    }

    /// Whether the device has parity that is changed in place.
    pub fn is_parity(&self) -> bool {
        self.code == RedundancyCode::Parity
    }

    /// Returns the bytes of a stripe on one of its donors.
    pub fn chunk_bytes(&self) -> u32 {
        match self.code {
            RedundancyCode::Parity => self.stripe_bytes / u32::from(self.members).saturating_sub(1).max(1),
            RedundancyCode::None(_) | RedundancyCode::Mirror | RedundancyCode::Log(_) => self.stripe_bytes,
        }
    }

    /// Returns the least and the most donors, and the most stripes.
    fn limits(&self) -> (u16, usize, u64) {
        match self.code {
            RedundancyCode::None(_) => (1, PLAIN_MEMBERS_MAX, PLAIN_STRIPES_MAX),
            RedundancyCode::Mirror => (2, MEMBERS_MAX, STRIPES_MAX),
            RedundancyCode::Parity | RedundancyCode::Log(_) => (3, MEMBERS_MAX, STRIPES_MAX),
        }
    }

    /// Whether this is the geometry of the same device, before or after it has grown.
    pub fn is_same_device(&self, other: &RecordGeometry) -> bool {
        let without_size = |geometry: &RecordGeometry| {
            let code = match geometry.code {
                RedundancyCode::Log(log) => {
                    RedundancyCode::Log(LogShape { groups: 0, formers: Formers::default(), ..log })
                }
                RedundancyCode::None(_) => RedundancyCode::None(RowZones::default()),
                code @ (RedundancyCode::Mirror | RedundancyCode::Parity) => code,
            };
            RecordGeometry { bytes: 0, code, ..*geometry }
        };
        without_size(self) == without_size(other)
    }

    /// Whether a device with this geometry has the other one after it has grown.
    pub fn may_become(&self, after: &RecordGeometry) -> bool {
        let is_former = match (&self.code, &after.code) {
            (RedundancyCode::Log(log), RedundancyCode::Log(after)) => after
                .formers
                .iter()
                .any(|former| (u64::from(former.blocks), former.groups) == (self.blocks(), log.groups)),
            (RedundancyCode::None(zones), RedundancyCode::None(after)) => zones.may_become(after),
            _ => true,
        };
        self.is_same_device(after) && self.bytes < after.bytes && is_former
    }

    /// Returns the number of stripes of the device; the last stripe may be shorter.
    pub fn stripes(&self) -> u64 {
        match self.stripe_bytes {
            0 => 0,
            bytes => self.bytes.div_ceil(u64::from(bytes)),
        }
    }

    /// Returns the number of stripes that have a mark: none without redundancy, as a stripe agrees with itself.
    pub fn marks(&self) -> u64 {
        if self.losses_max() == 0 { 0 } else { self.stripes() }
    }

    /// Returns the number of blocks of the device.
    pub fn blocks(&self) -> u64 {
        self.bytes / u64::from(self.block_bytes)
    }

    /// Returns the number of blocks of a whole stripe.
    pub fn stripe_blocks(&self) -> u64 {
        u64::from(self.stripe_bytes / self.block_bytes)
    }

    /// Checks every field against its limits.
    ///
    /// *Errors*: [`FormatError::Range`] names the field.
    pub fn check(&self) -> Result<(), FormatError> {
        let range = |what, found| Err(FormatError::Range { what, found });
        let block = self.block_bytes;
        if !block.is_power_of_two() || block < BLOCK_BYTES.0 || block > BLOCK_BYTES.1 {
            return range("block bytes", u64::from(block));
        }
        let (donors_min, donors_max, stripes_max) = self.limits();
        if self.members < donors_min || usize::from(self.members) > donors_max {
            return range("members", u64::from(self.members));
        }
        let is_stripe = self.stripe_bytes >= block && self.stripe_bytes <= STRIPE_BYTES_MAX;
        let data_chunks = self.stripe_bytes / self.chunk_bytes().max(1);
        let fits = match self.is_log() {
            true => self.stripe_bytes == 0,
            false => {
                let is_whole = self.chunk_bytes() * data_chunks == self.stripe_bytes;
                is_stripe && is_whole && self.chunk_bytes() >= block && self.chunk_bytes().is_multiple_of(block)
            }
        };
        if !fits {
            return range("stripe bytes", u64::from(self.stripe_bytes));
        }
        self.log().map_or(Ok(()), |log| log.check(self.blocks()))?;
        if self.bytes == 0 || !self.bytes.is_multiple_of(u64::from(block)) || self.stripes() > stripes_max {
            return range("device bytes", self.bytes);
        }
        self.zones().map_or(Ok(()), |zones| zones.check(self.members, self.stripes()))
    }
}

/// The state of a donor: whether it has the data that is placed on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberState {
    /// The donor has all data that is placed on it.
    Present = 1,
    /// The donor is not in use, and its data may be old.
    Left = 2,
    /// The donor is being filled from the others. Until this is complete, a client that attaches does not trust its
    /// data.
    Rebuilding = 3,
}

/// A donor of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ViewMember {
    /// The incarnation of the donor; if it is another one now, the donor's memory is empty.
    pub incarnation: u64,
    /// The donor's identity in the device: the number of the view in which it joined, or joined again.
    pub joined: u64,
    /// Whether the donor has the data that is placed on it.
    pub state: MemberState,
}

/// A view: a client's decision which donors have the device's data. The newest view has the greatest generation, then
/// the greatest epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MembershipView {
    /// The generation of the client that decided, at most [`GENERATION_MAX`].
    pub generation: u64,
    /// The number of decisions so far, at most [`COUNT_MAX`].
    pub epoch: u64,
    /// The donors, by position.
    pub members: Vec<ViewMember>,
}

impl MembershipView {
    /// Returns the number that orders views.
    pub fn number(&self) -> (u64, u64) {
        (self.generation, self.epoch)
    }
}

/// The record that a client stores on each donor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DonorRecord {
    /// The client that stored the record, and the record's number.
    pub stamp: RecordStamp,
    /// The geometry of the device.
    pub geometry: RecordGeometry,
    /// The position of this donor in the device.
    pub position: u16,
    /// Whether the device has been created on every donor.
    pub is_ready: bool,
    /// The newest view that was stored on this donor.
    pub view: MembershipView,
    /// The stripes of this donor whose copies may differ.
    pub dirty: StripeSet,
}

impl DonorRecord {
    /// Whether the record says that a donor of this incarnation has the record's place.
    pub fn is_of(&self, incarnation: u64) -> bool {
        self.view.members.get(usize::from(self.position)).is_some_and(|own| own.incarnation == incarnation)
    }

    /// Encodes the record, in at most [`METADATA_BYTES`].
    pub fn encode(&self) -> Vec<u8> {
        let geometry = &self.geometry;
        let dirty = self.dirty.as_bytes();
        let mut log = geometry.log().map_or_else(Vec::new, |log| log.encode().to_vec());
        let features = match geometry.log().filter(LogShape::has_grown) {
            Some(grown) => {
                log.extend_from_slice(&grown.encode_formers());
                FEATURE_GROWN
            }
            None => 0,
        };
        log.extend(geometry.zones().iter().flat_map(RowZones::encode));
        let length = HEAD_BYTES + self.view.members.len() * MEMBER_BYTES + log.len() + dirty.len() + CHECKSUM_BYTES;
        let mut bytes = Vec::with_capacity(length);
        bytes.extend_from_slice(&MAGIC);
        for word in [VERSION, features, length as u32, 0] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        for long in [self.stamp.generation, self.stamp.client, self.stamp.revision] {
            bytes.extend_from_slice(&long.to_le_bytes());
        }
        bytes.extend_from_slice(&geometry.device);
        bytes.extend_from_slice(&geometry.bytes.to_le_bytes());
        bytes.extend_from_slice(&geometry.block_bytes.to_le_bytes());
        bytes.extend_from_slice(&geometry.stripe_bytes.to_le_bytes());
        let policy = match geometry.code {
            RedundancyCode::None(_) => POLICY_NONE,
            RedundancyCode::Mirror => POLICY_MIRROR,
            RedundancyCode::Log(_) => POLICY_LOG,
            RedundancyCode::Parity => POLICY_PARITY,
        };
        for short in [policy, self.position, geometry.members, u16::from(self.is_ready)] {
            bytes.extend_from_slice(&short.to_le_bytes());
        }
        bytes.extend_from_slice(&self.view.generation.to_le_bytes());
        bytes.extend_from_slice(&self.view.epoch.to_le_bytes());
        for member in &self.view.members {
            for long in [member.incarnation, member.joined, member.state as u64] {
                bytes.extend_from_slice(&long.to_le_bytes());
            }
        }
        bytes.extend_from_slice(&log);
        bytes.extend_from_slice(dirty);
        bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
        bytes
    }

    /// Whether an area contains no record: it is empty or begins with zeroes.
    pub fn is_absent(area: &[u8]) -> bool {
        area.iter().take(HEAD_BYTES).all(|byte| *byte == 0)
    }

    /// Decodes the record at the start of a metadata area.
    ///
    /// *Errors*: the first invalid field, and why. *Cost*: one pass; memory in proportion to the length of the record.
    pub fn decode(area: &[u8]) -> Result<DonorRecord, FormatError> {
        let mut fields = FieldReader::new(area);
        if fields.take(MAGIC.len())? != MAGIC {
            return Err(FormatError::Magic);
        }
        let unsupported = |what, found: u32| Err(FormatError::Unsupported { what, found: u64::from(found) });
        let range = |what, found| Err(FormatError::Range { what, found });
        match fields.u32()? {
            VERSION => {}
            version => return unsupported("version", version),
        }
        let features = fields.u32()?;
        let length = fields.u32()? as usize;
        if !(HEAD_BYTES + CHECKSUM_BYTES..=METADATA_BYTES).contains(&length) {
            return range("record bytes", length as u64);
        }
        let whole = area.get(..length).ok_or(FormatError::Short { needed: length, found: area.len() })?;
        let (body, checksum) = whole.split_at(length - CHECKSUM_BYTES);
        let (expected, found) = (xxh3_64(body), FieldReader::new(checksum).u64()?);
        if expected != found {
            return Err(FormatError::Checksum { expected, found });
        }
        if features & !FEATURES != 0 {
            return unsupported("feature set", features);
        }
        let mut fields = FieldReader::new(body);
        fields.take(STAMP_AT)?;
        let stamp = RecordStamp { generation: fields.u64()?, client: fields.u64()?, revision: fields.u64()? };
        let (device, bytes) = (fields.id()?, fields.u64()?);
        let (block_bytes, stripe_bytes) = (fields.u32()?, fields.u32()?);
        let (policy, position, members, ready) = (fields.u16()?, fields.u16()?, fields.u16()?, fields.u16()?);
        let has_grown = features & FEATURE_GROWN != 0;
        let shape_bytes = match policy {
            POLICY_LOG => LOG_SHAPE_BYTES + if has_grown { FORMER_BYTES } else { 0 },
            POLICY_NONE => ZONES_BYTES,
            _ => 0,
        };
        // The shape follows the members; their number is checked later.
        let shape = || {
            let at = HEAD_BYTES + usize::from(members) * MEMBER_BYTES;
            let needed = at + shape_bytes;
            body.get(at..needed).map(FieldReader::new).ok_or(FormatError::Short { needed, found: body.len() })
        };
        let code = match policy {
            POLICY_NONE | POLICY_MIRROR | POLICY_PARITY if has_grown => return range("former size", 0),
            POLICY_NONE => RedundancyCode::None(RowZones::decode(&mut shape()?)?),
            POLICY_MIRROR => RedundancyCode::Mirror,
            POLICY_PARITY => RedundancyCode::Parity,
            POLICY_LOG => {
                let mut fields = shape()?;
                let mut log = LogShape::decode(&mut fields)?;
                if has_grown {
                    log.formers = LogShape::decode_formers(&mut fields)?;
                }
                RedundancyCode::Log(log)
            }
            _ => return unsupported("policy", u32::from(policy)),
        };
        let geometry = RecordGeometry { device, bytes, block_bytes, stripe_bytes, members, code };
        geometry.check()?;
        if position >= members {
            return range("position", u64::from(position));
        }
        if ready > 1 {
            return range("ready", u64::from(ready));
        }
        let (generation, epoch) = (fields.u64()?, fields.u64()?);
        let limits = [
            ("generation", stamp.generation, GENERATION_MAX),
            ("revision", stamp.revision, COUNT_MAX),
            ("view generation", generation, GENERATION_MAX),
            ("view epoch", epoch, COUNT_MAX),
        ];
        if let Some((what, found, _)) = limits.into_iter().find(|(_, found, max)| found > max) {
            return range(what, found);
        }
        let members = (0..members).map(|_| member(&mut fields)).collect::<Result<Vec<_>, _>>()?;
        fields.take(shape_bytes)?;
        let stripes = geometry.marks();
        let dirty = fields.take(super::stripes::bytes_of(stripes))?;
        Ok(DonorRecord {
            stamp,
            geometry,
            position,
            is_ready: ready == 1,
            view: MembershipView { generation, epoch, members },
            dirty: StripeSet::from_bytes(dirty, stripes),
        })
    }
}

fn member(fields: &mut FieldReader<'_>) -> Result<ViewMember, FormatError> {
    let (incarnation, joined) = (fields.u64()?, fields.u64()?);
    let state = match fields.u64()? {
        1 => MemberState::Present,
        2 => MemberState::Left,
        3 => MemberState::Rebuilding,
        found => return Err(FormatError::Range { what: "member state", found }),
    };
    Ok(ViewMember { incarnation, joined, state })
}

#[cfg(test)]
#[path = "record/tests.rs"]
mod tests;
