//! LHD (least hit density): evicts the id that is expected to give the fewest hits for the memory that it takes.
//!
//! # Idea
//! The *hit density* of an id is the probability that it is hit before it is evicted, divided by its weight and by the
//! time that it is expected to stay. LHD learns it from what happened to the ids that had the same *age*, which is the
//! time since their last reference: how many of them were hit at that age or later, and how long they stayed. Ids are in
//! classes by the time between their last references, because ids that were referenced often behave differently. So
//! LHD needs no assumption about recency or frequency; it finds out which ages of which classes are worth their room.
//!
//! The victim is the worst of a random sample of ids, and of the newcomers that look bad. A few ids, the *explorers*, are
//! kept although they look bad, so that LHD also learns about ages that its own evictions would hide.
//!
//! # What happens
//! | event | |
//! |---|---|
//! | reference | the time grows by 1 |
//! | hit | counted for the id's class and age; the age becomes the latest of the two that give the id its class |
//! | miss | the newcomer is in the class of ids that were never hit |
//! | room is needed | evicts the id of the lowest density of [`SAMPLE`] random ones and the suspected newcomers; counted for its class and age |
//! | victim refused | it is *parked* with its ages; after the next eviction, or when all others are parked too, it returns |
//! | as many references as there are ids, at least [`LEARNING_MIN`] | the densities are computed again; older counts lose a tenth of their weight; the unit of age follows the number of ids |
//!
//! # Invariants
//! 1. A resident id is in the sample's list at its `place`, or it is parked because its eviction was refused.
//! 2. The choice depends only on the calls: the random numbers are a sequence from a fixed seed.
//!
//! # Cost
//! A victim: [`SAMPLE`] random records; a hit: O(1). 55 to 65 bytes per resident id, and 50 KB of counts.
//!
//! # Source
//! N. Beckmann, H. Chen, A. Cidon, "LHD: improving cache hit rate by maximizing hit density", NSDI 2018. There, ages have
//! 20,000 units and densities are computed every 2^20 references; here there are fewer, so that short traces learn too.

use crate::policies::ranked::{RankedPolicy, RankingRule};
use crate::structures::arena::Arena;
use crate::structures::growth;

/// The number of random ids of which the worst is evicted.
pub const SAMPLE: u32 = 32;

/// The least number of references between two computations of densities.
pub const LEARNING_MIN: u64 = 4096;

/// The number of ages; older ids are evicted first.
const AGES: usize = 256;

/// The number of ages within as many references as there are ids.
const AGES_PER_IDS: u64 = 32;

const CLASSES: usize = 16;

/// The share of their weight that counts keep when densities are computed again.
const KEPT: f32 = 0.9;

/// The number of suspected newcomers that are remembered.
const SUSPECTS: usize = 8;

/// One of this number of references makes an explorer.
const EXPLORERS: u64 = 32;

/// Explorers take at most the weight of all ids divided by this number.
const EXPLORED_SHARE: u64 = 100;

const IN_LIST: u8 = 0;

/// The age of ids that were never hit.
const NEVER: u32 = u32::MAX;

/// Least hit density, over weighted ids.
pub type Lhd = RankedPolicy<ByDensity>;

impl Lhd {
    /// An empty policy of `capacity` units of weight.
    pub fn new(capacity: u64) -> Lhd {
        RankedPolicy::of(capacity, ByDensity::new())
    }
}

/// What is known about an id.
#[derive(Debug, Clone, Copy, Default)]
struct AgeRecord {
    /// The time of the last reference; only the lower bits.
    time: u32,
    /// The age at the last hit.
    last: u32,
    /// The age at the hit before.
    before: u32,
    is_explorer: bool,
}

/// The events of the ids of one class, by age.
#[derive(Debug, Clone)]
struct AgeClass {
    hits: Vec<f32>,
    evictions: Vec<f32>,
    densities: Vec<f32>,
}

/// Ids with their hit densities.
#[derive(Debug)]
pub struct ByDensity {
    /// The number of references so far.
    now: u64,
    /// The reference at which densities are computed again.
    learning: u64,
    /// An age has 2^`shift` references.
    shift: u32,
    classes: Vec<AgeClass>,
    /// What is known of each id, by its index in the arena.
    known: Vec<AgeRecord>,
    /// The indices of all ids that are not parked.
    list: Vec<u32>,
    /// The ids of suspected newcomers; older ones are overwritten.
    suspects: [Option<u64>; SUSPECTS],
    suspected: usize,
    /// The usual density of victims.
    victim_density: f32,
    /// The weight of all ids of the list.
    weight: u64,
    /// The weight of those that are explorers.
    explored_weight: u64,
    random: u64,
}

impl ByDensity {
    fn new() -> ByDensity {
        let none = || vec![0.0; AGES];
        // Until something is learned, ids that were hit and young ids have more worth.
        let densities = |class: usize| (0..AGES).map(|age| (class + 1) as f32 / (age + 1) as f32).collect();
        ByDensity {
            now: 0,
            learning: LEARNING_MIN,
            shift: 0,
            classes: (0..CLASSES)
                .map(|class| AgeClass { hits: none(), evictions: none(), densities: densities(class) })
                .collect(),
            known: Vec::new(),
            list: Vec::new(),
            suspects: [None; SUSPECTS],
            suspected: 0,
            victim_density: 0.0,
            weight: 0,
            explored_weight: 0,
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// A random number below `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((self.random >> 32) * bound) >> 32
    }

    /// The time since the last reference to an id. *Units*: references.
    fn elapsed(&self, index: u32) -> u32 {
        (self.now as u32).wrapping_sub(self.known[index as usize].time)
    }

    /// The age of an id; the last age stands for all higher ones.
    fn age(&self, index: u32) -> usize {
        ((self.elapsed(index) >> self.shift) as usize).min(AGES - 1)
    }

    /// The class of an id: the shorter the time between its last references, the higher.
    fn class(&self, index: u32) -> usize {
        let known = &self.known[index as usize];
        match known.last.saturating_add(known.before) >> self.shift {
            0 => CLASSES - 1,
            age => (AGES as u32 / age).checked_ilog2().map_or(0, |log| (log as usize + 1).min(CLASSES - 2)),
        }
    }

    fn density(&self, arena: &Arena, index: u32) -> f32 {
        let age = self.age(index);
        if age == AGES - 1 {
            return f32::MIN;
        }
        let density = self.classes[self.class(index)].densities[age] / arena.entry(index).weight as f32;
        // No density is higher than 1.
        if self.known[index as usize].is_explorer { density + 1.0 } else { density }
    }

    /// Adds an id to the list.
    fn list(&mut self, arena: &mut Arena, index: u32) {
        let entry = arena.entry_mut(index);
        (entry.queue, entry.place) = (IN_LIST, self.list.len() as u32);
        self.weight += entry.weight;
        if self.known[index as usize].is_explorer {
            self.explored_weight += entry.weight;
        }
        growth::push(&mut self.list, index);
    }

    /// Notes a reference to an id of the list. *Returns* whether the id is an explorer now.
    fn refer(&mut self, arena: &Arena, index: u32) -> bool {
        let weight = arena.entry(index).weight;
        let known = &mut self.known[index as usize];
        known.time = self.now as u32;
        if std::mem::take(&mut known.is_explorer) {
            self.explored_weight -= weight;
        }
        let is_drawn = self.below(EXPLORERS) == 0;
        if is_drawn && (self.explored_weight + weight) <= self.weight / EXPLORED_SHARE {
            self.explored_weight += weight;
            self.known[index as usize].is_explorer = true;
        }
        is_drawn
    }

    /// Counts a hit, which gives the id another class.
    fn count_hit(&mut self, index: u32) {
        let (class, age) = (self.class(index), self.age(index));
        self.classes[class].hits[age] += 1.0;
        let elapsed = self.elapsed(index);
        let known = &mut self.known[index as usize];
        (known.before, known.last) = (known.last, elapsed);
    }

    /// Computes the densities from the events.
    #[cold]
    fn learn(&mut self, count: usize) {
        self.learning = self.now + LEARNING_MIN.max(count as u64);
        let wanted = (count as u64 / AGES_PER_IDS).next_power_of_two().ilog2();
        // A cache that is almost as full as before keeps its unit.
        if wanted > self.shift || wanted + 1 < self.shift {
            let by = i64::from(wanted) - i64::from(self.shift);
            for class in &mut self.classes {
                class.hits = stretched(&class.hits, by);
                class.evictions = stretched(&class.evictions, by);
            }
            self.shift = wanted;
        }
        for class in &mut self.classes {
            class.learn();
        }
    }
}

impl AgeClass {
    fn learn(&mut self) {
        // From the highest age down: the hits and the events at an age or later, and the sum of the ages that the ids
        // still reach.
        let (mut hits, mut events, mut lifetimes) = (0.0, 0.0, 0.0);
        for age in (0..AGES).rev() {
            hits += self.hits[age];
            events += self.hits[age] + self.evictions[age];
            lifetimes += events;
            self.densities[age] = if events > 1e-5 { hits / lifetimes } else { 0.0 };
            self.hits[age] *= KEPT;
            self.evictions[age] *= KEPT;
        }
    }
}

/// The counts of ages after an age has become 2^`by` times as long.
fn stretched(counts: &[f32], by: i64) -> Vec<f32> {
    let factor = 2_f32.powi(by as i32);
    let mut new = vec![0.0; AGES];
    for (age, count) in new.iter_mut().enumerate() {
        let first = (age as f32 * factor) as usize;
        if by > 0 {
            let last = (first + factor as usize).min(AGES);
            *count = counts.get(first..last).map_or(0.0, |counts| counts.iter().sum());
        } else {
            *count = counts[first] * factor;
        }
    }
    new
}

/// The memory of `count` ids. *Units*: bytes.
pub(crate) fn bytes_of(count: usize) -> u64 {
    let classes = CLASSES * 3 * AGES * size_of::<f32>();
    Arena::bytes_of(count) + growth::bytes_of::<AgeRecord>(count) + growth::bytes_of::<u32>(count) + classes as u64
}

impl RankingRule for ByDensity {
    fn name(&self) -> &'static str {
        "lhd"
    }

    fn begin(&mut self, _: &mut Arena, count: usize) {
        self.now += 1;
        if self.now >= self.learning {
            self.learn(count);
        }
    }

    fn lowest(&mut self, arena: &Arena) -> Option<u32> {
        if self.list.is_empty() {
            return None;
        }
        let mut lowest = (f32::INFINITY, self.list[0]);
        for _ in 0..SAMPLE {
            let place = self.below(self.list.len() as u64);
            let index = self.list[place as usize];
            let density = self.density(arena, index);
            if density < lowest.0 {
                lowest = (density, index);
            }
        }
        for id in self.suspects.iter().flatten() {
            if let Some(index) = arena.find(*id).filter(|&index| arena.entry(index).queue == IN_LIST) {
                let density = self.density(arena, index);
                if density < lowest.0 {
                    lowest = (density, index);
                }
            }
        }
        self.victim_density = KEPT * self.victim_density + (1.0 - KEPT) * lowest.0.max(0.0);
        Some(lowest.1)
    }

    fn add(&mut self, arena: &mut Arena, index: u32) {
        if self.known.len() <= index as usize {
            growth::push(&mut self.known, AgeRecord::default());
        }
        self.known[index as usize] = AgeRecord { time: 0, last: 0, before: NEVER, is_explorer: false };
        self.list(arena, index);
        let is_drawn = self.refer(arena, index);
        if !is_drawn && self.density(arena, index) < self.victim_density {
            self.suspects[self.suspected % SUSPECTS] = Some(arena.entry(index).id);
            self.suspected += 1;
        }
    }

    fn put_back(&mut self, arena: &mut Arena, index: u32, is_hit: bool) {
        self.list(arena, index);
        if is_hit {
            self.raise(arena, index);
        }
    }

    fn raise(&mut self, arena: &mut Arena, index: u32) {
        self.count_hit(index);
        self.refer(arena, index);
    }

    fn take(&mut self, arena: &mut Arena, index: u32) {
        let entry = *arena.entry(index);
        self.list.swap_remove(entry.place as usize);
        if let Some(&moved) = self.list.get(entry.place as usize) {
            arena.entry_mut(moved).place = entry.place;
        }
        self.weight -= entry.weight;
        if self.known[index as usize].is_explorer {
            self.explored_weight -= entry.weight;
        }
    }

    fn take_victim(&mut self, arena: &mut Arena, index: u32) {
        let (class, age) = (self.class(index), self.age(index));
        self.classes[class].evictions[age] += 1.0;
        self.take(arena, index);
    }

    fn take_to_park(&mut self, arena: &mut Arena, index: u32) {
        self.take(arena, index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{AccessResult, Policy, StreamId};
    use crate::{Lru, by_name};

    /// The misses of a policy on a loop with small ids that return soon and large ones that return late.
    fn misses(policy: &mut dyn Policy) -> u32 {
        let mut misses = 0;
        for round in 0..200_000_u64 {
            let id = if round % 4 == 0 { 1000 + round / 4 % 2000 } else { round * 7919 % 300 };
            let weight = if id < 1000 { 1 } else { 3 };
            misses += u32::from(policy.reference(id, weight, StreamId(0), &mut |_| true) != AccessResult::Hit);
        }
        misses
    }

    #[test]
    fn soon_returning_ids_win() {
        let (lhd, lru) = (misses(&mut Lhd::new(350)), misses(&mut Lru::new(350)));
        let gdsf = misses(&mut *by_name("gdsf", 350).expect("known"));
        println!("lhd {lhd}, lru {lru}, gdsf {gdsf}");
        assert!(lhd < lru, "{lhd} and {lru}");
    }

    #[test]
    fn density_is_hits_over_lifetimes() {
        let mut class = AgeClass { hits: vec![0.0; AGES], evictions: vec![0.0; AGES], densities: vec![9.0; AGES] };
        (class.hits[0], class.evictions[2]) = (3.0, 1.0);
        class.learn();
        // Four ids reach age 0, one reaches ages 1 and 2; three of them are hit.
        assert_eq!(class.densities[..4], [3.0 / 6.0, 0.0, 0.0, 0.0]);
        assert_eq!((class.hits[0], class.evictions[2]), (3.0 * KEPT, KEPT));
    }

    #[test]
    fn longer_age_unit_keeps_counts() {
        let counts: Vec<f32> = (0..AGES).map(|age| if age < 8 { 1.0 } else { 0.0 }).collect();
        let longer = stretched(&counts, 2);
        assert_eq!(longer[..3], [4.0, 4.0, 0.0]);
        assert_eq!(stretched(&longer, -2)[..9], [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0]);
    }
}
