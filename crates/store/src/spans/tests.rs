//! Tests of opening, of refusals and of messages. Which objects may be found after losses and returns is tested with a
//! model in `nectary-sim`.

use std::sync::Arc;

use nectary_block::MemoryDevice;

use super::*;
use crate::api::options::OpenOptions;
use crate::error::StoreErrorKind;

fn device() -> SharedDevice {
    Arc::new(MemoryDevice::new(4 << 20))
}

fn options() -> OpenOptions {
    OpenOptions { memory_bytes: 32 << 20, ..OpenOptions::default() }
}

fn named(spec: &str, device: &SharedDevice) -> SpanDevice {
    SpanDevice { spec: spec.to_owned(), device: Ok(device.clone()), size_bytes: 0 }
}

fn away(spec: &str) -> SpanDevice {
    SpanDevice {
        spec: spec.to_owned(),
        device: Err(Error::new(StoreErrorKind::Absent, "no such device")),
        size_bytes: 0,
    }
}

async fn put(store: &SpanSet, name: &str) {
    store.put(KeyRef::new(name.as_bytes(), b""), "m".into(), name.to_owned().into()).await.unwrap();
}

async fn is_found(store: &SpanSet, name: &str) -> bool {
    store.get(KeyRef::new(name.as_bytes(), b"")).await.is_some_and(|object| object.whole().unwrap() == name)
}

/// The error of an open that must fail.
async fn refusal(devices: Vec<SpanDevice>) -> String {
    SpanSet::open(devices, options()).await.err().expect("refused").message
}

#[tokio::test]
async fn spans_open_in_any_order() {
    let devices = [device(), device(), device()];
    let store =
        SpanSet::open(vec![named("a", &devices[0]), named("b", &devices[1]), named("c", &devices[2])], options());
    let store = store.await.unwrap();
    for number in 0..60 {
        put(&store, &format!("key {number}")).await;
    }
    let stat = store.stat();
    assert_eq!((stat.spans.len(), stat.counts.puts), (3, 60));
    assert!(stat.spans.iter().all(|span| span.stat.as_ref().unwrap().counts.puts > 8), "{stat:?}");
    store.close().await.unwrap();
    assert!(is_found(&store, "key 7").await, "gets go on after a close");
    let store =
        SpanSet::open(vec![named("c", &devices[2]), named("a", &devices[0]), named("b", &devices[1])], options());
    let store = store.await.unwrap();
    for number in 0..60 {
        assert!(is_found(&store, &format!("key {number}")).await);
    }
    assert_eq!(store.stat().spans[2].spec, "c");
}

#[tokio::test]
async fn one_span_is_plain_store() {
    let one = device();
    let store = SpanSet::open(vec![named("a", &one)], options()).await.unwrap();
    put(&store, "key").await;
    store.close().await.unwrap();
    assert!(store.stat().spans.is_empty());
    let store = Store::open(one, options()).await.unwrap();
    assert!(store.get(KeyRef::new(b"key", b"")).await.is_some());
}

#[tokio::test]
async fn foreign_spans_are_refused() {
    let devices = [device(), device(), device(), device(), device()];
    drop(SpanSet::open(vec![named("a", &devices[0]), named("b", &devices[1])], options()).await.unwrap());
    drop(SpanSet::open(vec![named("c", &devices[2]), named("d", &devices[3])], options()).await.unwrap());
    let alone = Store::open(devices[0].clone(), options()).await.err().expect("refused").message;
    assert!(alone.contains("this is span 0 of a store of 2"), "{alone}");
    let others = refusal(vec![named("a", &devices[0]), named("d", &devices[3])]).await;
    assert!(others.contains("d: this is a span of another store"), "{others}");
    let twice = refusal(vec![named("a", &devices[0]), named("a again", &devices[0])]).await;
    assert!(twice.contains("a again: span 0 was named before"), "{twice}");
    let many = refusal(vec![named("a", &devices[0]), named("b", &devices[1]), named("e", &devices[4])]).await;
    assert!(many.contains("one of 2 spans of a store, and 3 devices were named"), "{many}");
    let none = refusal(vec![away("a"), away("b")]).await;
    assert!(none.contains("a: no store can be made: no such device"), "{none}");
    let small = OpenOptions { memory_bytes: 12 << 20, ..options() };
    let small =
        SpanSet::open(vec![named("a", &devices[0]), named("b", &devices[1])], small).await.err().expect("refused");
    assert!(small.message.contains("the memory of 2 spans is divided"), "{}", small.message);
}

#[tokio::test]
async fn missing_span_may_serve_alone() {
    let devices = [device(), device()];
    let store = SpanSet::open(vec![named("a", &devices[0]), named("b", &devices[1])], options()).await.unwrap();
    for number in 0..20 {
        put(&store, &format!("key {number}")).await;
    }
    store.close().await.unwrap();
    let missing = refusal(vec![named("a", &devices[0]), away("b")]).await;
    assert!(
        missing.contains("span 1? is lost (no such device)") && missing.contains("forget what is stored"),
        "{missing}"
    );
    let store = SpanSet::open_or_forget(vec![named("a", &devices[0]), away("b")], options()).await.unwrap();
    for number in 0..20 {
        assert!(!is_found(&store, &format!("key {number}")).await);
    }
    put(&store, "new").await;
    store.close().await.unwrap();
    assert!(store.take_notes().iter().any(|note| note.contains("it begins empty")));
    let back = refusal(vec![named("a", &devices[0]), named("b", &devices[1])]).await;
    assert!(back.contains("b: this is a span of another store"), "{back}");
    let blank = device();
    let store = SpanSet::open(vec![named("a", &devices[0]), named("blank", &blank)], options()).await.unwrap();
    assert!(store.stat().spans.iter().all(|span| span.lost.is_none()));
    assert!(store.take_notes().iter().any(|note| note.contains("takes the place of span 1")));
}
