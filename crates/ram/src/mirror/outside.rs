//! The machine as the base of another one: attaching, fencing, leases, the view and taking donors in again, for a
//! device whose blocks another machine handles.
//!
//! Owns: requests of the machine above (`log`), which travel on the same connections and count for the same deadlines.
//! Promises: each one is reported once: as done, with its data, or as dropped with its connection. A dropped one may
//! have been executed, but takes no effect after the donor is claimed again. Leaves to others: when a donor that is
//! taken in again is filled; the machine above says that.

use bytes::Bytes;

use super::event::{Donor, DonorRequest, Moment};
use super::link::{Link, LinkState, Purpose};
use super::machine::Machine;
use super::membership::Standing;

/// What became of a request of the machine above.
#[derive(Debug)]
pub(crate) enum Outside {
    /// It is done.
    Done { tag: u64 },
    /// It read this.
    Data { tag: u64, data: Bytes },
    /// Its connection ended before.
    Dropped { tag: u64 },
}

impl Machine {
    /// Whether a donor can be asked.
    pub(crate) fn is_claimed(&self, donor: Donor) -> bool {
        self.links[donor].state == LinkState::Claimed && !self.links[donor].is_empty
    }

    /// Sends a request of the machine above to a donor that is claimed.
    pub(crate) fn send_outside(&mut self, donor: Donor, tag: u64, body: DonorRequest) {
        self.send(donor, Purpose::Outside { tag }, body);
    }

    /// What became of requests since the last call, in the order in which it happened.
    pub(crate) fn take_outside(&mut self) -> Vec<Outside> {
        std::mem::take(&mut self.outside)
    }

    /// Whether no other client can have begun to change the device, as one donor has confirmed since `began_us`.
    /// Answers from the client's memory need this: a donor refuses requests of a client that was replaced, the memory
    /// does not.
    pub(crate) fn is_proven_since(&self, began_us: Moment) -> bool {
        let is_fresh = |(donor, link): (usize, &Link)| {
            let is_trusted = self.membership.standing[donor] == Standing::Trusted;
            is_trusted && link.proof_us.is_some_and(|proof_us| proof_us >= began_us)
        };
        self.has_proof() && self.links.iter().enumerate().any(is_fresh)
    }

    /// Asks every donor whether this client still has the device, unless that is under way.
    pub(crate) fn prove_again(&mut self) {
        for donor in 0..self.links.len() {
            if self.links[donor].state == LinkState::Claimed && !self.links[donor].has_ping() {
                self.send(donor, Purpose::Ping, DonorRequest::ReadMetadata);
            }
        }
    }

    /// Whether a donor is so late with an answer that another one should be asked.
    pub(crate) fn is_suspect(&self, donor: Donor) -> bool {
        self.links[donor].late_us(self.now_us) >= self.configuration.times.suspect_us
    }

    /// A donor gave wrong bytes.
    pub(crate) fn trouble(&mut self, donor: Donor) {
        self.figures.lies += 1;
        self.links[donor].troubles += 1;
    }

    /// A donor that was taken in again has everything; it is trusted once the others have stored that.
    pub(crate) fn filled(&mut self, donor: Donor) {
        if let Some(rebuild) = self.membership.rebuild.as_mut().filter(|rebuild| rebuild.donor == donor) {
            rebuild.is_filled = true;
        }
    }

    /// The generation of this client.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }
}
