//! A purge record is kept as long as a purged object may be on the disk, including an object that waited to be written
//! when the purge was made.

use std::sync::Arc;

use crate::common::{body, open, options};
use nectary_block::{DeviceOperation, DeviceRequest, Filter, IoFuture, MemoryDevice, SharedDevice};
use nectary_store::{CreateOptions, KeyRef, Store};
use tokio::sync::watch;

const STORE_BYTES: u64 = 1 << 20;
const SEGMENT_BYTES: u64 = 32 << 10;
const BODY_BYTES: usize = 3000;

/// Blocks writes of more than one block, which are appends, while the gate is shut.
struct AppendGate {
    inner: SharedDevice,
    open: watch::Receiver<bool>,
}

impl Filter for AppendGate {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }
    fn spec(&self) -> String {
        self.inner.spec()
    }
    fn around<T: Send + 'static>(
        &self,
        request: DeviceRequest,
        operation: impl FnOnce(&SharedDevice) -> IoFuture<T> + Send + 'static,
    ) -> IoFuture<T> {
        let (inner, mut open) = (self.inner.clone(), self.open.clone());
        let held = request.operation == DeviceOperation::Write && request.length > 4096;
        Box::pin(async move {
            if held {
                open.wait_for(|open| *open).await.expect("the gate is there");
            }
            operation(&inner).await
        })
    }
}

async fn put(store: &Store, key: &str) {
    store.put(KeyRef::new(key.as_bytes(), b""), "metadata".into(), body(1, BODY_BYTES)).await.unwrap();
}

/// The record of a purge outlives what waited for the disk when it was made.
#[tokio::test]
async fn purge_record_outlives_waiting_objects() {
    let memory = Arc::new(MemoryDevice::new(STORE_BYTES));
    let (gate, is_open) = watch::channel(true);
    let device: SharedDevice = Arc::new(AppendGate { inner: memory.clone(), open: is_open });
    let create = CreateOptions { segment_bytes: Some(SEGMENT_BYTES), ..CreateOptions::default() };
    Store::create(device.clone(), &create).await.unwrap();
    let store = Store::open(device, options()).await.unwrap();
    put(&store, "first").await;
    store.sync().await.unwrap();

    // Enough objects wait to fill more than eight segments. The object that is purged later waits behind them.
    gate.send(false).unwrap();
    for number in 0..9 * SEGMENT_BYTES / BODY_BYTES as u64 {
        put(&store, &format!("waits {number}")).await;
    }
    put(&store, "victim").await;
    put(&store, "neighbour").await;
    let purged_at = store.stat().head_epoch;
    let purge = tokio::spawn({
        let store = store.clone();
        async move { store.purge_key(b"victim").await }
    });
    while store.stat().purge_records == 0 {
        tokio::task::yield_now().await;
    }
    gate.send(true).unwrap();
    purge.await.unwrap().unwrap();
    store.sync().await.unwrap();
    let written_at = store.stat().head_epoch;
    assert!(written_at >= purged_at + 8, "it was written in segment {written_at}, purged in {purged_at}");

    // Puts follow until everything that was written before the purge is overwritten, and a new cycle of the purge log
    // is begun. The purged object, "victim", is still on the disk.
    let end = purged_at + store.stat().segment_count + 4;
    let mut number = 0;
    while store.stat().head_epoch < end {
        put(&store, &format!("later {number}")).await;
        store.sync().await.unwrap();
        number += 1;
    }
    for number in 10..30 {
        store.purge_prefix(format!("other {number}").as_bytes()).await.unwrap();
    }
    assert!(store.stat().head_epoch < written_at + store.stat().segment_count);
    drop(store);

    let mut image = memory.image();
    image.chunks_mut(4096).filter(|block| block.starts_with(b"NCKH")).for_each(|block| block.fill(0));
    let store = open(Arc::new(MemoryDevice::from_image(image))).await;
    assert!(!store.stat().recovery.checkpoint && !store.stat().recovery.purges_lost);
    assert!(store.get(KeyRef::new(b"neighbour", b"")).await.is_some(), "its segment is gone: it proves nothing");
    assert!(store.get(KeyRef::new(b"victim", b"")).await.is_none(), "what was purged came back");
}
