//! Objects that a crash lost stay lost, and objects that were found after the crash stay found, whatever happens later.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{body, open, options};
use nectary_block::MemoryDevice;
use nectary_store::{CreateOptions, KeyRef, OpenOptions, Store};

const STORE_BYTES: u64 = 1 << 20;
const SEGMENT_BYTES: usize = 32 << 10;
const BLOCK_BYTES: usize = 4096;

fn key(name: &str) -> KeyRef<'_> {
    KeyRef::new(name.as_bytes(), b"")
}

async fn fresh() -> (Arc<MemoryDevice>, Store) {
    let device = Arc::new(MemoryDevice::new(STORE_BYTES));
    let create = CreateOptions { segment_bytes: Some(SEGMENT_BYTES as u64), ..CreateOptions::default() };
    Store::create(device.clone(), &create).await.expect("a store is made");
    let store = without_rewriting(device.clone()).await;
    (device, store)
}

async fn without_rewriting(device: Arc<MemoryDevice>) -> Store {
    Store::open(device, OpenOptions { rewrite_percent: 0, ..options() }).await.expect("it opens")
}

/// Puts an object in its own append.
async fn put(store: &Store, name: &str, bytes: usize) {
    store.put(key(name), "m".into(), body(1, bytes)).await.expect("room");
    store.sync().await.expect("it syncs");
}

/// Reads the whole body of an object and returns its length.
async fn length(store: &Store, name: &str) -> Option<usize> {
    crate::common::read_all(store, key(name)).await.map(|body| body.len())
}

/// Puts objects until the segment of `epoch`, or a later one, is being written.
async fn fill_until(store: &Store, epoch: u64) {
    for number in 0.. {
        if store.stat().head_epoch >= epoch {
            return;
        }
        put(store, &format!("other {epoch} {number}"), 3000).await;
    }
}

/// The offsets of the appends of an epoch, in bytes from the start of the image.
fn appends(image: &[u8], epoch: u64) -> Vec<usize> {
    let is_one = |at: &usize| {
        let block = &image[*at..];
        block.starts_with(b"NAPP") && block[32..40] == epoch.to_le_bytes()
    };
    (0..image.len()).step_by(BLOCK_BYTES).filter(is_one).collect()
}

fn without_checkpoints(mut image: Vec<u8>) -> Vec<u8> {
    image.chunks_mut(BLOCK_BYTES).filter(|block| block.starts_with(b"NCKH")).for_each(|block| block.fill(0));
    image
}

/// A segment that begins as it did a lap before is found by its middle.
#[tokio::test]
async fn repeated_segment_head_is_resolved() {
    let (device, store) = fresh().await;
    let count = store.stat().segment_count;
    fill_until(&store, count + 3).await;
    let before = device.image();
    let last = store.stat().head_epoch + 1;
    fill_until(&store, last).await;
    put(&store, "kept", 5).await;
    drop(store);
    // The first append of the last segment never reached the disk.
    let mut image = without_checkpoints(device.image());
    let [first, second, ..] = appends(&image, last)[..] else { panic!("two appends") };
    image[first..second].copy_from_slice(&before[first..second]);
    let device = Arc::new(MemoryDevice::from_image(image));

    let store = without_rewriting(device.clone()).await;
    assert_eq!(length(&store, "kept").await, Some(5), "what was written behind it is found");
    fill_until(&store, last + 1).await;
    put(&store, "later", 6).await;
    drop(store);
    let store = open(Arc::new(MemoryDevice::from_image(without_checkpoints(device.image())))).await;
    assert_eq!((length(&store, "kept").await, length(&store, "later").await), (Some(5), Some(6)));
}

/// A torn object does not come back when its segment is no longer verified.
#[tokio::test]
async fn torn_object_stays_gone() {
    let (device, store) = fresh().await;
    put(&store, "key", 10).await;
    store.checkpoint().await.expect("a checkpoint");
    // The new version is written to the next segment, and no later append states that it was flushed.
    let segment = store.stat().head_epoch + 1;
    fill_until(&store, segment).await;
    store.put(key("key"), "m".into(), body(2, 9000)).await.expect("room");
    store.sync().await.expect("it syncs");
    drop(store);
    let mut image = device.image();
    let start = *appends(&image, segment).last().expect("it has appends");
    let of_body = body(2, 9000);
    let at = image[start..start + SEGMENT_BYTES / 2].windows(64).position(|bytes| bytes == &of_body[100..164]);
    image[start + at.expect("its first fragment")] ^= 1;
    let device = Arc::new(MemoryDevice::from_image(image));

    let store = without_rewriting(device.clone()).await;
    assert_eq!(
        length(&store, "key").await,
        Some(10),
        "the newer one is not whole, and was never flushed as far as anybody knows"
    );
    fill_until(&store, segment + 3).await;
    drop(store);
    let store = open(device).await;
    let object = store.get(key("key")).await.expect("it was there");
    assert_eq!(object.body_bytes(), 10);
}

/// A version that is purged while it waits is known to what replaces it.
#[tokio::test]
async fn purged_waiting_version_is_superseded() {
    let (device, store) = fresh().await;
    drop(store);
    let patient = OpenOptions { write_delay: Duration::from_secs(60), warm_up: false, ..options() };
    let store = Store::open(device, patient).await.expect("it opens");
    store.put(key("key"), "m".into(), body(1, 2000)).await.expect("room");
    store.purge_key(b"key").await.expect("it is purged");
    assert_eq!(length(&store, "key").await, None);
    store.put(key("key"), "m".into(), body(1, 20)).await.expect("room");
    store.sync().await.expect("it syncs");
    // Both versions are in one append, so their locations do not show which one is newer. If both were in the index,
    // the writer would compare them.
    store.sync().await.expect("it syncs");
    let stat = store.stat();
    assert_eq!((stat.entries, stat.counts.device_reads), (1, 0));
    assert_eq!(length(&store, "key").await, Some(20));
}

/// Puts a version of "key" with 20 bytes, and other objects, in an append of one block that begins a segment.
async fn put_in_a_segment_of_its_own(store: &Store) {
    let epoch = store.stat().head_epoch;
    for number in 0..6 {
        store.put(key(&format!("beside {number}")), "m".into(), body(2, 300)).await.expect("room");
    }
    store.put(key("key"), "m".into(), body(2, 20)).await.expect("room");
    store.sync().await.expect("it syncs");
    assert_eq!((store.stat().head_epoch, store.stat().counts.appends), (epoch + 1, 1));
}

/// Puts an object and waits until it is written, without a flush.
async fn put_unflushed(store: &Store, name: &str) {
    let before = store.sequences().written;
    store.put(key(name), "m".into(), body(1, 3000)).await.expect("room");
    let written = async {
        while store.sequences().written == before {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), written).await.expect("it is written soon");
}

/// Makes a store with an object "key" of 10 bytes, and fills its current segment.
async fn with_a_full_segment() -> (Arc<MemoryDevice>, u64) {
    let (device, store) = fresh().await;
    put(&store, "key", 10).await;
    let epoch = store.stat().head_epoch;
    for number in 1..SEGMENT_BYTES / BLOCK_BYTES {
        put(&store, &format!("other {number}"), 3000).await;
    }
    assert_eq!((store.stat().head_epoch, appends(&device.image(), epoch).len()), (epoch, SEGMENT_BYTES / BLOCK_BYTES));
    (device, epoch + 1)
}

/// A version in a torn first append stays gone when the next open loses its own.
#[tokio::test]
async fn torn_first_append_stays_gone() {
    let (device, epoch) = with_a_full_segment().await;
    let store = without_rewriting(device.clone()).await;
    put_in_a_segment_of_its_own(&store).await;
    drop(store);
    // The first sector of the append, with its header, never reached the disk.
    let mut torn = device.image();
    let start = appends(&torn, epoch)[0];
    torn[start..start + 512].fill(0);
    let device = Arc::new(MemoryDevice::from_image(torn.clone()));

    let store = without_rewriting(device.clone()).await;
    assert_eq!(length(&store, "key").await, Some(10), "nothing leads to a segment without a whole append");
    put_unflushed(&store, "first").await;
    put_unflushed(&store, "second").await;
    drop(store);
    // Two appends were not flushed; the power cut loses the first of them.
    let mut image = device.image();
    assert_eq!(appends(&image, epoch), [start, start + BLOCK_BYTES]);
    image[start..start + BLOCK_BYTES].copy_from_slice(&torn[start..start + BLOCK_BYTES]);
    for image in [image.clone(), without_checkpoints(image)] {
        let store = without_rewriting(Arc::new(MemoryDevice::from_image(image))).await;
        assert_eq!(length(&store, "key").await, Some(10), "what was lost stays lost");
        assert_eq!((length(&store, "first").await, length(&store, "second").await), (None, Some(3000)));
    }
}

/// A recovered version is found alone where damage takes the header later.
#[tokio::test]
async fn recovered_version_survives_header_damage() {
    let (device, epoch) = with_a_full_segment().await;
    let store = without_rewriting(device.clone()).await;
    put_in_a_segment_of_its_own(&store).await;
    drop(store);
    let store = without_rewriting(device.clone()).await;
    assert_eq!(length(&store, "key").await, Some(20));
    put_unflushed(&store, "later").await;
    drop(store);
    let mut image = device.image();
    let start = appends(&image, epoch)[0];
    image[start..start + 512].fill(0);
    let store = without_rewriting(Arc::new(MemoryDevice::from_image(image))).await;
    assert_eq!((length(&store, "key").await, length(&store, "later").await), (Some(20), Some(3000)));
}

#[tokio::test]
async fn torn_append_shows_no_earlier_record() {
    let (device, epoch) = with_a_full_segment().await;
    let store = without_rewriting(device.clone()).await;
    put_in_a_segment_of_its_own(&store).await;
    drop(store);
    // The first sector of the append never reached the disk, so the next open gives the append up.
    let earlier = device.image();
    let start = appends(&earlier, epoch)[0];
    let mut torn = earlier.clone();
    torn[start..start + 512].fill(0);
    let device = Arc::new(MemoryDevice::from_image(torn));
    let store = without_rewriting(device.clone()).await;
    assert_eq!(length(&store, "key").await, Some(10));
    // That open writes records of the same keys and lengths to the same places. Of its append, the header and the table
    // reach the disk, and the record of the key does not.
    put_in_a_segment_of_its_own(&store).await;
    drop(store);
    let mut image = device.image();
    let is_of_key = |at: &usize| image[*at..].starts_with(b"NREC") && image[*at + 112] == 3;
    let record = (start..start + BLOCK_BYTES).step_by(64).find(is_of_key).expect("the record of the key");
    let sector = record / 512 * 512;
    assert!(sector >= start + 1024, "the table is in other sectors");
    image[sector..start + BLOCK_BYTES].copy_from_slice(&earlier[sector..start + BLOCK_BYTES]);
    let store = without_rewriting(Arc::new(MemoryDevice::from_image(image))).await;
    assert_eq!(length(&store, "key").await, Some(10), "what was lost stays lost");
}

#[tokio::test]
async fn checkpoint_after_a_cut_revives_nothing() {
    let (device, epoch) = with_a_full_segment().await;
    let store = without_rewriting(device.clone()).await;
    for number in 0..3 {
        store.put(key(&format!("beside {number}")), "m".into(), body(2, 1500)).await.expect("room");
    }
    store.put(key("key"), "m".into(), body(2, 20)).await.expect("room");
    store.sync().await.expect("it syncs");
    drop(store);
    let mut image = device.image();
    let start = appends(&image, epoch)[0];
    let is_of_key = |at: &usize| image[*at..].starts_with(b"NREC") && image[*at + 112] == 3;
    let record = (start..start + SEGMENT_BYTES).step_by(64).find(is_of_key).expect("the record of the key");
    assert!(record >= start + BLOCK_BYTES, "the record is not in the first block");
    // The first sector of the append never reached the disk, so the next open gives the append up.
    image[start..start + 512].fill(0);
    let device = Arc::new(MemoryDevice::from_image(image));
    let store = without_rewriting(device.clone()).await;
    assert_eq!(length(&store, "key").await, Some(10));
    // That open writes an append of one block to the same place, and the end of it never reaches the disk.
    put_unflushed(&store, "first").await;
    drop(store);
    let mut image = device.image();
    assert_eq!(appends(&image, epoch), [start]);
    image[start + 2048] ^= 1;
    for is_closed in [false, true] {
        let device = Arc::new(MemoryDevice::from_image(image.clone()));
        let store = without_rewriting(device.clone()).await;
        assert_eq!((length(&store, "key").await, length(&store, "first").await), (Some(10), None));
        // The position of the checkpoint is after the append, and before the record.
        match is_closed {
            true => store.close().await.expect("it closes"),
            false => store.checkpoint().await.expect("a checkpoint"),
        }
        let store = without_rewriting(device.clone()).await;
        assert_eq!(length(&store, "key").await, Some(10), "what was lost stays lost");
        put(&store, "later", 30).await;
        drop(store);
        let store = without_rewriting(device).await;
        assert_eq!((length(&store, "key").await, length(&store, "later").await), (Some(10), Some(30)));
    }
}
