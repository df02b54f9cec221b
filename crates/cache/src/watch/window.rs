//! The exact distance of the cache from the optimum, computed after each window of references.
//!
//! Owns: the references of the current window, the contents at its start, and the computation of MIN over it. Promises:
//! the optimum is the number of misses of Belady's MIN with bypassing over all references of the window; MIN begins
//! with the cache's own contents at the start of the window.
//!
//! # What was resident at the start
//! Only ids that are referenced in the window matter. Such an id was resident at the start if its first reference hit,
//! or if it was evicted in the window before it was referenced.
//!
//! # Weights
//! With different weights the optimum is NP-hard, so a window with more than one weight has no distance. A window in
//! which the capacity changed has no distance either, because no single cache would be its optimum.
//!
//! # What was removed
//! A removed id counts as a new id afterwards, because no policy could have kept it.
//!
//! # Cost
//! O(1) per reference in the window, and O(log n) per reference when the window ends; 60 bytes per reference of a
//! window, at most [`WINDOW_MAX`] references.
//!
//! # Source
//! L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5(2), 1966.

use std::collections::BinaryHeap;

use hashbrown::HashTable;

use crate::structures::hash::hash;

/// The shortest and the longest window. *Units*: references.
const WINDOW_MIN: u64 = 1 << 12;
const WINDOW_MAX: u64 = 1 << 16;
/// The number of references in a window per unit of capacity; [`WINDOW_MIN`] and [`WINDOW_MAX`] limit the result.
const WINDOW_FACTOR: u64 = 4;
/// The position which means that an id is not referenced again in the window.
const NEVER: u32 = u32::MAX;

/// The distance of a window from the optimum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WindowReport {
    /// The number of the window, from 1.
    pub number: u64,
    /// The number of references of the window.
    pub references: u64,
    /// The number of misses among these references.
    pub misses: u64,
    /// The number of misses of the optimum; `None` if weights differ or the capacity changed.
    pub misses_min: Option<u64>,
}

/// An id that is referenced in the window.
#[derive(Debug, Clone, Copy)]
struct WindowId {
    id: u64,
    /// The position of the last reference to the id so far; while MIN runs, the position of the next one.
    place: u32,
    /// Whether the id was resident at the start of the window; while MIN runs, whether MIN holds it.
    is_resident: bool,
}

/// The current window.
pub(super) struct OptimumWindow {
    length: u64,
    number: u64,
    misses: u64,
    weight: Option<u64>,
    is_uniform: bool,
    /// The ids of the window; `table` finds an id's index in this vector.
    seen: Vec<WindowId>,
    table: HashTable<u32>,
    /// For each reference, the index of its id in `seen`.
    references: Vec<u32>,
    /// For each reference, the position of the next reference to the same id.
    next: Vec<u32>,
    /// Ids that were evicted in the window before they were referenced in it.
    evicted: HashTable<u64>,
    /// MIN's residents by next reference; outdated entries are skipped.
    heap: BinaryHeap<(u32, u32)>,
}

impl OptimumWindow {
    /// An empty window.
    pub(super) fn new(capacity: u64) -> OptimumWindow {
        let length = capacity.saturating_mul(WINDOW_FACTOR).clamp(WINDOW_MIN, WINDOW_MAX);
        OptimumWindow {
            length,
            number: 0,
            misses: 0,
            weight: None,
            is_uniform: true,
            seen: Vec::new(),
            table: HashTable::new(),
            references: Vec::with_capacity(length as usize),
            next: Vec::with_capacity(length as usize),
            evicted: HashTable::new(),
            heap: BinaryHeap::new(),
        }
    }

    /// Notes that `id` was evicted.
    pub(super) fn evict(&mut self, id: u64) {
        if self.find(id).is_none() && self.evicted.find(hash(id), |other| *other == id).is_none() {
            self.evicted.insert_unique(hash(id), id, |other| hash(*other));
        }
    }

    /// Notes that `id` was removed by the user of the cache, not by the policy.
    pub(super) fn remove(&mut self, id: u64) {
        let OptimumWindow { table, seen, evicted, .. } = self;
        if let Ok(found) = table.find_entry(hash(id), |&position| seen[position as usize].id == id) {
            found.remove();
        }
        if let Ok(found) = evicted.find_entry(hash(id), |other| *other == id) {
            found.remove();
        }
    }

    /// Notes that the capacity has changed.
    pub(super) fn resize(&mut self) {
        self.is_uniform = false;
    }

    /// Counts a reference in a cache of `capacity`; returns the report if the reference ended the window.
    pub(super) fn count(&mut self, id: u64, weight: u64, is_hit: bool, capacity: u64) -> Option<WindowReport> {
        self.misses += u64::from(!is_hit);
        self.is_uniform &= *self.weight.get_or_insert(weight) == weight;
        let place = self.references.len() as u32;
        let position = match self.find(id) {
            Some(position) => {
                let before = std::mem::replace(&mut self.seen[position as usize].place, place);
                self.next[before as usize] = place;
                position
            }
            None => {
                let was_evicted = self.evicted.find(hash(id), |other| *other == id).is_some();
                let position = self.seen.len() as u32;
                self.seen.push(WindowId { id, place, is_resident: is_hit || was_evicted });
                let seen = &self.seen;
                self.table.insert_unique(hash(id), position, |&other| hash(seen[other as usize].id));
                position
            }
        };
        self.references.push(position);
        self.next.push(NEVER);
        (self.references.len() as u64 == self.length).then(|| self.end(capacity))
    }

    fn find(&self, id: u64) -> Option<u32> {
        self.table.find(hash(id), |&position| self.seen[position as usize].id == id).copied()
    }

    fn end(&mut self, capacity: u64) -> WindowReport {
        self.number += 1;
        let weight = self.weight.unwrap_or(1);
        let report = WindowReport {
            number: self.number,
            references: self.length,
            misses: self.misses,
            misses_min: self.is_uniform.then(|| self.optimum(capacity / weight.max(1))),
        };
        self.misses = 0;
        self.weight = None;
        self.is_uniform = true;
        self.seen.clear();
        self.table.clear();
        self.references.clear();
        self.next.clear();
        self.evicted.clear();
        report
    }

    /// Runs MIN over the window. *Returns* the number of its misses.
    fn optimum(&mut self, blocks: u64) -> u64 {
        let OptimumWindow { seen, references, next, heap, .. } = self;
        heap.clear();
        let mut resident = 0;
        // Each id gets the position of its first reference.
        for (place, position) in references.iter().enumerate().rev() {
            seen[*position as usize].place = place as u32;
        }
        for (position, id) in seen.iter_mut().enumerate() {
            if id.is_resident && resident < blocks {
                resident += 1;
                heap.push((id.place, position as u32));
            } else {
                id.is_resident = false;
            }
        }
        let mut misses = 0;
        for (position, next) in references.iter().zip(next.iter()) {
            let is_hit = seen[*position as usize].is_resident;
            seen[*position as usize].place = *next;
            misses += u64::from(!is_hit);
            if *next == NEVER {
                // The window has no later reference to this id, so MIN evicts it at once, or does not insert it.
                resident -= u64::from(is_hit);
                seen[*position as usize].is_resident = false;
                continue;
            }
            if !is_hit {
                if resident == blocks && !evict_farther(seen, heap, *next) {
                    continue;
                }
                resident = (resident + 1).min(blocks);
                seen[*position as usize].is_resident = true;
            }
            heap.push((*next, *position));
        }
        misses
    }
}

/// Removes the id with the farthest next reference, if this reference is farther than `next`. *Returns* whether an id
/// was removed.
fn evict_farther(seen: &mut [WindowId], heap: &mut BinaryHeap<(u32, u32)>, next: u32) -> bool {
    while let Some(&(place, position)) = heap.peek() {
        let id = &mut seen[position as usize];
        if id.is_resident && id.place == place {
            if place <= next {
                return false;
            }
            id.is_resident = false;
            heap.pop();
            return true;
        }
        heap.pop();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AccessResult, StreamId, by_name};

    /// A naive MIN with bypassing that starts with `contents`. *Returns* its misses.
    fn naive(mut contents: Vec<u64>, ids: &[u64], blocks: usize) -> u64 {
        let mut misses = 0;
        for (place, id) in ids.iter().enumerate() {
            let next = |id: &u64| ids[place + 1..].iter().position(|other| other == id).unwrap_or(usize::MAX);
            if contents.contains(id) {
                continue;
            }
            misses += 1;
            contents.push(*id);
            if contents.len() > blocks {
                let farthest = (0..contents.len()).max_by_key(|position| next(&contents[*position]));
                contents.remove(farthest.expect("not empty"));
            }
        }
        misses
    }

    #[test]
    fn window_optimum_matches_naive_one() {
        for (blocks, name, seed) in [(7, "lru", 1), (40, "lirs", 2), (150, "lru", 3)] {
            let (mut policy, mut window) = (by_name(name, blocks).expect("registered"), OptimumWindow::new(blocks));
            let (mut contents, mut ids, mut random) = (Vec::new(), Vec::new(), 0x9e37_79b9_7f4a_7c15_u64 >> seed);
            let mut reports = 0;
            for step in 0..3 * WINDOW_MIN {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let id = if step % 3 == 0 { step / 3 % 90 } else { random % 200 };
                ids.push(id);
                let is_hit = policy.reference(id, 1, StreamId(0), &mut |victim| {
                    window.evict(victim);
                    true
                }) == AccessResult::Hit;
                if let Some(report) = window.count(id, 1, is_hit, blocks) {
                    assert_eq!(report.misses_min, Some(naive(contents, &ids, blocks as usize)), "{name} {step}");
                    assert!(report.misses_min <= Some(report.misses));
                    contents = (0..200).filter(|id| policy.contains(*id)).collect();
                    ids.clear();
                    reports += 1;
                }
            }
            assert_eq!(reports, 3);
        }
    }

    /// A removed id counts as one that no policy could have kept.
    #[test]
    fn removed_id_always_misses() {
        let (mut window, mut last) = (OptimumWindow::new(10), None);
        // Id 1 is resident at the start of the window and is removed at once. It is removed again after 100 references,
        // so it misses twice. Then id 2 is removed while it is not resident.
        window.remove(1);
        for step in 0..WINDOW_MIN {
            let is_miss = step == 0 || step == 100;
            last = window.count(1, 1, !is_miss, 10);
            if step == 99 {
                window.remove(1);
            }
        }
        assert_eq!(last.map(|report| (report.misses, report.misses_min)), Some((2, Some(2))));
        window.evict(2);
        window.remove(2);
        for step in 0..WINDOW_MIN {
            last = window.count(2, 1, step > 0, 10);
        }
        assert_eq!(last.map(|report| (report.misses, report.misses_min)), Some((1, Some(1))));
    }

    /// A window in which the capacity changed has no distance, and the next one has.
    #[test]
    fn capacity_change_voids_window_distance() {
        let mut window = OptimumWindow::new(10);
        window.resize();
        let mut reports = (0..2 * WINDOW_MIN).filter_map(|step| window.count(step % 5, 1, step >= 5, 10));
        assert_eq!(reports.next().map(|report| report.misses_min), Some(None));
        assert_eq!(reports.next().map(|report| report.misses_min), Some(Some(0)));
    }

    #[test]
    fn weights_that_differ_have_no_distance() {
        let mut window = OptimumWindow::new(10);
        let mut last = None;
        for step in 0..WINDOW_MIN {
            last = window.count(step % 5, 1 + step % 5, false, 10);
        }
        assert_eq!(last.map(|report| (report.misses, report.misses_min)), Some((WINDOW_MIN, None)));
    }
}
