//! Turns a received request into a checked command, or into the error that answers the request. This file does no I/O.
//!
//! Owns: every check of a request, and for each check the error value that the protocol document requires.

use super::handshake::ServerAgreement;
use crate::limits::PAYLOAD_BYTES_MAX;
use crate::wire::command_flag::{DF, FAST_ZERO, FUA, NO_HOLE, PAYLOAD_LEN, REQ_ONE};
use crate::wire::errno::{EINVAL, ENOSPC, ENOTSUP, EOVERFLOW, EPERM};
use crate::wire::request::{self, WireRequestHeader};

/// A request that has passed all checks. Its range is inside the export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CheckedCommand {
    Read {
        offset: u64,
        length: u32,
    },
    Write {
        offset: u64,
        length: u32,
        fua: bool,
    },
    Flush,
    Trim {
        offset: u64,
        length: u64,
        fua: bool,
    },
    /// Zeroes a range. If `quick` is true, the request must fail unless zeroing takes less time than writing.
    Zero {
        offset: u64,
        length: u64,
        fua: bool,
        no_hole: bool,
        quick: bool,
    },
    Cache {
        offset: u64,
        length: u32,
    },
    Status {
        offset: u64,
        length: u64,
        one: bool,
    },
}

/// The reason why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RequestRefusal {
    pub error: u32,
    pub message: String,
}

impl RequestRefusal {
    pub fn new(error: u32, message: impl Into<String>) -> RequestRefusal {
        RequestRefusal { error, message: message.into() }
    }
}

/// Checks a request. The caller handles `NBD_CMD_DISC`, which never comes here.
pub(crate) fn check(header: &WireRequestHeader, agreed: &ServerAgreement) -> Result<CheckedCommand, RequestRefusal> {
    let WireRequestHeader { flags, command, offset, length, .. } = *header;
    let name = request::name(command);
    let allowed = match command {
        request::READ if agreed.headers.is_structured() => FUA | DF,
        request::WRITE if agreed.headers.is_extended() => FUA | PAYLOAD_LEN,
        request::READ | request::WRITE | request::FLUSH | request::TRIM | request::CACHE => FUA,
        request::WRITE_ZEROES => FUA | NO_HOLE | FAST_ZERO,
        request::BLOCK_STATUS => FUA | REQ_ONE,
        _ => return Err(RequestRefusal::new(EINVAL, format!("command {command} is not known here"))),
    };
    if flags & !allowed != 0 {
        return Err(RequestRefusal::new(EINVAL, format!("{name} has no flags {:#x}", flags & !allowed)));
    }
    let changes = matches!(command, request::WRITE | request::TRIM | request::WRITE_ZEROES);
    if changes && agreed.export.is_read_only() {
        return Err(RequestRefusal::new(EPERM, "the export is read-only"));
    }
    if command == request::FLUSH {
        return match (offset, length) {
            (0, 0) => Ok(CheckedCommand::Flush),
            _ => Err(RequestRefusal::new(EINVAL, "a flush has neither offset nor length")),
        };
    }
    if offset.checked_add(length).is_none_or(|end| end > agreed.size_bytes) {
        let error = if matches!(command, request::WRITE | request::WRITE_ZEROES) { ENOSPC } else { EINVAL };
        let message = format!("{length} bytes at {offset} leave the export, which has {} bytes", agreed.size_bytes);
        return Err(RequestRefusal::new(error, message));
    }
    let fua = flags & FUA != 0;
    let is_long = length > u64::from(PAYLOAD_BYTES_MAX);
    // The length of requests that transfer data, which are refused if they are long.
    let short = length as u32;
    match command {
        request::READ if is_long => {
            let error = if agreed.headers.is_structured() { EOVERFLOW } else { EINVAL };
            Err(RequestRefusal::new(error, format!("{length} bytes at once, at most {PAYLOAD_BYTES_MAX} are read")))
        }
        request::READ => Ok(CheckedCommand::Read { offset, length: short }),
        request::WRITE if is_long => {
            Err(RequestRefusal::new(EINVAL, format!("{length} bytes at once, at most {PAYLOAD_BYTES_MAX} are written")))
        }
        request::WRITE => Ok(CheckedCommand::Write { offset, length: short, fua }),
        request::TRIM => Ok(CheckedCommand::Trim { offset, length, fua }),
        request::CACHE if is_long => Err(RequestRefusal::new(
            EOVERFLOW,
            format!("{length} bytes at once, at most {PAYLOAD_BYTES_MAX} are cached"),
        )),
        request::CACHE => Ok(CheckedCommand::Cache { offset, length: short }),
        request::WRITE_ZEROES if flags & FAST_ZERO != 0 && flags & NO_HOLE != 0 => {
            Err(RequestRefusal::new(ENOTSUP, "zeroes that must not be holes are written as data"))
        }
        request::WRITE_ZEROES => {
            let (no_hole, quick) = (flags & NO_HOLE != 0, flags & FAST_ZERO != 0);
            Ok(CheckedCommand::Zero { offset, length, fua, no_hole, quick })
        }
        request::BLOCK_STATUS if !agreed.has_allocation => {
            Err(RequestRefusal::new(EINVAL, "no metadata context was chosen for this export"))
        }
        request::BLOCK_STATUS if length == 0 => Err(RequestRefusal::new(EINVAL, "the status of nothing")),
        _ => Ok(CheckedCommand::Status { offset, length, one: flags & REQ_ONE != 0 }),
    }
}

/// The range of whole blocks that contains a range of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AlignedRange {
    /// The offset of the first block.
    pub start: u64,
    /// The total length of the blocks, in bytes.
    pub length: usize,
    /// The position in the frame at which the range of bytes starts.
    pub shift: usize,
}

impl AlignedRange {
    /// The frame that contains the `length` bytes at `offset`. The frame ends within the device, because the device's
    /// size is a multiple of the block size.
    pub fn of(offset: u64, length: u64, block_bytes: u32) -> AlignedRange {
        let block = u64::from(block_bytes);
        let start = offset - offset % block;
        let end = (offset + length).next_multiple_of(block);
        AlignedRange { start, length: (end - start) as usize, shift: (offset - start) as usize }
    }

    /// Whether the bytes fill the frame.
    pub fn is_whole(&self, length: u32) -> bool {
        self.shift == 0 && self.length == length as usize
    }

    pub fn end(&self) -> u64 {
        self.start + self.length as u64
    }
}
