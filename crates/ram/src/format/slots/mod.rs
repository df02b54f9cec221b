//! The encoding of a device that logs parity: `docs/formats/ram-slots.md`.
//!
//! Owns: slots with their headers, summaries of groups, trims, the shape of the device, and the positions of all these
//! on a donor. Promises: no bytes make a decoder panic; decoded values are within the limits here. Leaves to others:
//! deciding which of the copies and groups on the donors are valid (`logged`).

mod areas;
mod shape;
mod slot;
mod summary;
mod trim;

pub use super::log_shape::{CACHES_MAX, REGION_BLOCKS_MAX};
pub use areas::DonorAreas;
pub use shape::{SHAPE_BYTES, SlotShape};
pub use slot::{SLOT_HEADER_BYTES, SlotHeader, xor};
pub use summary::{CoveredMember, GroupSummary, SummaryKind};
pub use trim::{TRIM_BYTES, TrimEntry};

use xxhash_rust::xxh3::xxh3_64;

#[cfg(test)]
use super::FormatError;

/// The maximum number of members of a group: a device has at most 16 donors.
pub const GROUP_MEMBERS_MAX: u8 = 15;

/// Returns the checksum that identifies the device in slots, summaries and trims.
pub fn device_checksum(device: &[u8; 16]) -> u64 {
    xxh3_64(device)
}

#[cfg(test)]
mod tests;
