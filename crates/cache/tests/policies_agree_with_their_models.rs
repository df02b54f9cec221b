//! Every policy against a reference implementation that is as naive as possible: the same victims, accesses and sums
//! after any mix of references, refusals, removals and changes of capacity.
//!
//! `PROPTEST_RNG_SEED` replays a run, `PROPTEST_CASES` lengthens it.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

use nectary_cache::{Access, NAMES, REFUSALS_MAX, Stream, by_name};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// An id, its weight and its hits.
type Item = (u64, u64, u8);

/// What a model must answer; queues are newest first.
trait Model {
    fn reference(&mut self, id: u64, weight: u64, evict: &mut dyn FnMut(u64) -> bool) -> Access;
    fn remove(&mut self, id: u64) -> bool;
    fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool);
    fn resident(&self) -> Vec<Item>;
}

fn weight_of(queue: &VecDeque<Item>) -> u64 {
    queue.iter().map(|item| item.1).sum()
}

fn take(queue: &mut VecDeque<Item>, id: u64) -> Option<Item> {
    let position = queue.iter().position(|item| item.0 == id)?;
    queue.remove(position)
}

struct LruModel {
    capacity: u64,
    queue: VecDeque<Item>,
}

impl LruModel {
    fn shrink(&mut self, room: u64, mut refusals_left: usize, evict: &mut dyn FnMut(u64) -> bool) -> bool {
        while weight_of(&self.queue) + room > self.capacity {
            let Some(item) = self.queue.pop_back() else { return false };
            if !evict(item.0) {
                self.queue.push_front(item);
                refusals_left -= 1;
                if refusals_left == 0 {
                    return false;
                }
            }
        }
        true
    }
}

impl Model for LruModel {
    fn reference(&mut self, id: u64, weight: u64, evict: &mut dyn FnMut(u64) -> bool) -> Access {
        if let Some(item) = take(&mut self.queue, id) {
            self.queue.push_front(item);
            return Access::Hit;
        }
        if weight > self.capacity || !self.shrink(weight, REFUSALS_MAX, evict) {
            return Access::Bypassed;
        }
        self.queue.push_front((id, weight, 0));
        Access::Inserted
    }

    fn remove(&mut self, id: u64) -> bool {
        take(&mut self.queue, id).is_some()
    }

    fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        self.capacity = capacity;
        self.shrink(0, self.queue.len(), evict);
    }

    fn resident(&self) -> Vec<Item> {
        self.queue.iter().copied().collect()
    }
}

struct S3FifoModel {
    capacity: u64,
    was_full: bool,
    small: VecDeque<Item>,
    main: VecDeque<Item>,
    ghost: VecDeque<Item>,
}

impl S3FifoModel {
    fn shrink(&mut self, room: u64, refusals_max: usize, evict: &mut dyn FnMut(u64) -> bool) -> bool {
        let mut refusals = 0;
        while weight_of(&self.small) + weight_of(&self.main) + room > self.capacity {
            self.was_full = true;
            let small_turn = (weight_of(&self.small) >= self.capacity / 10) != (refusals % 2 == 1);
            let mut refused = false;
            if !self.small.is_empty() && (small_turn || self.main.is_empty()) {
                while let Some((id, weight, hits)) = self.small.pop_back() {
                    if hits > 1 {
                        self.main.push_front((id, weight, 0));
                    } else if evict(id) {
                        self.ghost.push_front((id, weight, 0));
                        self.trim();
                        break;
                    } else {
                        self.main.push_front((id, weight, 0));
                        refused = true;
                        break;
                    }
                }
            } else {
                let Some((id, weight, hits)) = self.main.pop_back() else { return false };
                if hits > 0 {
                    self.main.push_front((id, weight, hits - 1));
                } else if !evict(id) {
                    self.main.push_front((id, weight, 0));
                    refused = true;
                }
            }
            if refused {
                refusals += 1;
                if refusals == refusals_max {
                    return false;
                }
            }
        }
        true
    }

    fn trim(&mut self) {
        while weight_of(&self.ghost) > self.capacity * 9 / 10 {
            self.ghost.pop_back();
        }
    }
}

impl Model for S3FifoModel {
    fn reference(&mut self, id: u64, weight: u64, evict: &mut dyn FnMut(u64) -> bool) -> Access {
        if let Some(item) = self.small.iter_mut().chain(&mut self.main).find(|item| item.0 == id) {
            item.2 = (item.2 + 1).min(3);
            return Access::Hit;
        }
        if weight > self.capacity {
            return Access::Bypassed;
        }
        let was_ghost = take(&mut self.ghost, id).is_some();
        if !self.shrink(weight, REFUSALS_MAX, evict) {
            return Access::Bypassed;
        }
        let filling = !self.was_full && weight_of(&self.small) >= self.capacity / 10;
        if was_ghost || filling { &mut self.main } else { &mut self.small }.push_front((id, weight, 0));
        Access::Inserted
    }

    fn remove(&mut self, id: u64) -> bool {
        take(&mut self.ghost, id);
        take(&mut self.small, id).is_some() || take(&mut self.main, id).is_some()
    }

    fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        self.capacity = capacity;
        self.shrink(0, 8 * self.resident().len(), evict);
        self.trim();
    }

    fn resident(&self) -> Vec<Item> {
        self.small.iter().chain(&self.main).copied().collect()
    }
}

fn model_of(name: &str, capacity: u64) -> Box<dyn Model> {
    match name {
        "lru" => Box::new(LruModel { capacity, queue: VecDeque::new() }),
        "s3fifo" => Box::new(S3FifoModel {
            capacity,
            was_full: false,
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghost: VecDeque::new(),
        }),
        other => panic!("{other} has no model here: write one"),
    }
}

#[derive(Debug, Clone)]
enum Operation {
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
    /// From now on ids divisible by this are refused as victims; 0 refuses none.
    Pin {
        divisor: u64,
    },
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let id = prop_oneof![3 => 0..12_u64, 1 => 0..200_u64];
    let operation = prop_oneof![
        40 => (id.clone(), 1..12_u64).prop_map(|(id, weight)| Operation::Reference { id, weight }),
        3 => id.prop_map(|id| Operation::Remove { id }),
        1 => (0..120_u64).prop_map(|capacity| Operation::SetCapacity { capacity }),
        1 => (0..4_u64).prop_map(|divisor| Operation::Pin { divisor }),
    ];
    proptest::collection::vec(operation, 1..600)
}

fn check(name: &str, capacity: u64, operations: &[Operation]) -> Result<(), TestCaseError> {
    let mut policy = by_name(name, capacity).expect("known");
    let mut model = model_of(name, capacity);
    let mut divisor = 0;
    let mut capacity = capacity;
    for operation in operations {
        let (mut victims, mut victims_of_model) = (Vec::new(), Vec::new());
        let keeps = |victims: &mut Vec<(u64, bool)>, id: u64| {
            let gives_up = divisor == 0 || !id.is_multiple_of(divisor);
            victims.push((id, gives_up));
            gives_up
        };
        let used_before = policy.used();
        match *operation {
            Operation::Reference { id, weight } => {
                let was_resident = policy.contains(id);
                let access = policy.reference(id, weight, Stream(0), &mut |id| keeps(&mut victims, id));
                let expected = model.reference(id, weight, &mut |id| keeps(&mut victims_of_model, id));
                prop_assert_eq!(access, expected);
                prop_assert_eq!(was_resident, access == Access::Hit);
                prop_assert_eq!(policy.contains(id), access != Access::Bypassed);
                prop_assert!(victims.iter().filter(|victim| !victim.1).count() <= REFUSALS_MAX);
            }
            Operation::Remove { id } => {
                prop_assert_eq!(policy.remove(id), model.remove(id));
                prop_assert!(!policy.contains(id));
            }
            Operation::SetCapacity { capacity: new } => {
                capacity = new;
                policy.set_capacity(new, &mut |id| keeps(&mut victims, id));
                model.set_capacity(new, &mut |id| keeps(&mut victims_of_model, id));
            }
            Operation::Pin { divisor: new } => divisor = new,
        }
        prop_assert_eq!(&victims, &victims_of_model);
        prop_assert!(victims.iter().all(|&(id, gives_up)| policy.contains(id) != gives_up));
        let resident = model.resident();
        prop_assert_eq!(policy.len(), resident.len());
        prop_assert_eq!(policy.used(), resident.iter().map(|item| item.1).sum::<u64>());
        prop_assert!(resident.iter().all(|item| policy.contains(item.0)));
        prop_assert_eq!(policy.capacity(), capacity);
        let refused = victims.iter().any(|victim| !victim.1);
        prop_assert!(policy.used() <= capacity || refused || policy.used() <= used_before);
    }
    Ok(())
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
    fn policies_agree_with_their_models(capacity in 1..120_u64, operations in operations()) {
        for name in ["lru", "s3fifo"] {
            check(name, capacity, &operations)?;
        }
    }
}

/// What was offered and refused without end must not loop: every policy gives up at the named bound.
#[test]
fn a_cache_of_pinned_ids_is_bypassed_at_the_bound_of_refusals() {
    for name in NAMES {
        let mut policy = by_name(name, 1000).expect("known");
        for id in 0..1000 {
            policy.reference(id, 1, Stream(0), &mut |_| true);
        }
        let mut offered = 0;
        let access = policy.reference(5000, 1, Stream(0), &mut |_| {
            offered += 1;
            false
        });
        assert_eq!((access, offered, policy.len()), (Access::Bypassed, REFUSALS_MAX, 1000), "{name}");
        let mut left = REFUSALS_MAX - 1;
        let access = policy.reference(5000, 1, Stream(0), &mut |_| {
            let gives_up = left == 0;
            left = left.saturating_sub(1);
            gives_up
        });
        assert_eq!(access, Access::Inserted, "{name}: one refusal less than the bound");
    }
}

/// An id of weight 0 counts as 1, so that a capacity bounds how many there are.
#[test]
fn weightless_ids_are_bounded_in_number() {
    for name in NAMES {
        let mut policy = by_name(name, 10).expect("known");
        for id in 0..1000 {
            policy.reference(id, 0, Stream(0), &mut |_| true);
        }
        assert_eq!((policy.len(), policy.used()), (10, 10), "{name}");
    }
}
