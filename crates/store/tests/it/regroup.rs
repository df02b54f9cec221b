//! Objects that are requested together but stored apart are rewritten side by side, and requested objects are rewritten
//! before their segment is overwritten. Both happen only within the bound on rewritten bytes.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{body, options};
use nectary_block::{MemoryDevice, SharedDevice};
use nectary_store::{ClusterRead, Counts, CreateOptions, KeyRef, MEMORY_BYTES_MIN, OpenOptions, Store};

const BODY_BYTES: usize = 2000;

fn key(name: &str) -> KeyRef<'_> {
    KeyRef::new(name.as_bytes(), b"")
}

/// Options with which memory is empty after each open, and puts wait for a sync.
fn cold(rewrite_percent: u32) -> OpenOptions {
    let (memory_bytes, write_delay) = (MEMORY_BYTES_MIN, Duration::from_secs(2));
    let cluster_read = ClusterRead::Auto;
    OpenOptions { cluster_read, warm_up: false, rewrite_percent, memory_bytes, write_delay, ..options() }
}

async fn open(device: &SharedDevice, rewrite_percent: u32) -> Store {
    Store::open(device.clone(), cold(rewrite_percent)).await.unwrap()
}

async fn put(store: &Store, name: &str, page: Option<&str>, seed: u64) {
    if let Some(page) = page {
        store.collocate(name.as_bytes(), page.as_bytes());
    }
    store.put(key(name), "metadata".into(), body(seed, BODY_BYTES)).await.unwrap();
}

/// Requests an object as a part of a page, and checks its bytes.
async fn get(store: &Store, name: &str, page: Option<&str>, seed: u64) {
    if let Some(page) = page {
        store.collocate(name.as_bytes(), page.as_bytes());
    }
    let found = store.get(key(name)).await.unwrap_or_else(|| panic!("{name} is a miss"));
    assert_eq!(found.whole().unwrap(), &body(seed, BODY_BYTES), "{name}");
}

/// Puts objects that nobody requests, in separate appends.
async fn put_others(store: &Store, first: u64, count: u64) {
    for number in first..first + count {
        put(store, &format!("other {number}"), None, number).await;
        if number % 100 == 99 {
            store.sync().await.unwrap();
        }
    }
    store.sync().await.unwrap();
}

/// Makes a store with two pages: page `a`, which embeds `shared` and `own`, and page `b`, which is far from page `a` on
/// disk.
async fn two_pages() -> SharedDevice {
    let device: SharedDevice = Arc::new(MemoryDevice::new(64 << 20));
    Store::create(device.clone(), &CreateOptions::default()).await.unwrap();
    let store = open(&device, 20).await;
    put(&store, "a", None, 1).await;
    put(&store, "shared", Some("a"), 2).await;
    put(&store, "own", Some("a"), 3).await;
    put_others(&store, 0, 200).await;
    put(&store, "b", None, 4).await;
    put(&store, "of b", Some("b"), 5).await;
    store.sync().await.unwrap();
    device
}

async fn view_b(store: &Store) -> u64 {
    let before = store.stat().counts.device_reads;
    get(store, "b", None, 4).await;
    get(store, "of b", Some("b"), 5).await;
    get(store, "shared", Some("b"), 2).await;
    store.stat().counts.device_reads - before
}

async fn view_a(store: &Store) -> u64 {
    let before = store.stat().counts.device_reads;
    get(store, "a", None, 1).await;
    get(store, "shared", Some("a"), 2).await;
    get(store, "own", Some("a"), 3).await;
    store.stat().counts.device_reads - before
}

/// Puts objects, so that the bound on rewritten bytes, which grows with the bytes put, allows some rewriting.
async fn earn(store: &Store) {
    put_others(store, 1000, 100).await;
}

/// An object that another page embeds is next to the page after one view.
#[tokio::test]
async fn shared_object_moves_beside_page() {
    let device = two_pages().await;
    let store = open(&device, 20).await;
    earn(&store).await;
    assert_eq!(view_b(&store).await, 2);
    store.sync().await.unwrap();
    let counts = store.stat().counts;
    assert_eq!((counts.misplaced, counts.regrouped), (1, 3), "{counts:?}");
    drop(store);
    let store = open(&device, 20).await;
    assert_eq!(view_b(&store).await, 1);
    // The object was first stored next to page `a`. Page `a` now needs a separate read for it.
    assert!(view_a(&store).await >= 1);
}

#[tokio::test]
async fn outdated_copy_is_not_used() {
    for purged in [false, true] {
        let device = two_pages().await;
        let store = open(&device, 20).await;
        earn(&store).await;
        view_b(&store).await;
        store.sync().await.unwrap();
        match purged {
            true => store.purge_key(b"shared").await.unwrap(),
            false => put(&store, "shared", None, 99).await,
        }
        store.sync().await.unwrap();
        put_others(&store, 2000, 12_000).await;
        get(&store, "a", None, 1).await;
        get(&store, "b", None, 4).await;
        let found = store.get(key("shared")).await;
        let found = found.map(|object| object.whole().unwrap().clone());
        assert_eq!(found, (!purged).then(|| body(99, BODY_BYTES)));
    }
}

/// Fills a small store several times over while one object is requested again and again.
async fn ask_through_cycles(rewrite_percent: u32) -> (u64, Counts) {
    let device: SharedDevice = Arc::new(MemoryDevice::new(4 << 20));
    Store::create(device.clone(), &CreateOptions::default()).await.unwrap();
    let store = open(&device, rewrite_percent).await;
    put(&store, "wanted", None, 7).await;
    let mut hits = 0;
    for round in 0..100 {
        put_others(&store, round * 100, 100).await;
        // Without this wait, a writer that gets no processor time could let the ring overwrite the object first.
        store.sync().await.unwrap();
        hits += u64::from(store.get(key("wanted")).await.is_some());
    }
    (hits, store.stat().counts)
}

#[tokio::test]
async fn requested_memory_object_outlives_ring() {
    let mut best = ask_through_cycles(20).await;
    // The store may lose the object if the writer gets no processor time, but not three times in a row.
    for _ in 0..2 {
        if best.0 < 100 {
            println!("lost after {} rounds: {:?}", best.0, best.1);
            best = ask_through_cycles(20).await;
        }
    }
    let (hits, counts) = best;
    assert_eq!(hits, 100, "{counts:?}");
    assert!(counts.kept >= 3 && counts.reinserted == 0, "{counts:?}");
    let (hits, counts) = ask_through_cycles(0).await;
    assert!(hits < 50 && counts.kept == 0, "{hits} {counts:?}");
}

/// No more is rewritten than its share of what is put.
#[tokio::test]
async fn rewrites_stay_within_share() {
    let device: SharedDevice = Arc::new(MemoryDevice::new(4 << 20));
    Store::create(device.clone(), &CreateOptions::default()).await.unwrap();
    let store = open(&device, 5).await;
    for round in 0..40 {
        put_others(&store, round * 50, 50).await;
        for number in 0..round * 50 {
            let _ = store.get(key(&format!("other {number}"))).await;
        }
    }
    let counts = store.stat().counts;
    assert!(counts.kept > 0 && (counts.kept_bytes + counts.regrouped_bytes) * 20 <= counts.put_bytes, "{counts:?}");
    let most = OpenOptions { rewrite_percent: nectary_store::REWRITE_PERCENT_MAX + 1, ..cold(0) };
    assert!(most.check().unwrap_err().to_string().contains("100 percent"));
}
