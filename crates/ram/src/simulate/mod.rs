//! Simulates the placement of a network RAM disk: transfers for each written block, by policy and workload.
//!
//! Owns: the runs, their figures, the target. Promises: the same settings give the same figures on every machine.
//! Leaves to others: the placement (`placement/`), the workloads (`workload.rs`), tables (`report.rs`). Steps are only
//! counted: nothing is sent, and no time passes.
//!
//! A run fills the device, writes [`WARM_UP_ROUNDS`] times its size, and only then counts.

mod count;
mod report;
mod workload;

use serde::Serialize;

use crate::placement::{Error, PlacementMemory, PlacementSettings, RedundancyPolicy, StaleRule};

pub use count::TransferCounts;
pub use report::{page, table};
pub use workload::{FILE_BLOCKS_MAX, PlacementWorkload};

use workload::WorkloadOperation;

/// The size of a block. *Units*: bytes.
pub const BLOCK_BYTES: u64 = 4096;
/// How many times the device is overwritten before anything is counted.
pub const WARM_UP_ROUNDS: u32 = 2;
/// The target of `adaptive` for streams of whole files: at most this many times the transfers of the theory.
pub const TARGET_RATIO: f64 = 1.05;

/// The settings of a simulation.
#[derive(Debug, Clone, Serialize)]
pub struct SimulationSettings {
    /// The blocks of the device.
    pub blocks: u32,
    /// The members of a group.
    pub members: u8,
    /// The number of slots beyond the blocks of the device. *Units*: percent.
    pub overflow_percent: u32,
    /// The number of stream caches of `adaptive`.
    pub caches: usize,
    /// The number of blocks of a column of a cache.
    pub column_blocks: u32,
    /// The rule that decides which stream of `adaptive` loses its cache to a new one.
    pub stale: StaleRule,
    /// How many times the device is overwritten while transfers are counted.
    pub rounds: u32,
    /// The largest request of a writer. *Units*: blocks.
    pub request_blocks: u32,
    /// The seed, which decides files, requests and blocks.
    pub seed: u64,
}

impl Default for SimulationSettings {
    /// Returns the settings of a device of 256 MiB over 4 + 1 donors with 10 % overflow.
    fn default() -> SimulationSettings {
        SimulationSettings {
            blocks: 65536,
            members: 4,
            overflow_percent: 10,
            caches: 16,
            column_blocks: 8,
            stale: StaleRule::default(),
            rounds: 4,
            request_blocks: 8,
            seed: 1,
        }
    }
}

/// The figures of one run.
#[derive(Debug, Clone, Serialize)]
pub struct PlacementFigures {
    /// The policy.
    pub policy: RedundancyPolicy,
    /// The workload's name.
    pub workload: String,
    /// The counts.
    pub counts: TransferCounts,
    /// Transfers for each written block, except parity that flushes stored.
    pub transfers: f64,
    /// The transfers for each written block in theory.
    pub theory: f64,
    /// The part of `transfers` that was sent to donors: without the reads of cleaning and of old data and parity.
    pub sent: f64,
    /// Parity blocks that flushes stored, for each written block.
    pub flush_parity: f64,
    /// The target for `transfers`, if there is one.
    pub target: Option<f64>,
    /// The memory that the placement needs.
    pub memory: PlacementMemory,
    /// The size of the client's tables for each block of the device. *Units*: bytes.
    pub table_bytes_a_block: f64,
    /// The number of donor slots for each block of the device.
    pub donor_slots_a_block: f64,
}

impl PlacementFigures {
    /// Whether the run misses its target.
    pub fn is_missed(&self) -> bool {
        self.target.is_some_and(|target| self.transfers > target)
    }
}

/// Simulates one policy with one workload.
///
/// *Errors*: no placement can be made from the settings.
pub fn run(
    settings: &SimulationSettings,
    policy: RedundancyPolicy,
    workload: &PlacementWorkload,
) -> Result<PlacementFigures, Error> {
    let layout = PlacementSettings {
        policy,
        blocks: settings.blocks,
        members: settings.members,
        overflow_percent: settings.overflow_percent,
        streams: settings.caches,
        column_blocks: settings.column_blocks,
        stale: settings.stale,
    };
    let theory = policy.transfers(layout.members);
    let mut placement = layout.open()?;
    let mut source = workload.operations(settings);
    let rounds = u64::from(1 + WARM_UP_ROUNDS + settings.rounds);
    let counted_from = u64::from(1 + WARM_UP_ROUNDS) * u64::from(settings.blocks);
    let mut steps = Vec::new();
    let mut counts = TransferCounts::default();
    let mut written = 0;
    while written < rounds * u64::from(settings.blocks) {
        let operation = source.next(written);
        steps.clear();
        let blocks = match &operation {
            WorkloadOperation::Write(blocks) => {
                placement.write(blocks.clone(), &mut steps)?;
                u64::from(blocks.end - blocks.start)
            }
            WorkloadOperation::Flush => {
                placement.flush(&mut steps);
                0
            }
        };
        if written >= counted_from {
            counts.add(blocks, matches!(operation, WorkloadOperation::Flush), &steps);
        }
        written += blocks;
    }
    let memory = placement.memory();
    let each = |count: u64| count as f64 / counts.written.max(1) as f64;
    let blocks = f64::from(settings.blocks);
    Ok(PlacementFigures {
        policy,
        workload: workload.name(),
        transfers: each(counts.transfers()),
        theory,
        sent: each(counts.transfers() - counts.reads - counts.cleaning_reads),
        flush_parity: each(counts.parity_flush),
        target: (policy == RedundancyPolicy::Adaptive && workload.is_targeted()).then_some(TARGET_RATIO * theory),
        memory,
        table_bytes_a_block: memory.tables_bytes as f64 / blocks,
        donor_slots_a_block: memory.donor_slots as f64 / blocks,
        counts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: u32 = 16384;
    const STREAMS: [usize; 5] = [1, 2, 4, 8, 16];

    /// `adaptive` needs at most 1.05 times the transfers of the theory for 1 to 16 streams.
    #[test]
    fn adaptive_stays_near_theory() {
        for request_blocks in [1, 8] {
            let settings =
                SimulationSettings { blocks: SMALL, rounds: 2, request_blocks, ..SimulationSettings::default() };
            let mut targets = 0;
            for workload in PlacementWorkload::all(&STREAMS) {
                let row = run(&settings, RedundancyPolicy::Adaptive, &workload).expect("settings that work");
                targets += u32::from(row.target.is_some());
                assert!(!row.is_missed(), "{request_blocks} blocks a request, {}: {}", row.workload, row.transfers);
            }
            assert_eq!(targets, 11);
        }
    }

    #[test]
    fn streams_that_mix_miss_the_target() {
        let settings =
            SimulationSettings { blocks: SMALL, rounds: 2, request_blocks: 1, ..SimulationSettings::default() };
        let workload = PlacementWorkload::Files { writers: 8, is_flushed: false };
        let never = SimulationSettings { stale: StaleRule::Never, ..settings.clone() };
        assert!(run(&never, RedundancyPolicy::Adaptive, &workload).expect("settings that work").is_missed());
        let log = run(&settings, RedundancyPolicy::ParityLog, &workload).expect("settings that work");
        assert!(log.sent > 2.0, "{}", log.sent);
    }

    /// A model of greedy cleaning predicts the blocks that donors receive for each random block: 3.5, 2.25 and 1.63.
    #[test]
    fn uniform_overwrites_match_greedy_cleaning() {
        for (overflow_percent, predicted) in [(10, 3.5), (25, 2.25), (50, 1.63)] {
            let settings = SimulationSettings { overflow_percent, rounds: 2, ..SimulationSettings::default() };
            let row =
                run(&settings, RedundancyPolicy::ParityLog, &PlacementWorkload::Uniform).expect("settings that work");
            let ratio = row.sent / predicted;
            assert!((0.98..1.02).contains(&ratio), "{overflow_percent} %: {} for {predicted}", row.sent);
        }
    }

    /// The error says how many groups are needed.
    #[test]
    fn too_little_overflow_is_refused() {
        let settings = SimulationSettings { blocks: 400, ..SimulationSettings::default() };
        let refused = run(&settings, RedundancyPolicy::Adaptive, &PlacementWorkload::Uniform)
            .expect_err("31 groups are needed beyond 100");
        assert_eq!(refused, Error::Overflow { rows: 110, members: 4, blocks: 400, least: 131 });
        let settings = SimulationSettings { members: 1, ..SimulationSettings::default() };
        let refused =
            run(&settings, RedundancyPolicy::None, &PlacementWorkload::Uniform).expect_err("one donor is not enough");
        assert_eq!(refused.to_string(), "donors is 1: give 2 to 16");
    }
}
