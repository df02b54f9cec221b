//! A naive model of DEAR, which searches lists and recomputes counts each time.
//!
//! Owns: the model. Leaves to others: the operations (`operations.rs`), and the comparison (`main.rs`).

use std::collections::HashMap;

use nectary_cache::dear::DearParameters;
use nectary_cache::detect::PatternVerdict;
use nectary_cache::{AccessResult, REFUSALS_MAX};

use crate::naive::{DetectorBug, NaiveDetector, NaiveReport};

/// A resident block of an application.
#[derive(Debug, Clone, Copy)]
struct ModelBlock {
    id: u64,
    weight: u64,
}

/// The rank under which LFU has filed a block, and the time of filing; refused blocks are filed as older than all other
/// blocks of the highest rank.
type Filing = (u64, i64);

/// The manager of one stream; its blocks are oldest first.
#[derive(Debug)]
struct ModelApplication {
    stream: u32,
    detector: NaiveDetector,
    replacement: &'static str,
    last: usize,
    blocks: Vec<ModelBlock>,
    /// The filings of resident blocks, and of ghosts that LFU has not dropped yet.
    filings: HashMap<u64, Filing>,
}

const RANK_MAX: u64 = 1023;

/// All applications, and the state they share.
#[derive(Debug)]
pub struct DearModel {
    parameters: DearParameters,
    capacity: u64,
    now: usize,
    filings: i64,
    applications: Vec<ModelApplication>,
    /// The blocks in the order of places, oldest first; maintained once there is a second stream.
    places: Vec<u64>,
    /// Sequential applications in the order of their detection.
    sequential: Vec<usize>,
    /// The blocks of the last evictions, oldest first; `None` if the block was referenced again since its eviction.
    pub evictions: Vec<Option<u64>>,
    /// The position of the application that accessed each known block last.
    owners: HashMap<u64, usize>,
    pub reports: Vec<(u32, &'static str, NaiveReport)>,
}

impl DearModel {
    pub fn new(capacity: u64, parameters: DearParameters) -> DearModel {
        DearModel {
            parameters,
            capacity,
            now: 0,
            filings: 0,
            applications: Vec::new(),
            places: Vec::new(),
            sequential: Vec::new(),
            evictions: Vec::new(),
            owners: HashMap::new(),
            reports: Vec::new(),
        }
    }

    pub fn resident(&self) -> Vec<(u64, u64)> {
        let blocks = self.applications.iter().flat_map(|application| &application.blocks);
        blocks.map(|block| (block.id, block.weight)).collect()
    }

    pub fn used(&self) -> u64 {
        self.resident().iter().map(|block| block.1).sum()
    }

    fn application(&mut self, stream: u32) -> usize {
        if let Some(position) = self.applications.iter().position(|application| application.stream == stream) {
            return position;
        }
        if self.applications.len() < self.parameters.streams_max {
            if self.applications.len() == 1 {
                self.places = self.applications[0].blocks.iter().map(|block| block.id).collect();
            }
            let detector = NaiveDetector::new(self.parameters.detection, DetectorBug::Nothing);
            let (blocks, filings) = (Vec::new(), HashMap::new());
            self.applications.push(ModelApplication { stream, detector, replacement: "lru", last: 0, blocks, filings });
            return self.applications.len() - 1;
        }
        let idle = (0..self.applications.len()).min_by_key(|&position| self.applications[position].last);
        let position = idle.expect("at least one");
        self.applications[position].stream = stream;
        self.applications[position].replacement = "lru";
        self.applications[position].detector.begin_anew();
        self.sequential.retain(|&other| other != position);
        position
    }

    /// Counts a reference; a block keeps its frequency when it moves to another stream.
    fn observe(&mut self, position: usize, id: u64) {
        self.applications[position].last = self.now;
        self.now += 1;
        let owner = self.owners.insert(id, position);
        let foreign = owner.is_some_and(|owner| owner != position);
        if let Some(owner) = owner.filter(|_| foreign) {
            let old = &mut self.applications[owner].detector;
            let frequency = old.before(id, old.references.len()).0;
            old.restart(id, 0);
            self.applications[owner].filings.remove(&id);
            self.applications[position].detector.restart(id, frequency);
        }
        let application = &mut self.applications[position];
        let Some(report) = application.detector.refer(id, foreign) else { return };
        let before = application.replacement;
        application.replacement = match report.verdict {
            PatternVerdict::None => before,
            PatternVerdict::Sequential => "mru first",
            PatternVerdict::Looping => "mru",
            PatternVerdict::Clustered => "lru",
            PatternVerdict::Probabilistic => "lfu",
        };
        if before != application.replacement {
            self.sequential.retain(|&other| other != position);
            if application.replacement == "mru first" {
                self.sequential.push(position);
            }
        }
        self.reports.push((application.stream, application.replacement, report));
    }

    fn frequency(&self, position: usize, id: u64) -> u64 {
        let detector = &self.applications[position].detector;
        detector.before(id, detector.references.len()).0.min(RANK_MAX)
    }

    fn file(&mut self, position: usize, id: u64, rank: u64) {
        self.filings += 1;
        self.applications[position].filings.insert(id, (rank, self.filings));
    }

    fn admit(&mut self, position: usize, id: u64, weight: u64) {
        self.applications[position].blocks.push(ModelBlock { id, weight });
        let frequency = self.frequency(position, id);
        if self.applications[position].filings.get(&id).is_none_or(|filing| filing.0 > frequency) {
            self.file(position, id, frequency);
        }
    }

    /// Removes a block from its application.
    fn dismiss(&mut self, id: u64) -> Option<ModelBlock> {
        self.applications.iter_mut().find_map(|application| {
            let index = application.blocks.iter().position(|block| block.id == id)?;
            Some(application.blocks.remove(index))
        })
    }

    fn offer(&mut self, position: usize) -> Option<u64> {
        let blocks = &self.applications[position].blocks;
        match self.applications[position].replacement {
            "lru" => blocks.first().map(|block| block.id),
            "mru" | "mru first" => blocks.last().map(|block| block.id),
            _ => loop {
                let application = &self.applications[position];
                let filings = application.filings.iter();
                let (&id, &(rank, _)) = filings.min_by_key(|(_, filing)| (filing.0, -filing.1))?;
                let resident = application.blocks.iter().any(|block| block.id == id);
                let frequency = self.frequency(position, id);
                if resident && frequency <= rank {
                    return Some(id);
                }
                self.applications[position].filings.remove(&id);
                if resident {
                    self.file(position, id, frequency);
                }
            },
        }
    }

    fn defer(&mut self, position: usize, id: u64) {
        self.filings += 1;
        let application = &mut self.applications[position];
        let index = application.blocks.iter().position(|block| block.id == id).expect("resident");
        match application.replacement {
            "lru" => {
                let block = application.blocks.remove(index);
                application.blocks.push(block);
            }
            "mru" | "mru first" => {
                let block = application.blocks.remove(index);
                application.blocks.insert(0, block);
            }
            _ => {
                application.filings.insert(id, (RANK_MAX, -self.filings));
            }
        }
        self.refresh_place(id);
    }

    fn refresh_place(&mut self, id: u64) {
        if self.applications.len() > 1 {
            self.places.retain(|&other| other != id);
            self.places.push(id);
        }
    }

    /// The victim, and the block in the oldest place because of which the victim's owner was chosen.
    fn choose(&mut self, sequential_first: bool) -> Option<(u64, Option<u64>)> {
        if self.applications.len() == 1 {
            return self.offer(0).map(|victim| (victim, None));
        }
        if sequential_first {
            let count = |position: usize| self.applications[position].blocks.len();
            let largest = self.sequential.iter().copied().max_by_key(|&position| count(position));
            if let Some(victim) = largest.and_then(|position| self.offer(position)) {
                return Some((victim, None));
            }
        }
        let asked = *self.places.first()?;
        let victim = self.offer(self.owners[&asked])?;
        Some((victim, Some(asked)))
    }

    fn remember(&mut self, id: u64) {
        self.evictions.push(Some(id));
        let evictions = self.parameters.ghosts_min.max(self.resident().len());
        while self.evictions.len() > evictions {
            if let Some(id) = self.evictions.remove(0) {
                self.forget(id);
            }
        }
    }

    fn recall(&mut self, id: u64) {
        for eviction in &mut self.evictions {
            if *eviction == Some(id) {
                *eviction = None;
            }
        }
    }

    fn forget(&mut self, id: u64) {
        if let Some(owner) = self.owners.remove(&id) {
            self.applications[owner].detector.restart(id, 0);
            self.applications[owner].filings.remove(&id);
        }
    }

    fn make_room(&mut self, room: u64, refusals_max: usize, evict: &mut dyn FnMut(u64) -> bool) -> bool {
        let mut refusals = 0;
        while self.used() + room > self.capacity {
            let Some((victim, asked)) = self.choose(refusals == 0) else { return false };
            if evict(victim) {
                if let Some(asked) = asked.filter(|&asked| asked != victim) {
                    self.places.retain(|&other| other != asked);
                    let place = self.places.iter().position(|&other| other == victim).expect("resident");
                    self.places[place] = asked;
                } else {
                    self.places.retain(|&other| other != victim);
                }
                self.dismiss(victim);
                let owner = &mut self.applications[self.owners[&victim]];
                if owner.replacement == "lfu" {
                    owner.filings.remove(&victim);
                }
                self.remember(victim);
            } else {
                self.defer(self.owners[&victim], victim);
                refusals += 1;
                if refusals >= refusals_max {
                    return false;
                }
            }
        }
        true
    }

    pub fn reference(&mut self, id: u64, weight: u64, stream: u32, evict: &mut dyn FnMut(u64) -> bool) -> AccessResult {
        let position = self.application(stream);
        if let Some(block) = self.dismiss(id) {
            self.observe(position, id);
            self.admit(position, id, block.weight);
            self.refresh_place(id);
            return AccessResult::Hit;
        }
        self.recall(id);
        if let Some(owner) = self.owners.get(&id).filter(|&&owner| owner != position) {
            self.applications[*owner].filings.remove(&id);
        }
        let fits = weight <= self.capacity && self.make_room(weight, REFUSALS_MAX, evict);
        self.observe(position, id);
        if !fits {
            self.remember(id);
            return AccessResult::Bypassed;
        }
        self.admit(position, id, weight);
        self.refresh_place(id);
        AccessResult::Inserted
    }

    pub fn remove(&mut self, id: u64) -> bool {
        let resident = self.dismiss(id).is_some();
        self.places.retain(|&other| other != id);
        self.recall(id);
        self.forget(id);
        resident
    }

    pub fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        self.capacity = capacity;
        let refusals_max = self.resident().len() + 1;
        self.make_room(0, refusals_max, evict);
    }
}
