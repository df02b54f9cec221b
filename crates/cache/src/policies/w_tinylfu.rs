//! W-TinyLFU: a small window for newcomers, and a main part that admits an id only if it was recently referenced more
//! often than the id it would replace.
//!
//! # Idea
//! LFU keeps ids that stay popular, but it needs counts of ids outside the cache and must forget old references.
//! *TinyLFU* keeps such counts for all ids in a [`FrequencySketch`] of 8 bytes per resident id. When the cache is full the
//! *candidate*, the oldest of the *window*, is compared with the *victim*, the oldest of the *main* part; the more
//! frequent of the two stays; if they are equal, the victim stays. The window, initially an LRU of 1 %, lets a burst of
//! references to a new id hit before the id has a high count. Main is a segmented LRU: *probation*, and *protected* (80
//! %) for ids that were hit there.
//!
//! The best size of the window depends on the trace: 1 % of the capacity suits loops and stable popularity, half or
//! more suits references to recent ids. A hill climber adapts the size. After each sample of 10 references per resident
//! id it moves the border by a step: in the same direction if the hit rate rose, otherwise in the other. Steps get
//! smaller until the hit rate changes sharply.
//!
//! # What happens
//! | event | in window | in probation | in protected | unknown |
//! |---|---|---|---|---|
//! | reference | newest | newest of protected, whose oldest go back to probation while it outweighs its share | newest | newest of window, whose oldest go to probation while it outweighs its share |
//! | room is needed, window full | the oldest is compared: either it or the victim of main is evicted | oldest is main's victim | oldest is main's victim if probation is empty | |
//! | room is needed otherwise | oldest is evicted, if main is empty | oldest is evicted | oldest is evicted, if probation is empty | |
//! | victim refused | newest again | newest again | newest again | |
//!
//! After a refusal the three queues give victims in turn, without a comparison.
//!
//! # Weights
//! Shares are measured in weight. A candidate is compared with one victim after the other until it has room or loses.
//! An id heavier than the window is a candidate immediately: it goes to probation or is bypassed. Otherwise one large
//! unwanted object would evict hundreds of small ones without a comparison.
//!
//! # Invariants
//! 1. A resident id is in exactly one of window, probation and protected; there are no ghosts.
//! 2. Together they weigh at most the capacity after each call, except after refusals in `set_capacity`.
//! 3. Window and protected weigh at most their shares after each call, except that a single id in the window may weigh
//!    more than the window's share.
//!
//! # Cost
//! O(1) amortised per reference: a hit touches one cache line of the id's record and one of the sketch, a miss two more
//! of each, which are prefetched (`queues.rs`). 38 to 95 bytes per resident id, less if few ids are hit. Once any
//! weight is not 1, the queues need 8 more bytes per position, up to 52 per id. Halving the sketch is one pass over 8
//! bytes per id, once per 10 references per id.
//!
//! # Source
//! G. Einziger, R. Friedman, B. Manes, "TinyLFU: a highly efficient cache admission policy", ACM Transactions on
//! Storage 13(4), 2017. The climber: G. Einziger, O. Eytan, R. Friedman, B. Manes, "Adaptive software cache
//! management", Middleware 2018. Weights: as in their "Lightweight robust size aware cache management", ACM TOS 18(3),
//! 2022, *early victims*. Unlike Caffeine, this policy admits nothing at random, because the policies of this crate are
//! deterministic.

use crate::eviction::{EvictionStep, StepwisePolicy, make_room};
use crate::policy::{AccessResult, Policy, REFUSALS_MAX, StreamId};
use crate::structures::hash::hash;
use crate::structures::queues::QueueSet;
use crate::structures::sketch::FrequencySketch;

/// The window's initial share is the capacity divided by `WINDOW_DIVISOR`.
const WINDOW_DIVISOR: u64 = 100;
/// Protected's share of main. *Units*: percent.
const PROTECTED_PERCENT: u64 = 80;
/// The number of references per resident id after which a sample of the climber ends and the sketch is halved.
const REFERENCES_PER_ID: u64 = 10;
/// The climber's first step, as a share of the capacity.
const STEP: f64 = 0.0625;
/// The ratio of each step to the previous step.
const STEP_DECAY: f64 = 0.98;
/// The change of the hit rate that makes the climber restart with its first step.
const RESTART: f64 = 0.05;
/// The largest share of the window in the capacity.
const WINDOW_MAX: f64 = 0.8;

const WINDOW: usize = 0;
const PROBATION: usize = 1;
const PROTECTED: usize = 2;

/// Adapts the window's share to the hit rates of samples.
#[derive(Debug, Clone)]
struct HillClimber {
    references: u64,
    hits: u64,
    hit_rate: f64,
    /// The last step, as a share of the capacity; its sign is the direction.
    step: f64,
}

impl HillClimber {
    fn new() -> HillClimber {
        HillClimber { references: 0, hits: 0, hit_rate: 0.0, step: STEP }
    }

    /// Ends a sample and returns the change of the window's share.
    fn climb(&mut self) -> f64 {
        let hit_rate = self.hits as f64 / self.references.max(1) as f64;
        let change = hit_rate - self.hit_rate;
        let step = if change >= 0.0 { self.step } else { -self.step };
        self.step = if change.abs() >= RESTART { STEP.copysign(step) } else { step * STEP_DECAY };
        (self.references, self.hits, self.hit_rate) = (0, 0, hit_rate);
        step
    }
}

/// W-TinyLFU with an adaptive window, over weighted ids.
#[derive(Debug, Clone)]
pub struct WTinyLfu {
    capacity: u64,
    /// The queues of window, probation and protected.
    queues: QueueSet<3>,
    sketch: FrequencySketch,
    climber: HillClimber,
    /// The window's share of the capacity.
    window_part: f64,
    /// The reference count of the newcomer that needs room, if the newcomer itself is the candidate.
    candidate: Option<u64>,
}

impl WTinyLfu {
    /// An empty policy of `capacity` units of weight.
    pub fn new(capacity: u64) -> WTinyLfu {
        WTinyLfu {
            capacity,
            queues: QueueSet::new(),
            sketch: FrequencySketch::new(),
            climber: HillClimber::new(),
            window_part: 1.0 / WINDOW_DIVISOR as f64,
            candidate: None,
        }
    }

    fn window_share(&self) -> u64 {
        ((self.capacity as f64 * self.window_part) as u64).max(1)
    }

    fn protected_share(&self) -> u64 {
        let main = u128::from(self.capacity.saturating_sub(self.window_share()));
        (main * u128::from(PROTECTED_PERCENT) / 100) as u64
    }

    /// Counts a reference, and ends a sample when it is complete. *Returns* the estimated number of references to `id`.
    #[inline]
    fn count(&mut self, id: u64, is_hit: bool) -> u64 {
        self.climber.references += 1;
        self.climber.hits += u64::from(is_hit);
        if self.climber.references >= REFERENCES_PER_ID * (self.len() as u64).max(1) {
            self.sketch.halve();
            self.window_part = (self.window_part + self.climber.climb()).clamp(0.0, WINDOW_MAX);
            self.settle();
        }
        self.sketch.count(hash(id))
    }

    /// Shrinks window and protected to their shares.
    fn settle(&mut self) {
        let (window_share, protected_share) = (self.window_share(), self.protected_share());
        while self.queues.weight(WINDOW) > window_share && self.queues.count(WINDOW) > 1 {
            if !self.queues.pass_oldest(WINDOW, PROBATION) {
                break;
            }
        }
        while self.queues.weight(PROTECTED) > protected_share && self.queues.pass_oldest(PROTECTED, PROBATION) {}
    }

    fn estimate(&self, id: u64) -> u64 {
        self.sketch.estimate(hash(id))
    }

    /// Prefetches the records of ids that will leave a queue soon.
    #[inline]
    fn look_ahead(&mut self) {
        for queue in [WINDOW, PROBATION, PROTECTED] {
            while let Some(soon) = self.queues.next_ahead(queue) {
                self.sketch.prepare(hash(soon));
            }
        }
    }

    /// The id to offer for eviction; `None` if the newcomer itself would be the victim, or there is no id.
    fn victim(&mut self, room: u64, refusals: usize) -> Option<u64> {
        if refusals > 0 {
            return (0..3).find_map(|turn| self.queues.oldest((refusals + turn) % 3));
        }
        let window = self.queues.oldest(WINDOW);
        let Some(main) = self.queues.oldest(PROBATION).or_else(|| self.queues.oldest(PROTECTED)) else { return window };
        if let Some(frequency) = self.candidate {
            return (frequency > self.estimate(main)).then_some(main);
        }
        match window.filter(|_| self.queues.weight(WINDOW).saturating_add(room) > self.window_share()) {
            Some(candidate) if self.estimate(candidate) <= self.estimate(main) => Some(candidate),
            _ => Some(main),
        }
    }
}

/// The memory of a policy of `count` units of weight 1. *Units*: bytes.
pub(crate) fn bytes_of(count: usize) -> u64 {
    // Probation holds all of main until ids are hit there.
    let window = (count as f64 * WINDOW_MAX) as usize;
    let protected = (count as u64 * PROTECTED_PERCENT / 100) as usize;
    QueueSet::<3>::bytes_of([window, count, protected]) + FrequencySketch::bytes_of(count)
}

impl StepwisePolicy for WTinyLfu {
    fn step(&mut self, room: u64, refusals: usize, evict: &mut dyn FnMut(u64) -> bool) -> EvictionStep {
        let Some(victim) = self.victim(room, refusals) else { return EvictionStep::Nothing };
        let is_given_up = evict(victim);
        let Some(place) = self.queues.find(victim) else { return EvictionStep::Nothing };
        if is_given_up {
            self.queues.remove(place);
        } else {
            self.queues.refresh(place);
        }
        EvictionStep::answered(is_given_up)
    }
}

impl Policy for WTinyLfu {
    fn name(&self) -> &'static str {
        "wtinylfu"
    }

    fn reference(&mut self, id: u64, weight: u64, _: StreamId, evict: &mut dyn FnMut(u64) -> bool) -> AccessResult {
        let known = self.queues.find(id);
        let frequency = self.count(id, known.is_some());
        if let Some(place) = known {
            if self.queues.queue_of(place) == PROBATION {
                self.queues.transfer(place, PROTECTED);
                self.settle();
            } else {
                self.queues.refresh(place);
            }
            return AccessResult::Hit;
        }
        let weight = weight.max(1);
        if weight > self.capacity {
            return AccessResult::Bypassed;
        }
        let is_heavy = weight > self.window_share();
        self.candidate = is_heavy.then_some(frequency);
        let has_room = make_room(self, weight, REFUSALS_MAX, evict);
        self.candidate = None;
        if !has_room || !self.queues.insert(if is_heavy { PROBATION } else { WINDOW }, id, weight) {
            return AccessResult::Bypassed;
        }
        self.sketch.fit(self.len());
        self.settle();
        self.look_ahead();
        AccessResult::Inserted
    }

    fn prepare(&self, id: u64) {
        self.queues.prepare(id);
        self.sketch.prepare(hash(id));
    }

    fn remove(&mut self, id: u64) -> bool {
        let place = self.queues.find(id);
        place.inspect(|&place| self.queues.remove(place)).is_some()
    }

    fn contains(&self, id: u64) -> bool {
        self.queues.find(id).is_some()
    }

    fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        self.capacity = capacity;
        // The queues give victims in turn, so every id has been offered after three times as many refusals as there are
        // ids.
        let refusals_max = 3 * self.len();
        make_room(self, 0, refusals_max, evict);
        self.settle();
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn used(&self) -> u64 {
        [WINDOW, PROBATION, PROTECTED].map(|queue| self.queues.weight(queue)).iter().sum()
    }

    fn len(&self) -> usize {
        [WINDOW, PROBATION, PROTECTED].map(|queue| self.queues.count(queue)).iter().sum()
    }
}
