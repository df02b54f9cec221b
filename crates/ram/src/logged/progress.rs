//! How far recovery, the filling of a donor and the scrub are.
//!
//! Owns: what each has begun and what it has got. Leaves to others: what is read and written (`recovery`, `refill`,
//! `scrub`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use super::slot_reads::SlotReadPart;
use super::stores::DonorWrite;
use super::survey::{RecoveryPlan, RecoverySurvey};
use crate::group::Donor;
use crate::scrub::{Scrub, ScrubFindings};

/// The stage of a recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecoveryStage {
    /// Waits until no donor is being left any more.
    Waiting,
    /// Shapes, trims, summaries and spares are read.
    Heads,
    /// Headers of slots are read.
    Headers,
    /// Whole slots are read.
    Rows,
    /// Open groups are sealed.
    Writing,
}

/// A read of a recovery.
#[derive(Debug, Clone, Copy)]
pub(super) struct SurveyRead {
    pub donor: Donor,
    pub offset: u64,
    pub bytes: u64,
    /// The group, if the read is of a slot.
    pub row: u32,
}

/// A recovery in progress.
#[derive(Debug)]
pub(super) struct ParityLogRecovery {
    pub stage: RecoveryStage,
    /// The number of this attempt; answers to earlier attempts are ignored.
    pub attempt: u64,
    pub trusted: Vec<bool>,
    /// Reads that are not sent yet, by donor.
    pub waiting: BTreeMap<Donor, VecDeque<u64>>,
    /// Reads without an answer, by number.
    pub reads: BTreeMap<u64, SurveyRead>,
    /// The number of reads in flight.
    pub sent: usize,
    pub sent_bytes: u64,
    next: u64,
    /// Groups whose slots are read later.
    pub rows: VecDeque<u32>,
    /// The answers, by donor and offset.
    pub got: BTreeMap<(Donor, u64), (u32, Bytes)>,
    pub heads: Option<RecoverySurvey>,
    pub plan: Option<RecoveryPlan>,
}

impl ParityLogRecovery {
    pub fn new(attempt: u64) -> ParityLogRecovery {
        ParityLogRecovery {
            stage: RecoveryStage::Waiting,
            attempt,
            trusted: Vec::new(),
            waiting: BTreeMap::new(),
            reads: BTreeMap::new(),
            sent: 0,
            sent_bytes: 0,
            next: 0,
            rows: VecDeque::new(),
            got: BTreeMap::new(),
            heads: None,
            plan: None,
        }
    }

    pub fn want(&mut self, donor: Donor, row: u32, offset: u64, bytes: u64) {
        let number = self.next;
        self.next += 1;
        self.reads.insert(number, SurveyRead { donor, offset, bytes, row });
        self.waiting.entry(donor).or_default().push_back(number);
    }

    /// Returns all answers, once every read is answered.
    pub fn all(&mut self) -> Option<Vec<(Donor, u32, Bytes)>> {
        if !self.reads.is_empty() || !self.rows.is_empty() {
            return None;
        }
        Some(std::mem::take(&mut self.got).into_iter().map(|((donor, _), (row, bytes))| (donor, row, bytes)).collect())
    }
}

/// The progress of filling a donor.
#[derive(Debug)]
pub(super) struct DonorRefill {
    pub donor: Donor,
    /// The donor's `joined` number in the view; another number means another filling.
    pub joined: u64,
    /// Groups whose part the donor has.
    pub done: BTreeSet<u32>,
    /// Groups that were begun before their turn.
    pub begun: BTreeSet<u32>,
    /// No group from this one on was begun, except those in `begun`.
    pub next: u32,
    /// No region of trims from this one on was begun.
    pub next_region: u64,
    /// Groups whose slot is being computed.
    pub looking: BTreeSet<u32>,
    /// Writes in progress, each with the group that it finishes.
    pub puts: BTreeMap<u64, Option<u32>>,
    /// Groups that are pinned until their writes are done.
    pub pinned: BTreeSet<u32>,
}

/// What a group is compared with.
#[derive(Debug)]
pub(super) enum ScrubReference {
    /// Its parity and its summary.
    Parity,
    /// What the client's memory has.
    Memory { of: MemoryUnit, stored: Vec<DonorWrite> },
}

/// What the client's memory has, too.
#[derive(Debug, Clone, Copy)]
pub(super) enum MemoryUnit {
    /// A life of an open group.
    Life(u64),
    /// The trims of a region, which are on two donors.
    Region(u64),
}

/// A step in progress: a group or a region that is compared.
#[derive(Debug)]
pub(super) struct GroupScrubStep {
    /// The number of the group; the regions have the numbers after those of the groups.
    pub unit: u64,
    pub against: ScrubReference,
    /// Distinguishes the answers to this step from those to earlier ones.
    pub attempt: u64,
    /// Of a sealed group the slot on each donor, then its summary; of an open group what is stored.
    pub parts: Vec<SlotReadPart>,
    /// The task that overwrites what was wrong.
    pub put: Option<u64>,
    pub found: ScrubFindings,
}

/// The scrub of groups.
#[derive(Debug)]
pub(super) struct GroupScrub {
    /// Its pace and its findings.
    pub pace: Scrub,
    pub step: Option<GroupScrubStep>,
    /// The number of steps that were begun.
    pub begun: u64,
}
