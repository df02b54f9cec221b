//! The check of one group of logged parity, as a function of its bytes.
//!
//! Owns: the invariants of `log` for one group. In a sealed group, the parity is the XOR of the slots, and each named
//! slot matches the summary. In an open group, each slot is intact, and is covered by a spare that matches. A group
//! whose summary was erased before its next use looks like an open one, but no block needs it.

use xxhash_rust::xxh3::xxh3_64;

use super::blocks::{CheckedBlocks, CopyFlaw, ValidCopy};
use super::report::{CheckFindings, CheckProblem, ProblemKind};
use crate::format::slots::{CoveredMember, DonorAreas, GroupSummary, SLOT_HEADER_BYTES, SlotHeader, SlotShape, xor};

/// The values that the check of every group needs.
pub struct GroupChecker {
    pub shape: SlotShape,
    pub areas: DonorAreas,
    /// The checksum of the device's identity.
    pub device: u64,
    /// The device's last generation; no slot has a later one.
    pub generation: u64,
}

/// A group with its slots by position; `None` for a missing donor.
pub struct GroupSlots<'a> {
    pub number: u32,
    pub slots: Vec<Option<&'a [u8]>>,
}

/// The state of a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SlotState {
    /// Its donor is missing.
    Missing,
    /// It was never written, or its header was erased.
    Blank,
    /// It is intact.
    Whole(SlotHeader),
    /// Its header is correct, but its data is not.
    Torn(SlotHeader),
    /// It does not belong to this position.
    Strange,
}

/// Returns the entry that a summary should have for an intact slot.
fn named(image: &[u8]) -> Option<CoveredMember> {
    let (slot, _) = SlotHeader::decode_whole(image).ok()?;
    Some(CoveredMember { block: slot.block, sequence: slot.sequence, checksum: SlotHeader::checksum_of(image) })
}

impl GroupChecker {
    fn look(&self, row: &GroupSlots<'_>, member: u8) -> SlotState {
        let Some(image) = row.slots[self.areas.member_donor(row.number, member)] else { return SlotState::Missing };
        if image.iter().take(SLOT_HEADER_BYTES).all(|byte| *byte == 0) {
            return SlotState::Blank;
        }
        let is_ours = |slot: &SlotHeader| {
            slot.device == self.device
                && slot.generation <= self.generation
                && slot.sequence >> 40 <= self.generation
                && (slot.group, slot.member) == (row.number, member)
                && slot.block < self.shape.blocks
        };
        match (SlotHeader::decode(image).ok().filter(is_ours), named(image)) {
            (Some(slot), Some(_)) => SlotState::Whole(slot),
            (Some(slot), None) => SlotState::Torn(slot),
            (None, _) => SlotState::Strange,
        }
    }

    /// Returns the XOR of some slots of a group; `None` if one of them is missing.
    fn sum<'a>(&self, parts: impl Iterator<Item = Option<&'a [u8]>>) -> Option<Vec<u8>> {
        let mut sum = vec![0; self.areas.slot_bytes as usize];
        for part in parts {
            xor(&mut sum, part?);
        }
        Some(sum)
    }

    /// Checks a sealed group.
    pub fn sealed(
        &self,
        checked: &mut CheckFindings,
        blocks: &mut CheckedBlocks,
        row: &GroupSlots<'_>,
        summary: &GroupSummary,
    ) {
        checked.counts.sealed_groups += 1;
        let number = row.number;
        let parity_donor = self.areas.parity_donor(number);
        let parity = row.slots[parity_donor];
        let is_parity_right = parity.is_some_and(|parity| xxh3_64(parity) == summary.parity_checksum);
        let all = self.sum(row.slots.iter().copied());
        let is_sum_right = all.as_ref().is_some_and(|sum| sum.iter().all(|byte| *byte == 0));
        checked.counts.compared_groups += u64::from(all.is_some());
        let mut is_explained = false;
        for (member, wanted) in (0..self.shape.members).zip(&summary.members) {
            let Some(wanted) = wanted else { continue };
            let donor = self.areas.member_donor(number, member);
            blocks.consider(checked, wanted.block, ValidCopy { sequence: wanted.sequence, row: number, member });
            let image = row.slots[donor];
            let is = self.look(row, member);
            if image.and_then(named) == Some(*wanted) && !matches!(is, SlotState::Strange) {
                if matches!(is, SlotState::Whole(slot) if slot.is_lost) {
                    blocks.flaw(number, member, donor, CopyFlaw::Lost);
                }
                continue;
            }
            is_explained = true;
            let others = row.slots.iter().enumerate().filter(|(other, _)| *other != donor).map(|(_, slot)| *slot);
            let given = self.sum(others).filter(|given| is_parity_right && named(given) == Some(*wanted));
            let is_missing = image.is_none();
            let flaw = match (given.is_some(), is_missing) {
                (true, true) => CopyFlaw::Reconstructed,
                (true, false) => CopyFlaw::Repairable,
                (false, _) => CopyFlaw::Lost,
            };
            blocks.flaw(number, member, donor, flaw);
            if !is_missing {
                let text = format!("group {number}: the slot of member {member} is not as its summary says");
                let problem = CheckProblem::of(ProblemKind::SlotDamaged, text);
                let problem = CheckProblem { donor: checked.place(donor), group: Some(number), ..problem };
                blocks.suspect(number, 1, problem);
            }
        }
        if parity.is_some() && !is_parity_right || all.is_some() && !is_sum_right && !is_explained {
            let text = match is_parity_right {
                true => format!("group {number}: its parity is not the XOR of its slots"),
                false => format!("group {number}: its parity is not as its summary says"),
            };
            let problem = CheckProblem::of(ProblemKind::WrongParity, text);
            let problem = CheckProblem { donor: checked.place(parity_donor), group: Some(number), ..problem };
            blocks.suspect(number, u64::from(!is_parity_right), problem);
        }
    }

    /// Checks a group without a summary; `spares` are the parities that name it.
    pub fn open(
        &self,
        checked: &mut CheckFindings,
        blocks: &mut CheckedBlocks,
        row: &GroupSlots<'_>,
        spares: &[(GroupSummary, Vec<u8>)],
    ) {
        let number = row.number;
        let is_incomplete = row.slots.iter().any(Option::is_none);
        let looks: Vec<SlotState> = (0..self.shape.members).map(|member| self.look(row, member)).collect();
        // The parity of an earlier life of the group names slots that do not exist any more.
        let fits = |(summary, _): &&(GroupSummary, Vec<u8>)| {
            summary.members.iter().zip(&looks).all(|(wanted, is)| match (wanted, is) {
                (Some(wanted), SlotState::Whole(slot) | SlotState::Torn(slot)) => {
                    (wanted.block, wanted.sequence) == (slot.block, slot.sequence)
                }
                (Some(_), SlotState::Blank) => false,
                (Some(_), SlotState::Missing | SlotState::Strange) | (None, _) => true,
            })
        };
        let spare = spares.iter().filter(fits).max_by_key(|(summary, _)| {
            let newest = summary.members.iter().flatten().map(|named| named.sequence).max();
            (summary.members.iter().flatten().count(), newest)
        });
        blocks.unsealed(number);
        for (member, is) in (0..self.shape.members).zip(&looks) {
            let donor = self.areas.member_donor(number, member);
            let wanted = spare.and_then(|(summary, _)| summary.members[usize::from(member)]);
            let given = || {
                let (summary, parity) = spare?;
                let mut image = parity.clone();
                for (other, named) in (0..self.shape.members).zip(&summary.members) {
                    if named.is_some() && other != member {
                        xor(&mut image, row.slots[self.areas.member_donor(number, other)]?);
                    }
                }
                (wanted.is_some() && named(&image) == wanted).then_some(())
            };
            let mut consider = |block, sequence, flaw: Option<CopyFlaw>| {
                blocks.consider(checked, block, ValidCopy { sequence, row: number, member });
                if let Some(flaw) = flaw {
                    blocks.flaw(number, member, donor, flaw);
                }
            };
            match (is, wanted) {
                (SlotState::Whole(slot), _) if slot.is_lost => {
                    consider(slot.block, slot.sequence, Some(CopyFlaw::Lost))
                }
                (SlotState::Whole(slot), Some(_)) if given().is_some() => consider(slot.block, slot.sequence, None),
                // What covers it may be on the donor that is missing.
                (SlotState::Whole(slot), _) if is_incomplete => consider(slot.block, slot.sequence, None),
                (SlotState::Whole(slot), _) => consider(slot.block, slot.sequence, Some(CopyFlaw::Uncovered)),
                (SlotState::Torn(slot), _) => consider(slot.block, slot.sequence, Some(CopyFlaw::Doubtful)),
                (SlotState::Strange, Some(wanted)) => consider(wanted.block, wanted.sequence, Some(CopyFlaw::Doubtful)),
                (SlotState::Missing, Some(wanted)) => {
                    let flaw = if given().is_some() { CopyFlaw::Reconstructed } else { CopyFlaw::Lost };
                    consider(wanted.block, wanted.sequence, Some(flaw));
                }
                (SlotState::Missing | SlotState::Blank | SlotState::Strange, _) => {}
            }
            if matches!(is, SlotState::Torn(_) | SlotState::Strange) {
                let text = format!("open group {number}: the slot of member {member} is damaged");
                let problem = CheckProblem::of(ProblemKind::SlotDamaged, text);
                let problem = CheckProblem { donor: checked.place(donor), group: Some(number), ..problem };
                blocks.suspect(number, 1, problem);
            }
        }
    }
}
