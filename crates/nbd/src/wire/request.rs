//! The header of a request.

use super::REQUEST_MAGIC;
use super::bytes::Reader;

/// The length of a request's header, in bytes.
pub(crate) const BYTES: usize = 28;

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
pub(crate) struct Header {
    pub flags: u16,
    pub command: u16,
    pub cookie: u64,
    pub offset: u64,
    pub length: u32,
}

impl Header {
    /// Reads a header. *Errors*: the found magic number, if it is wrong.
    pub fn decode(bytes: &[u8; BYTES]) -> Result<Header, u32> {
        let mut reader = Reader::new(bytes);
        let mut next = || {
            let magic = reader.u32()?;
            let header = Header {
                flags: reader.u16()?,
                command: reader.u16()?,
                cookie: reader.u64()?,
                offset: reader.u64()?,
                length: reader.u32()?,
            };
            Some((magic, header))
        };
        match next() {
            Some((REQUEST_MAGIC, header)) => Ok(header),
            other => Err(other.map_or(0, |(magic, _)| magic)),
        }
    }

    /// Encodes the header.
    pub fn encode(&self) -> [u8; BYTES] {
        let mut out = [0; BYTES];
        out[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        out[4..6].copy_from_slice(&self.flags.to_be_bytes());
        out[6..8].copy_from_slice(&self.command.to_be_bytes());
        out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        out[16..24].copy_from_slice(&self.offset.to_be_bytes());
        out[24..].copy_from_slice(&self.length.to_be_bytes());
        out
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
