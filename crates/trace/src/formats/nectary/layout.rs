//! The parts of Nectary's format that writer and reader share: heads, item bytes, numbers, bounds.

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first bytes of a file.
pub const MAGIC: [u8; 8] = *b"NECTTRC\0";
/// The smallest block. *Units*: bytes.
pub const BLOCK_BYTES_MIN: u32 = 512;
/// The largest block. *Units*: bytes.
pub const BLOCK_BYTES_MAX: u32 = 1 << 24;
/// The maximum number of processes in a trace.
pub const PROCESSES_MAX: u32 = 1 << 20;
/// The maximum number of files in a trace.
pub const FILES_MAX: u32 = 1 << 22;
/// The maximum number of streams in a trace.
pub const STREAMS_MAX: u32 = 1 << 22;
/// The longest name. *Units*: bytes.
pub const NAME_BYTES_MAX: usize = 4096;
/// The largest size of all names together. *Units*: bytes.
pub(super) const NAMES_BYTES_MAX: usize = 64 << 20;
/// One more than the largest block number in a file.
pub const BLOCKS_MAX: u64 = 1 << 40;
/// The maximum number of blocks of one call. It suffices for the 2 GiB that Linux moves in one call, even with the
/// smallest blocks.
pub const REFERENCES_PER_CALL_MAX: u64 = 1 << 22;

pub(super) const CHUNK_MAGIC: [u8; 4] = *b"NTCH";
pub(super) const VERSION: u16 = 1;
pub(super) const PAYLOAD_BYTES_MAX: usize = 128 << 10;

pub(super) const FLAG_COLLAPSED: u32 = 1;
pub(super) const FLAG_READS_ONLY: u32 = 2;

pub(super) const ITEM_PROCESS: u8 = 1;
pub(super) const ITEM_FILE: u8 = 2;
pub(super) const ITEM_STREAM: u8 = 3;
pub(super) const ITEM_MAP: u8 = 4;
pub(super) const ITEM_UNSEEN: u8 = 5;
pub(super) const ITEM_END: u8 = 6;
pub(super) const ITEM_REFERENCES: u8 = 0x80;
pub(super) const ITEM_REFERENCES_LAST: u8 = 0x8f;

pub(super) const REFERENCES_WRITTEN: u8 = 1;
pub(super) const REFERENCES_STREAM: u8 = 2;
pub(super) const REFERENCES_COUNT: u8 = 4;
pub(super) const REFERENCES_PLACE: u8 = 8;

pub(super) const KIND_REGULAR: u8 = 0;
pub(super) const KIND_BLOCK_DEVICE: u8 = 1;

pub(super) const MAP_EXECUTABLE: u8 = 1;
pub(super) const MAP_WRITTEN: u8 = 2;
pub(super) const MAP_PROGRAM: u8 = 4;

pub(super) const ENDED_EXITED: u8 = 0;
pub(super) const ENDED_KILLED: u8 = 1;
pub(super) const ENDED_STOPPED: u8 = 2;

/// The head of the file.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct FileHead {
    pub(super) magic: [u8; 8],
    pub(super) version: U16,
    pub(super) header_bytes: U16,
    pub(super) block_bytes: U32,
    pub(super) identity: [u8; 16],
    pub(super) flags: U32,
    pub(super) reserved: [u8; 24],
    pub(super) checksum: U32,
}

/// The head of a chunk.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct ChunkHead {
    pub(super) magic: [u8; 4],
    pub(super) version: U16,
    pub(super) reserved: U16,
    pub(super) identity: [u8; 8],
    pub(super) index: U32,
    pub(super) payload_bytes: U32,
    pub(super) payload_checksum: U32,
    pub(super) checksum: U32,
}

/// The checksum of a head, over all bytes except the last four, which hold the checksum.
pub(super) fn head_sum(head: &[u8]) -> u32 {
    crc32c::crc32c(&head[..head.len() - 4])
}

/// Appends a number as a variable-length integer: seven bits per byte, the lowest bits first.
pub(super) fn put_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Takes a number from the front of `bytes`; `None` if there is none or it exceeds 64 bits.
pub(super) fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let low = u64::from(byte & 0x7f);
        if shift == 63 && low > 1 {
            return None;
        }
        number |= low << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// Encodes a signed distance as a number that is small if the distance is small.
pub(super) fn zigzag(distance: i64) -> u64 {
    ((distance << 1) ^ (distance >> 63)) as u64
}

/// The reverse of [`zigzag`].
pub(super) fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}
