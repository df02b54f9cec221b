//! Computes the data that a recovery has to find in the donors' memory. It is a second implementation of the rule in
//! `docs/formats/ram-slots.md`.
//!
//! Owns: reading the donors' memory, without any state of a client. Promises: it shares only the decoders and the
//! arithmetic of areas with the client's machine.

use std::collections::BTreeMap;

use nectary_ram::format::slots::{
    DonorAreas, GroupSummary, SLOT_HEADER_BYTES, SlotHeader, SlotShape, SummaryKind, TrimEntry, device_checksum, xor,
};

use crate::ram::blocks::number_of;
use xxhash_rust::xxh3::xxh3_64;

/// The memory of each donor to read.
pub type Memory<'a> = BTreeMap<usize, &'a [u8]>;

/// A device, as its donors' memory has it.
pub struct RecoveryOracle<'a> {
    pub shape: SlotShape,
    pub areas: DonorAreas,
    pub memory: Memory<'a>,
}

/// A copy of a block.
struct SlotCopy {
    sequence: u64,
    number: Option<u64>,
}

impl<'a> RecoveryOracle<'a> {
    /// Returns a slot of a donor, as it is stored.
    pub fn slot(&self, donor: usize, group: u32) -> Option<&'a [u8]> {
        let from = self.areas.slot(group) as usize;
        self.memory.get(&donor)?.get(from..from + self.areas.slot_bytes as usize)
    }

    /// Returns a slot of a donor, computed from the other donors.
    pub fn computed(&self, donor: usize, group: u32) -> Option<Vec<u8>> {
        let mut sum = vec![0; self.areas.slot_bytes as usize];
        for other in (0..self.areas.donors as usize).filter(|other| *other != donor) {
            xor(&mut sum, self.slot(other, group)?);
        }
        Some(sum)
    }

    /// Returns the summary of a sealed group.
    pub fn summary(&self, group: u32) -> Option<GroupSummary> {
        let memory = self.memory.get(&self.areas.parity_donor(group))?;
        let summary = GroupSummary::decode(memory.get(self.areas.summary(group) as usize..)?).ok()?;
        let is_it = summary.kind == SummaryKind::Sealed && summary.group == group;
        (is_it && summary.device == device_checksum(&self.shape.device)).then_some(summary)
    }

    /// Returns the contents of a slot, if it belongs to a group: block, sequence and number; no number if the data are
    /// damaged or lost.
    pub fn contents(&self, bytes: &[u8], group: u32, member: u8) -> Option<(u32, u64, Option<u64>)> {
        let slot = SlotHeader::decode(bytes).ok()?;
        let is_it = (slot.group, slot.member) == (group, member);
        let is_ours = is_it && slot.device == device_checksum(&self.shape.device) && slot.block < self.shape.blocks;
        let data = SlotHeader::decode_whole(bytes).ok().filter(|_| !slot.is_lost);
        let number = data.and_then(|(_, data)| number_of(data, u64::from(slot.block)));
        is_ours.then_some((slot.block, slot.sequence, number))
    }

    /// Returns the number that a recovery finds in each block; `None` if the block cannot be read.
    pub fn numbers(&self) -> Vec<Option<u64>> {
        let zero = || SlotCopy { sequence: 0, number: Some(0) };
        let mut best: Vec<SlotCopy> =
            (0..self.shape.blocks).map(|block| self.trim(block).unwrap_or_else(zero)).collect();
        let mut consider = |block: u32, sequence: u64, number: Option<u64>| {
            let best = &mut best[block as usize];
            if sequence > best.sequence {
                *best = SlotCopy { sequence, number };
            }
        };
        for group in 0..self.shape.groups {
            let summary = self.summary(group);
            for member in 0..self.shape.members {
                let donor = self.areas.member_donor(group, member);
                let direct = self.slot(donor, group).and_then(|bytes| self.contents(bytes, group, member));
                match &summary {
                    Some(summary) => {
                        let Some(named) = summary.members[usize::from(member)] else { continue };
                        let is_named =
                            |found: &(u32, u64, Option<u64>)| (found.0, found.1) == (named.block, named.sequence);
                        let computed = || {
                            let bytes = self.computed(donor, group)?;
                            self.contents(&bytes, group, member).filter(is_named)
                        };
                        let has_number = |found: &(u32, u64, Option<u64>)| found.2.is_some();
                        let found = direct.filter(is_named).filter(has_number).or_else(computed);
                        consider(named.block, named.sequence, found.and_then(|found| found.2));
                    }
                    None => {
                        if let Some((block, sequence, number)) = direct {
                            consider(block, sequence, number);
                        }
                    }
                }
            }
        }
        for (block, sequence, number) in self.spared() {
            consider(block, sequence, number);
        }
        best.into_iter().map(|best| best.number).collect()
    }

    fn trim(&self, block: u32) -> Option<SlotCopy> {
        let device = device_checksum(&self.shape.device);
        let entry = |(donor, at): (usize, u64)| {
            let bytes = self.memory.get(&donor)?.get(at as usize..)?;
            TrimEntry::decode(bytes, device, block).ok().map(|trim| trim.sequence)
        };
        let sequence = self.areas.trims(block).into_iter().filter_map(entry).max()?;
        Some(SlotCopy { sequence, number: Some(0) })
    }

    /// Computes the lost slots of open groups from the parities in the spare areas.
    fn spared(&self) -> Vec<(u32, u64, Option<u64>)> {
        let mut found = Vec::new();
        for (donor, memory) in &self.memory {
            for spare in 0..self.areas.spares {
                let at = self.areas.spare(spare) as usize;
                let Some(Ok(summary)) = memory.get(at..).map(GroupSummary::decode) else { continue };
                let is_here = summary.group < self.shape.groups && self.areas.parity_donor(summary.group) == *donor;
                if !is_here || summary.kind != SummaryKind::Open || self.summary(summary.group).is_some() {
                    continue;
                }
                let from = at + self.areas.summary_bytes as usize;
                let mut rest = memory[from..from + self.areas.slot_bytes as usize].to_vec();
                if xxh3_64(&rest) != summary.parity_checksum {
                    continue;
                }
                let mut lost = Vec::new();
                for (member, named) in summary.members.iter().enumerate() {
                    let Some(named) = named else { continue };
                    let at = self.areas.member_donor(summary.group, member as u8);
                    match self.slot(at, summary.group) {
                        Some(slot) if is_whole(slot, named.checksum) => xor(&mut rest, slot),
                        _ => lost.push((member as u8, *named)),
                    }
                }
                let computed = match lost[..] {
                    [(member, named)] => {
                        self.contents(&rest, summary.group, member).filter(|copy| copy.1 == named.sequence)
                    }
                    _ => None,
                };
                // What a donor has in place of a named slot shows that the slot was never stored, or is not needed any more.
                let is_void = lost.iter().any(|(member, named)| {
                    let at = self.areas.member_donor(summary.group, *member);
                    let Some(bytes) = self.slot(at, summary.group) else { return false };
                    match self.contents(bytes, summary.group, *member) {
                        Some((_, sequence, _)) => sequence != named.sequence,
                        None => bytes.iter().take(SLOT_HEADER_BYTES).all(|byte| *byte == 0),
                    }
                });
                match computed {
                    Some(copy) => found.push(copy),
                    None if lost.len() > 1 && is_void => {}
                    // These copies were stored, so older ones do not count.
                    None => found.extend(lost.iter().map(|(_, named)| (named.block, named.sequence, None))),
                }
            }
        }
        found
    }
}

/// Whether a slot has this checksum in its header, and intact data.
fn is_whole(slot: &[u8], checksum: u64) -> bool {
    SlotHeader::checksum_of(slot) == checksum && SlotHeader::decode_whole(slot).is_ok()
}
