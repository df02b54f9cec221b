//! Objects that hints tie together are written side by side and read at once; purged or replaced neighbours do not
//! enter memory.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{body, options};
use nectary_block::{MemoryDevice, SharedDevice};
use nectary_store::{ClusterRead, CreateOptions, KeyRef, OpenOptions, Store};

const PAGES: u64 = 40;
/// The number of objects that a page embeds.
const EMBEDDED: u64 = 4;

fn page(page: u64) -> String {
    format!("http://example.invalid/{page}/")
}

fn embedded(page: u64, number: u64) -> String {
    format!("http://example.invalid/{page}/{number}.png")
}

fn key(name: &str) -> KeyRef<'_> {
    KeyRef::new(name.as_bytes(), b"")
}

fn clustered(cluster_read: ClusterRead) -> OpenOptions {
    // Puts are not written before the sync, so that an append has many pages.
    OpenOptions { cluster_read, write_delay: Duration::from_secs(2), ..options() }
}

async fn put(store: &Store, name: &str, seed: u64) {
    store.put(key(name), "metadata".into(), body(seed, 2000)).await.unwrap();
}

/// Makes a store with pages and their objects, which were put in an order that does not follow the pages.
async fn pages(options: &OpenOptions, hints: bool) -> SharedDevice {
    let device: SharedDevice = Arc::new(MemoryDevice::new(64 << 20));
    Store::create(device.clone(), &CreateOptions::default()).await.unwrap();
    let store = Store::open(device.clone(), options.clone()).await.unwrap();
    for number in 0..PAGES {
        put(&store, &page(number), number).await;
    }
    for object in 0..EMBEDDED {
        for number in 0..PAGES {
            if hints {
                store.collocate(embedded(number, object).as_bytes(), page(number).as_bytes());
            }
            put(&store, &embedded(number, object), number + 1000 * object).await;
        }
    }
    store.sync().await.unwrap();
    device
}

/// Reads every page with its embedded objects; returns the number of device reads.
async fn read_pages(device: &SharedDevice, options: &OpenOptions) -> u64 {
    let store = Store::open(device.clone(), options.clone()).await.unwrap();
    for number in (0..PAGES).map(|number| number * 7 % PAGES) {
        assert_eq!(store.get(key(&page(number))).await.unwrap().whole().unwrap(), &body(number, 2000));
        for object in 0..EMBEDDED {
            let found = store.get(key(&embedded(number, object))).await.unwrap();
            assert_eq!(found.whole().unwrap(), &body(number + 1000 * object, 2000));
            assert_eq!(found.metadata(), "metadata");
        }
    }
    let counts = store.stat().counts;
    assert_eq!(counts.neighbours_hit + counts.device_reads, PAGES * (EMBEDDED + 1), "{counts:?}");
    counts.device_reads
}

#[tokio::test]
async fn hinted_objects_are_read_together() {
    let options = OpenOptions { cluster_bytes: 16 << 10, ..clustered(ClusterRead::Cluster) };
    let tied = pages(&options, true).await;
    let reads = read_pages(&tied, &options).await;
    // 16 KiB have room for one and a half pages: at most every second page needs a second read.
    assert!(reads <= PAGES * 3 / 2, "{reads}");
    let objects = read_pages(&tied, &OpenOptions { cluster_read: ClusterRead::Object, ..options.clone() }).await;
    assert_eq!(objects, PAGES * (EMBEDDED + 1));
}

#[tokio::test]
async fn zero_cluster_size_disables_clusters() {
    let options = OpenOptions { cluster_bytes: 0, ..clustered(ClusterRead::Cluster) };
    let device = pages(&options, true).await;
    assert_eq!(read_pages(&device, &options).await, PAGES * (EMBEDDED + 1));
    for cluster_bytes in [1, 4095, 12 << 10, 2 << 20] {
        let refused = OpenOptions { cluster_bytes, ..options.clone() };
        assert!(refused.check().unwrap_err().message.contains("cluster"), "{cluster_bytes}");
    }
}

/// Neighbours that were purged or replaced stay away.
#[tokio::test]
async fn purged_neighbours_stay_away() {
    let options = clustered(ClusterRead::Cluster);
    let device = pages(&options, true).await;
    let store = Store::open(device.clone(), options.clone()).await.unwrap();
    for number in 0..PAGES {
        store.purge_key(embedded(number, 0).as_bytes()).await.unwrap();
        put(&store, &embedded(number, 1), number + 7777).await;
    }
    store.sync().await.unwrap();
    drop(store);
    let store = Store::open(device, options).await.unwrap();
    for number in 0..PAGES {
        assert!(store.get(key(&page(number))).await.is_some());
        assert!(store.get_resident(key(&embedded(number, 0))).is_none(), "a purged neighbour of page {number}");
        if let Some(found) = store.get_resident(key(&embedded(number, 1))) {
            assert_eq!(found.whole().unwrap(), &body(number + 7777, 2000));
        }
    }
    for number in 0..PAGES {
        assert!(store.get(key(&embedded(number, 0))).await.is_none());
        let found = store.get(key(&embedded(number, 1))).await.unwrap();
        assert_eq!(found.whole().unwrap(), &body(number + 7777, 2000));
    }
    assert!(store.stat().counts.neighbours_taken > PAGES);
}

/// Records stored in another order than they came are salvaged with the newest version.
#[tokio::test]
async fn reordered_records_salvage_newest_version() {
    let options = clustered(ClusterRead::Cluster);
    let device: SharedDevice = Arc::new(MemoryDevice::new(64 << 20));
    Store::create(device.clone(), &CreateOptions::default()).await.unwrap();
    let store = Store::open(device.clone(), options.clone()).await.unwrap();
    for round in 0..3 {
        for number in 0..20 {
            store.collocate(embedded(number, 0).as_bytes(), page(number).as_bytes());
            put(&store, &embedded(number, 0), number + 100 * round).await;
            put(&store, &page(number), number + 100 * round).await;
        }
    }
    store.sync().await.unwrap();
    put(&store, "later", 1).await;
    store.sync().await.unwrap();
    drop(store);
    // The first append's header is lost: the bytes after it are searched record by record.
    let mut lost = false;
    for address in (0..64 << 20).step_by(4096) {
        let bytes = nectary_block::read(&*device, address, 4096).await.unwrap();
        if !lost && bytes.starts_with(b"NAPP") {
            nectary_block::write(&*device, address, nectary_block::Buffer::zeroed(4096)).await.unwrap();
            lost = true;
        }
    }
    let store = Store::open(device, options).await.unwrap();
    assert_eq!(store.stat().recovery.salvaged, 120);
    for number in 0..20 {
        for name in [page(number), embedded(number, 0)] {
            let found = store.get(key(&name)).await.unwrap();
            assert_eq!(found.whole().unwrap(), &body(number + 200, 2000), "{name}");
        }
    }
}
