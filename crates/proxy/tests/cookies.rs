//! No client gets another client's cookie from the store unless the origin or the operator allows it.

use nectary_proxy::ProxyOptions;

use crate::common::*;

const COOKIES: [&str; 2] = ["set-cookie: a=1", "set-cookie: b=2"];

fn fresh(cache_control: &str, cookies: &[&str]) -> OriginScript {
    OriginScript::ok(
        &[&[format!("cache-control: {cache_control}").as_str(), "etag: \"x\""], cookies].concat(),
        b"hello",
    )
}

/// Requests a URL twice; returns whether the second request is a hit, and the cookies of both responses.
async fn twice(proxy: &TestProxy, url: &str) -> (bool, String, String) {
    let (first, second) = (get(proxy.address, url, &[]).await, get(proxy.address, url, &[]).await);
    assert_eq!((first.text().as_str(), second.text().as_str()), ("hello", "hello"));
    (second.is_hit(), first.header("set-cookie"), second.header("set-cookie"))
}

/// The origin or the operator gives the permission.
#[tokio::test]
async fn storing_cookies_needs_permission() {
    let origin = TestOrigin::start().await;
    origin.on("/plain", fresh("max-age=60", &COOKIES));
    origin.on("/s-maxage", fresh("s-maxage=60", &COOKIES));
    origin.on("/public", fresh("public, max-age=60", &COOKIES));
    origin.on("/apart", fresh("max-age=60, no-cache=\"Set-Cookie\"", &COOKIES));
    origin.on("/none", fresh("max-age=60", &[]));
    let proxy = TestProxy::forward().await;
    let both = "a=1, b=2";
    for (path, is_hit, second) in [
        ("/plain", false, both),
        ("/s-maxage", false, both),
        ("/public", true, both),
        ("/apart", true, ""),
        ("/none", true, ""),
    ] {
        let first = if path == "/none" { "" } else { both };
        let found = twice(&proxy, &origin.url(path)).await;
        assert_eq!(found, (is_hit, first.to_owned(), second.to_owned()), "{path}");
    }
    let storing = TestProxy::start(ProxyOptions { store_set_cookie: true, ..options() }).await;
    for path in ["/plain", "/s-maxage", "/public", "/apart"] {
        let found = twice(&storing, &origin.url(path)).await;
        assert_eq!(found, (true, both.to_owned(), both.to_owned()), "{path}, where the operator says so");
    }
}

/// With `store_set_cookie` it is stored and reaches later clients.
#[tokio::test]
async fn cookie_of_304_reaches_requester() {
    let origin = TestOrigin::start().await;
    let not_modified =
        "HTTP/1.1 304 Not Modified\r\netag: \"x\"\r\ncache-control: max-age=60\r\nset-cookie: c=3\r\n\r\n";
    for path in ["/a", "/b"] {
        origin.on(path, fresh("max-age=0", &[])).on(path, OriginScript::raw(not_modified.as_bytes()));
    }
    for (path, store_set_cookie, stored) in [("/a", false, ""), ("/b", true, "c=3")] {
        let proxy = TestProxy::start(ProxyOptions { store_set_cookie, ..options() }).await;
        get(proxy.address, &origin.url(path), &[]).await;
        let validated = get(proxy.address, &origin.url(path), &[]).await;
        assert!(validated.cache_status().contains("fwd-status=304"), "{}", validated.cache_status());
        assert_eq!((validated.text().as_str(), validated.header("set-cookie").as_str()), ("hello", "c=3"));
        let hit = get(proxy.address, &origin.url(path), &[]).await;
        assert_eq!((hit.is_hit(), hit.header("set-cookie").as_str()), (true, stored), "{path}");
    }
}

#[tokio::test]
async fn follower_gets_no_leader_cookie() {
    let origin = TestOrigin::start().await;
    let head = "HTTP/1.1 200 OK\r\ncache-control: max-age=60, no-cache=\"set-cookie\"\r\nset-cookie: a=1\r\ncontent-length: 5\r\n\r\n";
    origin.on("/a", OriginScript::raw(head.as_bytes()).wait("joined").then(b"hello"));
    let proxy = TestProxy::forward().await;
    let line = format!("GET {} HTTP/1.1", origin.url("/a"));
    let (mut first, mut second) = (TestClient::connect(proxy.address).await, TestClient::connect(proxy.address).await);
    first.send(request(&[&line]).as_bytes()).await;
    assert_eq!(first.head().await.header("set-cookie"), "a=1");
    second.send(request(&[&line]).as_bytes()).await;
    let joined = second.head().await;
    assert_eq!((joined.status, joined.header("set-cookie").as_str()), (200, ""));
    assert!(joined.cache_status().contains("collapsed"));
    origin.open("joined");
    assert_eq!((first.take(5).await, second.take(5).await), (b"hello".to_vec(), b"hello".to_vec()));
}
