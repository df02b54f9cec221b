//! The valid copy of each block, and whether it can be read.
//!
//! Owns: the newest copy of each block, and the flaws of copies. Promises: the valid copy is chosen as the format's
//! page says: the copy with the highest sequence above that of the block's trim.

use std::collections::{BTreeMap, BTreeSet};

use super::report::{CheckFindings, CheckProblem, ProblemKind};

/// A copy of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ValidCopy {
    pub sequence: u64,
    pub row: u32,
    pub member: u8,
}

/// A flaw of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyFlaw {
    /// Its donor is missing; the slots of the other donors restore it.
    Reconstructed,
    /// Its slot is damaged; the slots of the other donors restore it.
    Repairable,
    /// Its slot is damaged, in a group whose stored parity does not cover all slots: a read returns another copy, or an
    /// error.
    Doubtful,
    /// It cannot be restored.
    Lost,
    /// No stored parity covers the copy.
    Uncovered,
}

/// The blocks of a device.
pub struct CheckedBlocks {
    best: Vec<ValidCopy>,
    flaws: BTreeMap<(u32, u8), (CopyFlaw, usize)>,
    /// Problems of groups that matter only if a block needs the group, and how many slots each concerns.
    suspects: BTreeMap<u32, Vec<(u64, CheckProblem)>>,
    /// Groups without a summary.
    unsealed: BTreeSet<u32>,
}

impl CheckedBlocks {
    pub fn new(blocks: u32) -> CheckedBlocks {
        let (flaws, suspects, unsealed) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        CheckedBlocks { best: vec![ValidCopy::default(); blocks as usize], flaws, suspects, unsealed }
    }

    /// Adds a copy.
    pub fn consider(&mut self, checked: &mut CheckFindings, block: u32, copy: ValidCopy) {
        let Some(best) = self.best.get_mut(block as usize) else { return };
        if best.sequence == copy.sequence && *best != copy && copy.sequence > 0 {
            let text = format!("block {block} is in groups {} and {} with one number", best.row, copy.row);
            let problem = CheckProblem::of(ProblemKind::SameNumber, text);
            checked.problem(CheckProblem { group: Some(copy.row), block: Some(u64::from(block)), ..problem });
        }
        *best = copy.max(*best);
    }

    /// Adds a flaw of the slot of a member, on `donor`.
    pub fn flaw(&mut self, row: u32, member: u8, donor: usize, flaw: CopyFlaw) {
        self.flaws.insert((row, member), (flaw, donor));
    }

    /// Something is wrong with a group. It matters only if a block needs the group: a filled donor has nothing of the
    /// others, and a client erases the summary of a group before it writes the group again.
    pub fn suspect(&mut self, row: u32, slots: u64, problem: CheckProblem) {
        self.suspects.entry(row).or_default().push((slots, problem));
    }

    /// Adds a group without a summary; it counts as open if a block needs it.
    pub fn unsealed(&mut self, row: u32) {
        self.unsealed.insert(row);
    }

    /// Judges every block; `trims` are the numbers of their trims.
    pub fn conclude(mut self, checked: &mut CheckFindings, trims: &[u64]) {
        for (block, best) in self.best.iter().enumerate() {
            if best.sequence <= trims.get(block).copied().unwrap_or(0) {
                continue;
            }
            checked.counts.open_groups += u64::from(self.unsealed.remove(&best.row));
            for (slots, problem) in self.suspects.remove(&best.row).into_iter().flatten() {
                checked.counts.damaged_slots += slots;
                checked.problem(problem);
            }
        }
        for (block, best) in self.best.iter().enumerate() {
            if best.sequence <= trims.get(block).copied().unwrap_or(0) {
                continue;
            }
            checked.counts.mapped_blocks += 1;
            let Some((flaw, donor)) = self.flaws.get(&(best.row, best.member)).copied() else { continue };
            let place = checked.place(donor);
            let name = checked.donors.get(donor).map_or("?", |donor| donor.name.as_str()).to_owned();
            let group = best.row;
            let (what, text) = match flaw {
                CopyFlaw::Reconstructed => {
                    checked.counts.reconstructed_blocks += 1;
                    continue;
                }
                CopyFlaw::Uncovered => {
                    checked.counts.uncovered_blocks += 1;
                    if !checked.is_detached {
                        continue;
                    }
                    (
                        ProblemKind::NotCovered,
                        format!("block {block}: no stored parity covers it, in open group {group}"),
                    )
                }
                CopyFlaw::Repairable => (
                    ProblemKind::SlotDamaged,
                    format!("block {block}: damaged on {name}; the rest of group {group} has it"),
                ),
                CopyFlaw::Doubtful => {
                    checked.counts.doubtful_blocks += 1;
                    (ProblemKind::BlockDoubtful, format!("block {block}: damaged on {name}, in open group {group}"))
                }
                CopyFlaw::Lost => {
                    checked.counts.lost_blocks += 1;
                    (
                        ProblemKind::BlockLost,
                        format!("block {block}: lost with what {name} has, or had, of group {group}"),
                    )
                }
            };
            let problem = CheckProblem::of(what, text);
            checked.problem(CheckProblem { donor: place, group: Some(group), block: Some(block as u64), ..problem });
        }
    }
}
