//! Tests of the parts: choice, verdicts, windows, curves, streams, and the change of policy.

use super::super::candidate::candidate;
use super::super::choice::Choice;
use super::super::curve::Curve;
use super::super::live::Live;
use super::super::tuning::Tuning;
use super::super::streams::{STREAMS_MAX, Streams};
use super::super::verdict::Detection;
use super::super::window::Window;
use crate::detect::Verdict;
use crate::{Access, Policy, Stream, by_name};

/// The length of the windows of small caches.
const WINDOW: u64 = 4096;

/// Belady's MIN with bypassing as naively as can be, begun with `contents`.
fn naive(mut contents: Vec<u64>, ids: &[u64], blocks: usize) -> u64 {
    let mut misses = 0;
    for (place, id) in ids.iter().enumerate() {
        let next = |id: &u64| ids[place + 1..].iter().position(|other| other == id).unwrap_or(usize::MAX);
        if contents.contains(id) {
            continue;
        }
        misses += 1;
        contents.push(*id);
        if contents.len() > blocks {
            let farthest = (0..contents.len()).max_by_key(|position| next(&contents[*position]));
            contents.remove(farthest.expect("not empty"));
        }
    }
    misses
}

#[test]
fn the_optimum_of_each_window_is_that_of_a_naive_one_from_the_same_contents() {
    for (blocks, name, seed) in [(7, "lru", 1), (40, "lirs", 2), (150, "lru", 3)] {
        let (mut policy, mut window) = (by_name(name, blocks).expect("registered"), Window::default());
        let (mut contents, mut ids, mut random) = (Vec::new(), Vec::new(), 0x9e37_79b9_7f4a_7c15_u64 >> seed);
        let mut reports = 0;
        for step in 0..3 * WINDOW {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let id = if step % 3 == 0 { step / 3 % 90 } else { random % 200 };
            ids.push(id);
            let is_hit = policy.reference(id, 1, Stream(0), &mut |victim| {
                window.evict(victim);
                true
            }) == Access::Hit;
            if let Some(report) = window.count(id, 1, is_hit, blocks) {
                assert_eq!(report.misses_min, Some(naive(contents, &ids, blocks as usize)), "{name} {step}");
                assert!(report.misses_min <= Some(report.misses));
                contents = (0..200).filter(|id| policy.contains(*id)).collect();
                ids.clear();
                reports += 1;
            }
        }
        assert_eq!(reports, 3);
    }
}

#[test]
fn a_removed_id_is_one_that_no_policy_could_have_kept() {
    let (mut window, mut last) = (Window::default(), None);
    // Resident when the window begins, removed at once: one miss. Then removed once more, and once while it is away.
    window.remove(1);
    for step in 0..WINDOW {
        let is_miss = step == 0 || step == 100;
        last = window.count(1, 1, !is_miss, 10);
        if step == 99 {
            window.remove(1);
        }
    }
    assert_eq!(last.map(|report| (report.misses, report.misses_min)), Some((2, Some(2))));
    window.evict(2);
    window.remove(2);
    for step in 0..WINDOW {
        last = window.count(2, 1, step > 0, 10);
    }
    assert_eq!(last.map(|report| (report.misses, report.misses_min)), Some((1, Some(1))));
}

#[test]
fn a_window_in_which_the_capacity_changed_has_no_distance_and_the_next_one_has() {
    let mut window = Window::default();
    window.resize();
    let mut reports = (0..2 * WINDOW).filter_map(|step| window.count(step % 5, 1, step >= 5, 10));
    assert_eq!(reports.next().map(|report| report.misses_min), Some(None));
    assert_eq!(reports.next().map(|report| report.misses_min), Some(Some(0)));
}

#[test]
fn weights_that_differ_have_no_distance() {
    let mut window = Window::default();
    let mut last = None;
    for step in 0..WINDOW {
        last = window.count(step % 5, 1 + step % 5, false, 10);
    }
    assert_eq!(last.map(|report| (report.misses, report.misses_min)), Some((WINDOW, None)));
}

#[test]
fn a_leader_that_loses_is_replaced_and_the_reason_is_what_was_counted() {
    let mut choice = Choice::new(100, 3, 0, Tuning::default());
    (0..100).for_each(|_| choice.count(0b001, 3));
    assert_eq!((choice.choose(), choice.leader()), (Some((0, 100, 0)), 1));
}

#[test]
fn a_lead_by_chance_is_no_lead() {
    // Both times 40 misses ahead; once the two differed at 40 accesses, once at 5000.
    let leader_after = |vain: u32| {
        let mut choice = Choice::new(10, 2, 0, Tuning::default());
        (0..vain).for_each(|_| choice.count(0b01, 2));
        (0..vain).for_each(|_| choice.count(0b10, 2));
        (0..40).for_each(|_| choice.count(0b01, 2));
        choice.choose();
        choice.leader()
    };
    assert_eq!((leader_after(0), leader_after(2480)), (1, 0));
}

#[test]
fn uniform_random_references_have_a_verdict_in_at_most_a_twentieth_of_periods() {
    for universe in [3000, 2_000_000, 20_000_000] {
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        let (mut periods, mut verdicts) = (0, 0);
        let mut detection = Detection::new();
        for _ in 0..500_000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            if let Some(report) = detection.count(random % universe) {
                periods += 1;
                verdicts += u32::from(report.verdict != Verdict::None);
            }
        }
        assert!(periods == 1000 && verdicts <= 50, "{universe}: {verdicts} of {periods}");
    }
}

#[test]
fn a_scan_is_sequential_in_either_direction() {
    for direction in [1, u64::MAX] {
        let mut detection = Detection::new();
        let verdicts: Vec<Verdict> = (0..5000_u64)
            .filter_map(|step| detection.count(9000_u64.wrapping_add(step.wrapping_mul(direction))))
            .map(|report| report.verdict)
            .collect();
        assert_eq!(verdicts, [Verdict::Sequential; 10]);
    }
}

#[test]
fn a_loop_is_found_in_its_second_round() {
    let mut detection = Detection::new();
    for step in 0..3000_u64 {
        if let Some(report) = detection.count(step % 1200).filter(|_| step >= 1999) {
            assert_eq!(report.verdict, Verdict::Looping, "at {step}");
        }
    }
}

#[test]
fn a_stream_that_ended_gives_its_slot_to_a_new_one_and_its_sums_to_the_shared_ledger() {
    let mut streams = Streams::default();
    let mut access = |streams: &mut Streams, stream: u32| {
        let slot = streams.access(Stream(stream), 1000);
        streams.slots[slot].ledger.count(0, false, false);
        slot
    };
    for stream in 0..STREAMS_MAX as u32 {
        assert_eq!(access(&mut streams, stream), stream as usize);
    }
    assert_eq!(access(&mut streams, 99), STREAMS_MAX - 1, "all others are still there");
    (0..2000).for_each(|_| _ = access(&mut streams, 3));
    assert_eq!((access(&mut streams, 100), streams.forgotten), (0, Some(0)));
    assert_eq!(streams.ledger(Stream(100)).map(|ledger| ledger.references), Some(1));
    let shared = streams.ledger(Stream(0)).map(|ledger| ledger.references);
    assert_eq!(shared, Some(3), "of streams 15, 99 and 0");
}

#[test]
fn a_sampled_curve_is_close_to_the_whole_one() {
    let mut curve = Curve::new(16 << 10, Tuning::default());
    (0..200_000).for_each(|step| curve.count(step % 9000, 1));
    let misses = curve.misses(0.75);
    assert!((misses - 9000.0).abs() < 1500.0, "{misses}");
}

/// A change of policy, where residents are known and where they are not.
fn changed(is_known: bool) -> Live {
    let mut cache = Live::new(candidate("lru", 100), is_known);
    let mut shadow = candidate("lirs", 100);
    for id in (50..100).chain(0..50) {
        cache.reference(id, 1, Stream(0), &mut |_| true);
        shadow.reference(id, 1, Stream(0), &mut |_| true);
    }
    // The shadow cache has seen what the cache has not.
    shadow.reference(500, 1, Stream(0), &mut |_| true);
    cache.change(if is_known { shadow } else { candidate("lirs", 100) });
    cache
}

#[test]
fn a_change_of_policy_loses_nothing_that_is_accessed_and_what_was_not_there_misses() {
    for is_known in [false, true] {
        let mut cache = changed(is_known);
        let mut evicted = Vec::new();
        for id in 0..50 {
            let access = cache.reference(id, 1, Stream(0), &mut |_| panic!("there is room"));
            assert_eq!(access, Access::Hit, "{id} {is_known}");
        }
        for id in 500..550 {
            let access = cache.reference(id, 1, Stream(0), &mut |victim| {
                evicted.push(victim);
                true
            });
            assert_eq!(access, Access::Inserted, "{id} {is_known}");
            assert_eq!((cache.used(), cache.len()), (100, 100));
        }
        assert_eq!((evicted.len(), cache.name()), (50, "lirs"));
        evicted.sort_unstable();
        evicted.dedup();
        assert_eq!(evicted.len(), 50, "nothing leaves twice");
        assert!(evicted.iter().all(|id| !cache.contains(*id)));
    }
}

#[test]
fn pinned_ids_of_the_old_policy_are_bypassed_and_not_lost() {
    let mut cache = Live::new(candidate("lru", 10), false);
    for id in 0..10 {
        cache.reference(id, 1, Stream(0), &mut |_| true);
    }
    cache.change(candidate("s3fifo", 10));
    assert_eq!(cache.reference(20, 1, Stream(0), &mut |_| false), Access::Bypassed);
    assert!((0..10).all(|id| cache.contains(id)) && cache.used() == 10);
}
