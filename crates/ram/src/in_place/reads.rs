//! Reads: which member is asked, and when the answer may be given.
//!
//! Owns: the choice of the copy, or between a member and all others; the second request when the first is late, and the
//! proof that no other client has the device. Promises: a read never waits for one late donor if the others answer.

use super::machine::InPlaceMachine;
use super::operation::{InPlaceOperation, PieceRequest, StripePiece};
use crate::group::{DeviceError, Donor};

impl InPlaceMachine {
    pub(super) fn drive_read(&mut self, number: u64, mut operation: InPlaceOperation) {
        let mut at = 0;
        while at < operation.pieces.len() {
            let piece = &mut operation.pieces[at];
            let asked = match self.rows.is_copied() {
                true => self.ask_either(number, piece, at),
                false => self.ask_piece(number, piece, at),
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

    /// Requests the member of a piece that has no data yet, or all other members if it is late, wrong or missing.
    ///
    /// *Errors*: neither can be read.
    pub(super) fn ask_piece(&mut self, number: u64, piece: &mut StripePiece, at: usize) -> Result<(), DeviceError> {
        if piece.data.is_some() {
            return Ok(());
        }
        let member = piece.members.start;
        let others: Vec<usize> = (0..=self.rows.parity()).filter(|other| *other != member).collect();
        if let Some(data) = piece.read.get(&member) {
            piece.data = Some(data.clone());
            return Ok(());
        }
        if !piece.is_unsolvable && others.iter().all(|other| piece.read.contains_key(other)) {
            let sum = self.sum(piece, member);
            if self.fits(piece, member, &sum) {
                piece.data = Some(sum.into());
                self.figures.reconstructed += 1;
                return Ok(());
            }
            piece.is_unsolvable = true;
        }
        let is_direct = self.may_read(piece, member);
        let may_solve = !piece.is_unsolvable && others.iter().all(|other| self.may_use(piece, *other));
        if !is_direct && !may_solve {
            let block = piece.blocks.start;
            return Err(match piece.wrong.is_empty() && !piece.is_unsolvable {
                true => DeviceError::Lost { block },
                false => DeviceError::Corrupt { block },
            });
        }
        let donor = self.rows.donor(piece.stripe, member);
        let suspect_us = self.group.times().suspect_us;
        let is_late = |asked: &PieceRequest| asked.donor == donor && asked.sent_us + suspect_us <= self.group.now_us();
        let is_slow = !self.group.is_claimed(donor) || self.group.is_suspect(donor);
        let needs_others = !is_direct || is_slow || piece.asked.iter().any(is_late);
        if is_direct {
            self.ask_member(number, piece, at, member);
        }
        if needs_others && may_solve {
            let is_hedged = piece.asked.iter().any(|asked| asked.donor == donor);
            let mut is_sent = false;
            for other in others {
                is_sent |= self.ask_member(number, piece, at, other);
            }
            self.figures.hedged += u64::from(is_hedged && is_sent);
        }
        Ok(())
    }

    /// Requests a piece that has no data yet from the copy with less to do, or from the other one of a mirror if the first
    /// is late.
    ///
    /// *Errors*: no copy is left that could have the data.
    fn ask_either(&mut self, number: u64, piece: &mut StripePiece, at: usize) -> Result<(), DeviceError> {
        let suspect_us = self.group.times().suspect_us;
        let is_late = |asked: &PieceRequest| asked.sent_us + suspect_us <= self.group.now_us();
        if piece.data.is_none() {
            piece.data = piece.read.values().next().cloned();
        }
        if piece.data.is_some() || !piece.asked.iter().all(is_late) {
            return Ok(());
        }
        let may_read: Vec<usize> = self.rows.all_members().filter(|member| self.may_read(piece, *member)).collect();
        if may_read.is_empty() {
            let block = piece.blocks.start;
            return Err(match piece.wrong.is_empty() {
                true => DeviceError::Lost { block },
                false => DeviceError::Corrupt { block },
            });
        }
        let donor = |member: usize| self.rows.donor(piece.stripe, member);
        let is_free = |member: &usize| {
            let donor = donor(*member);
            self.group.is_claimed(donor) && !piece.asked.iter().any(|asked| asked.donor == donor)
        };
        let load = |member: &usize| (self.group.is_suspect(donor(*member)), self.group.load(donor(*member)));
        if let Some(member) = may_read.into_iter().filter(is_free).min_by_key(load) {
            self.figures.hedged += u64::from(!piece.asked.is_empty());
            self.ask_member(number, piece, at, member);
        }
        Ok(())
    }

    /// Returns the offset of a piece on a donor that has it.
    pub(super) fn offset_on(&self, donor: Donor, piece: &StripePiece) -> Option<u64> {
        let member = self.rows.member(piece.stripe, donor)?;
        Some(self.rows.offset(self.columns(piece).start, member))
    }
}
