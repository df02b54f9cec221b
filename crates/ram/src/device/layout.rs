//! The division of a device among donors, without redundancy: pure arithmetic.
//!
//! Owns: the donors' shares, computed from their capacities, and the place of each byte that follows from the shares
//! (`docs/formats/ram.md`). The units of the device go to the donors in turn; a full donor is omitted from later rows.
//! What a growth adds is behind this, in further rows. A contiguous range of the device is contiguous on each donor,
//! too.

use std::ops::Range;

use super::label::UNIT_BYTES;

/// A range of rows on the same donors.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RowZone {
    /// The start of the zone in the device, in bytes.
    start: u64,
    rows: u64,
    donors: Vec<usize>,
    /// The bytes that each donor of the device has before this zone.
    before: Vec<u64>,
}

/// The layout of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShareLayout {
    shares: Vec<u64>,
    zones: Vec<RowZone>,
}

/// The part of a range on one donor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DonorPart {
    pub donor: usize,
    /// The offset of the part in the donor's data, in bytes.
    pub place: u64,
    pub length: u64,
    /// The pieces of the request that form this part, in order; empty if the caller does not need them.
    pub pieces: Vec<Range<usize>>,
}

/// Divides `size_bytes` among donors, as evenly as their capacities allow. Returns `None` if the capacities are too
/// small together, or if a donor would get nothing. *Units*: bytes; the shares are whole units.
pub(super) fn shares(size_bytes: u64, capacities: &[u64]) -> Option<Vec<u64>> {
    more_shares(size_bytes, capacities).filter(|shares| shares.iter().all(|&share| share > 0))
}

/// The same for what a growth adds, of which donors may get nothing.
pub(super) fn more_shares(size_bytes: u64, capacities: &[u64]) -> Option<Vec<u64>> {
    let mut order: Vec<usize> = (0..capacities.len()).collect();
    order.sort_by_key(|&donor| capacities[donor]);
    let mut left = size_bytes.div_ceil(UNIT_BYTES);
    let mut shares = vec![0; capacities.len()];
    for (index, &donor) in order.iter().enumerate() {
        let level = left.div_ceil((order.len() - index) as u64);
        let units = level.min(capacities[donor] / UNIT_BYTES);
        shares[donor] = units * UNIT_BYTES;
        left -= units;
    }
    (left == 0).then_some(shares)
}

impl ShareLayout {
    /// Makes the layout for these shares, which must be whole units. `formers` are the shares before each growth.
    pub fn new(formers: &[Vec<u64>], shares: &[u64]) -> ShareLayout {
        let mut layout = ShareLayout { shares: vec![0; shares.len()], zones: Vec::new() };
        formers.iter().for_each(|former| layout.grow(former));
        layout.grow(shares);
        layout
    }

    /// Adds the zones for what the donors have more.
    fn grow(&mut self, shares: &[u64]) {
        let former = std::mem::replace(&mut self.shares, shares.to_vec());
        let added: Vec<u64> = shares.iter().zip(&former).map(|(share, former)| (share - former) / UNIT_BYTES).collect();
        let mut levels: Vec<u64> = added.iter().copied().filter(|&level| level > 0).collect();
        levels.sort_unstable();
        levels.dedup();
        let (mut start, mut row) = (former.iter().sum(), 0);
        for level in levels {
            let donors: Vec<usize> = (0..shares.len()).filter(|donor| added[*donor] >= level).collect();
            let rows = level - row;
            let bytes = rows * UNIT_BYTES * donors.len() as u64;
            let before =
                former.iter().zip(&added).map(|(former, added)| former + row.min(*added) * UNIT_BYTES).collect();
            self.zones.push(RowZone { start, rows, donors, before });
            (start, row) = (start + bytes, level);
        }
    }

    /// Returns the zone of an offset inside the device.
    fn zone(&self, offset: u64) -> Option<&RowZone> {
        let after = self.zones.partition_point(|zone| zone.start <= offset);
        self.zones.get(after.checked_sub(1)?)
    }

    /// Returns the donor of an offset, the offset on that donor, and the number of bytes left in the unit.
    pub fn locate(&self, offset: u64) -> Option<(usize, u64, u64)> {
        let zone = self.zone(offset)?;
        let (unit, inside) = ((offset - zone.start) / UNIT_BYTES, offset % UNIT_BYTES);
        let (row, turn) = (unit / zone.donors.len() as u64, unit % zone.donors.len() as u64);
        let donor = zone.donors[turn as usize];
        Some((donor, zone.before[donor] + row * UNIT_BYTES + inside, UNIT_BYTES - inside))
    }

    /// Returns the number of bytes that a donor has of the device before a position.
    fn before(&self, donor: usize, position: u64) -> u64 {
        let Some(zone) = self.zone(position) else { return 0 };
        let Some(turn) = zone.donors.iter().position(|&other| other == donor) else { return zone.before[donor] };
        let row_bytes = UNIT_BYTES * zone.donors.len() as u64;
        let (row, inside) = ((position - zone.start) / row_bytes, (position - zone.start) % row_bytes);
        let place = row * UNIT_BYTES + inside.saturating_sub(turn as u64 * UNIT_BYTES).min(UNIT_BYTES);
        zone.before[donor] + place.min(zone.rows * UNIT_BYTES)
    }

    /// Returns the part of a range on each donor, without pieces; donors without a part are omitted.
    pub fn ranges(&self, offset: u64, length: u64) -> Vec<DonorPart> {
        let part = |donor: usize| {
            let place = self.before(donor, offset);
            DonorPart { donor, place, length: self.before(donor, offset + length) - place, pieces: Vec::new() }
        };
        (0..self.shares.len()).map(part).filter(|part| part.length > 0).collect()
    }

    /// Returns the part of a range on each donor, with the pieces of the request.
    pub fn parts(&self, offset: u64, length: usize) -> Vec<DonorPart> {
        let mut parts: Vec<DonorPart> = Vec::new();
        let mut done = 0;
        while done < length {
            let Some((donor, place, left)) = self.locate(offset + done as u64) else { break };
            let count = left.min((length - done) as u64) as usize;
            let piece = done..done + count;
            match parts.iter_mut().find(|part| part.donor == donor) {
                Some(part) => {
                    part.length += count as u64;
                    match part.pieces.last_mut() {
                        Some(last) if last.end == piece.start => last.end = piece.end,
                        _ => part.pieces.push(piece),
                    }
                }
                None => parts.push(DonorPart { donor, place, length: count as u64, pieces: vec![piece] }),
            }
            done += count;
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: u64 = UNIT_BYTES;

    #[test]
    fn shares_follow_donor_capacity() {
        for (units, capacities, expected) in [
            (9, &[10, 10, 10][..], Some(vec![3, 3, 3])),
            (10, &[10, 10, 10], Some(vec![4, 3, 3])),
            (10, &[1, 9], Some(vec![1, 9])),
            (10, &[1, 8], None),
            (10, &[2, 100, 5], Some(vec![2, 4, 4])),
            (2, &[5, 5, 5], None),
            (1, &[0, 5], None),
            (10, &[10], Some(vec![10])),
        ] {
            let capacities: Vec<u64> = capacities.iter().map(|units| units * UNIT + 4095).collect();
            let found = shares(units * UNIT, &capacities);
            let found = found.map(|shares| shares.iter().map(|share| share / UNIT).collect::<Vec<_>>());
            assert_eq!(found, expected, "{units} over {capacities:?}");
        }
        assert_eq!(shares(UNIT + 4096, &[UNIT, UNIT]), Some(vec![UNIT, UNIT]));
    }

    /// A range is contiguous on each donor, and growing moves nothing.
    #[test]
    fn each_byte_has_one_place() {
        let sizes: [&[&[u64]]; 6] = [
            &[&[3, 3, 3]],
            &[&[1, 4, 2]],
            &[&[5]],
            &[&[2, 7, 7, 1]],
            &[&[3, 4, 3], &[5, 4, 4]],
            &[&[1, 2], &[1, 3], &[4, 3]],
        ];
        for sizes in sizes {
            let in_bytes = |units: &&[u64]| units.iter().map(|units| units * UNIT).collect::<Vec<u64>>();
            let mut formers: Vec<Vec<u64>> = sizes.iter().map(in_bytes).collect();
            let units = sizes[sizes.len() - 1];
            let shares = formers.pop().unwrap();
            let layout = ShareLayout::new(&formers, &shares);
            // Growing moves nothing.
            for (count, former) in formers.iter().enumerate() {
                let before = ShareLayout::new(&formers[..count], former);
                for unit in 0..former.iter().sum::<u64>() / UNIT {
                    assert_eq!(before.locate(unit * UNIT), layout.locate(unit * UNIT), "{sizes:?}: unit {unit}");
                }
            }
            let total: u64 = shares.iter().sum();
            let mut seen: Vec<Vec<bool>> = units.iter().map(|&units| vec![false; units as usize]).collect();
            for unit in 0..total / UNIT {
                let (donor, place, left) = layout.locate(unit * UNIT).unwrap();
                assert_eq!((place % UNIT, left), (0, UNIT));
                assert!(!std::mem::replace(&mut seen[donor][(place / UNIT) as usize], true), "{units:?}: unit {unit}");
            }
            assert!(seen.iter().flatten().all(|&seen| seen), "{units:?}");
            for offset in (0..total).step_by(UNIT as usize / 2) {
                for length in (0..=total - offset).step_by(UNIT as usize / 2) {
                    let parts = layout.parts(offset, length as usize);
                    let mut without = parts.clone();
                    without.iter_mut().for_each(|part| part.pieces.clear());
                    without.sort_by_key(|part| part.donor);
                    assert_eq!(layout.ranges(offset, length), without, "{units:?}: {length} at {offset}");
                    let bytes: usize = parts.iter().flat_map(|part| &part.pieces).map(ExactSizeIterator::len).sum();
                    assert_eq!(bytes as u64, length);
                }
            }
        }
    }
}
