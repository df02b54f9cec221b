//! The findings of a check.
//!
//! Owns: the kinds of problems, their counts, and the resulting health. Promises: counts are complete; only the first
//! [`PROBLEMS_MAX`] problems are kept.

use serde::Serialize;

use crate::device::RamOptions;
use crate::format::RecordGeometry;

/// The maximum number of problems that are kept; a damaged device may have any number.
pub const PROBLEMS_MAX: usize = 100;

/// The health of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RedundancyHealth {
    /// Everything is in order, and any one donor can be lost.
    Healthy,
    /// Every block can be read, but something that protects blocks is missing or damaged.
    Degraded,
    /// Blocks are lost, or reading them may return other data than was written.
    Broken,
}

/// The kind of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProblemKind {
    /// The device cannot be attached because of its geometry or its donors' labels.
    Shape,
    /// A donor is missing, or its data is not trusted.
    DonorMissing,
    /// The two copies of blocks differ, or members of a stripe do not yield each other, although the stripe is not
    /// marked as dirty.
    CopiesDiffer,
    /// A stripe is marked as dirty: its copies may differ, and are made equal when the device is attached.
    Unfinished,
    /// Bytes before the slots of a donor do not match their checksum.
    Damaged,
    /// A slot does not match its group's summary; the other slots and the parity restore it.
    SlotDamaged,
    /// The parity of a sealed group is not the XOR of its slots.
    WrongParity,
    /// A flushed block is in an open group, and no stored parity covers it.
    NotCovered,
    /// Two slots have the same sequence.
    SameNumber,
    /// A block cannot be read.
    BlockLost,
    /// Reading a block may return other data than was written, or an error.
    BlockDoubtful,
}

impl ProblemKind {
    fn health(self) -> RedundancyHealth {
        match self {
            ProblemKind::Shape | ProblemKind::CopiesDiffer | ProblemKind::BlockLost | ProblemKind::BlockDoubtful => {
                RedundancyHealth::Broken
            }
            ProblemKind::DonorMissing | ProblemKind::Unfinished | ProblemKind::Damaged | ProblemKind::SlotDamaged => {
                RedundancyHealth::Degraded
            }
            ProblemKind::WrongParity | ProblemKind::NotCovered | ProblemKind::SameNumber => RedundancyHealth::Degraded,
        }
    }
}

/// A problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckProblem {
    /// The kind of problem.
    pub what: ProblemKind,
    /// The problem in words.
    pub text: String,
    /// The donor, by its index in the SPEC, from 0.
    pub donor: Option<usize>,
    /// The group, for a device that logs parity.
    pub group: Option<u32>,
    /// The first affected block of the device.
    pub block: Option<u64>,
}

impl CheckProblem {
    pub(super) fn of(what: ProblemKind, text: String) -> CheckProblem {
        CheckProblem { what, text, donor: None, group: None, block: None }
    }
}

/// A donor of the device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckedDonor {
    /// The name of the donor in the SPEC.
    pub name: String,
    /// The index of the donor in the SPEC, from 0.
    pub place: usize,
    /// The generation in the donor's record.
    pub generation: Option<u64>,
    /// The reason why the donor's data is not trusted, if so.
    pub why: Option<String>,
}

/// The counts of a check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct CheckCounts {
    /// The number of bytes read.
    pub read_bytes: u64,
    /// Without a log: stripes whose copies or members were compared.
    pub compared_stripes: u64,
    /// Without a log: stripes without one copy or member, because its donor is missing.
    pub single_stripes: u64,
    /// Without a log: stripes marked as dirty, because a client ended while it changed them.
    pub marked_stripes: u64,
    /// Without a log: blocks whose copies differ, or whose parity does, although their stripe is not marked.
    pub differing_blocks: u64,
    /// For logged parity: groups whose stored parity covers all their slots.
    pub sealed_groups: u64,
    /// For logged parity: sealed groups whose parity was compared with all their slots.
    pub compared_groups: u64,
    /// For logged parity: groups without such a parity that have the newest copy of a block.
    pub open_groups: u64,
    /// Blocks with data.
    pub mapped_blocks: u64,
    /// Blocks in slots of a missing donor that the other donors restore.
    pub reconstructed_blocks: u64,
    /// Blocks of open groups that no stored parity covers.
    pub uncovered_blocks: u64,
    /// Trims that are stored on only one of their two donors.
    pub unfinished_trims: u64,
    /// Slots whose contents differ from what was written.
    pub damaged_slots: u64,
    /// Blocks that cannot be read.
    pub lost_blocks: u64,
    /// Blocks for which reading may return other data than was written.
    pub doubtful_blocks: u64,
}

/// The findings of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckFindings {
    /// The name of the device.
    pub id: String,
    /// The size of the device. *Units*: bytes.
    pub size_bytes: u64,
    /// The length of a block. *Units*: bytes.
    pub block_bytes: u32,
    /// The name of the redundancy.
    pub redundancy: &'static str,
    /// The health of the device.
    pub health: RedundancyHealth,
    /// The generation and epoch of the view.
    pub view: (u64, u64),
    /// Whether the last client detached the device, so that no work of it may be unfinished.
    pub is_detached: bool,
    /// The donors, by position in the device.
    pub donors: Vec<CheckedDonor>,
    /// The counts.
    pub counts: CheckCounts,
    /// The number of problems.
    pub problem_count: u64,
    /// The first problems.
    pub problems: Vec<CheckProblem>,
}

impl CheckFindings {
    pub(super) fn new(options: &RamOptions, geometry: &RecordGeometry) -> CheckFindings {
        CheckFindings {
            id: options.id.clone(),
            size_bytes: geometry.bytes,
            block_bytes: geometry.block_bytes,
            redundancy: options.redundancy.name(),
            health: RedundancyHealth::Healthy,
            view: (0, 0),
            is_detached: false,
            donors: Vec::new(),
            counts: CheckCounts::default(),
            problem_count: 0,
            problems: Vec::new(),
        }
    }

    pub(super) fn problem(&mut self, problem: CheckProblem) {
        self.health = self.health.max(problem.what.health());
        self.problem_count += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem);
        }
    }

    /// Returns the index in the SPEC of the donor at a position.
    pub(super) fn place(&self, donor: usize) -> Option<usize> {
        self.donors.get(donor).map(|donor| donor.place)
    }

    /// Adds the problems that follow from the counts alone.
    pub(super) fn finish(&mut self) {
        let CheckCounts { marked_stripes, unfinished_trims, uncovered_blocks, .. } = self.counts;
        if marked_stripes > 0 {
            let text = format!("{marked_stripes} stripes were being changed when the last client ended");
            self.problem(CheckProblem::of(ProblemKind::Unfinished, text));
        }
        let open = |count: u64, what: &str| (count > 0).then(|| format!("{count} {what}"));
        let unfinished = [
            open(unfinished_trims, "trims are on one of their two donors"),
            open(uncovered_blocks, "blocks of open groups have no stored parity"),
        ];
        let unfinished: Vec<String> = unfinished.into_iter().flatten().collect();
        if !unfinished.is_empty() && !self.is_detached {
            let text = format!("{}, as the last client did not detach", unfinished.join(", "));
            self.problem(CheckProblem::of(ProblemKind::Unfinished, text));
        } else if unfinished_trims > 0 {
            self.problem(CheckProblem::of(ProblemKind::Damaged, unfinished.join(", ")));
        }
    }
}
