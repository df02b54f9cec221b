//! The header of a request.

use std::ops::Deref;

use super::bytes::WireReader;
use super::command_flag::PAYLOAD_LEN;
use super::{EXTENDED_REQUEST_MAGIC, HeaderFormat, REQUEST_MAGIC};

/// The length of a request's header, in bytes.
pub(crate) const BYTES: usize = 28;
/// The length of an extended header, in bytes.
pub(crate) const EXTENDED_BYTES: usize = 32;

/// The length of a request's header, in bytes.
pub(crate) fn header_bytes(headers: HeaderFormat) -> usize {
    if headers.is_extended() { EXTENDED_BYTES } else { BYTES }
}

pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const DISC: u16 = 2;
pub(crate) const FLUSH: u16 = 3;
pub(crate) const TRIM: u16 = 4;
pub(crate) const CACHE: u16 = 5;
pub(crate) const WRITE_ZEROES: u16 = 6;
pub(crate) const BLOCK_STATUS: u16 = 7;

/// The header of a request as it was received. It has not been checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WireRequestHeader {
    pub flags: u16,
    pub command: u16,
    pub cookie: u64,
    pub offset: u64,
    /// At most 32 bits without extended headers.
    pub length: u64,
}

/// An encoded header.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeaderBytes {
    bytes: [u8; EXTENDED_BYTES],
    length: usize,
}

impl Deref for HeaderBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl WireRequestHeader {
    /// Decodes a header of [`header_bytes`] bytes. *Errors*: the found magic number, if it is wrong.
    pub fn decode(bytes: &[u8], headers: HeaderFormat) -> Result<WireRequestHeader, u32> {
        let mut reader = WireReader::new(bytes);
        let expected = if headers.is_extended() { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC };
        let mut next = || {
            let magic = reader.u32()?;
            let header = WireRequestHeader {
                flags: reader.u16()?,
                command: reader.u16()?,
                cookie: reader.u64()?,
                offset: reader.u64()?,
                length: if headers.is_extended() { reader.u64()? } else { u64::from(reader.u32()?) },
            };
            Some((magic, header))
        };
        match next() {
            Some((magic, header)) if magic == expected => Ok(header),
            other => Err(other.map_or(0, |(magic, _)| magic)),
        }
    }

    /// Encodes the header. Without extended headers, the length must have at most 32 bits.
    pub fn encode(&self, headers: HeaderFormat) -> HeaderBytes {
        let mut bytes = [0; EXTENDED_BYTES];
        let (magic, payload) = match headers.is_extended() {
            true if self.command == WRITE => (EXTENDED_REQUEST_MAGIC, PAYLOAD_LEN),
            true => (EXTENDED_REQUEST_MAGIC, 0),
            false => (REQUEST_MAGIC, 0),
        };
        bytes[..4].copy_from_slice(&magic.to_be_bytes());
        bytes[4..6].copy_from_slice(&(self.flags | payload).to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        match headers.is_extended() {
            true => bytes[24..].copy_from_slice(&self.length.to_be_bytes()),
            false => bytes[24..28].copy_from_slice(&(self.length as u32).to_be_bytes()),
        }
        HeaderBytes { bytes, length: header_bytes(headers) }
    }
}

/// The name of a command, for messages.
pub(crate) fn name(command: u16) -> &'static str {
    match command {
        READ => "NBD_CMD_READ",
        WRITE => "NBD_CMD_WRITE",
        DISC => "NBD_CMD_DISC",
        FLUSH => "NBD_CMD_FLUSH",
        TRIM => "NBD_CMD_TRIM",
        CACHE => "NBD_CMD_CACHE",
        WRITE_ZEROES => "NBD_CMD_WRITE_ZEROES",
        BLOCK_STATUS => "NBD_CMD_BLOCK_STATUS",
        _ => "an unknown command",
    }
}
