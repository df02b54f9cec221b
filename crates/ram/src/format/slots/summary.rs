//! The summary of a group, which says what its parity covers.
//!
//! Owns: the fields and the encoding of a summary. Promises: a decoded summary has from 2 to `GROUP_MEMBERS_MAX`
//! members.

use xxhash_rust::xxh3::xxh3_64;

use super::super::FormatError;
use super::super::bytes::FieldReader;
use super::GROUP_MEMBERS_MAX;

const MAGIC: [u8; 4] = *b"NECG";
const VERSION: u8 = 1;
const HEAD_BYTES: usize = 64;
const NAMED_BYTES: usize = 24;
const CHECKSUM_BYTES: usize = 8;

/// The kind of group that a summary describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SummaryKind {
    /// A sealed group: its parity is in the slot of the group.
    Sealed = 1,
    /// An open group: its parity follows the summary, in a spare.
    Open = 2,
}

/// A member that the parity covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoveredMember {
    /// The number of the block.
    pub block: u32,
    /// The sequence of the slot.
    pub sequence: u64,
    /// The checksum in the slot's header.
    pub checksum: u64,
}

/// The summary of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSummary {
    /// The kind of group.
    pub kind: SummaryKind,
    /// The checksum of the device's identity.
    pub device: u64,
    /// The generation of the client that wrote it.
    pub generation: u64,
    /// The number of the group.
    pub group: u32,
    /// The checksum of the parity.
    pub parity_checksum: u64,
    /// The members by number. `None`: the slot's contents are not needed, or the parity of an open group does not cover
    /// them.
    pub members: Vec<Option<CoveredMember>>,
}

impl GroupSummary {
    /// Returns the length of the summary of a group with `members` members, in bytes.
    pub fn bytes_of(members: u8) -> usize {
        HEAD_BYTES + usize::from(members) * NAMED_BYTES + CHECKSUM_BYTES
    }

    /// Encodes the summary.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(GroupSummary::bytes_of(self.members.len() as u8));
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&[VERSION, self.kind as u8, self.members.len() as u8, 0]);
        bytes.extend_from_slice(&self.device.to_le_bytes());
        bytes.extend_from_slice(&self.generation.to_le_bytes());
        bytes.extend_from_slice(&self.group.to_le_bytes());
        bytes.extend_from_slice(&0u32.to_le_bytes());
        bytes.extend_from_slice(&self.parity_checksum.to_le_bytes());
        bytes.resize(HEAD_BYTES, 0);
        for member in &self.members {
            let CoveredMember { block, sequence, checksum } =
                member.unwrap_or(CoveredMember { block: 0, sequence: 0, checksum: 0 });
            bytes.extend_from_slice(&block.to_le_bytes());
            bytes.extend_from_slice(&u32::from(member.is_some()).to_le_bytes());
            bytes.extend_from_slice(&sequence.to_le_bytes());
            bytes.extend_from_slice(&checksum.to_le_bytes());
        }
        bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
        bytes
    }

    /// Decodes the summary at the start of `bytes`.
    ///
    /// *Errors*: the first invalid field, and why.
    pub fn decode(bytes: &[u8]) -> Result<GroupSummary, FormatError> {
        let mut fields = FieldReader::new(bytes);
        if fields.take(MAGIC.len())? != MAGIC {
            return Err(FormatError::Magic);
        }
        let small = fields.take(4)?;
        let (version, kind, members, reserved) = (small[0], small[1], small[2], small[3]);
        if version != VERSION {
            return Err(FormatError::Unsupported { what: "version of a summary", found: u64::from(version) });
        }
        if !(2..=GROUP_MEMBERS_MAX).contains(&members) || reserved != 0 {
            return Err(FormatError::Range { what: "members of a summary", found: u64::from(members) });
        }
        let needed = GroupSummary::bytes_of(members);
        let whole = bytes.get(..needed).ok_or(FormatError::Short { needed, found: bytes.len() })?;
        let (body, checksum) = whole.split_at(needed - CHECKSUM_BYTES);
        let (expected, found) = (xxh3_64(body), FieldReader::new(checksum).u64()?);
        if expected != found {
            return Err(FormatError::Checksum { expected, found });
        }
        let kind = match kind {
            1 => SummaryKind::Sealed,
            2 => SummaryKind::Open,
            found => return Err(FormatError::Range { what: "kind of a summary", found: u64::from(found) }),
        };
        let (device, generation, group) = (fields.u64()?, fields.u64()?, fields.u32()?);
        let (reserved, parity_checksum) = (fields.u32()?, fields.u64()?);
        if reserved != 0 || body[40..HEAD_BYTES].iter().any(|byte| *byte != 0) {
            return Err(FormatError::Range { what: "reserved field of a summary", found: 1 });
        }
        let mut fields = FieldReader::new(&body[HEAD_BYTES..]);
        let members = (0..members).map(|_| named(&mut fields)).collect::<Result<Vec<_>, _>>()?;
        Ok(GroupSummary { kind, device, generation, group, parity_checksum, members })
    }
}

fn named(fields: &mut FieldReader<'_>) -> Result<Option<CoveredMember>, FormatError> {
    let (block, is_named) = (fields.u32()?, fields.u32()?);
    let (sequence, checksum) = (fields.u64()?, fields.u64()?);
    match is_named {
        1 => Ok(Some(CoveredMember { block, sequence, checksum })),
        0 if (block, sequence, checksum) == (0, 0, 0) => Ok(None),
        found => Err(FormatError::Range { what: "member of a summary", found: u64::from(found) }),
    }
}
