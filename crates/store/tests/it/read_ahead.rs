//! Readers of long bodies read ahead: several fragments at the same time, each once, in order, and within the memory for
//! this; and a reader that pauses delays no other reader.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{body, options};
use bytes::Bytes;
use futures_util::future::join_all;
use nectary_block::{
    DeviceErrorKind, DeviceOperation, DeviceRequest, Error, Filter, IoFuture, MemoryDevice, SharedDevice,
};
use nectary_store::{BodyReader, CreateOptions, KeyRef, OpenOptions, Store, StoredObject};

/// The number of fragments of the body.
const FRAGMENTS: usize = 40;
const FRAGMENT_BYTES: usize = 64 << 10;
/// The memory of the store that is read.
const MEMORY_BYTES: usize = 64 << 20;

fn key() -> KeyRef<'static> {
    KeyRef::new(b"long", b"")
}

/// A device whose reads take a millisecond; it counts them, and fails them on request.
struct SlowReadDevice {
    inner: SharedDevice,
    fails: AtomicBool,
    reads: AtomicUsize,
    /// The reads that run now, and the most that ran at the same time.
    running: AtomicUsize,
    most: AtomicUsize,
}

/// The same device for a store and its test.
#[derive(Clone)]
struct SharedSlowDevice(Arc<SlowReadDevice>);

impl Filter for SharedSlowDevice {
    fn inner(&self) -> &SharedDevice {
        &self.0.inner
    }
    fn spec(&self) -> String {
        self.0.inner.spec()
    }
    fn around<T: Send + 'static>(
        &self,
        request: DeviceRequest,
        operation: impl FnOnce(&SharedDevice) -> IoFuture<T> + Send + 'static,
    ) -> IoFuture<T> {
        if request.operation != DeviceOperation::Read {
            return operation(&self.0.inner);
        }
        let this = Arc::clone(&self.0);
        Box::pin(async move {
            this.reads.fetch_add(1, Ordering::Relaxed);
            let now = this.running.fetch_add(1, Ordering::Relaxed) + 1;
            this.most.fetch_max(now, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(1)).await;
            this.running.fetch_sub(1, Ordering::Relaxed);
            if this.fails.load(Ordering::Relaxed) {
                return Err(Error::new(DeviceErrorKind::Io, "slow", DeviceOperation::Read, "it is told to"));
            }
            operation(&this.inner).await
        })
    }
}

/// Opens a store that has the body on disk only.
async fn prepared() -> (Arc<SlowReadDevice>, Store, Bytes) {
    let memory: SharedDevice = Arc::new(MemoryDevice::new(32 << 20));
    let create = CreateOptions { segment_bytes: Some(4 * FRAGMENT_BYTES as u64), ..CreateOptions::default() };
    Store::create(memory.clone(), &create).await.expect("a store is made");
    let store = Store::open(memory.clone(), options()).await.expect("it opens");
    let bytes = body(1, FRAGMENTS * FRAGMENT_BYTES);
    store.put(key(), "metadata".into(), bytes.clone()).await.expect("room");
    store.close().await.expect("closed");
    drop(store);
    let zero = AtomicUsize::default;
    let slow =
        SlowReadDevice { inner: memory, fails: AtomicBool::default(), reads: zero(), running: zero(), most: zero() };
    let slow = Arc::new(slow);
    let options = OpenOptions { memory_bytes: MEMORY_BYTES as u64, ..options() };
    let store = Store::open(Arc::new(SharedSlowDevice(slow.clone())), options).await.expect("it opens");
    nectary_kit::until_async("the names are known", async || store.stat().names_known).await;
    (slow, store, bytes)
}

async fn found(store: &Store, slow: &SlowReadDevice) -> StoredObject {
    let object = store.get(key()).await.expect("it is there");
    slow.reads.store(0, Ordering::Relaxed);
    slow.most.store(0, Ordering::Relaxed);
    object
}

/// Reads until the end or an error; returns the bytes, and whether there was an error.
async fn read(reader: &mut BodyReader) -> (Vec<u8>, bool) {
    let mut bytes = Vec::new();
    while let Some(chunk) = reader.next().await {
        let Ok(chunk) = chunk else { return (bytes, true) };
        bytes.extend_from_slice(&chunk);
    }
    (bytes, false)
}

#[tokio::test]
async fn read_ahead_reads_fragments_once() {
    let (slow, store, bytes) = prepared().await;
    let object = found(&store, &slow).await;
    let before = store.stat().counts.device_read_bytes;
    assert_eq!(read(&mut object.reader(0..u64::MAX)).await, (bytes.to_vec(), false));
    let (reads, most) = (slow.reads.load(Ordering::Relaxed), slow.most.load(Ordering::Relaxed));
    assert!(reads == FRAGMENTS && (2..=5).contains(&most), "{reads} reads, {most} at the same time");
    let read_bytes = store.stat().counts.device_read_bytes - before;
    // A record begins and ends within a block.
    let bytes_max = (FRAGMENTS * (FRAGMENT_BYTES + 2 * 4096)) as u64;
    assert!(read_bytes <= bytes_max, "{read_bytes} bytes read, at most {bytes_max} expected");
}

/// A range of one fragment reads nothing else.
#[tokio::test]
async fn short_range_reads_one_fragment() {
    let (slow, store, bytes) = prepared().await;
    let object = found(&store, &slow).await;
    let range = 3 * FRAGMENT_BYTES + 10..4 * FRAGMENT_BYTES;
    let mut reader = object.reader(range.start as u64..range.end as u64);
    assert_eq!(read(&mut reader).await, (bytes[range].to_vec(), false));
    assert_eq!(slow.reads.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn paused_reader_delays_no_other() {
    let (slow, store, bytes) = prepared().await;
    let object = found(&store, &slow).await;
    let mut pausing = object.reader(0..u64::MAX);
    let first = pausing.next().await.expect("a chunk").expect("it is read");
    let mut other = object.reader(first.len() as u64..u64::MAX);
    let rest = tokio::time::timeout(Duration::from_secs(10), read(&mut other)).await.expect("it does not wait");
    assert_eq!(rest, (bytes[first.len()..].to_vec(), false));
    assert_eq!(read(&mut pausing).await, (bytes[first.len()..].to_vec(), false));
    assert_eq!(slow.reads.load(Ordering::Relaxed), FRAGMENTS, "the readers share reads");
}

/// Many readers stay within the memory for read-ahead, and all make progress.
#[tokio::test]
async fn readers_share_read_ahead_memory() {
    let (slow, store, bytes) = prepared().await;
    let object = found(&store, &slow).await;
    let mut readers: Vec<BodyReader> = (0..100).map(|_| object.reader(0..u64::MAX)).collect();
    let read = join_all(readers.iter_mut().map(read)).await;
    assert!(read.iter().all(|(read, failed)| read == &bytes[..] && !failed));
    let most = slow.most.load(Ordering::Relaxed);
    // A 32nd of the memory, and a read without reading ahead.
    assert!(most <= MEMORY_BYTES / 32 / FRAGMENT_BYTES + 1, "{most} at the same time");
}

/// A failed read ends the body at its fragment and can be repeated.
#[tokio::test]
async fn failed_read_can_be_repeated() {
    let (slow, store, bytes) = prepared().await;
    let object = found(&store, &slow).await;
    let mut reader = object.reader(0..u64::MAX);
    let mut before = Vec::new();
    for _ in 0..7 {
        before.extend_from_slice(&reader.next().await.expect("a chunk").expect("it is read"));
    }
    slow.fails.store(true, Ordering::Relaxed);
    let (some, failed) = read(&mut reader).await;
    before.extend_from_slice(&some);
    assert!(failed && bytes.starts_with(&before) && before.len() < bytes.len());
    slow.fails.store(false, Ordering::Relaxed);
    // Reads that were begun while the device failed have failed, too.
    for _ in 0..FRAGMENTS {
        let (some, failed) = read(&mut reader).await;
        before.extend_from_slice(&some);
        if !failed {
            break;
        }
    }
    assert_eq!(before, bytes);
}
