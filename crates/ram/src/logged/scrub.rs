//! The scrub of a device that logs parity: the slots of every sealed group are read and compared with the group's
//! parity and summary, those of an open group with the client's memory, and so are the trims.
//!
//! Owns: the comparison of a group, and overwriting what is wrong. Promises: a group is not reused while it is compared;
//! bytes are overwritten only with bytes that the summary's checksums confirm, or that the client's memory has. Leaves
//! to others: the pace and the findings (`crate::scrub`); free groups, which nobody needs.
//!
//! | of a sealed group is wrong | then |
//! |---|---|
//! | one slot, or the parity | it is computed from all others, compared with its checksum, and overwritten |
//! | slots that the group did not use | one of them is computed from all others and overwritten |
//! | the summary | it is made from the slots, if their XOR is the parity |
//! | more | the slots are lost |
//!
//! A pass goes over the groups, and then over the regions of trims.
//!
//! As with a mirror, a step waits for no late donor, and the scrub waits while a donor is not trusted.

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::groups::{GroupMember, SpareParity, empty_summary, is_whole, named};
use super::machine::{DonorRequestPurpose, ParityLogMachine, ParityLogPhase};
use super::planted::{Bug, planted};
use super::progress::{GroupScrubStep, MemoryUnit, ScrubReference};
use super::slot_reads::SlotReadPart;
use super::steps::{PlacementTask, TaskWork};
use super::stores::DonorWrite;
use crate::format::slots::{CoveredMember, DonorAreas, GroupSummary, SlotHeader, SlotShape, SummaryKind, xor};
use crate::group::{Donor, DonorRequest, DonorStanding};
use crate::scrub::{ScrubFindings, ScrubProgress};

/// What is wrong with a group.
#[derive(Debug, PartialEq, Eq)]
enum GroupVerdict {
    Good,
    /// The slot of a donor must have these bytes.
    Slot(Donor, Vec<u8>),
    /// The group must have this summary.
    Summary(GroupSummary),
    /// This number of slots is lost.
    Lost(u64),
}

impl ParityLogMachine {
    /// Returns the progress of the scrub and its findings.
    pub fn scrub_progress(&self) -> ScrubProgress {
        self.scrub.pace.progress(self.now_us)
    }

    /// Lets the scrub continue; returns whether it did.
    pub(super) fn drive_scrub(&mut self) -> bool {
        let is_whole = self.group.standing().iter().all(|standing| *standing == DonorStanding::Trusted);
        let may_read = self.phase == ParityLogPhase::Open && is_whole && self.group.is_view_stored();
        let Some(mut step) = self.scrub.step.take() else { return may_read && self.begin_scrub() };
        if step.put.is_some() {
            self.scrub.step = Some(step);
            return false;
        }
        let has_ended = match step.against {
            ScrubReference::Memory { of: MemoryUnit::Life(life), .. } => !self.groups.lives.contains_key(&life),
            _ => false,
        };
        let donors = self.group.standing().len();
        if !may_read || has_ended || (0..donors).any(|donor| self.group.is_suspect(donor)) {
            self.end_scrub(step, false);
            return true;
        }
        for at in 0..step.parts.len() {
            self.ask_scrub(&mut step, at);
        }
        let got = |part: &SlotReadPart| if let SlotReadPart::Got(bytes) = part { Some(bytes.clone()) } else { None };
        let Some(read) = step.parts.iter().map(got).collect::<Option<Vec<Bytes>>>() else {
            self.scrub.step = Some(step);
            return false;
        };
        let writes = match &step.against {
            ScrubReference::Parity => self.mend_sealed(step.unit as u32, read, &mut step.found),
            ScrubReference::Memory { of, stored } => self.mend_known(*of, stored, &read),
        };
        if writes.is_empty() {
            self.end_scrub(step, true);
        } else {
            step.found.repaired = writes.len() as u64;
            let number = self.put(vec![writes]);
            step.put = Some(number);
            self.scrub.step = Some(step);
            // A newer parity of an open group must not be overwritten.
            self.begin_put(number);
        }
        true
    }

    /// Returns the write that corrects a sealed group.
    fn mend_sealed(&self, row: u32, mut slots: Vec<Bytes>, found: &mut ScrubFindings) -> Vec<DonorWrite> {
        let summary = slots.pop().unwrap_or_default();
        match self.judge(row, &slots, &summary) {
            GroupVerdict::Good => Vec::new(),
            GroupVerdict::Slot(donor, data) => {
                vec![DonorWrite { donor, offset: self.areas.slot(row), data: Bytes::from(data) }]
            }
            GroupVerdict::Summary(summary) => {
                let (donor, data) = (self.areas.parity_donor(row), Bytes::from(summary.encode()));
                vec![DonorWrite { donor, offset: self.areas.summary(row), data }]
            }
            GroupVerdict::Lost(lost) => {
                found.lost = lost;
                Vec::new()
            }
        }
    }

    /// Returns the writes that correct what the client's memory has, too. What was replaced meanwhile stays as it is.
    fn mend_known(&self, of: MemoryUnit, stored: &[DonorWrite], read: &[Bytes]) -> Vec<DonorWrite> {
        let present = match of {
            MemoryUnit::Life(life) => self.stored_of(life),
            MemoryUnit::Region(region) => self.trims_of(region),
        };
        let is_present = |write: &&DonorWrite| {
            present
                .iter()
                .any(|other| (other.donor, other.offset, &other.data) == (write.donor, write.offset, &write.data))
        };
        let wrong = stored.iter().zip(read).filter(|(write, read)| write.data != *read).map(|(write, _)| write);
        wrong.filter(is_present).cloned().collect()
    }

    /// Returns what donors have stored of an open group that the client's memory has, too: whole slots, and the parity
    /// that was stored last.
    fn stored_of(&self, life: u64) -> Vec<DonorWrite> {
        let Some(group) = self.groups.lives.get(&life) else { return Vec::new() };
        let slot = |(at, member): (usize, &GroupMember)| {
            let data = member.image.clone().filter(|_| !self.steps.tasks.contains_key(&member.step))?;
            Some(DonorWrite {
                donor: self.areas.member_donor(group.row, at as u8),
                offset: self.areas.slot(group.row),
                data,
            })
        };
        let mut stored: Vec<DonorWrite> = group.members.iter().enumerate().filter_map(slot).collect();
        let is_parity = |task: &PlacementTask| matches!(task.work, TaskWork::Parity { life: of, .. } if of == life);
        if !self.steps.tasks.values().any(is_parity)
            && let Some(SpareParity { offset, bytes }) = group.spare.clone()
        {
            stored.push(DonorWrite { donor: self.areas.parity_donor(group.row), offset, data: bytes });
        }
        stored
    }

    /// Returns what donors have stored of the trims of a region; nothing, if some are being stored.
    fn trims_of(&self, region: u64) -> Vec<DonorWrite> {
        let blocks = self.areas.region(region);
        let meets = |task: &PlacementTask| match task.work {
            TaskWork::Trim { first, count, .. } => first < blocks.end && blocks.start < first + count,
            _ => false,
        };
        if self.steps.tasks.values().any(meets) {
            return Vec::new();
        }
        self.trim_writes(blocks.start, blocks.len() as u32, |block| self.blocks.trims[block as usize])
    }

    /// Returns what donors have stored of a group that is open: donors, offsets and lengths.
    pub fn stored_of_open(&self, group: u32) -> Vec<(Donor, u64, u64)> {
        let life = self.groups.newest.get(&group).copied();
        let stored = life.map(|life| self.stored_of(life)).unwrap_or_default();
        stored.into_iter().map(|write| (write.donor, write.offset, write.data.len() as u64)).collect()
    }

    /// Returns what a group or region is compared with; `None` if the group is free, or nothing is stored.
    fn against(&self, unit: u64) -> Option<ScrubReference> {
        let (of, stored) = match unit.checked_sub(u64::from(self.shape.groups)) {
            Some(region) => (MemoryUnit::Region(region), self.trims_of(region)),
            None if self.is_sealed(unit as u32) => return Some(ScrubReference::Parity),
            None => {
                let life = self.groups.newest.get(&(unit as u32)).copied()?;
                (MemoryUnit::Life(life), self.stored_of(life))
            }
        };
        (!stored.is_empty()).then_some(ScrubReference::Memory { of, stored })
    }

    /// Returns the number of the steps of a pass: one for each group and each region of trims.
    pub(super) fn scrub_units(shape: &SlotShape) -> u64 {
        u64::from(shape.groups) + DonorAreas::new(shape).regions()
    }

    /// Begins with the next group in use, or region, if a step is due; returns whether it did.
    fn begin_scrub(&mut self) -> bool {
        let Some(next) = self.scrub.pace.due(self.now_us) else { return false };
        let units = ParityLogMachine::scrub_units(&self.shape);
        let found = (next..units).find_map(|unit| Some((unit, self.against(unit)?)));
        let Some((unit, against)) = found else {
            self.scrub.pace.done(self.now_us, units, ScrubFindings::default());
            return true;
        };
        if unit < u64::from(self.shape.groups) {
            *self.reuse.pins.entry(unit as u32).or_insert(0) += 1;
        }
        self.scrub.pace.begin();
        self.scrub.begun += 1;
        let parts = match &against {
            ScrubReference::Parity => vec![SlotReadPart::Unsent; self.group.standing().len() + 1],
            ScrubReference::Memory { stored, .. } => vec![SlotReadPart::Unsent; stored.len()],
        };
        self.scrub.step = Some(GroupScrubStep {
            unit,
            against,
            attempt: self.scrub.begun,
            parts,
            put: None,
            found: ScrubFindings::default(),
        });
        true
    }

    fn ask_scrub(&mut self, step: &mut GroupScrubStep, at: usize) {
        let row = step.unit as u32;
        let (donor, offset, bytes) = match &step.against {
            ScrubReference::Memory { stored, .. } => {
                (stored[at].donor, stored[at].offset, stored[at].data.len() as u64)
            }
            ScrubReference::Parity if at + 1 == step.parts.len() => {
                (self.areas.parity_donor(row), self.areas.summary(row), self.areas.summary_bytes)
            }
            ScrubReference::Parity => (at, self.areas.slot(row), self.areas.slot_bytes),
        };
        if matches!(step.parts[at], SlotReadPart::Unsent) && self.group.is_claimed(donor) {
            let attempt = step.attempt;
            self.ask_donor(donor, DonorRequestPurpose::Scrub { attempt, at }, DonorRequest::Read { offset, bytes });
            step.parts[at] = SlotReadPart::Sent;
        }
    }

    /// Handles the answer to a read of the scrub.
    pub(super) fn scrub_read(&mut self, attempt: u64, at: usize, data: Option<Bytes>) {
        if let Some(step) = self.scrub.step.as_mut().filter(|step| step.attempt == attempt) {
            step.parts[at] = data.map_or(SlotReadPart::Unsent, SlotReadPart::Got);
        }
    }

    /// Handles a finished task, if it is the one that overwrites what was wrong; returns whether it is.
    pub(super) fn scrub_written(&mut self, task: u64) -> bool {
        match self.scrub.step.take_if(|step| step.put == Some(task)) {
            Some(step) => {
                self.end_scrub(step, true);
                true
            }
            None => false,
        }
    }

    fn end_scrub(&mut self, step: GroupScrubStep, is_done: bool) {
        if step.unit < u64::from(self.shape.groups) {
            self.unpin(step.unit as u32);
        }
        let next = step.unit + 1 + u64::from(planted(Bug::ScrubSkips));
        match is_done {
            true => self.scrub.pace.done(self.now_us, next, step.found),
            false => self.scrub.pace.dropped(self.now_us),
        }
    }

    /// Compares the slots of a sealed group, by donor, with each other and with the summary.
    fn judge(&self, row: u32, slots: &[Bytes], summary: &[u8]) -> GroupVerdict {
        let parity_donor = self.areas.parity_donor(row);
        let sum = |except: Option<Donor>| {
            let mut sum = vec![0; self.areas.slot_bytes as usize];
            let others = slots.iter().enumerate().filter(|(donor, _)| Some(*donor) != except);
            others.for_each(|(_, slot)| xor(&mut sum, slot));
            sum
        };
        let is_even = sum(None).iter().all(|byte| *byte == 0);
        let is_ours = |summary: &GroupSummary| {
            let is_whole = summary.members.len() == usize::from(self.shape.members);
            summary.kind == SummaryKind::Sealed && summary.device == self.device && summary.group == row && is_whole
        };
        let Some(summary) = GroupSummary::decode(summary).ok().filter(is_ours) else {
            return if is_even { GroupVerdict::Summary(self.summary_of(row, slots)) } else { GroupVerdict::Lost(1) };
        };
        let wanted = |donor: Donor| -> Option<CoveredMember> {
            self.areas.member_on(row, donor).and_then(|member| summary.members[usize::from(member)])
        };
        let is_right = |donor: Donor, slot: &[u8]| match wanted(donor) {
            _ if donor == parity_donor => xxh3_64(slot) == summary.parity_checksum,
            Some(wanted) => is_whole(slot, wanted),
            None => true,
        };
        let mut wrong: Vec<Donor> = (0..slots.len()).filter(|donor| !is_right(*donor, &slots[*donor])).collect();
        if wrong.is_empty() && !is_even {
            // The parity also covers slots that the group did not use. Nobody reads their contents, so it does not
            // matter which of them is overwritten to make the sum right.
            let is_unused = |donor: &Donor| *donor != parity_donor && wanted(*donor).is_none();
            wrong = (0..slots.len()).find(is_unused).into_iter().collect();
        }
        let donor = match wrong[..] {
            [] if is_even => return GroupVerdict::Good,
            [donor] if planted(Bug::ScrubFromDamaged) && donor != parity_donor => parity_donor,
            [donor] => donor,
            _ => return GroupVerdict::Lost((wrong.len() as u64).max(1)),
        };
        let data = sum(Some(donor));
        let is_sure = is_right(donor, &data) || planted(Bug::ScrubFromDamaged);
        if is_sure { GroupVerdict::Slot(donor, data) } else { GroupVerdict::Lost(1) }
    }

    /// Makes the summary of a group whose slots are right.
    fn summary_of(&self, row: u32, slots: &[Bytes]) -> GroupSummary {
        let generation = self.group.generation();
        let mut summary = empty_summary(SummaryKind::Sealed, self.device, generation, row, self.shape.members);
        for (donor, slot) in slots.iter().enumerate() {
            match self.areas.member_on(row, donor) {
                Some(member) => {
                    let is_ours = |slot: &SlotHeader| {
                        (slot.device, slot.group, slot.member) == (self.device, row, member)
                            && slot.block < self.shape.blocks
                    };
                    let is_slot = SlotHeader::decode(slot).is_ok_and(|slot| is_ours(&slot));
                    summary.members[usize::from(member)] = if is_slot { named(slot) } else { None };
                }
                None => summary.parity_checksum = xxh3_64(slot),
            }
        }
        summary
    }
}
