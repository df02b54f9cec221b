//! The operations on the policy and its model. They use few streams and blocks, so that all bounds are reached.

use nectary_cache::dear::DearParameters;
use nectary_cache::detect;
use proptest::prelude::*;

/// One operation.
#[derive(Debug, Clone)]
pub enum DearOperation {
    Reference {
        id: u64,
        weight: u64,
        stream: u32,
    },
    /// `length` references to a loop of `blocks` blocks; they are a scan if `length` is at most `blocks`.
    Loop {
        first: u64,
        blocks: u64,
        length: u64,
        stream: u32,
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

/// Any mix of operations.
pub fn operations() -> impl Strategy<Value = Vec<DearOperation>> {
    let id = prop_oneof![3 => 0..12_u64, 1 => 0..100_u64];
    let stream = prop_oneof![4 => Just(0_u32), 2 => Just(1), 1 => 2..6_u32];
    let (blocks, length) = (1..50_u64, 1..60_u64);
    let operation = prop_oneof![
        30 => (id.clone(), 1..4_u64, stream.clone())
            .prop_map(|(id, weight, stream)| DearOperation::Reference { id, weight, stream }),
        6 => (id.clone(), blocks, length, stream)
            .prop_map(|(first, blocks, length, stream)| DearOperation::Loop { first, blocks, length, stream }),
        2 => id.prop_map(|id| DearOperation::Remove { id }),
        1 => (0..40_u64).prop_map(|capacity| DearOperation::SetCapacity { capacity }),
        1 => (0..4_u64).prop_map(|divisor| DearOperation::Pin { divisor }),
    ];
    proptest::collection::vec(operation, 1..150)
}

/// Parameters with short periods, few streams and few ghosts.
pub fn parameters() -> impl Strategy<Value = DearParameters> {
    (3..40_u32, 2..6_usize, 1..4_usize, 0..30_usize).prop_map(|(period, sublists, streams_max, ghosts_min)| {
        DearParameters {
            detection: detect::DetectorParameters { period, sublists, tau_min: 0.6 },
            streams_max,
            ghosts_min,
        }
    })
}
