//! What a store has applied of its fleet's purges: never more than is durable, and not lost for long.

use std::sync::Arc;

use crate::common::options;
use bytes::Bytes;
use nectary_block::{MemoryDevice, SharedDevice};
use nectary_host::fleet::{AppliedMark, RulesRecord};
use nectary_store::{KeyRef, SpanDevice, SpanSet};

const SPAN_BYTES: u64 = 4 << 20;

fn mark(revision: u64) -> AppliedMark {
    AppliedMark { fleet: 0x1234 << 100, revision, rules: RulesRecord { current: 1 << 60 | revision, missed: 7 } }
}

async fn open(devices: &[Arc<MemoryDevice>]) -> SpanSet {
    let named = |(number, device): (usize, &Arc<MemoryDevice>)| SpanDevice {
        spec: format!("disk{number}"),
        device: Ok(device.clone() as SharedDevice),
        size_bytes: 0,
    };
    SpanSet::open(devices.iter().enumerate().map(named).collect(), options()).await.expect("opens")
}

fn devices(count: usize) -> Vec<Arc<MemoryDevice>> {
    (0..count).map(|_| Arc::new(MemoryDevice::new(SPAN_BYTES))).collect()
}

/// What a crash leaves: all that was written.
fn crashed(devices: &[Arc<MemoryDevice>]) -> Vec<Arc<MemoryDevice>> {
    devices.iter().map(|device| Arc::new(MemoryDevice::from_image(device.image()))).collect()
}

async fn put(store: &SpanSet, key: &str) {
    store.put_tagged(KeyRef::new(key.as_bytes(), b""), &[], Bytes::new(), "body".into()).await.expect("put");
}

#[tokio::test]
async fn fleet_mark_survives_with_next_purge() {
    for count in [1, 3] {
        let disks = devices(count);
        let store = open(&disks).await;
        assert_eq!(store.applied_mark(), AppliedMark::NONE);
        put(&store, "a").await;
        store.purge_key(b"a").await.expect("purged");
        store.set_applied_mark(mark(5));
        assert_eq!(store.applied_mark(), mark(5));
        let after_set = open(&crashed(&disks)).await;
        assert_eq!(after_set.applied_mark(), AppliedMark::NONE, "{count} spans: no block has it yet");
        store.purge_all().await.expect("purged");
        assert_eq!(open(&crashed(&disks)).await.applied_mark(), mark(5), "{count} spans");
        store.set_applied_mark(mark(7));
        store.flush_applied_mark().await.expect("flushed");
        assert_eq!(open(&crashed(&disks)).await.applied_mark(), mark(7), "{count} spans");
        store.close().await.expect("closed");
        assert_eq!(open(&disks).await.applied_mark(), mark(7), "{count} spans");
    }
}

#[tokio::test]
async fn fleet_mark_survives_new_log_cycles() {
    let disks = devices(1);
    let store = open(&disks).await;
    store.set_applied_mark(mark(9));
    for _ in 0..200 {
        store.purge_all().await.expect("purged");
    }
    assert_eq!(open(&crashed(&disks)).await.applied_mark(), mark(9));
    // Another fleet begins with lower revisions.
    let other = AppliedMark { fleet: 77, revision: 2, rules: RulesRecord::NONE };
    store.set_applied_mark(other);
    store.flush_applied_mark().await.expect("flushed");
    assert_eq!(open(&crashed(&disks)).await.applied_mark(), other);
}
