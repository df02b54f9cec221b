//! The header of every message.

use crate::format::cursor::{BoundedReader, BoundedWriter};
use crate::format::{FormatError, FormatProblem};

/// The length of the header. *Units*: bytes.
pub const HEADER_BYTES: usize = 32;
/// The longest body. *Units*: bytes.
pub const BODY_BYTES_MAX: usize = 1 << 20;
const MAGIC: [u8; 4] = *b"NVPM";
/// The offset of the checksum in the header.
const CHECKSUM_AT: usize = 12;

/// The header of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageHeader {
    /// The number of the body's kind.
    pub kind: u16,
    /// The length of the body.
    pub body_bytes: u32,
    /// The checksum of header and body.
    checksum: u32,
    /// The number of the request in its connection; an answer repeats it.
    pub request: u64,
    /// The epoch of the server, as far as the sender knows it.
    pub epoch: u64,
}

impl MessageHeader {
    /// Decodes the first [`HEADER_BYTES`] of a message. The checksum is verified later, when the body has arrived.
    pub fn decode(bytes: &[u8]) -> Result<MessageHeader, FormatError> {
        let mut reader = BoundedReader::new("message", bytes);
        let magic = reader.array::<4>()?;
        if magic != MAGIC {
            return Err(reader.error(FormatProblem::Magic(u32::from_be_bytes(magic))));
        }
        let (kind, flags) = (reader.u16()?, reader.u16()?);
        if flags != 0 {
            return Err(reader.unknown("flags", flags.into()));
        }
        let body_bytes = reader.u32()?;
        reader.within("body_bytes", body_bytes.into(), 0, BODY_BYTES_MAX as u64)?;
        let (checksum, request, epoch) = (reader.u32()?, reader.u64()?, reader.u64()?);
        Ok(MessageHeader { kind, body_bytes, checksum, request, epoch })
    }

    /// Returns the request of a message whose body is longer than [`BODY_BYTES_MAX`]; `None` if that is not what is
    /// wrong with the header.
    pub fn request_of_too_long(bytes: &[u8]) -> Option<u64> {
        let mut reader = BoundedReader::new("message", bytes);
        let (magic, _, flags) = (reader.array::<4>().ok()?, reader.u16().ok()?, reader.u16().ok()?);
        let (body_bytes, _, request) = (reader.u32().ok()?, reader.u32().ok()?, reader.u64().ok()?);
        (magic == MAGIC && flags == 0 && body_bytes as usize > BODY_BYTES_MAX).then_some(request)
    }

    /// Checks a whole message; returns its header and its body.
    pub(super) fn open(bytes: &[u8]) -> Result<(MessageHeader, &[u8]), FormatError> {
        let header = MessageHeader::decode(bytes)?;
        let reader = BoundedReader::new("message", bytes);
        let body = &bytes[HEADER_BYTES..];
        let length = header.body_bytes as usize;
        match body.len().checked_sub(length) {
            None => {
                return Err(reader.error(FormatProblem::Short { needed: HEADER_BYTES + length, found: bytes.len() }));
            }
            Some(0) => {}
            Some(left) => return Err(reader.error(FormatProblem::LeftOver(left))),
        }
        let expected = checksum(bytes);
        match expected == header.checksum {
            true => Ok((header, body)),
            false => Err(reader.error(FormatProblem::Checksum { expected, found: header.checksum })),
        }
    }

    /// Encodes a whole message. The body may have at most [`BODY_BYTES_MAX`] bytes.
    pub(super) fn seal(kind: u16, request: u64, epoch: u64, body: &[u8]) -> Vec<u8> {
        debug_assert!(body.len() <= BODY_BYTES_MAX, "a body of {} bytes", body.len());
        let mut writer = BoundedWriter::default();
        writer.put(&MAGIC).u16(kind).u16(0).u32(body.len() as u32).u32(0).u64(request).u64(epoch).put(body);
        let mut bytes = writer.bytes;
        let checksum = checksum(&bytes);
        bytes[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }
}

/// Computes the checksum of all bytes; the checksum field itself counts as zeroes.
fn checksum(bytes: &[u8]) -> u32 {
    let before = crc32c::crc32c(&bytes[..CHECKSUM_AT]);
    crc32c::crc32c_append(crc32c::crc32c_append(before, &[0; 4]), &bytes[CHECKSUM_AT + 4..])
}
