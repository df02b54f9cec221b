//! A response that may be stored is fetched once and then served from the store.

use crate::common::*;

#[tokio::test]
async fn second_request_hits_with_same_bytes() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(&["cache-control: max-age=60", "etag: \"x\"", "x-mine: 1"], b"hello"));
    let proxy = TestProxy::forward().await;
    let first = get(proxy.address, &origin.url("/a"), &[]).await;
    assert_eq!((first.status, first.text().as_str()), (200, "hello"));
    assert_eq!(first.cache_status(), "nectary; fwd=uri-miss; fwd-status=200; stored");
    let second = get(proxy.address, &origin.url("/a"), &[]).await;
    assert_eq!((second.status, second.text().as_str()), (200, "hello"));
    assert!(second.is_hit(), "{second:?}");
    assert_eq!((second.header("x-mine"), second.header("content-length")), ("1".into(), "5".into()));
    assert!(second.header("age").parse::<u64>().expect("an age") <= 1);
    assert!(second.header("via").contains("1.1 nectary-"));
    assert_eq!(origin.count(), 1);
    let stats = proxy.stats();
    assert_eq!((stats.requests, stats.hits, stats.misses), (2, 1, 1));
}

/// An object in the store that is no response is replaced.
#[tokio::test]
async fn foreign_object_is_refetched() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(&["cache-control: max-age=60"], b"hello"));
    let proxy = TestProxy::forward().await;
    let url = origin.url("/a");
    let key = nectary_store::KeyRef::new(url.as_bytes(), b"");
    proxy.store.put(key, Vec::new().into(), b"no response".to_vec().into()).await.expect("there is room");
    let first = get(proxy.address, &url, &[]).await;
    assert_eq!((first.text().as_str(), first.cache_status().ends_with("; stored")), ("hello", true), "{first:?}");
    let second = get(proxy.address, &url, &[]).await;
    assert!(second.is_hit() && second.text() == "hello", "{second:?}");
    assert_eq!(origin.count(), 1);
}
