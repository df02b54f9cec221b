//! A store that is opened only for reading leaves its device as it is, and says what an open for writing repairs.

use std::sync::Arc;

use crate::common::{body, fresh, open, options, read_all};
use nectary_block::{DeviceSnapshot, MemoryDevice};
use nectary_store::{KeyRef, OpenOptions, SpanDevice, SpanSet, Store, StoreErrorKind};

const OBJECTS: u64 = 40;

fn reading() -> OpenOptions {
    OpenOptions { is_read_only: true, ..options() }
}

fn name(number: u64) -> String {
    format!("key {number}")
}

/// Opens a device with this image only for reading. Returns the number of objects that are found, and the words of the
/// repairs.
async fn looked_at(image: &[u8]) -> (u64, Vec<(String, bool)>) {
    let device = Arc::new(MemoryDevice::from_snapshot(&DeviceSnapshot::from_image(image)));
    let before = device.image();
    let store = Store::open(device.clone(), reading()).await.unwrap();
    let mut found = 0;
    for number in 0..OBJECTS {
        match read_all(&store, KeyRef::new(name(number).as_bytes(), b"")).await {
            Some(bytes) => {
                assert!(bytes == body(number, 50_000), "{number}");
                found += 1;
            }
            None => continue,
        }
    }
    let late = store.put(KeyRef::new(b"late", b""), "".into(), "".into()).await;
    assert_eq!(late.unwrap_err().kind, StoreErrorKind::Stopped);
    assert_eq!(store.purge_all().await.unwrap_err().kind, StoreErrorKind::Stopped);
    assert_eq!(store.stat().stopped, None);
    store.check(|_, _| ()).await;
    let repairs = store.repairs().iter().map(|repair| (repair.what.clone(), repair.is_damage)).collect();
    store.close().await.unwrap();
    drop(store);
    assert!(device.image() == before, "the device was changed");
    (found, repairs)
}

/// A read-only open changes nothing and reports what a writer would repair.
#[tokio::test]
async fn read_only_open_changes_nothing() {
    let (device, store) = fresh(16 << 20).await;
    for number in 0..OBJECTS {
        store.put(KeyRef::new(name(number).as_bytes(), b""), "".into(), body(number, 50_000)).await.unwrap();
    }
    store.sync().await.unwrap();
    let killed = device.image();
    store.close().await.unwrap();
    drop(store);
    let closed = device.image();

    assert_eq!(looked_at(&closed).await, (OBJECTS, vec![]));

    let (found, repairs) = looked_at(&killed).await;
    assert_eq!((found, repairs.len()), (OBJECTS, 1));
    assert!(repairs[0].0.contains("was not closed") && !repairs[0].1, "{repairs:?}");

    let (found, repairs) = looked_at(&closed[..closed.len() / 8]).await;
    assert!(found > 0 && found < OBJECTS, "{found}");
    assert!(repairs[0].0.contains("truncated") && repairs[0].1, "{repairs:?}");

    let mut damaged = closed.clone();
    damaged[100] ^= 1;
    let (found, repairs) = looked_at(&damaged).await;
    assert_eq!((found, repairs.len()), (OBJECTS, 1));
    assert!(repairs[0].0.contains("superblock at offset 0") && repairs[0].1, "{repairs:?}");
    // An open for writing does what was said.
    let device = Arc::new(MemoryDevice::from_snapshot(&DeviceSnapshot::from_image(&damaged)));
    let store = open(device.clone()).await;
    // A store that is closed while its index loads is left as it was found.
    store.check(|_, _| ()).await;
    store.close().await.unwrap();
    drop(store);
    assert_eq!(looked_at(&device.image()).await, (OBJECTS, vec![]));
}

#[tokio::test]
async fn read_only_spans_stay_unchanged() {
    let devices = [16 << 20, 16 << 20].map(|bytes| Arc::new(MemoryDevice::new(bytes)));
    let named = || {
        devices
            .iter()
            .map(|device| SpanDevice { spec: String::new(), device: Ok(device.clone()), size_bytes: 0 })
            .collect()
    };
    let store = SpanSet::open(named(), options()).await.unwrap();
    for number in 0..OBJECTS {
        store.put(KeyRef::new(name(number).as_bytes(), b""), "".into(), body(number, 5000)).await.unwrap();
    }
    store.close().await.unwrap();
    drop(store);
    let before = devices.each_ref().map(|device| device.image());
    let store = SpanSet::open(named(), reading()).await.unwrap();
    for number in 0..OBJECTS {
        assert!(store.get(KeyRef::new(name(number).as_bytes(), b"")).await.is_some(), "{number}");
    }
    assert_eq!(store.check(|_, _| ()).await.objects, OBJECTS);
    assert!(store.purge_all().await.is_err() && store.repairs().is_empty());
    store.close().await.unwrap();
    drop(store);
    // The second device is blank: an open for writing would put a span on it.
    let blank = Arc::new(MemoryDevice::new(16 << 20));
    let two = vec![
        SpanDevice { spec: String::new(), device: Ok(devices[0].clone()), size_bytes: 0 },
        SpanDevice { spec: String::new(), device: Ok(blank.clone()), size_bytes: 0 },
    ];
    drop(SpanSet::open(two, reading()).await);
    assert!(blank.image().iter().all(|&byte| byte == 0));
    assert!(devices.each_ref().map(|device| device.image()) == before);
}
