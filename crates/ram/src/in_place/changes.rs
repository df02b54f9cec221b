//! Changes: writes, zeroes, trims and flushes on every copy.
//!
//! Owns: the order of dirty mark, change and acknowledgement. Promises: invariants 1, 3 and 4 in `mod.rs`.

use bytes::Bytes;

use super::machine::{InPlaceMachine, InPlaceRequest};
use super::operation::{DonorPiece, InPlaceOperation, InPlaceWork, PartState};
use crate::group::{DeviceError, Donor, DonorRequest, DonorStanding, MachineAction};
use crate::planted::{MirrorBug, planted};

impl InPlaceMachine {
    pub(super) fn drive_change(&mut self, number: u64, mut operation: InPlaceOperation) {
        if !operation.is_planned {
            self.plan_change(&mut operation);
        }
        let lost = lost_block(&operation);
        // What has begun is finished first: the copies of its other pieces must become equal.
        if let Some(block) = lost.filter(|_| !operation.has_begun) {
            return self.finish_lost(number, operation, block);
        }
        if self.is_marked(&operation) {
            for at in 0..operation.parts.len() {
                self.send_part(number, &mut operation, at);
            }
        }
        if !operation.is_settled() {
            self.operations.insert(number, operation);
            return;
        }
        if let Some(block) = lost {
            return self.finish_lost(number, operation, block);
        }
        match &operation.work {
            InPlaceWork::Write { data, .. } => self.checksums.wrote(operation.blocks.start, data),
            _ => self.checksums.zeroed(operation.blocks.clone()),
        }
        self.finish(number, operation, Ok(Bytes::new()));
    }

    fn finish_lost(&mut self, number: u64, operation: InPlaceOperation, block: u64) {
        self.checksums.forget(operation.blocks.clone());
        self.finish(number, operation, Err(DeviceError::Lost { block }));
    }

    /// Lists the copies that an operation changes, and has their stripes marked as dirty.
    fn plan_change(&mut self, operation: &mut InPlaceOperation) {
        operation.is_planned = true;
        for (at, piece) in operation.pieces.iter().enumerate() {
            for place in self.ring.places(piece.stripe) {
                if self.is_target(place.donor, piece.stripe) {
                    operation.parts.push(DonorPiece { donor: place.donor, piece: at, state: PartState::Unsent });
                }
            }
            let is_trim = matches!(operation.work, InPlaceWork::Trim);
            self.begin_marked(piece.stripe, !(is_trim && planted(MirrorBug::TrimUnmarked)));
        }
    }

    /// Whether every copy's donor has stored the marks of the operation's stripes.
    fn is_marked(&self, operation: &InPlaceOperation) -> bool {
        if planted(MirrorBug::MarkAfterWrite)
            || planted(MirrorBug::TrimUnmarked) && matches!(operation.work, InPlaceWork::Trim)
        {
            return true;
        }
        let needs_mark = |part: &&DonorPiece| matches!(part.state, PartState::Unsent | PartState::Sent);
        let is_marked = |part: &DonorPiece| self.group.is_marked(part.donor, operation.pieces[part.piece].stripe);
        operation.parts.iter().filter(needs_mark).all(is_marked)
    }

    fn send_part(&mut self, number: u64, operation: &mut InPlaceOperation, at: usize) {
        let DonorPiece { donor, piece, state } = operation.parts[at];
        let is_served = matches!(self.group.standing()[donor], DonorStanding::Trusted | DonorStanding::Rebuilding);
        if state != PartState::Unsent || !is_served || !self.group.is_claimed(donor) {
            return;
        }
        let block_bytes = u64::from(self.group.geometry().block_bytes);
        let piece = &operation.pieces[piece];
        let Some(place) = self.ring.places(piece.stripe).into_iter().find(|place| place.donor == donor) else { return };
        let offset = self.offset(place, piece);
        let bytes = (piece.blocks.end - piece.blocks.start) * block_bytes;
        let body = match &operation.work {
            InPlaceWork::Write { data, is_forced } => {
                let from = ((piece.blocks.start - operation.blocks.start) * block_bytes) as usize;
                let data = data.slice(from..from + bytes as usize);
                DonorRequest::Write { offset, data, force: *is_forced }
            }
            InPlaceWork::Zeroes { is_forced } => DonorRequest::WriteZeroes { offset, bytes, force: *is_forced },
            _ => DonorRequest::Trim { offset, bytes },
        };
        operation.parts[at].state = PartState::Sent;
        operation.has_begun = true;
        self.ask_donor(donor, InPlaceRequest::Part { operation: number, part: at, donor }, body);
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

/// Returns the first block of a piece whose copies are all lost.
fn lost_block(operation: &InPlaceOperation) -> Option<u64> {
    let has_copy = |at: usize| operation.parts.iter().any(|part| part.piece == at && part.state != PartState::Excused);
    let lost = (0..operation.pieces.len()).find(|at| !has_copy(*at))?;
    Some(operation.pieces[lost].blocks.start)
}
