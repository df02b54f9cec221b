//! A range of a response that is not stored is fetched as a range, and is never stored or shared.

use nectary_store::{FillRole, KeyRef};

use crate::common::*;

/// The length of a body that no test may wait for.
const LONG: u64 = 100_000_000_000;

/// A `200` response with a body of `LONG` bytes.
fn long(header: &str) -> OriginScript {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {LONG}\r\netag: \"a\"\r\n{header}\r\n\r\n");
    OriginScript::raw(head.as_bytes()).then(b"0123456789").endless(&[b'x'; 4096])
}

/// A `206` response, which looks as if it could be stored.
fn part(body: &[u8]) -> OriginScript {
    let headers = ["content-range: bytes 5000000-5000002/100000000", "cache-control: max-age=60", "etag: \"a\""];
    OriginScript::response("206 Partial Content", &headers, body)
}

/// The `Range` and `If-Range` of the requests that the origin got.
fn asked(origin: &TestOrigin) -> Vec<String> {
    origin.got().iter().map(|got| got.header("range") + &got.header("if-range")).collect()
}

#[tokio::test]
async fn unstorable_range_is_fetched_alone() {
    for header in ["cache-control: no-store", "cache-control: private, max-age=60", "set-cookie: a=b", "vary: *"] {
        let origin = TestOrigin::start().await;
        origin.on("/a", long(header)).on("/a", part(b"abc"));
        let proxy = TestProxy::forward().await;
        let range = ["range: bytes=5000000-5000002", "if-range: \"a\""];
        for count in 2..=4 {
            let reply = get(proxy.address, &origin.url("/a"), &range).await;
            assert_eq!((reply.status, reply.text().as_str(), reply.is_hit()), (206, "abc", false), "{header}");
            assert_eq!(reply.header("content-range"), "bytes 5000000-5000002/100000000");
            assert_eq!(reply.cache_status(), "nectary; fwd=uri-miss; fwd-status=206");
            assert_eq!(origin.count(), count, "{header}: later requests are passed on at once");
        }
        let passed = "bytes=5000000-5000002\"a\"";
        assert_eq!(asked(&origin), ["", passed, passed, passed]);
        origin.wait_for_ends(1).await;
        // The parts were not stored as the whole.
        origin.now("/a", OriginScript::fresh(b"whole"));
        assert_eq!(get(proxy.address, &origin.url("/a"), &[]).await.text(), "whole");
    }
}

#[tokio::test]
async fn near_range_uses_running_response() {
    let origin = TestOrigin::start().await;
    origin.on("/a", long("cache-control: no-store"));
    origin.on("/short", OriginScript::ok(&["cache-control: no-store"], b"0123456789"));
    let proxy = TestProxy::forward().await;
    let reply = get(proxy.address, &origin.url("/a"), &["range: bytes=3-11"]).await;
    assert_eq!((reply.status, reply.text().as_str(), reply.is_complete), (206, "3456789xx", true));
    assert_eq!(reply.header("content-range"), format!("bytes 3-11/{LONG}"));
    assert_eq!((reply.header("content-length"), reply.header("etag")), ("9".into(), "\"a\"".into()));
    assert_eq!(reply.cache_status(), "nectary; fwd=uri-miss; fwd-status=200");
    origin.wait_for_ends(1).await;
    assert_eq!(asked(&origin), [""]);
    // A body that is read to its end leaves the connection for the next request.
    for range in ["range: bytes=7-", "range: bytes=7-9"] {
        let proxy = TestProxy::forward().await;
        let before = origin.connections();
        let reply = get(proxy.address, &origin.url("/short"), &[range]).await;
        assert_eq!((reply.status, reply.text().as_str()), (206, "789"));
        get(proxy.address, &origin.url("/short"), &[]).await;
        assert_eq!(origin.connections(), before + 1);
    }
}

#[tokio::test]
async fn too_large_range_is_fetched_alone() {
    let origin = TestOrigin::start().await;
    origin.on("/a", long("cache-control: max-age=60")).on("/a", part(b"abc"));
    let proxy = TestProxy::forward().await;
    let FillRole::Leader(fill) = proxy.store.begin_fill(KeyRef::new(b"any", b""), None) else {
        panic!("nobody else fills")
    };
    assert!(fill.object_bytes_max() < LONG);
    drop(fill);
    let range = ["range: bytes=5000000-5000002"];
    let reply = get(proxy.address, &origin.url("/a"), &range).await;
    assert_eq!((reply.status, reply.text().as_str()), (206, "abc"));
    assert_eq!(reply.cache_status(), "nectary; fwd=uri-miss; fwd-status=206; detail=too-large");
    // The whole is still too large, and so the URL stays known as such.
    origin.now("/a", long("cache-control: max-age=60"));
    let mut client = TestClient::connect(proxy.address).await;
    client.send(request(&[&format!("GET {} HTTP/1.1", origin.url("/a"))]).as_bytes()).await;
    assert_eq!(client.head().await.cache_status(), "nectary; fwd=uri-miss; fwd-status=200; detail=too-large");
    drop(client);
    origin.now("/a", part(b"abc"));
    assert_eq!(get(proxy.address, &origin.url("/a"), &range).await.status, 206);
    let passed = "bytes=5000000-5000002";
    assert_eq!(asked(&origin), ["", passed, "", passed]);
}

#[tokio::test]
async fn whole_request_gets_no_part() {
    let origin = TestOrigin::start().await;
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {LONG}\r\ncache-control: no-store\r\n\r\n");
    origin.on("/a", OriginScript::raw(b"").wait("head").then(head.as_bytes()).endless(&[b'x'; 4096]));
    let proxy = TestProxy::forward().await;
    let line = format!("GET {} HTTP/1.1", origin.url("/a"));
    let (mut first, mut second) = (TestClient::connect(proxy.address).await, TestClient::connect(proxy.address).await);
    first.send(request(&[&line, "range: bytes=5000000-5000002"]).as_bytes()).await;
    origin.wait_for(1).await;
    second.send(request(&[&line]).as_bytes()).await;
    proxy.wait_for(|stats| stats.requests == 2).await;
    // Both answers come after the fetch: one to the request with the range, one to the request without it.
    origin.now("/a", OriginScript::fresh(b"whole"));
    origin.open("head");
    let (first, second) = (first.reply(false).await, second.reply(false).await);
    assert_eq!((first.status, first.text().as_str()), (200, "whole"), "the origin ignores the range");
    assert_eq!((second.status, second.text().as_str()), (200, "whole"));
    let mut ranges = asked(&origin);
    ranges.sort();
    assert_eq!(ranges, ["", "", "bytes=5000000-5000002"]);
}

/// A part that was not requested is passed on.
#[tokio::test]
async fn unrequested_part_is_not_stored() {
    let origin = TestOrigin::start().await;
    origin.on("/a", part(b"abc")).on("/a", OriginScript::fresh(b"whole"));
    let proxy = TestProxy::forward().await;
    assert_eq!(get(proxy.address, &origin.url("/a"), &[]).await.status, 206);
    for is_hit in [false, false, true] {
        let reply = get(proxy.address, &origin.url("/a"), &[]).await;
        assert_eq!((reply.status, reply.text().as_str(), reply.is_hit()), (200, "whole", is_hit));
    }
}

/// A repeated request that fails is not repeated again.
#[tokio::test]
async fn failed_repeat_is_502() {
    let origin = TestOrigin::start().await;
    origin.on("/a", long("cache-control: no-store")).on("/a", OriginScript::raw(b"").close());
    let proxy = TestProxy::forward().await;
    let reply = get(proxy.address, &origin.url("/a"), &["range: bytes=5000000-5000002"]).await;
    assert_eq!((reply.status, reply.cache_status().as_str()), (502, "nectary; fwd=uri-miss"));
    assert_eq!(origin.count(), 2);
}

/// A range of a response that has become too large is passed on, and the old response is purged.
#[tokio::test]
async fn grown_body_range_is_passed() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(&["cache-control: max-age=0", "etag: \"0\""], b"old"));
    let proxy = TestProxy::forward().await;
    assert_eq!(get(proxy.address, &origin.url("/a"), &[]).await.text(), "old");
    origin.now("/a", long("cache-control: max-age=60"));
    origin.on("/a", part(b"abc"));
    for count in 3..=5 {
        let reply = get(proxy.address, &origin.url("/a"), &["range: bytes=5000000-5000002"]).await;
        assert_eq!((reply.status, reply.text().as_str()), (206, "abc"));
        assert_eq!(origin.count(), count);
    }
    // The old response is not served any more, even if the origin fails.
    origin.now("/a", OriginScript::raw(b"").close());
    assert_eq!(get(proxy.address, &origin.url("/a"), &["cache-control: stale-if-error=60"]).await.status, 502);
}

/// The requests of one client keep no other response out of the store.
#[tokio::test]
async fn unstorable_request_spares_other_responses() {
    let origin = TestOrigin::start().await;
    let proxy = TestProxy::forward().await;
    // Nothing may be stored for a request with `Authorization`; the others are.
    origin.on("/a", OriginScript::fresh(b"whole"));
    // The uncompressed response is too large, the compressed one is not.
    origin.on("/b", long("cache-control: max-age=60\r\nvary: accept-encoding"));
    for (path, other) in [("/a", "authorization: x"), ("/b", "accept-encoding: identity")] {
        let mut client = TestClient::connect(proxy.address).await;
        client.send(request(&[&format!("GET {} HTTP/1.1", origin.url(path)), other]).as_bytes()).await;
        assert_eq!(client.head().await.status, 200);
        drop(client);
        origin.now(path, OriginScript::fresh(b"small"));
        for is_hit in [false, true] {
            let reply = get(proxy.address, &origin.url(path), &["accept-encoding: gzip"]).await;
            assert_eq!((reply.text().as_str(), reply.is_hit()), ("small", is_hit), "{path}");
        }
    }
}
