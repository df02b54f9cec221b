//! Which copies of a stripe may be read, and which have to be changed.
//!
//! Owns: these two questions, and when an operation waits in vain. Leaves to others: which donors are trusted (`group`).

use super::machine::InPlaceMachine;
use super::operation::{InPlaceOperation, InPlaceWork};
use crate::group::{Donor, DonorStanding, Moment};

impl InPlaceMachine {
    /// Whether a donor has a copy of a stripe to which every change must be sent.
    pub fn is_target(&self, donor: Donor, stripe: u64) -> bool {
        match self.group.standing()[donor] {
            DonorStanding::Trusted | DonorStanding::Leaving => true,
            DonorStanding::Rebuilding => self.is_copied(donor, stripe),
            DonorStanding::Out | DonorStanding::Lost => false,
        }
    }

    /// Whether a donor has a copy of a stripe that may be read because its bytes are correct.
    pub fn is_readable(&self, donor: Donor, stripe: u64) -> bool {
        let is_served = matches!(self.group.standing()[donor], DonorStanding::Trusted | DonorStanding::Rebuilding);
        is_served && !self.group.is_empty(donor) && self.is_target(donor, stripe)
    }

    pub(super) fn is_copied(&self, donor: Donor, stripe: u64) -> bool {
        self.rebuild.as_ref().is_some_and(|rebuild| rebuild.donor == donor && rebuild.copied.has(stripe))
    }

    /// Whether a donor has a part of a stripe.
    pub(super) fn is_on(&self, stripe: u64, donor: Donor) -> bool {
        self.rows.is_on(stripe, donor)
    }

    /// Whether a stripe is marked as dirty, or will be.
    pub fn is_dirty(&self, stripe: u64) -> bool {
        self.group.marked().has(stripe)
    }

    /// Returns how long a mark stays after the last change. With parity and without a donor, a crash of the client
    /// would lose what that donor had of marked stripes, so a mark is removed soon.
    pub(super) fn clean_us(&self) -> Moment {
        match self.rows.is_copied() || self.group.is_whole() {
            true => self.group.times().clean_us,
            false => 0,
        }
    }

    /// Whether an operation of the user cannot go on without a donor that is waited for in vain.
    pub(super) fn is_in_vain(&self, operation: &InPlaceOperation) -> bool {
        if !self.group.has_absent() || operation.user.is_none() {
            return false;
        }
        let donors = self.group.standing().len();
        let is_absent = |donor: Donor| self.group.is_absent(donor);
        if operation.work.is_change() {
            let needs = |stripe: u64, donor: Donor| {
                is_absent(donor) && self.is_on(stripe, donor) && self.is_target(donor, stripe)
            };
            return operation.pieces.iter().any(|piece| (0..donors).any(|donor| needs(piece.stripe, donor)));
        }
        if !matches!(operation.work, InPlaceWork::Read) {
            return false;
        }
        let serves = |donor: Donor, stripe: u64| self.is_readable(donor, stripe) && !is_absent(donor);
        let is_beyond = |at: usize| {
            let piece = &operation.pieces[at];
            let of_stripe = || (0..donors).filter(|donor| self.is_on(piece.stripe, *donor));
            if piece.data.is_some() {
                return false;
            }
            let own = self.rows.donor(piece.stripe, piece.members.start);
            let has_others = self.rows.has_parity();
            !serves(own, piece.stripe)
                && (!has_others || of_stripe().any(|donor| donor != own && !serves(donor, piece.stripe)))
        };
        self.group.is_unprovable() || (0..operation.pieces.len()).any(is_beyond)
    }
}
