//! Makes one run: gives the references of a workload to a policy, and counts the misses.
//!
//! Owns: the loop, lives that end, and deletes. Promises: without sizes, lives and deletes the loop allocates nothing;
//! if the caller knows the policy's type, the loop is compiled for that type. An object keeps the size of the reference
//! that inserted it. An object whose life has ended is removed when it is referenced, and the reference is a miss.

use std::ops::Range;

use hashbrown::HashMap;
use nectary_cache::{AccessResult, Policy, StreamId};

use super::counting::{CountingWindows, RunCounts};
use super::sizes::CapacityUnit;
use super::workload::TraceWorkload;

/// The number of references by which a block is announced to the policy in advance.
const AHEAD: usize = 16;

/// Gives the references of `workload` to `policy`, in order, each with a weight of 1. *Returns* the number of misses.
pub fn misses<P: Policy + ?Sized>(policy: &mut P, workload: &TraceWorkload) -> u64 {
    RunPlayer::new(CapacityUnit::Blocks).play(policy, workload, 0..workload.blocks().len()).misses
}

/// Gives the references of `workload` to `policy`, in order, each with a weight of 1 or, if `unit` is bytes, with the
/// size of its object. *Returns* the counts of each window of `counting`.
pub fn count<P: Policy + ?Sized>(
    policy: &mut P,
    workload: &TraceWorkload,
    unit: CapacityUnit,
    counting: &CountingWindows,
) -> Vec<RunCounts> {
    let mut player = RunPlayer::new(unit);
    player.play(policy, workload, 0..counting.warm_up);
    counting.ranges(workload.blocks().len()).map(|window| player.play(policy, workload, window)).collect()
}

/// A run in progress, beside its policy: what lives end when.
#[derive(Debug)]
pub(super) struct RunPlayer {
    unit: CapacityUnit,
    /// The second in which the life of a resident object ends, for objects whose life ends.
    ends: HashMap<u64, u32>,
    /// The number of deletes of the current workload that are done.
    deleted: usize,
}

impl RunPlayer {
    pub(super) fn new(unit: CapacityUnit) -> RunPlayer {
        RunPlayer { unit, ends: HashMap::new(), deleted: 0 }
    }

    /// Gives a range of references to the policy. Ranges follow each other.
    pub(super) fn play<P: Policy + ?Sized>(
        &mut self,
        policy: &mut P,
        workload: &TraceWorkload,
        range: Range<usize>,
    ) -> RunCounts {
        let is_of_objects = workload.has_sizes() || !workload.lives().is_empty() || !workload.deletes().is_empty();
        if is_of_objects || !self.ends.is_empty() {
            return self.play_objects(policy, workload, range);
        }
        let blocks = workload.blocks();
        let mut ahead = blocks.iter().skip(range.start + AHEAD);
        let mut misses = 0;
        let mut evict = |_| true;
        let mut refer = |block, stream| {
            if let Some(&soon) = ahead.next() {
                policy.prepare(soon);
            }
            misses += u64::from(policy.reference(block, 1, stream, &mut evict) != AccessResult::Hit);
        };
        let references = range.len() as u64;
        if workload.streams().is_empty() {
            blocks[range].iter().for_each(|&block| refer(block, StreamId(0)));
        } else {
            let streams = &workload.streams()[range.clone()];
            blocks[range].iter().zip(streams).for_each(|(&block, &stream)| refer(block, stream));
        }
        RunCounts { references, misses, ..RunCounts::default() }
    }

    /// Does the deletes that are left of `workload`, after its last reference. The next range is of another workload,
    /// which continues this one.
    pub(super) fn end<P: Policy + ?Sized>(&mut self, policy: &mut P, workload: &TraceWorkload) {
        self.delete_until(policy, workload, workload.blocks().len());
        self.deleted = 0;
    }

    /// Does the deletes before the reference at `index`.
    fn delete_until<P: Policy + ?Sized>(&mut self, policy: &mut P, workload: &TraceWorkload, index: usize) {
        while let Some((_, block)) = workload.deletes().get(self.deleted).filter(|delete| delete.0 <= index) {
            policy.remove(*block);
            self.ends.remove(block);
            self.deleted += 1;
        }
    }

    /// Gives a range of references to the policy, with all that objects have.
    fn play_objects<P: Policy + ?Sized>(
        &mut self,
        policy: &mut P,
        workload: &TraceWorkload,
        range: Range<usize>,
    ) -> RunCounts {
        let (blocks, streams) = (workload.blocks(), workload.streams());
        let mut counts = RunCounts { references: range.len() as u64, ..RunCounts::default() };
        for index in range {
            self.delete_until(policy, workload, index);
            if let Some(&soon) = blocks.get(index + AHEAD) {
                policy.prepare(soon);
            }
            let block = blocks[index];
            let now = workload.times().get(index).copied().unwrap_or(0);
            let ends = &mut self.ends;
            if !ends.is_empty() && ends.get(&block).is_some_and(|&end| end <= now) {
                policy.remove(block);
                ends.remove(&block);
            }
            let bytes = u64::from(workload.bytes(index));
            let weight = if self.unit == CapacityUnit::Bytes { bytes } else { 1 };
            let stream = streams.get(index).copied().unwrap_or_default();
            let access = policy.reference(block, weight, stream, &mut |victim| {
                if !ends.is_empty() {
                    ends.remove(&victim);
                }
                true
            });
            if access != AccessResult::Hit {
                counts.misses += 1;
                counts.missed_bytes += bytes;
            }
            counts.bytes += bytes;
            if let Some(life) = workload.lives().get(index)
                && (access == AccessResult::Inserted || access == AccessResult::Hit && life.renews())
            {
                match life.ttl_s() {
                    Some(ttl_s) => ends.insert(block, now.saturating_add(ttl_s)),
                    None => ends.remove(&block),
                };
            }
        }
        if !workload.has_sizes() {
            (counts.bytes, counts.missed_bytes) = (0, 0);
        }
        counts
    }
}
