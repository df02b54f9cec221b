//! The placement of a device that is changed in place: which donor has which member of a stripe.
//!
//! Owns: the donor and the offset of each member of a stripe, and how ranges of blocks are cut. Promises: the members of a
//! stripe are on different donors, and no two members share a byte of a donor.
//!
//! A stripe has *members* of one chunk each, on different donors: data members, which follow each other in the device, and
//! the parity, which is the last member. A mirror has one data member, whose parity is its copy; without redundancy there
//! is one data member and no parity, as if the donor of the parity were always missing. A *column* is the blocks of all
//! members at one place; columns are counted from 0 over all stripes. A change is cut into *rows*: ranges of
//! columns in which each data member is written wholly or not at all.
//!
//! | code | data members | member 0 of stripe `s` of `D` donors | other members | where on a donor |
//! |---|---|---|---|---|
//! | none | 1 | one of its zone's, in turn (`format::RowZones`) | none | the next chunk of that donor |
//! | mirror | 1 | donor `s % D` | the next donor | row `s / D` has two chunks: one for each member |
//! | parity | `D - 1` | donor `-s % D` | the next donors | chunk `s` |
//!
//! So if one of more than two donors of a mirror is lost, two others share its load.

use std::ops::Range;

use crate::format::{RecordGeometry, RedundancyCode, RowZones};
use crate::group::Donor;

/// Returns the donors that store the dirty mark of a stripe.
pub(super) fn markers(geometry: &RecordGeometry, stripe: u64) -> Option<[Donor; 2]> {
    RowLayout::new(geometry).markers(stripe)
}

/// A range of columns of a stripe, and some of its data members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ParityRow {
    pub stripe: u64,
    /// The blocks of the first of the members.
    pub blocks: Range<u64>,
    pub members: Range<usize>,
}

/// The placement.
#[derive(Debug, Clone, Copy)]
pub struct RowLayout {
    is_ring: bool,
    /// The zones of a device without redundancy.
    zones: Option<RowZones>,
    donors: u64,
    members: u64,
    chunk_blocks: u64,
    block_bytes: u64,
    stripes: u64,
    blocks: u64,
}

impl RowLayout {
    /// Makes the placement of a device.
    pub fn new(geometry: &RecordGeometry) -> RowLayout {
        let (donors, block_bytes) = (u64::from(geometry.members), u64::from(geometry.block_bytes));
        let (is_ring, zones) = (geometry.code == RedundancyCode::Mirror, geometry.zones());
        RowLayout {
            is_ring,
            zones,
            donors,
            members: if is_ring || zones.is_some() { 1 } else { donors.saturating_sub(1).max(1) },
            chunk_blocks: (u64::from(geometry.chunk_bytes()) / block_bytes).max(1),
            block_bytes,
            stripes: geometry.stripes(),
            blocks: geometry.blocks(),
        }
    }

    /// Returns the number of the parity among the members, which is the number of data members; without redundancy, no
    /// donor has it.
    pub fn parity(&self) -> usize {
        self.members as usize
    }

    /// Returns the numbers of the members that donors have.
    pub fn all_members(&self) -> Range<usize> {
        0..self.parity() + usize::from(self.has_parity())
    }

    /// Whether a stripe has a parity, which may be a copy.
    pub fn has_parity(&self) -> bool {
        self.zones.is_none()
    }

    /// Whether each member of a stripe is the same data: a mirror, or no redundancy.
    pub fn is_copied(&self) -> bool {
        self.members == 1
    }

    /// Returns all columns of the device. The last stripe ends with the device if its members are copies.
    pub fn columns(&self) -> u64 {
        if self.is_copied() { self.blocks } else { self.stripes * self.chunk_blocks }
    }

    /// Returns the columns of a stripe.
    pub fn columns_of(&self, stripe: u64) -> Range<u64> {
        stripe * self.chunk_blocks..((stripe + 1) * self.chunk_blocks).min(self.columns())
    }

    fn first_donor(&self, stripe: u64) -> u64 {
        let turn = stripe % self.donors;
        if self.is_ring { turn } else { (self.donors - turn) % self.donors }
    }

    /// Returns the zone of a stripe, its row there and its donor.
    fn zoned(&self, zones: &RowZones, stripe: u64) -> Option<(usize, u64, Donor)> {
        let (at, row, turn) = zones.locate(stripe)?;
        Some((at, row, zones.iter().nth(at)?.donor(turn)?))
    }

    /// Returns the donor of a member; the number of the parity is [`Self::parity`].
    pub fn donor(&self, stripe: u64, member: usize) -> Donor {
        if let Some(zones) = &self.zones {
            return self.zoned(zones, stripe).map_or(0, |(_, _, donor)| donor);
        }
        ((self.first_donor(stripe) + member as u64) % self.donors) as Donor
    }

    /// Returns the member of a stripe that a donor has.
    pub fn member(&self, stripe: u64, donor: Donor) -> Option<usize> {
        if self.zones.is_some() {
            return (self.donor(stripe, 0) == donor).then_some(0);
        }
        let member = (donor as u64 + self.donors - self.first_donor(stripe)) % self.donors;
        ((donor as u64) < self.donors && member <= self.members).then_some(member as usize)
    }

    /// Whether a donor has a part of a stripe.
    pub fn is_on(&self, stripe: u64, donor: Donor) -> bool {
        self.member(stripe, donor).is_some()
    }

    /// Returns the donors of the members of a stripe, in their order.
    pub fn donors(&self, stripe: u64) -> impl Iterator<Item = Donor> + '_ {
        self.all_members().map(move |member| self.donor(stripe, member))
    }

    /// Returns the donors that store the dirty mark of a stripe. Without redundancy there are no marks.
    pub fn markers(&self, stripe: u64) -> Option<[Donor; 2]> {
        self.has_parity().then(|| [self.donor(stripe, self.parity()), self.donor(stripe, 0)])
    }

    /// Returns the offset of a member's block in a column on the donor that has it. *Units*: bytes.
    pub fn offset(&self, column: u64, member: usize) -> u64 {
        let (stripe, inside) = (column / self.chunk_blocks, column % self.chunk_blocks);
        let chunk = match &self.zones {
            Some(zones) => self.zoned(zones, stripe).map_or(0, |(at, row, donor)| {
                let earlier = zones.iter().take(at).filter(|zone| zone.has(donor));
                earlier.map(|zone| u64::from(zone.rows)).sum::<u64>() + row
            }),
            None if self.is_ring => stripe / self.donors * (self.members + 1) + member as u64,
            None => stripe,
        };
        (chunk * self.chunk_blocks + inside) * self.block_bytes
    }

    /// Returns the memory that the device needs on a donor. *Units*: bytes.
    pub fn donor_bytes(&self, donor: Donor) -> u64 {
        let chunks = match &self.zones {
            Some(zones) => zones.stripes_on(donor),
            None if self.is_ring => self.stripes.div_ceil(self.donors) * (self.members + 1),
            None => self.stripes,
        };
        chunks * self.chunk_blocks * self.block_bytes
    }

    fn stripe_blocks(&self) -> u64 {
        self.chunk_blocks * self.members
    }

    /// Returns the stripe of a column.
    pub fn stripe(&self, column: u64) -> u64 {
        column / self.chunk_blocks
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

    /// Returns the columns that a range of blocks may touch. Within one chunk these are exactly its columns.
    pub(super) fn locked(&self, blocks: &Range<u64>) -> Range<u64> {
        if blocks.is_empty() {
            return 0..0;
        }
        if self.is_copied() {
            return blocks.clone();
        }
        let last = blocks.end - 1;
        if blocks.start / self.chunk_blocks == last / self.chunk_blocks {
            return self.column(blocks.start)..self.column(last) + 1;
        }
        let stripes = blocks.start / self.stripe_blocks()..last / self.stripe_blocks() + 1;
        stripes.start * self.chunk_blocks..stripes.end * self.chunk_blocks
    }

    /// Cuts a range of blocks at the ends of chunks.
    pub(super) fn chunks(&self, blocks: &Range<u64>) -> Vec<ParityRow> {
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
    pub(super) fn rows(&self, blocks: &Range<u64>) -> Vec<ParityRow> {
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn layout(code: RedundancyCode, members: u16, chunk_blocks: u32, blocks: u64) -> RowLayout {
        let data_members = if code == RedundancyCode::Parity { u32::from(members - 1) } else { 1 };
        let stripe_bytes = chunk_blocks * 16 * data_members;
        let bytes = blocks * 16;
        RowLayout::new(&RecordGeometry { device: [0; 16], bytes, block_bytes: 16, stripe_bytes, members, code })
    }

    /// The members of a stripe are on different donors, no two share a byte, and the parity rotates over the donors.
    #[test]
    fn stripe_members_use_different_donors() {
        let mirrors = (2..6).map(|members| layout(RedundancyCode::Mirror, members, 4, 211));
        let parities = (3..6).map(|members| layout(RedundancyCode::Parity, members, 4, 211));
        let plain = [&[53][..], &[27, 27], &[3, 40, 10], &[1, 2, 50, 0]].map(|stripes| {
            let zones = RowZones::of(stripes).unwrap().grown(&vec![1; stripes.len()]).unwrap();
            layout(RedundancyCode::None(zones), stripes.len() as u16, 4, 211)
        });
        for rows in mirrors.chain(parities).chain(plain) {
            let (mut parities, all) = (HashSet::new(), rows.all_members());
            for stripe in 0..rows.stripes {
                let donors: HashSet<Donor> = rows.donors(stripe).collect();
                assert_eq!(donors.len(), all.len());
                all.clone()
                    .for_each(|member| assert_eq!(rows.member(stripe, rows.donor(stripe, member)), Some(member)));
                assert_eq!((0..8).filter(|donor| rows.is_on(stripe, *donor)).count(), all.len());
                if let Some([parity, first]) = rows.markers(stripe) {
                    parities.insert(parity);
                    assert_ne!(parity, first);
                }
            }
            assert_eq!(parities.len() as u64, if rows.has_parity() { rows.donors } else { 0 });
            for block in 0..211 {
                assert_eq!(rows.block(rows.column(block), rows.member_of(block)), block);
            }
            let mut used = HashSet::new();
            for column in 0..rows.columns() {
                for member in all.clone() {
                    let (donor, offset) = (rows.donor(rows.stripe(column), member), rows.offset(column, member));
                    assert!(used.insert((donor, offset)) && offset + 16 <= rows.donor_bytes(donor));
                }
            }
        }
    }

    /// A row has each of its members wholly or not at all.
    #[test]
    fn rows_cover_blocks_once() {
        let rows = layout(RedundancyCode::Parity, 5, 4, 48);
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
