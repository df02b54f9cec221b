//! Failed writes and flushes: writing goes on by itself, and nothing is claimed that is not so.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::{body, options};
use nectary_block::{
    Buffer, DeviceErrorKind, DeviceOperation, DeviceRequest, Error, Filter, IoContext, IoFuture, MemoryDevice,
    SharedDevice, WriteFlags,
};
use nectary_store::{BackgroundRuntime, CreateOptions, KeyRef, OpenOptions, SpanSet, Store};

/// The numbers of operations that fail next; a failed write leaves a part of its range written.
struct FaultCountDevice {
    inner: SharedDevice,
    memory: Arc<MemoryDevice>,
    writes: AtomicU32,
    /// How many writes pass before the next one fails.
    after: AtomicU32,
    flushes: AtomicU32,
    /// Whether a failed flush loses what was written since the last good one.
    forgets: bool,
    kind: Mutex<DeviceErrorKind>,
    durable: Mutex<Vec<u8>>,
    failed: AtomicU64,
    /// Writes before this address do not fail.
    from: AtomicU64,
}

impl FaultCountDevice {
    fn new(bytes: u64, forgets: bool) -> Arc<FaultCountDevice> {
        let memory = Arc::new(MemoryDevice::new(bytes));
        Arc::new(FaultCountDevice {
            inner: memory.clone(),
            durable: Mutex::new(memory.image()),
            memory,
            writes: AtomicU32::new(0),
            after: AtomicU32::new(0),
            flushes: AtomicU32::new(0),
            forgets,
            kind: Mutex::new(DeviceErrorKind::Io),
            failed: AtomicU64::new(0),
            from: AtomicU64::new(0),
        })
    }

    fn takes(count: &AtomicU32) -> bool {
        count.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1)).is_ok()
    }

    fn error(&self, operation: DeviceOperation) -> Error {
        self.failed.fetch_add(1, Ordering::AcqRel);
        Error::new(*self.kind.lock().unwrap(), "faults", operation, "on purpose")
    }

    /// The device as the end of the process leaves it.
    fn killed(&self) -> SharedDevice {
        Arc::new(MemoryDevice::from_image(self.memory.image()))
    }

    /// The device as a loss of power leaves it, if nothing unflushed survives.
    fn unpowered(&self) -> SharedDevice {
        Arc::new(MemoryDevice::from_image(self.durable.lock().unwrap().clone()))
    }
}

impl Filter for FaultCountDevice {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }
    fn spec(&self) -> String {
        "faults".into()
    }
    fn around<T: Send + 'static>(
        &self,
        _: DeviceRequest,
        operation: impl FnOnce(&SharedDevice) -> IoFuture<T> + Send + 'static,
    ) -> IoFuture<T> {
        operation(&self.inner)
    }
    fn write_at(
        &self,
        offset: u64,
        mut buffers: Vec<Buffer>,
        flags: WriteFlags,
        context: IoContext,
    ) -> IoFuture<Vec<Buffer>> {
        let is_chosen = offset >= self.from.load(Ordering::Acquire) && self.writes.load(Ordering::Acquire) > 0;
        if !is_chosen || FaultCountDevice::takes(&self.after) || !FaultCountDevice::takes(&self.writes) {
            return self.inner.write_at(offset, buffers, flags, context);
        }
        let (inner, error) = (self.inner.clone(), self.error(DeviceOperation::Write));
        let half = buffers[0].len() / 2 / 4096 * 4096;
        buffers.truncate(1);
        buffers[0].set_len(half);
        Box::pin(async move {
            inner.write_at(offset, buffers, flags, context).await.unwrap();
            Err(error)
        })
    }
    fn flush(&self, context: IoContext) -> IoFuture<()> {
        if !FaultCountDevice::takes(&self.flushes) {
            *self.durable.lock().unwrap() = self.memory.image();
            return self.inner.flush(context);
        }
        let (inner, error) = (self.inner.clone(), self.error(DeviceOperation::Flush));
        let lost = self.forgets.then(|| self.durable.lock().unwrap().clone());
        Box::pin(async move {
            for (number, bytes) in lost.iter().flat_map(|lost| lost.chunks(1 << 20).enumerate()) {
                let at = (number as u64) << 20;
                nectary_block::write(&*inner, at, Buffer::copy_of(bytes)).await.unwrap();
            }
            Err(error)
        })
    }
}

fn here() -> OpenOptions {
    OpenOptions { background: BackgroundRuntime::Caller, ..options() }
}

async fn made(faults: &Arc<FaultCountDevice>) -> Store {
    let create = CreateOptions { segment_bytes: Some(64 << 10), ..CreateOptions::default() };
    Store::create(faults.clone(), &create).await.unwrap();
    Store::open(faults.clone(), here()).await.unwrap()
}

async fn put(store: &Store, name: &str, version: u64) {
    store.put(KeyRef::new(name.as_bytes(), b""), "m".into(), body(version, 3000)).await.unwrap();
}

/// The version of an object, if the store has one.
async fn version(store: &Store, name: &str, newest: u64) -> Option<u64> {
    let object = store.get(KeyRef::new(name.as_bytes(), b"")).await?;
    let bytes = object.whole().unwrap().clone();
    Some((0..=newest).rev().find(|&version| body(version, 3000) == bytes).expect("the bytes of a version"))
}

#[tokio::test(start_paused = true)]
async fn failed_write_goes_to_another_segment() {
    for kind in [DeviceErrorKind::Io, DeviceErrorKind::Full] {
        let faults = FaultCountDevice::new(4 << 20, false);
        let store = made(&faults).await;
        put(&store, "key", 1).await;
        store.sync().await.unwrap();
        *faults.kind.lock().unwrap() = kind;
        faults.writes.store(1, Ordering::Release);
        put(&store, "key", 2).await;
        put(&store, "other", 1).await;
        store.sync().await.unwrap();
        let stat = store.stat();
        assert_eq!((stat.counts.writes_failed, stat.counts.segments_set_aside, stat.trouble), (1, 1, None));
        assert!(store.take_notes().iter().any(|note| note.contains("a write failed")), "the log has a line");
        store.purge_key(b"absent").await.unwrap();
        drop(store);
        for device in [faults.killed(), faults.unpowered()] {
            let store = Store::open(device, here()).await.unwrap();
            assert_eq!(version(&store, "key", 2).await, Some(2));
            assert_eq!(version(&store, "other", 2).await, Some(1));
        }
    }
}

/// The first append of a segment fails, so the log has a segment without any append.
#[tokio::test(start_paused = true)]
async fn empty_segment_hides_nothing() {
    for count in 1..=4 {
        let faults = FaultCountDevice::new(4 << 20, false);
        let store = made(&faults).await;
        put(&store, "before", 1).await;
        store.sync().await.unwrap();
        store.checkpoint().await.unwrap();
        let first = faults.memory.image().chunks(4096).position(|block| block.starts_with(b"NAPP")).unwrap();
        faults.from.store(first as u64 * 4096, Ordering::Release);
        faults.writes.store(count, Ordering::Release);
        put(&store, "key", 1).await;
        while store.sync().await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        assert_eq!(store.stat().counts.segments_set_aside, u64::from(count));
        for device in [faults.killed(), faults.unpowered()] {
            let store = Store::open(device, here()).await.unwrap();
            assert_eq!((version(&store, "before", 1).await, version(&store, "key", 1).await), (Some(1), Some(1)));
        }
    }
}

/// Failing writes end the store at the bound.
#[tokio::test(start_paused = true)]
async fn failing_writes_stop_store() {
    let faults = FaultCountDevice::new(4 << 20, false);
    let store = made(&faults).await;
    put(&store, "before", 1).await;
    store.sync().await.unwrap();
    faults.writes.store(u32::MAX, Ordering::Release);
    put(&store, "key", 1).await;
    while store.stat().stopped.is_none() {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    let failed = faults.failed.load(Ordering::Acquire);
    assert!((8..=10).contains(&failed), "{failed}");
    assert!(store.purge_key(b"other").await.is_err());
    assert_eq!(version(&store, "before", 1).await, Some(1));
    assert_eq!(version(&store, "key", 1).await, None, "what was not written is not served");
}

/// A full device is tried until it has room.
#[tokio::test(start_paused = true)]
async fn full_device_is_retried() {
    let faults = FaultCountDevice::new(4 << 20, false);
    let store = made(&faults).await;
    *faults.kind.lock().unwrap() = DeviceErrorKind::Full;
    faults.writes.store(50, Ordering::Release);
    put(&store, "key", 1).await;
    assert!(store.sync().await.is_err());
    assert!(store.stat().trouble.unwrap().contains("a write failed"));
    while store.stat().trouble.is_some() {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    store.sync().await.unwrap();
    assert_eq!(store.stat().counts.segments_set_aside, 0, "the segment was new");
    let store = Store::open(faults.unpowered(), here()).await.unwrap();
    assert_eq!(version(&store, "key", 1).await, Some(1));
}

/// The failed write of a purge fails that purge alone.
#[tokio::test(start_paused = true)]
async fn failed_purge_write_fails_alone() {
    for after in 0..2 {
        let faults = FaultCountDevice::new(4 << 20, false);
        let store = made(&faults).await;
        for name in ["a", "b", "c"] {
            put(&store, name, 1).await;
        }
        store.sync().await.unwrap();
        store.purge_key(b"a").await.unwrap();
        faults.after.store(after, Ordering::Release);
        faults.writes.store(1, Ordering::Release);
        store.purge_key(b"b").await.unwrap_err();
        store.purge_key(b"c").await.unwrap();
        let store = Store::open(faults.unpowered(), here()).await.unwrap();
        assert!(!store.stat().recovery.purges_lost);
        for name in ["a", "c"] {
            assert_eq!(version(&store, name, 1).await, None);
        }
    }
}

/// What followed the last good flush is written again, also if the device has lost it.
#[tokio::test(start_paused = true)]
async fn failed_flush_is_repaired_by_rewriting() {
    for forgets in [false, true] {
        let faults = FaultCountDevice::new(4 << 20, forgets);
        let store = made(&faults).await;
        put(&store, "kept", 1).await;
        put(&store, "key", 1).await;
        store.sync().await.unwrap();
        let flushed = store.sequences().flushed;
        put(&store, "key", 2).await;
        faults.flushes.store(2, Ordering::Release);
        store.sync().await.unwrap_err();
        assert_eq!(store.sequences().flushed, flushed, "nothing pretends");
        store.purge_key(b"kept").await.unwrap_err();
        assert!(store.stat().trouble.unwrap().contains("a flush failed"));
        while store.stat().trouble.is_some() {
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            let _ = store.sync().await;
            put(&store, "more", 1).await;
        }
        store.sync().await.unwrap();
        put(&store, "later", 1).await;
        store.sync().await.unwrap();
        assert!(store.stat().counts.appends_rewritten >= 1 && store.stat().counts.flushes_failed == 2);
        drop(store);
        for device in [faults.killed(), faults.unpowered()] {
            let store = Store::open(device, here()).await.unwrap();
            assert_eq!(version(&store, "key", 2).await, (!forgets).then_some(2), "the older one stays away");
            assert_eq!(version(&store, "kept", 1).await, None, "the failed purge was made durable with the rest");
            assert_eq!(version(&store, "later", 1).await, Some(1));
        }
    }
}

/// Random puts, purges, syncs and failures; the device is looked at as a kill and as a loss of power leave it.
#[tokio::test(start_paused = true)]
async fn random_failures_lose_and_revive_nothing() {
    for seed in 1..=10_u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let faults = FaultCountDevice::new(8 << 20, false);
        let store = made(&faults).await;
        // For each key: the last version put, the last one synced, the last one that a purge removed, and the last one
        // that a failed purge may have removed.
        let mut keys = [(0_u64, 0_u64, 0_u64, 0_u64); 12];
        for _ in 0..120 {
            let at = random(12) as usize;
            let name = format!("key {at}");
            match random(12) {
                0 => {
                    faults.after.store(random(3) as u32, Ordering::Release);
                    faults.writes.store(1 + random(3) as u32, Ordering::Release);
                }
                1 => faults.flushes.store(1 + random(2) as u32, Ordering::Release),
                2 => {
                    if store.purge_key(name.as_bytes()).await.is_ok() {
                        keys[at].2 = keys[at].0;
                    } else {
                        // It holds in memory, and may become durable.
                        keys[at].3 = keys[at].0;
                    }
                }
                3..=5 => {
                    if store.sync().await.is_ok() {
                        keys.iter_mut().for_each(|key| key.1 = key.0);
                    }
                }
                6 => tokio::time::sleep(std::time::Duration::from_millis(random(200))).await,
                _ => {
                    keys[at].0 += 1;
                    put(&store, &name, keys[at].0).await;
                }
            }
            assert_eq!(store.stat().stopped, None, "seed {seed}");
        }
        let flushed = store.sequences();
        for (power, device) in [(false, faults.killed()), (true, faults.unpowered())] {
            let store = Store::open(device, here()).await.unwrap();
            assert!(store.sequences().written >= flushed.flushed, "seed {seed} {power}");
            for (at, &(last, synced, purged, in_doubt)) in keys.iter().enumerate() {
                let found = version(&store, &format!("key {at}"), last).await;
                let fine = match found {
                    Some(found) => found > purged && found >= synced,
                    None => synced <= purged.max(in_doubt),
                };
                assert!(fine, "seed {seed}, power {power}, key {at}: {found:?} of {:?}", keys[at]);
            }
        }
    }
}

/// A span whose writes fail for a moment is not lost.
#[tokio::test(start_paused = true)]
async fn failed_write_costs_no_span() {
    let faults = [FaultCountDevice::new(4 << 20, false), FaultCountDevice::new(4 << 20, false)];
    let spans = faults.iter().map(|faults| nectary_store::SpanDevice {
        spec: "faults".into(),
        device: Ok(faults.clone() as SharedDevice),
        size_bytes: 0,
    });
    let store = SpanSet::open(spans.collect(), here()).await.unwrap();
    faults.iter().for_each(|faults| faults.writes.store(1, Ordering::Release));
    for number in 0..20 {
        let name = format!("key {number}");
        store.put(KeyRef::new(name.as_bytes(), b""), "m".into(), body(1, 3000)).await.unwrap();
    }
    store.sync().await.unwrap();
    assert!(store.stat().spans.iter().all(|span| span.lost.is_none()));
    assert_eq!(store.stat().counts.writes_failed, 2);
    store.purge_all().await.unwrap();
}
