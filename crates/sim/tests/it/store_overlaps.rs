//! Calls that overlap in a chosen way, and the planted bugs that only such calls show.

use std::sync::Arc;
use std::time::Duration;

use futures_util::poll;
use nectary_block::{Filter, IoFuture, MemoryDevice, Operation, Request, SharedDevice};
use nectary_sim::late::in_virtual_time;
use nectary_store::planted::{Bug, plant};
use nectary_store::{AdmissionOptions, Background, CreateOptions, FillRole, KeyRef, OpenOptions, Store};
use tokio::sync::watch;

use crate::support::alone;

/// A device whose reads and flushes wait while it is shut.
struct Gated {
    inner: SharedDevice,
    shut: watch::Receiver<bool>,
}

impl Filter for Gated {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }

    fn spec(&self) -> String {
        self.inner.spec()
    }

    fn around<T: Send + 'static>(
        &self,
        request: Request,
        operation: impl FnOnce(&SharedDevice) -> IoFuture<T> + Send + 'static,
    ) -> IoFuture<T> {
        let (mut shut, done) = (self.shut.clone(), operation(&self.inner));
        let waits = matches!(request.operation, Operation::Read | Operation::Flush);
        Box::pin(async move {
            if waits {
                let _ = shut.wait_for(|shut| !shut).await;
            }
            done.await
        })
    }
}

const KEY: KeyRef<'_> = KeyRef { primary: b"key", variant: b"" };

fn options() -> OpenOptions {
    OpenOptions {
        memory_bytes: 16 << 20,
        write_delay: Duration::from_secs(3600),
        flush_interval: None,
        warm_up: false,
        background: Background::Caller,
        admission: AdmissionOptions::default(),
        ..OpenOptions::default()
    }
}

/// Makes a store that has one object on its disk, and none in memory.
async fn stored() -> (watch::Sender<bool>, Store) {
    let memory = Arc::new(MemoryDevice::new(4 << 20));
    Store::create(memory.clone(), &CreateOptions { seed: Some(1), ..CreateOptions::default() }).await.unwrap();
    let store = Store::open(memory.clone(), options()).await.unwrap();
    store.put(KEY, "old".into(), vec![1; 3000].into()).await.unwrap();
    store.close().await.unwrap();
    drop(store);
    let (gate, shut) = watch::channel(false);
    let store = Store::open(Arc::new(Gated { inner: memory, shut }), options()).await.unwrap();
    // Everything that is read after an open was read.
    tokio::time::sleep(Duration::from_secs(1)).await;
    (gate, store)
}

/// A get that waits for another get's read answers with nothing that was purged meanwhile.
async fn waiter_after_a_purge() -> Option<String> {
    let (gate, store) = stored().await;
    gate.send(true).unwrap();
    let (mut reads, mut waits) = (Box::pin(store.get(KEY)), Box::pin(store.get(KEY)));
    let is_begun = poll!(&mut reads).is_pending() && poll!(&mut waits).is_pending();
    assert!(is_begun, "the read is held");
    store.put(KEY, "new".into(), vec![2; 3000].into()).await.unwrap();
    let mut purge = Box::pin(store.purge_key(KEY.primary));
    // The rule holds in memory; its flush is held with the read.
    tokio::time::sleep(Duration::from_millis(1)).await;
    let _ = poll!(&mut purge);
    gate.send(false).unwrap();
    let (_, found, purged) = tokio::join!(reads, waits, purge);
    purged.unwrap();
    found.map(|object| format!("a waiter found {:?}, which was purged", object.metadata()))
}

/// A sync that begins during a flush returns when what was put before it is flushed, too.
async fn sync_during_a_flush() -> Option<String> {
    let (gate, store) = stored().await;
    store.put(KEY, "first".into(), vec![3; 100].into()).await.unwrap();
    gate.send(true).unwrap();
    let mut first = Box::pin(store.sync());
    assert!(poll!(&mut first).is_pending());
    tokio::time::sleep(Duration::from_millis(10)).await;
    store.put(KEY, "second".into(), vec![4; 100].into()).await.unwrap();
    let wanted = store.sequences().last;
    let mut second = Box::pin(store.sync());
    assert!(poll!(&mut second).is_pending());
    tokio::time::sleep(Duration::from_millis(10)).await;
    gate.send(false).unwrap();
    let (first, second) = tokio::join!(first, second);
    first.unwrap();
    let flushed = second.unwrap().flushed;
    (flushed < wanted).then(|| format!("a sync returned with {flushed:?} flushed, not {wanted:?}"))
}

/// A fill that began before a put replaces nothing.
async fn fill_that_began_before_a_put() -> Option<String> {
    let (_gate, store) = stored().await;
    let stale = store.get(KEY).await;
    let FillRole::Leader(mut fill) = store.begin_fill(KEY, stale.as_ref()) else { panic!("nobody fills") };
    assert!(fill.start(KEY.variant, "fill".into(), None));
    store.put(KEY, "put".into(), vec![5; 100].into()).await.unwrap();
    fill.write(vec![6; 100].into()).await.unwrap();
    let _ = fill.finish().await;
    let found = store.get(KEY).await.map(|object| object.metadata().to_vec());
    (found.as_deref() != Some(b"put")).then(|| format!("found {found:?} after a newer put"))
}

#[test]
fn overlapping_calls_show_planted_bugs() {
    let _alone = alone();
    type Scenario = fn() -> Option<String>;
    let scenarios: [(Bug, Scenario); 3] = [
        (Bug::WaiterIgnoresPurge, || in_virtual_time(waiter_after_a_purge())),
        (Bug::SyncOfRunningFlush, || in_virtual_time(sync_during_a_flush())),
        (Bug::OlderFillReplaces, || in_virtual_time(fill_that_began_before_a_put())),
    ];
    for (bug, scenario) in scenarios {
        assert_eq!(scenario(), None, "without {}", bug.name());
        plant(Some(bug));
        let caught = scenario();
        plant(None);
        println!("planted: {}: {caught:?}", bug.name());
        assert!(caught.is_some(), "{} survived", bug.name());
    }
}
