//! Calls that change a file.
//!
//! Owns: the effect of a call on the bytes of a file, also on bytes other than the caller knew: another session may have
//! been lost together with what it wrote before.

use std::sync::Arc;

use nectary_volume::client::WritePosition;

/// Punches a hole.
pub const PUNCH: u32 = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u32;
/// Makes a range zeroes.
pub const ZERO: u32 = libc::FALLOC_FL_ZERO_RANGE as u32;
/// Reserves the blocks of a range that have none.
pub const RESERVE: u32 = 0;
/// Does this without a change of the size.
pub const RESERVE_BEHIND: u32 = libc::FALLOC_FL_KEEP_SIZE as u32;

/// A call that changes a file.
#[derive(Debug, Clone)]
pub enum FileMutation {
    /// Writes these bytes.
    Write(WritePosition, Arc<Vec<u8>>),
    /// Writes them with `O_SYNC`.
    Synced(WritePosition, Arc<Vec<u8>>),
    /// Truncates or extends the file to this size.
    Truncate(u64),
    /// Does what `fallocate` does: offset, length and mode, which is one of those above.
    Allocate(u64, u64, u32),
}

impl FileMutation {
    /// Returns the bytes of a file after the call, which had these bytes before.
    pub fn apply(&self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        match self {
            FileMutation::Write(at, written) | FileMutation::Synced(at, written) => {
                let start = match at {
                    WritePosition::Offset(offset) => *offset as usize,
                    WritePosition::End => bytes.len(),
                };
                let end = start + written.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[start..end].copy_from_slice(written);
            }
            FileMutation::Truncate(size) => bytes.resize(*size as usize, 0),
            FileMutation::Allocate(offset, length, mode) => {
                let (start, end) = (*offset as usize, (offset + length) as usize);
                if matches!(*mode, ZERO | RESERVE) {
                    bytes.resize(bytes.len().max(end), 0);
                }
                if matches!(*mode, ZERO | PUNCH) {
                    let size = bytes.len();
                    bytes[start.min(size)..end.min(size)].fill(0);
                }
            }
        }
        bytes
    }

    /// Whether the call has several steps, so that a crash may leave it done in part.
    pub fn has_steps(&self) -> bool {
        !matches!(self, FileMutation::Write(..) | FileMutation::Synced(..))
    }

    /// Whether the call is durable when it returns: the server stores a change of the file's size or extents, and the
    /// client has committed before what it had written.
    pub fn is_durable(&self) -> bool {
        !matches!(self, FileMutation::Write(..))
    }
}
