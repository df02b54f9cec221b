//! Reading slots: from their donor, or from the parity and the other slots of their group.
//!
//! Owns: reads of slots in progress, and the choice between direct reading and parity. Promises: the result is the
//! requested slot, verified by header and checksums; a group is not reused while it is read. Leaves to others: finding
//! the slot of a block (`operations`).
//!
//! Parity is used when the donor is left, is being filled and lacks the slot, gave wrong bytes, or is late.

use bytes::Bytes;

use super::calls::SlotData;
use super::groups::contents;
use super::machine::ParityLogMachine;
use super::slot_reads::{SlotRead, SlotReadPart, SlotReadPurpose};
use crate::format::slots::{SlotHeader, xor};
use crate::group::{DeviceError, Donor, DonorRequest, DonorStanding};

impl ParityLogMachine {
    /// Begins to read a slot of a donor.
    pub(super) fn look_at(&mut self, row: u32, target: Donor, wanted: Option<(u32, u64)>, purpose: SlotReadPurpose) {
        let parts = vec![SlotReadPart::Unsent; self.group.standing().len()];
        self.reads.last += 1;
        let number = self.reads.last;
        *self.reuse.pins.entry(row).or_insert(0) += 1;
        let is_wide = wanted.is_none();
        self.reads.ready.insert(number);
        self.reads.list.insert(number, SlotRead { row, target, wanted, purpose, parts, is_wide, is_hedged: false });
    }

    pub(super) fn unpin(&mut self, row: u32) {
        if let Some(count) = self.reuse.pins.get_mut(&row) {
            *count -= 1;
            self.steps.may_begin = true;
            if *count == 0 {
                self.reuse.pins.remove(&row);
            }
        }
    }

    /// Whether a donor has its part of a row.
    pub(super) fn is_readable(&self, donor: Donor, row: u32) -> bool {
        match self.group.standing()[donor] {
            DonorStanding::Trusted => true,
            DonorStanding::Rebuilding => self.is_refilled(donor, row),
            DonorStanding::Leaving | DonorStanding::Out | DonorStanding::Lost => false,
        }
    }

    /// Lets every read continue; returns whether one ended.
    pub(super) fn drive_looks(&mut self) -> bool {
        let of_donor = |donor: usize| (self.group.is_claimed(donor), self.group.standing()[donor]);
        let now: Vec<(bool, DonorStanding)> = (0..self.group.standing().len()).map(of_donor).collect();
        if now != self.reads.looked_with {
            self.reads.looked_with = now;
            self.reads.ready.extend(self.reads.list.keys().copied());
        }
        let mut has_moved = false;
        while let Some(number) = self.reads.ready.pop_first() {
            let Some(mut look) = self.reads.list.remove(&number) else { continue };
            match self.drive_look(number, &mut look) {
                Some(result) => {
                    has_moved = true;
                    self.end_look(look, result);
                }
                None => _ = self.reads.list.insert(number, look),
            }
        }
        has_moved
    }

    fn drive_look(&mut self, number: u64, look: &mut SlotRead) -> Option<Result<Bytes, DeviceError>> {
        let block = look.wanted.map_or(0, |(block, _)| u64::from(block));
        if look.wanted.is_some() {
            if let SlotReadPart::Got(bytes) = look.parts[look.target].clone() {
                if self.is_wanted(look, &bytes) {
                    return Some(Ok(bytes));
                }
                look.parts[look.target] = SlotReadPart::Wrong;
                self.group.trouble(look.target);
            }
            let can_answer = self.is_readable(look.target, look.row);
            let is_wrong = matches!(look.parts[look.target], SlotReadPart::Wrong);
            if can_answer && !is_wrong {
                self.ask(number, look, look.target);
            }
            if !look.is_wide && can_answer && !is_wrong && self.group.is_suspect(look.target) {
                (look.is_wide, look.is_hedged) = (true, true);
            }
            look.is_wide |= !can_answer || is_wrong;
            if !look.is_wide {
                return None;
            }
            // If two donors cannot answer, one of them may return: the slot is lost only if both have lost their
            // contents.
            let others_gone = self.is_gone_beside(look.target, look.row);
            if others_gone && (is_wrong || self.is_gone(look.target, look.row)) {
                let error = if is_wrong { DeviceError::Corrupt { block } } else { DeviceError::Lost { block } };
                return Some(Err(error));
            }
            if others_gone {
                return None;
            }
        }
        let others: Vec<Donor> = (0..look.parts.len()).filter(|donor| *donor != look.target).collect();
        for donor in &others {
            if self.is_readable(*donor, look.row) {
                self.ask(number, look, *donor);
            }
        }
        let mut whole = vec![0; self.areas.slot_bytes as usize];
        for donor in &others {
            let SlotReadPart::Got(bytes) = &look.parts[*donor] else { return None };
            xor(&mut whole, bytes);
        }
        let whole = Bytes::from(whole);
        if look.wanted.is_some() && !self.is_wanted(look, &whole) {
            // Another slot of the group is damaged; a donor that is only late still gives the right one.
            let is_late =
                self.is_readable(look.target, look.row) && !matches!(look.parts[look.target], SlotReadPart::Wrong);
            return if is_late { None } else { Some(Err(DeviceError::Corrupt { block })) };
        }
        self.figures.reconstructed += u64::from(look.wanted.is_some());
        self.figures.hedged += u64::from(look.is_hedged);
        Some(Ok(whole))
    }

    /// Whether a donor has lost its part of a row and gets it back only by filling.
    fn is_gone(&self, donor: Donor, row: u32) -> bool {
        matches!(self.group.standing()[donor], DonorStanding::Out | DonorStanding::Lost)
            || self.group.standing()[donor] == DonorStanding::Rebuilding && !self.is_refilled(donor, row)
    }

    fn is_gone_beside(&self, target: Donor, row: u32) -> bool {
        (0..self.group.standing().len()).any(|donor| donor != target && self.is_gone(donor, row))
    }

    fn is_wanted(&self, look: &SlotRead, bytes: &[u8]) -> bool {
        let Some((block, sequence)) = look.wanted else { return true };
        let found =
            SlotHeader::decode_whole(bytes).map(|(slot, _)| (slot.device, slot.group, slot.block, slot.sequence));
        found == Ok((self.device, look.row, block, sequence))
    }

    fn ask(&mut self, number: u64, look: &mut SlotRead, donor: Donor) {
        if matches!(look.parts[donor], SlotReadPart::Unsent) && self.group.is_claimed(donor) {
            let body = DonorRequest::Read { offset: self.areas.slot(look.row), bytes: self.areas.slot_bytes };
            self.ask_donor(donor, super::machine::DonorRequestPurpose::Look { number, donor }, body);
            look.parts[donor] = SlotReadPart::Sent;
        }
    }

    fn end_look(&mut self, look: SlotRead, result: Result<Bytes, DeviceError>) {
        match look.purpose {
            SlotReadPurpose::Operation { number, at } => {
                let block = look.wanted.map_or(0, |(block, _)| u64::from(block));
                let data = result.and_then(|bytes| contents(&bytes).ok_or(DeviceError::Lost { block }));
                self.answer(number, at, data.map(|data| SlotData { data, is_from_memory: false }));
                self.unpin(look.row);
            }
            SlotReadPurpose::Fetch { task } => {
                self.unpin(look.row);
                // That the contents are lost is moved, too: otherwise the group could not be emptied.
                self.fetched(task, result.ok().and_then(|bytes| contents(&bytes)));
            }
            SlotReadPurpose::Refill => self.refill_read(look, result),
        }
    }
}
