//! Compares MIN with every possible sequence of decisions, on all traces of a few references.

use nectary_cache::{AccessResult, Min, NextReferences, Policy, StreamId};

/// The fewest possible misses of the trace `ids` if the cache holds `resident` (a set of ids as bits) at its start.
fn fewest(ids: &[u64], resident: u32, capacity: u32, may_bypass: bool) -> usize {
    let Some((&id, rest)) = ids.split_first() else { return 0 };
    if resident >> id & 1 == 1 {
        return fewest(rest, resident, capacity, may_bypass);
    }
    let with = resident | 1 << id;
    let mut best = usize::MAX;
    if resident.count_ones() < capacity {
        best = fewest(rest, with, capacity, may_bypass);
    } else {
        for victim in (0..32).filter(|victim| resident >> victim & 1 == 1) {
            best = best.min(fewest(rest, with & !(1 << victim), capacity, may_bypass));
        }
    }
    if may_bypass {
        best = best.min(fewest(rest, resident, capacity, may_bypass));
    }
    best + 1
}

fn misses(policy: &mut Min, ids: &[u64]) -> usize {
    ids.iter().filter(|&&id| policy.reference(id, 1, StreamId(0), &mut |_| true) != AccessResult::Hit).count()
}

#[test]
fn no_sequence_of_decisions_misses_less() {
    let mut compared = 0;
    for number in 0..4_u64.pow(9) / 3 {
        let ids: Vec<u64> = (0..9).map(|place| number * 3 / 4_u64.pow(place) % 4).collect();
        let future = NextReferences::of(&ids).expect("short");
        let capacity = 1 + (number % 3) as u32;
        let admitting = misses(&mut Min::new(u64::from(capacity), &future), &ids);
        let bypassing = misses(&mut Min::bypassing(u64::from(capacity), &future), &ids);
        assert_eq!(admitting, fewest(&ids, 0, capacity, false), "{ids:?} at {capacity}");
        assert_eq!(bypassing, fewest(&ids, 0, capacity, true), "{ids:?} at {capacity}, bypassing");
        compared += 1;
    }
    println!("{compared} traces compared");
}

/// Refused and removed ids do not change what MIN knows of the future.
#[test]
fn min_ignores_removed_ids() {
    let ids: Vec<u64> = (0..20_000_u64).map(|position| position * position % 101 + position / 1000).collect();
    let mut policy = Min::new(40, &NextReferences::of(&ids).expect("short"));
    let (mut refused, mut used) = (0, 0);
    for (position, &id) in ids.iter().enumerate() {
        let access = policy.reference(id, 1 + id % 3, StreamId(0), &mut |victim| {
            refused += u64::from(victim % 7 == 0);
            victim % 7 != 0
        });
        assert_eq!(policy.contains(id), access != AccessResult::Bypassed);
        if position % 5 == 0 {
            policy.remove(ids[position / 2]);
        }
        if position % 1000 == 0 {
            policy.set_capacity(20 + position as u64 % 30, &mut |_| true);
        }
        used = used.max(policy.used());
        assert!(policy.used() <= policy.capacity());
    }
    assert!(refused > 100 && used > 20, "{refused} refused, {used} used");
}
