//! A client's mistake is answered with an error that blames the client. It does not count as a failure of the origin.

use std::time::Duration;

use nectary_proxy::ProxyOptions;
use tokio::io::AsyncWriteExt;

use crate::common::*;

/// Sends raw bytes in pieces of `piece` bytes. Reads one answer, after which the connection must end.
async fn answer(proxy: &TestProxy, bytes: &[u8], piece: usize) -> ClientReply {
    let mut client = TestClient::connect(proxy.address).await;
    for chunk in bytes.chunks(piece) {
        if client.stream.write_all(chunk).await.is_err() {
            break;
        }
    }
    let reply = client.reply(false).await;
    assert!(client.rest().await.is_empty(), "one answer, and the connection ends");
    reply
}

/// A bad request body counts as no failure of the origin.
#[tokio::test]
async fn bad_request_body_is_400() {
    let origin = TestOrigin::start().await;
    let proxy = TestProxy::forward().await;
    let chunked = format!("POST {} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n", origin.url("/a"));
    let known = format!("POST {} HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n", origin.url("/a"));
    let table = [
        (format!("{chunked}zz\r\n"), false),
        (format!("{chunked}3\r\nabcd\r\n0\r\n\r\n"), false),
        (format!("{chunked}3\r\nabc\r\n0\r\nx: y\n\r\n"), false),
        (format!("{chunked}3\r\nabc\r\n"), true),
        (format!("{chunked}3\r\na"), true),
        (chunked.clone(), true),
        (format!("{known}01234"), true),
        (known.clone(), true),
    ];
    for (bytes, ends) in &table {
        let mut client = TestClient::connect(proxy.address).await;
        client.send(bytes.as_bytes()).await;
        if *ends {
            client.stream.shutdown().await.expect("its own side");
        }
        let reply = client.reply(false).await;
        assert_eq!((reply.status, reply.header("connection").as_str()), (400, "close"), "{bytes:?}: {}", reply.text());
        assert_eq!(reply.cache_status(), "nectary; detail=bad-body", "{bytes:?}");
        assert!(client.rest().await.is_empty());
    }
    let stats = proxy.stats();
    assert_eq!((stats.origin_failures, stats.own_responses), (0, table.len() as u64));
    assert!(origin.got().is_empty(), "no whole request came");
}

#[tokio::test]
async fn invalid_host_is_400_on_every_path() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(b"x"));
    let url = Some(format!("http://{}", origin.address).parse().expect("an origin"));
    let proxy = TestProxy::start(ProxyOptions { origin: url, ..options() }).await;
    for host in ["a", "a:80", "[::1]:80", "a_b", "192.0.2.1"] {
        assert_eq!(get(proxy.address, "/a", &[&format!("host: {host}")]).await.status, 200, "{host}");
    }
    let count = origin.count();
    for host in ["", "a b", "a:b", "a/b", "a@b", "a:80:80", "::1", "[::1", "a,b c", "%zz", "a\"b"] {
        for (way, line, more) in [
            ("the shortest way", "GET /a HTTP/1.1", "accept: x"),
            ("memory", "GET /a HTTP/1.1", "x: y"),
            ("memory, HEAD", "HEAD /a HTTP/1.1", "x: y"),
            ("the origin", "GET /b HTTP/1.1", "x: y"),
            ("POST", "POST /a HTTP/1.1", "content-length: 0"),
            ("HTTP/1.0", "GET /a HTTP/1.0", "x: y"),
        ] {
            let reply = TestClient::connect(proxy.address).await.ask(&[line, &format!("host: {host}"), more]).await;
            let found = (reply.status, reply.cache_status());
            assert_eq!(found, (400, "nectary; detail=host".to_owned()), "{host:?} on the way of {way}");
        }
    }
    assert_eq!(origin.count(), count);
}

/// A wrong transfer coding is 400.
#[tokio::test]
async fn unknown_transfer_coding_is_501() {
    let origin = TestOrigin::start().await;
    let proxy = TestProxy::forward().await;
    for (coding, version, status) in [
        ("gzip, chunked", "1.1", 501),
        ("gzip", "1.1", 501),
        ("identity", "1.1", 501),
        ("xchunked", "1.1", 501),
        ("chunked, gzip", "1.1", 400),
        ("chunked, chunked", "1.1", 400),
        ("", "1.1", 400),
        ("chunked", "1.0", 400),
    ] {
        let line = format!("POST {} HTTP/{version}", origin.url("/a"));
        let bytes = request(&[&line, &format!("transfer-encoding: {coding}")]) + "0\r\n\r\n";
        for piece in [usize::MAX, 1] {
            assert_eq!(answer(&proxy, bytes.as_bytes(), piece).await.status, status, "{coding:?} in {version}");
        }
    }
    assert_eq!(origin.count(), 0);
}

#[tokio::test]
async fn too_long_target_is_414() {
    let origin = TestOrigin::start().await;
    let proxy = TestProxy::forward().await;
    let length = |bytes: usize| format!("/{}", "x".repeat(bytes - 1 - origin.url("").len()));
    origin.on(&length(8000), OriginScript::fresh(b"x"));
    assert_eq!(get(proxy.address, &origin.url(&length(8000)), &[]).await.status, 200);
    for bytes in [8001, 32 << 10, 33_000, 70_000, 300_000] {
        let line = format!("GET {} HTTP/1.1", origin.url(&length(bytes)));
        let reply = answer(&proxy, request(&[&line]).as_bytes(), 4096).await;
        assert_eq!((reply.status, reply.cache_status().as_str()), (414, "nectary; detail=url-too-long"), "{bytes}");
    }
    let header = format!("x: {}", "y".repeat(40_000));
    let reply = answer(&proxy, request(&["GET http://a/ HTTP/1.1", &header]).as_bytes(), usize::MAX).await;
    assert_eq!((reply.status, reply.cache_status().as_str()), (431, "nectary; detail=head-too-large"));
    assert_eq!(origin.count(), 1);
}

/// Other major versions are refused with 505.
#[tokio::test]
async fn later_minor_versions_are_served() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(b"x"));
    let proxy = TestProxy::reverse(origin.address).await;
    for minor in [1, 2, 9] {
        for piece in [usize::MAX, 1] {
            let line = format!("GET /a HTTP/1.{minor}");
            let mut client = TestClient::connect(proxy.address).await;
            for _ in 0..2 {
                for chunk in request(&[&line]).as_bytes().chunks(piece) {
                    client.send(chunk).await;
                }
                let reply = client.reply(false).await;
                assert_eq!((reply.status, reply.text().as_str()), (200, "x"), "{line} in pieces of {piece}");
            }
        }
    }
    assert_eq!(origin.count(), 1);
    for text in [
        "PRI * HTTP/2.0\r\nhost: a\r\n\r\n",
        "GET /a HTTP/2.0\r\nhost: a\r\n\r\n",
        "GET /a HTTP/3.0\r\nhost: a\r\n\r\n",
        "GET /a HTTP/0.9\r\nhost: a\r\n\r\n",
    ] {
        for piece in [usize::MAX, 1] {
            let reply = answer(&proxy, text.as_bytes(), piece).await;
            assert_eq!((reply.status, reply.cache_status().as_str()), (505, "nectary; detail=version"), "{text:?}");
        }
    }
    for text in [
        "GET /a HTTP/1.12\r\nhost: a\r\n\r\n",
        "GET /a http/1.2\r\nhost: a\r\n\r\n",
        "GET /a HTTP/12\r\nhost: a\r\n\r\n",
    ] {
        assert_eq!(answer(&proxy, text.as_bytes(), usize::MAX).await.status, 400, "{text:?}");
    }
}

#[tokio::test]
async fn requests_before_refusal_are_answered() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(&vec![7; 3 << 20]));
    origin.on("/slow", OriginScript::raw(b"").wait("answer").then(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"));
    let proxy = TestProxy::reverse(origin.address).await;
    let refused = "GET /b HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n";
    for first in ["GET /a HTTP/1.1", "GET /a HTTP/1.1", "GET /slow HTTP/1.1"] {
        let mut client = TestClient::connect(proxy.address).await;
        let count = origin.count();
        client.send(format!("{}{}{refused}", request(&[first]), request(&[first])).as_bytes()).await;
        if first.contains("slow") {
            origin.wait_for(count + 1).await;
            origin.open("answer");
        }
        for _ in 0..2 {
            let reply = client.reply(false).await;
            assert!(reply.status == 200 && reply.is_complete, "{first}");
        }
        let reply = client.reply(false).await;
        assert_eq!((reply.status, reply.cache_status().as_str()), (400, "nectary; detail=bad-request"));
        assert!(client.rest().await.is_empty());
    }
    assert!(origin.got().iter().all(|got| !got.line.contains("/b")));
}

/// The time in which a client sends nothing is no time in which its origin does not answer.
#[tokio::test]
async fn slow_upload_spares_origin() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(&["cache-control: no-store"], b"got"));
    let mut options = options();
    options.limits.response_timeout = Duration::from_millis(500);
    options.limits.body_timeout = Duration::ZERO;
    let proxy = TestProxy::start(options).await;
    for (length, last) in [("content-length: 4", "wo"), ("transfer-encoding: chunked", "2\r\nwo\r\n0\r\n\r\n")] {
        let mut client = TestClient::connect(proxy.address).await;
        client.send(request(&[&format!("POST {} HTTP/1.1", origin.url("/a")), length]).as_bytes()).await;
        client.send(if length.starts_with('c') { b"tw" } else { b"2\r\ntw\r\n" }).await;
        tokio::time::sleep(Duration::from_millis(1600)).await;
        client.send(last.as_bytes()).await;
        let reply = client.reply(false).await;
        assert_eq!((reply.status, reply.text().as_str()), (200, "got"), "{length}");
    }
    assert_eq!(proxy.stats().origin_failures, 0);
    // An origin that does not answer a whole request is too slow.
    origin.on("/slow", OriginScript::raw(b"").hang());
    let mut client = TestClient::connect(proxy.address).await;
    let line = format!("POST {} HTTP/1.1", origin.url("/slow"));
    client.send(request(&[&line, "content-length: 2"]).as_bytes()).await;
    client.send(b"tw").await;
    assert_eq!(client.reply(false).await.status, 504);
}
