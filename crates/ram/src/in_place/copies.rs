//! Copies that the machine makes: resynchronisation after attaching, the rebuild of a donor, and the repair of wrong
//! bytes.
//!
//! Owns: the choice of the next stripe to copy, and the copying. Promises: a stripe is copied while no other operation
//! uses it, and afterwards its copies are equal. Leaves to others: the decision to fill a donor (`membership`).
//!
//! A rebuild has no second source. If a block does not match its checksum for as long as a user's request would wait, it
//! becomes lost, as in `lost`, and the rebuild goes on.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

use super::machine::{InPlaceMachine, InPlacePhase, InPlaceRequest};
use super::operation::{CopyReason, DonorPiece, InPlaceOperation, InPlaceWork, PartState, StripePiece};
use super::progress::DonorRebuild;
use crate::format::StripeSet;
use crate::group::{COPIES_MAX, DeviceError, Donor, DonorRequest, DonorStanding, REPAIRS_MAX};
use crate::planted::{MirrorBug, planted};

impl InPlaceMachine {
    /// Returns the donor that is being filled, the number of stripes that it has, and the number that it must get.
    pub fn rebuild_progress(&self) -> Option<(Donor, u64, u64)> {
        let DonorRebuild { donor, copied, .. } = self.rebuild.as_ref()?;
        let of_donor = (0..self.group.geometry().stripes()).filter(|stripe| self.is_on(*stripe, *donor));
        Some((*donor, copied.iter().count() as u64, of_donor.count() as u64))
    }

    /// Returns the number of stripes whose copies may differ, or are about to, or which a trusted donor still
    /// has marked.
    pub fn dirty_stripes(&self) -> u64 {
        let mut dirty = self.group.marked().clone();
        let stripes = self.group.geometry().stripes();
        for stripe in self.group.marks_of_trusted().filter(|stripe| *stripe < stripes) {
            dirty.set(stripe, true);
        }
        dirty.iter().count() as u64
    }

    fn copies_under_way(&self, wanted: CopyReason) -> usize {
        let is_wanted =
            |operation: &&InPlaceOperation| matches!(operation.work, InPlaceWork::Copy { why, .. } if why == wanted);
        self.operations.values().filter(is_wanted).count()
    }

    fn begin_copy(&mut self, to: Donor, why: CopyReason, blocks: Range<u64>) {
        let work = InPlaceWork::Copy { to, why };
        let operation = InPlaceOperation::new(None, work, blocks.clone(), &self.group.geometry(), self.group.now_us());
        let locked = self.rows.locked(&blocks);
        let locked = if planted(MirrorBug::RebuildUnlocked) { 0..0 } else { locked };
        self.begin(operation, locked, true);
    }

    /// Begins copies that are due.
    pub(super) fn advance_copies(&mut self) {
        // A donor that is being left may be trusted again, if another one is lost meanwhile.
        let is_leaving = self.group.standing().contains(&DonorStanding::Leaving);
        if self.phase == InPlacePhase::Resync && !is_leaving {
            while self.copies_under_way(CopyReason::Resync) < COPIES_MAX
                && let Some(stripe) = self.resync.pop()
            {
                match self.resync_to(stripe) {
                    Some(donor) => self.begin_copy(donor, CopyReason::Resync, self.first_member(stripe)),
                    None => self.dirty.end(stripe, self.group.now_us()),
                }
            }
        }
        self.advance_rebuild();
    }

    /// Begins copies to the donor that is being filled, and tells the group when it has everything.
    fn advance_rebuild(&mut self) {
        if self.phase != InPlacePhase::Open {
            return;
        }
        let stripes = self.group.geometry().stripes();
        self.rebuild.take_if(|rebuild| self.group.standing()[rebuild.donor] != DonorStanding::Rebuilding);
        let Some((donor, joined)) = self.group.filling() else { return };
        if self.rebuild.as_ref().is_none_or(|rebuild| (rebuild.donor, rebuild.joined) != (donor, joined)) {
            let (copied, wrong_since_us) = (StripeSet::none(stripes), BTreeMap::new());
            self.rebuild = Some(DonorRebuild { donor, joined, copied, wrong_since_us, next: 0 });
        }
        while let Some(stripe) = self.rebuild.as_ref().map(|rebuild| rebuild.next).filter(|next| *next < stripes) {
            let is_due = !self.is_copied(donor, stripe) && self.is_on(stripe, donor);
            if is_due && self.copies_under_way(CopyReason::Rebuild) >= COPIES_MAX {
                return;
            }
            if let Some(rebuild) = &mut self.rebuild {
                rebuild.next += 1;
            }
            if is_due {
                self.begin_copy(donor, CopyReason::Rebuild, self.first_member(stripe));
            }
        }
        if (0..stripes).all(|stripe| !self.is_on(stripe, donor) || self.is_copied(donor, stripe)) {
            self.group.filled(donor);
        }
    }

    /// Tries again, once each tick, to copy stripes that could not be copied.
    pub(super) fn retry_rebuild(&mut self) {
        let is_idle = self.copies_under_way(CopyReason::Rebuild) == 0;
        let stripes = self.group.geometry().stripes();
        if let Some(rebuild) = self.rebuild.as_mut().filter(|rebuild| is_idle && rebuild.next >= stripes) {
            rebuild.next = 0;
        }
    }

    /// Overwrites wrong bytes of a donor with those of the other copy.
    pub(super) fn begin_repair(&mut self, donor: Donor, blocks: Range<u64>) {
        if self.copies_under_way(CopyReason::Repair) < REPAIRS_MAX {
            self.begin_copy(donor, CopyReason::Repair, blocks);
        }
    }

    /// Stops the copies to a donor that is no longer being filled.
    pub(super) fn drop_copies_to(&mut self, donor: Donor) {
        let is_to =
            |operation: &InPlaceOperation| matches!(operation.work, InPlaceWork::Copy { to, .. } if to == donor);
        let numbers: Vec<u64> =
            self.operations.iter().filter(|(_, operation)| is_to(operation)).map(|(number, _)| *number).collect();
        for number in numbers {
            if let Some(operation) = self.operations.remove(&number) {
                self.stop_copy(number, operation, donor);
            }
        }
    }

    pub(super) fn drive_copy(&mut self, number: u64, mut operation: InPlaceOperation, to: Donor, why: CopyReason) {
        if why == CopyReason::Resync && self.group.standing().contains(&DonorStanding::Leaving) {
            self.operations.insert(number, operation);
            return;
        }
        let is_wanted = match self.group.standing()[to] {
            DonorStanding::Trusted => why != CopyReason::Rebuild,
            DonorStanding::Rebuilding => why == CopyReason::Rebuild,
            DonorStanding::Leaving | DonorStanding::Out | DonorStanding::Lost => false,
        };
        if !is_wanted {
            return self.stop_copy(number, operation, to);
        }
        let piece = &mut operation.pieces[0];
        let may_go_on = self.ask_copy_of_member(number, piece, to, why)
            || why == CopyReason::Rebuild && self.give_up_wrong_blocks(&mut operation, to)
            || why == CopyReason::Resync && self.take_other_copy(number, &mut operation.pieces[0], to);
        if !may_go_on {
            return self.end_copy(number, operation, false);
        }
        if operation.pieces[0].data.is_some() {
            if operation.parts.is_empty() {
                let wrong = &operation.pieces[0].wrong;
                let to = if why == CopyReason::Resync && !wrong.is_empty() { wrong.clone() } else { vec![to] };
                operation.parts =
                    to.into_iter().map(|donor| DonorPiece { donor, piece: 0, state: PartState::Unsent }).collect();
            }
            for at in 0..operation.parts.len() {
                self.send_copy(number, &mut operation, at);
            }
            if operation.is_settled() {
                let is_done = operation.parts.iter().all(|part| part.state == PartState::Done);
                return self.end_copy(number, operation, is_done);
            }
        }
        self.operations.insert(number, operation);
    }

    /// Stops a copy. What another donor than its target is about to store is waited for.
    fn stop_copy(&mut self, number: u64, mut operation: InPlaceOperation, to: Donor) {
        for part in operation.parts.iter_mut().filter(|part| part.donor == to || part.state == PartState::Unsent) {
            part.state = PartState::Excused;
        }
        match operation.is_settled() {
            true => self.end_copy(number, operation, false),
            false => _ = self.operations.insert(number, operation),
        }
    }

    /// Whether the stripe was read for the rebuild before, with wrong bytes.
    pub(super) fn is_known_to_be_wrong(&self, stripe: u64) -> bool {
        self.rebuild.as_ref().is_some_and(|rebuild| rebuild.wrong_since_us.contains_key(&stripe))
    }

    /// Gives up the blocks of a stripe that a source returns wrong, if it has done so for `patience`: they are lost, on
    /// every donor. *Returns* whether the copy can go on.
    fn give_up_wrong_blocks(&mut self, operation: &mut InPlaceOperation, to: Donor) -> bool {
        let piece = &operation.pieces[0];
        let is_wrong = !piece.doubted.is_empty() || piece.read.len() == self.rows.parity();
        let Some(rebuild) = self.rebuild.as_mut().filter(|_| is_wrong) else { return false };
        let since_us = *rebuild.wrong_since_us.entry(piece.stripe).or_insert(self.group.now_us());
        self.group.now_us() >= since_us + self.group.patience_us() && self.give_up_columns(operation, to)
    }

    /// Overwrites the blocks of a piece that a donor returned wrong, in ranges. What the client has not written is not
    /// touched: nobody knows which copy is right.
    pub(super) fn repair_wrong_blocks(&mut self, piece: &StripePiece) {
        let size = self.group.geometry().block_bytes as usize;
        for donor in &piece.wrong {
            let data = piece.doubted.get(donor).map(|data| data.as_ref()).unwrap_or_default();
            let blocks = piece.blocks.clone().zip(data.chunks(size));
            let wrong = blocks.filter(|(block, bytes)| self.checksums.is_right(*block, bytes) == Some(false));
            let wrong: Vec<u64> = wrong.map(|(block, _)| block).collect();
            for range in wrong.chunk_by(|block, next| block + 1 == *next) {
                self.begin_repair(*donor, range[0]..range[range.len() - 1] + 1);
            }
        }
    }

    fn send_copy(&mut self, number: u64, operation: &mut InPlaceOperation, at: usize) {
        let DonorPiece { donor, piece, state } = operation.parts[at];
        if state != PartState::Unsent || !self.group.is_claimed(donor) {
            return;
        }
        let piece = &operation.pieces[piece];
        let (Some(offset), Some(data)) = (self.offset_on(donor, piece), piece.data.clone()) else { return };
        let body = DonorRequest::Write { offset, data, force: false };
        operation.parts[at].state = PartState::Sent;
        self.ask_donor(donor, InPlaceRequest::Part { operation: number, part: at, donor }, body);
    }

    fn end_copy(&mut self, number: u64, operation: InPlaceOperation, is_done: bool) {
        let InPlaceWork::Copy { to, why } = operation.work else { return };
        let stripe = operation.pieces[0].stripe;
        match why {
            CopyReason::Resync => {
                self.figures.resynchronised += u64::from(is_done);
                self.dirty.end(stripe, self.group.now_us());
            }
            CopyReason::Rebuild => {
                if let Some(rebuild) = self.rebuild.as_mut().filter(|rebuild| rebuild.donor == to && is_done) {
                    rebuild.copied.set(stripe, true);
                    rebuild.wrong_since_us.remove(&stripe);
                }
            }
            CopyReason::Repair => self.figures.repaired += u64::from(is_done),
        }
        self.has_changed = true;
        let block = operation.blocks.start;
        let result = if is_done { Ok(Bytes::new()) } else { Err(DeviceError::Lost { block }) };
        self.finish(number, operation, result);
    }
}
