//! An older copy of a span next to current spans: purged objects do not reappear with it.

use std::sync::Arc;

use crate::common::options;
use bytes::Bytes;
use nectary_block::{MemoryDevice, SharedDevice};
use nectary_store::{KeyRef, SpanDevice, SpanSet};

const SPAN_BYTES: u64 = 4 << 20;
const COUNT: u32 = 200;
const TAG: &[u8] = b"news";

/// The two ways in which a store ends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum StoreEnd {
    Closed,
    Killed,
}

/// Two spans; the second one can be replaced by an older copy.
struct SpanDisks([Arc<MemoryDevice>; 2]);

impl SpanDisks {
    fn new() -> SpanDisks {
        SpanDisks([(); 2].map(|()| Arc::new(MemoryDevice::new(SPAN_BYTES))))
    }

    async fn open(&self) -> SpanSet {
        let named = |(number, device): (usize, &Arc<MemoryDevice>)| SpanDevice {
            spec: format!("disk{number}"),
            device: Ok(device.clone() as SharedDevice),
            size_bytes: 0,
        };
        SpanSet::open(self.0.iter().enumerate().map(named).collect(), options()).await.unwrap()
    }

    fn copy(&self) -> Vec<u8> {
        self.0[1].image()
    }

    fn put_back(&mut self, image: Vec<u8>) {
        self.0[1] = Arc::new(MemoryDevice::from_image(image));
    }
}

fn name(number: u32) -> String {
    format!("http://{}.example/{number}", ["key", "tag", "prefix", "kept"][number as usize % 4])
}

async fn put_all(store: &SpanSet, body: &'static str) {
    for number in 0..COUNT {
        let tags: &[&[u8]] = if number % 4 == 1 { &[TAG] } else { &[] };
        let name = name(number);
        store.put_tagged(KeyRef::new(name.as_bytes(), b""), tags, Bytes::new(), body.into()).await.unwrap();
    }
    store.sync().await.unwrap();
}

/// Purges three quarters of the objects: by key, by tag and by prefix.
async fn purge(store: &SpanSet) {
    for number in (0..COUNT).step_by(4) {
        store.purge_key(name(number).as_bytes()).await.unwrap();
    }
    store.purge_tag(TAG).await.unwrap();
    store.purge_prefix(b"http://prefix.").await.unwrap();
}

async fn end(store: SpanSet, end: StoreEnd) {
    if end == StoreEnd::Closed {
        store.close().await.unwrap();
    }
}

/// Returns the numbers of the objects that are found with this body: those on the first span, and those on the second.
async fn found(store: &SpanSet, body: &str) -> [Vec<u32>; 2] {
    let mut found = [Vec::new(), Vec::new()];
    for number in 0..COUNT {
        let name = name(number);
        if store.get(KeyRef::new(name.as_bytes(), b"")).await.is_some_and(|object| object.whole().unwrap() == body) {
            found[store.span_of(name.as_bytes()).unwrap() as usize].push(number);
        }
    }
    found
}

/// Checks that no purged object is found, and that all other objects of the first span, which is unchanged, are found.
async fn assert_purged(store: &SpanSet, context: &str) -> [Vec<u32>; 2] {
    let found = found(store, "body").await;
    let purged = found.concat().iter().filter(|number| *number % 4 != 3).count();
    assert_eq!(purged, 0, "{context}: purged objects came back");
    let is_kept = |number: &u32| store.span_of(name(*number).as_bytes()) == Some(0);
    assert_eq!(
        found[0],
        (3..COUNT).step_by(4).filter(is_kept).collect::<Vec<_>>(),
        "{context}: lost on the other span"
    );
    found
}

/// A span restored from before purges restores nothing.
#[tokio::test]
async fn restored_old_span_keeps_purges() {
    for restarts in [0, 1, 2, 5] {
        for ending in [StoreEnd::Closed, StoreEnd::Killed] {
            let context = format!("{restarts} restarts, {ending:?}");
            let mut disks = SpanDisks::new();
            let mut store = disks.open().await;
            put_all(&store, "body").await;
            let mut copy = disks.copy();
            if restarts > 0 {
                end(store, ending).await;
                copy = disks.copy();
                store = disks.open().await;
            }
            purge(&store).await;
            end(store, ending).await;
            for _ in 1..restarts {
                end(disks.open().await, ending).await;
            }
            disks.put_back(copy);
            let store = disks.open().await;
            assert!(assert_purged(&store, &context).await[1].is_empty(), "{context}: the copy is not empty");
            assert!(store.take_notes().iter().any(|note| note.contains("disk1: span 1")), "{context}: nobody says so");
            put_all(&store, "new").await;
            store.purge_key(b"another").await.unwrap();
            end(store, ending).await;
            let both = found(&disks.open().await, "new").await;
            assert_eq!(both.concat().len(), COUNT as usize, "{context}: the new span is not believed: {both:?}");
        }
    }
}

/// A span that lacks only the last purge gets it and keeps the rest.
#[tokio::test]
async fn span_gets_missed_last_purge() {
    // An older copy that lacks only the last purge looks like a span after a crash during this purge: the store cannot
    // distinguish the two.
    for (kind, first) in [(0, 0), (1, 1), (2, 2)] {
        let mut disks = SpanDisks::new();
        let store = disks.open().await;
        put_all(&store, "body").await;
        for other in (0..3).filter(|other| *other != kind) {
            purge_kind(&store, other).await;
        }
        let copy = disks.copy();
        purge_kind(&store, kind).await;
        drop(store);
        disks.put_back(copy);
        for context in ["first open", "second open"] {
            let found = assert_purged(&disks.open().await, &format!("{kind}, {context}")).await;
            assert!(!found[1].is_empty(), "{first}: what was not purged stays");
        }
    }
}

/// Purges with one call of the given kind.
async fn purge_kind(store: &SpanSet, kind: u32) {
    match kind {
        0 => store.purge_prefix(b"http://key.").await.unwrap(),
        1 => store.purge_tag(TAG).await.unwrap(),
        _ => store.purge_prefix(b"http://prefix.").await.unwrap(),
    }
}

/// A span restored from before the last open restores nothing that was replaced.
#[tokio::test]
async fn older_span_copy_restores_nothing() {
    for ending in [StoreEnd::Closed, StoreEnd::Killed] {
        let mut disks = SpanDisks::new();
        let store = disks.open().await;
        put_all(&store, "old").await;
        end(store, ending).await;
        let copy = disks.copy();
        let store = disks.open().await;
        put_all(&store, "body").await;
        end(store, ending).await;
        disks.put_back(copy);
        let store = disks.open().await;
        assert!(found(&store, "old").await.concat().is_empty(), "{ending:?}");
        assert!(!found(&store, "body").await[0].is_empty());
    }
}

/// A span that was not restored keeps its objects through opens and purges.
#[tokio::test]
async fn intact_span_keeps_objects() {
    let disks = SpanDisks::new();
    for round in 0..6_u32 {
        let store = disks.open().await;
        if round > 0 {
            assert_eq!(found(&store, "body").await.concat().len(), COUNT as usize / 4, "round {round}");
        }
        put_all(&store, "body").await;
        // Many of these purges run at the same time, and together they fill several cycles of the log. But they do not
        // make more different rules than the log has room for.
        let purges = (0..round * 100).map(|number| {
            let store = store.clone();
            tokio::spawn(async move { store.purge_key(format!("other {}", number % 20).as_bytes()).await })
        });
        for purge in purges.collect::<Vec<_>>() {
            purge.await.unwrap().unwrap();
        }
        purge(&store).await;
        end(store, if round % 2 == 0 { StoreEnd::Killed } else { StoreEnd::Closed }).await;
    }
}
