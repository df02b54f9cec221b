//! Objects that were in memory at a checkpoint, or were written since, are in memory again soon after a crash. No
//! purged or replaced object reappears this way. A damaged hot list only means that its objects are not in memory.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{body, options, read_all};
use nectary_block::{DelayFilter, DelayOptions, MemoryDevice, SharedDevice, read, write};
use nectary_store::{CreateOptions, KeyRef, OpenOptions, Store, StoreStat};

const STORE_BYTES: u64 = 64 << 20;
const OBJECTS: u64 = 300;
const BODY_BYTES: usize = 2000;

async fn open(device: SharedDevice) -> Store {
    Store::open(device, OpenOptions { warm_up: true, ..options() }).await.unwrap()
}

fn name(number: u64) -> String {
    format!("http://example.invalid/object/{number}")
}

async fn put(store: &Store, number: u64, seed: u64) {
    let name = name(number);
    store.put(KeyRef::new(name.as_bytes(), b""), "metadata".into(), body(seed, BODY_BYTES)).await.unwrap();
}

/// Makes a store whose objects are all in memory and in a checkpoint.
async fn filled() -> (SharedDevice, Store) {
    let device: SharedDevice = Arc::new(MemoryDevice::new(STORE_BYTES));
    Store::create(device.clone(), &CreateOptions::default()).await.unwrap();
    let store = open(device.clone()).await;
    for number in 0..OBJECTS {
        put(&store, number, number).await;
    }
    store.sync().await.unwrap();
    store.checkpoint().await.unwrap();
    (device, store)
}

/// Opens the store again, like a new process, and waits until it has warmed up.
async fn warm(device: SharedDevice, store: Store) -> (Store, StoreStat) {
    drop(store);
    let store = open(device).await;
    nectary_kit::until_async("it is warm", async || !store.stat().warming).await;
    let stat = store.stat();
    (store, stat)
}

fn is_resident(store: &Store, number: u64) -> bool {
    store.get_resident(KeyRef::new(name(number).as_bytes(), b"")).is_some()
}

/// What was in memory or written since is in memory after a crash.
#[tokio::test]
async fn memory_is_warm_after_crash() {
    let (device, store) = filled().await;
    for number in OBJECTS..OBJECTS + 20 {
        put(&store, number, number).await;
    }
    store.sync().await.unwrap();
    let (store, stat) = warm(device, store).await;
    assert_eq!(stat.counts.warmed, OBJECTS + 20, "{stat:?}");
    assert_eq!((stat.counts.hits_disk, stat.counts.hot_chunks_damaged), (0, 0));
    for number in 0..OBJECTS + 20 {
        let name = name(number);
        assert_eq!(read_all(&store, KeyRef::new(name.as_bytes(), b"")).await.unwrap(), body(number, BODY_BYTES));
    }
    assert_eq!(store.stat().counts.hits_disk, 0);
}

#[tokio::test]
async fn unwanted_warm_up_reads_nothing() {
    let (device, store) = filled().await;
    drop(store);
    let store = Store::open(device, options()).await.unwrap();
    nectary_kit::until_async("it is warm", async || !store.stat().warming).await;
    assert_eq!((store.stat().counts.warmed, store.stat().memory_entries), (0, 0));
}

/// A checkpoint and a crash during the warm-up leave the store as warm.
#[tokio::test]
async fn checkpoint_during_warming_stays_warm() {
    let (device, store) = filled().await;
    drop(store);
    // With this delay, no read of warming up has ended when the checkpoint is written, except on a very slow machine.
    let slow = DelayOptions { read: Duration::from_millis(100), ..DelayOptions::default() };
    let slow: SharedDevice = Arc::new(DelayFilter::new(device.clone(), slow));
    let store = open(slow).await;
    store.checkpoint().await.unwrap();
    let (store, stat) = warm(device.clone(), store).await;
    assert_eq!(stat.counts.warmed, OBJECTS, "{stat:?}");
    // Closing the store before warming has begun loses nothing either.
    drop(store);
    let store = open(device.clone()).await;
    store.close().await.unwrap();
    let (_store, stat) = warm(device, store).await;
    assert_eq!(stat.counts.warmed, OBJECTS, "{stat:?}");
}

/// Purged and replaced objects do not come back with the hot list.
#[tokio::test]
async fn hot_list_skips_purged_objects() {
    let (device, store) = filled().await;
    store.purge_key(name(1).as_bytes()).await.unwrap();
    store.purge_prefix(name(20).as_bytes()).await.unwrap();
    put(&store, 3, 9999).await;
    store.sync().await.unwrap();
    let (store, stat) = warm(device, store).await;
    // The purged prefix matches the objects 20 and 200 to 209.
    assert_eq!(stat.counts.warmed, OBJECTS - 12, "{stat:?}");
    for number in [1, 20, 200, 209] {
        assert!(!is_resident(&store, number), "{number}");
        assert!(read_all(&store, KeyRef::new(name(number).as_bytes(), b"")).await.is_none(), "{number}");
    }
    assert_eq!(read_all(&store, KeyRef::new(name(3).as_bytes(), b"")).await.unwrap(), body(9999, BODY_BYTES));
}

/// A damaged hot list is ignored and counted, and everything is still found.
#[tokio::test]
async fn damaged_hot_list_is_ignored() {
    let (device, store) = filled().await;
    drop(store);
    let mut damaged = 0;
    for address in (0..STORE_BYTES).step_by(4096) {
        let mut block = read(&*device, address, 4096).await.unwrap();
        if block.starts_with(b"NHOT") {
            block[100] ^= 1;
            write(&*device, address, block).await.unwrap();
            damaged += 1;
        }
    }
    assert_eq!(damaged, 1);
    let store = open(device.clone()).await;
    let (store, stat) = warm(device, store).await;
    assert_eq!((stat.counts.warmed, stat.counts.hot_chunks_damaged), (0, 1), "{stat:?}");
    for number in 0..OBJECTS {
        assert!(read_all(&store, KeyRef::new(name(number).as_bytes(), b"")).await.is_some(), "{number}");
    }
}
