//! Simple replies, and the chunks of structured replies.

use super::bytes::clipped;
use super::{CHUNK_MAGIC, EXTENDED_CHUNK_MAGIC, HeaderFormat, SIMPLE_REPLY_MAGIC};

/// The length of a simple reply without data, in bytes.
pub(crate) const SIMPLE_BYTES: usize = 16;
/// The length of a chunk's header, in bytes.
pub(crate) const CHUNK_BYTES: usize = 20;
/// The length of a chunk's extended header, in bytes.
pub(crate) const EXTENDED_CHUNK_BYTES: usize = 32;

/// The flag of the last chunk of a reply.
pub(crate) const DONE: u16 = 1;

pub(crate) const NONE: u16 = 0;
pub(crate) const OFFSET_DATA: u16 = 1;
pub(crate) const OFFSET_HOLE: u16 = 2;
pub(crate) const BLOCK_STATUS: u16 = 5;
pub(crate) const BLOCK_STATUS_EXT: u16 = 6;
/// The bit of chunk types that report errors.
pub(crate) const IS_ERROR: u16 = 1 << 15;
pub(crate) const ERROR: u16 = IS_ERROR | 1;

/// Writes a simple reply.
pub(crate) fn simple(out: &mut Vec<u8>, error: u32, cookie: u64) {
    out.extend(SIMPLE_REPLY_MAGIC.to_be_bytes());
    out.extend(error.to_be_bytes());
    out.extend(cookie.to_be_bytes());
}

/// The request that a chunk answers, and the form of its header, which is structured or extended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChunkTarget {
    pub headers: HeaderFormat,
    pub cookie: u64,
    /// The offset of the request.
    pub offset: u64,
}

/// Writes the header of a chunk.
pub(crate) fn chunk(out: &mut Vec<u8>, to: ChunkTarget, flags: u16, kind: u16, length: u32) {
    let is_extended = to.headers.is_extended();
    let magic = if is_extended { EXTENDED_CHUNK_MAGIC } else { CHUNK_MAGIC };
    out.extend(magic.to_be_bytes());
    out.extend(flags.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend(to.cookie.to_be_bytes());
    if is_extended {
        out.extend(to.offset.to_be_bytes());
        out.extend(u64::from(length).to_be_bytes());
    } else {
        out.extend(length.to_be_bytes());
    }
}

/// Writes a whole reply that consists of one error chunk.
pub(crate) fn error(out: &mut Vec<u8>, to: ChunkTarget, error: u32, message: &str) {
    let message = clipped(message);
    chunk(out, to, DONE, ERROR, 6 + message.len() as u32);
    out.extend(error.to_be_bytes());
    out.extend((message.len() as u16).to_be_bytes());
    out.extend(message.as_bytes());
}
