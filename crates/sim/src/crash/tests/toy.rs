//! A log in thirty lines, correct and with four bugs: the states must find each bug, and nothing in the correct log.
//!
//! The log consists of records of one block each: magic, sequence, key, value, checksum. A mark is a promise: once a
//! put is written, it survives crashes of the process, and after a sync also losses of power.

use std::sync::Arc;

use nectary_block::{Buffer, IoContext, MemoryDevice, Recorder, Recording, SharedDevice, read, write};
use xxhash_rust::xxh3::xxh3_64;

use crate::crash::{CrashModel, CrashOptions, CrashState, CrashStates};
use crate::random::SimulationRandom;

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 64;
/// Marks at or above this promise that everything up to a sequence is synced; lower marks promise that a sequence is
/// written.
const SYNCED: u64 = 1 << 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ToyLogBug {
    None,
    /// A sync forgets to flush.
    FlushDropped,
    /// Recovery accepts a record without checking its checksum.
    ChecksumSkipped,
    /// A sync is promised before the flush ends.
    PromisedEarly,
    /// A put is promised before it is written.
    WrittenEarly,
}

struct ToyLog {
    device: SharedDevice,
    recorder: Recorder,
    bug: ToyLogBug,
    sequence: u64,
}

impl ToyLog {
    async fn put(&mut self, value: u64) {
        self.sequence += 1;
        let mut block = Buffer::zeroed(BLOCK as usize);
        block[..8].copy_from_slice(b"TOYRECOR");
        block[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        // The value fills the block, so that a torn record is noticed.
        for place in block[16..4088].chunks_exact_mut(8) {
            place.copy_from_slice(&value.to_le_bytes());
        }
        let sum = xxh3_64(&block[..4088]);
        block[4088..].copy_from_slice(&sum.to_le_bytes());
        let written = write(&*self.device, (self.sequence - 1) * BLOCK, block);
        if self.bug == ToyLogBug::WrittenEarly {
            self.recorder.mark(self.sequence);
        }
        written.await.unwrap();
        self.recorder.mark(self.sequence);
    }

    async fn sync(&mut self) {
        if self.bug == ToyLogBug::PromisedEarly {
            self.recorder.mark(SYNCED + self.sequence);
        }
        if self.bug != ToyLogBug::FlushDropped {
            self.device.flush(IoContext::default()).await.unwrap();
        }
        self.recorder.mark(SYNCED + self.sequence);
    }
}

fn value(seed: u64, sequence: u64) -> u64 {
    SimulationRandom::new(seed ^ sequence << 8).bits() | 1
}

async fn workload(seed: u64, bug: ToyLogBug) -> Recording {
    let recorder = Recorder::new();
    let device = recorder.wrap(Arc::new(MemoryDevice::new(BLOCK * BLOCKS)));
    let mut log = ToyLog { device, recorder: recorder.clone(), bug, sequence: 0 };
    let mut random = SimulationRandom::new(seed);
    for sequence in 1..=12 {
        log.put(value(seed, sequence)).await;
        if random.chance(25) {
            log.sync().await;
        }
    }
    recorder.take()
}

/// Reads the log up to the first invalid record; returns the values of the records.
async fn recover(device: &MemoryDevice, bug: ToyLogBug) -> Vec<u64> {
    let mut values = Vec::new();
    for index in 0..BLOCKS {
        let block = read(device, index * BLOCK, BLOCK as usize).await.unwrap();
        let number = |from: usize| u64::from_le_bytes(block[from..from + 8].try_into().unwrap());
        let is_sound = number(4088) == xxh3_64(&block[..4088]) || bug == ToyLogBug::ChecksumSkipped;
        if &block[..8] != b"TOYRECOR" || number(8) != index + 1 || !is_sound {
            break;
        }
        // All positions have the same value unless the record is torn.
        let is_torn = block[16..4088].chunks_exact(8).any(|place| place != &block[16..24]);
        values.push(if is_torn { 0 } else { number(16) });
    }
    values
}

/// Checks a state; an error describes the broken promise.
async fn check(seed: u64, bug: ToyLogBug, state: &CrashState) -> Result<(), String> {
    let values = recover(&state.device(), bug).await;
    let promised = state.marks().iter().filter(|&&mark| state.model == CrashModel::Process || mark >= SYNCED);
    let promised = promised.map(|mark| mark % SYNCED).max().unwrap_or(0);
    if (values.len() as u64) < promised {
        return Err(format!("{} records found, {promised} promised: {}", values.len(), state.description));
    }
    let expected = |index: usize| value(seed, index as u64 + 1);
    match values.iter().enumerate().find(|&(index, &found)| found != expected(index)) {
        Some((index, found)) => Err(format!("record {index} has {found:#x}: {}", state.description)),
        None => Ok(()),
    }
}

/// Tries workloads until one shows a bug; returns the number of states and the error.
async fn search(bug: ToyLogBug) -> (usize, Option<String>) {
    let mut count = 0;
    for seed in 0..20 {
        let recording = workload(seed, bug).await;
        let options = CrashOptions { seed, ..CrashOptions::default() };
        for state in CrashStates::new(vec![0; (BLOCK * BLOCKS) as usize], &recording, options) {
            count += 1;
            if let Err(wrong) = check(seed, bug, &state).await {
                return (count, Some(wrong));
            }
        }
    }
    (count, None)
}

#[tokio::test]
async fn correct_toy_log_keeps_promises() {
    let (count, wrong) = search(ToyLogBug::None).await;
    assert_eq!(wrong, None);
    assert!(count > 2000, "{count}");
}

#[tokio::test]
async fn every_planted_bug_is_found() {
    for bug in [ToyLogBug::FlushDropped, ToyLogBug::ChecksumSkipped, ToyLogBug::PromisedEarly, ToyLogBug::WrittenEarly]
    {
        let (count, wrong) = search(bug).await;
        assert!(wrong.is_some(), "{bug:?} survived {count} states");
    }
}
