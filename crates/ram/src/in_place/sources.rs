//! What a copy of a member is computed from: the parity after a crash, everything of a donor that is filled, and wrong
//! bytes.
//!
//! Owns: these sources. Promises: no other operation uses its columns meanwhile; afterwards the members
//! yield each other. What a missing donor had of a stripe that a crash left unfinished becomes lost.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::lost::lost_bytes;
use super::machine::InPlaceMachine;
use super::members::{MemberAccess, xor_into};
use super::operation::{CopyReason, DonorPiece, InPlaceOperation, PartState, StripePiece};
use crate::group::{Donor, DonorStanding};
use crate::planted::{MirrorBug, planted};

/// What a copy of a member is computed from.
enum CopySources {
    /// Reads are in progress, or a donor's standing is not decided.
    Wait,
    /// All other members, with one that is lost.
    All { lost: Option<usize> },
    /// Too few members can be read.
    TooFew,
}

impl InPlaceMachine {
    /// Returns the donor whose copy of a stripe is written after a crash of the client; `None`: nothing is to be done.
    pub(super) fn resync_to(&self, stripe: u64) -> Option<Donor> {
        let is_trusted = |donor: &Donor| self.group.standing()[*donor] == DonorStanding::Trusted;
        let parity_donor = self.rows.donor(stripe, self.rows.parity());
        if self.rows.is_copied() {
            // The only copy that is left is right.
            return self.rows.donors(stripe).all(|donor| is_trusted(&donor)).then_some(parity_donor);
        }
        let is_whole = self.group.is_whole();
        if planted(MirrorBug::UnfinishedBelieved) && !is_whole {
            return None;
        }
        Some(parity_donor).filter(is_trusted)
    }

    /// Requests what a copy to a donor is computed from, and computes it.
    /// *Returns* whether enough members can be read.
    pub(super) fn ask_copy_of_member(
        &mut self,
        number: u64,
        piece: &mut StripePiece,
        to: Donor,
        why: CopyReason,
    ) -> bool {
        if piece.data.is_some() {
            return true;
        }
        let Some(member) = self.rows.member(piece.stripe, to) else { return false };
        if !self.rows.has_parity() {
            self.lose_piece(piece);
            return true;
        }
        let lost = match self.sources(number, piece, member, why) {
            CopySources::Wait => return true,
            CopySources::TooFew => return false,
            CopySources::All { lost } => lost,
        };
        let mut sum = self.sum(piece, member);
        if let Some(lost) = lost {
            let bytes = self.lost_member(piece, lost);
            self.figures.lost_blocks += bytes.len() as u64 / u64::from(self.group.geometry().block_bytes);
            xor_into(&mut sum, &bytes);
        }
        if !self.fits(piece, member, &sum) {
            return false;
        }
        piece.data = Some(sum.into());
        true
    }

    /// Without redundancy, nobody yields what a donor had: its blocks are lost until they are written.
    fn lose_piece(&mut self, piece: &mut StripePiece) {
        let bytes = self.lost_member(piece, 0);
        self.figures.lost_blocks += piece.blocks.end - piece.blocks.start;
        if !planted(MirrorBug::LostAsZeroes) {
            self.checksums.wrote(self.columns(piece).start, &bytes);
        }
        let zeroes = planted(MirrorBug::LostAsZeroes).then(|| vec![0; bytes.len()]);
        piece.data = Some(zeroes.unwrap_or(bytes).into());
    }

    /// Computes a member for a rebuild although the others do not yield it: some return wrong bytes. In each such column
    /// the blocks of the device that are wrong or cannot be computed become lost, and the parity covers that.
    /// *Returns* whether all others were read.
    pub(super) fn give_up_columns(&mut self, operation: &mut InPlaceOperation, to: Donor) -> bool {
        let piece = &operation.pieces[0];
        let (stripe, parity) = (piece.stripe, self.rows.parity());
        let Some(own) = self.rows.member(stripe, to) else { return false };
        let (size, whole) = (self.group.geometry().block_bytes as usize, self.piece_bytes(piece) as usize);
        let member = |donor: Donor| self.rows.member(stripe, donor);
        let doubted = piece.doubted.iter().filter_map(|(donor, data)| Some((member(*donor)?, data)));
        let found = piece.read.iter().map(|(member, data)| (*member, data)).chain(doubted);
        let found = found.filter(|(member, data)| *member != own && data.len() == whole);
        let mut members: BTreeMap<usize, Vec<u8>> = found.map(|(member, data)| (member, data.to_vec())).collect();
        if members.len() != parity {
            return false;
        }
        members.insert(own, self.sum_of_all(&members, whole));
        let mut changed = BTreeSet::from([own]);
        for (index, column) in self.columns(piece).enumerate() {
            let part = index * size..(index + 1) * size;
            let is_wrong = |member: &usize| {
                let at = self.checksum_at(column, *member);
                self.checksums.is_right(at, &members[member][part.clone()]) == Some(false)
            };
            let mut lost: BTreeSet<usize> = (0..=parity).filter(is_wrong).collect();
            if lost.is_empty() {
                continue;
            }
            lost.insert(own);
            changed.extend(lost.iter().copied().chain([parity]));
            for member in lost.into_iter().filter(|member| *member != parity) {
                let bytes = self.lost_block(column, member);
                self.checksums.wrote(self.checksum_at(column, member), &bytes);
                members.entry(member).and_modify(|data| data[part.clone()].copy_from_slice(&bytes));
            }
            let mut sum = vec![0; size];
            members.range(..parity).for_each(|(_, data)| xor_into(&mut sum, &data[part.clone()]));
            self.checksums.wrote(self.checksum_at(column, parity), &sum);
            members.entry(parity).and_modify(|data| data[part.clone()].copy_from_slice(&sum));
        }
        let of = StripePiece { stripe, blocks: piece.blocks.clone(), ..StripePiece::default() };
        for (member, data) in members.into_iter().filter(|(member, _)| changed.contains(member)) {
            let donor = self.rows.donor(stripe, member);
            operation.parts.push(DonorPiece { donor, piece: operation.pieces.len(), state: PartState::Unsent });
            operation.pieces.push(StripePiece { data: Some(data.into()), ..of.clone() });
        }
        // The copy has all that it needs.
        operation.pieces[0].data = Some(Bytes::new());
        true
    }

    /// Returns the XOR of all of these members.
    fn sum_of_all(&self, members: &BTreeMap<usize, Vec<u8>>, bytes: usize) -> Vec<u8> {
        let mut sum = vec![0; bytes];
        members.values().for_each(|data| xor_into(&mut sum, data));
        sum
    }

    /// Returns the bytes of a lost block of a column; behind the end of the device these are zeroes.
    fn lost_block(&mut self, column: u64, member: usize) -> Vec<u8> {
        let geometry = &self.group.geometry();
        let (block, size) = (self.rows.block(column, member), geometry.block_bytes as usize);
        if block >= geometry.blocks() {
            return vec![0; size];
        }
        self.figures.lost_blocks += 1;
        lost_bytes(&geometry.device, block, size)
    }

    fn sources(&mut self, number: u64, piece: &mut StripePiece, member: usize, why: CopyReason) -> CopySources {
        let others: Vec<usize> = (0..=self.rows.parity()).filter(|other| *other != member).collect();
        let missing: Vec<usize> = others.iter().copied().filter(|other| !piece.read.contains_key(other)).collect();
        let is_gone = |other: &usize| self.access(piece.stripe, *other) == MemberAccess::Gone;
        let is_unsettled = |other: &usize| self.access(piece.stripe, *other) == MemberAccess::Unsettled;
        let gone: Vec<usize> = missing.iter().copied().filter(is_gone).collect();
        let is_wrong = |other: &usize| piece.wrong.contains(&self.rows.donor(piece.stripe, *other));
        let may_lose = why == CopyReason::Resync && member == self.rows.parity() && !self.rows.is_copied();
        let has_wrong = missing.iter().any(is_wrong);
        if has_wrong && why == CopyReason::Rebuild && !piece.asked.is_empty() {
            // A rebuild may have to do with what all others return.
            return CopySources::Wait;
        }
        if has_wrong || gone.len() > usize::from(may_lose) {
            return CopySources::TooFew;
        }
        if missing.iter().any(is_unsettled) {
            return CopySources::Wait;
        }
        if missing.len() == gone.len() {
            return CopySources::All { lost: gone.first().copied() };
        }
        for other in missing.into_iter().filter(|other| !gone.contains(other)) {
            self.ask_member(number, piece, 0, other);
        }
        CopySources::Wait
    }

    /// Returns the bytes that stand for a lost member of a piece. Behind the end of the device nothing is lost: these
    /// bytes stay zeroes, as the blocks that the device gets when it grows.
    fn lost_member(&self, piece: &StripePiece, member: usize) -> Vec<u8> {
        let geometry = &self.group.geometry();
        let blocks = self.columns(piece).map(|column| self.rows.block(column, member));
        let blocks = blocks.take_while(|block| *block < geometry.blocks());
        blocks.flat_map(|block| lost_bytes(&geometry.device, block, geometry.block_bytes as usize)).collect()
    }

    /// Returns the blocks by which copies and the scrub name all columns of a stripe: those of its first member.
    pub(super) fn first_member(&self, stripe: u64) -> std::ops::Range<u64> {
        let columns = self.rows.columns_of(stripe);
        let first = self.rows.block(columns.start, 0);
        first..first + (columns.end - columns.start)
    }

    /// Makes the copies of a mirror equal after a crash although the one that is copied has damaged blocks: the other one
    /// is copied. If both have some, each block comes from the copy in which it is not damaged, and stays so if it is in
    /// both. *Returns* whether the copy can go on.
    pub(super) fn take_other_copy(&mut self, number: u64, piece: &mut StripePiece, to: Donor) -> bool {
        if !self.rows.is_copied() || piece.wrong.is_empty() {
            return false;
        }
        let Some(own) = self.rows.member(piece.stripe, to) else { return false };
        piece.data = piece.read.get(&own).cloned();
        if self.may_use(piece, own) {
            self.ask_member(number, piece, 0, own);
            return true;
        }
        let (size, whole) = (self.group.geometry().block_bytes as usize, self.piece_bytes(piece) as usize);
        let copies: Vec<&Bytes> = piece.doubted.values().filter(|data| data.len() == whole).collect();
        let [one, two] = copies[..] else { return false };
        let mut data = one.to_vec();
        let both = data.chunks_mut(size).zip(two.chunks(size));
        for (block, (bytes, other)) in piece.blocks.clone().zip(both) {
            if self.checksums.is_right(block, bytes) == Some(false) {
                bytes.copy_from_slice(other);
            }
        }
        piece.data = Some(data.into());
        true
    }
}
