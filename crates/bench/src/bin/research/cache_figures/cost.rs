//! Measures the cost of a reference in caches of 1 Ki to 1 Mi blocks: the cost of LRU, the extra cost of `dear` and
//! `adaptive`, and the least possible cost.
//!
//! Owns: the references, the order of the rounds and the limits. In each round every policy gets the same references,
//! so that a disturbance affects all policies. Differences are taken within a round, and their medians over the rounds
//! are printed. References are drawn again for each replay, because repeated references would be a loop. Each policy
//! gets some references before it is timed, so that its data are in the processor's caches. Time is the processor time
//! of this thread.
//!
//! Each policy is timed in a simulation, which announces blocks ahead ([`Policy::prepare`]), and without announcements.
//!
//! # The limit
//! Every policy must at least find a block, which needs one access by hash to a table as large as LRU's. The cost of
//! this access alone, on the same references and without dependences between them, is printed next to the policies. The
//! cost of touching more cache lines per reference is printed too: a table of indexes with a linked list touches four,
//! those of the index, of the entry and of both neighbours.

use nectary_cache::{AccessResult, Lru, Policy, StreamId, by_name};
use nectary_trace::simulate::{TraceWorkload, misses};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// The capacities, in blocks; the limits on LRU and `dear` apply to the first one.
const CAPACITIES: [u64; 4] = [1 << 20, 64 << 10, 4 << 10, 1 << 10];
const REFERENCES: u64 = 4 << 20;
const ROUNDS: usize = 3;
/// The required rate of a simulated LRU. *Units*: millions of references per second.
const LRU_MILLIONS_MIN: f64 = 10.0;
/// The largest allowed cost of a policy above that of LRU. *Units*: nanoseconds per reference.
const ABOVE_LRU_NS_MAX: [(&str, f64); 2] = [("dear", 30.0), ("adaptive", 100.0)];
/// The numbers of cache lines touched per reference, for the least possible cost.
const LINES: [usize; 3] = [1, 2, 4];
/// The size of the table on which the least possible cost is measured: 32 MiB, as much as the entries of LRU take at
/// the largest capacity. *Units*: words of 8 bytes.
const LIMIT_WORDS: usize = 4 << 20;

/// The processor time of this thread so far. *Units*: nanoseconds.
fn now() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split(' ').next()?.parse().ok()
}

/// Draws references at random.
struct ReferenceGenerator {
    name: &'static str,
    random: SplitMix64,
    capacity: u64,
    /// The number of streams to which the blocks belong.
    streams: u64,
    rank: fn(u64, u64) -> u64,
}

impl ReferenceGenerator {
    /// The next `count` references.
    fn workload(&mut self, count: u64) -> TraceWorkload {
        let ReferenceGenerator { name, random, capacity, streams, rank } = self;
        let block = |_| {
            // The multiplication scatters the block numbers of neighbouring ranks.
            let block = rank(random.next_u64(), *capacity).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
            (block, StreamId((block % *streams) as u32))
        };
        TraceWorkload::new(*name, (0..count).map(block))
    }
}

fn draws(capacity: u64) -> [ReferenceGenerator; 3] {
    let skewed = |random: u64, capacity: u64| {
        let highest = (16.0 * capacity as f64).ln();
        ((random >> 11) as f64 / (1_u64 << 53) as f64 * highest).exp() as u64
    };
    let uniform = |random: u64, capacity: u64| random % (2 * capacity);
    let kinds =
        [("skewed", 1, skewed as fn(u64, u64) -> u64), ("uniform", 1, uniform), ("skewed, 4 streams", 4, skewed)];
    kinds.map(|(name, streams, rank)| ReferenceGenerator {
        name,
        random: SplitMix64::seed_from_u64(1),
        capacity,
        streams,
        rank,
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The times of a policy, one per round. *Units*: nanoseconds per reference.
#[derive(Default)]
struct PolicyTimes {
    simulated: Vec<f64>,
    one_by_one: Vec<f64>,
    /// The number of hits in the last round.
    hits: u64,
}

impl PolicyTimes {
    /// Replays the first workload untimed, then the others timed; `None` if the kernel does not report a thread's
    /// processor time.
    fn add(&mut self, policy: &mut dyn Policy, [first, second, third]: &[TraceWorkload; 3]) -> Option<()> {
        play(policy, first);
        let mut misses_count = 0;
        self.simulated.push(timed(|| {
            misses_count = misses(policy, second);
            misses_count
        })?);
        self.hits = second.references() - misses_count;
        self.one_by_one.push(timed(|| play(policy, third))?);
        Some(())
    }

    fn hits_percent(&self) -> f64 {
        100.0 * self.hits as f64 / REFERENCES as f64
    }
}

/// Prints the figures. *Returns* a line for each figure that misses its limit.
pub fn cost() -> Vec<String> {
    let mut short = Vec::new();
    let mut words = vec![0; LIMIT_WORDS];
    for mut draw in CAPACITIES.into_iter().flat_map(draws) {
        let (name, capacity) = (draw.name, draw.capacity);
        let is_first = capacity == CAPACITIES[0];
        println!("{name}: {REFERENCES} references, {capacity} blocks fit, medians of {ROUNDS} rounds on full caches");
        let mut lru = Lru::new(capacity);
        let mut others: Vec<_> = ABOVE_LRU_NS_MAX.iter().filter_map(|(name, _)| by_name(name, capacity)).collect();
        let filling = draw.workload(2 * REFERENCES);
        play(&mut lru, &filling);
        for policy in &mut others {
            play(&mut **policy, &filling);
        }
        let mut of_lru = PolicyTimes::default();
        let mut of_others: Vec<PolicyTimes> = others.iter().map(|_| PolicyTimes::default()).collect();
        let mut limits = LINES.map(|_| Vec::new());
        for _ in 0..ROUNDS {
            let workloads = [REFERENCES / 4, REFERENCES, REFERENCES].map(|count| draw.workload(count));
            let done = of_lru.add(&mut lru, &workloads).and_then(|()| {
                let mut others = others.iter_mut().zip(&mut of_others);
                others.try_for_each(|(policy, times)| times.add(&mut **policy, &workloads))
            });
            if done.is_none() {
                return vec!["the kernel tells no time of a thread".to_owned()];
            }
            for (lines, times) in LINES.iter().zip(&mut limits) {
                times.extend(timed(|| touch(&mut words, &workloads[1], *lines)));
            }
        }
        for (lines, times) in LINES.iter().zip(limits) {
            println!("  the limit of {lines} lines a reference: {:.1} ns", median(times));
        }
        let millions = 1000.0 / median(of_lru.simulated.clone());
        println!(
            "  lru       simulates {millions:5.1} M references/s, at least {LRU_MILLIONS_MIN}; {:.1} ns each, {:.1} one by one; {:.1} % hits",
            median(of_lru.simulated.clone()),
            median(of_lru.one_by_one.clone()),
            of_lru.hits_percent()
        );
        if is_first && millions < LRU_MILLIONS_MIN {
            short.push(format!("{name}: lru simulates {millions:.1} M references/s, at least {LRU_MILLIONS_MIN}"));
        }
        for ((policy, ns_max), times) in ABOVE_LRU_NS_MAX.iter().zip(of_others) {
            let above =
                |times: &[f64], base: &[f64]| median(times.iter().zip(base).map(|(ns, lru)| ns - lru).collect());
            let simulated = above(&times.simulated, &of_lru.simulated);
            let one_by_one = above(&times.one_by_one, &of_lru.one_by_one);
            println!(
                "  {policy:9} {simulated:+6.1} ns a reference above lru, {one_by_one:+6.1} one by one, at most {ns_max}; {:.1} % hits",
                times.hits_percent()
            );
            for (above, how) in [(simulated, "simulated"), (one_by_one, "one by one")] {
                if above > *ns_max && (is_first || *policy != "dear") {
                    short.push(format!(
                        "{name}, {capacity} blocks: {policy} {above:+.1} ns above lru {how}, at most {ns_max}"
                    ));
                }
            }
        }
    }
    short
}

/// Reads and writes `lines` words of `table` for each reference, each word in another cache line.
fn touch(table: &mut [u64], workload: &TraceWorkload, lines: usize) -> u64 {
    let last = table.len() - 1;
    for &block in workload.blocks() {
        let mut hash = block;
        for _ in 0..lines {
            hash = (hash ^ hash >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
            table[(hash >> 20) as usize & last] += 1;
        }
    }
    table[0]
}

fn play(policy: &mut dyn Policy, workload: &TraceWorkload) -> u64 {
    let streams = workload.streams();
    let is_hit = |&(place, block): &(usize, &u64)| {
        let stream = streams.get(place).copied().unwrap_or_default();
        policy.reference(*block, 1, stream, &mut |_| true) == AccessResult::Hit
    };
    workload.blocks().iter().enumerate().filter(is_hit).count() as u64
}

/// The time of `play`, divided by the number of references. *Units*: nanoseconds per reference.
fn timed(play: impl FnOnce() -> u64) -> Option<f64> {
    let start = now()?;
    std::hint::black_box(play());
    Some((now()? - start) / REFERENCES as f64)
}
