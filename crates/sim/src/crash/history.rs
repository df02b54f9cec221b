//! The possible contents of the disk at each moment of a recording.
//!
//! Owns: for every operation, the event with which it began, the event after which it survives a crash of the process,
//! and the event after which it survives a loss of power. A point is a number of events: "before `point`" means that
//! the events `..point` had happened.

use std::collections::HashMap;

use bytes::Bytes;
use nectary_block::{RecordedEvent, Recording};

/// The effect of an operation on a range.
#[derive(Debug, Clone)]
pub(super) enum RangeEffect {
    /// Writes these bytes.
    Data(Bytes),
    /// Makes this many bytes zeroes.
    Zeroes(u64),
}

/// A write, a write of zeroes or a discard.
#[derive(Debug, Clone)]
pub(super) struct RecordedWrite {
    pub number: u64,
    pub offset: u64,
    pub change: RangeEffect,
    /// The event with which it began.
    pub begun: usize,
    /// The operation survives crashes of the process after this point.
    pub completed: usize,
    /// The operation survives losses of power after this point.
    pub durable: usize,
    /// Whether it is durable when it ends, without a flush.
    pub fua: bool,
}

impl RecordedWrite {
    pub fn length(&self) -> u64 {
        match &self.change {
            RangeEffect::Data(data) => data.len() as u64,
            RangeEffect::Zeroes(length) => *length,
        }
    }

    pub fn overlaps(&self, other: &RecordedWrite) -> bool {
        self.offset < other.offset + other.length() && other.offset < self.offset + self.length()
    }
}

/// A recording in the form that the search for crash states needs.
pub(super) struct WriteHistory {
    /// The operations, in the order in which they began.
    pub operations: Vec<RecordedWrite>,
    /// The events with which flushes succeeded, in order. Each of these events ends an epoch.
    pub flushes: Vec<usize>,
    /// For each growth of the device: the event with which it succeeded, and the new size in bytes.
    pub growths: Vec<(usize, u64)>,
    /// For each mark: its event, and its value.
    pub marks: Vec<(usize, u64)>,
    /// The number of events.
    pub event_count: usize,
    /// The points to try for a loss of power; between two of them nothing relevant happens.
    pub power_points: Vec<usize>,
}

/// The event of something that never happens.
const NEVER: usize = usize::MAX;

impl WriteHistory {
    pub fn new(recording: &Recording) -> WriteHistory {
        let events = &recording.events;
        let mut operations: Vec<RecordedWrite> = Vec::new();
        // Maps the number of an operation to its position in `operations`.
        let mut by_number: HashMap<u64, usize> = HashMap::new();
        let mut flush_begun: HashMap<u64, usize> = HashMap::new();
        let mut growth_begun: HashMap<u64, u64> = HashMap::new();
        let (mut flushes, mut growths, mut marks) = (Vec::new(), Vec::new(), Vec::new());
        // Indices of operations that are completed and not covered by a flush yet.
        let mut uncovered: Vec<usize> = Vec::new();
        let mut power_points = Vec::new();
        for (index, event) in events.iter().enumerate() {
            let mut matters = true;
            match event {
                RecordedEvent::WriteBegun { id, offset, data, fua } => {
                    by_number.insert(*id, operations.len());
                    operations.push(begun(*id, *offset, RangeEffect::Data(data.clone()), index, *fua));
                }
                RecordedEvent::ZeroesBegun { id, offset, length }
                | RecordedEvent::DiscardBegun { id, offset, length } => {
                    by_number.insert(*id, operations.len());
                    operations.push(begun(*id, *offset, RangeEffect::Zeroes(*length), index, false));
                }
                RecordedEvent::FlushBegun { id } => {
                    flush_begun.insert(*id, index);
                    matters = false;
                }
                RecordedEvent::GrowBegun { id, size_bytes } => {
                    growth_begun.insert(*id, *size_bytes);
                    matters = false;
                }
                RecordedEvent::Mark(mark) => marks.push((index, *mark)),
                // The range of a failed operation stays uncertain.
                RecordedEvent::Completed { succeeded: false, .. } => matters = false,
                RecordedEvent::Completed { id, succeeded: true } => {
                    matters = false;
                    if let Some(&operation) = by_number.get(id) {
                        operations[operation].completed = index;
                        if operations[operation].fua {
                            operations[operation].durable = index;
                            matters = true;
                        } else {
                            uncovered.push(operation);
                        }
                    } else if let Some(&began) = flush_begun.get(id) {
                        flushes.push(index);
                        uncovered.retain(|&operation| {
                            let is_covered = operations[operation].completed < began;
                            if is_covered {
                                operations[operation].durable = index;
                            }
                            !is_covered
                        });
                        matters = true;
                    } else if let Some(&size_bytes) = growth_begun.get(id) {
                        growths.push((index, size_bytes));
                    }
                }
            }
            if matters {
                power_points.push(index);
            }
        }
        power_points.push(events.len());
        WriteHistory { operations, flushes, growths, marks, event_count: events.len(), power_points }
    }

    /// Returns the device's size at a point: `base_bytes`, or the new size if it has grown.
    pub fn size_bytes(&self, base_bytes: u64, point: usize) -> u64 {
        let grown = self.growths.iter().take_while(|&&(event, _)| event < point).map(|&(_, size)| size).max();
        base_bytes.max(grown.unwrap_or(0))
    }

    /// Returns the event with which the last flush before a point succeeded.
    pub fn flushed_through(&self, point: usize) -> Option<usize> {
        self.flushes.partition_point(|&event| event < point).checked_sub(1).map(|index| self.flushes[index])
    }

    /// Counts the marks that had been set at a point.
    pub fn marks_before(&self, point: usize) -> usize {
        self.marks.partition_point(|&(event, _)| event < point)
    }

    /// The operations that had begun at a point.
    pub fn begun_before(&self, point: usize) -> &[RecordedWrite] {
        &self.operations[..self.operations.partition_point(|operation| operation.begun < point)]
    }
}

fn begun(number: u64, offset: u64, change: RangeEffect, index: usize, fua: bool) -> RecordedWrite {
    RecordedWrite { number, offset, change, begun: index, completed: NEVER, durable: NEVER, fua }
}
