//! A panel: shadow caches of several policies, one of which leads.
//!
//! Owns: the candidates, which hold metadata only, and for each pair the number of accesses that only the first missed.
//! Promises: each candidate decides as its policy would in a cache of this capacity; users are shown the counts as the
//! reason for a change of leader. Leaves to others: the contents.
//!
//! Counts fade, so that they cover about the last [`AdaptiveTuning::window`]. Where shadow caches see all ids, a change moves no
//! block, and a sign test decides: let `n` be the number of accesses in the window that only one of two caches missed; a
//! difference up to the square root of `n` may be chance. Where they see a sample, a change costs misses until the
//! contents are those of the new policy. So it must promise to save more: [`AdaptiveTuning::change`] of the capacity and of the
//! leader's misses in the window, and twice as much after each change, which fades in twice the window. So leaders do not
//! take turns.

use super::tuning::AdaptiveTuning;
use crate::{AccessResult, Lirs, Lru, Policy, S3Fifo, StreamId, WTinyLfu};

/// A change of leader: the former leader, and the numbers of accesses that only it and only the new leader missed.
pub(super) type Change = (usize, u64, u64);

/// An empty cache of a candidate.
pub(super) fn candidate(name: &str, capacity: u64) -> Box<dyn Policy> {
    match name {
        "lru" => Box::new(Lru::new(capacity)),
        "s3fifo" => Box::new(S3Fifo::new(capacity)),
        "wtinylfu" => Box::new(WTinyLfu::new(capacity)),
        _ => Box::new(Lirs::new(capacity)),
    }
}

/// The shadow caches.
pub(super) struct ShadowPanel {
    tuning: AdaptiveTuning,
    pub(super) capacity: u64,
    /// Whether the candidates see a sample of the ids.
    is_sampled: bool,
    /// The factor by which the saving that a change needs is raised since the last changes; at least 1.
    patience: f64,
    /// The lead that the first candidate has at the start, without evidence. *Units*: misses.
    prior: f64,
    pub(super) policies: Vec<Box<dyn Policy>>,
    leader: usize,
    /// The evictions at the last access or change of capacity: the candidate and the id.
    pub(super) gone: Vec<(usize, u64)>,
    /// The number of recent misses of each candidate.
    misses: Vec<f64>,
    /// For each pair of candidates, the number of recent accesses that the first one missed and the second did not.
    only: Vec<Vec<f64>>,
    left: u64,
}

impl ShadowPanel {
    /// Empty shadow caches. The candidate called `leader` leads, or else the first one, which is ahead by a prior if the
    /// candidates see all ids.
    pub(super) fn new(leader: &str, capacity: u64, is_sampled: bool, tuning: AdaptiveTuning) -> ShadowPanel {
        let candidates = if is_sampled { tuning.candidates_sampled } else { tuning.candidates };
        let mut panel = ShadowPanel {
            tuning,
            capacity,
            is_sampled,
            patience: 1.0,
            prior: if is_sampled { 0.0 } else { tuning.prior * capacity as f64 },
            policies: Vec::new(),
            leader: candidates.iter().position(|name| *name == leader).unwrap_or(0),
            misses: Vec::new(),
            gone: Vec::new(),
            only: Vec::new(),
            left: tuning.interval(capacity),
        };
        candidates.iter().for_each(|name| panel.add(candidate(name, capacity)));
        panel
    }

    /// Adds a candidate.
    pub(super) fn add(&mut self, policy: Box<dyn Policy>) {
        self.policies.push(policy);
        self.misses.push(0.0);
        self.only.iter_mut().for_each(|row| row.push(0.0));
        self.only.push(vec![0.0; self.policies.len()]);
    }

    /// Counts an access. Returns whether the leader missed it, and the change of leader, if any.
    pub(super) fn access(&mut self, id: u64, weight: u64, stream: StreamId) -> (bool, Option<Change>) {
        let mut missed = 0;
        self.gone.clear();
        for (bit, policy) in self.policies.iter_mut().enumerate() {
            let access = policy.reference(id, weight, stream, &mut |victim| {
                self.gone.push((bit, victim));
                true
            });
            missed |= u16::from(access != AccessResult::Hit) << bit;
        }
        let is_miss = missed >> self.leader & 1 == 1;
        self.count(missed);
        self.left -= 1;
        (is_miss, if self.left == 0 { self.choose() } else { None })
    }

    /// Counts an access; `missed` has a bit for each cache that missed.
    fn count(&mut self, missed: u16) {
        self.misses.iter_mut().enumerate().for_each(|(one, misses)| *misses += f64::from(missed >> one & 1));
        if missed != 0 && missed != (1 << self.only.len()) - 1 {
            for (_, row) in self.only.iter_mut().enumerate().filter(|(one, _)| missed >> one & 1 == 1) {
                row.iter_mut().enumerate().for_each(|(other, only)| *only += f64::from(!missed >> other & 1));
            }
        }
    }

    /// Chooses a leader after an interval.
    fn choose(&mut self) -> Option<Change> {
        let from = self.leader;
        let large = (self.capacity as f64).max(self.misses[from]) * self.tuning.change * self.patience;
        let held = if self.is_sampled { large } else { f64::from(u8::from(from == 0)) * self.prior };
        let mut best = (from, 0.0);
        for other in (0..self.only.len()).filter(|other| *other != from) {
            let (misses, own) = (self.only[from][other], self.only[other][from]);
            let chance = if self.is_sampled { 0.0 } else { self.tuning.roots * (misses + own).sqrt() };
            let lead = misses - own - chance - held;
            if lead > best.1 {
                best = (other, lead);
            }
        }
        self.leader = best.0;
        let change = (from, self.only[from][best.0] as u64, self.only[best.0][from] as u64);
        let fade = self.tuning.fade(self.capacity);
        self.only.iter_mut().flatten().chain(&mut self.misses).for_each(|count| *count *= fade);
        self.patience = 1.0 + (self.patience - 1.0) * fade.sqrt();
        if from != best.0 {
            self.patience *= 2.0;
        }
        self.prior *= fade;
        self.left = self.tuning.interval(self.capacity);
        (from != best.0).then_some(change)
    }

    /// The candidate that leads.
    pub(super) fn leader(&self) -> &dyn Policy {
        &*self.policies[self.leader]
    }

    /// The ids that the leader evicted at the last access or change of capacity.
    pub(super) fn lost(&self) -> impl Iterator<Item = u64> + '_ {
        self.gone.iter().filter(|gone| gone.0 == self.leader).map(|gone| gone.1)
    }

    /// Forgets an id.
    pub(super) fn remove(&mut self, id: u64) {
        self.policies.iter_mut().for_each(|policy| _ = policy.remove(id));
    }

    /// Changes the capacity of all candidates.
    pub(super) fn set_capacity(&mut self, capacity: u64) {
        (self.capacity, self.left) = (capacity, self.left.min(self.tuning.interval(capacity)));
        self.gone.clear();
        for (bit, policy) in self.policies.iter_mut().enumerate() {
            policy.set_capacity(capacity, &mut |victim| {
                self.gone.push((bit, victim));
                true
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(capacity: u64) -> ShadowPanel {
        ShadowPanel::new("", capacity, false, AdaptiveTuning::default())
    }

    /// A leader that loses is replaced, and the reason has the counted misses.
    #[test]
    fn losing_leader_is_replaced() {
        let mut panel = panel(100);
        (0..100).for_each(|_| panel.count(0b0001));
        (0..7).for_each(|_| panel.count(0b0010));
        assert_eq!((panel.choose(), panel.leader().name()), (Some((0, 100, 0)), "s3fifo"));
    }

    /// Seven candidates and a partition have one bit each.
    #[test]
    fn candidates_and_partition_fit_bits() {
        let candidates = &["lirs", "lru", "s3fifo", "wtinylfu", "lru", "lru", "lru"];
        let mut panel =
            ShadowPanel::new("", 10, false, AdaptiveTuning { candidates, prior: 0.0, ..AdaptiveTuning::default() });
        panel.add(candidate("lru", 10));
        (0..100).for_each(|id| _ = panel.access(id, 1, StreamId(0)));
        assert!(panel.only.iter().flatten().all(|only| *only == 0.0), "all missed all");
        (0..100).for_each(|_| panel.count(0b1000_0000));
        assert_eq!((panel.only[7][0], panel.only[0][7]), (100.0, 0.0));
    }

    #[test]
    fn chance_lead_is_no_lead() {
        // In both cases the second policy is 40 misses ahead of the leader. If the two differ at only 40 accesses, this
        // lead is beyond chance; if they differ at 5000, it may be chance.
        let leader_after = |vain: u32| {
            let mut panel = panel(10);
            (0..vain).for_each(|_| panel.count(0b0001));
            (0..vain).for_each(|_| panel.count(0b1110));
            (0..40).for_each(|_| panel.count(0b0001));
            panel.choose();
            panel.leader
        };
        assert_eq!((leader_after(0), leader_after(2480)), (1, 0));
    }
}
