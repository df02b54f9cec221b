//! W-TinyLFU: a small window for newcomers, and a main part that admits an id only if it was referenced more often
//! lately than the one that it would replace.
//!
//! # Idea
//! LFU is right about ids that stay popular, but needs counts of ids that are not in the cache and must forget.
//! *TinyLFU* keeps such counts for all ids in a [`Sketch`] of 8 bytes a resident id. When the cache is full the
//! *candidate*, the oldest of the *window*, is compared with the *victim*, the oldest of the *main* part; the more
//! frequent stays, the victim if they are equal. The window, an LRU of 1 % at first, lets a burst of references to
//! something new hit before it has earned a count. Main is a segmented LRU: *probation*, and *protected* (80 %) for ids
//! that were hit there.
//!
//! How large the window should be depends on the trace: 1 % is best for loops and popularity, half and more for
//! recency. A hill climber finds out: each sample of 10 references for each resident id it moves the border by a step
//! and goes on in that direction while the hit rate rises, or else turns; steps get smaller until the hit rate jumps.
//!
//! # What happens
//! | event | in window | in probation | in protected | unknown |
//! |---|---|---|---|---|
//! | reference | newest | newest of protected, whose oldest go back to probation while it outweighs its share | newest | newest of window, whose oldest go to probation while it outweighs its share |
//! | room is needed, window full | the oldest is compared: out, or the victim of main is | oldest is main's victim | oldest is main's victim if probation is empty | |
//! | room is needed otherwise | oldest, if main is empty | oldest, out | oldest, if probation is empty | |
//! | victim refused | newest again | newest again | newest again | |
//!
//! After a refusal the three queues take turns, and nothing is compared.
//!
//! # Weights
//! Shares are shares of weight. A candidate is compared with one victim after the other until it has room or lost. An
//! id that is heavier than the window is a candidate itself at once and goes to probation, or is bypassed; otherwise
//! one large unwanted object would push out hundreds of small ones without a comparison.
//!
//! # Invariants
//! 1. A resident id is in exactly one of window, probation and protected; there are no ghosts.
//! 2. They weigh at most the capacity together after each call, save after refusals in `set_capacity`.
//! 3. Window and protected weigh at most their shares after each call, save for a single id in the window.
//!
//! # Cost
//! O(1) amortised a reference: a hit touches one line for the id's record and one of the sketch, a miss two of each
//! more, which are prefetched ahead (`queues.rs`). 38 to 116 bytes a resident id, fewest if few are hit, and 8 bytes
//! a position of the queues more, up to 64 an id, once a weight is not 1. Halving the sketch is one pass over 8 bytes
//! an id, once in 10 references an id.
//!
//! # Source
//! G. Einziger, R. Friedman, B. Manes, "TinyLFU: a highly efficient cache admission policy", ACM Transactions on
//! Storage 13(4), 2017. The climber: G. Einziger, O. Eytan, R. Friedman, B. Manes, "Adaptive software cache
//! management", Middleware 2018. Weights: as in their "Lightweight robust size aware cache management", ACM TOS 18(3),
//! 2022, *early victims*. Unlike Caffeine there is no admission by chance: policies here are deterministic.

use crate::eviction::{Evicts, Step, make_room};
use crate::policy::{Access, Policy, REFUSALS_MAX, Stream};
use crate::structures::hash::hash;
use crate::structures::queues::Queues;
use crate::structures::sketch::Sketch;

/// The window's share at first is the capacity divided by this.
const WINDOW_DIVISOR: u64 = 100;
/// Protected's share of main. *Units*: percent.
const PROTECTED_PERCENT: u64 = 80;
/// A sample of the climber and a halving of the sketch take this many references for each resident id.
const REFERENCES_PER_ID: u64 = 10;
/// The climber's first step, as a share of the capacity.
const STEP: f64 = 0.0625;
/// Each step is this much of the one before.
const STEP_DECAY: f64 = 0.98;
/// A change of the hit rate by this makes the climber restart with its first step.
const RESTART: f64 = 0.05;
/// The window's share is at most this much of the capacity.
const WINDOW_MAX: f64 = 0.8;

const WINDOW: usize = 0;
const PROBATION: usize = 1;
const PROTECTED: usize = 2;

/// Finds the window's share by the hit rates of samples.
#[derive(Debug, Clone)]
struct Climber {
    references: u64,
    hits: u64,
    hit_rate: f64,
    /// The last step, as a share of the capacity; its sign is the direction.
    step: f64,
}

impl Climber {
    fn new() -> Climber {
        Climber { references: 0, hits: 0, hit_rate: 0.0, step: STEP }
    }

    /// Ends a sample and gives the change of the window's share.
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
    /// Window, probation and protected.
    queues: Queues<3>,
    sketch: Sketch,
    climber: Climber,
    /// The window's share of the capacity.
    window_part: f64,
    /// How often the newcomer was referenced for which room is made, if it is the candidate itself.
    candidate: Option<u64>,
}

impl WTinyLfu {
    /// An empty policy of `capacity` units of weight.
    pub fn new(capacity: u64) -> WTinyLfu {
        WTinyLfu {
            capacity,
            queues: Queues::new(),
            sketch: Sketch::new(),
            climber: Climber::new(),
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

    /// Counts a reference, and ends a sample when it is time.
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

    /// Brings window and protected down to their shares.
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

    /// Prefetches the records of those that leave a queue soon.
    #[inline]
    fn look_ahead(&mut self) {
        for queue in [WINDOW, PROBATION, PROTECTED] {
            while let Some(soon) = self.queues.next_ahead(queue) {
                self.sketch.prepare(hash(soon));
            }
        }
    }

    /// The id to offer; `None` if it would be the newcomer itself or there is none.
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

impl Evicts for WTinyLfu {
    fn step(&mut self, room: u64, refusals: usize, evict: &mut dyn FnMut(u64) -> bool) -> Step {
        let Some(victim) = self.victim(room, refusals) else { return Step::Nothing };
        let is_given_up = evict(victim);
        let Some(place) = self.queues.find(victim) else { return Step::Nothing };
        if is_given_up {
            self.queues.remove(place);
        } else {
            self.queues.refresh(place);
        }
        Step::answered(is_given_up)
    }
}

impl Policy for WTinyLfu {
    fn name(&self) -> &'static str {
        "wtinylfu"
    }

    fn reference(&mut self, id: u64, weight: u64, _: Stream, evict: &mut dyn FnMut(u64) -> bool) -> Access {
        let known = self.queues.find(id);
        let frequency = self.count(id, known.is_some());
        if let Some(place) = known {
            if self.queues.queue_of(place) == PROBATION {
                self.queues.transfer(place, PROTECTED);
                self.settle();
            } else {
                self.queues.refresh(place);
            }
            return Access::Hit;
        }
        let weight = weight.max(1);
        if weight > self.capacity {
            return Access::Bypassed;
        }
        let is_heavy = weight > self.window_share();
        self.candidate = is_heavy.then_some(frequency);
        let has_room = make_room(self, weight, REFUSALS_MAX, evict);
        self.candidate = None;
        if !has_room || !self.queues.insert(if is_heavy { PROBATION } else { WINDOW }, id, weight) {
            return Access::Bypassed;
        }
        self.sketch.fit(self.len());
        self.settle();
        self.look_ahead();
        Access::Inserted
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
        // The queues take turns, so three times the count offers every id.
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
