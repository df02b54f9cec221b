//! Concurrent operations: each test blocks one operation at the device while others continue.

use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use futures_util::future::join_all;
use nectary_block::{Buffer, Filter, IoContext, IoFuture, MemoryDevice, SharedDevice, WriteFlags};
use nectary_store::{CreateOptions, FillRole, KeyRef, OpenOptions, Store};
use tokio::sync::watch;

const STORE_BYTES: u64 = 64 << 20;
/// The memory for objects, in bytes: enough for a few dozen objects.
const OBJECTS_BYTES: u64 = 128 << 10;
const BODY_BYTES: usize = 3000;

/// The time at which a read is blocked.
#[derive(Clone, Copy, PartialEq)]
enum BlockingPoint {
    /// The read is blocked before it reaches the device.
    Before,
    /// The read is blocked after the device has read.
    After,
}

/// Blocks the next read that this thread begins, or all writes, until the gate is opened.
struct NextReadGate {
    device: SharedDevice,
    thread: ThreadId,
    read: Mutex<Option<(BlockingPoint, watch::Receiver<bool>)>>,
    writes: watch::Receiver<bool>,
}

async fn opened(mut gate: watch::Receiver<bool>) {
    // If the sender was dropped, the gate counts as open.
    let _ = gate.wait_for(|is_open| *is_open).await;
}

impl Filter for NextReadGate {
    fn inner(&self) -> &SharedDevice {
        &self.device
    }

    fn spec(&self) -> String {
        self.device.spec()
    }

    fn read_at(&self, offset: u64, buffers: Vec<Buffer>, context: IoContext) -> IoFuture<Vec<Buffer>> {
        let is_own = thread::current().id() == self.thread;
        let gate = is_own.then(|| self.read.lock().unwrap().take()).flatten();
        let device = Arc::clone(&self.device);
        Box::pin(async move {
            let Some((when, gate)) = gate else { return device.read_at(offset, buffers, context).await };
            if when == BlockingPoint::Before {
                opened(gate.clone()).await;
            }
            let read = device.read_at(offset, buffers, context).await;
            opened(gate).await;
            read
        })
    }

    fn write_at(
        &self,
        offset: u64,
        buffers: Vec<Buffer>,
        flags: WriteFlags,
        context: IoContext,
    ) -> IoFuture<Vec<Buffer>> {
        let (gate, device) = (self.writes.clone(), Arc::clone(&self.device));
        Box::pin(async move {
            opened(gate).await;
            device.write_at(offset, buffers, flags, context).await
        })
    }
}

struct GatedStore {
    store: Store,
    gate: Arc<NextReadGate>,
    writes: watch::Sender<bool>,
}

impl GatedStore {
    async fn new() -> GatedStore {
        GatedStore::of(STORE_BYTES, Some(OBJECTS_BYTES)).await
    }

    async fn of(store_bytes: u64, objects_bytes_max: Option<u64>) -> GatedStore {
        let device: SharedDevice = Arc::new(MemoryDevice::new(store_bytes));
        Store::create(device.clone(), &CreateOptions::default()).await.unwrap();
        let (writes, gate) = watch::channel(true);
        let gate =
            Arc::new(NextReadGate { device, thread: thread::current().id(), read: Mutex::new(None), writes: gate });
        let options = OpenOptions {
            memory_bytes: 16 << 20,
            objects_bytes_max,
            write_delay: Duration::from_millis(5),
            rewrite_percent: 0,
            ..OpenOptions::default()
        };
        let store = Store::open(gate.clone(), options).await.unwrap();
        GatedStore { store, gate, writes }
    }

    async fn put(&self, name: &str, byte: u8) {
        let body = vec![byte; BODY_BYTES].into();
        self.store.put(KeyRef::new(name.as_bytes(), b""), "m".into(), body).await.unwrap();
        self.store.sync().await.unwrap();
    }

    /// Puts so many other objects that all earlier objects have left memory.
    async fn push_out(&self, round: u32) {
        for number in 0..OBJECTS_BYTES / BODY_BYTES as u64 * 2 {
            self.put(&format!("other {round} {number}"), 0).await;
        }
        assert!(self.store.get_resident(KeyRef::new(b"key", b"")).is_none(), "it has left memory");
    }

    async fn get(&self) -> u8 {
        let object = self.store.get(KeyRef::new(b"key", b"")).await.expect("it is there");
        object.whole().unwrap()[0]
    }

    /// Blocks the next read until the returned handle releases it.
    fn hold_read(&self, when: BlockingPoint) -> watch::Sender<bool> {
        let (open, gate) = watch::channel(false);
        *self.gate.read.lock().unwrap() = Some((when, gate));
        open
    }
}

#[tokio::test]
async fn replaced_during_read_stays_gone() {
    let held = GatedStore::new().await;
    held.put("key", 1).await;
    held.push_out(1).await;
    let open = held.hold_read(BlockingPoint::Before);
    let (read, ()) = tokio::join!(held.get(), async {
        held.put("key", 2).await;
        held.push_out(2).await;
        open.send_replace(true);
    });
    assert!(read == 1 || read == 2, "the get began before the put");
    for _ in 0..3 {
        assert_eq!(held.get().await, 2);
    }
}

#[tokio::test]
async fn forty_gets_share_one_read() {
    let held = GatedStore::new().await;
    held.put("key", 7).await;
    held.push_out(1).await;
    let before = held.store.stat().counts;
    let open = held.hold_read(BlockingPoint::Before);
    let (read, ()) = tokio::join!(join_all((0..40).map(|_| held.get())), async {
        tokio::task::yield_now().await;
        open.send_replace(true);
    });
    assert!(read.iter().all(|byte| *byte == 7));
    let after = held.store.stat().counts;
    assert_eq!(after.device_reads - before.device_reads, 1);
    assert_eq!((after.reads_shared - before.reads_shared, after.hits_disk - before.hits_disk), (39, 40));
}

#[tokio::test]
async fn get_after_put_is_fresh() {
    let held = GatedStore::new().await;
    held.put("key", 1).await;
    held.push_out(1).await;
    let open = held.hold_read(BlockingPoint::Before);
    let (_, second) = tokio::join!(held.get(), async {
        held.put("key", 2).await;
        held.push_out(2).await;
        let second = held.get();
        let opener = async {
            tokio::task::yield_now().await;
            open.send_replace(true);
        };
        tokio::join!(second, opener).0
    });
    assert_eq!(second, 2);
}

/// A purged object does not come back with a read that the ring overtakes.
#[tokio::test]
async fn purge_survives_overtaken_read() {
    let held = GatedStore::of(1 << 20, Some(OBJECTS_BYTES)).await;
    let key = KeyRef::new(b"key", b"");
    held.put("key", 1).await;
    held.push_out(1).await;
    held.store.purge_key(b"key").await.unwrap();
    assert_eq!(held.store.stat().purge_records, 1);
    let open = held.hold_read(BlockingPoint::After);
    let gets = async { tokio::join!(held.store.get(key), held.store.get(key)) };
    let ((first, second), ()) = tokio::join!(gets, async {
        // Objects are put until the segment is overwritten and the purge is forgotten.
        let mut number = 0;
        while held.store.stat().purge_records > 0 {
            held.put(&format!("lap {number}"), 0).await;
            number += 1;
            assert!(number < 10_000, "the purge is remembered");
        }
        open.send_replace(true);
    });
    assert!(first.is_none() && second.is_none(), "it was purged before");
}

/// A fill reports whether there is room, and waits for room where its length is known.
#[tokio::test]
async fn fill_reserves_room_or_waits() {
    let held = GatedStore::of(STORE_BYTES, None).await;
    let fill = async |name: &'static str, body_bytes: Option<u64>| {
        let key = KeyRef::new(name.as_bytes(), b"");
        let FillRole::Leader(mut fill) = held.store.begin_fill(key, None) else { panic!("nobody fills it") };
        let reader = fill.reader();
        let metadata = bytes::Bytes::from("m");
        fill.wait_for_room(b"", &metadata, body_bytes).await;
        assert!(fill.start(b"", metadata, body_bytes));
        let is_told = (fill.is_promised(), reader.is_promised());
        fill.write(vec![9; BODY_BYTES].into()).await.unwrap();
        let stored = fill.finish().await.is_ok();
        assert_eq!(is_told, (stored, stored), "what was said is what happened");
        stored
    };
    held.writes.send_replace(false);
    // Objects are put until no more appends can be in flight and the queue is full.
    let mut refused = 0;
    for number in 0.. {
        let name = format!("waits {number}");
        let put = held.store.put(KeyRef::new(name.as_bytes(), b""), "m".into(), vec![0; BODY_BYTES].into()).await;
        match put {
            Ok(_) => refused = 0,
            Err(_) if refused < 10 => {
                refused += 1;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Err(_) => break,
        }
    }
    let known = Some(BODY_BYTES as u64);
    assert!(!fill("key", known).await, "the disk takes nothing");
    assert!(!fill("key", None).await, "nor what was not announced");
    assert!(held.store.get(KeyRef::new(b"key", b"")).await.is_none());
    let (stored, ()) = tokio::join!(fill("key", known), async {
        tokio::task::yield_now().await;
        held.writes.send_replace(true);
    });
    assert!(stored, "there is room before the wait is over");
    assert_eq!(held.get().await, 9);
    held.store.sync().await.unwrap();
    assert!(fill("another", None).await, "there is much room");
}
