//! The members of a stripe: what may be used of them, and reading them.
//!
//! Owns: requests for members, the comparison with the checksums, and XOR. Promises: bytes of a member that do not
//! match its known checksum are never used. Leaves to others: which members are needed.

use std::ops::Range;

use bytes::Bytes;

use super::layout::ParityRow;
use super::lost::is_lost;
use super::machine::{InPlaceMachine, InPlaceRequest};
use super::operation::{CopyReason, InPlaceOperation, InPlaceWork, PieceRequest, StripePiece};
use crate::group::{Donor, DonorRequest, RequestId};
use crate::planted::{MirrorBug, planted};

/// What may be done with a member of a stripe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MemberAccess {
    /// It can be read, and every change must reach it.
    Ready,
    /// Its donor is being left, or has just lost its memory: wait for the decision.
    Unsettled,
    /// Its donor does not have it.
    Gone,
}

/// Adds bytes to a sum; bytes that are missing at the end are zeroes.
pub(super) fn xor_into(sum: &mut [u8], bytes: &[u8]) {
    sum.iter_mut().zip(bytes).for_each(|(sum, byte)| *sum ^= byte);
}

impl InPlaceMachine {
    /// Whether the device has parity that is changed in place; otherwise it is a mirror.
    pub fn is_parity(&self) -> bool {
        self.group.geometry().is_parity()
    }

    /// Cuts an operation of the user for the device's placement; returns the range that it locks.
    pub(super) fn cut(&self, operation: &mut InPlaceOperation) -> Range<u64> {
        let rows = match operation.work.is_change() {
            true => self.rows.rows(&operation.blocks),
            false => self.rows.chunks(&operation.blocks),
        };
        let piece = |row: ParityRow| StripePiece {
            stripe: row.stripe,
            blocks: row.blocks,
            members: row.members,
            ..StripePiece::default()
        };
        operation.pieces = rows.into_iter().map(piece).collect();
        match planted(MirrorBug::ColumnsUnlocked) && operation.work.is_change() {
            true => operation.blocks.clone(),
            false => self.rows.locked(&operation.blocks),
        }
    }

    /// Returns what may be done with a member of a stripe.
    pub(super) fn access(&self, stripe: u64, member: usize) -> MemberAccess {
        if !self.rows.all_members().contains(&member) {
            return MemberAccess::Gone;
        }
        let donor = self.rows.donor(stripe, member);
        match (self.is_readable(donor, stripe), self.is_target(donor, stripe)) {
            (true, _) => MemberAccess::Ready,
            (false, true) => MemberAccess::Unsettled,
            (false, false) => MemberAccess::Gone,
        }
    }

    /// Whether a member may be read: its donor has it, and did not return wrong bytes.
    pub(super) fn may_read(&self, piece: &StripePiece, member: usize) -> bool {
        let donor = self.rows.donor(piece.stripe, member);
        self.is_readable(donor, piece.stripe) && !piece.wrong.contains(&donor)
    }

    /// Whether a member was read, or may be read.
    pub(super) fn may_use(&self, piece: &StripePiece, member: usize) -> bool {
        piece.read.contains_key(&member) || self.may_read(piece, member)
    }

    /// Returns the columns of a piece.
    pub(super) fn columns(&self, piece: &StripePiece) -> Range<u64> {
        let first = self.rows.column(piece.blocks.start);
        first..first + (piece.blocks.end - piece.blocks.start)
    }

    /// Returns the length of a piece of one member. *Units*: bytes.
    pub(super) fn piece_bytes(&self, piece: &StripePiece) -> u64 {
        (piece.blocks.end - piece.blocks.start) * u64::from(self.group.geometry().block_bytes)
    }

    /// Returns the place of a member's block among the checksums: those of the parity follow those of the data. The
    /// copies of a block have one.
    pub(super) fn checksum_at(&self, column: u64, member: usize) -> u64 {
        match member == self.rows.parity() {
            _ if self.rows.is_copied() => column,
            true => self.rows.columns() * self.rows.parity() as u64 + column,
            false => self.rows.block(column, member),
        }
    }

    /// Whether a wrong member would be detected in a column.
    pub fn knows_member(&self, column: u64, member: usize) -> bool {
        self.checksums.knows(self.checksum_at(column, member))
    }

    /// Whether bytes of a member match all checksums that are known.
    pub(super) fn fits(&self, piece: &StripePiece, member: usize, data: &[u8]) -> bool {
        self.checksums.fits(self.checksum_at(self.columns(piece).start, member), data)
    }

    /// Requests a member of a piece, unless that was done or its donor does not serve this client now. *Returns*
    /// whether a request was sent.
    pub(super) fn ask_member(&mut self, number: u64, piece: &mut StripePiece, at: usize, member: usize) -> bool {
        let donor = self.rows.donor(piece.stripe, member);
        let is_asked = piece.asked.iter().any(|asked| asked.donor == donor);
        if piece.read.contains_key(&member) || is_asked || !self.group.is_claimed(donor) {
            return false;
        }
        let offset = self.rows.offset(self.columns(piece).start, member);
        let body = DonorRequest::Read { offset, bytes: self.piece_bytes(piece) };
        let request = self.ask_donor(donor, InPlaceRequest::Piece { operation: number, piece: at, donor }, body);
        piece.asked.push(PieceRequest { donor, request, sent_us: self.group.now_us() });
        true
    }

    /// Handles the bytes of a member.
    pub(super) fn member_read(&mut self, number: u64, at: usize, donor: Donor, request: RequestId, data: Bytes) {
        let Some(mut operation) = self.operations.remove(&number) else { return self.group.note_late_reply() };
        let piece = &mut operation.pieces[at];
        match self.rows.member(piece.stripe, donor).filter(|_| piece.answered(request)) {
            None => self.group.note_late_reply(),
            Some(member) => {
                // The scrub compares the bytes itself.
                let is_right = matches!(operation.work, InPlaceWork::Scrub) || self.fits(piece, member, &data);
                if data.len() as u64 == self.piece_bytes(piece) && is_right {
                    piece.read.insert(member, data);
                } else {
                    let (stripe, work) = (piece.stripe, operation.work.clone());
                    piece.wrong.push(donor);
                    piece.doubted.insert(donor, data);
                    self.note_wrong(donor, stripe, &work);
                }
                self.ready.insert(number);
            }
        }
        self.operations.insert(number, operation);
    }

    /// Counts a wrong answer. A rebuild asks again and again for a stripe whose only source is wrong; that counts once.
    fn note_wrong(&mut self, donor: Donor, stripe: u64, work: &InPlaceWork) {
        let is_rebuild = matches!(work, InPlaceWork::Copy { why: CopyReason::Rebuild, .. });
        if !is_rebuild || !self.is_known_to_be_wrong(stripe) {
            self.group.trouble(donor);
        }
    }

    /// Returns the XOR of everything that was read, except of one member.
    pub(super) fn sum(&self, piece: &StripePiece, except: usize) -> Vec<u8> {
        let mut sum = vec![0; self.piece_bytes(piece) as usize];
        piece.read.iter().filter(|(member, _)| **member != except).for_each(|(_, data)| xor_into(&mut sum, data));
        sum
    }

    /// Returns the first lost block of a user's read.
    pub(super) fn lost_in(&self, operation: &InPlaceOperation) -> Option<u64> {
        let geometry = &self.group.geometry();
        let is_lost = |(block, bytes): &(u64, &[u8])| is_lost(&geometry.device, *block, bytes);
        let size = geometry.block_bytes as usize;
        let lost = |piece: &StripePiece| {
            let data = piece.data.as_ref()?;
            piece.blocks.clone().zip(data.chunks(size)).find(is_lost).map(|(block, _)| block)
        };
        operation.pieces.iter().find_map(lost)
    }
}
