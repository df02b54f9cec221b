//! The placement of a device whose parity is changed in place.
//!
//! Owns: the donor of each member of a stripe, and how ranges of blocks are cut. Promises: the members of a stripe are
//! on different donors, and no two stripes share a byte of a donor.
//!
//! With `D` donors, a stripe has `D` *members* of one chunk each: `D - 1` data members, which follow each other in the
//! device, and the parity, which is the last member. The parity of stripe `s` is on donor `D - 1 - s % D`; data member
//! `m` is on the `m + 1`st donor after it. Stripe `s` is chunk `s` of every donor. A *column* is the blocks of all
//! members at one place; columns are counted from 0 over all stripes. A change is cut into *rows*: ranges of columns in
//! which each data member is written wholly or not at all.

use std::ops::Range;

use crate::format::{RecordGeometry, RedundancyCode};
use crate::group::Donor;
use crate::in_place::layout::StripeLayout;

/// What a machine keeps for a device, in numbers.
#[derive(Debug, Clone, Copy)]
pub(in crate::in_place) struct MachineSizes {
    /// The number of checksums; with parity, also of the parity.
    pub checked_blocks: u64,
    /// The bytes of the device that one unit of the scrub stands for: a block, or a column.
    pub scrub_unit_bytes: u64,
    pub scrub_units: u64,
}

impl MachineSizes {
    pub fn new(geometry: &RecordGeometry) -> MachineSizes {
        let (blocks, block_bytes) = (geometry.blocks(), u64::from(geometry.block_bytes));
        let (checked_blocks, scrub_unit_bytes, scrub_units) = match geometry.code {
            RedundancyCode::Mirror => (blocks, block_bytes, blocks),
            RedundancyCode::Log(_) => (0, block_bytes, blocks),
            RedundancyCode::Parity => {
                let rows = ParityLayout::new(geometry);
                let data_members = rows.parity() as u64;
                (rows.columns() * (data_members + 1), block_bytes * data_members, rows.columns())
            }
        };
        MachineSizes { checked_blocks, scrub_unit_bytes, scrub_units }
    }
}

/// A range of columns of a stripe, and some of its data members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::in_place) struct ParityRow {
    pub stripe: u64,
    /// The blocks of the first of the members.
    pub blocks: Range<u64>,
    pub members: Range<usize>,
}

/// The placement.
#[derive(Debug, Clone, Copy)]
pub struct ParityLayout {
    donors: u64,
    chunk_blocks: u64,
    block_bytes: u64,
    stripes: u64,
}

impl ParityLayout {
    /// Makes the placement of a device.
    pub fn new(geometry: &RecordGeometry) -> ParityLayout {
        let (donors, block_bytes) = (u64::from(geometry.members).max(2), u64::from(geometry.block_bytes));
        let chunk_blocks = (u64::from(geometry.chunk_bytes()) / block_bytes).max(1);
        ParityLayout { donors, chunk_blocks, block_bytes, stripes: geometry.stripes() }
    }

    /// Returns the number of the parity among the members, which is the number of data members.
    pub fn parity(&self) -> usize {
        self.donors as usize - 1
    }

    /// Returns all columns of the device.
    pub fn columns(&self) -> u64 {
        self.stripes * self.chunk_blocks
    }

    /// Returns the donor of a member; the number of the parity is [`Self::parity`].
    pub fn donor(&self, stripe: u64, member: usize) -> Donor {
        ((self.parity_donor(stripe) + 1 + member as u64) % self.donors) as Donor
    }

    /// Returns the member of a stripe that a donor has.
    pub fn member(&self, stripe: u64, donor: Donor) -> usize {
        ((donor as u64 + self.donors - 1 - self.parity_donor(stripe)) % self.donors) as usize
    }

    fn parity_donor(&self, stripe: u64) -> u64 {
        self.donors - 1 - stripe % self.donors
    }

    fn stripe_blocks(&self) -> u64 {
        self.chunk_blocks * (self.donors - 1)
    }

    /// Returns the column of a block.
    pub fn column(&self, block: u64) -> u64 {
        block / self.stripe_blocks() * self.chunk_blocks + block % self.chunk_blocks
    }

    /// Returns the data member that a block belongs to.
    pub fn member_of(&self, block: u64) -> usize {
        (block % self.stripe_blocks() / self.chunk_blocks) as usize
    }

    /// Returns the block of a data member in a column. Behind the last block of the device, the last stripe has
    /// zeroes.
    pub fn block(&self, column: u64, member: usize) -> u64 {
        let (stripe, inside) = (column / self.chunk_blocks, column % self.chunk_blocks);
        stripe * self.stripe_blocks() + member as u64 * self.chunk_blocks + inside
    }

    /// Returns the offset of a column on each donor. *Units*: bytes.
    pub fn offset(&self, column: u64) -> u64 {
        column * self.block_bytes
    }

    /// Returns the columns that a range of blocks may touch. Within one chunk these are exactly its columns.
    pub(in crate::in_place) fn locked(&self, blocks: &Range<u64>) -> Range<u64> {
        if blocks.is_empty() {
            return 0..0;
        }
        let last = blocks.end - 1;
        if blocks.start / self.chunk_blocks == last / self.chunk_blocks {
            return self.column(blocks.start)..self.column(last) + 1;
        }
        let stripes = blocks.start / self.stripe_blocks()..last / self.stripe_blocks() + 1;
        stripes.start * self.chunk_blocks..stripes.end * self.chunk_blocks
    }

    /// Cuts a range of blocks at the ends of chunks.
    pub(in crate::in_place) fn chunks(&self, blocks: &Range<u64>) -> Vec<ParityRow> {
        let mut rows = Vec::new();
        let mut first = blocks.start;
        while first < blocks.end {
            let end = blocks.end.min((first / self.chunk_blocks + 1) * self.chunk_blocks);
            let member = self.member_of(first);
            rows.push(ParityRow {
                stripe: first / self.stripe_blocks(),
                blocks: first..end,
                members: member..member + 1,
            });
            first = end;
        }
        rows
    }

    /// Cuts a range of blocks into rows in which each data member is there wholly or not at all.
    pub(in crate::in_place) fn rows(&self, blocks: &Range<u64>) -> Vec<ParityRow> {
        let mut rows = Vec::new();
        let mut first = blocks.start;
        while first < blocks.end {
            let stripe = first / self.stripe_blocks();
            let end = blocks.end.min((stripe + 1) * self.stripe_blocks());
            self.add_rows(stripe, first..end, &mut rows);
            first = end;
        }
        rows
    }

    fn add_rows(&self, stripe: u64, blocks: Range<u64>, rows: &mut Vec<ParityRow>) {
        let (one, last) = (self.member_of(blocks.start), self.member_of(blocks.end - 1));
        let (from, to) = (blocks.start % self.chunk_blocks, (blocks.end - 1) % self.chunk_blocks + 1);
        let mut add = |columns: Range<u64>, members: Range<usize>| {
            if !columns.is_empty() && !members.is_empty() {
                let first = self.block(stripe * self.chunk_blocks + columns.start, members.start);
                rows.push(ParityRow { stripe, blocks: first..first + (columns.end - columns.start), members });
            }
        };
        if one == last {
            return add(from..to, one..one + 1);
        }
        // The first member is written from `from` on, the last one up to `to`, those between wholly.
        add(0..from.min(to), one + 1..last + 1);
        match from < to {
            true => add(from..to, one..last + 1),
            false => add(to..from, one + 1..last),
        }
        add(from.max(to)..self.chunk_blocks, one..last);
    }
}

impl StripeLayout for ParityLayout {
    fn markers(&self, stripe: u64) -> [Donor; 2] {
        [self.donor(stripe, self.parity()), self.donor(stripe, 0)]
    }

    fn is_on(&self, _: u64, donor: Donor) -> bool {
        (donor as u64) < self.donors
    }

    fn donor_bytes(&self) -> u64 {
        self.offset(self.columns())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn rows(members: u16, chunk_blocks: u32, blocks: u64) -> ParityLayout {
        let stripe_bytes = chunk_blocks * 16 * u32::from(members - 1);
        let bytes = blocks * 16;
        let code = RedundancyCode::Parity;
        ParityLayout::new(&RecordGeometry { device: [0; 16], bytes, block_bytes: 16, stripe_bytes, members, code })
    }

    /// The members of a stripe are on different donors, and the parity rotates over the donors.
    #[test]
    fn stripe_members_use_different_donors() {
        for members in 3..6 {
            let rows = rows(members, 4, 211);
            let mut parities = HashSet::new();
            for stripe in 0..u64::from(members) {
                let donors: HashSet<Donor> = (0..=rows.parity()).map(|member| rows.donor(stripe, member)).collect();
                assert_eq!(donors.len(), usize::from(members));
                (0..=rows.parity())
                    .for_each(|member| assert_eq!(rows.member(stripe, rows.donor(stripe, member)), member));
                parities.insert(rows.markers(stripe)[0]);
                assert_ne!(rows.markers(stripe)[0], rows.markers(stripe)[1]);
            }
            assert_eq!(parities.len(), usize::from(members));
            let mut used = HashSet::new();
            for block in 0..211 {
                let (column, member) = (rows.column(block), rows.member_of(block));
                assert_eq!(rows.block(column, member), block);
                assert!(used.insert((rows.donor(column / 4, member), rows.offset(column))));
                assert!(rows.offset(column) + 16 <= rows.donor_bytes());
            }
        }
    }

    /// A row has each of its members wholly or not at all.
    #[test]
    fn rows_cover_blocks_once() {
        let rows = rows(5, 4, 48);
        for start in 0..48 {
            for end in start + 1..=48 {
                let mut blocks = HashSet::new();
                for row in rows.rows(&(start..end)) {
                    let columns = rows.column(row.blocks.start)..rows.column(row.blocks.end - 1) + 1;
                    for column in columns {
                        for member in 0..rows.parity() {
                            let block = rows.block(column, member);
                            assert_eq!(row.members.contains(&member), (start..end).contains(&block), "{start}..{end}");
                            assert!(!row.members.contains(&member) || blocks.insert(block));
                        }
                        assert!(rows.locked(&(start..end)).contains(&column));
                    }
                }
                assert_eq!(blocks.len() as u64, end - start);
                let chunks = rows.chunks(&(start..end));
                assert_eq!(chunks.iter().map(|row| row.blocks.end - row.blocks.start).sum::<u64>(), end - start);
                assert!(chunks.iter().all(|row| row.members.len() == 1));
            }
        }
        assert_eq!(rows.locked(&(5..7)), 1..3);
        assert_eq!(rows.locked(&(7..17)), 0..8);
    }
}
