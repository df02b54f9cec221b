//! The reads of slots in progress.
//!
//! Owns: them, and which may be able to continue. Leaves to others: which donors each asks (`looks`).

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::group::{Donor, DonorStanding};

/// The purpose of reading a slot.
#[derive(Debug, Clone, Copy)]
pub(super) enum SlotReadPurpose {
    Operation { number: u64, at: usize },
    Fetch { task: u64 },
    Refill,
}

/// The state of a donor's slot in the row that is read.
#[derive(Debug, Clone)]
pub(super) enum SlotReadPart {
    Unsent,
    Sent,
    Got(Bytes),
    /// The slot has wrong bytes.
    Wrong,
}

/// A read of a slot in progress.
#[derive(Debug)]
pub(super) struct SlotRead {
    pub row: u32,
    pub target: Donor,
    /// The block and sequence that the slot must have; `None`: the slot is computed from the others and not compared.
    pub wanted: Option<(u32, u64)>,
    pub purpose: SlotReadPurpose,
    /// The state of the row's slot on each donor.
    pub parts: Vec<SlotReadPart>,
    /// Whether the slots of the other donors are read too.
    pub is_wide: bool,
    pub is_hedged: bool,
}

/// The reads of slots in progress.
#[derive(Debug, Default)]
pub(super) struct SlotReads {
    pub list: BTreeMap<u64, SlotRead>,
    /// The number of the last one.
    pub last: u64,
    /// Those that may be able to continue.
    pub ready: BTreeSet<u64>,
    /// For each donor, whether it can be asked, and its standing. When this changes, every read is checked for
    /// progress.
    pub looked_with: Vec<(bool, DonorStanding)>,
}
