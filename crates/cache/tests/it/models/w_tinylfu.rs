//! The model of W-TinyLFU, with its sketch and its climber.

use super::{Evict, Item, Items, PolicyModel, refresh, take, weight_of};

/// Counters from 0 to 15, in blocks of four rows of 32 counters; an id has one counter in each row of its block.
struct SketchModel {
    blocks: Vec<[[u8; 32]; 4]>,
}

/// The block of an id, before the reduction modulo the number of blocks, and the index of its counter in each row.
fn places(id: u64) -> (usize, [usize; 4]) {
    let product = u128::from(id ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
    let hash = (product >> 64) as u64 ^ product as u64;
    let bits = hash.rotate_left(32) ^ (hash.wrapping_mul(0x9fb2_1c65_1e98_df25) >> 40);
    (hash as usize, [bits % 32, bits >> 5, bits >> 10, bits >> 15].map(|bits| (bits % 32) as usize))
}

impl SketchModel {
    fn counters(&mut self, id: u64) -> Vec<&mut u8> {
        let (block, places) = places(id);
        let block = block % self.blocks.len();
        self.blocks[block].iter_mut().zip(places).map(|(row, place)| &mut row[place]).collect()
    }

    fn estimate(&mut self, id: u64) -> u8 {
        self.counters(id).into_iter().map(|counter| *counter).min().expect("four rows")
    }

    fn count(&mut self, id: u64) -> u8 {
        let lowest = self.estimate(id);
        for counter in self.counters(id) {
            *counter = (*counter).max((lowest + 1).min(15));
        }
        self.estimate(id)
    }

    fn halve(&mut self) {
        self.blocks.iter_mut().flatten().flatten().for_each(|counter| *counter /= 2);
    }
}

pub struct WTinyLfu {
    capacity: u64,
    /// The window, then main: probation and protected.
    queues: [Items; 3],
    sketch: SketchModel,
    window_part: f64,
    /// The references and hits of the current sample, the hit rate of the last sample, and the last step.
    sample: (u64, u64, f64, f64),
    /// The weight for which room is made.
    room: u64,
    /// The reference count of the newcomer, if the newcomer itself is the candidate.
    candidate: Option<u8>,
}

const WINDOW: usize = 0;
const PROBATION: usize = 1;
const PROTECTED: usize = 2;

impl WTinyLfu {
    pub fn new(capacity: u64) -> WTinyLfu {
        let (queues, sketch) = ([Items::new(), Items::new(), Items::new()], SketchModel { blocks: vec![[[0; 32]; 4]] });
        let sample = (0, 0, 0.0, 0.0625);
        WTinyLfu { capacity, queues, sketch, window_part: 0.01, sample, room: 0, candidate: None }
    }

    fn window_share(&self) -> u64 {
        ((self.capacity as f64 * self.window_part) as u64).max(1)
    }

    fn settle(&mut self) {
        let window = self.window_share();
        let protected = self.capacity.saturating_sub(window) * 80 / 100;
        while weight_of(&self.queues[WINDOW]) > window && self.queues[WINDOW].len() > 1 {
            let item = self.queues[WINDOW].pop_back().expect("more than one");
            self.queues[PROBATION].push_front(item);
        }
        while weight_of(&self.queues[PROTECTED]) > protected {
            let item = self.queues[PROTECTED].pop_back().expect("it weighs something");
            self.queues[PROBATION].push_front(item);
        }
    }

    fn end_sample(&mut self) {
        let (references, hits, last_rate, last_step) = self.sample;
        let rate = hits as f64 / references as f64;
        let step = if rate < last_rate { -last_step } else { last_step };
        let next = if (rate - last_rate).abs() >= 0.05 { 0.0625_f64.copysign(step) } else { step * 0.98 };
        self.sample = (0, 0, rate, next);
        self.window_part = (self.window_part + step).clamp(0.0, 0.8);
        self.sketch.halve();
        self.settle();
    }

    fn victim(&mut self, refusals: usize) -> Option<u64> {
        let oldest = |queue: &Items| queue.back().map(|item| item.0);
        if refusals > 0 {
            return [0, 1, 2].iter().find_map(|turn| oldest(&self.queues[(refusals + turn) % 3]));
        }
        let window = oldest(&self.queues[WINDOW]);
        let Some(main) = oldest(&self.queues[PROBATION]).or(oldest(&self.queues[PROTECTED])) else { return window };
        let of_main = self.sketch.estimate(main);
        if let Some(frequency) = self.candidate {
            return Some(main).filter(|_| frequency > of_main);
        }
        let is_window_full = weight_of(&self.queues[WINDOW]) + self.room > self.window_share();
        let candidate = window.filter(|_| is_window_full);
        Some(candidate.filter(|candidate| self.sketch.estimate(*candidate) <= of_main).unwrap_or(main))
    }
}

impl PolicyModel for WTinyLfu {
    fn hit(&mut self, id: u64) -> bool {
        let queue = self.queues.iter().position(|queue| queue.iter().any(|item| item.0 == id));
        self.sample.0 += 1;
        self.sample.1 += u64::from(queue.is_some());
        if self.sample.0 >= 10 * self.resident().len().max(1) as u64 {
            self.end_sample();
        }
        self.sketch.count(id);
        // The end of a sample may have moved the id to probation.
        if let Some(item) = take(&mut self.queues[PROBATION], id) {
            self.queues[PROTECTED].push_front(item);
            self.settle();
            return true;
        }
        refresh(&mut self.queues[WINDOW], id) || refresh(&mut self.queues[PROTECTED], id)
    }

    fn miss(&mut self, id: u64, weight: u64) {
        self.room = weight;
        self.candidate = (weight > self.window_share()).then(|| self.sketch.estimate(id));
    }

    fn step(&mut self, refusals: usize, evict: Evict<'_>) -> Option<bool> {
        let victim = self.victim(refusals)?;
        let is_given_up = evict(victim);
        for queue in &mut self.queues {
            if is_given_up {
                take(queue, victim);
            } else {
                refresh(queue, victim);
            }
        }
        Some(is_given_up)
    }

    fn insert(&mut self, id: u64, weight: u64) {
        let queue = if self.candidate.is_some() { PROBATION } else { WINDOW };
        self.queues[queue].push_front((id, weight, 0));
        while self.sketch.blocks.len() * 8 < self.resident().len() {
            let copy = self.sketch.blocks.clone();
            self.sketch.blocks.extend(copy);
        }
        self.settle();
    }

    fn tidy(&mut self, _: u64) {
        self.settle();
    }

    fn remove(&mut self, id: u64) -> bool {
        self.queues.iter_mut().any(|queue| take(queue, id).is_some())
    }

    fn resize(&mut self, capacity: u64) -> usize {
        (self.capacity, self.room, self.candidate) = (capacity, 0, None);
        3 * self.resident().len()
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn resident(&self) -> Vec<Item> {
        self.queues.iter().flatten().copied().collect()
    }
}
