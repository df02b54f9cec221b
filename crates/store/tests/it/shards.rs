//! After a crash, the index of a large store is loaded shard by shard while gets are answered; a damaged checkpoint
//! loses nothing.

use std::sync::Arc;

use crate::common::{body, open, options, read_all};
use nectary_block::{DeviceOperation, DeviceRequest, Filter, IoFuture, MemoryDevice, SharedDevice, read};
use nectary_store::{CreateOptions, KeyRef, Store};
use tokio::sync::watch;

const STORE_BYTES: u64 = 64 << 20;
/// The number of objects: so many that the index is not loaded before the store is open.
const OBJECTS: u64 = 36_000;
/// The number of objects that were put again after the last checkpoint.
const REPLACED: u64 = 400;
const BODY_BYTES: usize = 20;

fn name(number: u64) -> String {
    format!("object/{number}")
}

async fn put(store: &Store, number: u64, seed: u64) {
    let name = name(number);
    store.put(KeyRef::new(name.as_bytes(), b""), "m".into(), body(seed, BODY_BYTES)).await.unwrap();
}

/// Makes the image of a store after a crash. It has two checkpoints, and objects that were put after them.
async fn crashed() -> Vec<u8> {
    let device = Arc::new(MemoryDevice::new(STORE_BYTES));
    Store::create(device.clone(), &CreateOptions::default()).await.unwrap();
    let store = open(device.clone()).await;
    for number in 0..OBJECTS {
        put(&store, number, number).await;
        if number % 4096 == 0 {
            store.sync().await.unwrap();
        }
        if number == OBJECTS / 2 {
            store.checkpoint().await.unwrap();
        }
    }
    store.sync().await.unwrap();
    store.checkpoint().await.unwrap();
    for number in 0..REPLACED {
        put(&store, number, OBJECTS + number).await;
    }
    store.sync().await.unwrap();
    let index_bytes = store.stat().index_bytes;
    assert!(index_bytes > 256 << 10, "an index of {index_bytes} bytes is loaded at once");
    drop(store);
    read(&*device, 0, STORE_BYTES as usize).await.unwrap().to_vec()
}

/// The offsets of all checkpoint chunks in the image, with the numbers of their checkpoints.
fn chunks(image: &[u8]) -> Vec<(usize, u64)> {
    let blocks = image.chunks(4096).enumerate();
    let chunks = blocks.filter(|(_, block)| block.starts_with(b"NCKC"));
    chunks.map(|(block, bytes)| (block * 4096, u64::from_le_bytes(bytes[32..40].try_into().unwrap()))).collect()
}

/// Opens an image, requests all objects at once, without waiting for the index, and checks their bytes.
async fn expect_all(image: Vec<u8>) -> Store {
    let store = Store::open(Arc::new(MemoryDevice::from_image(image)), options()).await.unwrap();
    assert!(store.stat().recovery.checkpoint);
    for number in (0..OBJECTS).rev() {
        let name = name(number);
        let seed = if number < REPLACED { OBJECTS + number } else { number };
        let found = read_all(&store, KeyRef::new(name.as_bytes(), b"")).await;
        assert_eq!(found.as_deref(), Some(&body(seed, BODY_BYTES)[..]), "object {number}");
    }
    store
}

/// An index that is loaded shard by shard finds all, also with a damaged checkpoint.
#[tokio::test]
async fn sharded_index_load_finds_everything() {
    let image = crashed().await;
    let store = expect_all(image.clone()).await;
    assert_eq!(store.take_notes(), Vec::<String>::new());
    assert!(store.stat().entries >= OBJECTS);
    drop(store);

    let chunks = chunks(&image);
    let newest = chunks.iter().map(|(_, number)| *number).max().unwrap();
    let mut damaged = image;
    // First, the last chunk of the newest checkpoint is damaged: the store finds this when most shards are already in
    // use. Then the last chunk of the other checkpoint is damaged too.
    for number in [newest, newest - 1] {
        let (at, _) = *chunks.iter().rfind(|(_, of)| *of == number).unwrap();
        damaged[at + 100] ^= 1;
        let store = expect_all(damaged.clone()).await;
        let notes = store.take_notes();
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(notes[0].contains(&format!("checkpoint {newest} is damaged")), "{notes:?}");
        store.close().await.unwrap();
    }
}

/// While the index is loaded, stat gives the number of entries of its checkpoint.
#[tokio::test]
async fn stat_counts_entries_during_load() {
    let image = crashed().await;
    let chunks = chunks(&image);
    let newest = chunks.iter().map(|(_, number)| *number).max().unwrap();
    let (last, _) = *chunks.iter().rfind(|(_, number)| *number == newest).unwrap();
    let gate = watch::Sender::new(false);
    let device =
        OffsetGate { inner: Arc::new(MemoryDevice::from_image(image)), offset: last as u64, is_open: gate.subscribe() };
    let store = open(Arc::new(device)).await;
    let stat = store.stat();
    assert!(stat.index_loading && (OBJECTS..OBJECTS + OBJECTS / 100).contains(&stat.entries), "{}", stat.entries);
    gate.send_replace(true);
    store.check(|_, _| ()).await;
    let stat = store.stat();
    assert!(!stat.index_loading && stat.entries >= OBJECTS, "{}", stat.entries);
}

/// A device that blocks reads at one offset until its gate opens.
struct OffsetGate {
    inner: SharedDevice,
    offset: u64,
    is_open: watch::Receiver<bool>,
}

impl Filter for OffsetGate {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }

    fn spec(&self) -> String {
        format!("gated({})", self.inner.spec())
    }

    fn around<T: Send + 'static>(
        &self,
        request: DeviceRequest,
        operation: impl FnOnce(&SharedDevice) -> IoFuture<T> + Send + 'static,
    ) -> IoFuture<T> {
        if request.operation != DeviceOperation::Read
            || !(request.offset..request.offset + request.length).contains(&self.offset)
        {
            return operation(&self.inner);
        }
        let (inner, mut is_open) = (Arc::clone(&self.inner), self.is_open.clone());
        Box::pin(async move {
            let _ = is_open.wait_for(|is_open| *is_open).await;
            operation(&inner).await
        })
    }
}

/// A store that is dropped or closed while its index is loaded is whole afterwards.
#[tokio::test]
async fn drop_during_load_is_safe() {
    let image = crashed().await;
    let device = Arc::new(MemoryDevice::from_image(image));
    drop(open(device.clone()).await);
    let store = open(device.clone()).await;
    put(&store, OBJECTS, 1).await;
    store.close().await.unwrap();
    let store = open(device).await;
    for number in REPLACED..OBJECTS {
        let name = name(number);
        let found = read_all(&store, KeyRef::new(name.as_bytes(), b"")).await;
        assert_eq!(found.as_deref(), Some(&body(number, BODY_BYTES)[..]), "object {number}");
    }
}
