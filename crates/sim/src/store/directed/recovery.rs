//! Scenarios of recovery: two or three crashes in a row, and damage between them.

use std::sync::Arc;
use std::time::Duration;

use nectary_block::{MemoryDevice, RecordedEvent, Recorder};
use nectary_store::Store;

use super::image::{BLOCK_BYTES, appends, clear_sector, epoch_of, flip_bit, purge_blocks, take_block};
use super::slow::{DELAY, SlowWriteFilter};
use super::{Verdict, body, expect, found, made, open, options, put, put_synced};
use crate::store::unreadable::ImageAreas;

const STORE_BYTES: u64 = 1 << 20;
const SEGMENT_BYTES: u64 = 32 << 10;
/// The appends of one block that fill a segment.
const APPENDS: u64 = SEGMENT_BYTES / BLOCK_BYTES as u64;
/// An object of this length takes an append of one block, and an object of `TWO_BLOCKS` bytes one of two.
const ONE_BLOCK: usize = 3000;
const TWO_BLOCKS: usize = 4000;
/// The first byte after the superblocks and the states.
const STATES_END: u64 = 4 * BLOCK_BYTES as u64;

/// Puts an object in its own append, and waits until it is written; nothing is flushed.
async fn put_written(store: &Store, name: &str, body: Vec<u8>) {
    put(store, name, body).await;
    written(store).await;
}

/// Waits until everything is written.
async fn written(store: &Store) {
    loop {
        let sequences = store.sequences();
        if sequences.written >= sequences.last {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn device(image: Vec<u8>) -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::from_image(image))
}

/// After both states were lost, what is put counts as newer than what the log has.
pub async fn put_after_lost_states_is_found(seed: u64) -> Verdict {
    let memory = made(STORE_BYTES, None, seed).await;
    for number in 0..4 + seed % 4 {
        let store = open(memory.clone()).await;
        put_synced(&store, &format!("old {number}"), body(number, 300)).await;
        store.close().await.expect("it closes");
    }
    let mut image = memory.image();
    for at in [2 * BLOCK_BYTES, 3 * BLOCK_BYTES] {
        flip_bit(&mut image, at);
    }
    let memory = device(image);
    let store = open(memory.clone()).await;
    put_synced(&store, "new", body(9, 400)).await;
    drop(store);
    let store = open(memory).await;
    expect(found(&store, "new").await.as_deref(), Some(&body(9, 400)), "put after the states were lost")?;
    expect(found(&store, "old 0").await.as_deref(), Some(&body(0, 300)), "put before")
}

/// A crash takes all headers of a segment. The next open gives up what was there, and writes the segment again, except
/// for its last block. Then damage takes the headers again: what was given up stays away.
pub async fn given_up_version_stays_away_without_appends(seed: u64) -> Verdict {
    let memory = made(STORE_BYTES, Some(SEGMENT_BYTES), seed).await;
    let store = open(memory.clone()).await;
    put_synced(&store, "key", body(1, 10)).await;
    let epoch = store.stat().head_epoch;
    for number in 1..APPENDS {
        put_synced(&store, &format!("other {number}"), body(number, ONE_BLOCK)).await;
    }
    for number in 1..APPENDS {
        put_written(&store, &format!("lost {number}"), body(number, ONE_BLOCK)).await;
    }
    // The object is not in the first sector of its append.
    for number in 0..6 {
        put(&store, &format!("beside {number}"), body(number, 300)).await;
    }
    put_written(&store, "key", body(2, 20)).await;
    drop(store);
    let mut image = memory.image();
    let lost = appends(&image, epoch + 1);
    assert_eq!(lost.len() as u64, APPENDS, "one segment");
    lost.iter().for_each(|at| clear_sector(&mut image, *at));

    let memory = device(image);
    let store = open(memory.clone()).await;
    expect(found(&store, "key").await.as_deref(), Some(&body(1, 10)), "after the crash")?;
    for number in 1..APPENDS {
        put_written(&store, &format!("new {number}"), body(number, ONE_BLOCK)).await;
    }
    put_synced(&store, "long", body(3, TWO_BLOCKS)).await;
    drop(store);
    let mut image = memory.image();
    let last = appends(&image, epoch + 1);
    assert_eq!(last.len() as u64, APPENDS - 1, "all but the last block are written again");
    last.iter().for_each(|at| flip_bit(&mut image, *at));
    let store = open(device(image)).await;
    expect(found(&store, "key").await.as_deref(), Some(&body(1, 10)), "after the damage")?;
    expect(found(&store, "new 1").await.as_deref(), Some(&body(1, ONE_BLOCK)), "in the damage, and flushed")?;
    expect(found(&store, "long").await.as_deref(), Some(&body(3, TWO_BLOCKS)), "behind the damage")
}

/// A crash tears the first append that overwrites the oldest segment: its second block lands on a newer version of a
/// key, and its first block does not land on the older version.
pub async fn replaced_version_stays_away_in_torn_tail(seed: u64) -> Verdict {
    let memory = made(STORE_BYTES, Some(SEGMENT_BYTES), seed).await;
    let store = open(memory.clone()).await;
    let (oldest, count) = (store.stat().head_epoch, store.stat().segment_count);
    put_synced(&store, "key", body(1, 10)).await;
    put_synced(&store, "key", body(2, 20)).await;
    for number in 2..APPENDS * count {
        put_synced(&store, &format!("other {number}"), body(number, ONE_BLOCK)).await;
    }
    assert_eq!(store.stat().head_epoch, oldest + count - 1, "the ring is full");
    let mut torn = memory.image();
    put_synced(&store, "long", body(3, TWO_BLOCKS)).await;
    assert_eq!(store.stat().head_epoch, oldest + count, "the oldest segment is overwritten");
    drop(store);
    let first = appends(&torn, oldest)[0];
    take_block(&mut torn, &memory.image(), first + BLOCK_BYTES);
    let store = open(device(torn)).await;
    match found(&store, "key").await {
        Some(bytes) if bytes == body(1, 10) => Err("a version came back whose successor was overwritten".into()),
        _ => Ok(()),
    }
}

/// A crash interrupts a new cycle of the purge log: only its fourth block is there. Later cycles are whole.
pub async fn interrupted_compaction_purges_nothing_later(seed: u64) -> Verdict {
    let memory = made(16 << 20, None, seed).await;
    let store = open(memory.clone()).await;
    let name = |number: u64| format!("purged {number}");
    for number in 0..340 {
        put(&store, &name(number), body(number, 100)).await;
    }
    store.sync().await.expect("it syncs");
    let cycle_of = |image: &[u8]| purge_blocks(image).into_iter().map(|at| epoch_of(image, at)).max().unwrap_or(0);
    let mut before = None;
    for number in 0..340 {
        let image = (number >= 300).then(|| memory.image());
        store.purge_key(name(number).as_bytes()).await.expect("it is purged");
        if let Some(image) = image.filter(|image| cycle_of(image) < cycle_of(&memory.image())) {
            before = Some(image);
            break;
        }
    }
    let (mut torn, after) = (before.expect("a cycle has room for 32 blocks"), memory.image());
    drop(store);
    let cycle = cycle_of(&after);
    let new: Vec<usize> = purge_blocks(&after).into_iter().filter(|at| epoch_of(&after, *at) == cycle).collect();
    assert!(new.len() >= 10, "four blocks of the snapshot and one more, in two copies");
    for copy in [0, new.len() / 2] {
        take_block(&mut torn, &after, new[copy + 3]);
    }

    let memory = device(torn);
    let store = open(memory.clone()).await;
    store.purge_all().await.expect("everything is purged");
    put_synced(&store, "new", body(9, 400)).await;
    drop(store);
    let store = open(memory).await;
    expect(found(&store, "new").await.as_deref(), Some(&body(9, 400)), "put after everything was purged")
}

/// No open count may be used twice: it is flushed before anything else is written.
pub async fn open_count_is_flushed_first(seed: u64) -> Verdict {
    let memory = made(STORE_BYTES, None, seed).await;
    let recorder = Recorder::new();
    let store = Store::open(recorder.wrap(memory), options(0)).await.expect("it opens");
    put_synced(&store, "key", body(1, 300)).await;
    drop(store);
    let (mut state, mut flush, mut is_flushed) = (None, None, false);
    for event in recorder.take().events {
        match event {
            RecordedEvent::WriteBegun { offset, id, .. } if offset >= STATES_END => {
                return if is_flushed { Ok(()) } else { Err(format!("write {id} before the open count is flushed")) };
            }
            RecordedEvent::WriteBegun { offset, id, .. } if offset >= STATES_END / 2 => state = Some((id, false)),
            RecordedEvent::Completed { id, .. } if state == Some((id, false)) => state = Some((id, true)),
            RecordedEvent::FlushBegun { id } if state.is_some_and(|(_, is_written)| is_written) => flush = Some(id),
            RecordedEvent::Completed { id, succeeded } if flush == Some(id) => is_flushed |= succeeded,
            _ => {}
        }
    }
    Err("nothing is written".into())
}

/// A checkpoint that begins while an append is in flight has what the append holds, or the log behind it has.
pub async fn checkpoint_waits_for_appends_in_flight(seed: u64) -> Verdict {
    let memory = made(STORE_BYTES, None, seed).await;
    let segments = ImageAreas::of(&memory.image()).segments;
    let slow = SlowWriteFilter::over(memory.clone(), segments);
    let store = Store::open(Arc::new(slow.clone()), options(0)).await.expect("it opens");
    slow.set(true);
    put(&store, "key", body(1, 300)).await;
    tokio::time::sleep(DELAY / 2).await;
    store.checkpoint().await.expect("a checkpoint is written");
    store.sync().await.expect("it syncs");
    drop(store);
    let store = open(memory).await;
    expect(found(&store, "key").await.as_deref(), Some(&body(1, 300)), "written while a checkpoint began")
}

/// A crash leaves a version in part, and a whole object behind it. The next open finds the version before, and a second
/// crash interrupts its first checkpoint: the version before is still found.
pub async fn version_before_cut_survives_second_crash(seed: u64) -> Verdict {
    let memory = made(STORE_BYTES, Some(SEGMENT_BYTES), seed).await;
    let store = open(memory.clone()).await;
    put_synced(&store, "key", body(1, 10)).await;
    let torn = body(2, 9000);
    put_written(&store, "key", torn.clone()).await;
    put_written(&store, "behind", body(3, 100)).await;
    drop(store);
    let mut image = memory.image();
    let at = image.windows(64).position(|bytes| bytes == &torn[100..164]).expect("it was written");
    image[at] ^= 1;

    let checkpoints = ImageAreas::of(&image).checkpoints;
    let memory = device(image);
    let slow = SlowWriteFilter::over(memory.clone(), checkpoints[0].start..checkpoints[1].end);
    slow.set(true);
    let store = Store::open(Arc::new(slow), options(0)).await.expect("it opens");
    expect(found(&store, "key").await.as_deref(), Some(&body(1, 10)), "after the first crash")?;
    put_written(&store, "more", body(4, 100)).await;
    store.sync().await.expect("it syncs");
    let image = memory.image();
    drop(store);
    let store = open(device(image)).await;
    expect(found(&store, "key").await.as_deref(), Some(&body(1, 10)), "after the second crash")?;
    expect(found(&store, "more").await.as_deref(), Some(&body(4, 100)), "put between the crashes")
}
