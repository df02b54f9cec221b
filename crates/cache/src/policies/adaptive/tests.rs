//! Tests of the adaptive policy as a whole.

use super::*;
use crate::{Lirs, Lru, by_name};

/// A small random generator with a fixed seed, so that the tests are deterministic.
struct AdaptiveRandom(u64);

impl AdaptiveRandom {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Draws an id below `count`, approximately by Zipf's law with exponent 1.
    fn zipf(&mut self, count: u64) -> u64 {
        let unit = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        ((count as f64).powf(unit) - 1.0) as u64
    }
}

fn misses(policy: &mut dyn Policy, references: &[(u32, u64)]) -> u64 {
    let mut misses = 0;
    for &(stream, id) in references {
        misses += u64::from(policy.reference(id, 1, StreamId(stream), &mut |_| true) != AccessResult::Hit);
        assert!(policy.used() <= policy.capacity());
    }
    misses
}

fn best(capacity: u64, references: &[(u32, u64)]) -> u64 {
    let names = ["lru", "arc", "s3fifo", "lirs", "wtinylfu"];
    let each = names.iter().filter_map(|name| Some(misses(&mut *by_name(name, capacity)?, references)));
    each.min().expect("registered")
}

/// Asserts that `adaptive` misses at most five percent more than the best of five other policies.
fn assert_close_to_the_best(name: &str, capacity: u64, references: &[(u32, u64)]) {
    let (own, best) = (misses(&mut Adaptive::new(capacity), references), best(capacity, references));
    assert!(own as f64 <= best as f64 * 1.05, "{name} at {capacity}: {own} misses, the best of five {best}");
}

/// Generated references of every kind miss about as little as the best policy does.
#[test]
fn generated_references_are_near_best() {
    let mut random = AdaptiveRandom(0x1234_5678_9abc_def1);
    let drift: Vec<(u32, u64)> =
        (0..60_000).map(|step| (0, random.zipf(3000).wrapping_add(step / 20).wrapping_mul(7) % 9000)).collect();
    let loops: Vec<(u32, u64)> = (0..40_000).map(|step| (0, step % (700 + step / 10_000 * 100))).collect();
    let scans: Vec<(u32, u64)> =
        (0..60_000).map(|step| (0, if step % 5000 < 1500 { 100_000 + step } else { random.zipf(4000) })).collect();
    let phases: Vec<(u32, u64)> =
        (0..60_000).map(|step| (0, if step / 20_000 == 1 { step % 1000 } else { random.zipf(5000) })).collect();
    for (name, references) in [("drift", drift), ("loops", loops), ("scans", scans), ("phases", phases)] {
        for capacity in [100, 500, 1000] {
            assert_close_to_the_best(name, capacity, &references);
        }
    }
}

/// Separate streams are divided, and miss less than under any one policy.
#[test]
fn divided_streams_beat_single_policies() {
    // One stream is a loop larger than the cache, the other a working set that moves on. A policy that suits one is bad
    // for the other.
    let mut random = AdaptiveRandom(99);
    let references: Vec<(u32, u64)> = (0..200_000_u64)
        .map(|step| match step % 2 {
            0 => (1, 1_000_000 + step / 2 % 1500),
            _ => (2, step / 16 + random.next() % 450),
        })
        .collect();
    let mut adaptive = Adaptive::new(1000);
    let own = misses(&mut adaptive, &references);
    let best = best(1000, &references);
    assert!((own as f64) < 0.95 * best as f64, "{own} misses, the best of five {best}");
    assert_eq!((adaptive.leader(), adaptive.replacement(StreamId(2))), ("partition", "lru"));
    assert_ne!(adaptive.replacement(StreamId(1)), "lru");
}

#[test]
fn streams_that_ended_are_forgotten() {
    // Sixteen streams make ten accesses each. Then two streams begin, which would share one part if the others were not
    // forgotten.
    let mut random = AdaptiveRandom(99);
    let references: Vec<(u32, u64)> = (0..200_000_u64)
        .map(|step| match step {
            0..160 => (100 + step as u32 / 10, 5_000_000 + step),
            _ if step % 2 == 0 => (1, 1_000_000 + step / 2 % 1500),
            _ => (2, step / 16 + random.next() % 450),
        })
        .collect();
    let own = misses(&mut Adaptive::new(1000), &references);
    let best = best(1000, &references);
    assert!((own as f64) < 0.97 * best as f64, "{own} misses, the best of five {best}");
}

/// A change of pattern changes the leader, and the reason has the counted misses.
#[test]
fn pattern_change_switches_leader() {
    // The working set moves on: its old blocks are useless, but LIRS keeps them.
    let mut random = AdaptiveRandom(5);
    let (mut adaptive, mut lirs, mut lru) = (Adaptive::new(500), Lirs::new(500), Lru::new(500));
    let mut only = [0_u64; 2];
    for step in 0..100_000_u64 {
        let id = step / 8 + random.next() % 450;
        let is_miss =
            |policy: &mut dyn Policy| policy.reference(id, 1, StreamId(0), &mut |_| true) != AccessResult::Hit;
        let missed = [is_miss(&mut lirs), is_miss(&mut lru)];
        is_miss(&mut adaptive);
        only[0] += u64::from(missed == [true, false]);
        only[1] += u64::from(missed == [false, true]);
        if let Some(LeaderChange { reference, leader, reason }) = adaptive.take_change() {
            // Counts fade by a tenth in as many accesses as the cache has units of capacity, so early misses still have
            // nearly their full weight.
            assert_eq!((reference, leader, reason.from), (step + 1, "lru", "lirs"));
            assert!(reason.misses_before <= only[0] && reason.misses_before * 2 > only[0], "{reason:?} {only:?}");
            assert!(reason.misses_now <= only[1], "{reason:?} {only:?}");
            return;
        }
    }
    panic!("the leader never changed");
}

/// The misses of a large cache and the changes of its leader, over accesses that count its residents.
fn large(capacity: u64, references: impl Iterator<Item = u64>) -> (u64, Vec<LeaderChange>) {
    let (mut adaptive, mut resident) = (Adaptive::new(capacity), std::collections::HashSet::new());
    let (mut misses, mut changes) = (0, Vec::new());
    for id in references {
        misses += u64::from(!resident.contains(&id));
        check(&mut adaptive, &mut resident, id, 0);
        changes.extend(adaptive.take_change());
    }
    (misses, changes)
}

#[test]
fn large_cache_changes_once_on_loop() {
    let capacity = 20_000;
    assert_eq!(Adaptive::new(capacity).shift, 4);
    let references = || (0..20 * capacity).map(|step| step % (capacity * 3 / 2));
    let (own, changes) = large(capacity, references());
    let of_loop: Vec<(u32, u64)> = references().map(|id| (0, id)).collect();
    let start = misses(&mut *by_name("s3fifo", capacity).expect("registered"), &of_loop);
    assert!(own * 100 < start * 85, "{own} misses, S3-FIFO {start}");
    assert!(changes.len() == 1 && changes[0].reason.from == "s3fifo", "{changes:?}");
}

#[test]
fn a_change_of_leader_evicts_nothing() {
    let capacity = 5000;
    let (mut adaptive, mut resident) = (Adaptive::new(capacity), std::collections::HashSet::new());
    let mut random = AdaptiveRandom(7);
    let mut since = None;
    // The working set moves on, which suits LRU; after the change the cache stays full and hits what it held.
    for step in 0..40 * capacity {
        check(&mut adaptive, &mut resident, step / 4 + random.next() % (capacity * 9 / 10), 0);
        if adaptive.take_change().is_some() {
            since.get_or_insert(step);
        }
        if since.is_some() {
            assert_eq!(adaptive.used(), capacity, "at {step}");
        }
    }
    assert!(since.is_some() && adaptive.leader() == "lru", "{}", adaptive.leader());
}

#[test]
fn skewed_accesses_stay_with_the_start() {
    for capacity in [4097, 20_000] {
        let mut random = AdaptiveRandom(3);
        let (_, changes) = large(capacity, (0..30 * capacity).map(|_| random.zipf(5 * capacity)));
        assert_eq!(changes, []);
    }
}

#[test]
fn leaders_stay_while_the_pattern_does() {
    // One change is allowed in as many accesses as 20 capacities.
    const CAPACITIES: u64 = 60;
    for capacity in [1000, 4096, 4097] {
        let mut random = AdaptiveRandom(13);
        let kinds: [(&str, &mut dyn FnMut(u64) -> u64); 3] = [
            ("skewed", &mut |_| random.zipf(5 * capacity)),
            ("loop", &mut |step| step % (capacity * 3 / 2)),
            ("nested loops", &mut |step| match step % capacity < capacity / 2 {
                true => step % (capacity / 16),
                false => 1_000_000 + step / 2 % (2 * capacity),
            }),
        ];
        for (name, next) in kinds {
            let (_, changes) = large(capacity, (0..CAPACITIES * capacity).map(next));
            assert!(changes.len() as u64 <= CAPACITIES / 20, "{name} at {capacity}: {changes:?}");
        }
    }
}

/// Accesses an id, and asserts that the answer agrees with the resident ids.
fn check(adaptive: &mut Adaptive, resident: &mut std::collections::HashSet<u64>, id: u64, stream: u32) {
    let access = adaptive.reference(id, 1, StreamId(stream), &mut |victim| resident.remove(&victim));
    assert_eq!(access == AccessResult::Hit, resident.contains(&id), "{id}");
    if access == AccessResult::Inserted {
        resident.insert(id);
    }
    assert_eq!(adaptive.len(), resident.len());
    assert!(adaptive.used() <= adaptive.capacity());
}

#[test]
fn grown_cache_keeps_contents() {
    let mut adaptive = Adaptive::new(100);
    let mut resident = std::collections::HashSet::new();
    (0..300).for_each(|id| check(&mut adaptive, &mut resident, id % 150, 0));
    for capacity in [2 << 20, 40_000, 1000] {
        adaptive.set_capacity(capacity, &mut |victim| resident.remove(&victim));
        assert_eq!((adaptive.len(), adaptive.shift), (resident.len(), shift_of(capacity, &AdaptiveTuning::default())));
        assert!(resident.iter().all(|id| adaptive.contains(*id)) && resident.len() >= 100);
        (0..3000).for_each(|id| check(&mut adaptive, &mut resident, id * 1_000_003 % 20_000, 0));
    }
}

#[test]
fn capacity_changes_at_any_time() {
    let mut random = AdaptiveRandom(11);
    for start in [0, 10, 20_000] {
        let mut adaptive = Adaptive::new(start);
        let mut resident = std::collections::HashSet::new();
        for step in 0..60_000_u64 {
            if step % 5000 == 0 {
                let capacity = [start, 100, 30_000, 1, 500][step as usize / 5000 % 5];
                adaptive.set_capacity(capacity, &mut |victim| resident.remove(&victim));
            }
            let id = random.zipf(20_000);
            check(&mut adaptive, &mut resident, id, (id % 20) as u32);
            if step % 77 == 0 {
                assert_eq!(adaptive.remove(id), resident.remove(&id));
            }
        }
    }
}

/// All of a grown capacity is used, and a shrunk capacity is not exceeded.
#[test]
fn changed_capacity_is_kept() {
    let mut random = AdaptiveRandom(17);
    for start in [200_u64, 3000, 10_000] {
        let (mut adaptive, mut resident) = (Adaptive::new(start), std::collections::HashSet::new());
        for capacity in [start, 2 * start, start / 2, 4 * start, start] {
            adaptive.set_capacity(capacity, &mut |victim| resident.remove(&victim));
            for step in 0..12 * capacity {
                match step % 2 {
                    0 => check(&mut adaptive, &mut resident, 1_000_000 + step / 2 % capacity, 1),
                    _ => check(&mut adaptive, &mut resident, step / 16 + random.next() % capacity, 2),
                }
            }
            assert!(adaptive.used() * 10 >= capacity * 9, "{} of {capacity} used, begun with {start}", adaptive.used());
        }
    }
}

#[test]
fn single_candidate_evicts_alike() {
    for (name, candidates) in
        [("lirs", &["lirs"]), ("lru", &["lru"]), ("s3fifo", &["s3fifo"]), ("wtinylfu", &["wtinylfu"])]
    {
        for capacity in [50, 5000] {
            let mut random = AdaptiveRandom(capacity + 1);
            let tuning = AdaptiveTuning { candidates, candidates_sampled: candidates, ..AdaptiveTuning::default() };
            let mut adaptive = Adaptive::with(capacity, tuning);
            let mut policy = by_name(name, capacity).expect("registered");
            for step in 0..20 * capacity {
                let id = if step % 3 == 0 { step / 3 % (2 * capacity) } else { 1_000_000 + random.zipf(4 * capacity) };
                let (mut own, mut expected) = (Vec::new(), Vec::new());
                let access = adaptive.reference(id, 1, StreamId(0), &mut |victim| {
                    own.push(victim);
                    true
                });
                let as_policy = policy.reference(id, 1, StreamId(0), &mut |victim| {
                    expected.push(victim);
                    true
                });
                assert_eq!((access, own), (as_policy, expected), "{name} of {capacity} at {step}");
            }
        }
    }
}
