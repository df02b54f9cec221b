//! Functions that several tests of the store use.
#![allow(dead_code)]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nectary_block::{MemoryDevice, SharedDevice};
use nectary_store::{CreateOptions, KeyRef, OpenOptions, Store};

/// Options with a small memory budget; memory is empty after opening.
pub fn options() -> OpenOptions {
    let write_delay = Duration::from_millis(20);
    OpenOptions { memory_bytes: 32 << 20, write_delay, warm_up: false, ..OpenOptions::default() }
}

/// Makes and opens a new store on a device in memory.
pub async fn fresh(bytes: u64) -> (Arc<MemoryDevice>, Store) {
    let device = Arc::new(MemoryDevice::new(bytes));
    Store::create(device.clone(), &CreateOptions::default()).await.unwrap();
    let store = open(device.clone()).await;
    (device, store)
}

/// Opens a store.
pub async fn open(device: SharedDevice) -> Store {
    Store::open(device, options()).await.unwrap()
}

/// A body made from a seed.
pub fn body(seed: u64, length: usize) -> Bytes {
    (0..length).map(|at| (seed.wrapping_mul(31).wrapping_add(at as u64 * 7) >> 3) as u8).collect::<Vec<u8>>().into()
}

/// Reads a whole object.
pub async fn read_all(store: &Store, key: KeyRef<'_>) -> Option<Vec<u8>> {
    let object = store.get(key).await?;
    let mut reader = object.reader(0..u64::MAX);
    let mut bytes = Vec::new();
    while let Some(chunk) = reader.next().await {
        bytes.extend_from_slice(&chunk.unwrap());
    }
    assert_eq!(bytes.len() as u64, object.body_bytes());
    Some(bytes)
}
