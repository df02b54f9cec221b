//! Compares every policy with a reference implementation that is as naive as possible: the victims, accesses and sums
//! must be the same after any mix of references, refusals, removals and changes of capacity.
//!
//! The environment variable `PROPTEST_RNG_SEED` replays a run; `PROPTEST_CASES` sets the number of cases.

use std::hash::{BuildHasher, RandomState};

use crate::models::{self, PolicyModel};
use nectary_cache::{AccessResult, NAMES, Policy, REFUSALS_MAX, StreamId, by_name};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngSeed, TestRunner};

/// The policies that follow streams, and LHD, which chooses among random ids. This file has no models of them.
const MODELLED_ELSEWHERE: &[&str] = &["dear", "adaptive", "lhd"];

#[derive(Debug, Clone)]
enum PolicyOperation {
    Reference {
        id: u64,
        weight: u64,
    },
    Remove {
        id: u64,
    },
    SetCapacity {
        capacity: u64,
    },
    /// From now on ids divisible by `divisor` are refused as victims; a divisor of 0 refuses none.
    Pin {
        divisor: u64,
    },
}

fn operations() -> impl Strategy<Value = Vec<PolicyOperation>> {
    let id = prop_oneof![3 => 0..12_u64, 1 => 0..200_u64];
    let operation = prop_oneof![
        40 => (id.clone(), 1..12_u64).prop_map(|(id, weight)| PolicyOperation::Reference { id, weight }),
        3 => id.prop_map(|id| PolicyOperation::Remove { id }),
        1 => (0..120_u64).prop_map(|capacity| PolicyOperation::SetCapacity { capacity }),
        1 => (0..4_u64).prop_map(|divisor| PolicyOperation::Pin { divisor }),
    ];
    proptest::collection::vec(operation, 1..600)
}

/// Runs `operations` on a policy, and on its model if it has one, and compares the answers.
fn check(
    mut policy: Box<dyn Policy>,
    mut model: Option<Box<dyn PolicyModel>>,
    operations: &[PolicyOperation],
) -> Result<(), TestCaseError> {
    let name = policy.name();
    let mut divisor = 0;
    let mut capacity = policy.capacity();
    for operation in operations {
        let (mut victims, mut victims_of_model) = (Vec::new(), Vec::new());
        let keeps = |victims: &mut Vec<(u64, bool)>, id: u64| {
            let gives_up = divisor == 0 || !id.is_multiple_of(divisor);
            victims.push((id, gives_up));
            gives_up
        };
        let (used_before, count_before) = (policy.used(), policy.len());
        let mut is_resized = false;
        match *operation {
            PolicyOperation::Reference { id, weight } => {
                let was_resident = policy.contains(id);
                // The models ignore streams.
                let stream = StreamId((id % 20) as u32);
                let access = policy.reference(id, weight, stream, &mut |id| keeps(&mut victims, id));
                prop_assert_eq!(was_resident, access == AccessResult::Hit);
                prop_assert_eq!(policy.contains(id), access != AccessResult::Bypassed);
                prop_assert!(victims.iter().filter(|victim| !victim.1).count() <= REFUSALS_MAX);
                if let Some(model) = &mut model {
                    let evict = &mut |id| keeps(&mut victims_of_model, id);
                    prop_assert_eq!(access, models::reference(&mut **model, id, weight, evict), "{}", name);
                }
            }
            PolicyOperation::Remove { id } => {
                let was_resident = policy.contains(id);
                prop_assert_eq!(policy.remove(id), was_resident);
                prop_assert!(!policy.contains(id));
                if let Some(model) = &mut model {
                    prop_assert_eq!(was_resident, model.remove(id), "{}", name);
                }
            }
            PolicyOperation::SetCapacity { capacity: new } => {
                capacity = new;
                is_resized = true;
                policy.set_capacity(new, &mut |id| keeps(&mut victims, id));
                if let Some(model) = &mut model {
                    models::set_capacity(&mut **model, new, &mut |id| keeps(&mut victims_of_model, id));
                }
            }
            PolicyOperation::Pin { divisor: new } => divisor = new,
        }
        prop_assert!(victims.iter().all(|&(id, gives_up)| policy.contains(id) != gives_up));
        let mut given_up: Vec<u64> = victims.iter().filter(|victim| victim.1).map(|victim| victim.0).collect();
        given_up.sort_unstable();
        prop_assert!(given_up.windows(2).all(|pair| pair[0] < pair[1]), "{}: evicted twice", name);
        prop_assert_eq!(policy.capacity(), capacity);
        let refused = victims.iter().any(|victim| !victim.1);
        prop_assert!(policy.used() <= capacity || refused || policy.used() <= used_before);
        if is_resized && policy.used() > capacity {
            let mut offered: Vec<u64> = victims.iter().map(|victim| victim.0).collect();
            offered.sort_unstable();
            offered.dedup();
            prop_assert_eq!(offered.len(), count_before, "{}: not every id was offered", name);
        }
        if let Some(model) = &model {
            prop_assert_eq!(&victims, &victims_of_model, "{}", name);
            let resident = model.resident();
            prop_assert_eq!(policy.len(), resident.len());
            prop_assert_eq!(policy.used(), resident.iter().map(|item| item.1).sum::<u64>());
            prop_assert!(resident.iter().all(|item| policy.contains(item.0)));
        }
    }
    Ok(())
}

/// The configuration of the test, with the requested seed or else a random one; prints the seed.
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
    fn policies_agree_with_their_models(capacity in 1..120_u64, operations in operations()) {
        for name in NAMES.iter().filter(|name| !MODELLED_ELSEWHERE.contains(name)) {
            let model = models::of(name, capacity);
            prop_assert!(model.is_some(), "{}: write a model", name);
            check(by_name(name, capacity).expect("listed"), model, &operations)?;
        }
    }

    #[test]
    fn same_calls_give_same_victims(capacity in 1..120_u64, operations in operations()) {
        for name in NAMES {
            prop_assert_eq!(played(name, capacity, &operations), played(name, capacity, &operations), "{}", name);
        }
    }
}

/// The number of cases is divided by this constant for policies that follow streams, because `adaptive` is slow: it
/// runs dozens of policies for each stream.
const CASES_DIVISOR: u32 = 4;

proptest! {
    #![proptest_config(ProptestConfig { cases: config().cases.div_ceil(CASES_DIVISOR), ..config() })]
    #[test]
    fn stream_policies_keep_common_promises(capacity in 1..120_u64, operations in operations()) {
        for name in MODELLED_ELSEWHERE {
            check(by_name(name, capacity).expect("listed"), None, &operations)?;
        }
    }
}

/// Runs `operations` on a policy. *Returns* the access, the offered victims and the used weight after each operation.
fn played(name: &str, capacity: u64, operations: &[PolicyOperation]) -> Vec<(Option<AccessResult>, Vec<u64>, u64)> {
    let mut policy = by_name(name, capacity).expect("listed");
    let mut answers = Vec::new();
    for operation in operations {
        let (mut victims, mut access) = (Vec::new(), None);
        let mut evict = |id: u64| {
            victims.push(id);
            !id.is_multiple_of(3)
        };
        match *operation {
            PolicyOperation::Reference { id, weight } => {
                access = Some(policy.reference(id, weight, StreamId((id % 2) as u32), &mut evict));
            }
            PolicyOperation::Remove { id } => _ = policy.remove(id),
            PolicyOperation::SetCapacity { capacity } => policy.set_capacity(capacity, &mut evict),
            PolicyOperation::Pin { .. } => {}
        }
        answers.push((access, victims, policy.used()));
    }
    answers
}

/// A comparison that cannot fail proves nothing, so each policy must differ from the model of a similar policy.
#[test]
fn wrong_model_is_detected() {
    let relatives = [
        ("fifo", "clock"),
        ("lru", "fifo"),
        ("mru", "lru"),
        ("clock", "sieve"),
        ("sieve", "clock"),
        ("lfu", "lfu-aged"),
        ("lfu-aged", "lfu"),
        ("2q", "s3fifo"),
        ("arc", "2q"),
        ("lirs", "lru"),
        ("s3fifo", "2q"),
        ("gdsf", "lfu-aged"),
        ("wtinylfu", "s3fifo"),
    ];
    let mut runner = TestRunner::new(config());
    for (name, other) in relatives {
        let is_told_apart = (0..200).any(|_| {
            let operations = operations().new_tree(&mut runner).expect("made").current();
            check(by_name(name, 40).expect("listed"), models::of(other, 40), &operations).is_err()
        });
        assert!(is_told_apart, "{name} passes for {other}");
    }
}

/// Refusals must not cause an endless loop: every policy gives up after [`REFUSALS_MAX`] refusals.
#[test]
fn pinned_cache_is_bypassed() {
    for name in NAMES {
        let mut policy = by_name(name, 1000).expect("known");
        for id in 0..1000 {
            policy.reference(id, 1, StreamId(0), &mut |_| true);
        }
        let mut offered = 0;
        let access = policy.reference(5000, 1, StreamId(0), &mut |_| {
            offered += 1;
            false
        });
        assert_eq!((access, offered, policy.len()), (AccessResult::Bypassed, REFUSALS_MAX, 1000), "{name}");
        let mut left = REFUSALS_MAX - 1;
        let access = policy.reference(5000, 1, StreamId(0), &mut |_| {
            let gives_up = left == 0;
            left = left.saturating_sub(1);
            gives_up
        });
        assert_eq!(access, AccessResult::Inserted, "{name}: one refusal less than the bound");
    }
}

/// A weight of 0 counts as 1, so that a capacity bounds the number of ids.
#[test]
fn weightless_ids_are_bounded_in_number() {
    for name in NAMES {
        let mut policy = by_name(name, 10).expect("known");
        for id in 0..1000 {
            policy.reference(id, 0, StreamId(0), &mut |_| true);
        }
        assert_eq!((policy.len(), policy.used()), (10, 10), "{name}");
    }
}
