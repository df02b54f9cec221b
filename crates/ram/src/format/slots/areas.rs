//! The areas of a donor's memory.
//!
//! Owns: the offsets of the areas, as `docs/formats/ram-slots.md` defines them. Promises: no two areas share a byte, and
//! growing moves none.

use super::super::log_shape::{FormerSize, GROWTHS_MAX};
use super::shape::{SHAPE_BYTES, SlotShape};
use super::slot::SLOT_HEADER_BYTES;
use super::summary::GroupSummary;
use super::trim::TRIM_BYTES;

/// The alignment of an area. *Units*: bytes.
const ALIGN: u64 = 64;
/// The alignment of the areas that a growth adds: a donor lends a multiple of this. *Units*: bytes.
const SPAN_ALIGN: u64 = 4096;

/// The areas of the device's first size, or those that one growth added.
///
/// Trims and summaries are in rows: a row is one region, or one group, for each donor. A row that the former size has
/// begun belongs to the former span, which has room for the whole row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct GrowthAreas {
    begins_at: u64,
    /// The rows of trims, and of summaries, and the groups before the end of this span.
    trim_rows: u64,
    summary_rows: u64,
    groups: u64,
    /// The same of the former span.
    former_trim_rows: u64,
    former_summary_rows: u64,
    former_groups: u64,
    trims_at: u64,
    summaries_at: u64,
    slots_at: u64,
    /// The position of this span among the bytes before the slots of all spans.
    head_at: u64,
}

/// The areas of each donor of a device. *Units*: bytes, unless said otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DonorAreas {
    /// The number of donors of the device.
    pub donors: u64,
    /// The length of a slot.
    pub slot_bytes: u64,
    /// The length of a summary.
    pub summary_bytes: u64,
    /// The offset of the spares.
    pub spares_at: u64,
    /// The number of spares on a donor.
    pub spares: u64,
    /// The size of all areas together.
    pub donor_bytes: u64,
    region_blocks: u64,
    blocks: u64,
    spans: [GrowthAreas; GROWTHS_MAX + 1],
    span_count: usize,
}

impl DonorAreas {
    /// Computes the areas of a device.
    pub fn new(shape: &SlotShape) -> DonorAreas {
        let region_blocks = u64::from(shape.region_blocks);
        let mut areas = DonorAreas {
            donors: u64::from(shape.members) + 1,
            slot_bytes: (SLOT_HEADER_BYTES as u64) + u64::from(shape.block_bytes),
            summary_bytes: GroupSummary::bytes_of(shape.members) as u64,
            spares_at: 0,
            spares: 2 * u64::from(shape.caches),
            donor_bytes: 0,
            region_blocks,
            blocks: u64::from(shape.blocks),
            spans: Default::default(),
            span_count: 0,
        };
        let formers = shape.formers.iter().take_while(|former| former.blocks > 0);
        let present = FormerSize { blocks: shape.blocks, groups: shape.groups };
        for size in formers.chain([&present]) {
            areas.add_span(size);
        }
        areas
    }

    /// Adds the areas of the next size behind the present ones.
    fn add_span(&mut self, size: &FormerSize) {
        let former = self.span_count.checked_sub(1).map(|last| self.spans[last]).unwrap_or_default();
        let begins_at = self.donor_bytes.next_multiple_of(SPAN_ALIGN);
        let trims_at = if self.span_count == 0 { SHAPE_BYTES as u64 } else { begins_at };
        let regions = u64::from(size.blocks).div_ceil(self.region_blocks);
        let mut span = GrowthAreas {
            begins_at,
            trims_at,
            trim_rows: regions.div_ceil(self.donors),
            summary_rows: u64::from(size.groups).div_ceil(self.donors),
            groups: u64::from(size.groups),
            former_trim_rows: former.trim_rows,
            former_summary_rows: former.summary_rows,
            former_groups: former.groups,
            head_at: former.head_at + (former.slots_at - former.begins_at),
            ..GrowthAreas::default()
        };
        let row_bytes = 2 * self.region_blocks * TRIM_BYTES as u64;
        let trims_bytes = (span.trim_rows - span.former_trim_rows) * row_bytes;
        span.summaries_at = (trims_at + trims_bytes).next_multiple_of(ALIGN);
        let summaries_bytes = (span.summary_rows - span.former_summary_rows) * self.summary_bytes;
        span.slots_at = (span.summaries_at + summaries_bytes).next_multiple_of(ALIGN);
        if self.span_count == 0 {
            self.spares_at = span.slots_at;
            let spares_bytes = self.spares * (self.summary_bytes + self.slot_bytes);
            span.slots_at = (self.spares_at + spares_bytes).next_multiple_of(ALIGN);
        }
        self.donor_bytes = span.slots_at + (span.groups - span.former_groups) * self.slot_bytes;
        self.spans[self.span_count] = span;
        self.span_count += 1;
    }

    /// Returns the first span that has something, or the last one.
    fn span(&self, has_it: impl Fn(&GrowthAreas) -> bool) -> &GrowthAreas {
        let spans = &self.spans[..self.span_count];
        spans.iter().find(|span| has_it(span)).unwrap_or(&spans[self.span_count - 1])
    }

    /// Returns the ranges of a donor's memory before the slots, in order: shape, trims, summaries and spares.
    pub fn heads(&self) -> impl Iterator<Item = std::ops::Range<u64>> + use<> {
        let (spans, count) = (self.spans, self.span_count);
        spans.into_iter().take(count).map(|span| span.begins_at..span.slots_at)
    }

    /// Returns the length of these ranges together.
    pub fn head_bytes(&self) -> u64 {
        let last = &self.spans[self.span_count - 1];
        last.head_at + (last.slots_at - last.begins_at)
    }

    /// Returns the place of an offset among the bytes of these ranges, which must contain it.
    pub fn in_heads(&self, offset: u64) -> usize {
        let span = self.span(|span| offset < span.slots_at);
        (span.head_at + offset.saturating_sub(span.begins_at)) as usize
    }

    /// Returns the end of the groups whose slots are adjacent to that of a group.
    pub fn run_end(&self, group: u32) -> u32 {
        self.span(|span| u64::from(group) < span.groups).groups as u32
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
        let group = u64::from(group);
        let span = self.span(|span| group < span.groups);
        span.slots_at + (group - span.former_groups) * self.slot_bytes
    }

    /// Returns the offset of a group's summary, on the donor of its parity.
    pub fn summary(&self, group: u32) -> u64 {
        let row = u64::from(group) / self.donors;
        let span = self.span(|span| row < span.summary_rows);
        span.summaries_at + (row - span.former_summary_rows) * self.summary_bytes
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
        let row = region / self.donors;
        let span = self.span(|span| row < span.trim_rows);
        [0, 1].map(|copy| {
            let number = 2 * (row - span.former_trim_rows) + copy;
            let donor = ((region + copy) % self.donors) as usize;
            (donor, span.trims_at + (number * self.region_blocks + inside) * TRIM_BYTES as u64)
        })
    }
}
