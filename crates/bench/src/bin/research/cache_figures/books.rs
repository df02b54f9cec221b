//! Compares the ledgers and windows of `adaptive` with independent simulations.
//!
//! Owns: both simulations and the comparison, which must also find planted faults. The simulations share no code with
//! the policy: LRU is a map ordered by time, and MIN is a set ordered by the time of the next reference.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::mpsc::channel;

use nectary_cache::{AccessResult, Adaptive, Policy, PolicyEvent, StreamId, WatchedPolicy, WindowReport, lru_capacity};
use nectary_trace::simulate::TraceWorkload;

/// The largest allowed difference between a ledger's sum and the simulation's sum. *Units*: percent.
const LEDGER_PERCENT_MAX: u64 = 2;
/// The number of streams with separate ledgers; all other streams share one ledger.
const LEDGERS_OWN: usize = 15;
/// The size of the cache, as a share of the distinct blocks. *Units*: percent.
const PERCENT: u64 = 20;

/// The size of a block, for the memory of the LRU. *Units*: bytes.
const BLOCK_BYTES: u64 = 8192;

/// The numbers of references, misses, saved and lost accesses.
type Sums = [u64; 4];

/// An LRU that orders blocks by the time of their last reference.
struct ReferenceLru {
    capacity: usize,
    by_time: BTreeMap<usize, u64>,
    times: HashMap<u64, usize>,
}

impl ReferenceLru {
    fn new(capacity: u64) -> ReferenceLru {
        ReferenceLru { capacity: capacity as usize, by_time: BTreeMap::new(), times: HashMap::new() }
    }

    /// References a block. *Returns* whether it hits.
    fn refer(&mut self, now: usize, block: u64) -> bool {
        let before = self.times.insert(block, now);
        if let Some(before) = before {
            self.by_time.remove(&before);
        }
        self.by_time.insert(now, block);
        if self.times.len() > self.capacity
            && let Some((_, oldest)) = self.by_time.pop_first()
        {
            self.times.remove(&oldest);
        }
        before.is_some()
    }
}

/// The number of misses of MIN with bypassing, if the cache holds `contents` at the start.
fn optimum(contents: &HashSet<u64>, blocks: &[u64], capacity: u64) -> u64 {
    let mut next = vec![usize::MAX; blocks.len()];
    let mut coming: HashMap<u64, usize> = HashMap::new();
    for (place, block) in blocks.iter().enumerate().rev() {
        next[place] = coming.insert(*block, place).unwrap_or(usize::MAX);
    }
    let mut resident: BTreeSet<(usize, u64)> =
        contents.iter().map(|block| (coming.get(block).copied().unwrap_or(usize::MAX), *block)).collect();
    let mut misses = 0;
    for (place, block) in blocks.iter().enumerate() {
        misses += u64::from(!resident.remove(&(place, *block)));
        resident.insert((next[place], *block));
        if resident.len() as u64 > capacity {
            resident.pop_last();
        }
    }
    misses
}

/// The decisions of `adaptive`, and its reports.
struct AdaptiveReplay {
    capacity: u64,
    adaptive: WatchedPolicy,
    hits: Vec<bool>,
    windows: Vec<WindowReport>,
    /// The residents at the start of each window.
    contents: Vec<HashSet<u64>>,
}

fn play(workload: &TraceWorkload, capacity: u64) -> AdaptiveReplay {
    let (sender, receiver) = channel();
    let adaptive = WatchedPolicy::new(
        Box::new(Adaptive::new(capacity)),
        BLOCK_BYTES,
        Box::new(move |event| {
            if let PolicyEvent::Window(window) = event {
                let _ = sender.send(window);
            }
        }),
    );
    let mut played = AdaptiveReplay { capacity, adaptive, hits: Vec::new(), windows: Vec::new(), contents: Vec::new() };
    let mut resident = HashSet::new();
    played.contents.push(resident.clone());
    for (place, &block) in workload.blocks().iter().enumerate() {
        let stream = workload.streams().get(place).copied().unwrap_or_default();
        let access = played.adaptive.reference(block, 1, stream, &mut |victim| resident.remove(&victim));
        if access == AccessResult::Inserted {
            resident.insert(block);
        }
        played.hits.push(access == AccessResult::Hit);
        if let Ok(window) = receiver.try_recv() {
            played.windows.push(window);
            played.contents.push(resident.clone());
        }
    }
    played
}

/// The sums of each ledger according to a simulation with an LRU of `capacity_lru`.
fn simulate(workload: &TraceWorkload, played: &AdaptiveReplay, capacity_lru: u64) -> Vec<(StreamId, Sums)> {
    let mut lru = ReferenceLru::new(capacity_lru);
    let mut sums: Vec<(StreamId, Sums)> = Vec::new();
    for (place, (&block, &is_hit)) in workload.blocks().iter().zip(&played.hits).enumerate() {
        let stream = workload.streams().get(place).copied().unwrap_or_default();
        let is_lru_hit = lru.refer(place, block);
        let position = sums.iter().take(LEDGERS_OWN).position(|own| own.0 == stream).unwrap_or_else(|| {
            if sums.len() <= LEDGERS_OWN {
                sums.push((stream, [0; 4]));
            }
            sums.len() - 1
        });
        let counted = [true, !is_hit, is_hit && !is_lru_hit, !is_hit && is_lru_hit];
        sums[position].1.iter_mut().zip(counted).for_each(|(sum, counts)| *sum += u64::from(counts));
    }
    sums
}

/// The number of ledgers that are farther from the simulation than allowed.
fn differing(played: &AdaptiveReplay, simulated: &[(StreamId, Sums)]) -> usize {
    let is_far = |(stream, sums): &&(StreamId, Sums)| {
        played.adaptive.ledger(*stream).is_none_or(|ledger| {
            let told = [ledger.references, ledger.misses, ledger.saved, ledger.lost];
            told.iter().zip(sums).any(|(told, sum)| told.abs_diff(*sum) * 100 > sum * LEDGER_PERCENT_MAX)
        })
    };
    simulated.iter().filter(is_far).count()
}

/// The number of windows whose report has another number of misses than `played` had, or another optimum than MIN with
/// `capacity` blocks.
fn windows_differing(workload: &TraceWorkload, played: &AdaptiveReplay, capacity: u64) -> usize {
    let mut start = 0;
    let mut differing = 0;
    for (window, contents) in played.windows.iter().zip(&played.contents) {
        let end = start + window.references as usize;
        let misses = played.hits[start..end].iter().filter(|is_hit| !**is_hit).count() as u64;
        let least = optimum(contents, &workload.blocks()[start..end], capacity);
        differing += usize::from((window.misses, window.misses_min) != (misses, Some(least)));
        start = end;
    }
    differing
}

/// Prints the comparison for every workload; returns the differences, and the planted faults that were not found.
pub fn books<'a>(workloads: impl Iterator<Item = &'a TraceWorkload>) -> Vec<String> {
    let mut short = Vec::new();
    let (mut ledgers, mut windows, mut found, mut windows_found) = (0, 0, 0, 0);
    println!("ledgers and windows against simulations of their own, at {PERCENT} % of the distinct blocks");
    for workload in workloads {
        let played = play(workload, (workload.distinct() * PERCENT / 100).max(1));
        let simulated = simulate(workload, &played, lru_capacity("adaptive", played.capacity, BLOCK_BYTES));
        let (far, wrong) = (differing(&played, &simulated), windows_differing(workload, &played, played.capacity));
        ledgers += simulated.len();
        windows += played.windows.len();
        println!(
            "  {:16} {:6} blocks: {} ledgers, {far} more than {LEDGER_PERCENT_MAX} % off; {} windows, {wrong} not exact",
            workload.name(),
            played.capacity,
            simulated.len(),
            played.windows.len(),
        );
        if far + wrong > 0 {
            short.push(format!("{}: {far} ledgers and {wrong} windows differ", workload.name()));
        }
        // As planted faults, both simulations run with about nine tenths of the cache's size.
        let less = played.capacity * 9 / 10 + 1;
        let less_lru = lru_capacity("adaptive", played.capacity, BLOCK_BYTES) * 9 / 10 + 1;
        found += usize::from(differing(&played, &simulate(workload, &played, less_lru)) > 0);
        windows_found += usize::from(windows_differing(workload, &played, less) > 0);
    }
    println!("  {ledgers} ledgers, {windows} windows; planted faults told apart on {found} and {windows_found} traces");
    if ledgers > 0 && (found == 0 || windows_found == 0) {
        short.push(format!("planted faults told apart on {found} and {windows_found} traces only"));
    }
    short
}
