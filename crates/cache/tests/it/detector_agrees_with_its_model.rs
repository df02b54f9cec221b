//! Compares the detector with a model that is written from the paper's text and computes everything from the list of
//! references: the verdicts, averages and loop lengths must be the same on any references. Bugs planted in the model
//! show that the comparison can fail.
//!
//! The environment variable `PROPTEST_RNG_SEED` replays a run; `PROPTEST_CASES` sets the number of cases.

use std::hash::{BuildHasher, RandomState};

use crate::naive::{DetectorBug, NaiveDetector};
use nectary_cache::detect::{BlockHistories, Detector, DetectorParameters};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// A series of references of one kind over some blocks.
#[derive(Debug, Clone)]
enum ReferenceStretch {
    Loop {
        first: u64,
        blocks: u64,
        length: usize,
    },
    Scan {
        first: u64,
        length: usize,
    },
    Random {
        references: Vec<u64>,
    },
    /// Squared random numbers make low blocks more frequent.
    Skewed {
        references: Vec<u64>,
    },
}

impl ReferenceStretch {
    fn references(&self) -> Vec<u64> {
        match self {
            ReferenceStretch::Loop { first, blocks, length } => {
                (0..*length as u64).map(|at| first + at % blocks).collect()
            }
            ReferenceStretch::Scan { first, length } => (*first..first + *length as u64).collect(),
            ReferenceStretch::Random { references } => references.clone(),
            ReferenceStretch::Skewed { references } => references.iter().map(|block| block * block / 40).collect(),
        }
    }
}

fn references() -> impl Strategy<Value = Vec<u64>> {
    let stretch = prop_oneof![
        (0..50_u64, 1..60_u64, 1..200_usize).prop_map(|(first, blocks, length)| ReferenceStretch::Loop {
            first,
            blocks,
            length
        }),
        (0..500_u64, 1..80_usize).prop_map(|(first, length)| ReferenceStretch::Scan { first, length }),
        proptest::collection::vec(0..40_u64, 1..120).prop_map(|references| ReferenceStretch::Random { references }),
        proptest::collection::vec(0..40_u64, 1..120).prop_map(|references| ReferenceStretch::Skewed { references }),
    ];
    proptest::collection::vec(stretch, 1..8)
        .prop_map(|stretches| stretches.iter().flat_map(ReferenceStretch::references).collect())
}

fn parameters() -> impl Strategy<Value = DetectorParameters> {
    let tau_min = prop_oneof![Just(0.0), Just(0.2), Just(0.6), Just(1.0)];
    (1..70_u32, 2..8_usize, tau_min).prop_map(|(period, sublists, tau_min)| DetectorParameters {
        period,
        sublists,
        tau_min,
    })
}

/// The reports of the first period in which the detector and the model differ, as text; `None` if they never differ.
fn difference(parameters: DetectorParameters, planted: DetectorBug, references: &[u64]) -> Option<String> {
    let mut fast = Detector::new(parameters);
    let mut known = BlockHistories::new(1 << 20);
    let mut naive = NaiveDetector::new(parameters, planted);
    for &block in references {
        let expected = naive.refer(block, false);
        let found = fast.observe(known.refer(block));
        match (&expected, found) {
            (None, None) => {}
            (Some(expected), Some(found)) if expected.agrees(found) => {}
            _ => return Some(format!("expected {expected:?}, found {found:?}")),
        }
    }
    None
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
    fn the_detector_agrees_with_its_model(parameters in parameters(), references in references()) {
        prop_assert_eq!(difference(parameters, DetectorBug::Nothing, &references), None);
    }
}

/// Loops, skewed references and uniform references in turn, generated from a seed.
fn mixture(seed: u64) -> Vec<u64> {
    let mut state = seed;
    (0..6000_u64)
        .map(|at| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let random = state >> 40;
            match at / 1000 % 3 {
                0 => at % 70,
                1 => (random % 100) * (random % 100) / 100,
                _ => random % 150,
            }
        })
        .collect()
}

#[test]
fn every_planted_bug_is_caught() {
    let parameters = DetectorParameters { period: 50, ..DetectorParameters::default() };
    for seed in 0..3 {
        let references = mixture(seed);
        assert_eq!(difference(parameters, DetectorBug::Nothing, &references), None, "seed {seed}");
        for planted in [
            DetectorBug::ForwardFromReference,
            DetectorBug::AttributesAtEnd,
            DetectorBug::StrictThreshold,
            DetectorBug::TiesNotAveraged,
            DetectorBug::FirstTimeBlocks,
            DetectorBug::ClusteredFirst,
        ] {
            assert!(difference(parameters, planted, &references).is_some(), "{planted:?} is not noticed, seed {seed}");
        }
    }
}
