//! An older copy of a span next to current spans: purged objects do not reappear with it.

use std::sync::Arc;

use crate::common::options;
use bytes::Bytes;
use nectary_block::{MemoryDevice, SharedDevice};
use nectary_store::{KeyRef, SpanDevice, Spans};

const SPAN_BYTES: u64 = 4 << 20;
const COUNT: u32 = 200;
const TAG: &[u8] = b"news";

/// The two ways in which a store ends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Closed,
    Killed,
}

/// Two spans; the second one can be replaced by an older copy.
struct Disks([Arc<MemoryDevice>; 2]);

impl Disks {
    fn new() -> Disks {
        Disks([(); 2].map(|()| Arc::new(MemoryDevice::new(SPAN_BYTES))))
    }

    async fn open(&self) -> Spans {
        let named = |(number, device): (usize, &Arc<MemoryDevice>)| SpanDevice {
            spec: format!("disk{number}"),
            device: Ok(device.clone() as SharedDevice),
            size_bytes: 0,
        };
        Spans::open(self.0.iter().enumerate().map(named).collect(), options()).await.unwrap()
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

async fn put_all(store: &Spans, body: &'static str) {
    for number in 0..COUNT {
        let tags: &[&[u8]] = if number % 4 == 1 { &[TAG] } else { &[] };
        let name = name(number);
        store.put_tagged(KeyRef::new(name.as_bytes(), b""), tags, Bytes::new(), body.into()).await.unwrap();
    }
    store.sync().await.unwrap();
}

/// Purges three quarters of the objects: by key, by tag and by prefix.
async fn purge(store: &Spans) {
    for number in (0..COUNT).step_by(4) {
        store.purge_key(name(number).as_bytes()).await.unwrap();
    }
    store.purge_tag(TAG).await.unwrap();
    store.purge_prefix(b"http://prefix.").await.unwrap();
}

async fn end(store: Spans, end: End) {
    if end == End::Closed {
        store.close().await.unwrap();
    }
}

/// Returns the numbers of the objects that are found with this body: those on the first span, and those on the second.
async fn found(store: &Spans, body: &str) -> [Vec<u32>; 2] {
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
async fn assert_purged(store: &Spans, context: &str) -> [Vec<u32>; 2] {
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

#[tokio::test]
async fn span_put_back_as_it_was_before_purges_brings_nothing_back() {
    for restarts in [0, 1, 2, 5] {
        for ending in [End::Closed, End::Killed] {
            let context = format!("{restarts} restarts, {ending:?}");
            let mut disks = Disks::new();
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

#[tokio::test]
async fn span_that_lacks_nothing_but_the_last_purge_gets_it_and_keeps_the_rest() {
    // An older copy that lacks only the last purge looks like a span after a crash during this purge: the store cannot
    // distinguish the two.
    for (kind, first) in [(0, 0), (1, 1), (2, 2)] {
        let mut disks = Disks::new();
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
async fn purge_kind(store: &Spans, kind: u32) {
    match kind {
        0 => store.purge_prefix(b"http://key.").await.unwrap(),
        1 => store.purge_tag(TAG).await.unwrap(),
        _ => store.purge_prefix(b"http://prefix.").await.unwrap(),
    }
}

#[tokio::test]
async fn span_put_back_as_it_was_before_the_last_open_brings_back_nothing_that_was_replaced() {
    for ending in [End::Closed, End::Killed] {
        let mut disks = Disks::new();
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

#[tokio::test]
async fn span_that_was_not_put_back_keeps_what_it_held_through_opens_and_purges() {
    let disks = Disks::new();
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
        end(store, if round % 2 == 0 { End::Killed } else { End::Closed }).await;
    }
}
