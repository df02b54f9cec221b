//! Soft purges: what they name is found and stale, also after a crash, until it is replaced or confirmed; nothing else
//! is stale, and nothing becomes fresh by itself.

use std::sync::Arc;
use std::time::Duration;

use nectary_block::{MemoryDevice, SharedDevice};
use nectary_store::{
    AdmissionOptions, CreateOptions, FillRole, KeyRef, OpenOptions, PurgeEffect, SpanDevice, SpanSet, Store,
    StoreErrorKind,
};

use crate::common::{body, fresh, open, options, read_all};

const SINCE_S: u32 = 1_700_000_000;
const SOFT: PurgeEffect = PurgeEffect::Soft { since_s: SINCE_S };

fn key(name: &str) -> KeyRef<'_> {
    KeyRef::new(name.as_bytes(), b"")
}

async fn put(store: &Store, name: &str, tags: &[&[u8]]) {
    store.put_tagged(key(name), tags, "metadata".into(), body(1, 1000)).await.unwrap();
}

/// Since when an object is stale; `None` if it is not found, and `Some(None)` if it is fresh.
async fn staleness(store: &Store, name: &str) -> Option<Option<u32>> {
    store.get(key(name)).await.map(|object| object.stale_since_s())
}

#[tokio::test]
async fn soft_purges_hold_after_a_crash() {
    let (device, store) = fresh(64 << 20).await;
    for name in ["key", "prefix/1", "tag", "other"] {
        let tags: &[&[u8]] = if name == "tag" { &[b"t"] } else { &[] };
        put(&store, name, tags).await;
    }
    let long = body(2, 3_000_000);
    store.put(key("long"), "metadata".into(), long.clone()).await.unwrap();
    store.sync().await.unwrap();
    put(&store, "prefix/waits", &[]).await;
    for name in ["key", "long", "absent"] {
        store.purge_key_as(name.as_bytes(), SOFT).await.unwrap();
    }
    store.purge_prefix_as(b"prefix/", SOFT).await.unwrap();
    store.purge_tag_as(b"t", SOFT).await.unwrap();
    put(&store, "prefix/new", &[b"t"]).await;
    store.sync().await.unwrap();
    for round in 0..3 {
        let store = if round == 0 { store.clone() } else { open(device.clone()).await };
        for name in ["key", "prefix/1", "prefix/waits", "tag", "long"] {
            assert_eq!(staleness(&store, name).await, Some(Some(SINCE_S)), "round {round}: {name}");
        }
        for name in ["other", "prefix/new"] {
            assert_eq!(staleness(&store, name).await, Some(None), "round {round}: {name}");
        }
        assert_eq!(staleness(&store, "absent").await, None);
        assert!(read_all(&store, key("long")).await.unwrap() == long);
        let report = store.check(|_, _| {}).await;
        assert_eq!((report.damaged, report.objects, report.purged), (0, 7, 0), "{report:?}");
        if round == 1 {
            store.close().await.unwrap();
        }
    }
}

#[tokio::test]
async fn soft_purge_all_survives_crash() {
    let (device, store) = fresh(16 << 20).await;
    put(&store, "before", &[]).await;
    store.purge_key_as(b"before", SOFT).await.unwrap();
    store.purge_all_as(SOFT).await.unwrap();
    assert_eq!(store.stat().purge_records, 1, "it takes the place of the other");
    put(&store, "after", &[]).await;
    store.sync().await.unwrap();
    for store in [store, open(device).await] {
        assert_eq!(staleness(&store, "before").await, Some(Some(SINCE_S)));
        assert_eq!(staleness(&store, "after").await, Some(None));
    }
}

#[tokio::test]
async fn confirmed_and_replaced_objects_are_fresh() {
    let (device, store) = fresh(16 << 20).await;
    for name in ["confirmed", "replaced", "stale"] {
        put(&store, name, &[b"t"]).await;
    }
    store.purge_tag_as(b"t", SOFT).await.unwrap();
    let stale = store.get(key("confirmed")).await.unwrap();
    let FillRole::Leader(fill) = store.begin_fill(key("confirmed"), Some(&stale)) else { panic!("no leader") };
    let confirmed = fill.refresh(&stale, "new".into()).await.unwrap();
    assert_eq!((confirmed.stale_since_s(), stale.stale_since_s()), (None, Some(SINCE_S)));
    put(&store, "replaced", &[b"t"]).await;
    store.sync().await.unwrap();
    for store in [store, open(device).await] {
        assert_eq!(staleness(&store, "confirmed").await, Some(None));
        assert_eq!(staleness(&store, "replaced").await, Some(None));
        assert_eq!(staleness(&store, "stale").await, Some(Some(SINCE_S)));
    }
}

#[tokio::test]
async fn soft_purge_voids_older_fill() {
    let (_, store) = fresh(16 << 20).await;
    put(&store, "page", &[]).await;
    let old = store.get(key("page")).await.unwrap();
    let FillRole::Leader(mut fill) = store.begin_fill(key("page"), Some(&old)) else { panic!("no leader") };
    assert!(fill.start(b"", "m".into(), Some(5)));
    store.purge_key_as(b"page", SOFT).await.unwrap();
    let FillRole::Leader(mut second) = store.begin_fill(key("page"), Some(&old)) else {
        panic!("joined a fill from before the soft purge")
    };
    fill.write("older".into()).await.unwrap();
    assert_eq!(fill.finish().await.map_err(|error| error.kind).err(), Some(StoreErrorKind::Busy));
    assert_eq!(staleness(&store, "page").await, Some(Some(SINCE_S)), "what was there stays");
    assert!(second.start(b"", "m".into(), Some(5)));
    second.write("newer".into()).await.unwrap();
    second.finish().await.unwrap();
    assert_eq!(staleness(&store, "page").await, Some(None));
}

#[tokio::test]
async fn purge_after_a_soft_purge_removes() {
    let (device, store) = fresh(16 << 20).await;
    for name in ["a", "b"] {
        put(&store, name, &[]).await;
    }
    store.purge_all_as(SOFT).await.unwrap();
    store.purge_key(b"a").await.unwrap();
    store.sync().await.unwrap();
    let again = open(device).await;
    for store in [&store, &again] {
        assert_eq!(staleness(store, "a").await, None);
        assert_eq!(staleness(store, "b").await, Some(Some(SINCE_S)));
    }
    again.purge_all().await.unwrap();
    assert_eq!((staleness(&again, "b").await, again.stat().purge_records), (None, 1));
}

/// The ring overwrites what was softly purged, however often it is requested; only then is the purge forgotten.
#[tokio::test]
async fn forgotten_soft_purge_leaves_nothing_fresh() {
    let (_, store) = fresh(16 << 20).await;
    put(&store, "hot", &[b"t"]).await;
    store.sync().await.unwrap();
    store.purge_tag_as(b"t", SOFT).await.unwrap();
    let mut rounds = 0;
    while store.stat().purge_records > 0 {
        assert_ne!(staleness(&store, "hot").await, Some(None), "round {rounds}");
        store.put(key(&format!("fills the ring {rounds}")), "m".into(), body(rounds, 200_000)).await.unwrap();
        store.sync().await.unwrap();
        rounds += 1;
        assert!(rounds < 1000, "soft purges are forgotten when all is overwritten that was there");
    }
    assert_eq!(staleness(&store, "hot").await, None);
}

/// A stale object in memory alone stays stale.
#[tokio::test]
async fn stale_object_stays_stale() {
    let device: SharedDevice = Arc::new(MemoryDevice::new(16 << 20));
    Store::create(device.clone(), &CreateOptions::default()).await.unwrap();
    let admission = AdmissionOptions { bytes_min: 5000, ..AdmissionOptions::default() };
    let options = OpenOptions { admission, memory_bytes: 1 << 30, ..options() };
    let store = Store::open(device, options).await.unwrap();
    put(&store, "small", &[]).await;
    store.purge_key_as(b"small", SOFT).await.unwrap();
    let mut rounds = 0;
    while store.stat().purge_records > 0 {
        store.put(key(&format!("fills the ring {rounds}")), "m".into(), body(rounds, 200_000)).await.unwrap();
        store.sync().await.unwrap();
        rounds += 1;
        assert!(rounds < 1000, "soft purges are forgotten when all is overwritten that was there");
    }
    for _ in 0..2 {
        let found = store.get(key("small")).await.expect("it is in memory");
        assert_eq!((found.stale_since_s(), found.is_admitted()), (Some(SINCE_S), false));
    }
}

/// Both devices of a store.
fn named(devices: &[Arc<MemoryDevice>; 2]) -> Vec<SpanDevice> {
    let named = |(spec, device): (&str, &Arc<MemoryDevice>)| {
        let device: SharedDevice = device.clone();
        SpanDevice { spec: spec.into(), device: Ok(device), size_bytes: 0 }
    };
    ["a", "b"].into_iter().zip(devices).map(named).collect()
}

/// A new store of two spans, on which 20 objects with tag `t` are written.
async fn with_two_spans(devices: &[Arc<MemoryDevice>; 2]) -> SpanSet {
    let write_delay = Duration::from_millis(1);
    let spans = SpanSet::open(named(devices), OpenOptions { write_delay, ..options() }).await.unwrap();
    for number in 0..20 {
        let name = format!("http://{number}");
        spans.put_tagged(key(&name), &[b"t"], "m".into(), body(number, 100)).await.unwrap();
    }
    spans.sync().await.unwrap();
    spans
}

async fn assert_all_stale(spans: &SpanSet) {
    for number in 0..20 {
        let found = spans.get(key(&format!("http://{number}"))).await.expect("it is found");
        assert_eq!(found.stale_since_s(), Some(SINCE_S), "{number}");
    }
}

#[tokio::test]
async fn all_spans_record_a_soft_purge() {
    let devices = [(); 2].map(|()| Arc::new(MemoryDevice::new(4 << 20)));
    let spans = with_two_spans(&devices).await;
    spans.purge_tag_as(b"t", SOFT).await.unwrap();
    spans.close().await.unwrap();
    drop(spans);
    let spans = SpanSet::open(named(&devices), options()).await.unwrap();
    assert_all_stale(&spans).await;
    spans.purge_key_as(b"http://1", SOFT).await.unwrap();
    spans.purge_prefix_as(b"http://", SOFT).await.unwrap();
    spans.purge_all_as(SOFT).await.unwrap();
    assert!(spans.get(key("http://1")).await.is_some());
}

/// A crash may leave a purge on one span alone; the other one gets it from there, as the soft one that it was.
#[tokio::test]
async fn missed_soft_purge_stays_soft() {
    let mut devices = [(); 2].map(|()| Arc::new(MemoryDevice::new(4 << 20)));
    let spans = with_two_spans(&devices).await;
    assert!((0..20).any(|number| spans.span_of(format!("http://{number}").as_bytes()) == Some(1)));
    let before = devices[1].image();
    spans.purge_tag_as(b"t", SOFT).await.unwrap();
    drop(spans);
    devices[1] = Arc::new(MemoryDevice::from_image(before));
    for _ in 0..2 {
        let spans = SpanSet::open(named(&devices), options()).await.unwrap();
        assert_all_stale(&spans).await;
        spans.close().await.unwrap();
    }
}
