//! A user's change: the new parity, the dirty marks, and all donors that have to store something.
//!
//! Owns: which members are read for the new parity, and the order of mark, change and acknowledgement. Promises:
//! invariants 1 to 3 and 5 to 7 in `mod.rs`.
//!
//! | how the parity of a row is computed | what is read | it is possible if |
//! |---|---|---|
//! | difference | the written members and the parity | none of them is missing |
//! | sum | the other data members | none of them is missing; nothing to read if all are written |
//! | not at all | nothing | the parity is missing, as always without redundancy, or two members are |

use std::ops::Range;

use bytes::Bytes;

use super::machine::{InPlaceMachine, InPlaceRequest};
use super::members::{MemberAccess, xor_into};
use crate::group::{DeviceError, Donor, DonorRequest, DonorStanding, MachineAction};

use super::operation::{DonorPiece, InPlaceOperation, InPlaceWork, PartState, StripePiece};
use crate::planted::{MirrorBug, planted};

/// How the parity of a row is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ParityMethod {
    Difference,
    Sum,
    NotAtAll,
}

impl InPlaceMachine {
    pub(super) fn drive_row_change(&mut self, number: u64, mut operation: InPlaceOperation) {
        if !operation.is_planned {
            self.mark_rows(&mut operation);
        }
        if operation.parts.is_empty() {
            match self.gather_rows(number, &mut operation) {
                Ok(true) => self.list_row_parts(&mut operation),
                Ok(false) => {
                    self.operations.insert(number, operation);
                    return;
                }
                Err(error) => return self.finish(number, operation, Err(error)),
            }
        }
        self.send_row_parts(number, &mut operation);
        if !operation.is_settled() {
            self.operations.insert(number, operation);
            return;
        }
        if let Some(block) = self.lost_row(&operation) {
            self.forget_rows(&operation);
            return self.finish(number, operation, Err(DeviceError::Lost { block }));
        }
        self.note_rows(&operation);
        self.finish(number, operation, Ok(Bytes::new()));
    }

    /// Has the stripes of an operation marked as dirty.
    fn mark_rows(&mut self, operation: &mut InPlaceOperation) {
        operation.is_planned = true;
        let is_unmarked = matches!(operation.work, InPlaceWork::Trim) && planted(MirrorBug::TrimUnmarked);
        if self.rows.has_parity() {
            operation.pieces.iter().for_each(|piece| self.begin_marked(piece.stripe, !is_unmarked));
        }
    }

    /// Whether every donor that has to store the mark of a stripe has done so. A donor that is being filled has to:
    /// it may be trusted before the change ends. While a donor does not serve this client, a record without the mark
    /// that was sent before may still arrive there.
    fn has_marks(&self, stripe: u64) -> bool {
        let is_left = |donor: usize| matches!(self.group.standing()[donor], DonorStanding::Out | DonorStanding::Lost);
        let mut markers = self.rows.markers(stripe).into_iter().flatten().filter(|donor| !is_left(*donor));
        markers.all(|donor| self.group.is_claimed(donor) && self.group.is_marked(donor, stripe))
    }

    /// Reads what the new parity needs, and computes it; returns whether that is done for every row.
    fn gather_rows(&mut self, number: u64, operation: &mut InPlaceOperation) -> Result<bool, DeviceError> {
        let mut is_done = true;
        let mut next = 0;
        while next < operation.pieces.len() {
            let at = next;
            next += 1;
            if operation.pieces[at].data.is_some() {
                continue;
            }
            let how = match self.how(&operation.pieces[at]) {
                // Each member may be wrong in different columns, so the row is read again column by column.
                Err(DeviceError::Corrupt { .. }) if self.split_row(operation, at) => {
                    next = at;
                    continue;
                }
                how => how?,
            };
            let Some(how) = how else {
                is_done = false;
                continue;
            };
            let piece = &mut operation.pieces[at];
            let needed = self.needed(piece, how);
            if needed.iter().all(|member| piece.read.contains_key(member)) {
                let parity = self.new_parity(operation, at, how);
                operation.pieces[at].data = Some(parity);
                operation.pieces[at].read.clear();
                continue;
            }
            is_done = false;
            for member in needed {
                self.ask_member(number, piece, at, member);
            }
        }
        Ok(is_done)
    }

    /// Replaces a row of a change by its columns; returns whether it has more than one.
    fn split_row(&mut self, operation: &mut InPlaceOperation, at: usize) -> bool {
        let before = operation.pieces.len();
        let is_split = operation.split(at);
        // Each piece counts as a writer of its stripe.
        operation.pieces[before..].iter().for_each(|piece| self.dirty.begin(piece.stripe));
        is_split
    }

    /// Decides how the parity of a row is computed; `None`: this cannot be decided yet.
    ///
    /// *Errors*: a written member can neither be stored nor yielded by the others.
    fn how(&self, piece: &StripePiece) -> Result<Option<ParityMethod>, DeviceError> {
        let parity = self.rows.parity();
        let access: Vec<MemberAccess> = (0..=parity).map(|member| self.access(piece.stripe, member)).collect();
        if access.contains(&MemberAccess::Unsettled) {
            return Ok(None);
        }
        let is_gone = |member: &usize| access[*member] == MemberAccess::Gone;
        let block = piece.blocks.start;
        match (0..=parity).filter(is_gone).count() {
            0 | 1 if is_gone(&parity) => return Ok(Some(ParityMethod::NotAtAll)),
            0 | 1 => {}
            _ if piece.members.clone().any(|member| is_gone(&member)) => return Err(DeviceError::Lost { block }),
            _ => return Ok(Some(ParityMethod::NotAtAll)),
        }
        let may = |how: ParityMethod| self.needed(piece, how).into_iter().all(|member| self.may_use(piece, member));
        if planted(MirrorBug::StaleDataUsed) && piece.members.clone().any(|member| is_gone(&member)) {
            return Ok(Some(ParityMethod::Difference));
        }
        let order = match parity - piece.members.len() <= piece.members.len() {
            true => [ParityMethod::Sum, ParityMethod::Difference],
            false => [ParityMethod::Difference, ParityMethod::Sum],
        };
        match order.into_iter().find(|how| may(*how)) {
            Some(how) => Ok(Some(how)),
            None => Err(DeviceError::Corrupt { block }),
        }
    }

    /// Returns the members that are read for the new parity.
    fn needed(&self, piece: &StripePiece, how: ParityMethod) -> Vec<usize> {
        let parity = self.rows.parity();
        let is_there = |member: &usize| !planted(MirrorBug::StaleDataUsed) || self.may_use(piece, *member);
        match how {
            ParityMethod::Difference => piece.members.clone().chain([parity]).filter(is_there).collect(),
            ParityMethod::Sum => (0..parity).filter(|member| !piece.members.contains(member)).collect(),
            ParityMethod::NotAtAll => Vec::new(),
        }
    }

    /// Returns the new parity of a row; empty: zeroes, or none.
    fn new_parity(&self, operation: &InPlaceOperation, at: usize, how: ParityMethod) -> Bytes {
        let piece = &operation.pieces[at];
        let needed = self.needed(piece, how);
        if how == ParityMethod::NotAtAll || needed.is_empty() && !matches!(operation.work, InPlaceWork::Write { .. }) {
            return Bytes::new();
        }
        if needed.is_empty() && piece.members.len() == 1 {
            // A copy, as of a mirror: nothing is computed.
            return self.new_data(operation, piece, piece.members.start).unwrap_or_default();
        }
        let mut sum = vec![0; self.piece_bytes(piece) as usize];
        for member in needed {
            xor_into(&mut sum, piece.read.get(&member).map_or(&[], |data| &data[..]));
        }
        for member in piece.members.clone() {
            xor_into(&mut sum, self.new_data(operation, piece, member).as_deref().unwrap_or_default());
        }
        sum.into()
    }

    /// Returns the data that the user writes to a member of a row; `None`: zeroes.
    fn new_data(&self, operation: &InPlaceOperation, piece: &StripePiece, member: usize) -> Option<Bytes> {
        let InPlaceWork::Write { data, .. } = &operation.work else { return None };
        let block = self.rows.block(self.columns(piece).start, member);
        let from = (block - operation.blocks.start) * u64::from(self.group.geometry().block_bytes);
        Some(data.slice(from as usize..(from + self.piece_bytes(piece)) as usize))
    }

    /// Lists what has to be stored: each written member, and the parity, on each donor that has it.
    fn list_row_parts(&mut self, operation: &mut InPlaceOperation) {
        for (at, piece) in operation.pieces.iter().enumerate() {
            for member in piece.members.clone().chain([self.rows.parity()]) {
                let donor = self.rows.donor(piece.stripe, member);
                if self.rows.all_members().contains(&member) && self.is_target(donor, piece.stripe) {
                    operation.parts.push(DonorPiece { donor, piece: at, state: PartState::Unsent });
                }
            }
        }
    }

    fn send_row_parts(&mut self, number: u64, operation: &mut InPlaceOperation) {
        let is_trim = matches!(operation.work, InPlaceWork::Trim);
        let are_marked = operation.pieces.iter().all(|piece| self.has_marks(piece.stripe))
            || planted(MirrorBug::MarkAfterWrite)
            || planted(MirrorBug::TrimUnmarked) && is_trim;
        for at in 0..operation.parts.len() {
            let DonorPiece { donor, piece, state } = operation.parts[at];
            let is_parity = self.rows.donor(operation.pieces[piece].stripe, self.rows.parity()) == donor;
            let is_served = matches!(self.group.standing()[donor], DonorStanding::Trusted | DonorStanding::Rebuilding);
            let may_send = are_marked || planted(MirrorBug::ParityUnmarked) && is_parity;
            if state == PartState::Unsent && is_served && may_send && self.group.is_claimed(donor) {
                let Some(body) = self.row_request(operation, &operation.pieces[piece], donor) else { continue };
                operation.parts[at].state = PartState::Sent;
                operation.has_begun = true;
                self.ask_donor(donor, InPlaceRequest::Part { operation: number, part: at, donor }, body);
            }
        }
    }

    fn row_request(&self, operation: &InPlaceOperation, piece: &StripePiece, donor: usize) -> Option<DonorRequest> {
        let member = self.rows.member(piece.stripe, donor)?;
        let (offset, bytes) = (self.rows.offset(self.columns(piece).start, member), self.piece_bytes(piece));
        let data = match member == self.rows.parity() {
            true => piece.data.clone().filter(|parity| !parity.is_empty()),
            false => self.new_data(operation, piece, member),
        };
        let force = match operation.work {
            InPlaceWork::Write { is_forced, .. } | InPlaceWork::Zeroes { is_forced } => is_forced,
            _ => false,
        };
        Some(match (data, &operation.work) {
            (Some(data), _) => DonorRequest::Write { offset, data, force },
            (None, InPlaceWork::Trim) => DonorRequest::Trim { offset, bytes },
            (None, _) => DonorRequest::WriteZeroes { offset, bytes, force },
        })
    }

    fn is_stored(&self, operation: &InPlaceOperation, at: usize, member: usize) -> bool {
        let donor = self.rows.donor(operation.pieces[at].stripe, member);
        let is_its = |part: &&DonorPiece| part.piece == at && part.donor == donor;
        operation.parts.iter().find(is_its).is_some_and(|part| part.state == PartState::Done)
    }

    /// Returns the first block of a change that no donor has, and the others do not yield.
    fn lost_row(&self, operation: &InPlaceOperation) -> Option<u64> {
        let is_lost = |at: usize, member: usize| {
            let stripe = operation.pieces[at].stripe;
            let mut others = (0..=self.rows.parity()).filter(|other| *other != member);
            !self.is_stored(operation, at, member)
                && others.any(|other| self.access(stripe, other) == MemberAccess::Gone)
        };
        for (at, piece) in operation.pieces.iter().enumerate() {
            if let Some(member) = piece.members.clone().find(|member| is_lost(at, *member)) {
                return Some(self.rows.block(self.columns(piece).start, member));
            }
        }
        None
    }

    fn forget_rows(&mut self, operation: &InPlaceOperation) {
        self.checksums.forget(operation.blocks.clone());
        for piece in &operation.pieces {
            let columns = self.columns(piece);
            let first = self.checksum_at(columns.start, self.rows.parity());
            self.checksums.forget(first..first + (columns.end - columns.start));
        }
    }

    /// Stores the checksums of what was written.
    fn note_rows(&mut self, operation: &InPlaceOperation) {
        for (at, piece) in operation.pieces.iter().enumerate() {
            let columns = self.columns(piece);
            let range = |machine: &InPlaceMachine, member: usize| -> Range<u64> {
                let first = machine.checksum_at(columns.start, member);
                first..first + (columns.end - columns.start)
            };
            for member in piece.members.clone() {
                let blocks = range(self, member);
                match self.new_data(operation, piece, member) {
                    Some(data) => self.checksums.wrote(blocks.start, &data),
                    None => self.checksums.zeroed(blocks),
                }
            }
            let blocks = range(self, self.rows.parity());
            if self.rows.is_copied() {
                continue;
            }
            match &piece.data {
                Some(parity) if self.is_stored(operation, at, self.rows.parity()) => match parity.is_empty() {
                    true => self.checksums.zeroed(blocks),
                    false => self.checksums.wrote(blocks.start, parity),
                },
                _ => self.checksums.forget(blocks),
            }
        }
    }

    pub(super) fn part_done(&mut self, number: u64, part: usize) {
        let Some(operation) = self.operations.get_mut(&number) else { return };
        let part = &mut operation.parts[part];
        if part.state == PartState::Sent {
            part.state = PartState::Done;
        }
        self.ready.insert(number);
    }

    /// Tells the user that the operation failed. A change that a donor may have received continues until its copies are
    /// equal.
    pub(super) fn lose_patience(&mut self, number: u64) {
        let Some(mut operation) = self.operations.remove(&number) else { return };
        let Some(id) = operation.user.take() else {
            self.operations.insert(number, operation);
            return;
        };
        self.figures.failed += 1;
        self.figures.impatient += 1;
        let error = DeviceError::Patience { block: operation.blocks.start };
        self.act(MachineAction::Complete { id, result: Err(error.clone()) });
        if operation.work.is_change() && operation.has_begun {
            self.operations.insert(number, operation);
        } else {
            self.finish(number, operation, Err(error));
        }
    }

    /// Lets operations continue that waited for a donor which is now left, and stops what is done to fill it.
    pub(super) fn excuse(&mut self, donor: Donor) {
        for operation in self.operations.values_mut() {
            for part in operation.parts.iter_mut().filter(|part| part.donor == donor) {
                part.state = PartState::Excused;
            }
        }
        if self.rebuild.take_if(|rebuild| rebuild.donor == donor).is_some() {
            self.drop_copies_to(donor);
        }
        self.has_changed = true;
    }
}
