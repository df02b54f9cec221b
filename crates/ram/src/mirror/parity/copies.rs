//! Copies that the machine makes of a member: the parity after a crash, everything of a donor that is filled, and wrong
//! bytes.
//!
//! Owns: what a copy is computed from. Promises: no other operation uses its columns meanwhile; afterwards the members
//! yield each other. What a missing donor had of a stripe that a crash left unfinished becomes lost.

use super::lost::lost_bytes;
use super::members::{Access, xor_into};
use crate::mirror::event::Donor;
use crate::mirror::machine::Machine;
use crate::mirror::membership::Standing;
use crate::mirror::operation::{Piece, Why};
use crate::planted::{Bug, planted};

/// What a copy of a member is computed from.
enum Sources {
    /// Reads are in progress, or a donor's standing is not decided.
    Wait,
    /// All other members, with one that is lost.
    All { lost: Option<usize> },
    /// Too few members can be read.
    TooFew,
}

impl Machine {
    /// Returns the donor whose copy of a stripe is written after a crash of the client; `None`: nothing is to be done.
    pub(in crate::mirror) fn resync_to(&self, stripe: u64) -> Option<Donor> {
        let is_trusted = |donor: &Donor| self.membership.standing[*donor] == Standing::Trusted;
        if !self.configuration.geometry.is_parity() {
            let donors = self.ring.places(stripe).map(|place| place.donor);
            return donors.iter().all(is_trusted).then_some(donors[1]);
        }
        let is_whole = self.membership.standing.iter().all(|standing| *standing == Standing::Trusted);
        if planted(Bug::UnfinishedBelieved) && !is_whole {
            return None;
        }
        Some(self.rows.donor(stripe, self.rows.parity())).filter(is_trusted)
    }

    /// Requests what a copy to a donor is computed from, and computes it.
    /// *Returns* whether enough members can be read.
    pub(in crate::mirror) fn ask_copy_of_member(
        &mut self,
        number: u64,
        piece: &mut Piece,
        to: Donor,
        why: Why,
    ) -> bool {
        if piece.data.is_some() {
            return true;
        }
        let member = self.rows.member(piece.stripe, to);
        let lost = match self.sources(number, piece, member, why) {
            Sources::Wait => return true,
            Sources::TooFew => return false,
            Sources::All { lost } => lost,
        };
        let mut sum = self.sum(piece, member);
        if let Some(lost) = lost {
            let bytes = self.lost_member(piece, lost);
            self.figures.lost_blocks += bytes.len() as u64 / u64::from(self.configuration.geometry.block_bytes);
            xor_into(&mut sum, &bytes);
        }
        if !self.fits(piece, member, &sum) {
            return false;
        }
        piece.data = Some(sum.into());
        true
    }

    fn sources(&mut self, number: u64, piece: &mut Piece, member: usize, why: Why) -> Sources {
        let others: Vec<usize> = (0..=self.rows.parity()).filter(|other| *other != member).collect();
        let missing: Vec<usize> = others.iter().copied().filter(|other| !piece.read.contains_key(other)).collect();
        let is_gone = |other: &usize| self.access(piece.stripe, *other) == Access::Gone;
        let is_unsettled = |other: &usize| self.access(piece.stripe, *other) == Access::Unsettled;
        let gone: Vec<usize> = missing.iter().copied().filter(is_gone).collect();
        let is_wrong = |other: &usize| piece.wrong.contains(&self.rows.donor(piece.stripe, *other));
        let may_lose = why == Why::Resync && member == self.rows.parity();
        if missing.iter().any(is_wrong) || gone.len() > usize::from(may_lose) {
            return Sources::TooFew;
        }
        if missing.iter().any(is_unsettled) {
            return Sources::Wait;
        }
        if missing.len() == gone.len() {
            return Sources::All { lost: gone.first().copied() };
        }
        for other in missing.into_iter().filter(|other| !gone.contains(other)) {
            self.ask_member(number, piece, 0, other);
        }
        Sources::Wait
    }

    /// Returns the bytes that stand for a lost member of a piece. Behind the end of the device nothing is lost: these
    /// bytes stay zeroes, as the blocks that the device gets when it grows.
    fn lost_member(&self, piece: &Piece, member: usize) -> Vec<u8> {
        let geometry = &self.configuration.geometry;
        let blocks = self.columns(piece).map(|column| self.rows.block(column, member));
        let blocks = blocks.take_while(|block| *block < geometry.blocks());
        blocks.flat_map(|block| lost_bytes(&geometry.device, block, geometry.block_bytes as usize)).collect()
    }

    /// Returns the blocks by which copies and the scrub name all columns of a stripe: those of its first member.
    pub(in crate::mirror) fn first_member(&self, stripe: u64) -> std::ops::Range<u64> {
        let geometry = &self.configuration.geometry;
        let first = stripe * geometry.stripe_blocks();
        first..first + u64::from(geometry.chunk_bytes() / geometry.block_bytes)
    }
}
