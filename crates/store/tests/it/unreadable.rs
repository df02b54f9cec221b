//! Blocks that cannot be read cost what they hold and nothing else: at the open, and while the store runs.
//! `store-unreadable` of `nectary-sim` tries each block of a store.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::{body, options, read_all};
use nectary_block::{
    DeviceErrorKind, DeviceOperation, DeviceRequest, DeviceSnapshot, Filter, IoFuture, MemoryDevice, SharedDevice,
};
use nectary_store::{CreateOptions, IndexLoading, KeyRef, OpenOptions, Store, StoreErrorKind};

const BLOCK_BYTES: u64 = 4096;

/// A device of which some blocks cannot be read until they are written.
#[derive(Clone)]
struct BadBlockDevice {
    inner: SharedDevice,
    bad: Arc<Mutex<BTreeSet<u64>>>,
    reads: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
    delay: Duration,
}

impl BadBlockDevice {
    fn over(snapshot: &DeviceSnapshot, bad: &[u64]) -> BadBlockDevice {
        BadBlockDevice {
            inner: Arc::new(MemoryDevice::from_snapshot(snapshot)),
            bad: Arc::new(Mutex::new(bad.iter().copied().collect())),
            reads: Arc::default(),
            failed: Arc::default(),
            delay: Duration::ZERO,
        }
    }

    fn device(&self) -> SharedDevice {
        Arc::new(self.clone())
    }

    fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }
}

impl Filter for BadBlockDevice {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }

    fn spec(&self) -> String {
        "scratched".to_owned()
    }

    fn around<T: Send + 'static>(
        &self,
        request: DeviceRequest,
        operation: impl FnOnce(&SharedDevice) -> IoFuture<T> + Send + 'static,
    ) -> IoFuture<T> {
        let blocks = request.offset / BLOCK_BYTES..(request.offset + request.length).div_ceil(BLOCK_BYTES);
        let mut bad = self.bad.lock().unwrap();
        let touched: Vec<u64> = bad.range(blocks).copied().collect();
        if request.operation == DeviceOperation::Read {
            self.reads.fetch_add(1, Ordering::Relaxed);
            if !touched.is_empty() {
                self.failed.fetch_add(1, Ordering::Relaxed);
                let error = request.error(DeviceErrorKind::Io, || self.spec(), "a block cannot be read".to_owned());
                return Box::pin(std::future::ready(Err(error)));
            }
            let (delay, read) = (self.delay, operation(&self.inner));
            return Box::pin(async move {
                if !delay.is_zero() {
                    tokio::time::sleep(delay).await;
                }
                read.await
            });
        }
        if matches!(request.operation, DeviceOperation::Write | DeviceOperation::WriteZeroes) {
            touched.iter().for_each(|block| _ = bad.remove(block));
        }
        operation(&self.inner)
    }
}

fn name(number: u64) -> String {
    format!("object {number}")
}

/// How long a put may be refused.
const PUT_MAX: Duration = Duration::from_secs(30);

/// Puts an object; on a busy machine the store refuses some until it has written others.
async fn put(store: &Store, number: u64, length: usize) {
    let deadline = Instant::now() + PUT_MAX;
    loop {
        match store.put(KeyRef::new(name(number).as_bytes(), b""), "m".into(), body(number, length)).await {
            Err(error) if error.kind == StoreErrorKind::Busy && Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            done => {
                done.unwrap();
                return;
            }
        }
    }
}

async fn count(store: &Store, numbers: std::ops::Range<u64>) -> u64 {
    let mut found = 0;
    for number in numbers {
        found += u64::from(read_all(store, KeyRef::new(name(number).as_bytes(), b"")).await.is_some());
    }
    found
}

/// Makes a store with objects that is closed.
async fn closed(bytes: u64, objects: u64, length: usize) -> DeviceSnapshot {
    let memory = Arc::new(MemoryDevice::new(bytes));
    Store::create(memory.clone(), &CreateOptions::default()).await.unwrap();
    let store = Store::open(memory.clone(), options()).await.unwrap();
    for number in 0..objects {
        put(&store, number, length).await;
    }
    // A close while the index loads would write nothing.
    nectary_kit::until_async("the index is loaded", async || !store.stat().index_loading).await;
    store.close().await.unwrap();
    memory.snapshot()
}

#[tokio::test]
async fn unreadable_device_ends_lose_nothing() {
    let bytes = 8 << 20;
    let snapshot = closed(bytes, 100, 2000).await;
    let last = bytes / BLOCK_BYTES - 1;
    // The superblocks, the states, the first blocks of the purge log, and the end of the device.
    for block in [0, 1, 2, 3, 4, 5, last] {
        let scratched = BadBlockDevice::over(&snapshot, &[block]);
        assert!(Store::probe(&scratched.device()).await.unwrap(), "block {block}");
        let store = Store::open(scratched.device(), options()).await.unwrap();
        assert_eq!(count(&store, 0..100).await, 100, "block {block}");
        store.close().await.unwrap();
        // From block 4 on is the purge log, which only purges write.
        assert!(scratched.bad.lock().unwrap().is_empty() || block >= 4, "block {block} is written again");
    }
}

#[tokio::test]
async fn unreadable_is_not_blank() {
    let blank = DeviceSnapshot::zeroed(8 << 20);
    for block in [0, 1, 7, (8 << 20) / BLOCK_BYTES - 1] {
        let scratched = BadBlockDevice::over(&blank, &[block]);
        let error = Store::probe(&scratched.device()).await.unwrap_err();
        assert_eq!(error.kind, nectary_store::StoreErrorKind::Io, "block {block}: {error}");
        assert!(Store::create(scratched.device(), &CreateOptions::default()).await.is_err());
        let forced = CreateOptions { force: true, ..CreateOptions::default() };
        Store::create(scratched.device(), &forced).await.unwrap();
    }
    let snapshot = closed(8 << 20, 1, 10).await;
    let scratched = BadBlockDevice::over(&snapshot, &[0, 1]);
    assert_eq!(Store::probe(&scratched.device()).await.unwrap_err().kind, nectary_store::StoreErrorKind::Io);
    let opened = Store::open(scratched.device(), options()).await;
    assert_eq!(opened.err().map(|error| error.kind), Some(nectary_store::StoreErrorKind::Io));
}

/// The open count of an unreadable state is not used again.
#[tokio::test]
async fn unreadable_state_skips_open_count() {
    let snapshot = closed(8 << 20, 10, 100).await;
    let mut images = vec![snapshot];
    for _ in 0..2 {
        let memory = Arc::new(MemoryDevice::from_snapshot(images.last().unwrap()));
        let store = Store::open(memory.clone(), options()).await.unwrap();
        store.close().await.unwrap();
        images.push(memory.snapshot());
    }
    for (opens, snapshot) in (1..).zip(&images) {
        for bad in [&[2][..], &[3], &[2, 3]] {
            let scratched = BadBlockDevice::over(snapshot, bad);
            let store = Store::open(scratched.device(), options()).await.unwrap();
            let now = store.stat().recovery.open_count;
            // If both are unreadable, nothing else shows the opens that wrote nothing.
            assert!(now > if bad.len() == 2 { 1 } else { opens }, "{bad:?} after {opens}: {now}");
            assert_eq!(count(&store, 0..10).await, 10);
            assert!(bad.len() == 2 || scratched.bad.lock().unwrap().is_empty(), "the lost slot is written");
        }
    }
}

#[tokio::test]
async fn unreadable_head_ends_no_log() {
    let memory = Arc::new(MemoryDevice::new(8 << 20));
    let create = CreateOptions { segment_bytes: Some(64 << 10), ..CreateOptions::default() };
    Store::create(memory.clone(), &create).await.unwrap();
    let store = Store::open(memory.clone(), options()).await.unwrap();
    // Each segment has one append.
    let (mut objects, mut heads) = (0, Vec::new());
    while heads.len() < 6 {
        for _ in 0..7 {
            put(&store, objects, 7000).await;
            objects += 1;
        }
        store.sync().await.unwrap();
        heads.push(store.stat().head_epoch);
    }
    let whole = memory.snapshot();
    drop(store);
    heads.dedup();
    let segments_offset = {
        let image = memory.image();
        u64::from_le_bytes(image[88..96].try_into().unwrap())
    };
    for epoch in &heads[..heads.len() - 2] {
        let block = (segments_offset + epoch * (64 << 10)) / BLOCK_BYTES;
        let store = Store::open(BadBlockDevice::over(&whole, &[block]).device(), options()).await.unwrap();
        let found = count(&store, 0..objects).await;
        assert!(found + 2 >= objects, "segment {epoch}: {found} of {objects}");
    }
}

#[tokio::test]
async fn unreadable_block_spares_adjacent_objects() {
    let snapshot = closed(8 << 20, 200, 5200).await;
    let mut image = Vec::new();
    let device: SharedDevice = Arc::new(MemoryDevice::from_snapshot(&snapshot));
    for offset in (0..8 << 20).step_by(1 << 20) {
        image.extend_from_slice(&nectary_block::read(&*device, offset, 1 << 20).await.unwrap());
    }
    let starts: Vec<usize> = (0..image.len()).step_by(64).filter(|at| image[*at..].starts_with(b"NREC")).collect();
    assert_eq!(starts.len(), 200);
    for block in starts.iter().map(|at| (*at as u64).div_ceil(BLOCK_BYTES)).take(60) {
        let (begin, end) = ((block * BLOCK_BYTES) as usize, ((block + 1) * BLOCK_BYTES) as usize);
        let length = 144 + name(10).len() + 1 + 5200;
        let touched = starts.iter().filter(|at| **at < end && **at + length > begin).count() as u64;
        let scratched = BadBlockDevice::over(&snapshot, &[block]);
        let store = Store::open(scratched.device(), options()).await.unwrap();
        assert_eq!(count(&store, 0..200).await, 200 - touched, "block {block}");
        assert_eq!(store.check(|_, _| ()).await.damaged, touched, "block {block}");
    }
}

#[tokio::test]
async fn open_reads_each_chunk_once() {
    // A store without an append has no place from which its log could be followed: two reads of each segment.
    for (objects, reads_max) in [(0, 140), (3000, 60)] {
        let snapshot = closed(64 << 20, objects, 500).await;
        for index_loading in [IndexLoading::BySize, IndexLoading::Shards] {
            let scratched = BadBlockDevice::over(&snapshot, &[]);
            assert!(Store::probe(&scratched.device()).await.unwrap());
            let open = OpenOptions { index_loading, ..options() };
            let store = Store::open(scratched.device(), open).await.unwrap();
            nectary_kit::until_async("the index is loaded", async || !store.stat().index_loading).await;
            let reads = scratched.reads();
            assert!(reads <= reads_max, "{objects} objects: {reads} reads");
        }
    }
}

/// A close does not wait for the index.
#[tokio::test]
async fn close_skips_index_load() {
    let snapshot = closed(64 << 20, 20_000, 10).await;
    let scratched = BadBlockDevice { delay: Duration::from_millis(30), ..BadBlockDevice::over(&snapshot, &[]) };
    let open = OpenOptions { index_loading: IndexLoading::Shards, ..options() };
    let store = Store::open(scratched.device(), open.clone()).await.unwrap();
    let before = scratched.reads();
    store.close().await.unwrap();
    assert!(scratched.reads() <= before + 2, "{} reads", scratched.reads() - before);
    drop(store);
    let store = Store::open(BadBlockDevice { delay: Duration::ZERO, ..scratched }.device(), open).await.unwrap();
    assert_eq!(count(&store, 0..20_000).await, 20_000);
}
