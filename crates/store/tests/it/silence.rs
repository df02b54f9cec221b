//! A device that does not answer costs misses and errors, and nobody waits for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{body, options};
use nectary_block::{DeviceOperation, DeviceRequest, Filter, IoFuture, MemoryDevice, SharedDevice};
use nectary_store::{CreateOptions, KeyRef, OpenOptions, SpanDevice, SpanSet, Store, StoreErrorKind};
use tokio::sync::watch;

/// Holds operations of the chosen kinds while it is shut.
struct SilenceGate {
    inner: SharedDevice,
    shut: watch::Receiver<Vec<DeviceOperation>>,
}

impl Filter for SilenceGate {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }
    fn spec(&self) -> String {
        "gate".into()
    }
    fn around<T: Send + 'static>(
        &self,
        request: DeviceRequest,
        operation: impl FnOnce(&SharedDevice) -> IoFuture<T> + Send + 'static,
    ) -> IoFuture<T> {
        let (inner, mut shut) = (self.inner.clone(), self.shut.clone());
        Box::pin(async move {
            let _ = shut.wait_for(|shut| !shut.contains(&request.operation)).await;
            operation(&inner).await
        })
    }
}

const LIMIT: Duration = Duration::from_millis(100);
/// Far more than a few deadlines.
const SOON: Duration = Duration::from_secs(3);

fn here() -> OpenOptions {
    OpenOptions { device_deadline: Some(LIMIT), ..options() }
}

async fn gated(bytes: u64) -> (Arc<MemoryDevice>, SharedDevice, watch::Sender<Vec<DeviceOperation>>) {
    let memory = Arc::new(MemoryDevice::new(bytes));
    Store::create(memory.clone(), &CreateOptions::default()).await.unwrap();
    let (gate, shut) = watch::channel(Vec::new());
    (memory.clone(), Arc::new(SilenceGate { inner: memory, shut }), gate)
}

async fn put(store: &Store, name: &str, length: usize) {
    store.put(KeyRef::new(name.as_bytes(), b""), "m".into(), body(1, length)).await.unwrap();
}

#[tokio::test]
async fn silent_reads_are_misses_until_answered() {
    let (memory, device, gate) = gated(8 << 20).await;
    let store = Store::open(memory, here()).await.unwrap();
    for number in 0..20 {
        put(&store, &format!("key {number}"), 3000).await;
    }
    put(&store, "long", 600_000).await;
    store.close().await.unwrap();
    drop(store);
    let store = Store::open(device, here()).await.unwrap();
    let object = store.get(KeyRef::new(b"long", b"")).await.unwrap();
    gate.send(vec![DeviceOperation::Read]).unwrap();
    let begun = Instant::now();
    let error = store.try_get(KeyRef::new(b"key 0", b"")).await.expect_err("nobody knows whether it is there");
    assert_eq!((error.kind, error.device_kind()), (StoreErrorKind::Io, Some(nectary_block::DeviceErrorKind::TimedOut)));
    for number in 0..20 {
        assert!(store.get(KeyRef::new(format!("key {number}").as_bytes(), b"")).await.is_none());
    }
    let mut reader = object.reader(0..u64::MAX);
    while let Some(Ok(_)) = reader.next().await {}
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    let stat = store.stat();
    assert!(stat.trouble.unwrap().contains("has not answered"));
    assert!(stat.counts.reads_late >= 1 && stat.counts.reads_avoided >= 15, "{:?}", stat.counts);
    assert!(store.take_notes().iter().any(|note| note.contains("not answered in time")));
    gate.send(Vec::new()).unwrap();
    let is_there = async || store.get(KeyRef::new(b"key 1", b"")).await.is_some();
    nectary_kit::until_async("it answers again", is_there).await;
    assert_eq!(store.stat().trouble, None);
}

/// Silent writes fail purges and use nothing twice.
#[tokio::test]
async fn silent_writes_fail_purges() {
    for held in [vec![DeviceOperation::Write], vec![DeviceOperation::Flush]] {
        let (memory, device, gate) = gated(8 << 20).await;
        let store = Store::open(device, here()).await.unwrap();
        put(&store, "before", 3000).await;
        store.sync().await.unwrap();
        gate.send(held).unwrap();
        let begun = Instant::now();
        assert_eq!(store.purge_key(b"before").await.unwrap_err().kind, StoreErrorKind::Io);
        put(&store, "during", 3000).await;
        assert!(store.sync().await.is_err() && store.purge_all().await.is_err());
        assert!(store.checkpoint().await.is_err());
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        assert!(store.stat().trouble.is_some());
        gate.send(Vec::new()).unwrap();
        nectary_kit::until_async("it answers again", async || store.sync().await.is_ok()).await;
        put(&store, "after", 3000).await;
        store.sync().await.unwrap();
        assert_eq!(store.stat().trouble, None);
        assert!(store.stat().counts.writes_late >= 1);
        drop(store);
        let store = Store::open(memory, here()).await.unwrap();
        assert!(store.get(KeyRef::new(b"before", b"")).await.is_none());
        assert!(store.get(KeyRef::new(b"after", b"")).await.is_some());
    }
}

/// The end of the store does not wait for a silent device.
#[tokio::test]
async fn close_skips_silent_device() {
    let (_memory, device, gate) = gated(8 << 20).await;
    let store = Store::open(device, here()).await.unwrap();
    put(&store, "before", 3000).await;
    gate.send(vec![DeviceOperation::Read, DeviceOperation::Write, DeviceOperation::Flush]).unwrap();
    let begun = Instant::now();
    assert!(store.close().await.is_err());
    drop(store);
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    gate.send(Vec::new()).unwrap();
}

/// A silent span fails purges, and the gets and puts of its own keys alone.
#[tokio::test]
async fn silent_span_fails_alone() {
    let blank = Arc::new(MemoryDevice::new(8 << 20));
    let (gate, shut) = watch::channel(Vec::new());
    let span = |name: &str, device: SharedDevice| SpanDevice { spec: name.into(), device: Ok(device), size_bytes: 0 };
    let gate_device = Arc::new(SilenceGate { inner: blank, shut });
    let spans = vec![span("good", Arc::new(MemoryDevice::new(8 << 20))), span("silent", gate_device)];
    let store = SpanSet::open(spans, here()).await.unwrap();
    gate.send(vec![DeviceOperation::Write, DeviceOperation::Flush]).unwrap();
    let begun = Instant::now();
    for number in 0..20 {
        let name = format!("key {number}");
        store.put(KeyRef::new(name.as_bytes(), b""), "m".into(), body(1, 3000)).await.unwrap();
        assert!(store.get(KeyRef::new(name.as_bytes(), b"")).await.is_some());
    }
    assert!(store.purge_all().await.is_err());
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    gate.send(Vec::new()).unwrap();
    nectary_kit::until_async("it answers again", async || store.purge_all().await.is_ok()).await;
    store.close().await.unwrap();
}
