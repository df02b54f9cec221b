//! The parts of a request without redundancy, by donor: pure arithmetic.
//!
//! Owns: dividing a device among donors by their free memory, and the part of a range on each donor (`docs/formats/ram.md`).
//! A contiguous range of the device is contiguous on each donor, too, so it is one request to each. Leaves to others: the
//! zones (`format`).

use std::ops::Range;

use crate::format::{RecordGeometry, RowZones};

/// Rows on the same donors.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ZonePlace {
    /// The start of the zone in the device, in bytes.
    start: u64,
    rows: u64,
    donors: Vec<usize>,
    /// The bytes that each donor of the device has before this zone.
    before: Vec<u64>,
}

/// The parts of a device on its donors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceParts {
    unit_bytes: u64,
    donors: usize,
    zones: Vec<ZonePlace>,
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

/// Divides so many stripes among donors, as evenly as their capacities allow. Returns `None` if the capacities are too
/// small together, or if a donor would get nothing. *Units*: stripes.
pub fn shares(stripes: u64, capacities: &[u64]) -> Option<Vec<u32>> {
    more_shares(stripes, capacities).filter(|shares| shares.iter().all(|&share| share > 0))
}

/// The same for what a growth adds, of which donors may get nothing.
pub fn more_shares(stripes: u64, capacities: &[u64]) -> Option<Vec<u32>> {
    let mut order: Vec<usize> = (0..capacities.len()).collect();
    order.sort_by_key(|&donor| capacities[donor]);
    let mut left = stripes;
    let mut shares = vec![0; capacities.len()];
    for (index, &donor) in order.iter().enumerate() {
        let level = left.div_ceil((order.len() - index) as u64);
        let count = level.min(capacities[donor]);
        shares[donor] = u32::try_from(count).ok()?;
        left -= count;
    }
    (left == 0).then_some(shares)
}

impl DeviceParts {
    /// Returns the parts of a device with these zones.
    pub fn new(geometry: &RecordGeometry, zones: &RowZones) -> DeviceParts {
        let (unit_bytes, donors) = (u64::from(geometry.stripe_bytes), usize::from(geometry.members));
        let (mut start, mut before) = (0, vec![0; donors]);
        let mut list = Vec::new();
        for zone in zones.iter() {
            let rows = u64::from(zone.rows);
            let of_zone: Vec<usize> = (0..donors).filter(|donor| zone.has(*donor)).collect();
            let after = before.iter().enumerate().map(|(donor, before)| before + rows * unit_bytes * u64::from(zone.has(donor)));
            let after = after.collect();
            list.push(ZonePlace { start, rows, donors: of_zone, before: std::mem::replace(&mut before, after) });
            start += zone.stripes() * unit_bytes;
        }
        DeviceParts { unit_bytes, donors, zones: list }
    }

    /// Returns the zone of an offset inside the device.
    fn zone(&self, offset: u64) -> Option<&ZonePlace> {
        let after = self.zones.partition_point(|zone| zone.start <= offset);
        self.zones.get(after.checked_sub(1)?)
    }

    /// Returns the donor of an offset, the offset on that donor, and the number of bytes left in the unit.
    pub fn locate(&self, offset: u64) -> Option<(usize, u64, u64)> {
        let zone = self.zone(offset)?;
        let (unit, inside) = ((offset - zone.start) / self.unit_bytes, offset % self.unit_bytes);
        let (row, turn) = (unit / zone.donors.len() as u64, unit % zone.donors.len() as u64);
        let donor = zone.donors[turn as usize];
        Some((donor, zone.before[donor] + row * self.unit_bytes + inside, self.unit_bytes - inside))
    }

    /// Returns the number of bytes that a donor has of the device before a position.
    fn before(&self, donor: usize, position: u64) -> u64 {
        let Some(zone) = self.zone(position) else { return 0 };
        let Some(turn) = zone.donors.iter().position(|&other| other == donor) else { return zone.before[donor] };
        let row_bytes = self.unit_bytes * zone.donors.len() as u64;
        let (row, inside) = ((position - zone.start) / row_bytes, (position - zone.start) % row_bytes);
        let place = row * self.unit_bytes + inside.saturating_sub(turn as u64 * self.unit_bytes).min(self.unit_bytes);
        zone.before[donor] + place.min(zone.rows * self.unit_bytes)
    }

    /// Returns the part of a range on each donor, without pieces; donors without a part are omitted.
    pub fn ranges(&self, offset: u64, length: u64) -> Vec<DonorPart> {
        let part = |donor: usize| {
            let place = self.before(donor, offset);
            DonorPart { donor, place, length: self.before(donor, offset + length) - place, pieces: Vec::new() }
        };
        (0..self.donors).map(part).filter(|part| part.length > 0).collect()
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
    use crate::format::RedundancyCode;

    const UNIT: u64 = 64 << 10;

    fn parts_of(zones: &RowZones, members: usize) -> DeviceParts {
        let geometry = RecordGeometry {
            device: [1; 16],
            bytes: zones.stripes() * UNIT,
            block_bytes: 4096,
            stripe_bytes: UNIT as u32,
            members: members as u16,
            code: RedundancyCode::None(*zones),
        };
        geometry.check().unwrap();
        DeviceParts::new(&geometry, zones)
    }

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
            assert_eq!(shares(units, capacities), expected, "{units} over {capacities:?}");
        }
    }

    /// A range is contiguous on each donor, and growing moves nothing. The machine has each block at the same place.
    #[test]
    fn each_byte_has_one_place() {
        let sizes: [&[&[u32]]; 6] = [
            &[&[3, 3, 3]],
            &[&[1, 4, 2]],
            &[&[5]],
            &[&[2, 7, 7, 1]],
            &[&[3, 4, 3], &[2, 0, 1]],
            &[&[1, 2], &[0, 1], &[3, 0]],
        ];
        for sizes in sizes {
            let count = sizes[0].len();
            let mut zones = RowZones::default();
            let mut formers: Vec<DeviceParts> = Vec::new();
            for size in sizes {
                zones = zones.grown(size).unwrap();
                formers.push(parts_of(&zones, count));
            }
            let layout = formers.last().unwrap().clone();
            // Growing moves nothing.
            let mut units_before = 0;
            for (before, size) in formers.iter().zip(sizes) {
                units_before += size.iter().map(|units| u64::from(*units)).sum::<u64>();
                for unit in 0..units_before {
                    assert_eq!(before.locate(unit * UNIT), layout.locate(unit * UNIT), "{sizes:?}: unit {unit}");
                }
            }
            let total = zones.stripes() * UNIT;
            let geometry = RecordGeometry {
                device: [1; 16],
                bytes: total,
                block_bytes: 4096,
                stripe_bytes: UNIT as u32,
                members: count as u16,
                code: RedundancyCode::None(zones),
            };
            let rows = crate::in_place::RowLayout::new(&geometry);
            for block in 0..total / 4096 {
                let (donor, place, _) = layout.locate(block * 4096).unwrap();
                assert_eq!((donor, place), (rows.donor(rows.stripe(block), 0), rows.offset(block, 0)), "{block}");
            }
            for offset in (0..total).step_by(UNIT as usize / 2) {
                for length in (0..=total - offset).step_by(UNIT as usize / 2) {
                    let parts = layout.parts(offset, length as usize);
                    let mut without = parts.clone();
                    without.iter_mut().for_each(|part| part.pieces.clear());
                    without.sort_by_key(|part| part.donor);
                    assert_eq!(layout.ranges(offset, length), without, "{sizes:?}: {length} at {offset}");
                    let bytes: usize = parts.iter().flat_map(|part| &part.pieces).map(ExactSizeIterator::len).sum();
                    assert_eq!(bytes as u64, length);
                }
            }
        }
    }
}
