//! The machine as the base of another one: it attaches, fences, keeps leases and the view and takes donors back, while
//! another machine handles the device's blocks.
//!
//! Owns: requests of the machine above (`log`), which use the same connections and the same deadlines.
//! Promises: each request is reported once: as done, with its data, or as dropped with its connection. A dropped
//! request may have been executed, but takes no effect after the donor is claimed again. Leaves to others: when a donor
//! that is taken back has all its data; the machine above says so.

use bytes::Bytes;

use super::event::{Donor, DonorRequest, Moment};
use super::link::{LinkState, MirrorLink, OutstandingPurpose};
use super::machine::MirrorMachine;
use super::membership::DonorStanding;

/// The outcome of a request of the machine above.
#[derive(Debug)]
pub(crate) enum BaseRequestOutcome {
    /// The request is done.
    Done { tag: u64 },
    /// The request read this data.
    Data { tag: u64, data: Bytes },
    /// The connection ended before the answer.
    Dropped { tag: u64 },
}

impl MirrorMachine {
    /// Whether this client owns the donor on the present connection, so that requests can be sent.
    pub(crate) fn is_claimed(&self, donor: Donor) -> bool {
        self.links[donor].state == LinkState::Claimed && !self.links[donor].is_empty
    }

    /// Sends a request of the machine above to a claimed donor.
    pub(crate) fn send_outside(&mut self, donor: Donor, tag: u64, body: DonorRequest) {
        self.send(donor, OutstandingPurpose::Outside { tag }, body);
    }

    /// Takes the outcomes of requests since the last call, in the order in which they happened.
    pub(crate) fn take_outside(&mut self) -> Vec<BaseRequestOutcome> {
        std::mem::take(&mut self.outside)
    }

    /// Whether no other client can have begun to change the device before `began_us`, because a donor has confirmed
    /// this since. Answers from the client's memory need this proof: a donor refuses requests of a client that was
    /// replaced, but the memory cannot.
    pub(crate) fn is_proven_since(&self, began_us: Moment) -> bool {
        let is_fresh = |(donor, link): (usize, &MirrorLink)| {
            let is_trusted = self.membership.standing[donor] == DonorStanding::Trusted;
            is_trusted && link.proof_us.is_some_and(|proof_us| proof_us >= began_us)
        };
        self.has_proof() && self.links.iter().enumerate().any(is_fresh)
    }

    /// Asks one donor whether this client still has the device, unless such a question is in progress; asks the next one
    /// if the answer is late, and all donors if their last answers are too old.
    pub(crate) fn prove_again(&mut self) {
        if !self.has_proof() {
            return self.ping_all();
        }
        let suspect_us = self.configuration.times.suspect_us;
        for donor in 0..self.links.len() {
            let link = &self.links[donor];
            if link.state != LinkState::Claimed || self.membership.standing[donor] != DonorStanding::Trusted {
                continue;
            }
            match link.ping_us() {
                None => return self.ping(donor),
                Some(sent_us) if self.now_us < sent_us + suspect_us => return,
                Some(_) => {}
            }
        }
    }

    /// Whether a donor is so late with an answer that another donor should be asked.
    pub(crate) fn is_suspect(&self, donor: Donor) -> bool {
        self.late_us(donor) >= self.configuration.times.suspect_us
    }

    /// Notes that a donor returned wrong bytes.
    pub(crate) fn trouble(&mut self, donor: Donor) {
        self.figures.lies += 1;
        self.links[donor].troubles += 1;
    }

    /// Notes that a donor which was taken back has all its data; it is trusted once the others have stored that.
    pub(crate) fn filled(&mut self, donor: Donor) {
        if let Some(rebuild) = self.membership.rebuild.as_mut().filter(|rebuild| rebuild.donor == donor) {
            rebuild.is_filled = true;
        }
    }

    /// Returns the generation of this client.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }
}
