//! The part of a record that only devices without redundancy have: which donors their rows are on.
//!
//! Owns: the zones, their limits and their encoding. Promises: zones that pass `check` have every donor of the device in
//! at least one row. Leaves to others: dividing a device among donors (`device`), and the place of a byte (`in_place`).
//!
//! A *row* is one stripe on each of several donors. A *zone* is a number of rows on the same donors. Donors with little
//! memory are only in the first zones. A device that grows gets rows behind those that it has, so nothing moves.

use super::FormatError;
use super::bytes::FieldReader;

/// The maximum number of zones of a device.
pub const ZONES_MAX: usize = 16;
/// The length of this part in a record, in bytes.
pub const ZONES_BYTES: usize = 16 * ZONES_MAX;

/// Rows on the same donors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RowZone {
    /// Bit `d`: donor `d` has a stripe of each of these rows.
    pub donors: u64,
    /// The number of rows.
    pub rows: u32,
}

impl RowZone {
    /// Returns the number of donors of a row.
    pub fn width(&self) -> u64 {
        u64::from(self.donors.count_ones())
    }

    /// Whether a donor has a part of each row.
    pub fn has(&self, donor: usize) -> bool {
        donor < 64 && self.donors >> donor & 1 != 0
    }

    /// Returns the donor that has stripe `turn` of each row.
    pub fn donor(&self, turn: u64) -> Option<usize> {
        (0..64).filter(|donor| self.has(*donor)).nth(turn as usize)
    }

    /// Returns the number of stripes of all rows.
    pub fn stripes(&self) -> u64 {
        u64::from(self.rows) * self.width()
    }
}

/// The zones of a device, in its order, and empty ones behind them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RowZones([RowZone; ZONES_MAX]);

impl RowZones {
    /// Returns zones in which each donor has so many stripes.
    ///
    /// *Errors*: they are more than [`ZONES_MAX`], because the donors have too many different numbers.
    pub fn of(stripes: &[u32]) -> Result<RowZones, FormatError> {
        RowZones::default().grown(stripes)
    }

    /// Returns these zones with so many stripes more on each donor.
    ///
    /// *Errors*: as for [`Self::of`].
    pub fn grown(mut self, more: &[u32]) -> Result<RowZones, FormatError> {
        let mut levels: Vec<u32> = more.iter().copied().filter(|level| *level > 0).collect();
        levels.sort_unstable();
        levels.dedup();
        let mut row = 0;
        for level in levels {
            let with = |donor: usize| u64::from(more[donor] >= level) << donor;
            let zone = RowZone { donors: (0..more.len()).map(with).sum(), rows: level - row };
            row = level;
            self.push(zone)?;
        }
        Ok(self)
    }

    fn push(&mut self, zone: RowZone) -> Result<(), FormatError> {
        let count = self.iter().count();
        if let Some(last) = count.checked_sub(1).map(|last| &mut self.0[last])
            && last.donors == zone.donors
            && let Some(rows) = last.rows.checked_add(zone.rows)
        {
            last.rows = rows;
            return Ok(());
        }
        let place = self.0.get_mut(count);
        *place.ok_or(FormatError::Range { what: "zones", found: count as u64 + 1 })? = zone;
        Ok(())
    }

    /// Returns the zones, in the order of the device.
    pub fn iter(&self) -> impl Iterator<Item = &RowZone> {
        self.0.iter().take_while(|zone| zone.rows > 0)
    }

    /// Returns the number of stripes of all zones.
    pub fn stripes(&self) -> u64 {
        self.iter().map(RowZone::stripes).sum()
    }

    /// Returns the number of stripes that a donor has.
    pub fn stripes_on(&self, donor: usize) -> u64 {
        self.iter().filter(|zone| zone.has(donor)).map(|zone| u64::from(zone.rows)).sum()
    }

    /// Returns the zone, the row in it and the turn in the row of a stripe.
    pub fn locate(&self, stripe: u64) -> Option<(usize, u64, u64)> {
        let mut first = 0;
        for (at, zone) in self.iter().enumerate() {
            if stripe < first + zone.stripes() {
                let inside = stripe - first;
                return Some((at, inside / zone.width(), inside % zone.width()));
            }
            first += zone.stripes();
        }
        None
    }

    /// Whether a device with these zones has the other ones after it has grown.
    pub fn may_become(&self, after: &RowZones) -> bool {
        let Some(last) = self.iter().count().checked_sub(1) else { return false };
        let (mine, other) = (&self.0[last], &after.0[last]);
        self.0[..last] == after.0[..last] && mine.donors == other.donors && mine.rows <= other.rows
    }

    /// Checks the zones of a device of so many donors and stripes.
    ///
    /// *Errors*: [`FormatError::Range`].
    pub fn check(&self, donors: u16, stripes: u64) -> Result<(), FormatError> {
        let count = self.iter().count();
        let all = if donors < 64 { (1 << donors) - 1 } else { u64::MAX };
        let is_possible = |zone: &RowZone| zone.donors != 0 && zone.donors & !all == 0;
        let used = self.iter().fold(0, |used, zone| used | zone.donors);
        let is_clear = self.0[count..].iter().all(|zone| *zone == RowZone::default());
        match self.iter().all(is_possible) && used == all && is_clear && self.stripes() >= stripes {
            true => Ok(()),
            false => Err(FormatError::Range { what: "zones", found: count as u64 }),
        }
    }

    pub(super) fn encode(&self) -> [u8; ZONES_BYTES] {
        let mut bytes = [0; ZONES_BYTES];
        for (place, zone) in bytes.chunks_exact_mut(16).zip(&self.0) {
            place[..8].copy_from_slice(&zone.donors.to_le_bytes());
            place[8..12].copy_from_slice(&zone.rows.to_le_bytes());
        }
        bytes
    }

    pub(super) fn decode(fields: &mut FieldReader<'_>) -> Result<RowZones, FormatError> {
        let mut zones = RowZones::default();
        for zone in &mut zones.0 {
            *zone = RowZone { donors: fields.u64()?, rows: fields.u32()? };
            match fields.u32()? {
                0 => {}
                found => return Err(FormatError::Range { what: "zones", found: u64::from(found) }),
            }
        }
        Ok(zones)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn donors_with_less_are_in_first_rows() {
        let zones = RowZones::of(&[2, 5, 0, 5]).unwrap();
        let found: Vec<(u64, u32)> = zones.iter().map(|zone| (zone.donors, zone.rows)).collect();
        assert_eq!(found, [(0b1011, 2), (0b1010, 3)]);
        assert_eq!((zones.stripes(), zones.stripes_on(0), zones.stripes_on(3)), (12, 2, 5));
        let places: Vec<_> = (0..13).map(|stripe| zones.locate(stripe)).collect();
        assert_eq!(
            (places[5], places[6], places[11], places[12]),
            (Some((0, 1, 2)), Some((1, 0, 0)), Some((1, 2, 1)), None)
        );
        assert_eq!((zones.iter().next().unwrap().donor(2), zones.iter().next().unwrap().donor(3)), (Some(3), None));
        assert!(zones.check(4, 12).is_err(), "donor 2 has nothing");
        assert!(RowZones::of(&[2, 5]).unwrap().check(2, 8).is_err(), "too few stripes");
        let many: Vec<u32> = (1..=17).collect();
        assert_eq!(RowZones::of(&many), Err(FormatError::Range { what: "zones", found: 17 }));
        assert!(RowZones::of(&[1; 64]).unwrap().check(64, 64).is_ok());
    }

    /// A device that grows keeps its rows; more rows on the same donors need no further zone.
    #[test]
    fn grown_zones_keep_their_rows() {
        let before = RowZones::of(&[3, 4]).unwrap();
        let after = before.grown(&[0, 2]).unwrap().grown(&[1, 1]).unwrap();
        assert_eq!(after.iter().map(|zone| zone.rows).collect::<Vec<_>>(), [3, 3, 1]);
        assert!(before.may_become(&after) && !after.may_become(&before) && before.may_become(&before));
        for stripe in 0..before.stripes() {
            assert_eq!(before.locate(stripe), after.locate(stripe), "{stripe}");
        }
        assert!(!RowZones::of(&[4, 4]).unwrap().may_become(&after));
    }
}
