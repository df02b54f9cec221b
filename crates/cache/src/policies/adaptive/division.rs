//! The division: a shadow cache that is divided between the streams, and which share each of them should have.
//!
//! Owns: a part of the cache and a curve of misses against size for each stream, and the steps from one division to the
//! next. Promises: shares sum to at most the capacity. Leaves to others: whether it is better than no division
//! (`choice.rs`).
//!
//! A part is a shadow cache of LIRS and one of LRU; the sign test says which of them counts. A block belongs to the
//! stream that first accessed it, until neither holds it.
//!
//! Until the cache is full a stream takes what it needs. Then a unit of memory goes where it saves most: the steepest
//! pieces of the convex hulls of all curves are taken first, until the capacity is spent. Where that saves more than
//! chance would, one step of the capacity moves from the stream that has most too much to the one that has most too
//! little. So a wrong reckoning does little before the next one.

use hashbrown::HashMap;

use super::candidate::candidate;
use super::choice::Choice;
use super::curve::{Curve, POLICIES};
use super::tuning::Tuning;
use crate::{Access, Policy, Stream};

/// The part of one stream.
struct Part {
    share: u64,
    /// One for each of [`POLICIES`].
    caches: [Box<dyn Policy>; 2],
    choice: Choice,
    curve: Curve,
}

impl Part {
    fn new(capacity: u64, tuning: Tuning) -> Part {
        let caches = POLICIES.map(|name| candidate(name, 0));
        let choice = Choice::new(capacity, caches.len(), 0, Tuning { prior: 0.0, change: 0.0, ..tuning });
        Part { share: 0, caches, choice, curve: Curve::new(capacity, tuning) }
    }

    fn current(&self) -> &dyn Policy {
        &*self.caches[self.choice.leader()]
    }
}

/// The divided shadow cache.
pub(super) struct Division {
    tuning: Tuning,
    capacity: u64,
    /// By slot of the stream.
    parts: Vec<Part>,
    owners: HashMap<u64, u8>,
    /// Given up by the caches that count since the last access began.
    pub(super) lost: Vec<u64>,
    /// Whether a part changed its policy since the last access began.
    pub(super) is_regrouped: bool,
    /// What no stream has yet.
    free: u64,
    left: u64,
}

impl Division {
    /// Nobody has anything.
    pub(super) fn new(capacity: u64, tuning: Tuning) -> Division {
        let (parts, owners, lost, left) = (Vec::new(), HashMap::new(), Vec::new(), tuning.interval(capacity));
        Division { tuning, capacity, parts, owners, lost, is_regrouped: false, free: capacity, left }
    }

    /// The share of a slot's stream, in units of weight, and its policy.
    pub(super) fn share(&self, slot: usize) -> Option<(u64, &'static str)> {
        self.parts.get(slot).map(|part| (part.share, part.current().name()))
    }

    /// Whether an id is resident.
    pub(super) fn contains(&self, id: u64) -> bool {
        self.owners.get(&id).is_some_and(|owner| self.parts[usize::from(*owner)].current().contains(id))
    }

    /// An access; whether it missed.
    pub(super) fn access(&mut self, id: u64, weight: u64, slot: usize) -> bool {
        (self.is_regrouped, self.left) = (false, self.left - 1);
        self.lost.clear();
        while self.parts.len() <= slot {
            self.parts.push(Part::new(self.capacity, self.tuning));
        }
        if self.left == 0 {
            self.left = self.tuning.interval(self.capacity);
            self.step();
        }
        let owner = self.owners.get(&id).copied();
        let slot = owner.map_or(slot, usize::from);
        let part = &self.parts[slot];
        let lacks = (part.current().used() + weight).saturating_sub(part.share);
        if self.free > 0 && lacks > 0 && owner.is_none() {
            let given = (self.capacity / self.tuning.steps.max(1)).max(lacks).min(self.free);
            self.free -= given;
            self.give(slot, part.share + given);
        }
        let part = &mut self.parts[slot];
        part.curve.count(id, weight);
        let (mut gone, mut missed) = (Vec::new(), 0);
        for (bit, cache) in part.caches.iter_mut().enumerate() {
            let access = cache.reference(id, weight, Stream(0), &mut |victim| {
                gone.push((bit, victim));
                true
            });
            missed |= u8::from(access != Access::Hit) << bit;
        }
        part.choice.count(missed, 2);
        let is_miss = missed >> part.choice.leader() & 1 == 1;
        if owner.is_none() && part.caches.iter().any(|cache| cache.contains(id)) {
            self.owners.insert(id, slot as u8);
        }
        self.settle(slot, &gone);
        is_miss
    }

    /// Notes what the caches of a part gave up.
    fn settle(&mut self, slot: usize, gone: &[(usize, u64)]) {
        let part = &self.parts[slot];
        for (cache, id) in gone {
            if *cache == part.choice.leader() {
                self.lost.push(*id);
            }
            if !part.caches.iter().any(|cache| cache.contains(*id)) {
                self.owners.remove(id);
            }
        }
    }

    fn give(&mut self, slot: usize, share: u64) {
        let part = &mut self.parts[slot];
        part.share = share;
        let mut gone = Vec::new();
        for (index, cache) in part.caches.iter_mut().enumerate() {
            cache.set_capacity(share, &mut |id| {
                gone.push((index, id));
                true
            });
        }
        self.settle(slot, &gone);
    }

    /// A stream is forgotten; another has its slot, and what it held.
    pub(super) fn forget(&mut self, slot: usize) {
        if let Some(part) = self.parts.get_mut(slot) {
            part.curve = Curve::new(self.capacity, self.tuning);
        }
    }

    /// Forgets an id.
    pub(super) fn remove(&mut self, id: u64) {
        if let Some(owner) = self.owners.remove(&id) {
            self.parts[usize::from(owner)].caches.iter_mut().for_each(|cache| _ = cache.remove(id));
        }
    }

    /// Works out the division, and takes one step towards it where it saves enough.
    fn step(&mut self) {
        let fade = self.tuning.fade(self.capacity);
        for part in &mut self.parts {
            part.curve.fade(fade);
            self.is_regrouped |= part.choice.choose().is_some();
        }
        if self.free == 0
            && self.parts.len() > 1
            && let Some((from, to, step)) = self.wanted(self.capacity.max(1) as f64)
        {
            self.give(from, self.parts[from].share - step);
            self.give(to, self.parts[to].share + step);
        }
    }

    fn wanted(&self, capacity: f64) -> Option<(usize, usize, u64)> {
        let curves = || self.parts.iter().map(|part| &part.curve);
        let mut pieces: Vec<_> = curves().enumerate().flat_map(|(slot, curve)| curve.pieces(slot)).collect();
        pieces.sort_unstable_by(|left, right| right.0.total_cmp(&left.0).then(left.1.cmp(&right.1)));
        let mut division = vec![0.0; self.parts.len()];
        let mut left = 1.0_f64;
        for (gain, slot, width) in pieces {
            let given = if gain > 0.0 { width.min(left) } else { 0.0 };
            division[slot] += given;
            left -= given;
        }
        let shares = || self.parts.iter().map(|part| part.share as f64 / capacity);
        // What nobody gains from goes in proportion to what there is.
        division.iter_mut().zip(shares()).for_each(|(given, share)| *given += left.max(0.0) * share);
        let misses = |shares: &mut dyn Iterator<Item = f64>| -> f64 {
            curves().zip(shares).map(|(curve, share)| curve.misses(share)).sum()
        };
        let now = misses(&mut shares());
        if now - misses(&mut division.iter().copied()) < self.tuning.roots * now.sqrt() {
            return None;
        }
        let lacks = || division.iter().zip(shares()).map(|(wanted, share)| (wanted - share) * capacity).enumerate();
        let from = lacks().min_by(|left, right| left.1.total_cmp(&right.1))?;
        let to = lacks().max_by(|left, right| left.1.total_cmp(&right.1))?;
        let step = (self.capacity / self.tuning.steps.max(1)).max(1).min(-from.1 as u64).min(to.1 as u64);
        (step > 0).then_some((from.0, to.0, step))
    }
}
