//! Appends continue while the device flushes for a purge or a sync.

use std::sync::Arc;

use crate::common::{body, open};
use nectary_block::{DeviceOperation, DeviceRequest, Filter, IoFuture, MemoryDevice, SharedDevice};
use nectary_store::{CreateOptions, KeyRef, PutSequence, Store};
use tokio::sync::watch;

/// Blocks flushes while it is shut.
struct FlushGate {
    inner: SharedDevice,
    open: watch::Receiver<bool>,
    held: watch::Sender<u32>,
}

impl Filter for FlushGate {
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
        let (inner, mut open, held) = (self.inner.clone(), self.open.clone(), self.held.clone());
        Box::pin(async move {
            if request.operation == DeviceOperation::Flush && !*open.borrow() {
                held.send_modify(|held| *held += 1);
                open.wait_for(|open| *open).await.expect("the gate is there");
            }
            operation(&inner).await
        })
    }
}

async fn put(store: &Store, key: &str) -> PutSequence {
    store.put(KeyRef::new(key.as_bytes(), b""), "metadata".into(), body(1, 1000)).await.unwrap()
}

async fn is_written(store: &Store, sequence: PutSequence) {
    let written = async {
        while store.sequences().written < sequence {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), written).await.expect("appends go on");
}

/// Appends go on while a purge and a sync are flushed.
#[tokio::test]
async fn appends_continue_during_purge_flush() {
    let memory = Arc::new(MemoryDevice::new(4 << 20));
    let (gate, is_open) = watch::channel(true);
    let (held, mut holds) = watch::channel(0);
    let device: SharedDevice = Arc::new(FlushGate { inner: memory.clone(), open: is_open, held });
    Store::create(device.clone(), &CreateOptions::default()).await.unwrap();
    let store = open(device).await;
    put(&store, "first").await;
    put(&store, "second").await;
    store.sync().await.unwrap();

    gate.send(false).unwrap();
    let purge = tokio::spawn({
        let store = store.clone();
        async move { store.purge_key(b"first").await }
    });
    holds.wait_for(|held| *held == 1).await.unwrap();
    let during_purge = put(&store, "during the purge").await;
    is_written(&store, during_purge).await;
    assert!(!purge.is_finished(), "a purge was answered before it was flushed");

    let sync = tokio::spawn({
        let store = store.clone();
        async move { store.sync().await }
    });
    holds.wait_for(|held| *held == 2).await.unwrap();
    let during_sync = put(&store, "during the sync").await;
    is_written(&store, during_sync).await;
    let sequences = store.sequences();
    assert!(sequences.flushed < during_purge && !sync.is_finished(), "{sequences:?}: nothing was flushed");

    gate.send(true).unwrap();
    purge.await.unwrap().unwrap();
    // Objects written after the flush began do not count as flushed.
    assert!(sync.await.unwrap().unwrap().flushed >= during_purge);
    let synced = store.sync().await.unwrap();
    assert!(synced.flushed >= during_sync);
    drop(store);
    let store = open(Arc::new(MemoryDevice::from_image(memory.image()))).await;
    assert!(store.get(KeyRef::new(b"first", b"")).await.is_none());
    for key in ["second", "during the purge", "during the sync"] {
        assert!(store.get(KeyRef::new(key.as_bytes(), b"")).await.is_some(), "{key}");
    }
}
