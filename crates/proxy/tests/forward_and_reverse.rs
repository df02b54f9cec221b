//! Requests that a forward or a reverse proxy accepts, passes on or refuses.

use crate::common::*;

#[tokio::test]
async fn absolute_target_overrides_host() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(b"hello"));
    let proxy = TestProxy::forward().await;
    let reply = get(proxy.address, &origin.url("/a"), &["host: elsewhere.invalid"]).await;
    assert_eq!(reply.text(), "hello");
    assert_eq!(origin.got()[0].header("host"), origin.address.to_string());
    assert_eq!(origin.got()[0].line, "GET /a HTTP/1.1");
    assert!(get(proxy.address, &origin.url("/a"), &["host: another.invalid"]).await.is_hit());
}

#[tokio::test]
async fn forward_proxy_explains_missing_url() {
    let proxy = TestProxy::forward().await;
    let reply = get(proxy.address, "/path", &[]).await;
    assert_eq!(reply.status, 400);
    assert!(reply.text().contains("forward proxy"), "{}", reply.text());
    assert_eq!(reply.cache_status(), "nectary; detail=no-url");
}

/// The host that the client names does not matter.
#[tokio::test]
async fn reverse_proxy_asks_its_origin() {
    let origin = TestOrigin::start().await;
    origin.on("/a?q=1", OriginScript::fresh(b"hello"));
    let proxy = TestProxy::reverse(origin.address).await;
    let sent = ["host: other.invalid", "x-forwarded-host: evil", "connection: x-drop", "x-drop: 1"];
    assert_eq!(get(proxy.address, "/a?q=1", &sent).await.text(), "hello");
    let got = &origin.got()[0];
    assert_eq!(got.header("host"), origin.address.to_string());
    assert_eq!(got.header("x-forwarded-for"), "127.0.0.1");
    assert!(got.header("via").starts_with("1.1 nectary-"));
    assert_eq!((got.header("x-forwarded-host"), got.header("x-drop")), (String::new(), String::new()));
    assert!(get(proxy.address, "/a?q=1", &["host: third.invalid"]).await.is_hit());
    assert!(get(proxy.address, "http://fourth.invalid/a?q=1", &[]).await.is_hit());
    assert_eq!(origin.count(), 1);
}

#[tokio::test]
async fn request_loop_is_508() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(&["cache-control: no-store"], b"hello"));
    let proxy = TestProxy::forward().await;
    get(proxy.address, &origin.url("/a"), &[]).await;
    let via = origin.got()[0].header("via");
    let reply = get(proxy.address, &origin.url("/a"), &[&format!("via: 1.0 other, {via}")]).await;
    assert_eq!((reply.status, reply.cache_status().as_str()), (508, "nectary; detail=loop"));
    // If `Via` names another Nectary proxy, there is no loop.
    let reply = get(proxy.address, &origin.url("/a"), &["via: 1.1 nectary-00000000x"]).await;
    assert_eq!(reply.status, 200);
    assert_eq!(origin.count(), 2);
}

#[tokio::test]
async fn bodies_of_requests_reach_the_origin() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::response("201 Created", &[], b"done"));
    let proxy = TestProxy::forward().await;
    let mut client = TestClient::connect(proxy.address).await;
    let line = format!("POST {} HTTP/1.1", origin.url("/a"));
    client.send(request(&[&line, "content-length: 5"]).as_bytes()).await;
    client.send(b"01234").await;
    let reply = client.reply(false).await;
    assert_eq!((reply.status, reply.text().as_str()), (201, "done"));
    assert_eq!(reply.cache_status(), "nectary; fwd=method; fwd-status=201");
    client.send(request(&[&line, "transfer-encoding: chunked"]).as_bytes()).await;
    client.send(b"3\r\nabc\r\n0\r\n\r\n").await;
    assert_eq!(client.reply(false).await.status, 201);
    assert_eq!(origin.got()[0].body, b"01234");
    assert_eq!(origin.got()[1].body, b"3\r\nabc\r\n0\r\n\r\n");
}

#[tokio::test]
async fn request_needs_exactly_one_host() {
    let proxy = TestProxy::forward().await;
    for head in ["GET http://a/ HTTP/1.1\r\n\r\n", "GET http://a/ HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n"] {
        let mut client = TestClient::connect(proxy.address).await;
        client.send(head.as_bytes()).await;
        let reply = client.reply(false).await;
        assert_eq!((reply.status, reply.cache_status().as_str()), (400, "nectary; detail=host"), "{head:?}");
    }
}

#[tokio::test]
async fn old_client_gets_unchunked_body() {
    let origin = TestOrigin::start().await;
    let chunked =
        b"HTTP/1.1 200 OK\r\ncache-control: no-store\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    origin.on("/a", OriginScript::raw(chunked));
    let proxy = TestProxy::forward().await;
    let mut client = TestClient::connect(proxy.address).await;
    client.send(format!("GET {} HTTP/1.0\r\n\r\n", origin.url("/a")).as_bytes()).await;
    let reply = client.reply(false).await;
    assert_eq!((reply.status, reply.text().as_str()), (200, "hello"));
    assert_eq!(reply.header("transfer-encoding"), "");
}

#[tokio::test]
async fn only_if_cached_miss_is_504() {
    let origin = TestOrigin::start().await;
    let proxy = TestProxy::forward().await;
    let reply = get(proxy.address, &origin.url("/a"), &["cache-control: only-if-cached"]).await;
    assert_eq!((reply.status, reply.cache_status().as_str()), (504, "nectary; detail=only-if-cached"));
    assert_eq!(origin.count(), 0);
}

#[tokio::test]
async fn upstream_cache_status_stays_first() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(&["cache-control: max-age=60", "cache-status: Other; hit", "age: 7"], b"x"));
    let proxy = TestProxy::forward().await;
    get(proxy.address, &origin.url("/a"), &[]).await;
    let reply = get(proxy.address, &origin.url("/a"), &[]).await;
    assert!(reply.cache_status().starts_with("Other; hit, nectary; hit; ttl=5"), "{}", reply.cache_status());
    assert!((7..=9).contains(&reply.header("age").parse::<u64>().expect("an age")));
}

#[tokio::test]
async fn default_ttl_starts_off() {
    let origin = TestOrigin::start().await;
    origin.on("/a.deb", OriginScript::ok(&[], b"x"));
    let url = origin.url("/a.deb");
    let proxy = TestProxy::forward().await;
    for _ in 0..2 {
        let reply = get(proxy.address, &url, &[]).await;
        assert_eq!(reply.cache_status(), "nectary; fwd=uri-miss; fwd-status=200; detail=no-lifetime");
    }
    // A response that says itself that it is stale has a lifetime.
    origin.on("/stale", OriginScript::ok(&["cache-control: max-age=0"], b"x"));
    let reply = get(proxy.address, &origin.url("/stale"), &[]).await;
    assert_eq!(reply.cache_status(), "nectary; fwd=uri-miss; fwd-status=200");
    let rule = "127.0.0.1/*.deb=1h".parse_rule();
    let proxy = TestProxy::start(nectary_proxy::ProxyOptions { default_ttl: vec![rule], ..options() }).await;
    get(proxy.address, &url, &[]).await;
    assert!(get(proxy.address, &url, &[]).await.is_hit());
}

trait ParseRule {
    fn parse_rule(&self) -> nectary_proxy::DefaultTtlRule;
}

impl ParseRule for str {
    fn parse_rule(&self) -> nectary_proxy::DefaultTtlRule {
        nectary_proxy::DefaultTtlRule::parse(self).expect("a rule")
    }
}

#[tokio::test]
async fn expecting_client_gets_100_continue() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::response("200 OK", &[], b"done"));
    let proxy = TestProxy::forward().await;
    let mut client = TestClient::connect(proxy.address).await;
    let line = format!("PUT {} HTTP/1.1", origin.url("/a"));
    client.send(request(&[&line, "content-length: 3", "expect: 100-continue"]).as_bytes()).await;
    assert_eq!(client.head().await.status, 100);
    client.send(b"abc").await;
    assert_eq!(client.reply(false).await.text(), "done");
    assert_eq!((origin.got()[0].header("expect").as_str(), origin.got()[0].body.as_slice()), ("", &b"abc"[..]));
}

#[tokio::test]
async fn upgrade_offer_is_not_forwarded() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(b"hello"));
    let proxy = TestProxy::forward().await;
    let mut client = TestClient::connect(proxy.address).await;
    let line = format!("GET {} HTTP/1.1", origin.url("/a"));
    for _ in 0..3 {
        let reply =
            client.ask(&[&line, "connection: upgrade, http2-settings", "upgrade: h2c", "http2-settings: x"]).await;
        assert_eq!((reply.status, reply.text().as_str()), (200, "hello"));
    }
    let got = &origin.got()[0];
    assert_eq!((got.header("upgrade"), got.header("http2-settings")), (String::new(), String::new()));
    assert_eq!(origin.count(), 1);
}
