//! Damage on the disk costs only the damaged objects, and a device without a store is refused with a reason.

use std::sync::Arc;

use crate::common::{body, fresh, open, options, read_all};
use nectary_block::{ErrorFilter, ErrorOptions, FailingOperations, MemoryDevice, SharedDevice};
use nectary_store::{CreateOptions, KeyRef, Store, StoreErrorKind};

const COUNT: u64 = 400;

fn name(number: u64) -> String {
    format!("object {number}")
}

/// Makes the image of a store with objects, after a clean stop if `clean` is set, otherwise after a crash.
async fn filled(clean: bool) -> Vec<u8> {
    let (device, store) = fresh(8 << 20).await;
    for number in 0..COUNT {
        store.put(KeyRef::new(name(number).as_bytes(), b""), "m".into(), body(number, 2000)).await.unwrap();
    }
    store.sync().await.unwrap();
    if clean {
        store.close().await.unwrap();
    }
    drop(store);
    device.image()
}

/// Counts the objects that are found, and checks their bytes.
async fn count(image: Vec<u8>) -> u64 {
    let store = open(Arc::new(MemoryDevice::from_image(image))).await;
    let mut found = 0;
    for number in 0..COUNT {
        if let Some(bytes) = read_all(&store, KeyRef::new(name(number).as_bytes(), b"")).await {
            assert_eq!(bytes, body(number, 2000), "{}", name(number));
            found += 1;
        }
    }
    found
}

async fn refusal(image: Vec<u8>) -> (StoreErrorKind, String) {
    let device: SharedDevice = Arc::new(MemoryDevice::from_image(image));
    match Store::open(device, options()).await {
        Ok(_) => panic!("it was opened"),
        Err(error) => (error.kind, error.message),
    }
}

/// One flipped bit anywhere costs at most one object.
#[tokio::test]
async fn bit_flip_costs_one_object() {
    for clean in [false, true] {
        let image = filled(clean).await;
        let mut state = 12345u64;
        for round in 0..300 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // Half of the flips are in the areas at the start of the span, which have the store's metadata.
            let range = if round % 2 == 0 { 1 << 18 } else { image.len() as u64 };
            let at = (state >> 20) % range;
            let mut flipped = image.clone();
            flipped[at as usize] ^= 1 << (state & 7);
            let found = count(flipped).await;
            assert!(found + 1 >= COUNT, "bit flip at {at} of a store stopped {clean}: {found} of {COUNT} left");
        }
    }
}

#[tokio::test]
async fn wiped_checkpoints_and_state_lose_nothing() {
    let image = filled(true).await;
    let store = open(Arc::new(MemoryDevice::from_image(image.clone()))).await;
    assert!(store.stat().recovery.checkpoint);
    drop(store);
    let mut wiped = image;
    // This overwrites the state slots, and the area between the purge log and the segments, which has only checkpoints.
    wiped[8192..16384].fill(0);
    wiped[16384 + 4 * 16384..16384 + 4 * 16384 + (2 << 15)].fill(0xff);
    assert_eq!(count(wiped).await, COUNT);
}

#[tokio::test]
async fn half_truncated_store_opens() {
    let mut image = filled(false).await;
    let length = image.len();
    image.truncate(length / 2 / 4096 * 4096);
    let left = count(image).await;
    assert!(left > 0 && left <= COUNT, "{left}");
}

/// A device that is empty or of another program is refused with a reason.
#[tokio::test]
async fn empty_or_foreign_device_refused() {
    let (kind, message) = refusal(vec![0; 1 << 20]).await;
    assert_eq!(kind, StoreErrorKind::Corrupt);
    assert!(message.contains("not a Nectary store"), "{message}");
    let mut other = vec![0; 1 << 20];
    other[..8].copy_from_slice(b"XFSBdata");
    let (kind, message) = refusal(other.clone()).await;
    assert_eq!(kind, StoreErrorKind::Corrupt);
    assert!(message.contains("found XFSB") && message.contains("offset 0"), "{message}");
    let device: SharedDevice = Arc::new(MemoryDevice::from_image(other));
    assert!(Store::probe(&device).await.is_err(), "what is not ours is not overwritten");
    let mut late = vec![0; 4 << 20];
    late[(4 << 20) - 5000] = 1;
    let late: SharedDevice = Arc::new(MemoryDevice::from_image(late));
    assert!(Store::probe(&late).await.is_err(), "nor is what has only its end on the device");
    assert!(Store::create(device.clone(), &CreateOptions::default()).await.is_err());
    Store::create(device, &CreateOptions { force: true, ..Default::default() }).await.unwrap();
    let (kind, _) = refusal(vec![0; 4096]).await;
    assert_eq!(kind, StoreErrorKind::Corrupt);
}

#[tokio::test]
async fn unknown_version_is_refused() {
    let mut image = filled(true).await;
    for copy in [0, 4096] {
        image[copy + 4] = 2;
    }
    let (kind, message) = refusal(image).await;
    assert_eq!(kind, StoreErrorKind::Corrupt);
    assert!(message.contains("version 2") && message.contains("version 1"), "{message}");
}

/// Damage in the last writes cuts the log; behind flushed writes it hides what they replaced.
#[tokio::test]
async fn tail_damage_cuts_log() {
    let key = KeyRef::new(b"key", b"");
    for is_last in [true, false] {
        let (device, store) = fresh(8 << 20).await;
        store.put(key, "m".into(), body(1, 2000)).await.unwrap();
        store.sync().await.unwrap();
        store.put(key, "m".into(), body(2, 3000)).await.unwrap();
        let replaced = store.sync().await.unwrap().last;
        if !is_last {
            // The next append states that everything before it was flushed.
            store.put(KeyRef::new(b"other", b""), "m".into(), body(3, 100)).await.unwrap();
            store.sync().await.unwrap();
        }
        drop(store);
        let mut image = device.image();
        let newest = body(2, 3000);
        let at = image.windows(newest.len()).position(|bytes| bytes == newest).unwrap();
        image[at + 1500] ^= 1;
        let store = open(Arc::new(MemoryDevice::from_image(image))).await;
        assert_eq!(store.sequences().written < replaced, is_last);
        let found = read_all(&store, key).await;
        assert_eq!(found, is_last.then(|| body(1, 2000).to_vec()), "last: {is_last}");
    }
}

#[tokio::test]
async fn create_refuses_existing_store() {
    let (device, store) = fresh(1 << 20).await;
    drop(store);
    let again = Store::create(device.clone(), &CreateOptions::default()).await.unwrap_err();
    assert_eq!(again.kind, StoreErrorKind::Busy);
    let small: SharedDevice = Arc::new(MemoryDevice::new(64 << 10));
    let error = Store::create(small, &CreateOptions::default()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Invalid);
    assert!(error.message.contains("at least"), "{error}");
}

/// Bodies full of frame lookalikes cost a scan no time.
#[tokio::test]
async fn frame_lookalikes_scan_fast() {
    const SEGMENT_BYTES: usize = 8 << 20;
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let create = CreateOptions { segment_bytes: Some(SEGMENT_BYTES as u64), ..CreateOptions::default() };
    Store::create(device.clone(), &create).await.unwrap();
    let store = open(device.clone()).await;
    store.put(KeyRef::new(b"key", b""), "m".into(), "body".into()).await.unwrap();
    store.sync().await.unwrap();
    drop(store);
    let mut image = device.image();
    let start = image.chunks(4096).position(|block| block.starts_with(b"NAPP")).expect("an append") * 4096;
    // After the end of the log, the image gets bytes that look like records and appends of the largest length. Only
    // their identity is wrong.
    for at in (start + 8192..start + SEGMENT_BYTES - 64).step_by(64) {
        image[at..at + 4].copy_from_slice(if at % 4096 == 0 { b"NAPP" } else { b"NREC" });
        image[at + 4..at + 6].copy_from_slice(&1_u16.to_le_bytes());
        image[at + 8..at + 12].copy_from_slice(&((start + SEGMENT_BYTES - at) as u32).to_le_bytes());
    }
    let begun = std::time::Instant::now();
    let store = open(Arc::new(MemoryDevice::from_image(image))).await;
    assert_eq!(read_all(&store, KeyRef::new(b"key", b"")).await.as_deref(), Some(&b"body"[..]));
    let taken = begun.elapsed();
    println!("{taken:?}");
    // Computing the checksums of all these frames would read 500 GB.
    assert!(taken < std::time::Duration::from_secs(10), "{taken:?}");
}

#[tokio::test]
async fn device_failure_differs_from_miss() {
    let trigger = std::env::temp_dir().join(format!("nectary-store-failed-device-{}", std::process::id()));
    let _ = std::fs::remove_file(&trigger);
    let memory: SharedDevice = Arc::new(MemoryDevice::from_image(filled(true).await));
    let on = FailingOperations { read: true, write: false, flush: false };
    let options = ErrorOptions { on, when: Some(trigger.clone()), ..ErrorOptions::default() };
    let store = open(Arc::new(ErrorFilter::new(memory, options))).await;
    let (name, absent) = (name(7), KeyRef::new(b"never put", b""));
    let key = KeyRef::new(name.as_bytes(), b"");
    std::fs::write(&trigger, b"").unwrap();
    let failed = store.try_get(key).await.expect_err("nobody knows whether it is there");
    assert_eq!((failed.kind, failed.device_kind()), (StoreErrorKind::Io, Some(nectary_block::DeviceErrorKind::Io)));
    assert!(std::error::Error::source(&failed).is_some(), "{failed}");
    assert!(store.try_get(absent).await.expect("no read is needed to know it").is_none());
    assert!(store.get(key).await.is_none());
    let counts = store.stat().counts;
    // After a failed cluster read, the object is read alone.
    assert!(counts.misses == 3 && counts.device_read_errors >= 2, "{counts:?}");
    std::fs::remove_file(&trigger).unwrap();
    assert!(store.try_get(key).await.unwrap().is_some(), "it is there after all");
}
