//! Options and their replies.
//!
//! Owns: the numbers, the headers, and the data of options. Leaves to others: the choice of options and answers.

use super::bytes::{StringError, WireReader};
use super::{OPTION_MAGIC, OPTION_REPLY_MAGIC};

/// The maximum number of information requests or queries in one option.
pub(crate) const LIST_MAX: usize = 1024;

/// The length of an option's header, in bytes.
pub(crate) const HEADER_BYTES: usize = 16;
/// The length of the header of a reply to an option, in bytes.
pub(crate) const REPLY_HEADER_BYTES: usize = 20;

pub(crate) const EXPORT_NAME: u32 = 1;
pub(crate) const ABORT: u32 = 2;
pub(crate) const LIST: u32 = 3;
pub(crate) const STARTTLS: u32 = 5;
pub(crate) const INFO: u32 = 6;
pub(crate) const GO: u32 = 7;
pub(crate) const STRUCTURED_REPLY: u32 = 8;
pub(crate) const LIST_META_CONTEXT: u32 = 9;
pub(crate) const SET_META_CONTEXT: u32 = 10;
pub(crate) const EXTENDED_HEADERS: u32 = 11;

/// The types of replies.
pub(crate) mod rep {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const IS_ERROR: u32 = 1 << 31;
    pub const ERR_UNSUP: u32 = IS_ERROR | 1;
    pub const ERR_POLICY: u32 = IS_ERROR | 2;
    pub const ERR_INVALID: u32 = IS_ERROR | 3;
    pub const ERR_PLATFORM: u32 = IS_ERROR | 4;
    pub const ERR_TLS_REQD: u32 = IS_ERROR | 5;
    pub const ERR_UNKNOWN: u32 = IS_ERROR | 6;
    pub const ERR_SHUTDOWN: u32 = IS_ERROR | 7;
    pub const ERR_BLOCK_SIZE_REQD: u32 = IS_ERROR | 8;
    pub const ERR_TOO_BIG: u32 = IS_ERROR | 9;
    pub const ERR_EXT_HEADER_REQD: u32 = IS_ERROR | 10;
}

/// The types of information about an export.
pub(crate) mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// The name of an option, for messages.
pub(crate) fn name(option: u32) -> &'static str {
    match option {
        EXPORT_NAME => "NBD_OPT_EXPORT_NAME",
        ABORT => "NBD_OPT_ABORT",
        LIST => "NBD_OPT_LIST",
        STARTTLS => "NBD_OPT_STARTTLS",
        INFO => "NBD_OPT_INFO",
        GO => "NBD_OPT_GO",
        STRUCTURED_REPLY => "NBD_OPT_STRUCTURED_REPLY",
        LIST_META_CONTEXT => "NBD_OPT_LIST_META_CONTEXT",
        SET_META_CONTEXT => "NBD_OPT_SET_META_CONTEXT",
        EXTENDED_HEADERS => "NBD_OPT_EXTENDED_HEADERS",
        _ => "an unknown option",
    }
}

/// The name of an error reply, for messages.
pub(crate) fn error_name(reply: u32) -> &'static str {
    match reply {
        rep::ERR_UNSUP => "NBD_REP_ERR_UNSUP",
        rep::ERR_POLICY => "NBD_REP_ERR_POLICY",
        rep::ERR_INVALID => "NBD_REP_ERR_INVALID",
        rep::ERR_PLATFORM => "NBD_REP_ERR_PLATFORM",
        rep::ERR_TLS_REQD => "NBD_REP_ERR_TLS_REQD",
        rep::ERR_UNKNOWN => "NBD_REP_ERR_UNKNOWN",
        rep::ERR_SHUTDOWN => "NBD_REP_ERR_SHUTDOWN",
        rep::ERR_BLOCK_SIZE_REQD => "NBD_REP_ERR_BLOCK_SIZE_REQD",
        rep::ERR_TOO_BIG => "NBD_REP_ERR_TOO_BIG",
        rep::ERR_EXT_HEADER_REQD => "NBD_REP_ERR_EXT_HEADER_REQD",
        _ => "an unknown error",
    }
}

/// Writes an option.
pub(crate) fn encode(option: u32, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_BYTES + data.len());
    out.extend(OPTION_MAGIC.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
    out
}

/// Reads an option's header. Returns the option and the length of its data; `None` if the magic number is wrong.
pub(crate) fn header(bytes: &[u8]) -> Option<(u32, u32)> {
    let mut reader = WireReader::new(bytes);
    if reader.u64()? != OPTION_MAGIC {
        return None;
    }
    Some((reader.u32()?, reader.u32()?))
}

/// Writes a reply to an option.
pub(crate) fn encode_reply(option: u32, reply: u32, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(REPLY_HEADER_BYTES + data.len());
    out.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend(reply.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
    out
}

/// Reads the header of a reply. Returns the option, the type of the reply and the length of its data; `None` if the
/// magic number is wrong.
pub(crate) fn reply_header(bytes: &[u8]) -> Option<(u32, u32, u32)> {
    let mut reader = WireReader::new(bytes);
    if reader.u64()? != OPTION_REPLY_MAGIC {
        return None;
    }
    Some((reader.u32()?, reader.u32()?, reader.u32()?))
}

/// The reason why the data of an option are not understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataError {
    /// A length extends beyond the end of the data, or there are more bytes than the lengths cover.
    Malformed,
    /// A string is not valid text.
    NotText,
    /// A string or a list is longer than the limit.
    TooBig,
}

impl From<StringError> for DataError {
    fn from(error: StringError) -> DataError {
        match error {
            StringError::TooLong => DataError::TooBig,
            StringError::NotText => DataError::NotText,
        }
    }
}

/// The data of `NBD_OPT_INFO` and `NBD_OPT_GO`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InfoRequest<'a> {
    pub name: &'a str,
    pub requests: Vec<u16>,
}

impl<'a> InfoRequest<'a> {
    pub fn decode(data: &'a [u8]) -> Result<InfoRequest<'a>, DataError> {
        let mut reader = WireReader::new(data);
        let name = reader.string().ok_or(DataError::Malformed)??;
        let count = usize::from(reader.u16().ok_or(DataError::Malformed)?);
        if count > LIST_MAX {
            return Err(DataError::TooBig);
        }
        let requests = (0..count).map(|_| reader.u16()).collect::<Option<Vec<u16>>>();
        match requests {
            Some(requests) if reader.is_empty() => Ok(InfoRequest { name, requests }),
            _ => Err(DataError::Malformed),
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend((self.name.len() as u32).to_be_bytes());
        out.extend(self.name.as_bytes());
        out.extend((self.requests.len() as u16).to_be_bytes());
        self.requests.iter().for_each(|request| out.extend(request.to_be_bytes()));
        out
    }
}

/// The data of `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContextRequest<'a> {
    pub name: &'a str,
    pub queries: Vec<&'a str>,
}

impl<'a> ContextRequest<'a> {
    pub fn decode(data: &'a [u8]) -> Result<ContextRequest<'a>, DataError> {
        let mut reader = WireReader::new(data);
        let name = reader.string().ok_or(DataError::Malformed)??;
        let count = reader.u32().ok_or(DataError::Malformed)? as usize;
        if count > LIST_MAX {
            return Err(DataError::TooBig);
        }
        let mut queries = Vec::new();
        for _ in 0..count {
            queries.push(reader.string().ok_or(DataError::Malformed)??);
        }
        if reader.is_empty() { Ok(ContextRequest { name, queries }) } else { Err(DataError::Malformed) }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut string = |text: &str| {
            out.extend((text.len() as u32).to_be_bytes());
            out.extend(text.as_bytes());
        };
        string(self.name);
        out.extend((self.queries.len() as u32).to_be_bytes());
        for query in &self.queries {
            out.extend((query.len() as u32).to_be_bytes());
            out.extend(query.as_bytes());
        }
        out
    }
}
