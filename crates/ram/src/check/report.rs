//! What a check found.
//!
//! Owns: the kinds of problems, their counts, and how bad they are together. Promises: counts are complete; of the
//! problems, the first [`PROBLEMS_MAX`] are kept.

use serde::Serialize;

use crate::device::RamOptions;
use crate::format::Geometry;

/// Problems that are kept; a damaged device may have any number.
pub const PROBLEMS_MAX: usize = 100;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// Everything is right, and any one donor can be lost.
    Healthy,
    /// Every block can be read; something that protects it is missing or damaged.
    Degraded,
    /// Blocks are lost, or may be read as something else than was written.
    Broken,
}

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// The device cannot be attached as it is: its shape, or labels of its donors.
    Shape,
    /// A donor is not there, or its data do not count.
    DonorMissing,
    /// The two copies of blocks differ, and no mark says that they may.
    CopiesDiffer,
    /// A stripe is marked: its copies may differ, and are made equal when the device is attached.
    Unfinished,
    /// Bytes before the slots of a donor do not fit their checksum.
    Damaged,
    /// A slot is not as its group says; the others of the group and its parity give it back.
    SlotDamaged,
    /// The parity of a sealed group is not the XOR of its slots.
    WrongParity,
    /// A flushed block is in an open group, and no stored parity covers it.
    NotCovered,
    /// Two slots have the same number.
    SameNumber,
    /// A block cannot be read.
    BlockLost,
    /// A block may be read as something else than was written, or not at all.
    BlockDoubtful,
}

impl What {
    fn health(self) -> Health {
        match self {
            What::Shape | What::CopiesDiffer | What::BlockLost | What::BlockDoubtful => Health::Broken,
            What::DonorMissing | What::Unfinished | What::Damaged | What::SlotDamaged => Health::Degraded,
            What::WrongParity | What::NotCovered | What::SameNumber => Health::Degraded,
        }
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// What.
    pub what: What,
    /// It in words.
    pub text: String,
    /// The donor, by its place in the SPEC, from 0.
    pub donor: Option<usize>,
    /// The group, of a device that logs parity.
    pub group: Option<u32>,
    /// The first block of the device that it concerns.
    pub block: Option<u64>,
}

impl Problem {
    pub(super) fn of(what: What, text: String) -> Problem {
        Problem { what, text, donor: None, group: None, block: None }
    }
}

/// A donor of the device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckedDonor {
    /// As the SPEC has it.
    pub name: String,
    /// Its place in the SPEC, from 0.
    pub place: usize,
    /// The generation of its record.
    pub generation: Option<u64>,
    /// Why its data do not count, if they do not.
    pub why: Option<String>,
}

/// Counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Of a mirror: stripes whose copies were compared.
    pub compared_stripes: u64,
    /// Of a mirror: stripes with one copy, as the other donor is missing.
    pub single_stripes: u64,
    /// Of a mirror: stripes whose copies may differ, as a client ended while it changed them.
    pub marked_stripes: u64,
    /// Of a mirror: blocks whose copies differ, and may not.
    pub differing_blocks: u64,
    /// Of logged parity: groups with a stored parity of all their slots.
    pub sealed_groups: u64,
    /// Of logged parity: sealed groups whose parity was compared with all their slots.
    pub compared_groups: u64,
    /// Of logged parity: groups without one that hold a block.
    pub open_groups: u64,
    /// Blocks that hold something.
    pub mapped_blocks: u64,
    /// Blocks in slots of a donor that is missing, which the others give back.
    pub reconstructed_blocks: u64,
    /// Blocks of open groups that no stored parity covers.
    pub uncovered_blocks: u64,
    /// Trims that one of their two donors lacks.
    pub unfinished_trims: u64,
    /// Slots that are not as they were written.
    pub damaged_slots: u64,
    /// Blocks that cannot be read.
    pub lost_blocks: u64,
    /// Blocks that may be read as something else than was written.
    pub doubtful_blocks: u64,
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// The name of the device.
    pub id: String,
    /// *Units*: bytes.
    pub size_bytes: u64,
    /// *Units*: bytes.
    pub block_bytes: u32,
    /// Its redundancy.
    pub redundancy: &'static str,
    /// How bad it is.
    pub health: Health,
    /// Generation and epoch of the view.
    pub view: (u64, u64),
    /// Whether the last client detached it, so that nothing may be unfinished.
    pub is_detached: bool,
    /// By position in the device.
    pub donors: Vec<CheckedDonor>,
    /// Counts.
    pub counts: Counts,
    /// How many problems there are.
    pub problem_count: u64,
    /// The first of them.
    pub problems: Vec<Problem>,
}

impl Checked {
    pub(super) fn new(options: &RamOptions, geometry: &Geometry) -> Checked {
        Checked {
            id: options.id.clone(),
            size_bytes: geometry.bytes,
            block_bytes: geometry.block_bytes,
            redundancy: options.redundancy.name(),
            health: Health::Healthy,
            view: (0, 0),
            is_detached: false,
            donors: Vec::new(),
            counts: Counts::default(),
            problem_count: 0,
            problems: Vec::new(),
        }
    }

    pub(super) fn problem(&mut self, problem: Problem) {
        self.health = self.health.max(problem.what.health());
        self.problem_count += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem);
        }
    }

    /// The place in the SPEC of a donor by position.
    pub(super) fn place(&self, donor: usize) -> Option<usize> {
        self.donors.get(donor).map(|donor| donor.place)
    }

    /// Adds what follows from the counts alone.
    pub(super) fn finish(&mut self) {
        let Counts { marked_stripes, unfinished_trims, uncovered_blocks, .. } = self.counts;
        if marked_stripes > 0 {
            let text = format!("{marked_stripes} stripes were being changed when the last client ended");
            self.problem(Problem::of(What::Unfinished, text));
        }
        let open = |count: u64, what: &str| (count > 0).then(|| format!("{count} {what}"));
        let unfinished = [
            open(unfinished_trims, "trims are on one of their two donors"),
            open(uncovered_blocks, "blocks of open groups have no stored parity"),
        ];
        let unfinished: Vec<String> = unfinished.into_iter().flatten().collect();
        if !unfinished.is_empty() && !self.is_detached {
            let text = format!("{}, as the last client did not detach", unfinished.join(", "));
            self.problem(Problem::of(What::Unfinished, text));
        } else if unfinished_trims > 0 {
            self.problem(Problem::of(What::Damaged, unfinished.join(", ")));
        }
    }
}
