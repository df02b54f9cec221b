//! Requested objects are rewritten before the ring overwrites them; unrequested, purged and replaced objects are not.

use std::sync::Arc;

use crate::common::{body, options, read_all};
use nectary_block::{MemoryDevice, SharedDevice};
use nectary_store::{CreateOptions, KeyRef, OpenOptions, Store, StoreErrorKind, StoreStat};

const STORE_BYTES: u64 = 8 << 20;
const SEGMENT_BYTES: u64 = 256 << 10;
/// The number of hot objects, which are requested.
const HOT: u64 = 12;
/// The length of the body of each object, in bytes.
const BODY_BYTES: usize = 4096;

async fn small_store(reinsert_percent: u32) -> (SharedDevice, Store) {
    let device: SharedDevice = Arc::new(MemoryDevice::new(STORE_BYTES));
    let create = CreateOptions { segment_bytes: Some(SEGMENT_BYTES), ..CreateOptions::default() };
    Store::create(device.clone(), &create).await.unwrap();
    let store = Store::open(device.clone(), OpenOptions { reinsert_percent, ..options() }).await.unwrap();
    (device, store)
}

fn hot(number: u64) -> String {
    format!("http://example.invalid/hot/{number}")
}

async fn put(store: &Store, key: &str, seed: u64) {
    store.put(KeyRef::new(key.as_bytes(), b""), "metadata".into(), body(seed, BODY_BYTES)).await.unwrap();
}

/// Writes unrequested objects for this many cycles of the ring, and requests the hot ones during this time if `asks` is
/// set.
async fn fill(store: &Store, cycles: u64, asks: bool) -> StoreStat {
    let end = store.stat().head_epoch + cycles * store.stat().segment_count;
    let mut number = 0;
    while store.stat().head_epoch < end {
        for _ in 0..8 {
            number += 1;
            put(store, &format!("http://example.invalid/cold/{end}/{number}"), number).await;
        }
        store.sync().await.unwrap();
        for number in (0..HOT).filter(|_| asks) {
            store.get(KeyRef::new(hot(number).as_bytes(), b"")).await;
        }
    }
    store.stat()
}

/// Counts the hot objects that are found after a restart, and checks their bytes.
async fn hits_after_restart(device: SharedDevice, store: Store, seed: u64) -> u64 {
    drop(store);
    let store = Store::open(device, options()).await.unwrap();
    let mut hits = 0;
    for number in 0..HOT {
        if let Some(bytes) = read_all(&store, KeyRef::new(hot(number).as_bytes(), b"")).await {
            assert_eq!(bytes, body(seed + number, BODY_BYTES));
            hits += 1;
        }
    }
    hits
}

#[tokio::test]
async fn requested_objects_outlive_ring() {
    let (device, store) = small_store(25).await;
    for number in 0..HOT {
        put(&store, &hot(number), number).await;
    }
    let stat = fill(&store, 4, true).await;
    assert!(stat.counts.reinserted >= HOT * 3, "{stat:?}");
    let limit = stat.counts.segments_reclaimed * SEGMENT_BYTES / 4;
    assert!(stat.counts.reinserted_bytes <= limit, "{stat:?}");
    assert_eq!(hits_after_restart(device, store, 0).await, HOT);
}

#[tokio::test]
async fn unrequested_objects_leave_with_segment() {
    let (device, store) = small_store(25).await;
    for number in 0..HOT {
        put(&store, &hot(number), number).await;
    }
    let stat = fill(&store, 2, false).await;
    assert_eq!(stat.counts.reinserted, 0);
    assert_eq!(hits_after_restart(device, store, 0).await, 0);
}

/// Purged and replaced objects are not re-inserted.
#[tokio::test]
async fn outdated_objects_are_not_reinserted() {
    let (device, store) = small_store(25).await;
    for number in 0..HOT {
        put(&store, &hot(number), number).await;
    }
    store.sync().await.unwrap();
    fill(&store, 0, true).await;
    for number in 0..HOT {
        store.get(KeyRef::new(hot(number).as_bytes(), b"")).await.expect("it was just put");
        store.purge_key(hot(number).as_bytes()).await.unwrap();
    }
    let stat = fill(&store, 2, false).await;
    assert_eq!(stat.counts.reinserted, 0, "purged objects were rewritten");
    for round in 0..2 {
        for number in 0..HOT {
            put(&store, &hot(number), 1000 * round + number).await;
        }
        store.sync().await.unwrap();
        for number in 0..HOT {
            store.get(KeyRef::new(hot(number).as_bytes(), b"")).await.expect("it was just put");
        }
    }
    fill(&store, 3, true).await;
    assert_eq!(hits_after_restart(device, store, 1000).await, HOT);
}

/// A share of 0 re-inserts nothing, and a share above the bound is refused.
#[tokio::test]
async fn share_zero_reinserts_nothing() {
    let (device, store) = small_store(0).await;
    for number in 0..HOT {
        put(&store, &hot(number), number).await;
    }
    let stat = fill(&store, 2, true).await;
    assert_eq!((stat.counts.reinserted, stat.referenced_bytes), (0, 0));
    drop(store);
    assert!(Store::open(device.clone(), OpenOptions { reinsert_percent: 50, ..options() }).await.is_ok());
    let refused = Store::open(device, OpenOptions { reinsert_percent: 51, ..options() }).await;
    assert_eq!(refused.err().map(|error| error.kind), Some(StoreErrorKind::Invalid));
}
