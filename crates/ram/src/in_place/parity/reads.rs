//! A user's read: a member from its donor, or from all others.
//!
//! Owns: the choice between both. Promises: a read never waits for one late donor if the others answer.

use crate::group::DeviceError;
use crate::in_place::machine::InPlaceMachine;
use crate::in_place::operation::{PieceRequest, StripePiece};

impl InPlaceMachine {
    /// Requests the member of a piece that has no data yet, or all other members if it is late, wrong or missing.
    ///
    /// *Errors*: neither can be read.
    pub(in crate::in_place) fn ask_piece(
        &mut self,
        number: u64,
        piece: &mut StripePiece,
        at: usize,
    ) -> Result<(), DeviceError> {
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
}
