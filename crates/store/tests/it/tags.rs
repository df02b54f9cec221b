//! Purges by tag: every object with the tag is gone, wherever it is; other objects stay; no replaced version appears.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{body, fresh, open, options, read_all};
use bytes::Bytes;
use nectary_block::{MemoryDevice, SharedDevice};
use nectary_store::{
    ClusterRead, CreateOptions, FillRole, KeyRef, OpenOptions, Store, StoreErrorKind, TAG_BYTES_MAX, TAGS_MAX,
};

const NEWS: &[u8] = b"news";
const SPORT: &[u8] = b"sport";

fn key(name: &str) -> KeyRef<'_> {
    KeyRef::new(name.as_bytes(), b"")
}

async fn put(store: &Store, name: &str, tags: &[&[u8]], body: Bytes) {
    store.put_tagged(key(name), tags, "metadata".into(), body).await.unwrap();
}

async fn is_there(store: &Store, name: &str) -> bool {
    store.get(key(name)).await.is_some()
}

/// Opens a store whose put objects wait in memory until a sync.
async fn patient(device: SharedDevice) -> Store {
    let write_delay = Duration::from_secs(3600);
    Store::open(device, OpenOptions { write_delay, ..options() }).await.unwrap()
}

async fn fresh_patient(bytes: u64) -> (Arc<MemoryDevice>, Store) {
    let device = Arc::new(MemoryDevice::new(bytes));
    Store::create(device.clone(), &CreateOptions::default()).await.unwrap();
    let store = patient(device.clone()).await;
    (device, store)
}

/// A tag purge kills objects with the tag and nothing else, also after a restart.
#[tokio::test]
async fn tag_purge_kills_only_tagged() {
    let (device, store) = fresh(64 << 20).await;
    let long = body(9, 3_000_000);
    put(&store, "news", &[NEWS], body(1, 100)).await;
    put(&store, "both", &[NEWS, SPORT], body(2, 100)).await;
    put(&store, "sport", &[SPORT], body(3, 100)).await;
    put(&store, "none", &[], body(4, 100)).await;
    put(&store, "long news", &[SPORT, NEWS], long.clone()).await;
    put(&store, "long sport", &[SPORT], long.clone()).await;
    store.sync().await.unwrap();
    // This object is in memory, and is not written yet.
    put(&store, "late news", &[NEWS], body(5, 100)).await;
    store.purge_tag(NEWS).await.unwrap();
    put(&store, "new news", &[NEWS], body(6, 100)).await;
    put(&store, "long new news", &[NEWS], long.clone()).await;
    store.sync().await.unwrap();
    let gone = ["news", "both", "long news", "late news"];
    let stay = ["sport", "none", "long sport", "new news", "long new news"];
    for round in 0..3 {
        let store = if round == 0 { store.clone() } else { open(device.clone()).await };
        for name in gone {
            assert!(!is_there(&store, name).await, "round {round}: {name} came back");
        }
        for name in stay {
            assert!(is_there(&store, name).await, "round {round}: {name} is missing");
        }
        assert_eq!(read_all(&store, key("long new news")).await.unwrap(), long);
        let report = store.check(|_, _| {}).await;
        assert_eq!((report.damaged, report.objects), (0, stay.len() as u64), "{report:?}");
        assert_eq!(store.stat().purge_records, 1);
        if round == 1 {
            store.close().await.unwrap();
        }
    }
}

/// A purge by tag holds for a process that never had the object in memory.
#[tokio::test]
async fn tag_purge_holds_on_disk() {
    let (device, store) = fresh(16 << 20).await;
    for number in 0..20u64 {
        put(&store, &number.to_string(), &[if number % 2 == 0 { NEWS } else { SPORT }], body(number, 2000)).await;
    }
    store.close().await.unwrap();
    // Every read also reads neighbours, but purged neighbours do not enter memory.
    let clustered = OpenOptions { cluster_read: ClusterRead::Cluster, ..options() };
    let store = Store::open(device.clone(), clustered).await.unwrap();
    store.purge_tag(NEWS).await.unwrap();
    for number in 0..20u64 {
        assert_eq!(is_there(&store, &number.to_string()).await, number % 2 == 1, "{number}");
    }
    assert!(store.stat().counts.neighbours_hit > 0);
}

#[tokio::test]
async fn tag_purged_version_hides_older() {
    // The older version does not have the tag. There are three cases: the newer version is only in memory; both
    // versions are on disk; both versions are on disk and are found by a new process.
    let (device, store) = fresh_patient(16 << 20).await;
    for name in ["waits", "written", "found"] {
        put(&store, name, &[SPORT], body(1, 500)).await;
    }
    store.sync().await.unwrap();
    store.checkpoint().await.unwrap();
    put(&store, "found", &[NEWS], body(2, 500)).await;
    put(&store, "written", &[NEWS], body(2, 500)).await;
    store.sync().await.unwrap();
    put(&store, "waits", &[NEWS], body(2, 500)).await;
    store.purge_tag(NEWS).await.unwrap();
    for _ in 0..2 {
        assert!(!is_there(&store, "waits").await && store.get_resident(key("waits")).is_none());
        assert!(!is_there(&store, "written").await);
    }
    store.sync().await.unwrap();
    for name in ["waits", "written"] {
        assert!(!is_there(&store, name).await, "{name}: what had been replaced came out once it was written");
    }
    drop(store);
    for round in 0..2 {
        let store = patient(device.clone()).await;
        for name in ["waits", "written", "found", "found"] {
            assert!(!is_there(&store, name).await, "round {round}: {name}: what had been replaced came out");
        }
    }
    let store = patient(device.clone()).await;
    put(&store, "found", &[SPORT], body(3, 500)).await;
    assert_eq!(read_all(&store, key("found")).await.unwrap(), body(3, 500));
    store.sync().await.unwrap();
    drop(store);
    let store = patient(device).await;
    assert_eq!(read_all(&store, key("found")).await.unwrap(), body(3, 500));
}

/// A fill that began before a purge of its tag stores nothing and is not joined.
#[tokio::test]
async fn tag_purge_voids_older_fill() {
    let (_, store) = fresh(16 << 20).await;
    let begin = |name: &'static str| match store.begin_fill(key(name), None) {
        FillRole::Leader(fill) => fill,
        _ => panic!("{name}: nobody else fetches it"),
    };
    let (mut tagged, mut other, mut headless) = (begin("tagged"), begin("other"), begin("headless"));
    for (fill, tag) in [(&mut tagged, NEWS), (&mut other, SPORT)] {
        fill.tag([tag]).unwrap();
        assert!(fill.start(b"", "old".into(), Some(5)));
    }
    store.purge_tag(NEWS).await.unwrap();
    assert!(matches!(store.begin_fill(key("other"), None), FillRole::Follower(_)));
    assert!(matches!(store.begin_fill(key("tagged"), None), FillRole::Leader(_)), "it was joined");
    // This fill has no head yet, so it may still get any tag.
    assert!(matches!(store.begin_fill(key("headless"), None), FillRole::Leader(_)), "it was joined");
    headless.tag([NEWS]).unwrap();
    assert!(headless.start(b"", "old".into(), Some(5)));
    for (fill, stored) in [(&mut tagged, false), (&mut headless, false), (&mut other, true)] {
        fill.write("12345".into()).await.unwrap();
        let _ = stored;
    }
    assert_eq!(tagged.finish().await.unwrap_err().kind, StoreErrorKind::Busy);
    assert_eq!(headless.finish().await.unwrap_err().kind, StoreErrorKind::Busy);
    other.finish().await.unwrap();
    assert!(
        !is_there(&store, "tagged").await && !is_there(&store, "headless").await && is_there(&store, "other").await
    );
}

/// A purge outlives an earlier fill that a later fill superseded.
#[tokio::test]
async fn purge_outlives_superseded_fill() {
    let device: SharedDevice = Arc::new(MemoryDevice::new(1 << 20));
    let create = CreateOptions { segment_bytes: Some(32 << 10), ..CreateOptions::default() };
    Store::create(device.clone(), &create).await.unwrap();
    let store = Store::open(device, options()).await.unwrap();
    let FillRole::Leader(mut old) = store.begin_fill(key("page"), None) else { panic!("nobody else fetches it") };
    old.tag([NEWS]).unwrap();
    assert!(old.start(b"", "old".into(), Some(3)));
    old.write("old".into()).await.unwrap();
    store.purge_tag(NEWS).await.unwrap();
    store.purge_key(b"page").await.unwrap();
    let FillRole::Leader(new) = store.begin_fill(key("page"), None) else { panic!("it is not to be joined") };
    drop(new);
    // Puts follow until everything that was on the disk at the purges is overwritten.
    let end = store.stat().head_epoch + store.stat().segment_count + 4;
    let mut number = 0;
    while store.stat().head_epoch < end {
        number += 1;
        put(&store, &format!("other {number}"), &[], body(number, 3000)).await;
        store.sync().await.unwrap();
    }
    assert!(old.finish().await.is_err(), "it was stored");
    assert!(!is_there(&store, "page").await);
}

#[tokio::test]
async fn refresh_keeps_and_adds_tags() {
    let (device, store) = fresh(16 << 20).await;
    let names = ["short", "long"];
    for (name, length) in names.into_iter().zip([500, 2_000_000]) {
        put(&store, name, &[NEWS], body(1, length)).await;
    }
    for name in names {
        let stale = store.get(key(name)).await.unwrap();
        let FillRole::Leader(mut fill) = store.begin_fill(key(name), Some(&stale)) else { panic!("a new fill") };
        fill.tag([SPORT]).unwrap();
        fill.refresh(&stale, "new".into()).await.unwrap();
    }
    store.sync().await.unwrap();
    let image = device.image();
    for tag in [NEWS, SPORT] {
        let store = open(Arc::new(MemoryDevice::from_image(image.clone()))).await;
        for name in names {
            assert_eq!(store.get(key(name)).await.unwrap().metadata(), "new");
        }
        store.purge_tag(tag).await.unwrap();
        for name in names {
            assert!(!is_there(&store, name).await, "{name}");
        }
    }
}

/// Tags at the bounds are kept, and tags beyond them are refused.
#[tokio::test]
async fn tag_limits_are_enforced() {
    let (device, store) = fresh(64 << 20).await;
    let numbers: Vec<String> = (0..=TAGS_MAX).map(|number| number.to_string()).collect();
    let tags: Vec<&[u8]> = numbers.iter().map(|number| number.as_bytes()).collect();
    let refused = store.put_tagged(key("many"), &tags, Bytes::new(), Bytes::new()).await.unwrap_err();
    assert!(refused.kind == StoreErrorKind::Invalid && refused.message.contains("1024"), "{refused}");
    assert!(!is_there(&store, "many").await);
    put(&store, "most", &tags[..TAGS_MAX], body(1, 100)).await;
    put(&store, "most, long", &tags[1..], body(1, 2_000_000)).await;
    store.sync().await.unwrap();
    assert_eq!(store.stat().counts.tags_written_bytes, 2 * 8 * TAGS_MAX as u64);
    drop(store);
    let store = open(device).await;
    assert!(is_there(&store, "most").await && is_there(&store, "most, long").await);
    assert!(store.stat().memory_tags_bytes >= 2 * 8 * TAGS_MAX as u64, "{:?}", store.stat());
    store.purge_tag(b"1023").await.unwrap();
    assert!(!is_there(&store, "most").await && !is_there(&store, "most, long").await);
    let longest = vec![b'x'; TAG_BYTES_MAX];
    put(&store, "long tag", &[&longest], body(1, 100)).await;
    store.purge_tag(&longest).await.unwrap();
    assert!(!is_there(&store, "long tag").await);
    for bad in [&b""[..], &vec![b'x'; TAG_BYTES_MAX + 1]] {
        assert_eq!(store.purge_tag(bad).await.unwrap_err().kind, StoreErrorKind::Invalid);
        let refused = store.put_tagged(key("bad"), &[NEWS, bad], Bytes::new(), Bytes::new()).await;
        assert_eq!(refused.unwrap_err().kind, StoreErrorKind::Invalid);
        let FillRole::Leader(mut fill) = store.begin_fill(key("bad"), None) else { panic!("nobody else fetches it") };
        assert_eq!(fill.tag([bad]).unwrap_err().kind, StoreErrorKind::Invalid);
    }
}

/// A store from before tags says that it has tags once it was opened.
#[tokio::test]
async fn old_store_gains_tags() {
    let (device, store) = fresh(16 << 20).await;
    put(&store, "page", &[], body(1, 500)).await;
    store.close().await.unwrap();
    drop(store);
    // The image is changed into a store as an earlier program made it, without the feature "records have tags".
    let feature = |image: &[u8], copy: usize| image[copy * 4096 + 160];
    let mut image = device.image();
    for copy in 0..2 {
        assert_eq!(feature(&image, copy), 1);
        let block = &mut image[copy * 4096..(copy + 1) * 4096];
        block[160] = 0;
        reseal(block);
    }
    let device = Arc::new(MemoryDevice::from_image(image.clone()));
    let store = open(device.clone()).await;
    assert!(is_there(&store, "page").await);
    put(&store, "tagged", &[NEWS], body(2, 500)).await;
    store.sync().await.unwrap();
    store.purge_tag(NEWS).await.unwrap();
    drop(store);
    let upgraded = device.image();
    assert_eq!((feature(&upgraded, 0), feature(&upgraded, 1)), (1, 1));
    let store = open(device).await;
    assert!(is_there(&store, "page").await && !is_there(&store, "tagged").await);
    // A store with unknown features is refused and not changed.
    for copy in 0..2 {
        let block = &mut image[copy * 4096..(copy + 1) * 4096];
        block[160] = 3;
        reseal(block);
    }
    let device = Arc::new(MemoryDevice::from_image(image.clone()));
    let refused = Store::open(device.clone(), options()).await.err().expect("a feature of tomorrow");
    assert!(refused.kind == StoreErrorKind::Corrupt && refused.message.contains("features 0x3"), "{refused}");
    assert!(device.image() == image);
}

/// Corrects the checksum of a frame that is a whole block.
fn reseal(block: &mut [u8]) {
    block[12..16].fill(0);
    let sum = crc32c::crc32c(block);
    block[12..16].copy_from_slice(&sum.to_le_bytes());
}

#[tokio::test]
async fn tag_purges_survive_log_laps() {
    let (device, store) = fresh(1 << 20).await;
    put(&store, "news", &[NEWS], body(1, 500)).await;
    store.sync().await.unwrap();
    store.purge_tag(NEWS).await.unwrap();
    for number in 0..40 {
        store.purge_tag(format!("other {number}").as_bytes()).await.unwrap();
    }
    assert!(store.stat().purge_records > 40);
    put(&store, "new", &[NEWS], body(1, 500)).await;
    store.sync().await.unwrap();
    drop(store);
    let store = open(device).await;
    assert!(!store.stat().recovery.purges_lost);
    assert!(!is_there(&store, "news").await && is_there(&store, "new").await);
}
