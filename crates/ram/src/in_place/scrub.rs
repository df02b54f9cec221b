//! The scrub of a mirror: both copies of every block are read and compared.
//!
//! Owns: the comparison, and overwriting a wrong copy. Promises: while a range is compared, no other operation uses it,
//! so every difference is damage; a copy is overwritten only with bytes that match the checksum of the client's last
//! write. Leaves to others: the pace and the findings (`crate::scrub`).
//!
//! | the client's checksum | the copies | then |
//! |---|---|---|
//! | known | both match | nothing |
//! | known | one matches | the other one is overwritten with it |
//! | known | none matches | the block is lost |
//! | unknown | equal | their checksum is known from now on |
//! | unknown | different | the block is doubtful: no copy is changed |
//!
//! A step waits for no late donor: it is dropped and tried again, so that the user's reads wait for it no longer than
//! for any late answer. The scrub waits while a donor is not trusted.

use bytes::Bytes;

use super::layout::StripeCopy;
use super::machine::{InPlaceMachine, InPlacePhase, InPlaceRequest};
use super::operation::{DonorPiece, InPlaceOperation, InPlaceWork, PartState, PieceRequest, StripePiece};
use crate::group::{DeviceError, Donor, DonorRequest, DonorStanding};
use crate::planted::{MirrorBug, planted};
use crate::scrub::{ScrubFindings, ScrubProgress};

/// The most bytes of the device that one step compares.
const STEP_BYTES: u64 = 512 << 10;

/// A step in progress.
#[derive(Debug)]
pub(super) struct CopyScrubStep {
    /// The number of its operation.
    operation: u64,
    found: ScrubFindings,
}

impl InPlaceMachine {
    /// Returns the progress of the scrub and its findings.
    pub fn scrub_progress(&self) -> ScrubProgress {
        self.scrub.progress(self.group.now_us())
    }

    /// Begins the next step, if it is due.
    pub(super) fn advance_scrub(&mut self) {
        let geometry = self.group.geometry();
        if self.phase != InPlacePhase::Open {
            return;
        }
        let Some(first) = self.scrub.due(self.group.now_us()) else { return };
        let is_whole = self.group.is_whole();
        if !is_whole || !self.group.is_view_stored() {
            return;
        }
        let (operation, locked) = match geometry.is_parity() {
            true => self.row_step(first, STEP_BYTES),
            false => self.step_of_copies(first),
        };
        let locked = if planted(MirrorBug::ScrubUnlocked) { 0..0 } else { locked };
        self.scrub.begin();
        let operation = self.begin(operation, locked, true);
        self.scrub_step = Some(CopyScrubStep { operation, found: ScrubFindings::default() });
    }

    fn step_of_copies(&self, first: u64) -> (InPlaceOperation, std::ops::Range<u64>) {
        let geometry = self.group.geometry();
        let stripe = first / geometry.stripe_blocks();
        let step_blocks = (STEP_BYTES / u64::from(geometry.block_bytes)).max(1);
        let stripe_end = ((stripe + 1) * geometry.stripe_blocks()).min(geometry.blocks());
        let blocks = first..(first + step_blocks).min(stripe_end);
        let mut operation =
            InPlaceOperation::new(None, InPlaceWork::Scrub, blocks.clone(), &geometry, self.group.now_us());
        // The two pieces are the two copies of the range.
        let copy = StripePiece { stripe, blocks: blocks.clone(), ..StripePiece::default() };
        operation.pieces = vec![copy.clone(), copy];
        (operation, blocks)
    }

    /// Drops the step in progress, once each tick, if one of its donors is late and nothing is being overwritten.
    pub(super) fn drop_late_step(&mut self) {
        let Some(number) = self.scrub_step.as_ref().map(|step| step.operation) else { return };
        let suspect_us = self.group.times().suspect_us;
        let is_late = |operation: &InPlaceOperation| {
            let donors =
                (0..self.group.standing().len()).filter(|donor| self.is_on(operation.pieces[0].stripe, *donor));
            let mut late_us = donors.map(|donor| self.group.late_us(donor));
            operation.parts.is_empty() && late_us.any(|late_us| late_us >= suspect_us)
        };
        if self.operations.get(&number).is_some_and(is_late)
            && let Some(operation) = self.operations.remove(&number)
        {
            self.end_step(number, operation, false);
        }
    }

    pub(super) fn drive_scrub(&mut self, number: u64, mut operation: InPlaceOperation) {
        let places = self.ring.places(operation.pieces[0].stripe);
        if operation.parts.is_empty() {
            if places.iter().any(|place| self.group.standing()[place.donor] != DonorStanding::Trusted) {
                return self.end_step(number, operation, false);
            }
            for (at, place) in places.iter().enumerate() {
                self.ask_copy(number, &mut operation.pieces[at], at, *place);
            }
            let copies = [0, 1].map(|at: usize| operation.pieces[at].data.clone());
            let [Some(one), Some(two)] = copies else {
                self.operations.insert(number, operation);
                return;
            };
            self.compare(&mut operation, places.map(|place| place.donor), &[one, two]);
        }
        self.end_scrub(number, operation);
    }

    /// Overwrites what is wrong, and ends the step after that.
    pub(super) fn end_scrub(&mut self, number: u64, mut operation: InPlaceOperation) {
        for at in 0..operation.parts.len() {
            self.send_right_bytes(number, &mut operation, at);
        }
        match operation.is_settled() {
            true => self.end_step(number, operation, true),
            false => _ = self.operations.insert(number, operation),
        }
    }

    fn ask_copy(&mut self, number: u64, piece: &mut StripePiece, at: usize, place: StripeCopy) {
        let is_open = self.group.is_claimed(place.donor);
        if piece.data.is_some() || !piece.asked.is_empty() || !is_open {
            return;
        }
        let bytes = (piece.blocks.end - piece.blocks.start) * u64::from(self.group.geometry().block_bytes);
        let body = DonorRequest::Read { offset: self.offset(place, piece), bytes };
        let request = self.ask_donor(
            place.donor,
            InPlaceRequest::Piece { operation: number, piece: at, donor: place.donor },
            body,
        );
        piece.asked.push(PieceRequest { donor: place.donor, request, sent_us: self.group.now_us() });
    }

    /// Compares the copies, and lists what has to be overwritten: a piece with the right bytes, and a part, for each run
    /// of wrong blocks.
    fn compare(&mut self, operation: &mut InPlaceOperation, donors: [Donor; 2], copies: &[Bytes; 2]) {
        let size = self.group.geometry().block_bytes as usize;
        let (stripe, first) = (operation.pieces[0].stripe, operation.blocks.start);
        let mut found = ScrubFindings::default();
        for (index, (one, two)) in copies[0].chunks(size).zip(copies[1].chunks(size)).enumerate() {
            let block = first + index as u64;
            let wrong = match (self.checksums.is_right(block, one), self.checksums.is_right(block, two)) {
                (Some(true), Some(true)) => continue,
                // Without a checksum of this client, a copy is known to be wrong if its donor says so.
                (Some(true) | None, Some(false)) => 1,
                (Some(false), Some(true) | None) => 0,
                (Some(false), Some(false)) => {
                    found.lost += 1;
                    continue;
                }
                _ if one == two => {
                    self.checksums.wrote(block, one);
                    continue;
                }
                _ => {
                    found.doubtful += 1;
                    continue;
                }
            };
            found.repaired += 1;
            let wrong = if planted(MirrorBug::ScrubFromDamaged) { 1 - wrong } else { wrong };
            let right = copies[1 - wrong].slice(index * size..(index + 1) * size);
            let donor = donors[wrong];
            let is_next = |part: &DonorPiece| part.donor == donor && operation.pieces[part.piece].blocks.end == block;
            match operation.parts.last().filter(|part| is_next(part)).map(|part| part.piece) {
                Some(piece) => {
                    let piece = &mut operation.pieces[piece];
                    piece.blocks.end += 1;
                    let from = (piece.blocks.start - first) as usize * size;
                    piece.data = Some(copies[1 - wrong].slice(from..(index + 1) * size));
                }
                None => {
                    operation.parts.push(DonorPiece { donor, piece: operation.pieces.len(), state: PartState::Unsent });
                    let blocks = block..block + 1;
                    operation.pieces.push(StripePiece { stripe, blocks, data: Some(right), ..StripePiece::default() });
                }
            }
        }
        self.note_findings(found);
    }

    /// Notes what the present step has found.
    pub(super) fn note_findings(&mut self, found: ScrubFindings) {
        self.group.note_wrong_answers(u64::from(found.repaired + found.lost > 0));
        if let Some(step) = &mut self.scrub_step {
            step.found = found;
        }
    }

    fn send_right_bytes(&mut self, number: u64, operation: &mut InPlaceOperation, at: usize) {
        let DonorPiece { donor, piece, state } = operation.parts[at];
        let is_served = self.group.standing()[donor] == DonorStanding::Trusted;
        if state != PartState::Unsent || !is_served || !self.group.is_claimed(donor) {
            return;
        }
        let piece = &operation.pieces[piece];
        let (Some(offset), Some(data)) = (self.offset_on(donor, piece), piece.data.clone()) else { return };
        let body = DonorRequest::Write { offset, data, force: false };
        operation.parts[at].state = PartState::Sent;
        self.ask_donor(donor, InPlaceRequest::Part { operation: number, part: at, donor }, body);
    }

    /// Ends a step. A donor that was left meanwhile has nothing repaired, and is filled when it returns.
    pub(super) fn end_step(&mut self, number: u64, operation: InPlaceOperation, is_done: bool) {
        let next = operation.blocks.end;
        let found = self.scrub_step.take().map(|step| step.found).unwrap_or_default();
        match is_done {
            true if planted(MirrorBug::ScrubSkips) => {
                let geometry = &self.group.geometry();
                let skipped = next + u64::from(geometry.chunk_bytes() / geometry.block_bytes);
                self.scrub.done(self.group.now_us(), skipped, found);
            }
            true => self.scrub.done(self.group.now_us(), next, found),
            false => self.scrub.dropped(self.group.now_us()),
        }
        self.has_changed = true;
        let result = if is_done { Ok(Bytes::new()) } else { Err(DeviceError::NotAttached) };
        self.finish(number, operation, result);
    }
}
