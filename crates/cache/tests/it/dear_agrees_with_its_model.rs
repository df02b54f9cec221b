//! Compares DEAR with a model that is as naive as possible, over several streams: the accesses, victims and reports
//! must be the same after any mix of references, refusals, removals and changes of capacity. There are few streams and
//! ghosts, so that their bounds are reached.
//!
//! The environment variable `PROPTEST_RNG_SEED` replays a run; `PROPTEST_CASES` sets the number of cases.

mod model;
mod operations;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::mpsc::channel;

use model::DearModel;
use nectary_cache::dear::DearParameters;
use nectary_cache::detect::{PatternVerdict, PeriodReport};
use nectary_cache::{Dear, Policy, StreamId};
use operations::{DearOperation, operations, parameters};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

fn check(
    capacity: u64,
    parameters: DearParameters,
    operations: &[DearOperation],
) -> Result<Vec<PatternVerdict>, TestCaseError> {
    let mut policy = Dear::with_parameters(capacity, parameters);
    let (sender, receiver) = channel::<(u32, &'static str, PeriodReport)>();
    policy.explain_to(Box::new(move |event| {
        sender.send((event.stream.0, event.replacement, *event.report)).expect("the receiver outlives the policy");
    }));
    let mut model = DearModel::new(capacity, parameters);
    let mut divisor = 0;
    let mut verdicts = Vec::new();
    for operation in operations {
        let (mut victims, mut victims_of_model) = (Vec::new(), Vec::new());
        let keeps = |victims: &mut Vec<u64>, id: u64| {
            victims.push(id);
            divisor == 0 || !id.is_multiple_of(divisor)
        };
        let mut refer = |id, weight, stream| {
            let access = policy.reference(id, weight, StreamId(stream), &mut |id| keeps(&mut victims, id));
            let expected = model.reference(id, weight, stream, &mut |id| keeps(&mut victims_of_model, id));
            (access, expected)
        };
        match *operation {
            DearOperation::Reference { id, weight, stream } => {
                let (access, expected) = refer(id, weight, stream);
                prop_assert_eq!(access, expected);
            }
            DearOperation::Loop { first, blocks, length, stream } => {
                for at in 0..length {
                    let (access, expected) = refer(first + at % blocks, 1, stream);
                    prop_assert_eq!(access, expected);
                }
            }
            DearOperation::Remove { id } => prop_assert_eq!(policy.remove(id), model.remove(id)),
            DearOperation::SetCapacity { capacity } => {
                policy.set_capacity(capacity, &mut |id| keeps(&mut victims, id));
                model.set_capacity(capacity, &mut |id| keeps(&mut victims_of_model, id));
            }
            DearOperation::Pin { divisor: new } => divisor = new,
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
    fn dear_agrees_with_its_model(
        capacity in 1..40_u64, parameters in parameters(), operations in operations()
    ) {
        check(capacity, parameters, &operations)?;
    }
}

/// The generated operations are useful only if they lead to every verdict.
#[test]
fn the_operations_lead_to_every_verdict() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut counts: HashMap<PatternVerdict, usize> = HashMap::new();
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
