//! A fill never replaces an object that began to be stored after the fill did.

use nectary_store::{Fill, FillRole, KeyRef, Store, StoreErrorKind};

use crate::common::fresh;

const PAGE: &[u8] = b"page";

fn leader(store: &Store, variant: &[u8]) -> Fill {
    match store.begin_fill(KeyRef::new(PAGE, variant), None) {
        FillRole::Leader(fill) => fill,
        _ => panic!("it is neither stored nor joined"),
    }
}

/// Stores a body by a fill, under a variant that may not be the requested one.
async fn finish(mut fill: Fill, variant: &[u8], byte: u8) -> Result<(), StoreErrorKind> {
    assert!(fill.start(variant, "m".into(), Some(100)));
    fill.write(vec![byte; 100].into()).await.unwrap();
    fill.finish().await.map(drop).map_err(|error| error.kind)
}

async fn found(store: &Store, variant: &[u8]) -> u8 {
    store.get(KeyRef::new(PAGE, variant)).await.expect("it is there").whole().expect("a short body")[0]
}

/// A purge by tag lets nobody join a fill without a head, because the fill may get that tag. If it gets another one, it
/// is not purged; but the next fill is newer.
#[tokio::test]
async fn displaced_fill_replaces_no_newer_version() {
    let (_, store) = fresh(16 << 20).await;
    let old = leader(&store, b"");
    store.purge_tag(b"tag").await.unwrap();
    let new = leader(&store, b"");
    finish(new, b"", 2).await.unwrap();
    assert_eq!(finish(old, b"", 1).await, Err(StoreErrorKind::Busy));
    assert_eq!(found(&store, b"").await, 2);
    assert_eq!(store.stat().counts.puts_stale, 1);
}

/// A fill of a variant replaces no newer version.
#[tokio::test]
async fn variant_fill_keeps_newer_version() {
    let (_, store) = fresh(16 << 20).await;
    let (fill, other) = (leader(&store, b""), leader(&store, b"br"));
    store.put(KeyRef::new(PAGE, b"gzip"), "m".into(), vec![2; 100].into()).await.unwrap();
    assert_eq!(finish(fill, b"gzip", 1).await, Err(StoreErrorKind::Busy));
    assert_eq!(found(&store, b"gzip").await, 2);
    finish(other, b"br", 3).await.unwrap();
    assert_eq!(found(&store, b"br").await, 3, "another variant is not newer");
}
