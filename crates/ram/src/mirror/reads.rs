//! Reads: which copy is asked, and when the answer may be given.
//!
//! Owns: the choice of the copy, the second request when the first is late, the comparison with the checksum, and the
//! proof that no other client has the device. Promises: if the checksum of a block is known, bytes that do not match it
//! are never returned.

use bytes::Bytes;

use super::error::MirrorError;
use super::event::{Donor, DonorRequest, Moment, RequestId};
use super::layout::StripeCopy;
use super::link::{LinkState, OutstandingPurpose};
use super::machine::MirrorMachine;
use super::membership::DonorStanding;
use super::operation::{CopyReason, MirrorOperation, MirrorWork, PieceRequest, StripePiece};

/// The length of the read that asks a donor whether this client still has the device. *Units*: bytes.
const PING_BYTES: u64 = 16;

impl MirrorMachine {
    pub(super) fn drive_read(&mut self, number: u64, mut operation: MirrorOperation) {
        let mut at = 0;
        while at < operation.pieces.len() {
            let piece = &mut operation.pieces[at];
            let asked = match self.configuration.geometry.is_parity() {
                true => self.ask_piece(number, piece, at),
                false => self.ask(number, piece, at, None),
            };
            match asked {
                Ok(()) => at += 1,
                // Each copy may be wrong in different blocks, so the range is read again block by block.
                Err(MirrorError::Corrupt { .. }) if operation.split(at) => {}
                Err(error) => return self.finish(number, operation, Err(error)),
            }
        }
        let Some(data) = operation.data() else {
            self.operations.insert(number, operation);
            return;
        };
        if !self.has_proof() {
            if self.held.insert(number) {
                self.figures.held_reads += 1;
            }
            self.operations.insert(number, operation);
            self.ping_all();
            return;
        }
        if let Some(block) = self.lost_in(&operation) {
            return self.finish(number, operation, Err(MirrorError::Lost { block }));
        }
        for piece in &operation.pieces {
            self.repair_wrong_blocks(piece);
        }
        self.finish(number, operation, Ok(data));
    }

    /// Whether no other client can have begun to change the device by now.
    pub(super) fn has_proof(&self) -> bool {
        let lease_us = self.configuration.times.lease_us;
        let is_proven = |proof_us: Option<Moment>| proof_us.is_some_and(|proof_us| proof_us + lease_us > self.now_us);
        let is_proof = |donor: &Donor| {
            self.membership.standing[*donor] == DonorStanding::Trusted && is_proven(self.links[*donor].proof_us)
        };
        (0..self.links.len()).filter(is_proof).count() >= self.proofs_needed()
    }

    /// Returns how many donors must have confirmed that this client has the device.
    pub(super) fn proofs_needed(&self) -> usize {
        let is_whole = self.membership.standing.iter().all(|standing| *standing == DonorStanding::Trusted);
        let is_leaving = self.membership.standing.contains(&DonorStanding::Leaving);
        if is_whole || is_leaving { 2 } else { 1 }
    }

    /// Asks a donor whether this client still has the device: a donor refuses reads of a client that was replaced.
    pub(super) fn ping(&mut self, donor: Donor) {
        self.send(donor, OutstandingPurpose::Ping, DonorRequest::Read { offset: 0, bytes: PING_BYTES });
    }

    /// Asks every claimed donor, unless the question is in progress.
    pub(super) fn ping_all(&mut self) {
        for donor in 0..self.links.len() {
            if self.links[donor].state == LinkState::Claimed && self.links[donor].ping_us().is_none() {
                self.ping(donor);
            }
        }
    }

    /// Requests a piece that has no data yet from a copy, or from a second one if the first is late.
    ///
    /// *Errors*: no copy is left that could have the data.
    pub(super) fn ask(
        &mut self,
        number: u64,
        piece: &mut StripePiece,
        at: usize,
        except: Option<Donor>,
    ) -> Result<(), MirrorError> {
        let suspect_us = self.configuration.times.suspect_us;
        let is_late = |asked: &PieceRequest| asked.sent_us + suspect_us <= self.now_us;
        if piece.data.is_some() || !piece.asked.iter().all(is_late) {
            return Ok(());
        }
        let places = self.ring.places(piece.stripe);
        let may_have = |place: &&StripeCopy| {
            Some(place.donor) != except
                && self.is_readable(place.donor, piece.stripe)
                && !piece.wrong.contains(&place.donor)
        };
        if !places.iter().any(|place| may_have(&place)) {
            let block = piece.blocks.start;
            return Err(match piece.wrong.is_empty() {
                true => MirrorError::Lost { block },
                false => MirrorError::Corrupt { block },
            });
        }
        let is_free = |place: &&StripeCopy| {
            self.links[place.donor].state == LinkState::Claimed
                && !piece.asked.iter().any(|asked| asked.donor == place.donor)
        };
        let load = |place: &&StripeCopy| {
            let link = &self.links[place.donor];
            (self.late_us(place.donor) >= suspect_us, link.outstanding.len())
        };
        let Some(place) = places.iter().filter(may_have).filter(is_free).min_by_key(load).copied() else {
            return Ok(());
        };
        let offset = self.offset(place, piece);
        let bytes = (piece.blocks.end - piece.blocks.start) * u64::from(self.configuration.geometry.block_bytes);
        if !piece.asked.is_empty() {
            self.figures.hedged += 1;
        }
        let purpose = OutstandingPurpose::Piece { operation: number, piece: at };
        let request = self.send(place.donor, purpose, DonorRequest::Read { offset, bytes });
        piece.asked.push(PieceRequest { donor: place.donor, request, sent_us: self.now_us });
        Ok(())
    }

    /// Returns the offset of a piece on a donor.
    pub(super) fn offset(&self, place: StripeCopy, piece: &StripePiece) -> u64 {
        let geometry = &self.configuration.geometry;
        let inside = piece.blocks.start - piece.stripe * geometry.stripe_blocks();
        place.offset + inside * u64::from(geometry.block_bytes)
    }

    /// Returns the offset of a piece on a donor that has it.
    pub(super) fn offset_on(&self, donor: Donor, piece: &StripePiece) -> Option<u64> {
        if self.configuration.geometry.is_parity() {
            return Some(self.rows.offset(self.columns(piece).start));
        }
        let place = self.ring.places(piece.stripe).into_iter().find(|place| place.donor == donor)?;
        Some(self.offset(place, piece))
    }

    pub(super) fn piece_read(&mut self, number: u64, at: usize, donor: Donor, request: RequestId, data: Bytes) {
        if self.configuration.geometry.is_parity() {
            return self.member_read(number, at, donor, request, data);
        }
        let Some(operation) = self.operations.get_mut(&number) else {
            self.figures.late_replies += 1;
            return;
        };
        let piece = &mut operation.pieces[at];
        if !piece.answered(request) {
            self.figures.late_replies += 1;
            return;
        }
        let bytes = (piece.blocks.end - piece.blocks.start) * u64::from(self.configuration.geometry.block_bytes);
        // The scrub compares the bytes itself.
        let is_right = matches!(operation.work, MirrorWork::Scrub) || self.checksums.fits(piece.blocks.start, &data);
        if data.len() as u64 == bytes && is_right {
            piece.data = Some(data);
        } else {
            let (stripe, work) = (piece.stripe, operation.work.clone());
            piece.wrong.push(donor);
            piece.doubted.insert(donor, data);
            self.note_wrong(donor, stripe, &work);
        }
        self.ready.insert(number);
    }

    /// Counts a wrong answer. A rebuild asks again and again for a stripe whose only source is wrong; that counts once.
    pub(super) fn note_wrong(&mut self, donor: Donor, stripe: u64, work: &MirrorWork) {
        let is_rebuild = matches!(work, MirrorWork::Copy { why: CopyReason::Rebuild, .. });
        if is_rebuild && self.is_known_to_be_wrong(stripe) {
            return;
        }
        self.figures.lies += 1;
        self.links[donor].troubles += 1;
    }
}
