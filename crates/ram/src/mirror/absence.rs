//! Donors that are waited for in vain: requests that need them fail at once.
//!
//! Owns: this rule. A donor that the device needs, and that cannot be left because another one is missing already, is
//! waited for as long as `patience`, counted from its loss and not again for each request. When it answers, requests
//! wait for it again.

use super::event::Donor;
use super::machine::{MirrorMachine, MirrorPhase};
use super::membership::DonorStanding;
use super::operation::{MirrorOperation, MirrorWork};

impl MirrorMachine {
    /// Finds the donors that are waited for in vain.
    pub(super) fn note_absent(&mut self) {
        let patience_us = self.patience_us();
        let is_served =
            matches!(self.phase, MirrorPhase::Open | MirrorPhase::Detaching) && self.now_us >= self.lenient_until_us;
        let is_absent = |donor: Donor| {
            let is_needed = matches!(self.membership.standing[donor], DonorStanding::Trusted | DonorStanding::Leaving);
            is_served && is_needed && self.late_us(donor) >= patience_us
        };
        let absent: Vec<bool> = (0..self.links.len()).map(is_absent).collect();
        if absent == self.absent {
            return;
        }
        self.has_absent = absent.contains(&true);
        self.absent = absent;
        self.ready.extend(self.operations.keys().copied());
    }

    /// Whether a donor is waited for in vain.
    pub(crate) fn is_absent(&self, donor: Donor) -> bool {
        self.has_absent && self.absent[donor]
    }

    /// Whether two donors are missing or waited for in vain, so that no parity helps.
    pub(crate) fn has_lost_two(&self) -> bool {
        let is_missing =
            |donor: &Donor| self.membership.standing[*donor] != DonorStanding::Trusted || self.absent[*donor];
        self.has_absent && (0..self.links.len()).filter(is_missing).count() >= 2
    }

    /// Whether an operation of the user cannot go on without a donor that is waited for in vain.
    pub(super) fn is_in_vain(&self, operation: &MirrorOperation) -> bool {
        if !self.has_absent || operation.user.is_none() {
            return false;
        }
        if operation.work.is_change() {
            let needs = |stripe: u64, donor: Donor| {
                self.absent[donor] && self.is_on(stripe, donor) && self.is_target(donor, stripe)
            };
            let all = 0..self.links.len();
            return operation.pieces.iter().any(|piece| all.clone().any(|donor| needs(piece.stripe, donor)));
        }
        if !matches!(operation.work, MirrorWork::Read) {
            return false;
        }
        let serves = |donor: Donor, stripe: u64| self.is_readable(donor, stripe) && !self.absent[donor];
        let is_beyond = |at: usize| {
            let piece = &operation.pieces[at];
            let of_stripe = || (0..self.links.len()).filter(|donor| self.is_on(piece.stripe, *donor));
            if piece.data.is_some() {
                return false;
            }
            if !self.configuration.geometry.is_parity() {
                return !of_stripe().any(|donor| serves(donor, piece.stripe));
            }
            let own = self.rows.donor(piece.stripe, piece.members.start);
            !serves(own, piece.stripe) && of_stripe().any(|donor| donor != own && !serves(donor, piece.stripe))
        };
        let can_prove =
            |donor: &Donor| self.membership.standing[*donor] == DonorStanding::Trusted && !self.absent[*donor];
        let is_unproven = !self.has_proof() && (0..self.links.len()).filter(can_prove).count() < self.proofs_needed();
        is_unproven || (0..operation.pieces.len()).any(is_beyond)
    }
}
