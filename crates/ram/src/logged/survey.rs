//! Recovery's conclusions from the bytes in the donors' memory, as a pure function.
//!
//! Owns: the rules which copy of a block is valid, which groups were open, and how these are sealed. Leaves to others:
//! reading and writing (`recovery`).

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::groups::{empty_summary, is_whole, named};
use crate::format::slots::{
    CoveredMember, DonorAreas, GroupSummary, SLOT_HEADER_BYTES, SlotHeader, SlotShape, SummaryKind, TrimEntry,
    device_checksum, xor,
};
use crate::group::Donor;

/// A copy of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
struct SurveyedCopy {
    sequence: u64,
    row: u32,
    member: u8,
}

/// The bytes that were read so far, and what they show.
#[derive(Debug)]
pub(super) struct RecoverySurvey {
    shape: SlotShape,
    areas: DonorAreas,
    device: u64,
    generation: u64,
    donors: BTreeMap<Donor, Vec<u8>>,
    sealed: BTreeMap<u32, GroupSummary>,
    /// The newest copy of each block.
    best: Vec<SurveyedCopy>,
    /// Parities of open groups, with their summaries.
    spares: Vec<(GroupSummary, Vec<u8>)>,
    rows: BTreeMap<(u32, u8), Bytes>,
    /// Those of them that were computed.
    restored: BTreeSet<(u32, u8)>,
}

/// A group that was open, and what seals it.
#[derive(Debug, Clone)]
pub(super) struct GroupSeal {
    pub row: u32,
    pub parity: Vec<u8>,
    pub summary: GroupSummary,
    /// Slots that are written before the parity.
    pub slots: Vec<(Donor, Bytes)>,
}

/// The conclusions.
#[derive(Debug)]
pub(super) struct RecoveryPlan {
    /// The sequence of each block's newest copy or trim.
    pub newest: Vec<u64>,
    /// The sequence of each block's newest trim.
    pub trims: Vec<u64>,
    /// Sealed groups that hold something, each with the blocks for which its members are needed.
    pub groups: Vec<(u32, Vec<Option<u32>>)>,
    pub to_seal: Vec<GroupSeal>,
    pub trims_to_repair: Vec<(u32, u64)>,
    pub without_shape: Vec<Donor>,
    /// Groups whose donor of parity has zeroes in place of their summary.
    pub without_summary: Vec<u32>,
    pub recovered_lost: u64,
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

impl RecoverySurvey {
    /// Begins with the areas before the slots, as read from every trusted donor.
    pub fn new(
        shape: SlotShape,
        areas: DonorAreas,
        generation: u64,
        donors: BTreeMap<Donor, Vec<u8>>,
    ) -> RecoverySurvey {
        let best = vec![SurveyedCopy::default(); shape.blocks as usize];
        let (sealed, spares) = (BTreeMap::new(), Vec::new());
        let device = device_checksum(&shape.device);
        let (rows, restored) = (BTreeMap::new(), BTreeSet::new());
        let mut heads =
            RecoverySurvey { shape, areas, device, generation, donors, sealed, best, spares, rows, restored };
        heads.read_summaries();
        heads.read_spares();
        heads
    }

    /// Whether no donor has a shape, which means that the device is new.
    pub fn is_new(&self) -> bool {
        self.donors.values().all(|bytes| SlotShape::is_absent(bytes))
    }

    fn summary(&self, bytes: &[u8], kind: SummaryKind) -> Option<GroupSummary> {
        let is_ours = |summary: &GroupSummary| {
            summary.kind == kind
                && summary.device == self.device
                && summary.generation <= self.generation
                && summary.group < self.shape.groups
                && summary.members.len() == usize::from(self.shape.members)
                && summary.members.iter().flatten().all(|named| named.block < self.shape.blocks)
        };
        GroupSummary::decode(bytes).ok().filter(is_ours)
    }

    fn read_summaries(&mut self) {
        for row in 0..self.shape.groups {
            let Some(bytes) = self.donors.get(&self.areas.parity_donor(row)) else { continue };
            let at = self.areas.in_heads(self.areas.summary(row));
            let summary = bytes.get(at..).and_then(|bytes| self.summary(bytes, SummaryKind::Sealed));
            let Some(summary) = summary.filter(|summary| summary.group == row) else { continue };
            for (member, named) in summary.members.iter().enumerate() {
                if let Some(named) = named {
                    self.consider(named.block, SurveyedCopy { sequence: named.sequence, row, member: member as u8 });
                }
            }
            self.sealed.insert(row, summary);
        }
    }

    fn read_spares(&mut self) {
        let mut found = Vec::new();
        for (donor, bytes) in &self.donors {
            for spare in 0..self.areas.spares {
                let at = self.areas.in_heads(self.areas.spare(spare));
                let Some(bytes) = bytes.get(at..) else { continue };
                let Some(summary) = self.summary(bytes, SummaryKind::Open) else { continue };
                let from = self.areas.summary_bytes as usize;
                let Some(parity) = bytes.get(from..from + self.areas.slot_bytes as usize) else { continue };
                let is_here = self.areas.parity_donor(summary.group) == *donor;
                if is_here && xxh3_64(parity) == summary.parity_checksum && !self.sealed.contains_key(&summary.group) {
                    found.push((summary, parity.to_vec()));
                }
            }
        }
        // What an older parity restores, the newer one of the same group may need.
        found.sort_by_key(|(summary, _)| summary.members.iter().flatten().count());
        self.spares = found;
    }

    /// Returns the groups without a summary.
    pub fn unsealed(&self) -> Vec<u32> {
        (0..self.shape.groups).filter(|row| !self.sealed.contains_key(row)).collect()
    }

    fn consider(&mut self, block: u32, copy: SurveyedCopy) {
        let best = &mut self.best[block as usize];
        *best = copy.max(*best);
    }

    fn slot(&self, row: u32, member: u8, bytes: &[u8]) -> Option<SlotHeader> {
        let is_ours = |slot: &SlotHeader| {
            slot.device == self.device
                && slot.generation <= self.generation
                && (slot.group, slot.member) == (row, member)
                && slot.block < self.shape.blocks
        };
        SlotHeader::decode(bytes).ok().filter(is_ours)
    }

    /// Adds the header of a slot in a group without a summary.
    pub fn header(&mut self, row: u32, donor: Donor, bytes: &[u8]) {
        let Some(member) = self.areas.member_on(row, donor) else { return };
        if let Some(slot) = self.slot(row, member, bytes) {
            self.consider(slot.block, SurveyedCopy { sequence: slot.sequence, row, member });
        }
    }

    /// Returns the groups whose whole slots must be read: they hold a newest copy, or a spare may help to restore their
    /// contents.
    pub fn rows_to_read(&self) -> BTreeSet<u32> {
        let is_open =
            |row: &u32| !self.sealed.contains_key(row) && self.donors.contains_key(&self.areas.parity_donor(*row));
        let held = self.best.iter().filter(|best| best.sequence > 0).map(|best| best.row);
        let named = self.spares.iter().map(|(summary, _)| summary.group);
        held.chain(named).filter(is_open).collect()
    }

    /// Adds a whole slot of one of these groups.
    pub fn row(&mut self, row: u32, donor: Donor, bytes: Bytes) {
        if let Some(member) = self.areas.member_on(row, donor) {
            self.rows.insert((row, member), bytes);
        }
    }

    /// Whether a donor has another slot, or none, in the place of one that the parity of an open group names.
    fn has_other(&self, row: u32, member: u8, wanted: CoveredMember) -> bool {
        let is_other = |bytes: &Bytes| match self.slot(row, member, bytes) {
            Some(slot) => slot.sequence != wanted.sequence,
            None => bytes.get(..SLOT_HEADER_BYTES).is_some_and(is_zero),
        };
        self.rows.get(&(row, member)).is_some_and(is_other)
    }

    /// Restores from the parities of open groups one slot of each that is damaged or on an absent donor; returns their
    /// number.
    fn reconstruct(&mut self) -> u64 {
        let mut count = 0;
        for (summary, parity) in std::mem::take(&mut self.spares) {
            let row = summary.group;
            let mut lost = Vec::new();
            let mut image = parity;
            for (member, expected) in summary.members.iter().enumerate() {
                let Some(expected) = *expected else { continue };
                match self.rows.get(&(row, member as u8)).filter(|slot| is_whole(slot, expected)) {
                    Some(slot) => xor(&mut image, slot),
                    None => lost.push((member as u8, expected)),
                }
            }
            let one = match lost[..] {
                [(member, wanted)] => Some((member, wanted)),
                _ => None,
            };
            let is_it = |(member, wanted): &(u8, CoveredMember)| {
                is_whole(&image, *wanted) && self.slot(row, *member, &image).is_some()
            };
            let Some((member, wanted)) = one.filter(is_it) else {
                // The newest parity is stored at the same time as its new members. If one of them is not there yet, the
                // parity before it protects the others. If it is not there any more, newer copies exist.
                if lost.len() > 1 && lost.iter().any(|(member, wanted)| self.has_other(row, *member, *wanted)) {
                    continue;
                }
                // These copies were stored, so older ones do not count: reading the blocks is an error.
                for (member, wanted) in lost {
                    self.consider(wanted.block, SurveyedCopy { sequence: wanted.sequence, row, member });
                }
                continue;
            };
            // The parity may be that of an earlier life of the group, of which the slot is not there any more.
            let known = self.rows.get(&(row, member)).and_then(|known| self.slot(row, member, known));
            if known.is_none_or(|known| known.sequence <= wanted.sequence) {
                self.rows.insert((row, member), Bytes::from(image));
                self.restored.insert((row, member));
                self.consider(wanted.block, SurveyedCopy { sequence: wanted.sequence, row, member });
                count += 1;
            }
        }
        count
    }

    /// Returns the newest trim of each block, and the trims that are not on every donor.
    fn trims(&self) -> (Vec<u64>, Vec<(u32, u64)>) {
        let mut repairs = Vec::new();
        let trim_of = |block: u32| {
            let entry = |(donor, at): (Donor, u64)| {
                let bytes = self.donors.get(&donor)?.get(self.areas.in_heads(at)..)?;
                Some(TrimEntry::decode(bytes, self.device, block).unwrap_or_default().sequence)
            };
            let entries = self.areas.trims(block).map(entry);
            let newest = entries.iter().flatten().copied().max().unwrap_or(0);
            if entries.iter().flatten().any(|entry| *entry != newest) {
                repairs.push((block, newest));
            }
            newest
        };
        ((0..self.shape.blocks).map(trim_of).collect(), repairs)
    }

    /// Draws the conclusions.
    pub fn plan(mut self) -> RecoveryPlan {
        let recovered_lost = self.reconstruct();
        let (trims, trims_to_repair) = self.trims();
        let mut rows: BTreeMap<u32, Vec<Option<u32>>> = BTreeMap::new();
        let mut newest = trims.clone();
        for (block, best) in self.best.iter().enumerate() {
            if best.sequence > newest[block] {
                newest[block] = best.sequence;
                let owners = rows.entry(best.row).or_insert_with(|| vec![None; usize::from(self.shape.members)]);
                owners[usize::from(best.member)] = Some(block as u32);
            }
        }
        let is_open =
            |row: &&u32| !self.sealed.contains_key(row) && self.donors.contains_key(&self.areas.parity_donor(**row));
        let to_seal =
            rows.iter().filter(|(row, _)| is_open(row)).map(|(row, owners)| self.seal(*row, owners)).collect();
        let without = |donor: &Donor| self.donors.get(donor).is_some_and(|bytes| SlotShape::is_absent(bytes));
        let without_shape = (0..self.areas.donors as usize).filter(without).collect();
        let without_summary = (0..self.shape.groups).filter(|row| self.is_without_summary(*row)).collect();
        let groups = rows.into_iter().collect();
        RecoveryPlan { newest, trims, groups, to_seal, trims_to_repair, without_shape, without_summary, recovered_lost }
    }

    fn is_without_summary(&self, row: u32) -> bool {
        let (at, bytes) = (self.areas.in_heads(self.areas.summary(row)), self.areas.summary_bytes as usize);
        let heads = self.donors.get(&self.areas.parity_donor(row));
        heads.and_then(|heads| heads.get(at..at + bytes)).is_some_and(is_zero)
    }

    /// Makes the slot that says that the newest copy of a block is lost.
    fn lost(&self, row: u32, member: u8, block: u32) -> Bytes {
        let (device, generation, sequence) = (self.device, self.generation, self.best[block as usize].sequence);
        let (data_checksum, is_lost) = (0, true);
        let slot = SlotHeader { device, generation, group: row, member, block, sequence, data_checksum, is_lost };
        Bytes::from(slot.encode(&vec![0; self.shape.block_bytes as usize]))
    }

    /// Computes the parity over the present contents of a group's slots. The slot of an absent donor counts as zeroes,
    /// unless a spare restored it. `owners`: the blocks whose newest copies these slots have.
    fn seal(&self, row: u32, owners: &[Option<u32>]) -> GroupSeal {
        let mut parity = vec![0; self.areas.slot_bytes as usize];
        let mut summary = empty_summary(SummaryKind::Sealed, self.device, self.generation, row, self.shape.members);
        let mut slots = Vec::new();
        for (member, owner) in (0..self.shape.members).zip(owners) {
            let found = self.rows.get(&(row, member)).cloned();
            let is_ours = found.as_ref().is_some_and(|image| self.slot(row, member, image).is_some());
            let lost = owner.filter(|_| !is_ours).map(|block| self.lost(row, member, block));
            let is_named = is_ours || lost.is_some();
            let is_new = lost.is_some() || self.restored.contains(&(row, member));
            let Some(image) = lost.or(found) else { continue };
            xor(&mut parity, &image);
            summary.members[usize::from(member)] = named(&image).filter(|_| is_named);
            let donor = self.areas.member_donor(row, member);
            if is_new && self.donors.contains_key(&donor) {
                slots.push((donor, image));
            }
        }
        summary.parity_checksum = xxh3_64(&parity);
        GroupSeal { row, parity, summary, slots }
    }
}
