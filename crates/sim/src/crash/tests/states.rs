//! The images of small recordings that can be checked by hand.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use nectary_block::{RecordedEvent, Recording};
use xxhash_rust::xxh3::xxh3_64;

use crate::crash::{CrashModel, CrashOptions, CrashStates};
use crate::random::SimulationRandom;

const BLOCK: usize = 4096;
const BLOCKS: usize = 8;

fn write(id: u64, block: u64, value: u8) -> RecordedEvent {
    RecordedEvent::WriteBegun { id, offset: block * BLOCK as u64, data: Bytes::from(vec![value; BLOCK]), fua: false }
}

fn end(id: u64) -> RecordedEvent {
    RecordedEvent::Completed { id, succeeded: true }
}

fn recording(events: Vec<RecordedEvent>) -> Recording {
    Recording { size_bytes: (BLOCK * BLOCKS) as u64, block_bytes: BLOCK as u32, events }
}

fn states(events: Vec<RecordedEvent>, model: CrashModel) -> CrashStates {
    let options = CrashOptions { max_per_epoch: 10_000, models: vec![model], ..CrashOptions::default() };
    CrashStates::new(vec![0; BLOCK * BLOCKS], &recording(events), options)
}

/// The first bytes of the first three blocks in untorn states whose last mark is `mark`.
fn heads(events: &[RecordedEvent], model: CrashModel, mark: Option<u64>) -> BTreeSet<[u8; 3]> {
    let mut heads = BTreeSet::new();
    for state in states(events.to_vec(), model).filter(|state| state.last_mark() == mark) {
        let image = state.image();
        let is_whole = image.chunks(BLOCK).all(|block| block.iter().all(|byte| *byte == block[0]));
        if is_whole {
            heads.insert([image[0], image[BLOCK], image[2 * BLOCK]]);
        }
    }
    heads
}

#[test]
fn unflushed_writes_survive_in_combinations() {
    let events = [write(0, 0, 1), end(0), write(1, 1, 2), end(1), write(2, 2, 3), end(2), RecordedEvent::Mark(1)];
    let all: BTreeSet<[u8; 3]> = (0..8u8).map(|bits| [bits & 1, (bits >> 1 & 1) * 2, (bits >> 2 & 1) * 3]).collect();
    assert_eq!(heads(&events, CrashModel::Power, Some(1)), all);
    assert_eq!(heads(&events, CrashModel::Process, Some(1)), BTreeSet::from([[1, 2, 3]]));
}

/// A write that had not ended when the flush was called may be lost.
#[test]
fn flush_covers_only_ended_writes() {
    let events = [
        write(0, 0, 1),
        end(0),
        write(1, 1, 2),
        RecordedEvent::FlushBegun { id: 2 },
        end(1),
        RecordedEvent::Mark(1),
        end(2),
        RecordedEvent::Mark(2),
    ];
    assert_eq!(heads(&events, CrashModel::Power, Some(2)), BTreeSet::from([[1, 0, 0], [1, 2, 0]]));
    assert!(heads(&events, CrashModel::Power, Some(1)).contains(&[0, 0, 0]));
    assert_eq!(heads(&events, CrashModel::Process, Some(1)), BTreeSet::from([[1, 2, 0]]));
}

/// A forced write survives a loss of power from its end on, and older writes do not hide it.
#[test]
fn ended_forced_write_is_certain() {
    let forced = RecordedEvent::WriteBegun { id: 1, offset: 0, data: Bytes::from(vec![2; BLOCK]), fua: true };
    let events =
        [write(0, 0, 1), end(0), forced, end(1), RecordedEvent::Mark(1), RecordedEvent::FlushBegun { id: 2 }, end(2)];
    let events = [&events[..], &[RecordedEvent::Mark(2)]].concat();
    assert_eq!(heads(&events, CrashModel::Power, Some(1)), BTreeSet::from([[2, 0, 0]]));
    assert_eq!(heads(&events, CrashModel::Power, Some(2)), BTreeSet::from([[2, 0, 0]]));
}

#[test]
fn flush_leaves_failed_writes_uncertain() {
    let failed = RecordedEvent::Completed { id: 0, succeeded: false };
    let events = [write(0, 0, 1), failed, RecordedEvent::FlushBegun { id: 1 }, end(1), RecordedEvent::Mark(1)];
    assert_eq!(heads(&events, CrashModel::Power, Some(1)), BTreeSet::from([[0, 0, 0], [1, 0, 0]]));
    assert_eq!(heads(&events, CrashModel::Process, Some(1)), BTreeSet::from([[0, 0, 0], [1, 0, 0]]));
}

#[test]
fn zeroes_discards_and_growth_take_part() {
    let zeroes = RecordedEvent::ZeroesBegun { id: 3, offset: 0, length: BLOCK as u64 };
    let discard = RecordedEvent::DiscardBegun { id: 4, offset: BLOCK as u64, length: BLOCK as u64 };
    let grow = RecordedEvent::GrowBegun { id: 5, size_bytes: (2 * BLOCK * BLOCKS) as u64 };
    let events = vec![
        write(0, 0, 1),
        write(1, 1, 2),
        end(0),
        end(1),
        RecordedEvent::FlushBegun { id: 2 },
        end(2),
        zeroes,
        end(3),
        discard,
        end(4),
        grow,
        end(5),
        write(6, BLOCKS as u64, 9),
        end(6),
        RecordedEvent::Mark(1),
    ];
    let heads = heads(&events, CrashModel::Power, Some(1));
    assert_eq!(heads, BTreeSet::from([[1, 2, 0], [0, 2, 0], [1, 0, 0], [0, 0, 0]]));
    let sizes: BTreeSet<usize> = states(events, CrashModel::Power).map(|state| state.image().len()).collect();
    assert_eq!(sizes, BTreeSet::from([BLOCK * BLOCKS, 2 * BLOCK * BLOCKS]));
}

#[test]
fn torn_writes_are_torn_at_sectors() {
    let events = vec![write(0, 0, 1), RecordedEvent::Mark(1)];
    let mut patterns = BTreeSet::new();
    for state in states(events, CrashModel::Power).filter(|state| state.last_mark() == Some(1)) {
        let image = state.image();
        for sector in image.chunks(512) {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "{}", state.description);
        }
        patterns.insert(image[..BLOCK].chunks(512).map(|sector| sector[0]).collect::<Vec<_>>());
    }
    assert!(patterns.contains(&vec![1, 0, 0, 0, 0, 0, 0, 0]) && patterns.contains(&vec![0, 1, 1, 1, 1, 1, 1, 1]));
    assert!(patterns.len() > 6, "{patterns:?}");
}

/// A random recording with writes in flight, flushes, marks and losses.
fn random_recording(seed: u64) -> Recording {
    let mut random = SimulationRandom::new(seed);
    let (mut events, mut open, mut next) = (Vec::new(), Vec::new(), 0);
    for _ in 0..60 {
        match random.below(6) {
            0..=2 => {
                let block = random.below(BLOCKS as u64 - 1);
                let data = vec![1 + random.below(250) as u8; BLOCK * (1 + random.below(2) as usize)];
                let fua = random.chance(10);
                events.push(RecordedEvent::WriteBegun {
                    id: next,
                    offset: block * BLOCK as u64,
                    data: data.into(),
                    fua,
                });
                open.push(next);
                next += 1;
            }
            3 => {
                events.push(RecordedEvent::FlushBegun { id: next });
                open.push(next);
                next += 1;
            }
            4 if !open.is_empty() => {
                let id = open.swap_remove(random.below(open.len() as u64) as usize);
                events.push(RecordedEvent::Completed { id, succeeded: random.chance(95) });
            }
            _ => events.push(RecordedEvent::Mark(events.len() as u64)),
        }
    }
    recording(events)
}

#[test]
fn state_hashes_match_distinct_images() {
    let mut total = 0;
    for seed in 0..40 {
        let mut images: BTreeMap<u64, u64> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        let options = CrashOptions { max_per_epoch: 40, seed, ..CrashOptions::default() };
        for state in CrashStates::new(vec![0; BLOCK * BLOCKS], &random_recording(seed), options) {
            let content = xxh3_64(&state.image());
            assert_eq!(*images.entry(state.hash).or_insert(content), content, "seed {seed}: {}", state.description);
            assert!(seen.insert((content, state.model == CrashModel::Power, state.marks().len())), "seed {seed}");
            total += 1;
        }
        let contents: BTreeSet<u64> = images.values().copied().collect();
        assert_eq!(contents.len(), images.len(), "seed {seed}: equal images have equal hashes");
    }
    assert!(total > 2000, "{total}");
}

#[test]
fn sectors_hold_only_allowed_bytes() {
    for seed in 100..140 {
        let recording = random_recording(seed);
        let options = CrashOptions { max_per_epoch: 60, seed, ..CrashOptions::default() };
        for state in CrashStates::new(vec![0; BLOCK * BLOCKS], &recording, options) {
            let allowed = allowed(&recording, state.model, state.point);
            for (sector, bytes) in state.image().chunks(512).enumerate() {
                assert!(allowed[sector / 8].contains(&bytes[0]), "seed {seed}, sector {sector}: {}", state.description);
            }
        }
    }
}

/// The allowed contents of each block, derived independently from the rules: the last certain write to it, or any
/// uncertain one after that.
fn allowed(recording: &Recording, model: CrashModel, point: usize) -> Vec<BTreeSet<u8>> {
    let events = &recording.events[..point];
    let ended = |id: u64| events.iter().position(|event| *event == RecordedEvent::Completed { id, succeeded: true });
    let is_certain = |id: u64, fua: bool| {
        let Some(end) = ended(id) else { return false };
        let flushed = || {
            events.iter().enumerate().any(|(index, event)| match event {
                RecordedEvent::FlushBegun { id } => index > end && ended(*id).is_some(),
                _ => false,
            })
        };
        model == CrashModel::Process || fua || flushed()
    };
    let mut blocks = vec![BTreeSet::from([0u8]); BLOCKS];
    for event in events {
        let RecordedEvent::WriteBegun { id, offset, data, fua } = event else { continue };
        for block in 0..data.len() / BLOCK {
            let values = &mut blocks[*offset as usize / BLOCK + block];
            if is_certain(*id, *fua) {
                values.clear();
            }
            values.insert(data[0]);
        }
    }
    blocks
}

#[test]
fn same_seed_gives_the_same_states() {
    let recording = random_recording(5);
    let run = |seed| {
        let options = CrashOptions { max_per_epoch: 20, seed, ..CrashOptions::default() };
        let states = CrashStates::new(vec![0; BLOCK * BLOCKS], &recording, options);
        states.map(|state| state.description).collect::<Vec<_>>()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn state_count_stays_at_limit() {
    let events: Vec<RecordedEvent> = (0..200).flat_map(|id| [write(id, id % 8, id as u8), end(id)]).collect();
    let options = CrashOptions { max_per_epoch: 50, ..CrashOptions::default() };
    let count = CrashStates::new(vec![0; BLOCK * BLOCKS], &recording(events), options).count();
    assert_eq!(count, 100, "50 for each kind of crash");
}
