//! Scenarios of a store that is opened only for reading: it changes nothing, and finds nothing that was purged.

use std::sync::Arc;

use nectary_block::MemoryDevice;
use nectary_store::{OpenOptions, SpanDevice, SpanSet, Store};

use super::image::{clear_sector, purge_blocks};
use super::spans::{self, DirectedDisks, name_on};
use super::{Verdict, body, expect, found, made, open, options, put_synced};

/// A span was put back as it was before purges: a reader finds what it held as little as a writer does.
pub async fn reader_of_older_copy_finds_nothing_purged(seed: u64) -> Verdict {
    let mut disks = DirectedDisks::new(seed);
    let store = disks.write().await;
    let names: Vec<String> = (0..4).map(|number| name_on(&store, 1, seed + 100 * number)).collect();
    for name in &names {
        spans::put(&store, name, body(1, 200)).await;
    }
    let [_, copy] = disks.images();
    for name in &names {
        store.purge_key(name.as_bytes()).await.expect("it is purged");
    }
    drop(store);
    disks.put_back(1, copy);
    let before = disks.images();
    let store = disks.read().await;
    for name in &names {
        expect(spans::found(&store, name).await.as_deref(), None, "purged after the copy was made")?;
    }
    drop(store);
    unchanged(before == disks.images())
}

/// A blank device stays blank.
pub async fn reader_of_blank_device_changes_nothing(_seed: u64) -> Verdict {
    let memory = Arc::new(MemoryDevice::new(4 << 20));
    let before = memory.image();
    let named = SpanDevice { spec: "disk".into(), device: Ok(memory.clone()), size_bytes: 0 };
    drop(SpanSet::open(vec![named], reading(0)).await);
    unchanged(before == memory.image())
}

/// A reader finds the objects of all spans.
pub async fn reader_of_spans_finds_all(seed: u64) -> Verdict {
    let mut disks = DirectedDisks::new(seed);
    let store = disks.write().await;
    let names = [name_on(&store, 0, seed), name_on(&store, 1, seed)];
    for name in &names {
        spans::put(&store, name, body(1, 200)).await;
    }
    drop(store);
    let before = disks.images();
    let store = disks.read().await;
    for name in &names {
        expect(spans::found(&store, name).await.as_deref(), Some(&body(1, 200)), "put before")?;
    }
    drop(store);
    unchanged(before == disks.images())
}

/// Both copies of a block of the purge log are damaged: a reader finds nothing that it may have purged.
pub async fn reader_of_damaged_log_finds_nothing_purged(seed: u64) -> Verdict {
    let memory = made(4 << 20, None, seed).await;
    let store = open(memory.clone()).await;
    put_synced(&store, "purged", body(1, 200)).await;
    store.purge_key(b"purged").await.expect("it is purged");
    // This append says how long the purge log is.
    put_synced(&store, "kept", body(2, 200)).await;
    drop(store);
    let mut image = memory.image();
    let blocks = purge_blocks(&image);
    for at in [blocks[blocks.len() / 2 - 1], blocks[blocks.len() - 1]] {
        clear_sector(&mut image, at);
    }
    let memory = Arc::new(MemoryDevice::from_image(image));
    let before = memory.image();
    let store = Store::open(memory.clone(), reading(1)).await.expect("it opens");
    expect(found(&store, "purged").await.as_deref(), None, "purged in a damaged block")?;
    drop(store);
    unchanged(before == memory.image())
}

fn reading(seed: u64) -> OpenOptions {
    OpenOptions { is_read_only: true, ..options(seed) }
}

fn unchanged(is_same: bool) -> Verdict {
    if is_same { Ok(()) } else { Err("a reader changed its device".into()) }
}
