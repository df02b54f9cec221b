//! Ids with weights in the order of insertion, without links: a ring of ids, and one bit per id that tells whether it
//! is still present.
//!
//! Owns: the ring, its ends, and the bits that tell which ids *count* (are still present). Promises: an id keeps its
//! position until it is removed, except when the ring is full and [`IdTimeline::make_room`] closes the gaps; nothing is
//! allocated before the first id, nor once the ring has two positions per id that counts. Leaves to others: storing
//! the position of each id ([`TimelineOwner`]).
//!
//! # Idea
//! Removing an id from a linked list writes to its neighbours, which are at random addresses. A timeline only clears
//! the id's bit, and the bits of a million ids fit in the processor's cache. The ids themselves are written and read
//! sequentially, which is fast. The price is gaps in the ring. Gaps at the ends are skipped, up to 64 positions at
//! once. The other gaps are closed when the ring is full: then every id gets a new position, which costs its owner a
//! look-up. Gaps are closed only if the ids that count use at most half of the positions; otherwise the ring grows by a
//! quarter. So there is at most one such look-up per insertion, and its memory is prefetched.
//!
//! Cost: 8 bytes and a bit per position, and 8 more bytes once a weight is not 1. A ring has at most 2.5 times as many
//! positions as it ever had ids at the same time, and fewer if few ids are removed from the middle.

use crate::structures::growth;
use crate::structures::memory::{filled, grown};

/// The number of bits in a word; the number of positions is a multiple of it.
const WORD_BITS: usize = 64;
/// The number of positions in the smallest ring.
const POSITIONS_MIN: usize = WORD_BITS;
/// A full ring grows if more than one in `POSITIONS_PER_ID` positions has an id that counts; otherwise its gaps are
/// closed.
const POSITIONS_PER_ID: usize = 2;
/// The largest number of positions. With it, a position fits in 32 bits and one value is free for [`NOWHERE`].
const POSITIONS_MAX: usize = 1 << 31;

/// The position of an id that is in no timeline.
pub(crate) const NOWHERE: u32 = u32::MAX;
/// The distance from the oldest end within which [`IdTimeline::next_ahead`] returns ids for prefetching. *Units*:
/// positions.
const AHEAD: usize = 32;

/// If the gap at the oldest end of a full ring is at least the length of the ring divided by `GIVEN_UP_MIN`, only this
/// gap is reclaimed.
const GIVEN_UP_MIN: usize = 8;

/// The owner of a timeline's ids; it stores the position of each id.
pub(crate) trait TimelineOwner {
    /// Stores the new position of an id.
    fn moved(&mut self, id: u64, position: u32);

    /// Announces that [`TimelineOwner::moved`] may soon be called for an id.
    fn prepare(&self, id: u64);
}

/// A ring of weighted ids in the order of their insertion.
#[derive(Debug, Clone, Default)]
pub(crate) struct IdTimeline {
    ids: Vec<u64>,
    /// One bit per position, which is set if the id at the position counts. No bit is set outside the span.
    counting: Vec<u64>,
    /// The weight at each position; empty while all weights are 1.
    weights: Vec<u64>,
    /// The position of the oldest end.
    start: usize,
    /// The number of positions between the two ends, gaps included.
    span: usize,
    /// The distance from the oldest end up to which [`IdTimeline::next_ahead`] has returned ids.
    ahead: usize,
    /// The number of ids that count.
    count: usize,
    /// The sum of the weights of the ids that count.
    weight: u64,
}

impl IdTimeline {
    /// The number of ids that count.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The sum of the weights of the ids that count.
    #[inline]
    pub(crate) fn weight(&self) -> u64 {
        self.weight
    }

    /// The id at a position.
    #[inline]
    pub(crate) fn id(&self, position: u32) -> u64 {
        self.ids[position as usize]
    }

    /// The weight of the id at a position.
    #[inline]
    pub(crate) fn weight_of(&self, position: u32) -> u64 {
        self.weights.get(position as usize).copied().unwrap_or(1)
    }

    /// Whether `position` is at the newest end.
    #[inline]
    pub(crate) fn is_newest(&self, position: u32) -> bool {
        self.place_after(position as usize, 1) == self.place_after(self.start, self.span)
    }

    /// Whether [`IdTimeline::make_room`] must be called before the next insertion.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.span == self.ids.len()
    }

    /// Puts an id at the newest end of a ring that is not full. *Returns* its position.
    #[inline]
    pub(crate) fn put_newest(&mut self, id: u64, weight: u64) -> u32 {
        let place = self.place_after(self.start, self.span);
        self.span += 1;
        self.put(place, id, weight)
    }

    /// Puts an id at the oldest end of a ring that is not full. *Returns* its position.
    pub(crate) fn put_oldest(&mut self, id: u64, weight: u64) -> u32 {
        self.start = self.place_after(self.start, self.ids.len() - 1);
        self.span += 1;
        self.ahead = 0;
        self.put(self.start, id, weight)
    }

    /// Removes the id at a position. *Returns* its weight.
    #[inline]
    pub(crate) fn take(&mut self, position: u32) -> u64 {
        let place = position as usize;
        let weight = self.weight_of(position);
        self.counting[place / 64] &= !(1 << (place % 64));
        self.count -= 1;
        self.weight -= weight;
        weight
    }

    /// The id at `distance` positions before `position`; an arbitrary id if that position was reused.
    #[inline]
    pub(crate) fn id_before(&self, position: u32, distance: usize) -> u64 {
        let (position, length) = (position as usize, self.ids.len());
        self.ids[if position >= distance { position - distance } else { (position + length).saturating_sub(distance) }]
    }

    /// Replaces an id that counts by another; the weight stays.
    pub(crate) fn replace(&mut self, position: u32, id: u64) {
        self.ids[position as usize] = id;
    }

    /// The ids that count, oldest first.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.span)
            .map(|step| self.place_after(self.start, step))
            .filter(|&place| self.counting[place / 64] >> (place % 64) & 1 == 1)
            .map(|place| self.ids[place])
    }

    /// The position of the oldest id that counts; reclaims gaps before it.
    #[inline]
    pub(crate) fn oldest(&mut self) -> Option<u32> {
        if self.count == 0 {
            (self.span, self.ahead) = (0, 0);
            return None;
        }
        loop {
            let gap = self.gap(self.start);
            if gap == 0 {
                return Some(self.start as u32);
            }
            self.start = self.place_after(self.start, gap);
            self.span -= gap;
            self.ahead = self.ahead.saturating_sub(gap);
        }
    }

    /// The position of the newest id that counts; reclaims gaps after it.
    #[inline]
    pub(crate) fn newest(&mut self) -> Option<u32> {
        if self.count == 0 {
            (self.span, self.ahead) = (0, 0);
            return None;
        }
        loop {
            let newest = self.place_after(self.start, self.span - 1);
            let word = self.counting[newest / 64] << (63 - newest % 64);
            if word >> 63 == 1 {
                return Some(newest as u32);
            }
            self.span -= (word.leading_zeros() as usize).min(newest % 64 + 1);
        }
    }

    /// An id that will soon be the oldest and was not returned before; `None` when enough ids were returned for now.
    #[inline]
    pub(crate) fn next_ahead(&mut self) -> Option<u64> {
        while self.ahead < AHEAD.min(self.span) {
            let place = self.place_after(self.start, self.ahead);
            let gap = self.gap(place);
            self.ahead += gap.max(1);
            if gap == 0 {
                return Some(self.ids[place]);
            }
        }
        None
    }

    /// Makes room in a full ring. If it closes gaps, every id that counts gets a new position, which `owner` stores.
    /// *Returns* `false`, without a change, at the limit of positions.
    #[cold]
    pub(crate) fn make_room(&mut self, owner: &mut impl TimelineOwner) -> bool {
        let length = self.ids.len();
        // An owner that only removes from the newest end never reclaims the gap at the oldest end, so this is done
        // here.
        self.oldest();
        if self.span + length / GIVEN_UP_MIN <= length && length > 0 {
            return true;
        }
        if self.count * POSITIONS_PER_ID > length || length == 0 {
            let more = if length == 0 { POSITIONS_MIN } else { growth::next(length, WORD_BITS) };
            if more > POSITIONS_MAX {
                return false;
            }
            // The ids may wrap around the end of the memory. The rotation moves the oldest id to position 0, so that
            // the ids stay in order when there is more memory.
            self.ids.rotate_left(self.start);
            self.ids = grown(&self.ids, more, 0);
            if !self.weights.is_empty() {
                self.weights.rotate_left(self.start);
                self.weights = grown(&self.weights, more, 1);
            }
            let counting = std::mem::replace(&mut self.counting, filled(0, more / WORD_BITS));
            let start = std::mem::take(&mut self.start);
            self.close_gaps(TimelineSteps::new(&counting, start, self.span), owner);
        } else {
            let counting = std::mem::take(&mut self.counting);
            self.close_gaps(TimelineSteps::new(&counting, self.start, self.span), owner);
            self.counting = counting;
            self.counting.fill(0);
        }
        let mut step = 0;
        while step < self.span {
            let place = self.place_after(self.start, step);
            let bits = (64 - place % 64).min(self.span - step);
            self.counting[place / 64] |= u64::MAX >> (64 - bits) << (place % 64);
            step += bits;
        }
        true
    }

    /// Moves the ids that count to the oldest end, without gaps; `steps` are their distances from that end before the
    /// move.
    fn close_gaps(&mut self, steps: TimelineSteps, owner: &mut impl TimelineOwner) {
        let mut ahead = steps.clone().skip(AHEAD);
        for (next, step) in steps.enumerate() {
            if let Some(step) = ahead.next() {
                owner.prepare(self.ids[self.place_after(self.start, step)]);
            }
            let (from, to) = (self.place_after(self.start, step), self.place_after(self.start, next));
            self.ids[to] = self.ids[from];
            if !self.weights.is_empty() {
                self.weights[to] = self.weights[from];
            }
            owner.moved(self.ids[to], to as u32);
        }
        (self.span, self.ahead) = (self.count, 0);
    }

    /// The memory of a ring of `count` ids that change their places often, and of a ring in which only the oldest ids
    /// are removed. *Units*: bytes.
    pub(crate) fn bytes_of(count: usize) -> (u64, u64) {
        let bytes = |positions| {
            let positions = growth::reached(positions, POSITIONS_MIN, WORD_BITS);
            (positions * size_of::<u64>() + positions / 8) as u64
        };
        (bytes(count * POSITIONS_PER_ID), bytes(count + 1))
    }

    #[inline]
    fn place_after(&self, place: usize, distance: usize) -> usize {
        let after = place + distance;
        if after >= self.ids.len() { after - self.ids.len() } else { after }
    }

    /// The number of positions from `place` to the next one whose id counts, at most to the end of the word that holds
    /// the bit of `place`.
    #[inline]
    fn gap(&self, place: usize) -> usize {
        let word = self.counting[place / 64] >> (place % 64);
        (word.trailing_zeros() as usize).min(64 - place % 64)
    }

    #[inline]
    fn put(&mut self, place: usize, id: u64, weight: u64) -> u32 {
        self.ids[place] = id;
        self.counting[place / 64] |= 1 << (place % 64);
        self.count += 1;
        self.weight += weight;
        if weight != 1 || !self.weights.is_empty() {
            self.put_weight(place, weight);
        }
        place as u32
    }

    #[inline(never)]
    fn put_weight(&mut self, place: usize, weight: u64) {
        if self.weights.is_empty() {
            self.weights = filled(1, self.ids.len());
        }
        self.weights[place] = weight;
    }
}

/// The distances of all ids that count from the oldest end, in ascending order.
#[derive(Clone)]
struct TimelineSteps<'a> {
    counting: &'a [u64],
    start: usize,
    step: usize,
    span: usize,
}

impl TimelineSteps<'_> {
    /// The steps of a ring whose oldest end is at `start`.
    fn new(counting: &[u64], start: usize, span: usize) -> TimelineSteps<'_> {
        TimelineSteps { counting, start, step: 0, span }
    }
}

impl Iterator for TimelineSteps<'_> {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        while self.step < self.span {
            let after = self.start + self.step;
            let positions = self.counting.len() * WORD_BITS;
            let place = if after >= positions { after - positions } else { after };
            let word = self.counting[place / 64] >> (place % 64);
            if word != 0 {
                let step = self.step + word.trailing_zeros() as usize;
                self.step = step + 1;
                return (step < self.span).then_some(step);
            }
            self.step += 64 - place % 64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, VecDeque};

    use super::*;

    struct PositionMap<'a>(&'a mut HashMap<u64, u32>);

    impl TimelineOwner for PositionMap<'_> {
        fn moved(&mut self, id: u64, position: u32) {
            assert!(self.0.insert(id, position).is_some());
        }

        fn prepare(&self, _: u64) {}
    }

    /// A timeline is a queue from whose middle ids can be removed.
    #[test]
    fn timeline_queue_removes_from_middle() {
        for weight_max in [1, 9] {
            let (mut timeline, mut queue, mut positions) = (IdTimeline::default(), VecDeque::new(), HashMap::new());
            let mut state = 7_u64;
            for id in 0..100_000_u64 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                if timeline.is_full() {
                    assert!(timeline.make_room(&mut PositionMap(&mut positions)));
                }
                let weight = 1 + id % weight_max;
                if state >> 60 == 0 {
                    positions.insert(id, timeline.put_oldest(id, weight));
                    queue.push_front(id);
                } else {
                    positions.insert(id, timeline.put_newest(id, weight));
                    assert!(timeline.is_newest(positions[&id]));
                    queue.push_back(id);
                }
                // The number of ids rises to 400, falls to none, and rises again.
                let count = if id % 2000 < 1500 { 400 } else { 0 };
                while queue.len() > count {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let taken = match state >> 62 {
                        0 => queue.pop_front(),
                        1 => queue.pop_back(),
                        _ => queue.remove((state >> 32) as usize % queue.len()),
                    };
                    let id = taken.expect("not empty");
                    let position = positions.remove(&id).expect("known");
                    assert_eq!((timeline.id(position), timeline.take(position)), (id, 1 + id % weight_max));
                    let ends =
                        (timeline.oldest().map(|at| timeline.id(at)), timeline.newest().map(|at| timeline.id(at)));
                    assert_eq!(ends, (queue.front().copied(), queue.back().copied()));
                }
                assert_eq!(
                    (timeline.count(), timeline.weight()),
                    (queue.len(), queue.iter().map(|id| 1 + id % weight_max).sum())
                );
            }
            assert!(timeline.ids.len() <= 4096, "at most 8 positions an id");
        }
    }

    /// Ids are announced ahead, once and in order.
    #[test]
    fn ids_are_announced_once() {
        let mut timeline = IdTimeline::default();
        assert!(timeline.make_room(&mut PositionMap(&mut HashMap::new())));
        let positions: Vec<u32> = (0..60).map(|id| timeline.put_newest(id, 1)).collect();
        timeline.take(positions[5]);
        let first: Vec<u64> = std::iter::from_fn(|| timeline.next_ahead()).collect();
        assert_eq!(first, (0..32).filter(|id| *id != 5).collect::<Vec<u64>>());
        timeline.take(positions[0]);
        timeline.oldest();
        assert_eq!((timeline.next_ahead(), timeline.next_ahead()), (Some(32), None));
    }
}
