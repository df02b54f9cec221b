//! Locations of groups: the extents of objects that were packed together. With them, one read can read exactly one
//! group.
//!
//! Owns: the extents of the groups in each segment written since the store was opened, and a bound on their number. The
//! extents are advice: if one is wrong, only too many bytes are read. For a segment that was written earlier, or that
//! would exceed the bound, no groups are known; then the cluster of a record is the aligned window around it.
//!
//! *Cost*: 8 bytes per group of two or more records, at most 1/64 of the memory budget. A lookup takes the lock of one
//! segment for a short time; only reads from disk need lookups.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

/// The memory of a group's extent, in bytes.
const GROUP_BYTES: u64 = 8;
/// All extents take at most 1/`MEMORY_SHARE` of the memory budget.
const MEMORY_SHARE: u64 = 64;

/// A group's extent: its first granule in the segment, and the number of granules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct GroupExtent {
    start: u32,
    granules: u32,
}

/// The groups of a segment, in the order of the disk.
#[derive(Default)]
struct SegmentGroups {
    /// The epoch of the segment; 0 if its groups are not known.
    epoch: u64,
    groups: Vec<GroupExtent>,
}

/// The groups of a span.
pub struct SpanGroups {
    segments: Box<[Mutex<SegmentGroups>]>,
    count: AtomicU64,
    count_max: u64,
}

/// The known location of a record's group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupLocation {
    /// The groups of the record's segment are not known.
    Unknown,
    /// The record is in no group.
    Alone,
    /// The record is in the group that has these granules of its segment.
    Group(Range<u64>),
}

impl SpanGroups {
    /// Makes an empty table.
    pub fn new(segment_count: u64, memory_bytes: u64) -> SpanGroups {
        SpanGroups {
            segments: (0..segment_count).map(|_| Mutex::default()).collect(),
            count: AtomicU64::new(0),
            count_max: memory_bytes / MEMORY_SHARE / GROUP_BYTES,
        }
    }

    /// The memory of the extents, in bytes.
    pub fn bytes(&self) -> u64 {
        self.count.load(Ordering::Relaxed) * GROUP_BYTES
    }

    /// Notes the groups of an append, in the order of their locations. `begins` is set for the first append of a
    /// segment.
    pub fn add(&self, segment: u64, epoch: u64, begins: bool, extents: &[Range<u64>]) {
        let Some(mut segment) = self.segment(segment) else { return };
        if begins {
            self.count.fetch_sub(segment.groups.len() as u64, Ordering::Relaxed);
            *segment = SegmentGroups { epoch, groups: Vec::new() };
        }
        if segment.epoch != epoch {
            return;
        }
        if self.count.load(Ordering::Relaxed) + extents.len() as u64 > self.count_max {
            self.count.fetch_sub(segment.groups.len() as u64, Ordering::Relaxed);
            *segment = SegmentGroups::default();
            return;
        }
        self.count.fetch_add(extents.len() as u64, Ordering::Relaxed);
        let group = |extent: &Range<u64>| GroupExtent {
            start: extent.start as u32,
            granules: (extent.end - extent.start) as u32,
        };
        segment.groups.extend(extents.iter().map(group));
    }

    /// Finds the group of the record that begins at `granule` of a segment.
    pub fn find(&self, segment: u64, epoch: u64, granule: u64) -> GroupLocation {
        let Some(segment) = self.segment(segment).filter(|segment| segment.epoch == epoch && epoch > 0) else {
            return GroupLocation::Unknown;
        };
        let next = segment.groups.partition_point(|group| u64::from(group.start) <= granule);
        let group = next.checked_sub(1).and_then(|index| segment.groups.get(index));
        let extent = group.map(|group| u64::from(group.start)..u64::from(group.start) + u64::from(group.granules));
        extent.filter(|extent| extent.contains(&granule)).map_or(GroupLocation::Alone, GroupLocation::Group)
    }

    fn segment(&self, segment: u64) -> Option<MutexGuard<'_, SegmentGroups>> {
        Some(self.segments.get(segment as usize)?.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(start: u64, end: u64) -> [Range<u64>; 1] {
        std::array::from_fn(|_| start..end)
    }

    #[test]
    fn record_has_group_until_overwritten() {
        let groups = SpanGroups::new(4, 1 << 20);
        assert_eq!(groups.find(1, 1, 10), GroupLocation::Unknown);
        groups.add(1, 1, true, &[10..20, 30..31]);
        groups.add(1, 1, false, &one(64, 80));
        assert_eq!(groups.bytes(), 24);
        assert_eq!(groups.find(1, 1, 9), GroupLocation::Alone);
        assert_eq!(groups.find(1, 1, 10), GroupLocation::Group(10..20));
        assert_eq!(groups.find(1, 1, 19), GroupLocation::Group(10..20));
        assert_eq!(groups.find(1, 1, 20), GroupLocation::Alone);
        assert_eq!(groups.find(1, 1, 79), GroupLocation::Group(64..80));
        assert_eq!(groups.find(2, 2, 10), GroupLocation::Unknown);
        groups.add(1, 5, true, &[]);
        assert_eq!(groups.find(1, 1, 10), GroupLocation::Unknown);
        assert_eq!(groups.find(1, 5, 10), GroupLocation::Alone);
        assert_eq!(groups.bytes(), 0);
        assert_eq!(groups.find(99, 1, 10), GroupLocation::Unknown);
    }

    /// Nothing is known of segments begun before the open, nor beyond the bound.
    #[test]
    fn old_segments_have_no_groups() {
        let groups = SpanGroups::new(4, 64 * 8 * 10);
        groups.add(2, 2, false, &one(10, 20));
        assert_eq!(groups.find(2, 2, 10), GroupLocation::Unknown);
        let ten: Vec<Range<u64>> = (0..10).map(|number| number * 10..number * 10 + 5).collect();
        groups.add(3, 3, true, &ten);
        assert_eq!((groups.bytes(), groups.find(3, 3, 51)), (80, GroupLocation::Group(50..55)));
        groups.add(3, 3, false, &one(200, 210));
        assert_eq!((groups.bytes(), groups.find(3, 3, 51)), (0, GroupLocation::Unknown));
    }
}
