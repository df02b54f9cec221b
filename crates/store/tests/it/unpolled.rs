//! Calls that were begun and are not polled any more keep nobody else waiting.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::common::{body, options};
use futures_util::poll;
use nectary_block::{DeviceOperation, DeviceRequest, Filter, IoFuture, MemoryDevice, SharedDevice};
use nectary_store::{
    AdmissionOptions, AdmitRule, BackgroundRuntime, CreateOptions, FillHead, FillRole, KeyRef, OpenOptions, SpanDevice,
    SpanSet, Store,
};
use tokio::sync::watch;

/// Blocks reads while it is shut.
struct ReadGate {
    inner: SharedDevice,
    open: watch::Receiver<bool>,
}

impl Filter for ReadGate {
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
        Box::pin(async move {
            if request.operation == DeviceOperation::Read {
                open.wait_for(|open| *open).await.expect("the gate is there");
            }
            operation(&inner).await
        })
    }
}

fn here() -> OpenOptions {
    OpenOptions { background: BackgroundRuntime::Caller, ..options() }
}

/// Waits for what must end soon.
async fn soon<T>(call: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(3), call).await.expect("it waits for what is not polled")
}

#[tokio::test(start_paused = true)]
async fn unpolled_get_keeps_no_other_waiting() {
    let memory: SharedDevice = Arc::new(MemoryDevice::new(4 << 20));
    Store::create(memory.clone(), &CreateOptions::default()).await.unwrap();
    let key = KeyRef::new(b"key", b"");
    let long = KeyRef::new(b"long", b"");
    let store = Store::open(memory.clone(), here()).await.unwrap();
    store.put(key, "m".into(), body(1, 3000)).await.unwrap();
    store.put(long, "m".into(), body(2, 600_000)).await.unwrap();
    store.close().await.unwrap();
    let (gate, open) = watch::channel(true);
    let store = Store::open(Arc::new(ReadGate { inner: memory, open }), here()).await.unwrap();
    // The head of the long object is read, its fragments are not.
    let object = store.get(long).await.unwrap();
    gate.send(false).unwrap();
    let mut unpolled = Box::pin(store.get(key));
    let mut reader = object.reader(0..u64::MAX);
    let mut unread = Box::pin(reader.next());
    assert!(poll!(&mut unpolled).is_pending() && poll!(&mut unread).is_pending());
    let others: Vec<_> = (0..40).map(|_| Box::pin(store.get(key))).collect();
    let others = tokio::spawn({
        let (store, others) = (store.clone(), others.len());
        async move {
            let gets = (0..others).map(|_| store.get(KeyRef::new(b"key", b"")));
            futures_util::future::join_all(gets).await
        }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let reads = store.stat().counts.device_reads;
    gate.send(true).unwrap();
    assert!(soon(others).await.unwrap().iter().all(Option::is_some));
    assert!(soon(store.get(key)).await.is_some());
    let mut second = object.reader(0..u64::MAX);
    while let Some(chunk) = soon(second.next()).await {
        chunk.unwrap();
    }
    assert!(reads <= 8, "{reads}: waiters share their second read");
    drop((unpolled, unread));
}

#[tokio::test(start_paused = true)]
async fn unpolled_follower_holds_no_fill_up() {
    let memory: SharedDevice = Arc::new(MemoryDevice::new(32 << 20));
    Store::create(memory.clone(), &CreateOptions::default()).await.unwrap();
    let admission = AdmissionOptions { rule: AdmitRule::SecondRequest, ..AdmissionOptions::default() };
    let store = Store::open(memory, OpenOptions { admission, ..here() }).await.unwrap();
    let key = KeyRef::new(b"key", b"");
    let FillRole::Leader(mut fill) = store.begin_fill(key, None) else { panic!("nobody else fetches it") };
    let FillRole::Follower(mut idle) = store.begin_fill(key, None) else { panic!("it is being fetched") };
    let FillRole::Follower(mut reading) = store.begin_fill(key, None) else { panic!("it is being fetched") };
    assert!(fill.start(b"", "m".into(), None));
    assert!(matches!(idle.head().await, FillHead::Streaming { .. }));
    let read = tokio::spawn(async move {
        let mut bytes = 0;
        while let Some(chunk) = reading.next().await {
            bytes += chunk.unwrap().len();
        }
        bytes
    });
    for number in 0..80 {
        let written = fill.write(body(number, 100_000));
        tokio::time::timeout(Duration::from_secs(20), written).await.expect("it waits for a reader").unwrap();
    }
    let _ = fill.finish().await;
    assert_eq!(read.await.unwrap(), 8_000_000);
    assert!(idle.next().await.unwrap().is_err(), "a reader never gets a body with a gap");
}

#[tokio::test(start_paused = true)]
async fn unpolled_purges_hold_no_purge_up() {
    let span = |name: &str| SpanDevice {
        spec: name.to_owned(),
        device: Ok(Arc::new(MemoryDevice::new(4 << 20))),
        size_bytes: 0,
    };
    let store = SpanSet::open(vec![span("one"), span("two")], here()).await.unwrap();
    let key = KeyRef::new(b"key", b"");
    store.put(key, "m".into(), body(1, 100)).await.unwrap();
    // More than the queues of the writers take.
    let mut unpolled: Vec<_> = (0..1500).map(|_| Box::pin(store.purge_tag(b"tag"))).collect();
    for purge in &mut unpolled {
        assert!(matches!(poll!(purge), Poll::Pending));
    }
    soon(store.purge_key(b"key")).await.unwrap();
    assert!(store.get(key).await.is_none());
}
