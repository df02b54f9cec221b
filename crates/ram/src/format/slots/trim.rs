//! The trim of a block: copies of the block with a lower sequence are not valid.

use xxhash_rust::xxh3::xxh3_64;

use super::super::FormatError;
use super::super::bytes::FieldReader;

/// The length of an entry in bytes.
pub const TRIM_BYTES: usize = 16;

/// An entry of the area of trims.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct TrimEntry {
    /// Copies with lower sequences are not valid; 0: the block was never trimmed.
    pub sequence: u64,
}

impl TrimEntry {
    fn checksum(self, device: u64, block: u32) -> u64 {
        if self.sequence == 0 {
            return 0;
        }
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&device.to_le_bytes());
        bytes[8..16].copy_from_slice(&u64::from(block).to_le_bytes());
        bytes[16..].copy_from_slice(&self.sequence.to_le_bytes());
        xxh3_64(&bytes)
    }

    /// Encodes the entry.
    pub fn encode(self, device: u64, block: u32) -> [u8; TRIM_BYTES] {
        let mut bytes = [0; TRIM_BYTES];
        bytes[..8].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[8..].copy_from_slice(&self.checksum(device, block).to_le_bytes());
        bytes
    }

    /// Decodes the entry of a block.
    ///
    /// *Errors*: there are too few bytes, or the checksum does not match.
    pub fn decode(bytes: &[u8], device: u64, block: u32) -> Result<TrimEntry, FormatError> {
        let mut fields = FieldReader::new(bytes);
        let (trim, found) = (TrimEntry { sequence: fields.u64()? }, fields.u64()?);
        match trim.checksum(device, block) {
            expected if expected == found => Ok(trim),
            expected => Err(FormatError::Checksum { expected, found }),
        }
    }
}
