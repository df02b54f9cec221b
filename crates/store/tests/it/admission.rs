//! Admission to the disk: the right objects are admitted, and no older version of an object reappears, whether it is
//! admitted or not.

use std::sync::Arc;

use crate::common::{body, options, read_all};
use nectary_block::{MemoryDevice, SharedDevice};
use nectary_store::{
    AdmissionOptions, AdmitRule, CreateOptions, FillHead, FillRole, KeyRef, OpenOptions, SpanDevice, SpanSet, Store,
};

const SECOND: AdmissionOptions = AdmissionOptions {
    rule: AdmitRule::SecondRequest,
    bytes_min: 0,
    bytes_max: None,
    write_budget: None,
    has_copies: false,
    seed: Some(1),
};

fn key(name: &str) -> KeyRef<'_> {
    KeyRef::new(name.as_bytes(), b"")
}

async fn made() -> SharedDevice {
    let device: SharedDevice = Arc::new(MemoryDevice::new(64 << 20));
    Store::create(device.clone(), &CreateOptions::default()).await.unwrap();
    device
}

async fn open(device: &SharedDevice, admission: AdmissionOptions) -> Store {
    Store::open(device.clone(), OpenOptions { admission, ..options() }).await.unwrap()
}

/// Syncs and drops a store, like a crash after a sync, and opens it again without admission rules.
async fn crash(device: &SharedDevice, store: Store) -> Store {
    store.sync().await.unwrap();
    drop(store);
    open(device, AdmissionOptions::default()).await
}

async fn put(store: &Store, name: &str, seed: u64, length: usize) {
    store.put(key(name), seed.to_string().into(), body(seed, length)).await.unwrap();
}

/// Fills a key without announcing the length of the body. Returns whether the object was admitted at the end of its
/// body.
async fn fill(store: &Store, name: &str, seed: u64, length: usize) -> bool {
    let stale = store.get(key(name)).await;
    let FillRole::Leader(mut fill) = store.begin_fill(key(name), stale.as_ref()) else { panic!("nobody else fills") };
    assert!(fill.start(b"", seed.to_string().into(), None));
    let mut reader = fill.reader();
    let reading = tokio::spawn(async move {
        let mut bytes = Vec::new();
        while let Some(chunk) = reader.next().await {
            bytes.extend_from_slice(&chunk.unwrap());
        }
        bytes
    });
    for chunk in body(seed, length).chunks(100_000) {
        fill.write(bytes::Bytes::copy_from_slice(chunk)).await.unwrap();
    }
    let is_admitted = fill.is_admitted();
    fill.finish().await.unwrap();
    assert!(reading.await.unwrap() == body(seed, length), "whoever read along got other bytes");
    is_admitted
}

#[tokio::test]
async fn everything_is_admitted_by_default() {
    let device = made().await;
    let store = open(&device, AdmissionOptions::default()).await;
    put(&store, "a", 1, 1000).await;
    put(&store, "b", 2, 3_000_000).await;
    assert!(fill(&store, "c", 3, 1000).await);
    let stat = store.stat();
    assert_eq!((stat.counts.admitted, stat.counts.puts), (3, 3));
    assert_eq!(stat.counts.admitted_bytes, stat.counts.put_bytes);
    assert_eq!((stat.admission.admitted_share, stat.admission.remembered_bytes), (Some(1.0), 0));
}

/// An object not requested before is served from memory and never written to disk.
#[tokio::test]
async fn unrequested_object_stays_in_memory() {
    let device = made().await;
    let store = open(&device, SECOND).await;
    for number in 0..100 {
        put(&store, &format!("once {number}"), number, 1000).await;
    }
    store.sync().await.unwrap();
    let stat = store.stat();
    assert_eq!((stat.counts.unadmitted_first, stat.counts.admitted, stat.entries), (100, 0, 0));
    assert_eq!((stat.counts.unadmitted_first_bytes, stat.admission.admitted_share), (100_000, Some(0.0)));
    assert!(stat.counts.append_bytes == 0 && stat.memory_entries == 100 && stat.memory_unwritten_bytes == 0);
    assert!(stat.admission.remembered_requests > 100 && stat.admission.remembered_bytes <= (32 << 20) / 64);
    let once = store.get(key("once 7")).await.unwrap();
    assert_eq!(once.whole(), Some(&body(7, 1000)));
    drop(once);
    // Only "once 7" has now been requested twice.
    let store = crash(&device, store).await;
    assert_eq!(read_all(&store, key("once 7")).await, Some(body(7, 1000).to_vec()));
    for number in (0..100).filter(|&number| number != 7) {
        assert!(store.get(key(&format!("once {number}"))).await.is_none(), "{number}");
    }
}

/// What the caller has elsewhere: it is never written, however often it is requested, except over what is on the disk.
#[tokio::test]
async fn copies_stay_in_memory_alone() {
    let device = made().await;
    let store = open(&device, AdmissionOptions { has_copies: true, ..AdmissionOptions::default() }).await;
    put(&store, "own", 1, 1000).await;
    store.sync().await.unwrap();
    let copy = async |name: &str, seed: u64, length: usize| {
        let stale = store.get(key(name)).await;
        let FillRole::Leader(mut fill) = store.begin_fill(key(name), stale.as_ref()) else {
            panic!("nobody else fills")
        };
        fill.keep_in_memory();
        fill.tag([&b"t"[..]]).unwrap();
        assert!(fill.start(b"", seed.to_string().into(), Some(length as u64)));
        let _reader = fill.reader();
        fill.write(body(seed, length)).await.unwrap();
        fill.finish().await.map(drop)
    };
    for name in ["first", "second", "own"] {
        copy(name, 7, 1000).await.unwrap();
    }
    for _ in 0..3 {
        assert_eq!(read_all(&store, key("first")).await, Some(body(7, 1000).to_vec()));
    }
    store.sync().await.unwrap();
    let counts = store.stat().counts;
    assert_eq!(
        (counts.unadmitted_copies, counts.admitted, counts.admitted_replacing),
        (2, 2, 1),
        "one was on the disk"
    );
    store.purge_key(b"first").await.unwrap();
    assert!(store.get(key("first")).await.is_none() && store.get(key("second")).await.is_some());
    store.purge_tag(b"t").await.unwrap();
    assert!(store.get(key("second")).await.is_none() && store.get(key("own")).await.is_none());
    copy("second", 8, 1000).await.unwrap();
    copy("own", 9, 1000).await.unwrap();
    let store = crash(&device, store).await;
    assert!(store.get(key("second")).await.is_none());
    // What was purged on the disk needs no newer version there.
    let own = read_all(&store, key("own")).await;
    assert!(own.is_none_or(|own| own == body(9, 1000)), "no older version comes back");
}

#[tokio::test]
async fn what_is_put_again_is_written() {
    let device = made().await;
    let store = open(&device, SECOND).await;
    for round in 0..2 {
        put(&store, "short", round, 1000).await;
        put(&store, "long", round, 3_000_000).await;
        assert_eq!(fill(&store, "of unknown length", round, 700_000).await, round == 1);
    }
    let counts = store.stat().counts;
    assert_eq!((counts.unadmitted_first, counts.admitted, counts.admitted_replacing), (3, 3, 0));
    let store = crash(&device, store).await;
    assert_eq!(read_all(&store, key("short")).await, Some(body(1, 1000).to_vec()));
    assert_eq!(read_all(&store, key("long")).await, Some(body(1, 3_000_000).to_vec()));
    assert_eq!(read_all(&store, key("of unknown length")).await, Some(body(1, 700_000).to_vec()));
}

/// Sizes outside the bounds are not admitted, whether known beforehand or not.
#[tokio::test]
async fn size_bounds_hold_always() {
    let device = made().await;
    let bounds = AdmissionOptions { bytes_min: 10, bytes_max: Some(500_000), ..AdmissionOptions::default() };
    let store = open(&device, bounds).await;
    for (name, length, is_admitted) in [
        ("a", 9, false),
        ("empty", 0, true),
        ("b", 10, true),
        ("c", 300_000, true),
        ("d", 500_000, true),
        ("e", 500_001, false),
    ] {
        put(&store, name, 1, length).await;
        let filled = format!("{name} filled");
        // A body of unknown length is known to be too short only at its end.
        assert_eq!(fill(&store, &filled, 1, length).await, is_admitted || name == "a");
    }
    let counts = store.stat().counts;
    assert_eq!((counts.unadmitted_size, counts.admitted), (4, 8));
    assert_eq!(counts.unadmitted_size_bytes, 2 * (9 + 500_001));
    let store = crash(&device, store).await;
    for (name, length, is_admitted) in [("a", 9, false), ("b", 10, true), ("d", 500_000, true), ("e", 500_001, false)] {
        for name in [name.to_owned(), format!("{name} filled")] {
            let found = read_all(&store, key(&name)).await;
            assert_eq!(found, is_admitted.then(|| body(1, length).to_vec()), "{name}");
        }
    }
}

/// The lengths of the replaced bodies, and also of the new bodies, in bytes. A body of the first length is one record;
/// a body of the second length has several.
const LENGTHS: [usize; 2] = [1000, 700_000];

#[tokio::test]
async fn replacement_is_always_admitted() {
    for old in LENGTHS {
        for new in LENGTHS {
            let device = made().await;
            let store = open(&device, AdmissionOptions::default()).await;
            for name in ["put", "filled", "waits"] {
                put(&store, name, 1, old).await;
            }
            let store = {
                store.sync().await.unwrap();
                drop(store);
                open(&device, AdmissionOptions { bytes_max: Some(1), ..SECOND }).await
            };
            put(&store, "put", 2, new).await;
            assert!(fill(&store, "filled", 2, new).await);
            let counts = store.stat().counts;
            assert_eq!((counts.admitted_replacing, counts.unadmitted_size), (2, 0), "{old} {new}");
            let store = crash(&device, store).await;
            for name in ["put", "filled"] {
                assert_eq!(read_all(&store, key(name)).await, Some(body(2, new).to_vec()), "{name} {old} {new}");
            }
        }
    }
}

/// A memory-only object is gone when another one that is not admitted follows.
#[tokio::test]
async fn unadmitted_replacement_drops_memory_object() {
    let device = made().await;
    let store = open(&device, AdmissionOptions { bytes_max: Some(1), ..AdmissionOptions::default() }).await;
    for (old, new) in [(1000, 1001), (1000, 700_000), (700_000, 1000)] {
        put(&store, "a", 1, old).await;
        put(&store, "a", 2, new).await;
        let found = read_all(&store, key("a")).await;
        assert!(found.is_none_or(|found| found == body(2, new)), "{old} {new}");
        assert!(!fill(&store, "b", 1, old).await && !fill(&store, "b", 2, new).await);
        let found = read_all(&store, key("b")).await;
        assert!(found.is_none_or(|found| found == body(2, new)), "{old} {new}");
    }
    let counts = store.stat().counts;
    assert_eq!((counts.append_bytes, counts.unadmitted_size), (0, 12));
}

#[tokio::test]
async fn memory_only_object_is_purged() {
    let device = made().await;
    let store = open(&device, SECOND).await;
    for name in ["key", "tag", "kept"] {
        let tags: &[&[u8]] = if name == "tag" { &[b"t"] } else { &[] };
        store.put_tagged(key(name), tags, "".into(), body(1, 100)).await.unwrap();
    }
    store.purge_key(b"key").await.unwrap();
    store.purge_tag(b"t").await.unwrap();
    assert!(store.get(key("key")).await.is_none() && store.get(key("tag")).await.is_none());
    assert!(store.get(key("kept")).await.is_some());
    let store = crash(&device, store).await;
    assert!(store.get(key("key")).await.is_none() && store.get(key("tag")).await.is_none());
}

/// A memory-only object stays purged after the ring has overtaken the purge.
#[tokio::test]
async fn memory_only_purge_outlives_lap() {
    let device: SharedDevice = Arc::new(MemoryDevice::new(16 << 20));
    Store::create(device.clone(), &CreateOptions::default()).await.unwrap();
    let admission = AdmissionOptions { bytes_min: 5000, ..AdmissionOptions::default() };
    let memory_bytes = 1 << 30;
    let store = Store::open(device, OpenOptions { admission, memory_bytes, ..options() }).await.unwrap();
    for name in ["key", "prefix/1", "tag", "stays"] {
        let tags: &[&[u8]] = if name == "tag" { &[b"t"] } else { &[] };
        store.put_tagged(key(name), tags, "".into(), body(1, 100)).await.unwrap();
    }
    store.purge_key(b"key").await.unwrap();
    store.purge_prefix(b"prefix/").await.unwrap();
    store.purge_tag(b"t").await.unwrap();
    assert_eq!(store.stat().purge_records, 3);
    let mut rounds = 0;
    while store.stat().purge_records > 0 {
        put(&store, &format!("fills the ring {rounds}"), 1, 200_000).await;
        store.sync().await.unwrap();
        rounds += 1;
        assert!(rounds < 1000, "purges are forgotten when all is overwritten that was there");
    }
    for name in ["key", "prefix/1", "tag"] {
        assert!(store.get(key(name)).await.is_none(), "{name} came back");
    }
    assert!(store.get(key("stays")).await.is_some(), "memory has room for all of it");
}

#[tokio::test]
async fn followers_stream_unadmitted_body() {
    let device = made().await;
    let store = open(&device, SECOND).await;
    let length = 5_000_000;
    let FillRole::Leader(mut fill) = store.begin_fill(key("long"), None) else { panic!("nobody else fills") };
    assert!(fill.start(b"", "".into(), Some(length as u64)) && !fill.is_admitted());
    let FillRole::Follower(mut follower) = store.begin_fill(key("long"), None) else { panic!("it runs") };
    assert!(matches!(follower.head().await, FillHead::Streaming { .. }) && !follower.is_promised());
    let reading = tokio::spawn(async move {
        let mut bytes = Vec::new();
        while let Some(chunk) = follower.next().await {
            bytes.extend_from_slice(&chunk.unwrap());
        }
        bytes
    });
    for chunk in body(1, length).chunks(65_536) {
        fill.write(bytes::Bytes::copy_from_slice(chunk)).await.unwrap();
    }
    fill.finish().await.unwrap();
    assert!(reading.await.unwrap() == body(1, length));
    assert!(store.get(key("long")).await.is_none());
    let counts = store.stat().counts;
    assert_eq!((counts.append_bytes, counts.unadmitted_first, counts.puts_refused), (0, 1, 0));
}

/// No more is written than the write budget allows, and the rest is served.
#[tokio::test]
async fn write_budget_is_kept() {
    let device = made().await;
    let admission = AdmissionOptions {
        write_budget: Some("1G/day".parse().unwrap()),
        seed: Some(1),
        ..AdmissionOptions::default()
    };
    let store = open(&device, admission).await;
    // A window of the budget is an hour. The store starts with half of a window's credit.
    let credit = (1_u64 << 30) / 24 / 2;
    for number in 0..6000 {
        put(&store, &number.to_string(), number, 10_000).await;
        if number % 100 == 99 {
            store.sync().await.unwrap();
        }
        assert!(number % 1000 != 999 || store.get(key(&number.to_string())).await.is_some());
    }
    store.checkpoint().await.unwrap();
    let stat = store.stat();
    let written = stat.counts.append_bytes + stat.counts.metadata_bytes;
    assert!(written < credit * 105 / 100 && written > credit * 80 / 100, "{written} of {credit}");
    let counts = &stat.counts;
    assert!(counts.unadmitted_budget > 3000 && counts.puts_refused == 0, "{counts:?}");
    assert_eq!(counts.admitted - counts.admitted_later + counts.unadmitted_budget, 6000);
    let budget = stat.admission.write_budget.unwrap();
    assert_eq!((budget.budget_bytes, budget.period_s, budget.used_bytes), (1 << 30, 86_400, written));
    assert!(budget.chance < 0.2 && stat.admission.admitted_share.unwrap() < 0.5, "{budget:?}");
    // An object that replaces one on the disk is written even if the budget is used up.
    let on_disk = (0..6000).find(|number| {
        let name = number.to_string();
        futures_util::FutureExt::now_or_never(store.get(key(&name)))
            .flatten()
            .is_some_and(|object| object.is_admitted())
    });
    let name = on_disk.unwrap().to_string();
    // The index has only parts of the hashes: in about one run of 40, one of the 6000 objects is mistaken for another
    // one.
    let replaced_before = store.stat().counts.admitted_replacing;
    for version in 0..3000 {
        put(&store, &name, version, 10_000).await;
        if version % 100 == 99 {
            store.sync().await.unwrap();
        }
    }
    assert_eq!(store.stat().counts.admitted_replacing - replaced_before, 3000);
    assert_eq!(store.stat().admission.write_budget.unwrap().chance, 0.0);
    let store = crash(&device, store).await;
    assert_eq!(read_all(&store, key(&name)).await, Some(body(2999, 10_000).to_vec()));
}

#[tokio::test]
async fn spans_share_the_write_budget() {
    let span = |name: &str, bytes| SpanDevice {
        spec: name.to_owned(),
        device: Ok(Arc::new(MemoryDevice::new(bytes)) as SharedDevice),
        size_bytes: 0,
    };
    let admission = AdmissionOptions { write_budget: Some("4G/day".parse().unwrap()), ..SECOND };
    let spans = vec![span("small", 32 << 20), span("large", 96 << 20)];
    let store = SpanSet::open(spans, OpenOptions { admission, ..options() }).await.unwrap();
    let stat = store.stat();
    assert_eq!(stat.admission.write_budget.unwrap().budget_bytes, 4 << 30);
    let of_spans: Vec<u64> = stat
        .spans
        .iter()
        .filter_map(|span| span.stat.as_ref())
        .map(|stat| stat.admission.write_budget.unwrap().budget_bytes >> 30)
        .collect();
    assert_eq!(of_spans, [1, 3]);
    for _ in 0..2 {
        store.put(key("a"), "".into(), body(1, 10)).await.unwrap();
    }
    let stat = store.stat();
    assert_eq!((stat.counts.admitted, stat.counts.unadmitted_first, stat.admission.admitted_share), (1, 1, Some(0.5)));
    store.close().await.unwrap();
}
