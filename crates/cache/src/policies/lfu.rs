//! LFU: evicts the id that was referenced least often; among equals the one that reached its frequency first.
//!
//! # Idea
//! If references follow a distribution that does not change, the number of past references predicts best how soon an id
//! is referenced again. Ids of one frequency form a *group*, a queue in the order in which they reached it; the groups
//! form a list by rising frequency. A hit moves an id to the next group, so nothing is ever sorted. An evicted id loses
//! its count: when it returns, its frequency is 1.
//!
//! Plain LFU (`lfu`) never forgets: formerly popular ids stay for ever, which is very bad when popularity changes. With
//! *ageing* (`lfu-aged`) all frequencies are halved once every id has had 4 references on average: a few periods after
//! popularity changes, formerly popular ids have the same frequency as newcomers. More references than 4 make the
//! policy steadier but slower to adapt. Of 2, 4, 10 and 20 references, 4 missed at most a seventh more than the best at
//! every measured size of four traces, while 10 missed up to 65 % more than the best on the drifting trace (sprite).
//! Ageing by the frequency of the victims (LFU-DA) needs no such number, but it needs a heap, and was no better on
//! these traces.
//!
//! # What happens
//! | event | |
//! |---|---|
//! | hit | frequency + 1; newest of its group |
//! | miss | newest of the group of frequency 1 |
//! | room is needed | evicts the oldest of the lowest group |
//! | victim refused | it is *parked* with its frequency; after the next eviction, or when all others are parked too, it returns as the newest of its group |
//! | ageing | groups 2f and 2f + 1 become group f; the ids of 2f are older |
//!
//! Without parking, many pinned ids of the lowest frequency would block all other victims.
//!
//! # Invariants
//! 1. A resident id is in exactly one group, or it is parked because its eviction was refused.
//! 2. No group is empty, and frequencies rise strictly along the list.
//! 3. An id's `place` is its group, or its frequency while it is parked.
//!
//! # Cost
//! O(1) per reference plus O(1) per victim; the return of a parked id walks over the groups below it. Ageing writes to
//! every id, in memory order, once per 4 references per id. 43 to 53 bytes per resident id and 48 per group; the number
//! of groups is at most the number of different frequencies, which is at most the square root of twice the references.
//!
//! # Source
//! The groups: K. Shah, A. Mitra, D. Matani, "An O(1) algorithm for implementing the LFU cache eviction scheme", 2010.
//! Ageing by halving: J. T. Robinson, M. V. Devarakonda, "Data cache management using frequency-based replacement",
//! SIGMETRICS 1990.

use std::mem;

use crate::policies::ranked::{PARKED, RankedPolicy, RankingRule};
use crate::structures::arena::{Arena, ArenaQueue};

/// The number of references per resident id after which the frequencies are halved.
const REFERENCES_PER_ID: u64 = 4;
/// The index that means no group.
const NONE: u32 = u32::MAX;

const GROUPED: u8 = 0;

/// The ids of one frequency, in the order in which they reached that frequency.
#[derive(Debug)]
struct FrequencyGroup {
    queue: ArenaQueue,
    frequency: u64,
    /// The group of the next higher frequency; for a free group, the next free one.
    higher: u32,
    lower: u32,
}

/// Least frequently used, over weighted ids; among equals, the oldest is evicted.
pub type Lfu = RankedPolicy<ByFrequency>;

impl Lfu {
    /// An empty policy of `capacity` units of weight that never lowers the frequency of a resident id.
    pub fn new(capacity: u64) -> Lfu {
        RankedPolicy::of(capacity, ByFrequency::new(false))
    }

    /// An empty policy of `capacity` units of weight whose frequencies are halved from time to time.
    pub fn aged(capacity: u64) -> Lfu {
        RankedPolicy::of(capacity, ByFrequency::new(true))
    }
}

/// Ids ordered by the number of their references.
#[derive(Debug)]
pub struct ByFrequency {
    is_aged: bool,
    groups: Vec<FrequencyGroup>,
    lowest: u32,
    free: u32,
    /// The number of references until the frequencies are halved.
    references_left: u64,
}

impl ByFrequency {
    fn new(is_aged: bool) -> ByFrequency {
        let references_left = REFERENCES_PER_ID;
        ByFrequency { is_aged, groups: Vec::new(), lowest: NONE, free: NONE, references_left }
    }

    /// Adds an empty group of `frequency` after the group `lower`, or as the lowest.
    fn add_group(&mut self, lower: u32, frequency: u64) -> u32 {
        let higher = if lower == NONE { self.lowest } else { self.groups[lower as usize].higher };
        let group = FrequencyGroup { queue: ArenaQueue::new(GROUPED), frequency, higher, lower };
        let index = if self.free == NONE {
            self.groups.push(group);
            (self.groups.len() - 1) as u32
        } else {
            let index = self.free;
            self.free = self.groups[index as usize].higher;
            self.groups[index as usize] = group;
            index
        };
        if higher != NONE {
            self.groups[higher as usize].lower = index;
        }
        if lower == NONE {
            self.lowest = index;
        } else {
            self.groups[lower as usize].higher = index;
        }
        index
    }

    /// Removes an empty group from the list.
    fn free_group(&mut self, index: u32) {
        let FrequencyGroup { higher, lower, .. } = self.groups[index as usize];
        if higher != NONE {
            self.groups[higher as usize].lower = lower;
        }
        if lower == NONE {
            self.lowest = higher;
        } else {
            self.groups[lower as usize].higher = higher;
        }
        self.groups[index as usize].higher = self.free;
        self.free = index;
    }

    /// Puts an id that is in no queue into the group of `frequency`; the search for the group starts at the group
    /// `below` and goes upwards.
    fn put(&mut self, arena: &mut Arena, index: u32, frequency: u64, below: u32) {
        let mut lower = below;
        let mut higher = if lower == NONE { self.lowest } else { self.groups[lower as usize].higher };
        while higher != NONE && self.groups[higher as usize].frequency < frequency {
            (lower, higher) = (higher, self.groups[higher as usize].higher);
        }
        let is_there = higher != NONE && self.groups[higher as usize].frequency == frequency;
        let group = if is_there { higher } else { self.add_group(lower, frequency) };
        arena.link(&mut self.groups[group as usize].queue, index);
        arena.entry_mut(index).place = group;
    }

    /// Removes an id from its group and returns the group; the caller frees the group if it is empty.
    fn take_from_group(&mut self, arena: &mut Arena, index: u32) -> u32 {
        let group = arena.entry(index).place;
        arena.unlink(&mut self.groups[group as usize].queue, index);
        group
    }

    fn free_if_empty(&mut self, group: u32) {
        if self.groups[group as usize].queue.count == 0 {
            self.free_group(group);
        }
    }

    /// Counts a reference, and halves the frequencies after enough references.
    fn age(&mut self, arena: &mut Arena, count: usize) {
        self.references_left = self.references_left.saturating_sub(1);
        if self.references_left > 0 || !self.is_aged {
            return;
        }
        self.references_left = (count as u64).max(1) * REFERENCES_PER_ID;
        let mut at = self.lowest;
        while at != NONE {
            let group = &mut self.groups[at as usize];
            group.frequency /= 2;
            let (frequency, lower, higher) = (group.frequency, group.lower, group.higher);
            if lower != NONE && self.groups[lower as usize].frequency == frequency {
                let newer = mem::replace(&mut self.groups[at as usize].queue, ArenaQueue::new(GROUPED));
                arena.append(&mut self.groups[lower as usize].queue, newer);
            }
            at = higher;
        }
        // Groups that were merged into the lower one are empty now; their ids are updated before the groups are freed.
        for entry in arena.entries_mut() {
            if entry.queue == PARKED {
                entry.place /= 2;
            } else if self.groups[entry.place as usize].queue.count == 0 {
                entry.place = self.groups[entry.place as usize].lower;
            }
        }
        let mut at = self.lowest;
        while at != NONE {
            let higher = self.groups[at as usize].higher;
            self.free_if_empty(at);
            at = higher;
        }
    }
}

/// The memory of `count` ids. *Units*: bytes.
pub(crate) fn bytes_of(count: usize) -> u64 {
    Arena::bytes_of(count)
}

impl RankingRule for ByFrequency {
    fn name(&self) -> &'static str {
        if self.is_aged { "lfu-aged" } else { "lfu" }
    }

    fn begin(&mut self, arena: &mut Arena, count: usize) {
        self.age(arena, count);
    }

    fn lowest(&mut self, _: &Arena) -> Option<u32> {
        self.groups.get(self.lowest as usize)?.queue.oldest()
    }

    fn add(&mut self, arena: &mut Arena, index: u32) {
        self.put(arena, index, 1, NONE);
    }

    fn put_back(&mut self, arena: &mut Arena, index: u32, is_hit: bool) {
        let frequency = u64::from(arena.entry(index).place) + u64::from(is_hit);
        self.put(arena, index, frequency, NONE);
    }

    fn raise(&mut self, arena: &mut Arena, index: u32) {
        let group = self.take_from_group(arena, index);
        let frequency = self.groups[group as usize].frequency + 1;
        self.put(arena, index, frequency, group);
        self.free_if_empty(group);
    }

    fn take(&mut self, arena: &mut Arena, index: u32) {
        let group = self.take_from_group(arena, index);
        self.free_if_empty(group);
    }

    fn take_to_park(&mut self, arena: &mut Arena, index: u32) {
        let frequency = self.groups[self.lowest as usize].frequency;
        self.take(arena, index);
        arena.entry_mut(index).place = frequency.min(u64::from(u32::MAX)) as u32;
    }
}
