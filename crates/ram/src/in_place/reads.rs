//! Reads: which copy is asked, and when the answer may be given.
//!
//! Owns: the choice of the copy, the second request when the first is late, the comparison with the checksum, and the
//! proof that no other client has the device. Promises: if the checksum of a block is known, bytes that do not match it
//! are never returned.

use bytes::Bytes;

use super::layout::StripeCopy;
use super::machine::{InPlaceMachine, InPlaceRequest};
use super::operation::{CopyReason, InPlaceOperation, InPlaceWork, PieceRequest, StripePiece};
use crate::group::{DeviceError, Donor, DonorRequest, RequestId};

impl InPlaceMachine {
    pub(super) fn drive_read(&mut self, number: u64, mut operation: InPlaceOperation) {
        let mut at = 0;
        while at < operation.pieces.len() {
            let piece = &mut operation.pieces[at];
            let asked = match self.group.geometry().is_parity() {
                true => self.ask_piece(number, piece, at),
                false => self.ask(number, piece, at, None),
            };
            match asked {
                Ok(()) => at += 1,
                // Each copy may be wrong in different blocks, so the range is read again block by block.
                Err(DeviceError::Corrupt { .. }) if operation.split(at) => {}
                Err(error) => return self.finish(number, operation, Err(error)),
            }
        }
        let Some(data) = operation.data() else {
            self.operations.insert(number, operation);
            return;
        };
        if !self.group.has_proof() {
            if self.held.insert(number) {
                self.figures.held_reads += 1;
            }
            self.operations.insert(number, operation);
            self.group.ping_all();
            return;
        }
        if let Some(block) = self.lost_in(&operation) {
            return self.finish(number, operation, Err(DeviceError::Lost { block }));
        }
        for piece in &operation.pieces {
            self.repair_wrong_blocks(piece);
        }
        self.finish(number, operation, Ok(data));
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
    ) -> Result<(), DeviceError> {
        let suspect_us = self.group.times().suspect_us;
        let is_late = |asked: &PieceRequest| asked.sent_us + suspect_us <= self.group.now_us();
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
                true => DeviceError::Lost { block },
                false => DeviceError::Corrupt { block },
            });
        }
        let is_free = |place: &&StripeCopy| {
            self.group.is_claimed(place.donor) && !piece.asked.iter().any(|asked| asked.donor == place.donor)
        };
        let load = |place: &&StripeCopy| (self.group.is_suspect(place.donor), self.group.load(place.donor));
        let Some(place) = places.iter().filter(may_have).filter(is_free).min_by_key(load).copied() else {
            return Ok(());
        };
        let offset = self.offset(place, piece);
        let bytes = (piece.blocks.end - piece.blocks.start) * u64::from(self.group.geometry().block_bytes);
        if !piece.asked.is_empty() {
            self.figures.hedged += 1;
        }
        let purpose = InPlaceRequest::Piece { operation: number, piece: at, donor: place.donor };
        let request = self.ask_donor(place.donor, purpose, DonorRequest::Read { offset, bytes });
        piece.asked.push(PieceRequest { donor: place.donor, request, sent_us: self.group.now_us() });
        Ok(())
    }

    /// Returns the offset of a piece on a donor.
    pub(super) fn offset(&self, place: StripeCopy, piece: &StripePiece) -> u64 {
        let geometry = &self.group.geometry();
        let inside = piece.blocks.start - piece.stripe * geometry.stripe_blocks();
        place.offset + inside * u64::from(geometry.block_bytes)
    }

    /// Returns the offset of a piece on a donor that has it.
    pub(super) fn offset_on(&self, donor: Donor, piece: &StripePiece) -> Option<u64> {
        if self.group.geometry().is_parity() {
            return Some(self.rows.offset(self.columns(piece).start));
        }
        let place = self.ring.places(piece.stripe).into_iter().find(|place| place.donor == donor)?;
        Some(self.offset(place, piece))
    }

    pub(super) fn piece_read(&mut self, number: u64, at: usize, donor: Donor, request: RequestId, data: Bytes) {
        if self.group.geometry().is_parity() {
            return self.member_read(number, at, donor, request, data);
        }
        let Some(operation) = self.operations.get_mut(&number) else {
            self.group.note_late_reply();
            return;
        };
        let piece = &mut operation.pieces[at];
        if !piece.answered(request) {
            self.group.note_late_reply();
            return;
        }
        let bytes = (piece.blocks.end - piece.blocks.start) * u64::from(self.group.geometry().block_bytes);
        // The scrub compares the bytes itself.
        let is_right = matches!(operation.work, InPlaceWork::Scrub) || self.checksums.fits(piece.blocks.start, &data);
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
    pub(super) fn note_wrong(&mut self, donor: Donor, stripe: u64, work: &InPlaceWork) {
        let is_rebuild = matches!(work, InPlaceWork::Copy { why: CopyReason::Rebuild, .. });
        if is_rebuild && self.is_known_to_be_wrong(stripe) {
            return;
        }
        self.group.trouble(donor);
    }
}
