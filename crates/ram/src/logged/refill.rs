//! Filling a donor that was left and has returned.
//!
//! Owns: the contents that the donor gets, and the progress. Promises: when the donor is trusted again, its contents
//! are correct, and no older data is left on it that a later recovery could find. Leaves to others: the decision when a
//! donor is filled, and when it is trusted (the base).
//!
//! | on the donor | it gets |
//! |---|---|
//! | shape, trims | the client's values |
//! | spares | zeroes, then the two newest parities of each open group |
//! | a group in the client's memory | its slot; if the donor has the parity, an erased summary |
//! | a sealed group | its slot or parity, computed from the other donors, and then the summary |
//! | a free group, or one that is used again | an erased header or summary |
//!
//! A slot of a sealed group whose header is damaged on another donor is replaced by one that says that its block is lost.
//!
//! New writes are sent to the donor during the filling, too.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::configuration::REFILLS_MAX;
use super::groups::{BufferedGroup, SpareParity, empty_summary, named};
use super::machine::{ParityLogMachine, ParityLogPhase};
use super::planted::{Bug, planted};
use super::progress::DonorRefill;
use super::slot_reads::{SlotRead, SlotReadPart, SlotReadPurpose};
use super::steps::TaskWork;
use super::stores::DonorWrite;
use crate::format::slots::{SLOT_HEADER_BYTES, SummaryKind, xor};
use crate::group::{DeviceError, Donor, DonorStanding};
use xxhash_rust::xxh3::xxh3_64;

impl ParityLogMachine {
    /// Whether a donor that is being filled has its part of a row already.
    pub(super) fn is_refilled(&self, donor: Donor, row: u32) -> bool {
        self.refill.as_ref().is_some_and(|refill| refill.donor == donor && refill.done.contains(&row))
    }

    /// Notes that a row is reused, so that its slots need not be computed. What the donor has of its former life, of
    /// which an earlier recovery may have done without, is erased before the donor is trusted.
    pub(super) fn refill_opened(&mut self, row: u32) {
        let Some(refill) = self.refill.as_mut() else { return };
        refill.begun.insert(row);
        let (donor, is_done) = (refill.donor, refill.done.contains(&row));
        if planted(Bug::ErasureUnawaited) {
            refill.done.insert(row);
        } else if !is_done {
            self.refill_put(vec![vec![self.blank(donor, row)]], Some(row));
        }
    }

    /// Returns the write that erases what a donor has of a row: the header of its slot, or the summary.
    fn blank(&self, donor: Donor, row: u32) -> DonorWrite {
        match self.areas.member_on(row, donor) {
            Some(_) => {
                let data = Bytes::from(vec![0; SLOT_HEADER_BYTES]);
                DonorWrite { donor, offset: self.areas.slot(row), data }
            }
            None => self.erasure(row),
        }
    }

    /// Returns the donor that is filled, the number of groups of which it has its part, and the number of all groups.
    pub fn rebuild_progress(&self) -> Option<(Donor, u64, u64)> {
        let refill = self.refill.as_ref()?;
        Some((refill.donor, refill.done.len() as u64, u64::from(self.shape.groups)))
    }

    /// Lets filling continue; returns whether it did.
    pub(super) fn drive_refill(&mut self) -> bool {
        let standing = self.group.standing();
        let donor = standing.iter().position(|standing| *standing == DonorStanding::Rebuilding);
        let joined = donor.map(|donor| (donor, self.group.view().members[donor].joined));
        let known = self.refill.as_ref().map(|refill| (refill.donor, refill.joined));
        if joined != known {
            self.drop_refill();
            if let Some((donor, joined)) = joined.filter(|_| self.phase == ParityLogPhase::Open) {
                self.excuse_earlier(donor);
                self.begin_refill(donor, joined);
            }
            return joined.is_some() && self.phase == ParityLogPhase::Open;
        }
        let Some(refill) = &mut self.refill else { return false };
        let donor = refill.donor;
        let others = refill.puts.values().filter(|row| row.is_none()).count();
        if refill.next_region < self.areas.regions() && others < REFILLS_MAX {
            let region = refill.next_region;
            refill.next_region += 1;
            self.refill_trims(donor, region);
            return true;
        }
        if refill.next < self.shape.groups && refill.looking.len() + refill.pinned.len() < REFILLS_MAX {
            let row = refill.next;
            refill.next += 1;
            if !refill.begun.contains(&row) {
                self.refill_row(donor, row);
            }
            return true;
        }
        let is_begun = refill.next == self.shape.groups && refill.next_region == self.areas.regions();
        if is_begun && refill.looking.is_empty() && refill.puts.is_empty() {
            self.group.filled(donor);
        }
        false
    }

    /// Drops writes that were meant for the donor's former memory: if a task has done some of its writes there, the
    /// others must not reach the new memory. These writes count as done, because the other donors have stored that this
    /// donor was left.
    fn excuse_earlier(&mut self, donor: Donor) {
        loop {
            let tasks = self.stores.excuse(donor);
            if tasks.is_empty() {
                return;
            }
            tasks.into_iter().for_each(|task| self.store_done(task));
        }
    }

    fn drop_refill(&mut self) {
        if let Some(refill) = self.refill.take() {
            // What they would store next belongs to the donor's former memory.
            for number in refill.puts.keys() {
                if let Some(task) = self.steps.tasks.get_mut(number) {
                    task.stages.clear();
                }
            }
            refill.pinned.iter().for_each(|row| self.unpin(*row));
            let is_refill = |look: &SlotRead| matches!(look.purpose, SlotReadPurpose::Refill);
            let numbers: Vec<u64> =
                self.reads.list.iter().filter(|(_, look)| is_refill(look)).map(|(number, _)| *number).collect();
            for number in numbers {
                if let Some(look) = self.reads.list.remove(&number) {
                    self.unpin(look.row);
                }
            }
        }
    }

    fn refill_put(&mut self, stages: Vec<Vec<DonorWrite>>, row: Option<u32>) {
        let number = self.put(stages);
        if let Some(refill) = &mut self.refill {
            refill.puts.insert(number, row);
        }
        // A task that was added earlier, and begins only now, must not be overtaken: zeroes would replace its parity.
        self.begin_put(number);
    }

    fn begin_refill(&mut self, donor: Donor, joined: u64) {
        let (done, looking, pinned) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let begun = BTreeSet::new();
        self.refill = Some(DonorRefill {
            donor,
            joined,
            done,
            begun,
            next: 0,
            next_region: 0,
            looking,
            puts: BTreeMap::new(),
            pinned,
        });
        let write = |offset: u64, data: Vec<u8>| DonorWrite { donor, offset, data: Bytes::from(data) };
        let mut writes = vec![write(0, self.shape.encode())];
        for spare in 0..self.areas.spares {
            writes.push(write(self.areas.spare(spare), vec![0; self.areas.summary_bytes as usize]));
        }
        self.refill_put(vec![writes], None);
        self.seal_again(donor);
        // A row may have two lives: one that is still needed, and one that begins when the first ends.
        let is_there = |group: &BufferedGroup| group.is_opening;
        let groups = self.groups.lives.iter().filter(|(_, group)| is_there(group));
        let groups: Vec<(u32, u64)> = groups.map(|(life, group)| (group.row, *life)).collect();
        for (row, life) in groups {
            if let Some(refill) = &mut self.refill {
                refill.begun.insert(row);
            }
            match planted(Bug::OpenGroupsNotRefilled) {
                true => self.refill_opened(row),
                false => self.refill_group(donor, row, life),
            }
        }
    }

    /// Lets the tasks begin again that have stored the parity of a full group in the donor's former memory, and not its
    /// summary.
    fn seal_again(&mut self, donor: Donor) {
        for number in self.steps.held.iter().copied().collect::<Vec<u64>>() {
            let Some(task) = self.steps.tasks.get_mut(&number) else { continue };
            let TaskWork::Parity { life, .. } = task.work else { continue };
            let is_here = |group: &BufferedGroup| self.areas.parity_donor(group.row) == donor;
            if self.groups.lives.get(&life).is_some_and(is_here) {
                task.has_begun = false;
                task.stages.clear();
                self.steps.held.remove(&number);
                self.steps.unbegun.insert(number);
                self.steps.may_begin = true;
            }
        }
    }

    /// Writes a donor's part of a group that is in memory.
    fn refill_group(&mut self, donor: Donor, row: u32, life: u64) {
        let Some(group) = self.groups.lives.get(&life) else { return };
        let mut writes = vec![self.blank(donor, row)];
        match self.areas.member_on(row, donor) {
            Some(member) => {
                // A slot whose data has not arrived, or whose group is not open yet, is sent later.
                let image = group.members.get(usize::from(member)).and_then(|member| member.image.clone());
                if let Some(data) = image.filter(|_| group.is_open) {
                    writes = vec![DonorWrite { donor, offset: self.areas.slot(row), data }];
                }
            }
            None => {
                let spares = group.spare_before.iter().chain(&group.spare).cloned();
                writes.extend(spares.map(|SpareParity { offset, bytes }| DonorWrite { donor, offset, data: bytes }));
            }
        }
        self.refill_put(vec![writes], Some(row));
    }

    fn refill_trims(&mut self, donor: Donor, region: u64) {
        let blocks = self.areas.region(region);
        let mut writes = self.trim_writes(blocks.start, blocks.len() as u32, |block| self.blocks.trims[block as usize]);
        writes.retain(|write| write.donor == donor);
        if !writes.is_empty() {
            self.refill_put(vec![writes], None);
        }
    }

    fn refill_row(&mut self, donor: Donor, row: u32) {
        // A group that the placement counts as free may still be needed until all earlier steps are done.
        if !self.reuse.free.contains(&row) {
            if let Some(refill) = &mut self.refill {
                refill.looking.insert(row);
            }
            return self.look_at(row, donor, None, SlotReadPurpose::Refill);
        }
        *self.reuse.pins.entry(row).or_insert(0) += 1;
        if let Some(refill) = &mut self.refill {
            refill.pinned.insert(row);
        }
        self.refill_put(vec![vec![self.blank(donor, row)]], Some(row));
    }

    /// Handles the slots of a sealed group, which were read from all donors except the one being filled.
    pub(super) fn refill_read(&mut self, look: SlotRead, result: Result<Bytes, DeviceError>) {
        let (row, donor) = (look.row, look.target);
        let Some(refill) = &mut self.refill else { return self.unpin(row) };
        refill.looking.remove(&row);
        refill.pinned.insert(row);
        self.figures.refilled += 1;
        let Ok(whole) = result else {
            refill.pinned.remove(&row);
            refill.next = refill.next.min(row);
            return self.unpin(row);
        };
        let stages = match self.areas.member_on(row, donor) {
            Some(_) => vec![vec![DonorWrite { donor, offset: self.areas.slot(row), data: whole }]],
            None => self.refill_parity(&look, whole.to_vec()),
        };
        self.refill_put(stages, Some(row));
    }

    /// Returns the stages that store the parity and the summary of a sealed group.
    fn refill_parity(&self, look: &SlotRead, mut parity: Vec<u8>) -> Vec<Vec<DonorWrite>> {
        let row = look.row;
        let generation = self.group.generation();
        let mut summary = empty_summary(SummaryKind::Sealed, self.device, generation, row, self.shape.members);
        let mut slots = Vec::new();
        for (donor, part) in look.parts.iter().enumerate() {
            let (SlotReadPart::Got(image), Some(member)) = (part, self.areas.member_on(row, donor)) else { continue };
            let entry = &mut summary.members[usize::from(member)];
            *entry = named(image);
            // A block whose slot has a damaged header must not seem to be older.
            if entry.is_none()
                && self.is_sealed(row)
                && let Some(block) = self.placement.owner(row, member)
            {
                let lost = self.image(row, member, block, self.blocks.newest[block as usize], None);
                xor(&mut parity, image);
                xor(&mut parity, &lost);
                *entry = named(&lost);
                slots.push(DonorWrite { donor, offset: self.areas.slot(row), data: lost });
            }
        }
        summary.parity_checksum = xxh3_64(&parity);
        std::iter::once(slots).chain(self.seal_stages(row, parity, &summary)).collect()
    }

    /// Notes that writes of a filling, or of the scrub, are done.
    pub(super) fn put_done(&mut self, number: u64) {
        if self.scrub_written(number) {
            return;
        }
        let Some(refill) = &mut self.refill else { return };
        let Some(Some(row)) = refill.puts.remove(&number) else { return };
        refill.done.insert(row);
        if refill.pinned.remove(&row) {
            self.unpin(row);
        }
    }
}
