//! Rows that may be used again.
//!
//! Owns: which rows are free, whose summaries are erased, and which are still read.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Rows that may be used again, and those that may not yet.
#[derive(Debug, Default)]
pub(super) struct RowReuse {
    /// The life of a group that used each spare last, by spare.
    pub spare_users: BTreeMap<u64, u64>,
    /// Freed groups, each with the number of a step: the group may be reused when all earlier steps are done.
    pub freed: VecDeque<(u64, u32)>,
    /// Groups that may be reused.
    pub free: BTreeSet<u32>,
    /// Those of them without a summary: they can be opened at once.
    pub erased: BTreeSet<u32>,
    /// Groups whose summary is being erased, by task.
    pub erasing: BTreeMap<u64, u32>,
    /// Groups that are read, and how often at the same time.
    pub pins: BTreeMap<u32, u32>,
}
