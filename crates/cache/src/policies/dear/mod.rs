//! DEAR: detects how each application references its blocks, and replaces them accordingly.
//!
//! # Idea
//! No single replacement suits all programs: LRU is very bad for a loop slightly larger than the cache, MRU for
//! everything else. But a few hundred references reveal a program's pattern. DEAR (detection based adaptive
//! replacement) observes each application (a [`StreamId`]) with a [`Detector`]. Each application replaces its own blocks
//! according to its last verdict.
//!
//! | verdict | replacement |
//! |---|---|
//! | sequential | MRU, and its blocks are the first victims in the whole cache |
//! | looping | MRU |
//! | clustered | LRU |
//! | probabilistic | LFU |
//! | none | unchanged; LRU before the first verdict |
//!
//! # Two parts
//! The *application manager* (`application.rs`), one per stream, orders the stream's blocks and offers one on demand.
//! The *system manager* (`system.rs`) chooses the application: first a sequential one; otherwise the owner of the least
//! recent block of the whole cache. The owner may spare this block and offer another. The spared block then takes the
//! *place* of the evicted block in the global order, as in LRU-SP. So an application that spares its oldest blocks is
//! not chosen repeatedly because of them, and it gains nothing at the expense of others.
//!
//! The victim is chosen before the current reference is counted; a verdict applies from the next reference on.
//!
//! # What is remembered
//! The attributes of a block are kept after its eviction; otherwise no loop larger than the cache could be detected.
//! The blocks of the last evictions are remembered as *ghosts* (`ghosts.rs`): as many as there are resident blocks, and
//! at least `ghosts_min`. A loop that is longer than residents and ghosts together looks sequential; sequential and
//! looping streams both use MRU. When another stream references a block, the block moves to that stream: its frequency
//! is kept, but its distances are not, because each stream has its own time.
//!
//! At most `streams_max` applications are distinguished; a further application takes over the manager and the blocks of
//! the application that has been idle longest.
//!
//! # Hits are counted together
//! Both a hit and its counting need the block's entry from memory. While the processor waits, it can only execute a
//! limited number of the instructions that follow. So a hit only moves its block, and its counting is deferred.
//! Deferred hits are counted when there are 32, when they would end a period, and before any event that depends on the
//! counts: a miss, a change of owner, a new stream, a removal. The result is the same as if each hit were counted
//! immediately.
//!
//! # Weakness
//! A program whose reads are smaller than a block, or end inside a block, references a block twice in a row. A scan in
//! reads of 10 KiB therefore looks clustered and its blocks stay; if another program runs at the same time, `dear`
//! misses 56 % more than LRU. The paper's scheme has the same weakness. Recording with `--collapse` omits the second
//! reference.
//!
//! # Invariants
//! 1. A resident block is in its owner's recency and LFU orders, and, once there has been a second stream, in the
//!    system's order of places. A ghost is in its owner's LFU order or in no order.
//! 2. The weights of resident blocks sum to at most the capacity after each call, except after refusals in
//!    `set_capacity`.
//! 3. There are at most as many ghosts as remembered evictions, whose number is at most the larger of `ghosts_min` and
//!    the number of resident blocks.
//!
//! # Cost
//! O(1) amortised per reference, and four passes over at most 500 words per 500 references. 43 to 85 bytes per block,
//! resident or ghost; 8 to 65 more per order that contains the block (recency, LFU, and places if there is more than
//! one stream); 8 per remembered eviction. A stream needs 12 KiB for its period. Per frequency up to the highest that
//! its blocks have reached (at most 1023), it also needs 112 bytes, and at least 520 more if blocks have been filed
//! under that frequency.
//!
//! # Source
//! J. Choi, S. H. Noh, S. L. Min, Y. Cho, "An implementation study of a detection-based adaptive block replacement
//! scheme", USENIX ATC 1999. The swapping of places: P. Cao, E. W. Felten, K. Li, "Application-controlled file caching
//! policies", USENIX Summer 1994; without the placeholders of that paper. Neither paper has weights, refusals, a bound
//! on ghosts, or a new stream that takes over the manager of an idle application.

mod application;
mod blocks;
mod ghosts;
mod system;

use hashbrown::HashTable;

use crate::detect::{self, Detector, PeriodEvent, PeriodSink};
use crate::policy::{AccessResult, Policy, REFUSALS_MAX, StreamId};
use crate::structures::hash::hash;
use crate::structures::timeline::IdTimeline;
use application::ApplicationManager;
use blocks::{DearBlockState, DearBlocks};
use ghosts::GhostQueue;
use system::ApplicationSelector;

/// The largest number of deferred hits.
const HITS_MAX: usize = 32;

/// The settings of DEAR.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DearParameters {
    /// Period, sublists and threshold of every stream's detector.
    pub detection: detect::DetectorParameters,
    /// The largest number of streams that are distinguished; clamped to 1 to 65,535.
    pub streams_max: usize,
    /// The smallest number of evictions whose blocks are remembered.
    pub ghosts_min: usize,
}

impl Default for DearParameters {
    /// The paper's detection parameters, 256 streams, and 65,536 evictions.
    fn default() -> DearParameters {
        DearParameters { detection: detect::DetectorParameters::default(), streams_max: 256, ghosts_min: 1 << 16 }
    }
}

/// The memory of a policy of `count` units of weight 1 and its first stream; further streams take what *Cost* above
/// says. *Units*: bytes.
pub(crate) fn bytes_of(count: usize) -> u64 {
    let evictions = DearParameters::default().ghosts_min.max(count);
    let orders = IdTimeline::bytes_of(count).0 * 2 + IdTimeline::bytes_of(count + evictions).1;
    DearBlocks::bytes_of(count + evictions) + GhostQueue::bytes_of(evictions + 1) + orders
}

/// The paper's detection based adaptive replacement, over weighted ids.
///
/// ```
/// use nectary_cache::{AccessResult, Dear, Policy, StreamId};
///
/// let mut policy = Dear::new(500);
/// let mut hits = 0;
/// for _ in 0..100 {
///     for id in 0..1000 {
///         hits += u32::from(policy.reference(id, 1, StreamId(7), &mut |_| true) == AccessResult::Hit);
///     }
/// }
/// // Under LRU a loop of 1000 blocks in a cache of 500 never hits.
/// assert!(hits > 45_000);
/// ```
pub struct Dear {
    parameters: DearParameters,
    capacity: u64,
    used: u64,
    /// The number of references so far, over all streams.
    now: u64,
    blocks: DearBlocks,
    ghosts: GhostQueue,
    resident: usize,
    applications: Vec<ApplicationManager>,
    /// The position of each stream's application in `applications`.
    streams: HashTable<u16>,
    /// The position in `applications` of the application that made the last reference.
    current: u16,
    system: ApplicationSelector,
    /// The hits that are not counted yet, each as the position of its application and the place of its block in the
    /// table.
    hits: [(u16, usize); HITS_MAX],
    hit_count: usize,
    sink: Option<PeriodSink>,
}

impl Dear {
    /// An empty policy of `capacity` units of weight with the default parameters.
    pub fn new(capacity: u64) -> Dear {
        Dear::with_parameters(capacity, DearParameters::default())
    }

    /// An empty policy of `capacity` units of weight; parameters are clamped to their ranges.
    pub fn with_parameters(capacity: u64, parameters: DearParameters) -> Dear {
        let streams_max = parameters.streams_max.clamp(1, usize::from(u16::MAX));
        Dear {
            parameters: DearParameters { streams_max, ..parameters },
            capacity,
            used: 0,
            now: 0,
            blocks: DearBlocks::new(),
            ghosts: GhostQueue::new(),
            resident: 0,
            applications: Vec::new(),
            streams: HashTable::new(),
            current: 0,
            system: ApplicationSelector::new(),
            hits: [(0, 0); HITS_MAX],
            hit_count: 0,
            sink: None,
        }
    }

    /// Reports every later period of every stream to `sink`, which replaces an earlier sink.
    pub fn explain_to(&mut self, sink: PeriodSink) {
        self.sink = Some(sink);
    }

    /// The number of evicted blocks that are remembered. *Units*: ids.
    pub fn ghost_count(&self) -> usize {
        self.ghosts.count()
    }

    /// The position of a stream's application; a new stream gets a new application or takes over an old one.
    fn application(&mut self, stream: StreamId) -> u16 {
        if self.applications.get(usize::from(self.current)).is_some_and(|current| current.stream == stream) {
            return self.current;
        }
        let applications = &self.applications;
        let hash_of = |stream: StreamId| hash(u64::from(stream.0));
        let found =
            self.streams.find(hash_of(stream), |&position| applications[usize::from(position)].stream == stream);
        self.current = match found {
            Some(&position) => position,
            None => self.begin(stream),
        };
        self.current
    }

    /// Makes an application for a stream; at the limit the stream takes over an old one.
    fn begin(&mut self, stream: StreamId) -> u16 {
        self.count_hits();
        if self.applications.len() < self.parameters.streams_max { self.found(stream) } else { self.take_over(stream) }
    }

    /// Adds an application.
    fn found(&mut self, stream: StreamId) -> u16 {
        let position = self.applications.len() as u16;
        if let [only] = self.applications.as_slice() {
            self.system.share(&mut self.blocks, only);
        }
        self.applications.push(ApplicationManager::new(stream, Detector::new(self.parameters.detection)));
        self.enter(stream, position);
        position
    }

    /// Gives the application that has been idle longest to a new stream.
    fn take_over(&mut self, stream: StreamId) -> u16 {
        let idle = self.applications.iter().enumerate().min_by_key(|(_, application)| application.last);
        let position = idle.map_or(0, |(position, _)| position as u16);
        let old = self.applications[usize::from(position)].stream;
        if let Ok(entry) = self.streams.find_entry(hash(u64::from(old.0)), |&other| other == position) {
            entry.remove();
        }
        let application = &mut self.applications[usize::from(position)];
        let before = application.replacement;
        application.hand_over(stream);
        self.system.note(position, before, application.replacement);
        self.enter(stream, position);
        position
    }

    fn enter(&mut self, stream: StreamId, position: u16) {
        let applications = &self.applications;
        self.streams.insert_unique(hash(u64::from(stream.0)), position, |&other| {
            hash(u64::from(applications[usize::from(other)].stream.0))
        });
    }

    /// Counts a reference, makes the application the owner of the block, and handles the end of a period.
    #[inline]
    fn observe(&mut self, position: u16, at: usize) {
        let application = &mut self.applications[usize::from(position)];
        application.last = self.now;
        self.now += 1;
        let block = self.blocks.get_mut(at);
        let own = block.owner == position;
        block.owner = position;
        let report = if own {
            application.detector.observe(&mut block.history)
        } else {
            application.detector.observe_foreign(&mut block.history)
        };
        if report.is_some() {
            self.act(position);
        }
    }

    /// Handles the end of a period.
    #[cold]
    fn act(&mut self, position: u16) {
        let application = &mut self.applications[usize::from(position)];
        let Some(report) = application.detector.last_report() else { return };
        let before = application.replacement;
        application.replacement = before.after(report.verdict);
        self.system.note(position, before, application.replacement);
        if let Some(sink) = &mut self.sink {
            let replacement = application.replacement.name();
            sink(PeriodEvent { stream: application.stream, report, replacement });
        }
    }

    /// Handles a reference to a resident block.
    #[inline]
    fn hit(&mut self, position: u16, at: usize) {
        let owner = self.blocks.get(at).owner;
        if owner == position {
            let application = &mut self.applications[usize::from(position)];
            application.refresh(&mut self.blocks, at);
            application.uncounted += 1;
            self.hits[self.hit_count] = (position, at);
            self.hit_count += 1;
            if self.hit_count == HITS_MAX || application.uncounted == application.detector.left() {
                self.count_hits();
            }
        } else {
            self.count_hits();
            let weight = self.applications[usize::from(owner)].dismiss(&mut self.blocks, at);
            self.observe(position, at);
            self.applications[usize::from(position)].admit(&mut self.blocks, at, weight);
        }
        self.system.refresh(&mut self.blocks, at);
    }

    /// Counts the deferred hits.
    fn count_hits(&mut self) {
        for place in 0..std::mem::take(&mut self.hit_count) {
            let (position, at) = self.hits[place];
            let application = &mut self.applications[usize::from(position)];
            application.uncounted = 0;
            application.last = self.now;
            self.now += 1;
            let is_end = application.detector.observe_known(&mut self.blocks.get_mut(at).history);
            application.keep_filed(&mut self.blocks, at);
            if is_end {
                self.act(position);
            }
        }
    }

    /// Makes a known ghost an absent block, or inserts a new block. *Returns* its place; `None` if there are too many
    /// blocks.
    fn recall(&mut self, known: Option<usize>, id: u64, position: u16) -> Option<usize> {
        let Some(at) = known else { return self.blocks.insert(id, position) };
        self.ghosts.recall(&mut self.blocks, at);
        let owner = self.blocks.get(at).owner;
        if owner != position {
            self.applications[usize::from(owner)].unfile(&mut self.blocks, at);
        }
        Some(at)
    }

    /// Makes a block a ghost, and forgets the oldest ghosts. The block must be in no timeline, except that it may be in
    /// one of the LFU order.
    fn remember(&mut self, at: usize) {
        self.ghosts.add(&mut self.blocks, at);
        let evictions = self.parameters.ghosts_min.max(self.resident);
        while let Some(old) = self.ghosts.outdated(&mut self.blocks, evictions) {
            let owner = self.blocks.get(old).owner;
            self.applications[usize::from(owner)].unfile(&mut self.blocks, old);
            self.blocks.forget(old);
        }
    }

    /// Makes a resident block a ghost, after it was removed from its place.
    fn evict(&mut self, at: usize) {
        let owner = usize::from(self.blocks.get(at).owner);
        self.used -= self.applications[owner].evict(&mut self.blocks, at);
        self.resident -= 1;
        self.remember(at);
    }

    /// Evicts until `room` more units fit; `false` if too many victims were refused.
    fn make_room(&mut self, room: u64, refusals_max: usize, evict: &mut dyn FnMut(u64) -> bool) -> bool {
        let mut refusals = 0;
        while self.used.saturating_add(room) > self.capacity {
            let Some(choice) = self.system.choose(&mut self.applications, &mut self.blocks, refusals == 0) else {
                return false;
            };
            let victim = choice.victim;
            if evict(self.blocks.get(victim).id) {
                self.system.vacate(&mut self.blocks, choice);
                self.evict(victim);
                continue;
            }
            let owner = self.blocks.get(victim).owner;
            self.applications[usize::from(owner)].defer(&mut self.blocks, victim);
            self.system.refresh(&mut self.blocks, victim);
            refusals += 1;
            if refusals >= refusals_max {
                return false;
            }
        }
        true
    }
}

impl Policy for Dear {
    fn name(&self) -> &'static str {
        "dear"
    }

    fn reference(
        &mut self,
        id: u64,
        weight: u64,
        stream: StreamId,
        evict: &mut dyn FnMut(u64) -> bool,
    ) -> AccessResult {
        let position = self.application(stream);
        let known = self.blocks.find(id);
        if let Some(at) = known.filter(|&at| self.blocks.get(at).state() == DearBlockState::Resident) {
            self.hit(position, at);
            return AccessResult::Hit;
        }
        self.count_hits();
        // The ghost is recalled first, because making room may forget it.
        let Some(at) = self.recall(known, id, position) else { return AccessResult::Bypassed };
        let count = self.blocks.count();
        let weight = weight.max(1);
        let fits = weight <= self.capacity && self.make_room(weight, REFUSALS_MAX, evict);
        let Some(at) = self.blocks.find_again(id, at, count) else { return AccessResult::Bypassed };
        self.observe(position, at);
        if !fits {
            self.remember(at);
            return AccessResult::Bypassed;
        }
        self.blocks.get_mut(at).set_state(DearBlockState::Resident);
        self.used += weight;
        self.resident += 1;
        self.applications[usize::from(position)].admit(&mut self.blocks, at, weight);
        self.system.admit(&mut self.blocks, at);
        AccessResult::Inserted
    }

    fn prepare(&self, id: u64) {
        self.blocks.prepare(id);
    }

    fn remove(&mut self, id: u64) -> bool {
        self.count_hits();
        let Some(at) = self.blocks.find(id) else { return false };
        let owner = usize::from(self.blocks.get(at).owner);
        let resident = self.blocks.get(at).state() == DearBlockState::Resident;
        if resident {
            self.system.dismiss(&mut self.blocks, at);
            self.used -= self.applications[owner].dismiss(&mut self.blocks, at);
            self.resident -= 1;
        } else {
            self.ghosts.recall(&mut self.blocks, at);
            self.applications[owner].unfile(&mut self.blocks, at);
        }
        self.blocks.forget(at);
        resident
    }

    fn contains(&self, id: u64) -> bool {
        self.blocks.find(id).is_some_and(|at| self.blocks.get(at).state() == DearBlockState::Resident)
    }

    fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        self.count_hits();
        self.capacity = capacity;
        // The first refusal of a block of a sequential application puts that block after all others, so one more
        // refusal than there are blocks is enough to offer every block.
        let refusals_max = self.resident + 1;
        self.make_room(0, refusals_max, evict);
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn used(&self) -> u64 {
        self.used
    }

    fn len(&self) -> usize {
        self.resident
    }
}
