//! Names of the donors of a running device: their addresses, their numbers, and the SPEC that names them.
//!
//! Owns: the present SPEC, which differs from the one as given after a donor was replaced. Promises: the number of a
//! donor is its place in the present SPEC, from 1. Leaves to others: when a donor is replaced (`replacing`).

use super::device_owner::{DeviceOwner, OwnerCommand};
use super::moving::{MoveError, MoveErrorKind};
use crate::device::RamOptions;
use crate::device::address::DonorAddress;
use crate::group::Donor;

impl DeviceOwner {
    /// The positions of all donors, in the order of the SPEC.
    fn in_order(&self) -> Vec<Donor> {
        let mut order: Vec<Donor> = (0..self.peers.len()).collect();
        order.sort_by_key(|donor| self.places[*donor]);
        order
    }

    /// Notes that the device has other donors, or other spares: numbers them, and makes the SPEC that names them.
    pub(super) fn rename(&mut self) {
        let order = self.in_order();
        order.iter().enumerate().for_each(|(place, donor)| self.places[*donor] = place);
        let is_member = |spare: &&DonorAddress| self.peers.iter().any(|peer| peer.target.address.text == spare.text);
        let named = |address: &DonorAddress, is_spare: bool| DonorAddress { is_spare, ..address.clone() };
        let donors = order.iter().map(|donor| named(&self.peers[*donor].target.address, false)).collect();
        let spares =
            self.spares.list.iter().filter(|spare| !is_member(spare)).map(|spare| named(spare, true)).collect();
        self.spec = RamOptions { donors, spares, ..self.options.clone() }.spec().into();
    }

    /// The position of a donor by its address or number in the SPEC.
    ///
    /// *Errors*: the device has no such donor; the error names those that it has.
    pub(super) fn position(&self, name: &str) -> Result<Donor, MoveError> {
        let by_name = self.peers.iter().position(|peer| peer.target.address.text == name);
        let number = name.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
        let found = by_name.or_else(|| self.places.iter().position(|place| Some(*place) == number));
        found.ok_or_else(|| {
            let all: Vec<String> = self.in_order().into_iter().map(|donor| self.with_number(donor)).collect();
            let why = format!("{name} is no donor of the device; its donors are {}", all.join(", "));
            MoveError::new(MoveErrorKind::NoSuchDonor, why)
        })
    }

    /// A donor's number and address.
    fn with_number(&self, donor: Donor) -> String {
        format!("{} ({})", self.places[donor] + 1, self.peers[donor].target.address.text)
    }

    /// *Errors*: a donor that could take a place has one already.
    pub(super) fn check_is_new(&self, new: &DonorAddress) -> Result<(), MoveError> {
        let found = self.peers.iter().position(|peer| peer.target.address.text == new.text);
        found.map_or(Ok(()), |donor| {
            let why = format!("{} is donor {} of the device already", new.text, self.places[donor] + 1);
            Err(MoveError::new(MoveErrorKind::Unsuitable, why))
        })
    }

    /// Answers which spares may take the place of a donor.
    pub(super) fn answer_spares(&self, command: OwnerCommand) {
        let OwnerCommand::Spares { old, reply } = command else { return };
        let spares = &self.spares;
        let answer = self.position(&old).map(|at| (spares.list.clone(), spares.used.clone(), self.donor_bytes[at]));
        let _ = reply.send(answer);
    }
}
