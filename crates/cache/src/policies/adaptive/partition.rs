//! A partition: the cache divided between streams, each with a follower of its own.
//!
//! Owns: shares, who owns which block, and the steps from one division to the next. Promises: shares sum to at most the
//! capacity. Leaves to others: which division is wanted (`allocation.rs`); whether a partition is better than no partition:
//! it is one ghost among others.
//!
//! # Shares
//! Until the cache is full a stream takes what it needs. From then on the wanted division is reckoned sixteen times a
//! capacity of references, and where it saves more than chance would, one 64th of the capacity moves from the stream that
//! has most too much to the one that has most too little. So a wrong reckoning does little before the next one.
//!
//! A block belongs to the stream that first referred to it, until it leaves.

use hashbrown::HashTable;

use super::allocation::{Curve, divide};
use super::follower::Follower;
use super::guard::Favourite;
use super::streams::SLOTS_MAX;
use crate::structures::hash::hash;
use crate::{Access, Policy, Stream};

/// A step moves the capacity divided by this.
const STEP_DIVISOR: u64 = 64;
/// Divisions are reckoned each time this share of the capacity was referenced.
const PLAN_DIVISOR: u64 = 16;
const PLAN_REFERENCES_MIN: u64 = 16;
/// The window of the curves, in references for each unit of capacity.
const WINDOW: f64 = 4.0;
/// A division must save at least this share of the misses, and the root of the misses.
const GAIN_MIN: f64 = 0.002;

struct Part {
    follower: Follower,
    curve: Curve,
    share: u64,
}

/// The cache divided between streams.
pub(super) struct Partition {
    capacity: u64,
    looks_smaller: bool,
    /// By slot of the stream.
    parts: Vec<Part>,
    /// Which slot's part holds an id.
    owners: HashTable<(u64, u8)>,
    /// What no stream has yet.
    free: u64,
    used: u64,
    /// References until the next reckoning.
    left: u64,
    shares: Vec<f64>,
    pieces: Vec<(f64, usize, f64)>,
    division: Vec<f64>,
    lost: Vec<u64>,
}

impl Partition {
    /// A partition without streams; `looks_smaller` is for their followers.
    pub(super) fn new(capacity: u64, looks_smaller: bool) -> Partition {
        Partition {
            capacity,
            looks_smaller,
            parts: Vec::new(),
            owners: HashTable::new(),
            free: capacity,
            used: 0,
            left: plan_references(capacity),
            shares: Vec::new(),
            pieces: Vec::new(),
            division: Vec::new(),
            lost: Vec::new(),
        }
    }

    /// The share of a slot's stream; 0 where it has none. *Units*: units of weight.
    pub(super) fn share(&self, slot: usize) -> u64 {
        self.parts.get(slot).map_or(0, |part| part.share)
    }

    /// The follower of a slot's stream.
    pub(super) fn follower(&self, slot: usize) -> Option<&Follower> {
        self.parts.get(slot).map(|part| &part.follower)
    }

    /// Says what a verdict expects of a slot's stream.
    pub(super) fn set_favourite(&mut self, slot: usize, favourite: Option<Favourite>) {
        if let Some(part) = self.parts.get_mut(slot) {
            part.follower.set_favourite(favourite);
        }
    }

    fn owner(&self, id: u64) -> Option<usize> {
        self.owners.find(hash(id), |owned| owned.0 == id).map(|owned| usize::from(owned.1))
    }

    fn disown(&mut self, id: u64) {
        if let Ok(found) = self.owners.find_entry(hash(id), |owned| owned.0 == id) {
            found.remove();
        }
    }

    /// Takes what its follower evicted out of the books.
    fn settle(&mut self, evict: &mut dyn FnMut(u64) -> bool) {
        while let Some(id) = self.lost.pop() {
            self.disown(id);
            evict(id);
        }
        self.used = self.parts.iter().map(|part| part.follower.used()).sum();
    }

    fn resize(&mut self, slot: usize, share: u64) {
        let Partition { parts, lost, .. } = self;
        let part = &mut parts[slot];
        part.share = share;
        part.follower.set_capacity(share, &mut |id| {
            lost.push(id);
            true
        });
    }

    /// Reckons the division, and takes one step towards it where it saves enough.
    fn plan(&mut self) {
        let references = plan_references(self.capacity);
        self.left = references;
        let fade = (-(references as f64) / (WINDOW * self.capacity as f64).max(200.0)).exp();
        let capacity = self.capacity.max(1) as f64;
        self.shares.clear();
        for part in &mut self.parts {
            part.curve.fade(fade);
            part.curve.update();
            self.shares.push(part.share as f64 / capacity);
        }
        if self.free > 0 || self.parts.len() < 2 {
            return;
        }
        divide(self.parts.iter().map(|part| &part.curve), &self.shares, &mut self.pieces, &mut self.division);
        let misses = |shares: &[f64]| -> f64 {
            self.parts.iter().zip(shares).map(|(part, share)| part.curve.misses(*share)).sum()
        };
        let now = misses(&self.shares);
        if now - misses(&self.division) < now.sqrt() + GAIN_MIN * now {
            return;
        }
        let (mut from, mut to) = ((0, 0.0), (0, 0.0));
        for (slot, (wanted, share)) in self.division.iter().zip(&self.shares).enumerate() {
            let lacks = (wanted - share) * capacity;
            from = if lacks < from.1 { (slot, lacks) } else { from };
            to = if lacks > to.1 { (slot, lacks) } else { to };
        }
        let step = (self.capacity / STEP_DIVISOR).max(1).min((-from.1) as u64).min(to.1 as u64);
        if step > 0 && from.0 != to.0 {
            self.resize(from.0, self.parts[from.0].share - step);
            self.resize(to.0, self.parts[to.0].share + step);
        }
    }
}

fn plan_references(capacity: u64) -> u64 {
    (capacity / PLAN_DIVISOR).max(PLAN_REFERENCES_MIN)
}

impl Policy for Partition {
    fn name(&self) -> &'static str {
        "partition"
    }

    /// Refers to `id` by the stream of the slot `stream`.
    fn reference(&mut self, id: u64, weight: u64, stream: Stream, evict: &mut dyn FnMut(u64) -> bool) -> Access {
        let owner = self.owner(id);
        let slot = owner.unwrap_or((stream.0 as usize).min(SLOTS_MAX - 1));
        while self.parts.len() <= slot {
            self.parts.push(Part {
                follower: Follower::new(0, self.looks_smaller),
                curve: Curve::new(self.capacity),
                share: 0,
            });
        }
        self.left -= 1;
        if self.left == 0 {
            self.plan();
            self.settle(evict);
        }
        self.parts[slot].curve.count(id, weight);
        let part = &self.parts[slot];
        let lacks = (part.follower.used() + weight).saturating_sub(part.share);
        if self.free > 0 && lacks > 0 && owner.is_none() {
            let given = (self.capacity / STEP_DIVISOR).max(lacks).min(self.free);
            self.free -= given;
            self.resize(slot, self.parts[slot].share + given);
        }
        let Partition { parts, lost, .. } = self;
        let access = parts[slot].follower.reference(id, weight, stream, &mut |victim| {
            lost.push(victim);
            true
        });
        if access == Access::Inserted {
            self.owners.insert_unique(hash(id), (id, slot as u8), |owned| hash(owned.0));
        }
        self.settle(evict);
        access
    }

    fn remove(&mut self, id: u64) -> bool {
        let owner = self.owner(id);
        for (slot, part) in self.parts.iter_mut().enumerate() {
            if part.follower.remove(id) {
                debug_assert_eq!(owner, Some(slot));
            }
        }
        self.disown(id);
        self.settle(&mut |_| true);
        owner.is_some()
    }

    fn contains(&self, id: u64) -> bool {
        self.owner(id).is_some()
    }

    fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        // Shares shrink in proportion, and curves of another size begin anew.
        let before = self.capacity.max(1);
        self.capacity = capacity;
        let mut given = 0;
        for slot in 0..self.parts.len() {
            let share = u128::from(self.parts[slot].share) * u128::from(capacity) / u128::from(before);
            let share = if capacity < before { share as u64 } else { self.parts[slot].share };
            given += share;
            self.resize(slot, share);
            self.parts[slot].curve = Curve::new(capacity);
        }
        self.free = capacity.saturating_sub(given);
        self.left = plan_references(capacity);
        self.settle(evict);
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn used(&self) -> u64 {
        self.used
    }

    fn len(&self) -> usize {
        self.owners.len()
    }
}
