//! Parts after a soft purge, an error, or a change at the origin.

use nectary_store::KeyRef;

use super::*;

async fn soft_purge(proxy: &TestProxy) {
    let purge = ["PURGE /x HTTP/1.1", "host: a", AUTHORIZATION, "fastly-soft-purge: 1"];
    assert_eq!(TestClient::connect(proxy.address).await.ask(&purge).await.status, 200);
}

#[tokio::test]
async fn expired_error_hides_no_parts() {
    let (origin, whole) = (TestOrigin::start().await, body(30, LENGTH));
    origin.on("/x", OriginScript::response("404 Not Found", &[FRESH], b"none"));
    let proxy = with_parts(&origin, PART as u64).await;
    assert_eq!(ask(&proxy, &[]).await.status, 404);
    assert_eq!(ask_until_hit(&proxy, &[]).await.status, 404);
    soft_purge(&proxy).await;
    origin.now("/x", OriginScript::range(&[TAG, FRESH], &whole));
    let reply = ask_range(&proxy, "500000-500009").await;
    assert_eq!((reply.status, &reply.body[..]), (206, &whole[500_000..500_010]));
    assert_eq!(ranges(&origin), [part(0), part(7)]);
}

/// The parts of a body are joined by its strong validator, so a confirmation that takes it away is none.
#[tokio::test]
async fn weak_tag_confirms_no_part() {
    let whole = body(31, 3 * PART);
    let (origin, proxy) = proxied(&[TAG, FRESH], &whole).await;
    assert_eq!(ask_range(&proxy, "0-9").await.body, whole[..10]);
    ask_until_hit(&proxy, &["range: bytes=0-9"]).await;
    soft_purge(&proxy).await;
    origin.now("/x", OriginScript::raw(b"HTTP/1.1 304 Not Modified\r\netag: W/\"a\"\r\n\r\n"));
    origin.on("/x", OriginScript::range(&[TAG, FRESH], &whole));
    let reply = ask_range(&proxy, "0-9").await;
    assert_eq!((reply.status, &reply.body[..]), (206, &whole[..10]));
    assert_eq!(ranges(&origin), [part(0), part(0), part(0)]);
}

#[tokio::test]
async fn condition_decides_before_a_late_range() {
    let whole = body(32, PART + 100);
    let (origin, proxy) = proxied(&[TAG, FRESH], &whole).await;
    assert_eq!(ask_range(&proxy, "500000-").await.status, 416);
    assert_eq!(ranges(&origin), [part(7)], "the part's answer is the client's");
    // With `If-Range` the origin decides whether there is a range at all.
    ask(&proxy, &["range: bytes=500000-", "if-range: \"b\""]).await;
    let got = origin.got().pop().expect("a request");
    assert_eq!((got.header("range"), got.header("if-range")), ("bytes=500000-".into(), "\"b\"".into()));
}

#[tokio::test]
async fn stored_error_answers_every_range() {
    let origin = TestOrigin::start().await;
    origin.on("/x", OriginScript::response("404 Not Found", &[FRESH], b"none"));
    let proxy = with_parts(&origin, PART as u64).await;
    assert_eq!(ask_range(&proxy, "0-9").await.status, 404);
    ask_until_hit(&proxy, &[]).await;
    let reply = ask_range(&proxy, "500000-500009").await;
    assert_eq!((reply.status, reply.is_hit(), origin.count()), (404, true, 1));
}

/// The parts of a body go when its origin no longer serves ranges.
#[tokio::test]
async fn rangeless_origin_removes_parts() {
    let (old, new) = (body(33, LENGTH), body(34, LENGTH));
    let (origin, proxy) = proxied(&[TAG, FRESH], &old).await;
    for range in ["0-9", "500000-500009"] {
        ask_range(&proxy, range).await;
        ask_until_hit(&proxy, &[&format!("range: bytes={range}")]).await;
    }
    let variant = format!("part!:{}\n", part(7));
    let is_stored = async || proxy.store.get(KeyRef::new(b"http://a/x", variant.as_bytes())).await.is_some();
    assert!(is_stored().await);
    origin.now("/x", OriginScript::ok(&["etag: \"b\"", FRESH], &new));
    let reply = ask(&proxy, &["cache-control: no-cache", "range: bytes=0-9"]).await;
    assert_eq!(reply.body, new[..10]);
    assert!(!is_stored().await, "it is of a body that the origin no longer has");
}
