//! Checking logged parity: the areas before the slots of all donors, and then the slots of all groups.
//!
//! Owns: the reads, and the checks of shapes, summaries, spares and trims. Leaves to others: the check of one group
//! (`group`), of blocks (`blocks`).

use std::collections::BTreeMap;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::blocks::CheckedBlocks;
use super::group::{GroupChecker, GroupSlots};
use super::report::{CheckFindings, CheckProblem, ProblemKind};
use super::{Progress, READ_BYTES, TrustedDonors};
use crate::device::together::together;
use crate::format::RecordGeometry;
use crate::format::slots::{DonorAreas, GroupSummary, SlotShape, SummaryKind, TRIM_BYTES, TrimEntry, device_checksum};
use crate::logged::ParityLogConfiguration;

/// The areas before the slots of all donors.
struct HeadAreas {
    judge: GroupChecker,
    /// The bytes of each donor, by position.
    bytes: Vec<Option<Vec<u8>>>,
}

/// Checks a device that logs parity. `generation` is that of the device's last client.
pub async fn check(
    checked: &mut CheckFindings,
    geometry: &RecordGeometry,
    generation: u64,
    donors: &TrustedDonors,
    progress: Progress<'_>,
) -> Result<(), String> {
    let Some(shape) = ParityLogConfiguration::shape_of(geometry) else { return Ok(()) };
    let areas = DonorAreas::new(&shape);
    let there: Vec<usize> = (0..donors.devices.len()).filter(|donor| donors.is_there(*donor)).collect();
    let all = there.len() as u64 * areas.donor_bytes;
    let mut heads = HeadAreas {
        judge: GroupChecker { shape, areas, device: device_checksum(&shape.device), generation },
        bytes: vec![None; donors.devices.len()],
    };
    for donor in &there {
        let mut bytes = Vec::with_capacity(areas.head_bytes() as usize);
        for head in areas.heads() {
            let mut at = head.start;
            while at < head.end {
                let length = READ_BYTES.min(head.end - at);
                if let Some(part) = donors.read(*donor, at, length).await? {
                    bytes.extend_from_slice(&part);
                }
                at += length;
                checked.counts.read_bytes += length;
                progress(checked.counts.read_bytes, all);
            }
        }
        heads.bytes[*donor] = Some(bytes);
    }
    heads.shapes(checked);
    let sealed = heads.summaries(checked);
    let mut spares = heads.spares();
    let trims = heads.trims(checked);
    let mut blocks = CheckedBlocks::new(shape.blocks);
    let count = ((READ_BYTES / areas.slot_bytes).max(1)).min(u64::from(shape.groups)) as u32;
    let mut first = 0;
    while first < shape.groups {
        let rows = count.min(areas.run_end(first) - first);
        let length = u64::from(rows) * areas.slot_bytes;
        let reads = (0..donors.devices.len()).map(|donor| donors.read(donor, areas.slot(first), length)).collect();
        let parts = together(reads).await.into_iter().collect::<Result<Vec<Option<Bytes>>, String>>()?;
        for number in first..first + rows {
            let at = u64::from(number - first) * areas.slot_bytes;
            let range = at as usize..(at + areas.slot_bytes) as usize;
            let slots = parts.iter().map(|part| part.as_ref().and_then(|part| part.get(range.clone()))).collect();
            let row = GroupSlots { number, slots };
            match sealed.get(&number) {
                Some(summary) => heads.judge.sealed(checked, &mut blocks, &row, summary),
                None => {
                    let spares = spares.remove(&number).unwrap_or_default();
                    heads.judge.open(checked, &mut blocks, &row, &spares);
                }
            }
        }
        checked.counts.read_bytes += length * there.len() as u64;
        progress(checked.counts.read_bytes, all);
        first += rows;
    }
    blocks.conclude(checked, &trims);
    Ok(())
}

impl HeadAreas {
    fn damaged(&self, checked: &mut CheckFindings, donor: usize, group: Option<u32>, text: String) {
        let problem = CheckProblem::of(ProblemKind::Damaged, text);
        checked.problem(CheckProblem { donor: checked.place(donor), group, ..problem });
    }

    fn shapes(&self, checked: &mut CheckFindings) {
        let is_new = self.bytes.iter().flatten().all(|bytes| SlotShape::is_absent(bytes));
        for (donor, bytes) in self.bytes.iter().enumerate() {
            let Some(bytes) = bytes else { continue };
            // A device that was never used has no shape; one that a client has opened has it on every donor.
            if !is_new && SlotShape::decode(bytes).as_ref() != Ok(&self.judge.shape.first()) {
                self.damaged(checked, donor, None, "the shape of the device is damaged, or another one".to_owned());
            }
        }
    }

    fn summary(&self, bytes: &[u8], kind: SummaryKind) -> Option<GroupSummary> {
        let GroupChecker { shape, device, generation, .. } = &self.judge;
        let is_ours = |summary: &GroupSummary| {
            summary.kind == kind
                && summary.device == *device
                && summary.generation <= *generation
                && summary.group < shape.groups
                && summary.members.len() == usize::from(shape.members)
                && summary.members.iter().flatten().all(|named| named.block < shape.blocks)
        };
        GroupSummary::decode(bytes).ok().filter(is_ours)
    }

    fn summaries(&self, checked: &mut CheckFindings) -> BTreeMap<u32, GroupSummary> {
        let areas = self.judge.areas;
        let mut sealed = BTreeMap::new();
        for row in 0..self.judge.shape.groups {
            let donor = areas.parity_donor(row);
            let Some(bytes) = &self.bytes[donor] else { continue };
            let at = areas.in_heads(areas.summary(row));
            let Some(bytes) = bytes.get(at..at + areas.summary_bytes as usize) else { continue };
            match self.summary(bytes, SummaryKind::Sealed).filter(|summary| summary.group == row) {
                Some(summary) => _ = sealed.insert(row, summary),
                None if bytes.iter().all(|byte| *byte == 0) => {}
                None => self.damaged(checked, donor, Some(row), format!("group {row}: its summary is damaged")),
            }
        }
        sealed
    }

    /// Returns the parities of open groups with a correct checksum, by group.
    fn spares(&self) -> BTreeMap<u32, Vec<(GroupSummary, Vec<u8>)>> {
        let areas = self.judge.areas;
        let mut spares: BTreeMap<u32, Vec<(GroupSummary, Vec<u8>)>> = BTreeMap::new();
        for (donor, bytes) in self.bytes.iter().enumerate() {
            let Some(bytes) = bytes else { continue };
            for spare in 0..areas.spares {
                let at = areas.in_heads(areas.spare(spare));
                let from = at + areas.summary_bytes as usize;
                let parity = bytes.get(from..from + areas.slot_bytes as usize);
                let (Some(head), Some(parity)) = (bytes.get(at..from), parity) else { continue };
                let Some(summary) = self.summary(head, SummaryKind::Open) else { continue };
                if areas.parity_donor(summary.group) == donor && xxh3_64(parity) == summary.parity_checksum {
                    spares.entry(summary.group).or_default().push((summary, parity.to_vec()));
                }
            }
        }
        spares
    }

    /// Returns the sequence of each block's newest trim.
    fn trims(&self, checked: &mut CheckFindings) -> Vec<u64> {
        let GroupChecker { areas, device, shape, .. } = &self.judge;
        let mut trims = Vec::with_capacity(shape.blocks as usize);
        for block in 0..shape.blocks {
            let mut found = [None; 2];
            for (found, (donor, at)) in found.iter_mut().zip(areas.trims(block)) {
                let bytes = self.bytes[donor].as_ref().and_then(|bytes| bytes.get(areas.in_heads(at)..));
                let Some(bytes) = bytes.and_then(|bytes| bytes.get(..TRIM_BYTES)) else { continue };
                match TrimEntry::decode(bytes, *device, block) {
                    Ok(trim) => *found = Some(trim.sequence),
                    Err(_) => {
                        let problem =
                            CheckProblem::of(ProblemKind::Damaged, format!("block {block}: its trim is damaged"));
                        let place = checked.place(donor);
                        checked.problem(CheckProblem { donor: place, block: Some(u64::from(block)), ..problem });
                    }
                }
            }
            let is_unfinished = matches!(found, [Some(one), Some(two)] if one != two);
            checked.counts.unfinished_trims += u64::from(is_unfinished);
            trims.push(found.into_iter().flatten().max().unwrap_or(0));
        }
        trims
    }
}
