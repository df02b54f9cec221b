//! The placement of stripes: their donors, and the offsets there.
//!
//! Owns: the trait of a policy, and the ring of the mirror (`parity/rows`: that of parity in place). Promises: the two copies
//! of a stripe are on different donors, and no two stripes share a byte of a donor.
//!
//! The ring: stripe `s` of `D` donors is on donor `s % D` and on the following donor. Row `s / D` of a donor has two
//! slots: the even one for the stripe whose first copy is on this donor, the odd one for the second copy of the
//! previous donor's stripe. So if one of more than two donors is lost, two others share its load.

use super::parity::rows::ParityLayout;
use crate::format::RecordGeometry;
use crate::group::Donor;

/// One copy of a stripe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StripeCopy {
    /// The donor that has it.
    pub donor: Donor,
    /// The offset of the copy on that donor. *Units*: bytes.
    pub offset: u64,
}

/// The placement of a device's stripes under a policy.
pub trait StripeLayout {
    /// Returns the donors that store the dirty mark of a stripe.
    fn markers(&self, stripe: u64) -> [Donor; 2];
    /// Whether a donor has a part of a stripe.
    fn is_on(&self, stripe: u64, donor: Donor) -> bool;
    /// Returns the memory that the device needs on each donor. *Units*: bytes.
    fn donor_bytes(&self) -> u64;
}

/// Returns the donors that store the dirty mark of a stripe.
pub(super) fn markers(geometry: &RecordGeometry, stripe: u64) -> [Donor; 2] {
    match geometry.is_parity() {
        true => ParityLayout::new(geometry).markers(stripe),
        false => MirrorRing::new(geometry).markers(stripe),
    }
}

/// The ring of the mirror.
#[derive(Debug, Clone, Copy)]
pub struct MirrorRing {
    donors: u64,
    stripe_bytes: u64,
    stripes: u64,
}

impl MirrorRing {
    /// Makes the ring of a device.
    pub fn new(geometry: &RecordGeometry) -> MirrorRing {
        MirrorRing {
            donors: u64::from(geometry.members),
            stripe_bytes: u64::from(geometry.stripe_bytes),
            stripes: geometry.stripes(),
        }
    }

    /// Returns the copies of a stripe, the preferred one first.
    pub fn places(&self, stripe: u64) -> [StripeCopy; 2] {
        let (row, column) = (stripe / self.donors, stripe % self.donors);
        let place =
            |donor: u64, slot: u64| StripeCopy { donor: donor as Donor, offset: (2 * row + slot) * self.stripe_bytes };
        [place(column, 0), place((column + 1) % self.donors, 1)]
    }
}

impl StripeLayout for MirrorRing {
    fn markers(&self, stripe: u64) -> [Donor; 2] {
        self.places(stripe).map(|place| place.donor)
    }

    fn is_on(&self, stripe: u64, donor: Donor) -> bool {
        self.markers(stripe).contains(&donor)
    }

    fn donor_bytes(&self) -> u64 {
        2 * self.stripes.div_ceil(self.donors) * self.stripe_bytes
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::format::RedundancyCode;

    /// The two copies of a stripe are on different donors, and no two stripes share a byte.
    #[test]
    fn stripe_copies_do_not_overlap() {
        for members in 2..6 {
            let geometry = RecordGeometry {
                device: [0; 16],
                bytes: 31 * 64,
                block_bytes: 16,
                stripe_bytes: 64,
                members,
                code: RedundancyCode::Mirror,
            };
            let ring = MirrorRing::new(&geometry);
            let mut used = HashSet::new();
            for stripe in 0..geometry.stripes() {
                let places = ring.places(stripe);
                assert_ne!(places[0].donor, places[1].donor);
                for place in places {
                    assert!(ring.is_on(stripe, place.donor) && place.offset + 64 <= ring.donor_bytes());
                    assert!(used.insert((place.donor, place.offset)));
                }
            }
        }
    }
}
