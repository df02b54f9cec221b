//! The division: a shadow cache that is divided between the streams, and the share of each.
//!
//! Owns: for each stream, its part of the shadow cache and its curve of misses against size; and the steps in which the
//! shares change. Promises: shares sum to at most the capacity. Leaves to others: whether a divided cache is better
//! (`panel.rs`).
//!
//! A part is a panel, and holds the blocks that its leader holds. A block belongs to the stream that first accessed it,
//! until no cache of that stream's part holds it. Until the cache is full, a stream takes the room that it needs. Then
//! room moves in small steps from the stream that loses least to the one that gains most, if the gain is beyond chance.

use hashbrown::HashMap;

use super::curve::StreamCurve;
use super::panel::ShadowPanel;
use super::tuning::AdaptiveTuning;
use crate::{AccessResult, Policy, StreamId};

/// The largest number of parts, which bounds the memory for curves. Further streams share the last part.
pub(crate) const STREAMS_MAX: usize = 16;

/// The part of one stream.
struct StreamPart {
    /// The stream of the part; for the shared part, the stream that accessed it last.
    stream: StreamId,
    /// The time of the last access. *Units*: accesses to the division.
    last: u64,
    panel: ShadowPanel,
    curve: StreamCurve,
}

/// The divided shadow cache.
pub(super) struct CacheDivision {
    tuning: AdaptiveTuning,
    capacity: u64,
    parts: Vec<StreamPart>,
    /// The number of accesses so far.
    now: u64,
    /// The index of the part that each id belongs to.
    owners: HashMap<u64, u8>,
    /// The capacity that no stream has yet.
    free: u64,
    left: u64,
}

impl CacheDivision {
    /// A division in which no stream has capacity.
    pub(super) fn new(capacity: u64, tuning: AdaptiveTuning) -> CacheDivision {
        let (parts, owners, left) = (Vec::new(), HashMap::new(), tuning.interval(capacity));
        CacheDivision { tuning, capacity, parts, now: 0, owners, free: capacity, left }
    }

    /// Counts an access of a stream. *Returns* the index of the stream's part.
    fn part(&mut self, stream: StreamId) -> usize {
        self.now += 1;
        let known = self.parts.iter().position(|part| part.stream == stream);
        let place = known.unwrap_or_else(|| self.admit(stream));
        (self.parts[place].stream, self.parts[place].last) = (stream, self.now);
        place
    }

    fn admit(&mut self, stream: StreamId) -> usize {
        let curve = || StreamCurve::new(self.capacity, self.tuning);
        if self.parts.len() < STREAMS_MAX {
            let (panel, curve) =
                (ShadowPanel::new("", 0, false, AdaptiveTuning { prior: 0.0, ..self.tuning }), curve());
            self.parts.push(StreamPart { stream, last: 0, panel, curve });
            return self.parts.len() - 1;
        }
        let shared = STREAMS_MAX - 1;
        let idle = (0..shared).min_by_key(|part| self.parts[*part].last).unwrap_or(shared);
        if self.parts[idle].last + (self.tuning.window * self.capacity as f64) as u64 > self.now {
            return shared;
        }
        // The stream of this part has ended and is forgotten; the new stream gets the part.
        self.parts[idle].curve = curve();
        idle
    }

    /// Evicts the ids that the part's leader evicted, and forgets the owner of ids that no cache of the part holds.
    fn settle(&mut self, part: usize, evict: &mut dyn FnMut(u64) -> bool) {
        let panel = &self.parts[part].panel;
        panel.lost().for_each(|id| _ = evict(id));
        for (_, id) in &panel.gone {
            if !panel.policies.iter().any(|policy| policy.contains(*id)) {
                self.owners.remove(id);
            }
        }
    }

    fn give(&mut self, part: usize, share: u64, evict: &mut dyn FnMut(u64) -> bool) {
        self.parts[part].panel.set_capacity(share);
        self.settle(part, evict);
    }

    /// Moves one step of capacity from the stream that would lose least to the stream that would gain most.
    fn step(&mut self, evict: &mut dyn FnMut(u64) -> bool) {
        let fade = self.tuning.fade(self.capacity);
        self.parts.iter_mut().for_each(|part| part.curve.fade(fade));
        let step = (self.capacity / self.tuning.steps.max(1)).max(1);
        let (mut gains, mut losses) = (Vec::new(), Vec::new());
        for (place, part) in self.parts.iter().enumerate().filter(|_| self.free == 0) {
            let (hull, share) = (part.curve.hull(), part.panel.capacity);
            let misses = |share: u64| misses(&hull, share as f64 / self.capacity.max(1) as f64);
            gains.push((misses(share) - misses(share + step), place));
            losses.extend((share >= step).then(|| (misses(share - step) - misses(share), place)));
        }
        let most = gains.into_iter().max_by(|left, right| left.0.total_cmp(&right.0));
        let least = losses.into_iter().min_by(|left, right| left.0.total_cmp(&right.0));
        if let (Some((gain, to)), Some((loss, from))) = (most, least)
            && from != to
            && gain - loss > self.tuning.roots * (gain + loss).sqrt()
        {
            self.give(from, self.parts[from].panel.capacity - step, evict);
            self.give(to, self.parts[to].panel.capacity + step, evict);
        }
    }
}

/// The misses of a stream that has a share of the capacity, interpolated on the hull of its curve.
fn misses(hull: &[(f64, f64)], share: f64) -> f64 {
    let between = hull.windows(2).find(|pair| share <= pair[1].0);
    between.map_or(hull[hull.len() - 1].1, |pair| {
        pair[0].1 + (pair[1].1 - pair[0].1) * (share - pair[0].0) / (pair[1].0 - pair[0].0)
    })
}

impl Policy for CacheDivision {
    fn name(&self) -> &'static str {
        "partition"
    }

    fn reference(
        &mut self,
        id: u64,
        weight: u64,
        stream: StreamId,
        evict: &mut dyn FnMut(u64) -> bool,
    ) -> AccessResult {
        let own = self.part(stream);
        self.left -= 1;
        if self.left == 0 {
            self.left = self.tuning.interval(self.capacity);
            self.step(evict);
        }
        let owner = self.owners.get(&id).copied();
        let place = owner.map_or(own, usize::from);
        let panel = &self.parts[place].panel;
        let lacks = (panel.leader().used() + weight).saturating_sub(panel.capacity);
        if self.free > 0 && lacks > 0 && owner.is_none() {
            let given = (self.capacity / self.tuning.steps.max(1)).max(lacks).min(self.free);
            self.free -= given;
            self.give(place, panel.capacity + given, evict);
        }
        let StreamPart { panel, curve, .. } = &mut self.parts[place];
        curve.count(id, weight);
        let (is_miss, change) = panel.access(id, weight, stream);
        if let Some((from, ..)) = change {
            let (old, new) = (&panel.policies[from], panel.leader());
            let owned = self.owners.iter().filter(|owned| usize::from(*owned.1) == place).map(|owned| *owned.0);
            let mut lost: Vec<u64> = owned.filter(|id| old.contains(*id)).collect();
            lost.extend(panel.gone.iter().map(|gone| gone.1));
            lost.sort_unstable();
            lost.into_iter().filter(|id| !new.contains(*id)).for_each(|id| _ = evict(id));
        }
        if owner.is_none() && panel.policies.iter().any(|policy| policy.contains(id)) {
            self.owners.insert(id, place as u8);
        }
        self.settle(place, evict);
        if is_miss { AccessResult::Inserted } else { AccessResult::Hit }
    }

    fn replacement(&self, stream: StreamId) -> &'static str {
        let part = self.parts.iter().find(|part| part.stream == stream);
        part.map_or(self.name(), |part| part.panel.leader().name())
    }

    fn remove(&mut self, id: u64) -> bool {
        let was_there = self.contains(id);
        if let Some(owner) = self.owners.remove(&id) {
            self.parts[usize::from(owner)].panel.remove(id);
        }
        was_there
    }

    fn contains(&self, id: u64) -> bool {
        self.owners.get(&id).is_some_and(|owner| self.parts[usize::from(*owner)].panel.leader().contains(id))
    }

    fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        let before = u128::from(self.capacity.max(1));
        (self.capacity, self.free) = (capacity, capacity);
        self.left = self.left.min(self.tuning.interval(capacity));
        for part in 0..self.parts.len() {
            let share = (u128::from(self.parts[part].panel.capacity) * u128::from(capacity) / before) as u64;
            self.free -= share;
            self.give(part, share, evict);
            self.parts[part].curve = StreamCurve::new(capacity, self.tuning);
        }
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn used(&self) -> u64 {
        self.parts.iter().map(|part| part.panel.leader().used()).sum()
    }

    fn len(&self) -> usize {
        self.parts.iter().map(|part| part.panel.leader().len()).sum()
    }
}
