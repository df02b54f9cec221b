//! Records what clients of a cached device did and saw, cell by cell, and decides whether a device that does one
//! operation at a time could have given these answers.
//!
//! A cell is 4 KiB of the device. It holds the unique number of the write that filled it, or 0 if its bytes are zeroes.
//! Two questions are answered:
//!
//! - *Are the answers possible?* There must be an order of the operations on a cell that keeps the order of those that
//!   did not overlap, and in which every read returns the result of the last change before it. A discard leaves zeroes
//!   or the old bytes. A change that failed, or whose caller gave up, may happen at any later moment or never.
//! - *May a crash leave this number?* A number may be found unless a durable change began after the write of that
//!   number had ended. A change is durable if it was forced and has ended, or if a successful flush began after it
//!   ended.

use std::collections::HashSet;

/// A moment: the number of events before it.
pub type Time = u64;

/// The time of an event that never happens.
const NEVER: Time = Time::MAX;

/// The effect of an operation on a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CellEffect {
    Write(u64),
    Zero,
    Discard,
}

/// A change of some cells.
#[derive(Debug, Clone)]
pub struct CellChange {
    pub cells: std::ops::Range<usize>,
    pub change: CellEffect,
    pub began: Time,
    /// The time at which the change succeeded; `NEVER` if it failed or got no answer.
    pub ended: Time,
    pub is_forced: bool,
}

/// The result of a read of a cell.
#[derive(Debug, Clone, Copy)]
pub struct CellRead {
    pub cell: usize,
    pub number: u64,
    pub began: Time,
    pub ended: Time,
}

/// A successful flush.
#[derive(Debug, Clone, Copy)]
pub struct CompletedFlush {
    pub began: Time,
    pub ended: Time,
}

/// Everything that happened.
#[derive(Debug, Clone, Default)]
pub struct DeviceHistory {
    pub now: Time,
    pub changes: Vec<CellChange>,
    pub reads: Vec<CellRead>,
    pub flushes: Vec<CompletedFlush>,
}

/// An operation on a cell. The search puts all of them into a possible order.
#[derive(Debug, Clone, Copy)]
struct CellStep {
    began: Time,
    ended: Time,
    kind: CellStepKind,
}

#[derive(Debug, Clone, Copy)]
enum CellStepKind {
    Read(u64),
    Change(CellEffect),
}

impl DeviceHistory {
    /// Advances the time by one event; returns the new time.
    pub fn tick(&mut self) -> Time {
        self.now += 1;
        self.now
    }

    /// Records that a change begins; returns its index.
    pub fn begin(&mut self, cells: std::ops::Range<usize>, change: CellEffect, is_forced: bool) -> usize {
        let began = self.tick();
        self.changes.push(CellChange { cells, change, began, ended: NEVER, is_forced });
        self.changes.len() - 1
    }

    /// Records that a change succeeded.
    pub fn end(&mut self, place: usize) {
        self.changes[place].ended = self.tick();
    }

    /// Returns the history up to a moment, without the reads, to check a crash at that moment.
    pub fn until(&self, moment: Time) -> DeviceHistory {
        let changes = self.changes.iter().filter(|changed| changed.began <= moment);
        let ended = |ended| if ended <= moment { ended } else { NEVER };
        DeviceHistory {
            now: moment,
            changes: changes.map(|changed| CellChange { ended: ended(changed.ended), ..changed.clone() }).collect(),
            reads: Vec::new(),
            flushes: self.flushes.iter().filter(|flushed| flushed.ended <= moment).copied().collect(),
        }
    }

    /// Describes the cells whose reads cannot be explained.
    pub fn unexplained(&self, cells: usize) -> Vec<String> {
        (0..cells).filter_map(|cell| self.unexplained_cell(cell)).collect()
    }

    fn steps(&self, cell: usize) -> Vec<CellStep> {
        let reads = self.reads.iter().filter(|read| read.cell == cell);
        let reads =
            reads.map(|read| CellStep { began: read.began, ended: read.ended, kind: CellStepKind::Read(read.number) });
        let changes = self.changes.iter().filter(|changed| changed.cells.contains(&cell));
        let changes = changes.map(|changed| CellStep {
            began: changed.began,
            ended: changed.ended,
            kind: CellStepKind::Change(changed.change),
        });
        let mut steps: Vec<CellStep> = reads.chain(changes).collect();
        steps.sort_by_key(|step| step.began);
        steps
    }

    fn unexplained_cell(&self, cell: usize) -> Option<String> {
        let steps = self.steps(cell);
        let mut search = CellOrderSearch { steps: &steps, seen: HashSet::new(), furthest: 0 };
        if search.from(OrderedSteps::default(), 0, 0) {
            return None;
        }
        let around = &steps[search.furthest.saturating_sub(6)..steps.len().min(search.furthest + 3)];
        Some(format!("cell {cell}: no order explains its {} operations; around {around:?}", steps.len()))
    }

    /// Whether a loss of power now may leave a number in a cell.
    pub fn may_remain(&self, cell: usize, number: u64) -> bool {
        let changes = || self.changes.iter().filter(|changed| changed.cells.contains(&cell));
        let is_durable = |changed: &CellChange| {
            changed.ended != NEVER
                && changed.change != CellEffect::Discard
                && (changed.is_forced || self.flushes.iter().any(|flushed| changed.ended < flushed.began))
        };
        let outlives = |ended: Time| !changes().any(|later| later.began > ended && is_durable(later));
        let from_change = changes()
            .filter(|changed| match changed.change {
                CellEffect::Write(written) => written == number,
                CellEffect::Zero | CellEffect::Discard => number == 0,
            })
            .any(|changed| outlives(changed.ended));
        from_change || number == 0 && outlives(0)
    }
}

/// The steps that already have a place in the order: all before `first`, and those in `behind`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct OrderedSteps {
    first: usize,
    behind: Vec<usize>,
}

impl OrderedSteps {
    fn has(&self, index: usize) -> bool {
        index < self.first || self.behind.binary_search(&index).is_ok()
    }

    fn with(&self, index: usize) -> OrderedSteps {
        let mut taken = self.clone();
        if let Err(place) = taken.behind.binary_search(&index) {
            taken.behind.insert(place, index);
        }
        while taken.behind.first() == Some(&taken.first) {
            taken.behind.remove(0);
            taken.first += 1;
        }
        taken
    }
}

/// The search for an order. It is Wing and Gong's algorithm, with Lowe's cache of tried states.
struct CellOrderSearch<'a> {
    steps: &'a [CellStep],
    seen: HashSet<(OrderedSteps, u64)>,
    furthest: usize,
}

impl CellOrderSearch<'_> {
    fn from(&mut self, taken: OrderedSteps, number: u64, depth: usize) -> bool {
        self.furthest = self.furthest.max(taken.first);
        let open = || (taken.first..self.steps.len()).filter(|index| !taken.has(*index));
        // An operation without an answer need not have happened.
        if open().all(|index| self.steps[index].ended == NEVER) {
            return true;
        }
        if !self.seen.insert((taken.clone(), number)) || depth > self.steps.len() {
            return false;
        }
        let earliest = open().map(|index| self.steps[index].ended).min().unwrap_or(NEVER);
        let next: Vec<usize> = open().take_while(|index| self.steps[*index].began < earliest).collect();
        // A read that fits changes nothing, so it can always be placed first.
        let is_read = |index: &&usize| matches!(self.steps[**index].kind, CellStepKind::Read(read) if read == number);
        if let Some(&read) = next.iter().find(is_read) {
            return self.from(taken.with(read), number, depth + 1);
        }
        // An operation without an answer is tried only where a read may need it next.
        let wanted = |read: u64| {
            next.iter().any(|&at| matches!(self.steps[at].kind, CellStepKind::Read(number) if number == read))
        };
        let is_needed = |index: &usize| match (self.steps[*index].ended, self.steps[*index].kind) {
            (NEVER, CellStepKind::Change(CellEffect::Write(written))) => wanted(written),
            (NEVER, CellStepKind::Change(_)) => wanted(0),
            _ => true,
        };
        let next: Vec<usize> = next.iter().copied().filter(is_needed).collect();
        next.into_iter().any(|index| match self.steps[index].kind {
            CellStepKind::Read(_) => false,
            CellStepKind::Change(CellEffect::Write(written)) => self.from(taken.with(index), written, depth + 1),
            CellStepKind::Change(CellEffect::Zero) => self.from(taken.with(index), 0, depth + 1),
            CellStepKind::Change(CellEffect::Discard) => {
                self.from(taken.with(index), 0, depth + 1) || self.from(taken.with(index), number, depth + 1)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(history: &mut DeviceHistory, number: u64, began: Time, ended: Time) {
        history.changes.push(CellChange {
            cells: 0..1,
            change: CellEffect::Write(number),
            began,
            ended,
            is_forced: false,
        });
    }

    fn read(history: &mut DeviceHistory, number: u64, began: Time, ended: Time) {
        history.reads.push(CellRead { cell: 0, number, began, ended });
    }

    /// Reads that overlap a write see it or not, but a later read does not return to the earlier value.
    #[test]
    fn overlapping_reads_never_go_back() {
        for (first, second, is_good) in [(0, 0, true), (0, 1, true), (1, 1, true), (1, 0, false)] {
            let mut history = DeviceHistory::default();
            write(&mut history, 1, 1, 10);
            read(&mut history, first, 2, 3);
            read(&mut history, second, 4, 5);
            assert_eq!(history.unexplained(1).is_empty(), is_good, "{first} {second}");
        }
    }

    /// A failed write may still be seen late; a value that nobody wrote is an error.
    #[test]
    fn replaced_value_never_read_again() {
        let mut history = DeviceHistory::default();
        write(&mut history, 1, 1, 2);
        write(&mut history, 2, 3, 4);
        read(&mut history, 1, 5, 6);
        assert_eq!(history.unexplained(1).len(), 1);
        history.changes[0].ended = NEVER;
        assert!(history.unexplained(1).is_empty());
        history.reads[0].number = 7;
        assert_eq!(history.unexplained(1).len(), 1, "nobody wrote that");
    }

    #[test]
    fn discard_leaves_data_or_zeroes() {
        for (number, is_good) in [(2, true), (0, true), (1, false)] {
            let mut history = DeviceHistory::default();
            write(&mut history, 1, 1, 2);
            write(&mut history, 2, 3, 6);
            history.changes.push(CellChange {
                cells: 0..1,
                change: CellEffect::Discard,
                began: 4,
                ended: 8,
                is_forced: false,
            });
            read(&mut history, number, 9, 10);
            assert_eq!(history.unexplained(1).is_empty(), is_good, "{number}");
        }
    }

    #[test]
    fn crash_leaves_flushed_or_newer_data() {
        let mut history = DeviceHistory::default();
        write(&mut history, 1, 1, 2);
        assert!(history.may_remain(0, 0) && history.may_remain(0, 1) && !history.may_remain(0, 2));
        history.flushes.push(CompletedFlush { began: 3, ended: 4 });
        assert!(!history.may_remain(0, 0) && history.may_remain(0, 1));
        write(&mut history, 2, 5, 6);
        assert!(history.may_remain(0, 1) && history.may_remain(0, 2));
        history.changes[1].is_forced = true;
        assert!(!history.may_remain(0, 1) && history.may_remain(0, 2));
        assert!(history.until(5).may_remain(0, 1), "it had not ended then");
    }
}
