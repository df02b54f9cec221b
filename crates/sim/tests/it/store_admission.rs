//! Objects are put while a large index is still loading, into a store that does not admit everything; the store then
//! crashes and is opened again.

use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::Duration;

use nectary_block::{Buffer, Filter, IoContext, IoFuture, MemoryDevice, SharedDevice, read};
use nectary_store::planted::{Bug, plant};
use nectary_store::{AdmissionOptions, AdmitRule, CreateOptions, KeyRef, OpenOptions, Store};
use tokio::sync::watch;

use crate::support::alone;

const STORE_BYTES: u64 = 64 << 20;
/// The number of objects. There are so many that the store is open before the index is loaded.
const OBJECTS: u64 = 36_000;
/// The number of old objects, evenly spread, that are put again after the restart; as many new objects are put.
const AGAIN: u64 = 400;

/// A filter that holds back the reads of all threads except the test's own until the gate is opened. These are the
/// reads of the store's writer.
struct ReadGateFilter {
    device: SharedDevice,
    passes: ThreadId,
    opened: watch::Receiver<bool>,
}

impl Filter for ReadGateFilter {
    fn inner(&self) -> &SharedDevice {
        &self.device
    }

    fn spec(&self) -> String {
        format!("gate({})", self.device.spec())
    }

    fn read_at(&self, offset: u64, buffers: Vec<Buffer>, context: IoContext) -> IoFuture<Vec<Buffer>> {
        let device = Arc::clone(&self.device);
        let mut opened = (thread::current().id() != self.passes).then(|| self.opened.clone());
        Box::pin(async move {
            if let Some(opened) = &mut opened {
                // If the opener was dropped, the gate counts as open.
                let _ = opened.wait_for(|opened| *opened).await;
            }
            device.read_at(offset, buffers, context).await
        })
    }
}

async fn open(device: SharedDevice, admission: AdmissionOptions) -> Store {
    let write_delay = Duration::from_millis(20);
    let options =
        OpenOptions { memory_bytes: 32 << 20, write_delay, warm_up: false, admission, ..OpenOptions::default() };
    Store::open(device, options).await.expect("the store opens")
}

async fn put(store: &Store, name: &str, body: String) {
    store.put(KeyRef::new(name.as_bytes(), b""), "m".into(), body.into()).await.expect("there is room");
}

async fn get(store: &Store, name: &str) -> Option<String> {
    let object = store.get(KeyRef::new(name.as_bytes(), b"")).await?;
    Some(String::from_utf8_lossy(object.whole().expect("a short body")).into_owned())
}

/// Returns the image of a store after a crash, with a checkpoint of all objects.
async fn crashed() -> Vec<u8> {
    let device = Arc::new(MemoryDevice::new(STORE_BYTES));
    Store::create(device.clone(), &CreateOptions::default()).await.expect("a store is made");
    let store = open(device.clone(), AdmissionOptions::default()).await;
    for number in 0..OBJECTS {
        put(&store, &format!("object/{number}"), format!("old {number}")).await;
        if number % 4096 == 0 {
            store.sync().await.expect("it syncs");
        }
    }
    store.sync().await.expect("it syncs");
    store.checkpoint().await.expect("a checkpoint");
    let index_bytes = store.stat().index_bytes;
    assert!(index_bytes > 256 << 10, "an index of {index_bytes} bytes is loaded at once");
    drop(store);
    read(&*device, 0, STORE_BYTES as usize).await.expect("memory reads").to_vec()
}

/// Objects that were put under `second-request` while the index was loading.
struct AdmissionOutcome {
    /// Replaced objects that do not have the newest version after another crash.
    came_back: u64,
    /// New objects that are found after that crash: they were admitted because their shard was not loaded.
    new_admitted: u64,
}

async fn put_while_the_index_comes(image: Vec<u8>) -> AdmissionOutcome {
    let device = Arc::new(MemoryDevice::from_image(image));
    let admission = AdmissionOptions { rule: AdmitRule::SecondRequest, ..AdmissionOptions::default() };
    let (opener, opened) = watch::channel(false);
    let gate = ReadGateFilter { device: device.clone(), passes: thread::current().id(), opened };
    let store = open(Arc::new(gate), admission).await;
    let again: Vec<u64> = (0..AGAIN).map(|place| place * (OBJECTS / AGAIN)).collect();
    for (place, number) in again.iter().enumerate() {
        put(&store, &format!("object/{number}"), format!("new {number}")).await;
        put(&store, &format!("another/{number}"), "new".into()).await;
        // During the first half no shard is loaded, and puts do not wait. Then the shards are loaded; a get waits for
        // its shard.
        if place as u64 == AGAIN / 2 {
            opener.send_replace(true);
        }
        if place as u64 >= AGAIN / 2 {
            let neighbour = number + 1;
            let found = get(&store, &format!("object/{neighbour}")).await;
            assert_eq!(found, Some(format!("old {neighbour}")), "while the index comes");
        }
    }
    store.sync().await.expect("it syncs");
    drop(store);
    let store = open(device, AdmissionOptions::default()).await;
    let mut outcome = AdmissionOutcome { came_back: 0, new_admitted: 0 };
    for number in again {
        let found = get(&store, &format!("object/{number}")).await;
        outcome.came_back += u64::from(found != Some(format!("new {number}")));
        outcome.new_admitted += u64::from(get(&store, &format!("another/{number}")).await.is_some());
    }
    outcome
}

/// The version that such a put replaced does not come back.
#[tokio::test]
async fn put_during_index_load_admitted() {
    let _alone = alone();
    let image = crashed().await;
    plant(Some(Bug::UnadmittedLeavesOlder));
    let planted = put_while_the_index_comes(image.clone()).await;
    plant(None);
    assert!(planted.came_back > 0 && planted.new_admitted == 0, "a planted bug was not noticed");
    let AdmissionOutcome { came_back, new_admitted } = put_while_the_index_comes(image).await;
    println!("planted: {} came back; else {came_back}, and {new_admitted} new ones admitted", planted.came_back);
    assert_eq!(came_back, 0);
    assert!((AGAIN / 2..AGAIN).contains(&new_admitted), "{new_admitted} of {AGAIN} were admitted while it came");
}
