//! What is softly purged is stale from now on: it is validated before it is served, or served stale by the rules for
//! stale responses, and fresh again after a `304`.

use std::sync::Arc;
use std::time::Duration;

use nectary_proxy::{AdminOptions, ProxyOptions};
use nectary_store::KeyRef;

use crate::common::sites::{at, configured, with_rule_config};
use crate::common::*;

const SOFT: &str = "fastly-soft-purge: 1";
const RENEWED: &[u8] = b"HTTP/1.1 304 Not Modified\r\netag: \"x\"\r\ncache-control: max-age=60\r\n\r\n";

fn fresh(more: &[&str]) -> OriginScript {
    OriginScript::ok(&[&["cache-control: max-age=60", "etag: \"x\""], more].concat(), b"old")
}

async fn ask(proxy: &TestProxy, lines: &[&str]) -> ClientReply {
    TestClient::connect(proxy.address).await.ask(lines).await
}

/// Lets the proxy store what the origin has at a path.
async fn store(proxy: &TestProxy, origin: &TestOrigin, path: &str) {
    get(proxy.address, &origin.url(path), &[]).await;
    assert!(get(proxy.address, &origin.url(path), &[]).await.is_hit(), "{path}");
}

async fn soft_purge(proxy: &TestProxy, origin: &TestOrigin, path: &str, header: &str) -> ClientReply {
    ask(proxy, &[&format!("PURGE {} HTTP/1.1", origin.url(path)), AUTHORIZATION, SOFT, header]).await
}

#[tokio::test]
async fn softly_purged_url_is_validated_once() {
    let origin = TestOrigin::start().await;
    origin.on("/a", fresh(&["vary: accept"])).on("/a", fresh(&["vary: accept"])).on("/a", OriginScript::raw(RENEWED));
    let proxy = TestProxy::forward().await;
    let url = origin.url("/a");
    for accept in ["accept: x", "accept: y"] {
        get(proxy.address, &url, &[accept]).await;
        assert!(get(proxy.address, &url, &[accept]).await.is_hit());
    }
    let reply = soft_purge(&proxy, &origin, "/a", "accept: application/json").await;
    assert_eq!((reply.status, reply.cache_status().as_str()), (200, "nectary; detail=soft-purged"));
    assert_eq!(reply.text().trim(), format!("{{\"found\":true,\"purged\":\"{url}\",\"soft\":true}}"));
    for (accept, asked) in [("accept: x", 3), ("accept: y", 4)] {
        let reply = get(proxy.address, &url, &[accept]).await;
        assert_eq!(reply.cache_status(), "nectary; fwd=stale; fwd-status=304; stored", "{accept}");
        assert_eq!((reply.text().as_str(), origin.count()), ("old", asked));
        assert_eq!(origin.got()[asked - 1].header("if-none-match"), "\"x\"");
        assert!(get(proxy.address, &url, &[accept]).await.is_hit(), "{accept}");
    }
    assert_eq!((origin.count(), proxy.stats().purges), (4, 1));
}

/// What is softly purged is not written again when its segment is reclaimed: without a new marker, the variants that were
/// validated would be lost then.
#[tokio::test]
async fn marker_outlives_a_soft_purge() {
    let origin = TestOrigin::start().await;
    origin.on("/a", fresh(&["vary: accept"])).on("/a", OriginScript::raw(RENEWED));
    let proxy = TestProxy::forward().await;
    let url = origin.url("/a");
    get(proxy.address, &url, &["accept: x"]).await;
    assert!(get(proxy.address, &url, &["accept: x"]).await.is_hit());
    let stale_since =
        async || proxy.store.get(KeyRef::new(url.as_bytes(), b"")).await.expect("a marker").stale_since_s();
    assert_eq!(stale_since().await, None);
    soft_purge(&proxy, &origin, "/a", "accept: */*").await;
    assert!(stale_since().await.is_some());
    let reply = get(proxy.address, &url, &["accept: x"]).await;
    assert_eq!(reply.cache_status(), "nectary; fwd=stale; fwd-status=304; stored");
    assert_eq!(stale_since().await, None);
    assert!(get(proxy.address, &url, &["accept: x"]).await.is_hit());
    assert_eq!(origin.count(), 2);
}

#[tokio::test]
async fn softly_purged_serves_while_revalidating() {
    let origin = TestOrigin::start().await;
    let swr = "cache-control: max-age=60, stale-while-revalidate=60";
    origin.on("/a", OriginScript::ok(&[swr, "etag: \"x\""], b"old")).on("/a", OriginScript::fresh(b"new"));
    let proxy = TestProxy::forward().await;
    let url = origin.url("/a");
    store(&proxy, &origin, "/a").await;
    assert_eq!(
        soft_purge(&proxy, &origin, "/a", "accept: */*").await.text().trim(),
        format!("stale from now on: {url}")
    );
    assert_eq!(get(proxy.address, &url, &[]).await.text(), "old");
    while get(proxy.address, &url, &[]).await.text() == "old" {
        tokio::task::yield_now().await;
    }
    let reply = get(proxy.address, &url, &[]).await;
    assert!(reply.is_hit() && reply.text() == "new");
    assert_eq!(origin.count(), 2, "it is validated once");
}

#[tokio::test]
async fn softly_purged_replaces_unreachable_origin() {
    let origin = TestOrigin::start().await;
    origin.on("/a", fresh(&[])).on("/a", OriginScript::raw(b"").close());
    origin.on("/b", OriginScript::ok(&["cache-control: max-age=60, must-revalidate", "etag: \"x\""], b"old"));
    origin.on("/b", OriginScript::raw(b"").close());
    let proxy = TestProxy::forward().await;
    for path in ["/a", "/b"] {
        store(&proxy, &origin, path).await;
        assert_eq!(soft_purge(&proxy, &origin, path, "accept: */*").await.status, 200);
    }
    let reply = get(proxy.address, &origin.url("/a"), &[]).await;
    assert_eq!((reply.status, reply.text().as_str()), (200, "old"));
    let told = reply.cache_status();
    let ttl_s = told.strip_prefix("nectary; fwd=stale; ttl=").and_then(|rest| rest.strip_suffix("; detail=stale"));
    assert!(ttl_s.is_some_and(|ttl_s| ttl_s.parse::<i64>().is_ok_and(|ttl_s| ttl_s <= 0)), "{told}");
    assert_eq!(get(proxy.address, &origin.url("/b"), &[]).await.status, 502);
}

/// A fetch that began before the purge stores nothing.
#[tokio::test]
async fn soft_purge_outdates_running_fetch() {
    let origin = TestOrigin::start().await;
    let head = b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: 3\r\n\r\n";
    origin.on("/a", OriginScript::raw(head).wait("body").then(b"old")).on("/a", OriginScript::fresh(b"new"));
    let proxy = TestProxy::forward().await;
    let mut client = TestClient::connect(proxy.address).await;
    client.send(request(&[&format!("GET {} HTTP/1.1", origin.url("/a"))]).as_bytes()).await;
    client.head().await;
    assert_eq!(soft_purge(&proxy, &origin, "/a", "accept: */*").await.status, 200);
    origin.open("body");
    assert_eq!(client.take(3).await, b"old");
    assert_eq!(get(proxy.address, &origin.url("/a"), &[]).await.text(), "new");
}

#[tokio::test]
async fn soft_tag_purge_affects_tagged() {
    let origin = TestOrigin::start().await;
    origin.on("/a", fresh(&["surrogate-key: news"])).on("/a", OriginScript::raw(RENEWED));
    origin.on("/b", fresh(&["surrogate-key: sport"]));
    let proxy = TestProxy::forward().await;
    for path in ["/a", "/b"] {
        store(&proxy, &origin, path).await;
    }
    let reply = soft_purge(&proxy, &origin, "/b", "surrogate-key: news").await;
    assert_eq!(reply.text().trim(), "stale from now on: what has a tag of: news");
    assert_eq!(
        get(proxy.address, &origin.url("/a"), &[]).await.cache_status(),
        "nectary; fwd=stale; fwd-status=304; stored"
    );
    assert!(get(proxy.address, &origin.url("/b"), &[]).await.is_hit());
    assert!(get(proxy.address, &origin.url("/a"), &[]).await.is_hit());
}

#[tokio::test]
async fn json_reports_soft_purge() {
    let origin = TestOrigin::start().await;
    let listen = vec!["127.0.0.1:0".parse().expect("an address")];
    let admin = AdminOptions { listen, ..AdminOptions::default() };
    let proxy = TestProxy::start(ProxyOptions { admin, ..options() }).await;
    let address = proxy.admin_address.expect("one");
    for (path, body) in [
        ("/url", format!(r#"{{"url": "{}", "soft": true}}"#, origin.url("/url"))),
        ("/prefix/a", format!(r#"{{"soft": true, "prefix": "{}"}}"#, origin.url("/prefix/"))),
        ("/tag", r#"{"tags": ["news"], "soft": true}"#.to_owned()),
        ("/all", r#"{"all": true, "soft": true}"#.to_owned()),
    ] {
        origin.on(path, fresh(&["surrogate-key: news"])).on(path, OriginScript::raw(RENEWED));
        store(&proxy, &origin, path).await;
        let head = format!("POST /purge HTTP/1.1\r\nhost: {address}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let mut client = TestClient::connect(address).await;
        client.send(head.as_bytes()).await;
        let reply = client.reply(false).await;
        assert_eq!((reply.status, reply.cache_status().as_str()), (200, "nectary; detail=soft-purged"), "{body}");
        let reply = get(proxy.address, &origin.url(path), &[]).await;
        assert_eq!(reply.cache_status(), "nectary; fwd=stale; fwd-status=304; stored", "{body}");
        assert!(get(proxy.address, &origin.url(path), &[]).await.is_hit(), "{body}");
    }
}

#[tokio::test]
async fn unclear_soft_purges_purge_nothing() {
    let origin = TestOrigin::start().await;
    origin.on("/a", fresh(&[]));
    let proxy = TestProxy::forward().await;
    store(&proxy, &origin, "/a").await;
    let line = format!("PURGE {} HTTP/1.1", origin.url("/a"));
    let reply = ask(&proxy, &[&line, AUTHORIZATION, "fastly-soft-purge: yes"]).await;
    assert_eq!((reply.status, reply.cache_status().as_str()), (400, "nectary; detail=purge-unclear"));
    assert!(get(proxy.address, &origin.url("/a"), &[]).await.is_hit());
    let reply = ask(&proxy, &[&line, AUTHORIZATION, "fastly-soft-purge: 0"]).await;
    assert_eq!(reply.cache_status(), "nectary; detail=purged");
    assert!(!get(proxy.address, &origin.url("/a"), &[]).await.is_hit());
}

#[tokio::test]
async fn soft_purge_outweighs_a_new_lifetime() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(&["etag: \"x\""], b"old")).on("/a", OriginScript::raw(RENEWED));
    let with_ttl = |seconds: u64| {
        let ttl = Some(at(Duration::from_secs(seconds)));
        with_rule_config(&origin, |route| route.rules.lifetimes.default_ttl = ttl)
    };
    let proxy = configured(with_ttl(60)).await;
    let ask_site = async || get(proxy.address, "/a", &["host: a"]).await;
    ask_site().await;
    assert!(ask_site().await.is_hit());
    proxy.reopener().reload(&Arc::new(with_ttl(900))).expect("a good configuration");
    while !ask_site().await.cache_status().contains("ttl=8") {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(ask(&proxy, &["PURGE /a HTTP/1.1", "host: a", AUTHORIZATION, SOFT]).await.status, 200);
    assert_eq!(ask_site().await.cache_status(), "nectary; fwd=stale; fwd-status=304; stored");
    assert_eq!(origin.count(), 2);
}
