//! The division: which share of the cache each stream should have, and a shadow cache that is divided so.
//!
//! Owns: a curve of misses against size for each stream, and the steps from one division to the next. Promises: shares
//! sum to at most the capacity. Leaves to others: whether it is better than no division (`choice.rs`).
//!
//! Until the cache is full a stream takes what it needs. Then a unit of memory goes where it saves most: the steepest
//! pieces of the convex hulls of all curves are taken first, until the capacity is spent. Where that saves more than
//! chance would, one step of the capacity moves from the stream that has most too much to the one that has most too
//! little. So a wrong reckoning does little before the next one.

use super::candidate::{Candidate, Plan};
use super::curve::Curve;
use super::divided::Divided;
use super::tuning::Tuning;
use crate::{Access, Policy, Stream};

/// The division of one shadow cache.
pub(super) struct Division {
    tuning: Tuning,
    capacity: u64,
    pub(super) cache: Divided,
    curves: Vec<Curve>,
    /// By slot: share and policy.
    plan: Vec<(u64, &'static str)>,
    /// Whether the plan changed since it was followed.
    pub(super) is_new: bool,
    /// What no stream has yet.
    free: u64,
    left: u64,
}

impl Division {
    /// Nobody has anything.
    pub(super) fn new(capacity: u64, tuning: Tuning) -> Division {
        let cache = Divided::new(capacity);
        let (curves, plan, left) = (Vec::new(), Vec::new(), tuning.interval(capacity));
        Division { tuning, capacity, cache, curves, plan, is_new: true, free: capacity, left }
    }

    /// Share and policy of each slot.
    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// An access; whether it missed.
    pub(super) fn access(&mut self, id: u64, weight: u64, slot: usize) -> bool {
        let owner = self.cache.owner(id);
        while self.plan.len() <= slot {
            self.plan.push((0, "lirs"));
            self.curves.push(Curve::new(self.capacity, self.tuning));
        }
        self.left -= 1;
        if self.left == 0 {
            self.left = self.tuning.interval(self.capacity);
            self.step();
        }
        let slot = owner.unwrap_or(slot);
        self.curves[slot].count(id, weight);
        let lacks = (self.cache.used_of(slot) + weight).saturating_sub(self.plan[slot].0);
        if self.free > 0 && lacks > 0 && owner.is_none() {
            let given = (self.capacity / self.tuning.steps.max(1)).max(lacks).min(self.free);
            self.free -= given;
            self.plan[slot].0 += given;
            self.cache.give(slot, self.plan[slot], &mut |_| true);
            self.is_new = true;
        }
        self.cache.reference(id, weight, Stream(slot as u32), &mut |_| true) != Access::Hit
    }

    /// A stream is forgotten; another has its slot, and what it held.
    pub(super) fn forget(&mut self, slot: usize) {
        if let Some(curve) = self.curves.get_mut(slot) {
            *curve = Curve::new(self.capacity, self.tuning);
        }
    }

    /// Works out the division, and takes one step towards it where it saves enough.
    fn step(&mut self) {
        let capacity = self.capacity.max(1) as f64;
        let fade = self.tuning.fade(self.capacity);
        for ((share, name), curve) in self.plan.iter_mut().zip(&mut self.curves) {
            curve.fade(fade);
            *name = curve.best_at(*share as f64 / capacity, name);
        }
        let mut wanted = None;
        if self.free == 0 && self.plan.len() > 1 {
            wanted = self.wanted(capacity);
        }
        if let Some((from, to, step)) = wanted {
            self.plan[from].0 -= step;
            self.plan[to].0 += step;
        }
        self.cache.follow(&self.plan, 0, &mut |_| true);
        self.is_new = true;
    }

    fn wanted(&self, capacity: f64) -> Option<(usize, usize, u64)> {
        let mut pieces: Vec<_> = self.curves.iter().enumerate().flat_map(|(slot, curve)| curve.pieces(slot)).collect();
        pieces.sort_unstable_by(|left, right| right.0.total_cmp(&left.0).then(left.1.cmp(&right.1)));
        let mut division = vec![0.0; self.plan.len()];
        let mut left = 1.0_f64;
        for (gain, slot, width) in pieces {
            let given = if gain > 0.0 { width.min(left) } else { 0.0 };
            division[slot] += given;
            left -= given;
        }
        let shares = || self.plan.iter().map(|(share, _)| *share as f64 / capacity);
        // What nobody gains from goes in proportion to what there is.
        division.iter_mut().zip(shares()).for_each(|(given, share)| *given += left.max(0.0) * share);
        let misses = |shares: &mut dyn Iterator<Item = f64>| -> f64 {
            self.curves.iter().zip(shares).map(|(curve, share)| curve.misses(share)).sum()
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

    /// Grows or shrinks; curves of another size begin empty.
    pub(super) fn set_capacity(&mut self, capacity: u64) {
        let before = u128::from(self.capacity.max(1));
        if capacity < self.capacity {
            for (share, _) in &mut self.plan {
                *share = (u128::from(*share) * u128::from(capacity) / before) as u64;
            }
            self.cache.follow(&self.plan, 0, &mut |_| true);
        }
        self.capacity = capacity;
        self.cache.set_capacity(capacity, &mut |_| true);
        self.cache.follow(&self.plan, 0, &mut |_| true);
        self.free = capacity - self.plan.iter().map(|(share, _)| share).sum::<u64>();
        self.curves.iter_mut().for_each(|curve| *curve = Curve::new(capacity, self.tuning));
        self.left = self.tuning.interval(capacity);
        self.is_new = true;
    }
}
