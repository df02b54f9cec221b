//! Donors that are waited for in vain: requests that need them fail at once.
//!
//! Owns: this rule. A donor that the device needs, and that cannot be left because another one is missing already, is
//! waited for as long as `patience`, counted from its loss and not again for each request. When it answers, requests
//! wait for it again.

use super::event::Donor;
use super::machine::{GroupMachine, GroupPhase};
use super::standing::DonorStanding;

impl GroupMachine {
    /// Finds the donors that are waited for in vain.
    pub(super) fn note_absent(&mut self) {
        let patience_us = self.patience_us();
        let is_served =
            matches!(self.phase, GroupPhase::Open | GroupPhase::Detaching) && self.now_us >= self.lenient_until_us;
        let is_absent = |donor: Donor| {
            let is_needed = matches!(self.membership.standing[donor], DonorStanding::Trusted | DonorStanding::Leaving);
            is_served && is_needed && self.late_us(donor) >= patience_us
        };
        let absent: Vec<bool> = (0..self.links.len()).map(is_absent).collect();
        if absent != self.absent {
            self.absent = absent;
            self.has_more = true;
        }
    }

    /// Whether any donor is waited for in vain.
    pub(crate) fn has_absent(&self) -> bool {
        self.absent.contains(&true)
    }

    /// Whether a donor is waited for in vain.
    pub(crate) fn is_absent(&self, donor: Donor) -> bool {
        self.absent[donor]
    }

    /// Whether no proof can come that this client has the device, because of donors that are waited for in vain.
    pub(crate) fn is_unprovable(&self) -> bool {
        let can_prove =
            |donor: &Donor| self.membership.standing[*donor] == DonorStanding::Trusted && !self.absent[*donor];
        !self.has_proof() && (0..self.links.len()).filter(can_prove).count() < self.proofs_needed()
    }

    /// Whether two donors are missing or waited for in vain, so that no parity helps.
    pub(crate) fn has_lost_two(&self) -> bool {
        let is_missing =
            |donor: &Donor| self.membership.standing[*donor] != DonorStanding::Trusted || self.absent[*donor];
        self.has_absent() && (0..self.links.len()).filter(is_missing).count() >= 2
    }
}
