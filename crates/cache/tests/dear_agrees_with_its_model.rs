//! DEAR against a model that is as naive as possible, over several streams: the same accesses, victims and reports after
//! any mix of references, refusals, removals and changes of capacity, with few streams and ghosts so that their bounds
//! are met.
//!
//! `PROPTEST_RNG_SEED` replays a run, `PROPTEST_CASES` lengthens it.

mod naive;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::mpsc::channel;

use naive::{NaiveDetector, NaiveReport, Planted};
use nectary_cache::dear::Parameters;
use nectary_cache::detect::{self, PeriodReport, Verdict};
use nectary_cache::{Access, Dear, Policy, REFUSALS_MAX, Stream};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// A resident block as its application sees it.
#[derive(Debug, Clone, Copy)]
struct Block {
    id: u64,
    weight: u64,
}

/// The rank under which LFU has filed a block, and when; refused ones are filed before all others of the last rank.
type Filing = (u64, i64);

/// One stream's manager; blocks oldest first.
#[derive(Debug)]
struct Application {
    stream: u32,
    detector: NaiveDetector,
    replacement: &'static str,
    last: usize,
    blocks: Vec<Block>,
    /// Of resident blocks, and of ghosts that LFU has not come upon.
    filings: HashMap<u64, Filing>,
}

const RANK_MAX: u64 = 1023;

#[derive(Debug)]
struct Model {
    parameters: Parameters,
    capacity: u64,
    now: usize,
    filings: i64,
    applications: Vec<Application>,
    /// Oldest first; kept once there is a second stream.
    places: Vec<u64>,
    /// Sequential applications in the order in which they were found so.
    sequential: Vec<usize>,
    /// The last evictions, oldest first; those of blocks that came back since are of no number.
    evictions: Vec<Option<u64>>,
    /// Who referred last to each known block.
    owners: HashMap<u64, usize>,
    reports: Vec<(u32, &'static str, NaiveReport)>,
}

impl Model {
    fn new(capacity: u64, parameters: Parameters) -> Model {
        Model {
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

    fn resident(&self) -> Vec<(u64, u64)> {
        let blocks = self.applications.iter().flat_map(|application| &application.blocks);
        blocks.map(|block| (block.id, block.weight)).collect()
    }

    fn used(&self) -> u64 {
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
            let detector = NaiveDetector::new(self.parameters.detection, Planted::Nothing);
            let (blocks, filings) = (Vec::new(), HashMap::new());
            self.applications.push(Application { stream, detector, replacement: "lru", last: 0, blocks, filings });
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

    /// Counts a reference; the frequency of a block goes with it from stream to stream.
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
            Verdict::None => before,
            Verdict::Sequential => "mru first",
            Verdict::Looping => "mru",
            Verdict::Clustered => "lru",
            Verdict::Probabilistic => "lfu",
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
        self.applications[position].blocks.push(Block { id, weight });
        let frequency = self.frequency(position, id);
        if self.applications[position].filings.get(&id).is_none_or(|filing| filing.0 > frequency) {
            self.file(position, id, frequency);
        }
    }

    /// Takes a block from its application.
    fn dismiss(&mut self, id: u64) -> Option<Block> {
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

    /// The victim, and the block in whose place it stands.
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

    fn reference(&mut self, id: u64, weight: u64, stream: u32, evict: &mut dyn FnMut(u64) -> bool) -> Access {
        let position = self.application(stream);
        if let Some(block) = self.dismiss(id) {
            self.observe(position, id);
            self.admit(position, id, block.weight);
            self.refresh_place(id);
            return Access::Hit;
        }
        self.recall(id);
        if let Some(owner) = self.owners.get(&id).filter(|&&owner| owner != position) {
            self.applications[*owner].filings.remove(&id);
        }
        let fits = weight <= self.capacity && self.make_room(weight, REFUSALS_MAX, evict);
        self.observe(position, id);
        if !fits {
            self.remember(id);
            return Access::Bypassed;
        }
        self.admit(position, id, weight);
        self.refresh_place(id);
        Access::Inserted
    }

    fn remove(&mut self, id: u64) -> bool {
        let resident = self.dismiss(id).is_some();
        self.places.retain(|&other| other != id);
        self.recall(id);
        self.forget(id);
        resident
    }

    fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        self.capacity = capacity;
        let refusals_max = self.resident().len() + 1;
        self.make_room(0, refusals_max, evict);
    }
}

#[derive(Debug, Clone)]
enum Operation {
    Reference {
        id: u64,
        weight: u64,
        stream: u32,
    },
    /// A stretch of a loop or, where it is longer than its length, of a scan.
    Loop {
        first: u64,
        blocks: u64,
        length: u64,
        stream: u32,
    },
    Remove {
        id: u64,
    },
    SetCapacity {
        capacity: u64,
    },
    /// From now on ids divisible by this are refused as victims; 0 refuses none.
    Pin {
        divisor: u64,
    },
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let id = prop_oneof![3 => 0..12_u64, 1 => 0..100_u64];
    let stream = prop_oneof![4 => Just(0_u32), 2 => Just(1), 1 => 2..6_u32];
    let (blocks, length) = (1..50_u64, 1..60_u64);
    let operation = prop_oneof![
        30 => (id.clone(), 1..4_u64, stream.clone())
            .prop_map(|(id, weight, stream)| Operation::Reference { id, weight, stream }),
        6 => (id.clone(), blocks, length, stream)
            .prop_map(|(first, blocks, length, stream)| Operation::Loop { first, blocks, length, stream }),
        2 => id.prop_map(|id| Operation::Remove { id }),
        1 => (0..40_u64).prop_map(|capacity| Operation::SetCapacity { capacity }),
        1 => (0..4_u64).prop_map(|divisor| Operation::Pin { divisor }),
    ];
    proptest::collection::vec(operation, 1..150)
}

fn parameters() -> impl Strategy<Value = Parameters> {
    (3..40_u32, 2..6_usize, 1..4_usize, 0..30_usize).prop_map(|(period, sublists, streams_max, ghosts_min)| {
        Parameters { detection: detect::Parameters { period, sublists, tau_min: 0.6 }, streams_max, ghosts_min }
    })
}

fn check(capacity: u64, parameters: Parameters, operations: &[Operation]) -> Result<Vec<Verdict>, TestCaseError> {
    let mut policy = Dear::with_parameters(capacity, parameters);
    let (sender, receiver) = channel::<(u32, &'static str, PeriodReport)>();
    policy.explain_to(Box::new(move |event| {
        sender.send((event.stream.0, event.replacement, *event.report)).expect("the receiver outlives the policy");
    }));
    let mut model = Model::new(capacity, parameters);
    let mut divisor = 0;
    let mut verdicts = Vec::new();
    for operation in operations {
        let (mut victims, mut victims_of_model) = (Vec::new(), Vec::new());
        let keeps = |victims: &mut Vec<u64>, id: u64| {
            victims.push(id);
            divisor == 0 || !id.is_multiple_of(divisor)
        };
        let mut refer = |id, weight, stream| {
            let access = policy.reference(id, weight, Stream(stream), &mut |id| keeps(&mut victims, id));
            let expected = model.reference(id, weight, stream, &mut |id| keeps(&mut victims_of_model, id));
            (access, expected)
        };
        match *operation {
            Operation::Reference { id, weight, stream } => {
                let (access, expected) = refer(id, weight, stream);
                prop_assert_eq!(access, expected);
            }
            Operation::Loop { first, blocks, length, stream } => {
                for at in 0..length {
                    let (access, expected) = refer(first + at % blocks, 1, stream);
                    prop_assert_eq!(access, expected);
                }
            }
            Operation::Remove { id } => prop_assert_eq!(policy.remove(id), model.remove(id)),
            Operation::SetCapacity { capacity } => {
                policy.set_capacity(capacity, &mut |id| keeps(&mut victims, id));
                model.set_capacity(capacity, &mut |id| keeps(&mut victims_of_model, id));
            }
            Operation::Pin { divisor: new } => divisor = new,
        }
        prop_assert_eq!(&victims, &victims_of_model);
        for (stream, replacement, expected) in model.reports.drain(..) {
            let (found_stream, found_replacement, found) =
                receiver.try_recv().expect("a report for each of the model's");
            prop_assert_eq!((found_stream, found_replacement), (stream, replacement));
            prop_assert!(expected.agrees(&found), "expected {:?}, found {}", expected, found);
            verdicts.push(found.verdict);
        }
        prop_assert!(receiver.try_recv().is_err());
        let resident = model.resident();
        prop_assert_eq!((policy.len(), policy.used()), (resident.len(), model.used()));
        prop_assert!(resident.iter().all(|block| policy.contains(block.0)));
        prop_assert_eq!(policy.ghost_count(), model.evictions.iter().flatten().count());
    }
    Ok(verdicts)
}

/// The seed that was asked for, or a new one; printed either way.
fn config() -> ProptestConfig {
    let mut config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let seed = match config.rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => RandomState::new().hash_one(0) % 1_000_000_000,
    };
    println!("PROPTEST_RNG_SEED={seed} PROPTEST_CASES={}", config.cases);
    config.rng_seed = RngSeed::Fixed(seed);
    config
}

proptest! {
    #![proptest_config(config())]
    #[test]
    fn dear_agrees_with_its_model(
        capacity in 1..40_u64, parameters in parameters(), operations in operations()
    ) {
        check(capacity, parameters, &operations)?;
    }
}

/// The generated operations are of use only if they lead to every verdict.
#[test]
fn the_operations_lead_to_every_verdict() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut counts: HashMap<Verdict, usize> = HashMap::new();
    for _ in 0..200 {
        let tree = (1..40_u64, parameters(), operations()).new_tree(&mut runner).expect("no filters");
        let (capacity, parameters, operations) = tree.current();
        for verdict in check(capacity, parameters, &operations).expect("agrees") {
            *counts.entry(verdict).or_default() += 1;
        }
    }
    println!("{counts:?}");
    assert!(counts.len() == 5 && counts.values().all(|&count| count > 50), "{counts:?}");
}
