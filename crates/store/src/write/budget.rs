//! The division of a memory budget.
//!
//! Owns: the memory reserved for each use, in proportion to the budget. Promises: the parts together do not exceed the
//! budget. Leaves to others: keeping each use within its part.
//!
//! | use | reserved |
//! |---|---|
//! | index, groups, referenced bits, hints, names, purges | their size; names at most 1/64 of the budget, purges 1/8 |
//! | tables of the segment that is overwritten next | 1/64 of the budget, if the index is too large to be searched |
//! | appends being written | 1/8 of the budget, at most two of the largest appends; at least one longest record |
//! | reading for re-insertion | if it is on: three extents and two windows of tables, at most 1/4 of the budget |
//! | objects, and running fills | all the rest, less 1/10 that the allocator loses to fragmentation |
//!
//! One append may use all buffers; a second append may be in flight only in the room that the first one leaves. Appends
//! are large because the end of an append may split a group of related objects, and each request for a split group
//! costs one more read. Objects that wait to be written are in the room for objects: each has one copy in memory, where
//! gets find it. Waiting objects may take half of the room for objects. Fills take their memory from the room for
//! objects while they run, at most 1/8 of the budget.

use crate::format::layout::SpanLayout;
use crate::rewrite::reinsert;

/// All appends in flight take at most 1/`APPENDS_SHARE` of the budget.
const APPENDS_SHARE: u64 = 8;
/// The total size of the two windows through which the tables of segments are read, in bytes.
const TABLE_WINDOWS_BYTES: u64 = 2 << 20;
/// The smallest and the largest limit on the memory of unwritten objects, in bytes.
const UNWRITTEN_BYTES: (u64, u64) = (2 << 20, 256 << 20);
/// The smallest and the largest limit on the memory of fills, in bytes.
const FILL_BYTES: (u64, u64) = (1 << 20, 256 << 20);
/// Objects have many different sizes, so the allocator loses 1/`LOST_SHARE` of their room to fragmentation.
const LOST_SHARE: u64 = 10;

/// The parts of a memory budget, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryBudget {
    /// Objects in memory, including unwritten ones and fills.
    pub tier_bytes: u64,
    /// The part of `tier_bytes` that may be unwritten.
    pub unwritten_bytes: u64,
    /// The limit on the memory of all fills: while they take this much, no other fill starts.
    pub fill_bytes: u64,
    /// The largest size of an append of several records. When this many bytes wait, the writer is woken.
    pub append_bytes: u64,
    /// The buffers of all appends in flight together. Only a single larger append may exceed this.
    pub append_buffers_bytes: u64,
}

impl MemoryBudget {
    /// The same budget, with at most `most` bytes for objects.
    pub fn with_objects_bytes_max(self, most: Option<u64>) -> MemoryBudget {
        let tier_bytes = self.tier_bytes.min(most.unwrap_or(u64::MAX));
        MemoryBudget { tier_bytes, unwritten_bytes: self.unwritten_bytes.min(tier_bytes / 2), ..self }
    }

    /// Divides `memory_bytes`, of which index and other tables take `tables_bytes`.
    pub fn of(memory_bytes: u64, tables_bytes: u64, layout: &SpanLayout, reinserts: bool) -> MemoryBudget {
        let append_buffers_bytes = (memory_bytes / APPENDS_SHARE).min(2 * layout.append_bytes_max());
        let append_bytes = append_buffers_bytes.min(layout.append_bytes_max());
        let longest = layout.fragment_bytes + 64 * 1024;
        let reading = if reinserts { TABLE_WINDOWS_BYTES + reinsert::buffer_bytes_max(layout) } else { 0 };
        let fill_bytes = (memory_bytes / 8).clamp(FILL_BYTES.0, FILL_BYTES.1);
        let reserved = tables_bytes + append_buffers_bytes.max(longest) + reading.min(memory_bytes / 4);
        let tier_bytes = memory_bytes.saturating_sub(reserved) / LOST_SHARE * (LOST_SHARE - 1);
        let tier_bytes = tier_bytes.max(memory_bytes / 8);
        let unwritten_bytes = (memory_bytes / 8).clamp(UNWRITTEN_BYTES.0, UNWRITTEN_BYTES.1).min(tier_bytes / 2);
        MemoryBudget { tier_bytes, unwritten_bytes, fill_bytes, append_bytes, append_buffers_bytes }
    }
}

/// The budget of a writer's span, and the size of its tables at the last division.
pub(super) struct MemoryDivision {
    bytes: u64,
    objects_bytes_max: Option<u64>,
    /// The size of the index and other tables when the memory tier's capacity was last set, in bytes.
    index_bytes: u64,
}

impl MemoryDivision {
    pub fn new(bytes: u64, objects_bytes_max: Option<u64>) -> MemoryDivision {
        MemoryDivision { bytes, objects_bytes_max, index_bytes: 0 }
    }

    /// The whole budget, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Notes the size of the tables; returns whether it differs from the one at the last division.
    pub fn is_changed(&mut self, index_bytes: u64) -> bool {
        std::mem::replace(&mut self.index_bytes, index_bytes) != index_bytes
    }

    /// Divides the budget, of which `tables_bytes` are used.
    pub fn divide(&self, tables_bytes: u64, layout: &SpanLayout, reinserts: bool) -> MemoryBudget {
        MemoryBudget::of(self.bytes, tables_bytes, layout, reinserts).with_objects_bytes_max(self.objects_bytes_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Objects get two thirds of the least memory and three quarters of much memory.
    #[test]
    fn objects_get_most_memory() {
        let small = SpanLayout::plan(126 << 20, None, 1, 2, 3).unwrap();
        let index = small.index_bytes_max() / 2;
        let least = MemoryBudget::of(8 << 20, index, &small, false);
        assert!(least.tier_bytes >= (8 << 20) * 2 / 3, "{least:?}");
        let large = SpanLayout::plan(4 << 30, None, 1, 2, 3).unwrap();
        let much = MemoryBudget::of(256 << 20, 8 << 20, &large, false);
        assert!(much.tier_bytes >= (256 << 20) * 3 / 4, "{much:?}");
    }

    #[test]
    fn parts_never_exceed_budget() {
        for span in [1 << 20, 126 << 20, 4 << 30, 1 << 40] {
            let layout = SpanLayout::plan(span, None, 1, 2, 3).unwrap();
            for shift in 23..40 {
                for reinserts in [false, true] {
                    let memory = 1u64 << shift;
                    let budget = MemoryBudget::of(memory, memory / 4, &layout, reinserts);
                    let buffers = budget.append_buffers_bytes.max(layout.fragment_bytes);
                    let sum = budget.tier_bytes + memory / 4 + buffers;
                    assert!(sum <= memory, "{span} {memory} {budget:?}");
                    assert!(budget.unwritten_bytes <= budget.tier_bytes / 2);
                    assert!(budget.append_bytes <= layout.append_bytes_max());
                }
            }
        }
    }
}
