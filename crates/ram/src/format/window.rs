//! The metadata window: bytes after the blocks of a device with redundancy, by which a session reads and exchanges the
//! donor's record.
//!
//! Owns: the encoding of `docs/formats/ram.md`, section "How the area is reached", for both sides. Promises: no bytes
//! make a decoder panic; a length beyond the area is an error. Leaves to others: deciding who may exchange a record
//! (`donor`).

use super::bytes::FieldReader;
use super::record::METADATA_BYTES;
use super::{FormatError, RecordStamp};

/// The length of the head before the area; it is also the unit of a write. *Units*: bytes.
pub const HEAD_BYTES: usize = 4096;
/// The length of the whole window. *Units*: bytes.
pub const WINDOW_BYTES: usize = HEAD_BYTES + METADATA_BYTES;

const STATE_MAGIC: [u8; 8] = *b"NECRAMWI";
const SWAP_MAGIC: [u8; 8] = *b"NECRAMSW";
const VERSION: u32 = 1;
const IS_OWNER: u32 = 1;
const IS_OWNED: u32 = 2;

/// The contents that a read of the window returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowState {
    /// Whether this session is the owner.
    pub is_owner: bool,
    /// Whether another session is the owner, and its connection is alive.
    pub is_owned: bool,
    /// The record; empty if there is none.
    pub record: Vec<u8>,
}

/// An exchange of the record, as a write of the window requests it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordSwap<'a> {
    /// The stamp that the stored record must have.
    pub expected: RecordStamp,
    /// The new record; if it is empty, the record is deleted.
    pub record: &'a [u8],
}

fn length(found: u32) -> Result<usize, FormatError> {
    match found as usize {
        bytes @ 0..=METADATA_BYTES => Ok(bytes),
        _ => Err(FormatError::Range { what: "record bytes", found: u64::from(found) }),
    }
}

fn head<'a>(bytes: &'a [u8], magic: &[u8; 8]) -> Result<FieldReader<'a>, FormatError> {
    let mut fields = FieldReader::new(bytes);
    if fields.take(magic.len())? != magic {
        return Err(FormatError::Magic);
    }
    match fields.u32()? {
        VERSION => Ok(fields),
        found => Err(FormatError::Unsupported { what: "version", found: u64::from(found) }),
    }
}

impl WindowState {
    /// Encodes the state as the whole window.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; WINDOW_BYTES];
        let flags = if self.is_owner { IS_OWNER } else { 0 } | if self.is_owned { IS_OWNED } else { 0 };
        bytes[..8].copy_from_slice(&STATE_MAGIC);
        for (at, word) in [(8, VERSION), (12, flags), (16, self.record.len() as u32)] {
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        bytes[HEAD_BYTES..HEAD_BYTES + self.record.len()].copy_from_slice(&self.record);
        bytes
    }

    /// Decodes the state. *Errors*: the first field that is wrong.
    pub fn decode(bytes: &[u8]) -> Result<WindowState, FormatError> {
        let mut fields = head(bytes, &STATE_MAGIC)?;
        let flags = fields.u32()?;
        let length = length(fields.u32()?)?;
        let short = FormatError::Short { needed: HEAD_BYTES + length, found: bytes.len() };
        let record = bytes.get(HEAD_BYTES..HEAD_BYTES + length).ok_or(short)?.to_vec();
        Ok(WindowState { is_owner: flags & IS_OWNER != 0, is_owned: flags & IS_OWNED != 0, record })
    }
}

impl<'a> RecordSwap<'a> {
    /// Encodes the request. The record is at most [`METADATA_BYTES`] long.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEAD_BYTES + self.record.len().next_multiple_of(HEAD_BYTES)];
        bytes[..8].copy_from_slice(&SWAP_MAGIC);
        for (at, word) in [(8, VERSION), (12, self.record.len() as u32)] {
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        let RecordStamp { generation, client, revision } = self.expected;
        for (at, long) in [(16, generation), (24, client), (32, revision)] {
            bytes[at..at + 8].copy_from_slice(&long.to_le_bytes());
        }
        bytes[HEAD_BYTES..HEAD_BYTES + self.record.len()].copy_from_slice(self.record);
        bytes
    }

    /// Decodes the request. *Errors*: the first field that is wrong.
    pub fn decode(bytes: &'a [u8]) -> Result<RecordSwap<'a>, FormatError> {
        let mut fields = head(bytes, &SWAP_MAGIC)?;
        let length = length(fields.u32()?)?;
        let expected = RecordStamp { generation: fields.u64()?, client: fields.u64()?, revision: fields.u64()? };
        let needed = HEAD_BYTES + length.next_multiple_of(HEAD_BYTES);
        if bytes.len() != needed {
            return Err(FormatError::Short { needed, found: bytes.len() });
        }
        Ok(RecordSwap { expected, record: &bytes[HEAD_BYTES..HEAD_BYTES + length] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads and writes of the window are decoded unchanged; wrong lengths are refused.
    #[test]
    fn metadata_window_round_trips() {
        for length in [0, 1, 4096, 4097, METADATA_BYTES] {
            let record = vec![7; length];
            let state = WindowState { is_owner: length % 2 == 0, is_owned: length % 2 == 1, record: record.clone() };
            assert_eq!(WindowState::decode(&state.encode()), Ok(state));
            let expected = RecordStamp { generation: 1, client: 2, revision: 3 };
            let swap = RecordSwap { expected, record: &record };
            let bytes = swap.encode();
            assert_eq!(RecordSwap::decode(&bytes), Ok(swap));
            assert!(RecordSwap::decode(&bytes[..bytes.len() - 1]).is_err());
        }
        for (at, value) in [(0, 0), (8, 2), (14, 1)] {
            let mut bytes = RecordSwap { expected: RecordStamp::default(), record: &[1] }.encode();
            bytes[at] = value;
            assert!(RecordSwap::decode(&bytes).is_err(), "{at}");
            let mut bytes = WindowState { is_owner: true, is_owned: false, record: vec![1] }.encode();
            bytes[if at == 14 { 18 } else { at }] = value;
            assert!(WindowState::decode(&bytes).is_err(), "{at}");
        }
        assert!(RecordSwap::decode(&[]).is_err() && WindowState::decode(&STATE_MAGIC).is_err());
    }
}
