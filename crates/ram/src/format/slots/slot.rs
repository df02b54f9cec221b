//! A slot: a block's data after a header that describes it.
//!
//! Owns: the fields and the encoding of a slot, and the XOR of slots. Promises: a decoded header has a correct
//! checksum; so does its data, if it is accepted.

use xxhash_rust::xxh3::xxh3_64;

use super::super::FormatError;
use super::super::bytes::FieldReader;

const MAGIC: [u8; 4] = *b"NECS";
const VERSION: u8 = 1;
const KIND_DATA: u8 = 1;
const KIND_LOST: u8 = 2;

/// The length of a slot's header.
pub const SLOT_HEADER_BYTES: usize = 64;

/// The header of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotHeader {
    /// The checksum of the device's identity.
    pub device: u64,
    /// The generation of the client that wrote it.
    pub generation: u64,
    /// The number of the group.
    pub group: u32,
    /// The number of the member in the group.
    pub member: u8,
    /// The number of the block.
    pub block: u32,
    /// The sequence of the copy, which orders all copies of all blocks.
    pub sequence: u64,
    /// The checksum of the data.
    pub data_checksum: u64,
    /// Whether the contents of the block are lost, so that the data are only zeroes.
    pub is_lost: bool,
}

impl SlotHeader {
    /// Encodes the whole slot with `data`, and stores the checksum of `data` in the header.
    pub fn encode(&self, data: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(SLOT_HEADER_BYTES + data.len());
        bytes.extend_from_slice(&MAGIC);
        let kind = if self.is_lost { KIND_LOST } else { KIND_DATA };
        bytes.extend_from_slice(&[VERSION, kind, self.member, 0]);
        bytes.extend_from_slice(&self.device.to_le_bytes());
        bytes.extend_from_slice(&self.generation.to_le_bytes());
        bytes.extend_from_slice(&self.group.to_le_bytes());
        bytes.extend_from_slice(&self.block.to_le_bytes());
        bytes.extend_from_slice(&self.sequence.to_le_bytes());
        bytes.extend_from_slice(&0u64.to_le_bytes());
        bytes.extend_from_slice(&xxh3_64(data).to_le_bytes());
        bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
        bytes.extend_from_slice(data);
        bytes
    }

    /// Decodes the header at the start of `bytes`; data after it is not read.
    ///
    /// *Errors*: the first invalid field, and why.
    pub fn decode(bytes: &[u8]) -> Result<SlotHeader, FormatError> {
        let mut fields = FieldReader::new(bytes);
        let header = fields.take(SLOT_HEADER_BYTES)?;
        let mut fields = FieldReader::new(header);
        if fields.take(MAGIC.len())? != MAGIC {
            return Err(FormatError::Magic);
        }
        let found = SlotHeader::checksum_of(header);
        let expected = xxh3_64(&header[..SLOT_HEADER_BYTES - 8]);
        if found != expected {
            return Err(FormatError::Checksum { expected, found });
        }
        let [version, kind, member, reserved] = [0, 1, 2, 3].map(|at| header[MAGIC.len() + at]);
        if version != VERSION {
            return Err(FormatError::Unsupported { what: "version of a slot", found: u64::from(version) });
        }
        if ![KIND_DATA, KIND_LOST].contains(&kind) || reserved != 0 {
            return Err(FormatError::Unsupported { what: "kind of a slot", found: u64::from(kind) });
        }
        if member >= super::GROUP_MEMBERS_MAX {
            return Err(FormatError::Range { what: "member of a slot", found: u64::from(member) });
        }
        fields.take(4)?;
        let (device, generation) = (fields.u64()?, fields.u64()?);
        let (group, block, sequence) = (fields.u32()?, fields.u32()?, fields.u64()?);
        let reserved = fields.u64()?;
        if reserved != 0 {
            return Err(FormatError::Range { what: "reserved field of a slot", found: reserved });
        }
        let (data_checksum, is_lost) = (fields.u64()?, kind == KIND_LOST);
        Ok(SlotHeader { device, generation, group, member, block, sequence, data_checksum, is_lost })
    }

    /// Returns the checksum in the header of a whole slot; 0 if `bytes` has no header.
    pub fn checksum_of(bytes: &[u8]) -> u64 {
        bytes.get(SLOT_HEADER_BYTES - 8..SLOT_HEADER_BYTES).map_or(0, |field| {
            let mut checksum = [0; 8];
            checksum.copy_from_slice(field);
            u64::from_le_bytes(checksum)
        })
    }

    /// Decodes the header and data of a whole slot.
    ///
    /// *Errors*: those of [`decode`](SlotHeader::decode), and data that does not match the checksum in the header.
    pub fn decode_whole(bytes: &[u8]) -> Result<(SlotHeader, &[u8]), FormatError> {
        let slot = SlotHeader::decode(bytes)?;
        let data = &bytes[SLOT_HEADER_BYTES..];
        match xxh3_64(data) {
            expected if expected == slot.data_checksum => Ok((slot, data)),
            expected => Err(FormatError::Checksum { expected, found: slot.data_checksum }),
        }
    }
}

/// XORs a slot into a parity. If one of them is shorter, its missing bytes count as zeroes.
pub fn xor(parity: &mut [u8], slot: &[u8]) {
    parity.iter_mut().zip(slot).for_each(|(sum, byte)| *sum ^= byte);
}
