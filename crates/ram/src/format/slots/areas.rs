//! The areas of a donor's memory.
//!
//! Owns: the offsets of the areas, as `docs/formats/ram-slots.md` defines them. Promises: no two areas share a byte.

use super::shape::{SHAPE_BYTES, Shape};
use super::slot::SLOT_HEADER_BYTES;
use super::summary::Summary;
use super::trim::TRIM_BYTES;

const ALIGN: u64 = 64;

/// The areas of each donor of a device. *Units*: bytes, unless said otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Areas {
    /// The number of donors of the device.
    pub donors: u64,
    /// The length of a slot.
    pub slot_bytes: u64,
    /// The length of a summary.
    pub summary_bytes: u64,
    /// The offset of the trims.
    pub trims_at: u64,
    /// The offset of the summaries.
    pub summaries_at: u64,
    /// The number of summaries on a donor.
    pub summaries: u64,
    /// The offset of the spares.
    pub spares_at: u64,
    /// The number of spares on a donor.
    pub spares: u64,
    /// The offset of the slots.
    pub slots_at: u64,
    /// The size of all areas together.
    pub donor_bytes: u64,
    region_blocks: u64,
    blocks: u64,
}

impl Areas {
    /// Computes the areas of a device.
    pub fn new(shape: &Shape) -> Areas {
        let donors = u64::from(shape.members) + 1;
        let slot_bytes = (SLOT_HEADER_BYTES as u64) + u64::from(shape.block_bytes);
        let summary_bytes = Summary::bytes_of(shape.members) as u64;
        let (blocks, region_blocks) = (u64::from(shape.blocks), u64::from(shape.region_blocks));
        let regions = blocks.div_ceil(region_blocks);
        let trims_at = SHAPE_BYTES as u64;
        let trims_bytes = 2 * regions.div_ceil(donors) * region_blocks * TRIM_BYTES as u64;
        let summaries_at = (trims_at + trims_bytes).next_multiple_of(ALIGN);
        let summaries = u64::from(shape.groups).div_ceil(donors);
        let spares_at = (summaries_at + summaries * summary_bytes).next_multiple_of(ALIGN);
        let spares = 2 * u64::from(shape.caches);
        let slots_at = (spares_at + spares * (summary_bytes + slot_bytes)).next_multiple_of(ALIGN);
        let donor_bytes = slots_at + u64::from(shape.groups) * slot_bytes;
        Areas {
            donors,
            slot_bytes,
            summary_bytes,
            trims_at,
            summaries_at,
            summaries,
            spares_at,
            spares,
            slots_at,
            donor_bytes,
            region_blocks,
            blocks,
        }
    }

    /// Returns the donor of a group's parity.
    pub fn parity_donor(&self, group: u32) -> usize {
        (u64::from(group) % self.donors) as usize
    }

    /// Returns the donor of a member of a group.
    pub fn member_donor(&self, group: u32, member: u8) -> usize {
        ((u64::from(group) + 1 + u64::from(member)) % self.donors) as usize
    }

    /// Returns the member of a group that a donor has; `None`: the donor has the parity.
    pub fn member_on(&self, group: u32, donor: usize) -> Option<u8> {
        let behind = (donor as u64 + self.donors - u64::from(group) % self.donors) % self.donors;
        (behind as u8).checked_sub(1)
    }

    /// Returns the offset of a group's slot, which has a member or the parity.
    pub fn slot(&self, group: u32) -> u64 {
        self.slots_at + u64::from(group) * self.slot_bytes
    }

    /// Returns the offset of a group's summary, on the donor of its parity.
    pub fn summary(&self, group: u32) -> u64 {
        self.summaries_at + u64::from(group) / self.donors * self.summary_bytes
    }

    /// Returns the offset of a spare.
    pub fn spare(&self, spare: u64) -> u64 {
        self.spares_at + spare * (self.summary_bytes + self.slot_bytes)
    }

    /// Returns the number of regions of trims.
    pub fn regions(&self) -> u64 {
        self.blocks.div_ceil(self.region_blocks)
    }

    /// Returns the region of a block.
    pub fn region_of(&self, block: u32) -> u64 {
        u64::from(block) / self.region_blocks
    }

    /// Returns the blocks of a region.
    pub fn region(&self, region: u64) -> std::ops::Range<u32> {
        let first = region * self.region_blocks;
        first as u32..(first + self.region_blocks).min(self.blocks) as u32
    }

    /// Returns the two positions of a block's trim, as donor and offset. The entries of a region are adjacent.
    pub fn trims(&self, block: u32) -> [(usize, u64); 2] {
        let region = self.region_of(block);
        let inside = u64::from(block) % self.region_blocks;
        [0, 1].map(|copy| {
            let number = 2 * (region / self.donors) + copy;
            let donor = ((region + copy) % self.donors) as usize;
            (donor, self.trims_at + (number * self.region_blocks + inside) * TRIM_BYTES as u64)
        })
    }
}
