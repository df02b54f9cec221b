//! Opens a crash image with the store's own recovery and compares every key with the promises.

use std::sync::Arc;
use std::time::Duration;

use nectary_block::{MemoryDevice, SharedDevice};
use nectary_store::{BackgroundRuntime, KeyRef, Store, StoredObject};

use crate::crash::CrashModel;
use crate::store::expectation::{ExpectedVersion, RecoveredStore, StoreExpectation};
use crate::store::workload::{KEYS, open_options};
use crate::store::{body, primary, variant};

/// The outcome of a check.
#[derive(Debug, Default)]
pub struct CrashVerdict {
    /// Keys that hit with allowed bytes.
    pub live: u32,
    /// Keys that had to hit.
    pub demanded: u32,
    /// Objects that entered memory because a read of a neighbour included them.
    pub neighbours: u64,
    /// Objects that entered memory from the hot list.
    pub warmed: u64,
    /// The broken promises.
    pub violations: Vec<String>,
}

/// Opens an image and gets every key.
pub async fn check(
    image: MemoryDevice,
    crash: CrashModel,
    expectation: &StoreExpectation,
    background: BackgroundRuntime,
) -> CrashVerdict {
    let mut verdict = CrashVerdict::default();
    let device: SharedDevice = Arc::new(image);
    let store = match Store::open(device, open_options(background)).await {
        Ok(store) => store,
        Err(error) => {
            verdict.violations.push(format!("the store does not open: {error}"));
            return verdict;
        }
    };
    let stat = store.stat();
    // In every second image, wait until memory is warmed up before the first key is requested.
    while stat.sequences.written.0.is_multiple_of(2) && store.stat().warming {
        tokio::time::sleep(Duration::from_micros(100)).await;
    }
    compare(&store, crash, expectation, &mut verdict, |_, _| ()).await;
    let counts = store.stat().counts;
    (verdict.neighbours, verdict.warmed) = (counts.neighbours_taken, counts.warmed);
    verdict
}

/// Gets every key of a store that was opened after a crash; `found` gets each key and the version that was found.
pub async fn compare(
    store: &Store,
    crash: CrashModel,
    expectation: &StoreExpectation,
    verdict: &mut CrashVerdict,
    mut found: impl FnMut(u32, Option<u32>),
) {
    let stat = store.stat();
    let recovered =
        RecoveredStore { sequence: stat.sequences.written.0, head: stat.head_epoch, segment_count: stat.segment_count };
    let durable = expectation.durable(crash);
    if recovered.sequence < durable {
        verdict.violations.push(format!("recovered up to {:#x}, promised up to {durable:#x}", recovered.sequence));
    }
    for key in 0..KEYS {
        let allowed = expectation.allowed(key, crash, recovered);
        verdict.demanded += u32::from(allowed.must_hit);
        let name = primary(key);
        let object = store.get(KeyRef::new(&name, variant(key))).await;
        let is_stale = object.as_ref().is_some_and(|object| object.stale_since_s().is_some());
        let Some((metadata, bytes)) = content(object).await else {
            if allowed.must_hit {
                verdict.violations.push(format!("key {key}: missing; recovered up to {:#x}", recovered.sequence));
            }
            found(key, None);
            continue;
        };
        let is_it = |version: &&ExpectedVersion| {
            metadata == version.number.to_le_bytes() && bytes == body(0, key, version.number, version.length)
        };
        if let Some(version) = allowed.versions.iter().find(is_it) {
            verdict.live += 1;
            if !expectation.may_be_stale(key, version, is_stale) {
                verdict.violations.push(format!("key {key}: version {} is stale: {is_stale}", version.number));
            }
            found(key, Some(version.number));
        } else {
            let numbers: Vec<u32> = allowed.versions.iter().map(|version| version.number).collect();
            verdict.violations.push(format!(
                "key {key}: {} bytes with metadata {metadata:?} that no allowed version ({numbers:?}) has",
                bytes.len()
            ));
        }
    }
}

/// Reads a whole object; a read that breaks off is a miss.
pub async fn read(store: &Store, key: KeyRef<'_>) -> Option<(Vec<u8>, Vec<u8>)> {
    content(store.get(key).await).await
}

/// The metadata and the body of an object that was found.
async fn content(object: Option<StoredObject>) -> Option<(Vec<u8>, Vec<u8>)> {
    let object = object?;
    let bytes = whole(&object).await?;
    Some((object.metadata().to_vec(), bytes))
}

/// The whole body of an object; `None` if its read breaks off.
pub async fn whole(object: &StoredObject) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(object.body_bytes() as usize);
    let mut reader = object.reader(0..u64::MAX);
    while let Some(piece) = reader.next().await {
        bytes.extend_from_slice(&piece.ok()?);
    }
    Some(bytes)
}
