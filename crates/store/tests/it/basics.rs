//! The basic operations of the store: put, get, replace, purge, close, open.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{body, fresh, open, read_all};
use bytes::Bytes;
use nectary_block::{DelayFilter, DelayOptions, MemoryDevice, SharedDevice};
use nectary_store::{CreateOptions, FillHead, FillRole, KeyRef, Store};

/// Objects of all sizes survive a close and a drop.
#[tokio::test]
async fn objects_survive_close_and_drop() {
    let (device, store) = fresh(64 << 20).await;
    let sizes = [0, 1, 100, 4096, 100_000, 256 << 10, (256 << 10) + 1, 700_000, (1 << 20) + 5, 5_000_000];
    for (number, &size) in sizes.iter().enumerate() {
        let name = format!("key {number}");
        store.put(KeyRef::new(name.as_bytes(), b"v"), "meta".into(), body(number as u64, size)).await.unwrap();
    }
    let check = async |store: &Store| {
        for (number, &size) in sizes.iter().enumerate() {
            let name = format!("key {number}");
            let found = read_all(store, KeyRef::new(name.as_bytes(), b"v")).await;
            assert!(found.as_deref() == Some(&body(number as u64, size)[..]), "{name} of {size} bytes");
            assert!(store.get(KeyRef::new(name.as_bytes(), b"")).await.is_none());
        }
    };
    check(&store).await;
    let sequences = store.sync().await.unwrap();
    assert_eq!(sequences.last, sequences.flushed);
    drop(store);
    let store = open(device.clone()).await;
    assert!(!store.stat().recovery.clean && !store.stat().recovery.checkpoint);
    assert_eq!(store.sequences().written, sequences.last);
    check(&store).await;
    store.close().await.unwrap();
    assert!(store.put(KeyRef::new(b"late", b""), Bytes::new(), Bytes::new()).await.is_err());
    drop(store);
    let store = open(device.clone()).await;
    assert!(store.stat().recovery.clean && store.stat().recovery.checkpoint);
    check(&store).await;
}

/// The newest version wins in memory, on disk and after a restart.
#[tokio::test]
async fn newest_version_wins() {
    let (device, store) = fresh(16 << 20).await;
    let key = KeyRef::new(b"k", b"");
    for version in 0..50u64 {
        store.put(key, Bytes::new(), body(version, 1000)).await.unwrap();
        if version % 7 == 0 {
            store.sync().await.unwrap();
        }
        assert_eq!(read_all(&store, key).await.unwrap(), body(version, 1000));
    }
    store.sync().await.unwrap();
    drop(store);
    let store = open(device.clone()).await;
    assert_eq!(read_all(&store, key).await.unwrap(), body(49, 1000));
}

/// A key purge kills all variants, also after a restart, and lets new ones in.
#[tokio::test]
async fn key_purge_kills_all_variants() {
    let (device, store) = fresh(16 << 20).await;
    for variant in [&b""[..], b"gzip", b"br"] {
        store.put(KeyRef::new(b"page", variant), Bytes::new(), body(1, 500)).await.unwrap();
    }
    store.put(KeyRef::new(b"other", b""), Bytes::new(), body(2, 500)).await.unwrap();
    store.sync().await.unwrap();
    store.purge_key(b"page").await.unwrap();
    let gone = async |store: &Store| {
        for variant in [&b""[..], b"gzip", b"br"] {
            assert!(store.get(KeyRef::new(b"page", variant)).await.is_none());
        }
        assert!(store.get(KeyRef::new(b"other", b"")).await.is_some());
    };
    gone(&store).await;
    drop(store);
    let store = open(device.clone()).await;
    gone(&store).await;
    store.put(KeyRef::new(b"page", b"br"), Bytes::new(), body(3, 500)).await.unwrap();
    assert_eq!(read_all(&store, KeyRef::new(b"page", b"br")).await.unwrap(), body(3, 500));
    store.sync().await.unwrap();
    drop(store);
    let store = open(device.clone()).await;
    assert_eq!(read_all(&store, KeyRef::new(b"page", b"br")).await.unwrap(), body(3, 500));
    assert!(store.get(KeyRef::new(b"page", b"gzip")).await.is_none());
}

/// A purge of everything kills all, also after a restart, and lets new objects in.
#[tokio::test]
async fn purge_all_holds_after_restart() {
    let (device, store) = fresh(64 << 20).await;
    let long = body(7, 2_500_000);
    store.put(KeyRef::new(b"written", b""), Bytes::new(), body(1, 100)).await.unwrap();
    store.put(KeyRef::new(b"long", b"gzip"), Bytes::new(), long.clone()).await.unwrap();
    store.sync().await.unwrap();
    store.put(KeyRef::new(b"waiting", b""), Bytes::new(), body(2, 100)).await.unwrap();
    let FillRole::Leader(mut begun) = store.begin_fill(KeyRef::new(b"begun", b""), None) else { panic!("no leader") };
    assert!(begun.start(b"", Bytes::new(), None));
    store.purge_all().await.unwrap();
    begun.write(body(3, 100)).await.unwrap();
    assert!(begun.finish().await.is_err(), "it began before the purge");
    store.put(KeyRef::new(b"new", b""), Bytes::new(), body(4, 100)).await.unwrap();
    store.put(KeyRef::new(b"long", b"gzip"), Bytes::new(), long.slice(..2_000_000)).await.unwrap();
    let expected = async |store: &Store, when: &str| {
        for gone in ["written", "waiting", "begun"] {
            assert!(store.get(KeyRef::new(gone.as_bytes(), b"")).await.is_none(), "{when}: {gone}");
        }
        assert_eq!(read_all(store, KeyRef::new(b"new", b"")).await.unwrap(), body(4, 100), "{when}");
        assert_eq!(read_all(store, KeyRef::new(b"long", b"gzip")).await.unwrap(), long[..2_000_000], "{when}");
    };
    expected(&store, "at once").await;
    store.sync().await.unwrap();
    drop(store);
    let store = open(device.clone()).await;
    expected(&store, "after a crash").await;
    store.close().await.unwrap();
    drop(store);
    expected(&open(device).await, "after a clean stop").await;
}

/// A prefix purge kills what begins with the prefix and nothing else, also after a restart.
#[tokio::test]
async fn prefix_purge_kills_only_matches() {
    let (device, store) = fresh(64 << 20).await;
    let long = body(7, 2_500_000);
    let put = async |name: &str, variant: &[u8], bytes: Bytes| {
        store.put(KeyRef::new(name.as_bytes(), variant), Bytes::new(), bytes).await.unwrap();
    };
    for name in ["http://a/", "http://a/b", "http://a", "http://b/"] {
        put(name, b"", body(1, 100)).await;
    }
    put("http://a/c", b"gzip", long.clone()).await;
    store.sync().await.unwrap();
    put("http://a/waiting", b"", body(2, 100)).await;
    let begun = KeyRef::new(b"http://a/begun", b"");
    let FillRole::Leader(mut fill) = store.begin_fill(begun, None) else { panic!("no leader") };
    assert!(fill.start(b"", Bytes::new(), None));
    store.purge_prefix(b"http://a/").await.unwrap();
    assert!(matches!(store.begin_fill(begun, None), FillRole::Leader(_)), "what began before is not joined");
    fill.write(body(3, 100)).await.unwrap();
    assert!(fill.finish().await.is_err(), "it began before the purge");
    put("http://a/b", b"", body(4, 100)).await;
    let expected = async |store: &Store, when: &str| {
        for (name, variant) in
            [("http://a/", &b""[..]), ("http://a/c", b"gzip"), ("http://a/waiting", b""), ("http://a/begun", b"")]
        {
            assert!(store.get(KeyRef::new(name.as_bytes(), variant)).await.is_none(), "{when}: {name}");
        }
        for (name, seed) in [("http://a/b", 4), ("http://a", 1), ("http://b/", 1)] {
            let found = read_all(store, KeyRef::new(name.as_bytes(), b"")).await;
            assert_eq!(found.as_deref(), Some(&body(seed, 100)[..]), "{when}: {name}");
        }
    };
    expected(&store, "at once").await;
    store.sync().await.unwrap();
    drop(store);
    let store = open(device.clone()).await;
    expected(&store, "after a crash").await;
    store.close().await.unwrap();
    drop(store);
    let store = open(device).await;
    expected(&store, "after a clean stop").await;
    store.purge_prefix(b"").await.unwrap();
    assert!(store.get(KeyRef::new(b"http://b/", b"")).await.is_none(), "everything begins with nothing");
}

/// The ring reclaims the oldest and keeps the newest over many laps and restarts.
#[tokio::test]
async fn ring_keeps_newest_over_laps() {
    let (device, mut store) = fresh(4 << 20).await;
    let mut number = 0u64;
    for round in 0..12 {
        for _ in 0..300 {
            let name = format!("object {number}");
            while store.put(KeyRef::new(name.as_bytes(), b""), Bytes::new(), body(number, 4000)).await.is_err() {
                store.sync().await.unwrap();
            }
            number += 1;
        }
        store.sync().await.unwrap();
        if round % 3 == 2 {
            drop(store);
            store = open(device.clone()).await;
        } else if round % 3 == 1 {
            store.checkpoint().await.unwrap();
        }
        let mut found = 0;
        for old in (0..number).rev() {
            let name = format!("object {old}");
            match read_all(&store, KeyRef::new(name.as_bytes(), b"")).await {
                Some(bytes) => {
                    assert_eq!(bytes, body(old, 4000), "{name}");
                    found += 1;
                }
                None => assert!(number - old > 500, "{name} of {number} is gone too early in round {round}"),
            }
        }
        assert!(found <= number.min(1000) && found >= number.min(500), "{found} of {number}");
    }
    assert!(store.stat().head_epoch > store.stat().segment_count * 2);
}

/// A checkpoint has what was written before its request, even if another one was being written.
#[tokio::test]
async fn concurrent_checkpoint_covers_earlier_writes() {
    let memory: SharedDevice = Arc::new(MemoryDevice::new(16 << 20));
    let slow = DelayOptions { write: Duration::from_millis(50), ..DelayOptions::default() };
    Store::create(memory.clone(), &CreateOptions::default()).await.unwrap();
    let store = open(Arc::new(DelayFilter::new(memory.clone(), slow))).await;
    let put = async |name: &'static [u8]| {
        store.put(KeyRef::new(name, b""), Bytes::new(), body(1, 100)).await.unwrap();
        store.sync().await.unwrap();
    };
    put(b"before").await;
    let other = async {
        put(b"meanwhile").await;
        store.checkpoint().await.unwrap();
    };
    let (first, ()) = tokio::join!(store.checkpoint(), other);
    first.unwrap();
    assert_eq!(store.stat().counts.checkpoints, 2);
    drop(store);
    let recovery = open(memory).await.stat().recovery;
    assert!(recovery.checkpoint && recovery.records == 0, "{recovery:?}");
}

#[tokio::test]
async fn followers_read_along_and_later() {
    let (_, store) = fresh(64 << 20).await;
    for length in [10usize, 300_000, 3_500_000] {
        let name = format!("fill {length}");
        let key = KeyRef::new(name.as_bytes(), b"");
        let whole = body(9, length);
        let FillRole::Leader(mut fill) = store.begin_fill(key, None) else { panic!("no leader") };
        let FillRole::Follower(mut early) = store.begin_fill(key, None) else { panic!("no follower") };
        assert!(fill.start(b"", "m".into(), None));
        let mut chunks: Vec<Bytes> = Vec::new();
        for start in (0..length).step_by(10_007) {
            chunks.push(whole.slice(start..(start + 10_007).min(length)));
        }
        let half = chunks.len() / 2;
        for chunk in &chunks[..half] {
            fill.write(chunk.clone()).await.unwrap();
        }
        let FillRole::Follower(mut late) = store.begin_fill(key, None) else { panic!("no late follower") };
        for chunk in &chunks[half..] {
            fill.write(chunk.clone()).await.unwrap();
        }
        fill.finish().await.unwrap();
        for reader in [&mut early, &mut late] {
            assert!(matches!(reader.head().await, FillHead::Streaming { .. }));
            let mut bytes = Vec::new();
            while let Some(chunk) = reader.next().await {
                bytes.extend_from_slice(&chunk.unwrap());
            }
            assert!(bytes == whole);
        }
        assert!(matches!(store.begin_fill(key, None), FillRole::Resident(_)));
        assert!(read_all(&store, key).await.unwrap() == whole);
    }
    assert_eq!(store.stat().fill_bytes, 0);
}

/// A fill that began before a purge stores nothing and is not joined.
#[tokio::test]
async fn purge_voids_older_fill() {
    let (_, store) = fresh(16 << 20).await;
    let key = KeyRef::new(b"slow", b"");
    let FillRole::Leader(mut fill) = store.begin_fill(key, None) else { panic!("no leader") };
    assert!(fill.start(b"", Bytes::new(), Some(5)));
    store.purge_key(b"slow").await.unwrap();
    let FillRole::Leader(mut second) = store.begin_fill(key, None) else {
        panic!("joined a fill from before the purge")
    };
    fill.write("stale".into()).await.unwrap();
    assert!(fill.finish().await.is_err());
    assert!(store.get(key).await.is_none());
    assert!(second.start(b"", Bytes::new(), Some(5)));
    second.write("fresh".into()).await.unwrap();
    second.finish().await.unwrap();
    assert_eq!(read_all(&store, key).await.unwrap(), b"fresh");
}

#[tokio::test]
async fn broken_or_lying_fill_stores_nothing() {
    let (_, store) = fresh(16 << 20).await;
    let key = KeyRef::new(b"k", b"");
    let FillRole::Leader(mut fill) = store.begin_fill(key, None) else { panic!() };
    let mut reader = fill.reader();
    assert!(fill.start(b"", Bytes::new(), Some(10)));
    fill.write("12345".into()).await.unwrap();
    assert!(fill.finish().await.is_err());
    assert!(reader.next().await.unwrap().is_ok());
    assert!(reader.next().await.unwrap().is_err());
    assert!(store.get(key).await.is_none());
    let FillRole::Leader(mut fill) = store.begin_fill(key, None) else { panic!() };
    assert!(fill.start(b"", Bytes::new(), Some(3)));
    assert!(fill.write("12345".into()).await.is_err());
    drop(fill);
    assert!(store.get(key).await.is_none());
}

/// A refresh replaces the metadata and keeps the body.
#[tokio::test]
async fn refresh_keeps_the_body() {
    let (device, store) = fresh(64 << 20).await;
    for (name, length) in [(&b"small"[..], 1000), (b"large", 2_500_000)] {
        let key = KeyRef::new(name, b"");
        store.put(key, "old".into(), body(4, length)).await.unwrap();
        let stale = store.get(key).await.unwrap();
        let FillRole::Leader(fill) = store.begin_fill(key, Some(&stale)) else { panic!() };
        let fresh = fill.refresh(&stale, "new".into()).await.unwrap();
        assert_eq!(fresh.metadata(), "new");
    }
    store.sync().await.unwrap();
    drop(store);
    let store = open(device.clone()).await;
    for (name, length) in [(&b"small"[..], 1000), (b"large", 2_500_000)] {
        let key = KeyRef::new(name, b"");
        assert_eq!(store.get(key).await.unwrap().metadata(), "new");
        assert!(read_all(&store, key).await.unwrap() == body(4, length));
    }
}
