//! The scrub: all members of every column are read, and their XOR has to be zero. The members of a mirror are its copies.
//!
//! Owns: the comparison, which member is wrong, and overwriting it. Promises: while columns are compared, no other
//! operation uses them, so every difference is damage; a member is overwritten only if all others match the checksums of
//! the client's last writes. Leaves to others: the pace and the findings (`crate::scrub`).
//!
//! | the XOR | members that do not match their checksum | members without one | then |
//! |---|---|---|---|
//! | zero | none | any | all checksums are known from now on |
//! | not zero | one | none | it is overwritten with what the others yield |
//! | not zero | none | one | the same: it is the one without a checksum |
//! | not zero | one, and the others yield its checksum | any | the same |
//! | not zero | none, or one that the others do not yield | several | the columns are doubtful: nothing is changed |
//! | any | several, or one that the others do not yield | none | these blocks are lost |
//!
//! Without redundancy there is one member, which nothing contradicts but its checksum, and nothing yields. The two copies
//! of a mirror's block have one checksum. A step waits for no late donor: it is dropped and tried again, so
//! that the user's reads wait for it no longer than for any late answer. The scrub waits while a donor is not trusted.

use std::ops::Range;

use bytes::Bytes;

use super::machine::{InPlaceMachine, InPlacePhase, InPlaceRequest};
use super::members::xor_into;
use super::operation::{DonorPiece, InPlaceOperation, InPlaceWork, PartState, StripePiece};
use super::progress::CopyScrubStep;
use crate::group::{DeviceError, DonorRequest, DonorStanding};
use crate::planted::{MirrorBug, planted};
use crate::scrub::{ScrubFindings, ScrubProgress};

/// The most bytes of the device that one step compares.
const STEP_BYTES: u64 = 512 << 10;

/// The conclusion about one column.
enum ColumnVerdict {
    Right,
    /// This member is wrong; the others yield it.
    Wrong(usize),
    Lost(u64),
    Doubtful,
}

impl InPlaceMachine {
    /// Returns the progress of the scrub and its findings.
    pub fn scrub_progress(&self) -> ScrubProgress {
        self.scrub.progress(self.group.now_us())
    }

    /// Begins the next step, if it is due.
    pub(super) fn advance_scrub(&mut self) {
        if self.phase != InPlacePhase::Open {
            return;
        }
        let Some(first) = self.scrub.due(self.group.now_us()) else { return };
        let is_whole = self.group.is_whole();
        if !is_whole || !self.group.is_view_stored() {
            return;
        }
        let (operation, locked) = self.row_step(first, STEP_BYTES);
        let locked = if planted(MirrorBug::ScrubUnlocked) { 0..0 } else { locked };
        self.scrub.begin();
        let operation = self.begin(operation, locked, true);
        self.scrub_step = Some(CopyScrubStep { operation, found: ScrubFindings::default() });
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

    /// Makes the operation of a step that begins at a column; *returns* also the columns that it locks.
    pub(super) fn row_step(&self, first: u64, bytes_max: u64) -> (InPlaceOperation, Range<u64>) {
        let geometry = &self.group.geometry();
        let columns_max = (bytes_max / u64::from(geometry.block_bytes)).max(1);
        let stripe = self.rows.stripe(first);
        let end = (first + columns_max).min(self.rows.columns_of(stripe).end);
        let mut operation = InPlaceOperation::new(None, InPlaceWork::Scrub, first..end, geometry, self.group.now_us());
        let block = self.rows.block(first, 0);
        let members = 0..self.rows.parity();
        operation.pieces =
            vec![StripePiece { stripe, blocks: block..block + (end - first), members, ..StripePiece::default() }];
        (operation, first..end)
    }

    pub(super) fn drive_scrub(&mut self, number: u64, mut operation: InPlaceOperation) {
        if operation.parts.is_empty() {
            if self.group.standing().iter().any(|standing| *standing != DonorStanding::Trusted) {
                return self.end_step(number, operation, false);
            }
            for member in self.rows.all_members() {
                self.ask_member(number, &mut operation.pieces[0], 0, member);
            }
            if operation.pieces[0].read.len() < self.rows.all_members().len() {
                self.operations.insert(number, operation);
                return;
            }
            self.compare_members(&mut operation);
        }
        self.end_scrub(number, operation);
    }

    /// Compares all members, and lists what has to be overwritten: a piece with the right bytes, and a part, for each
    /// wrong block.
    fn compare_members(&mut self, operation: &mut InPlaceOperation) {
        let size = self.group.geometry().block_bytes as usize;
        let row = operation.pieces[0].clone();
        let (mut found, first) = (ScrubFindings::default(), self.columns(&row).start);
        for index in 0..(row.blocks.end - row.blocks.start) as usize {
            let column = first + index as u64;
            let member = |data: &Bytes| data.slice(index * size..(index + 1) * size);
            let members: Vec<Bytes> = row.read.values().map(member).collect();
            let wrong = match self.verdict(column, &members) {
                ColumnVerdict::Right => continue,
                ColumnVerdict::Wrong(wrong) => wrong,
                ColumnVerdict::Lost(count) => {
                    found.lost += count;
                    continue;
                }
                ColumnVerdict::Doubtful => {
                    found.doubtful += 1;
                    continue;
                }
            };
            found.repaired += 1;
            let parity = self.rows.parity();
            let from_damaged = if wrong == parity { 0 } else { parity };
            let wrong = if planted(MirrorBug::ScrubFromDamaged) { from_damaged } else { wrong };
            let donor = self.rows.donor(row.stripe, wrong);
            operation.parts.push(DonorPiece { donor, piece: operation.pieces.len(), state: PartState::Unsent });
            let block = row.blocks.start + index as u64;
            let data = Some(sum_of(&members, wrong).into());
            operation.pieces.push(StripePiece {
                stripe: row.stripe,
                blocks: block..block + 1,
                data,
                ..StripePiece::default()
            });
        }
        self.note_findings(found);
    }

    fn verdict(&mut self, column: u64, members: &[Bytes]) -> ColumnVerdict {
        let at = |machine: &InPlaceMachine, member: usize| machine.checksum_at(column, member);
        let known: Vec<Option<bool>> =
            (0..members.len()).map(|member| self.checksums.is_right(at(self, member), &members[member])).collect();
        let wrong: Vec<usize> = (0..members.len()).filter(|member| known[*member] == Some(false)).collect();
        let unknown: Vec<usize> = (0..members.len()).filter(|member| known[*member].is_none()).collect();
        let has_parity = self.rows.has_parity();
        let is_zero = !has_parity || sum_of(members, members.len()).iter().all(|byte| *byte == 0);
        let is_yielded =
            |member: usize| self.checksums.is_right(at(self, member), &sum_of(members, member)) != Some(false);
        match (&wrong[..], &unknown[..]) {
            ([], _) if is_zero => {
                for member in unknown {
                    self.checksums.wrote(at(self, member), &members[member]);
                }
                ColumnVerdict::Right
            }
            ([wrong], _) if has_parity && is_yielded(*wrong) => ColumnVerdict::Wrong(*wrong),
            ([], [unknown]) => ColumnVerdict::Wrong(*unknown),
            ([_], [_, ..]) | ([], _) => ColumnVerdict::Doubtful,
            // Of a mirror, both members are one block.
            _ => ColumnVerdict::Lost(wrong.len().min(self.rows.parity()) as u64),
        }
    }
}

/// Returns the XOR of all members except one.
fn sum_of(members: &[Bytes], except: usize) -> Vec<u8> {
    let mut sum = vec![0; members.first().map_or(0, Bytes::len)];
    let others = members.iter().enumerate().filter(|(member, _)| *member != except);
    others.for_each(|(_, data)| xor_into(&mut sum, data));
    sum
}
