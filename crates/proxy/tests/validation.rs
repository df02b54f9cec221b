//! A stale response is validated: a `304` renews it, and any other response replaces it.

use nectary_proxy::ProxyOptions;

use crate::common::*;

#[tokio::test]
async fn validation_304_renews_stored_headers() {
    let origin = TestOrigin::start().await;
    origin
        .on("/a", OriginScript::ok(&["cache-control: max-age=0", "etag: \"x\"", "x-count: 1"], b"hello"))
        .on(
            "/a",
            OriginScript::raw(
                b"HTTP/1.1 304 Not Modified\r\netag: \"x\"\r\ncache-control: max-age=60\r\nx-count: 2\r\n\r\n",
            ),
        )
        .on("/a", OriginScript::response("500 Not Asked Again", &[], b""));
    let proxy = TestProxy::forward().await;
    let url = origin.url("/a");
    assert_eq!(get(proxy.address, &url, &[]).await.header("x-count"), "1");
    let second = get(proxy.address, &url, &[]).await;
    assert_eq!((second.status, second.text().as_str(), second.header("x-count").as_str()), (200, "hello", "2"));
    assert_eq!(second.cache_status(), "nectary; fwd=stale; fwd-status=304; stored");
    assert_eq!(origin.got()[1].header("if-none-match"), "\"x\"");
    let third = get(proxy.address, &url, &[]).await;
    assert!(third.is_hit() && third.text() == "hello" && third.header("x-count") == "2", "{third:?}");
    assert_eq!(origin.count(), 2);
}

#[tokio::test]
async fn a_200_replaces_what_is_stored() {
    let origin = TestOrigin::start().await;
    origin
        .on("/a", OriginScript::ok(&["cache-control: max-age=0", "etag: \"x\""], b"old"))
        .on("/a", OriginScript::fresh(b"new"));
    let proxy = TestProxy::forward().await;
    let url = origin.url("/a");
    assert_eq!(get(proxy.address, &url, &[]).await.text(), "old");
    let second = get(proxy.address, &url, &[]).await;
    assert_eq!(
        (second.text().as_str(), second.cache_status().as_str()),
        ("new", "nectary; fwd=stale; fwd-status=200; stored")
    );
    let third = get(proxy.address, &url, &[]).await;
    assert!(third.is_hit() && third.text() == "new");
}

#[tokio::test]
async fn mismatched_304_is_not_believed() {
    let origin = TestOrigin::start().await;
    origin
        .on("/a", OriginScript::ok(&["cache-control: max-age=0", "etag: \"x\""], b"old"))
        .on("/a", OriginScript::raw(b"HTTP/1.1 304 Not Modified\r\netag: \"other\"\r\n\r\n"))
        .on("/a", OriginScript::fresh(b"new"));
    let proxy = TestProxy::forward().await;
    assert_eq!(get(proxy.address, &origin.url("/a"), &[]).await.text(), "old");
    assert_eq!(get(proxy.address, &origin.url("/a"), &[]).await.text(), "new");
    assert_eq!(origin.got()[2].header("if-none-match"), "");
}

/// An origin that says `304` whatever it is asked is not asked for ever.
#[tokio::test]
async fn unasked_304_ends_the_matter() {
    let origin = TestOrigin::start().await;
    origin
        .on("/a", OriginScript::ok(&["cache-control: max-age=0", "etag: \"x\""], b"old"))
        .on("/a", OriginScript::raw(b"HTTP/1.1 304 Not Modified\r\netag: \"other\"\r\n\r\n"));
    let proxy = TestProxy::forward().await;
    assert_eq!(get(proxy.address, &origin.url("/a"), &[]).await.text(), "old");
    assert_eq!(get(proxy.address, &origin.url("/a"), &[]).await.status, 304);
    assert_eq!(origin.count(), 3);
}

/// The body has changed, although the origin says `304`: these validators are not those of the stored response.
#[tokio::test]
async fn weak_mismatch_304_renews_nothing() {
    const MODIFIED: &str = "last-modified: Sun, 06 Nov 1994 08:49:37 GMT";
    const LATER: &str = "last-modified: Sun, 06 Nov 1994 08:49:38 GMT";
    const DATE: &str = "date: Sun, 06 Nov 1994 08:49:38 GMT";
    // Each row has the validator of the stored response, the headers of the `304`, and what validates the response.
    let table = [
        (&["etag: W/\"x\""][..], "etag: W/\"y\"".to_owned()),
        (&["etag: \"x\""], "etag: W/\"y\"".to_owned()),
        (&[MODIFIED, "date: Sun, 06 Nov 1994 08:49:40 GMT"], format!("{LATER}\r\n{DATE}")),
        (
            &[MODIFIED, "date: Sun, 06 Nov 1994 08:49:40 GMT"],
            format!("etag: W/\"y\"\r\n{MODIFIED}\r\n{}", DATE.replace("38", "37")),
        ),
    ];
    for (validators, fresh) in table {
        let origin = TestOrigin::start().await;
        let not_modified = format!("HTTP/1.1 304 Not Modified\r\ncache-control: max-age=60\r\n{fresh}\r\n\r\n");
        origin
            .on("/a", OriginScript::ok(&[&["cache-control: max-age=0"], validators].concat(), b"old"))
            .on("/a", OriginScript::raw(not_modified.as_bytes()))
            .on("/a", OriginScript::fresh(b"new"));
        let proxy = TestProxy::forward().await;
        for body in ["old", "new", "new"] {
            assert_eq!(get(proxy.address, &origin.url("/a"), &[]).await.text(), body, "{validators:?} {fresh}");
        }
        assert_eq!(origin.count(), 3);
    }
}

/// The origin goes by a date of whole seconds, and the body has changed twice in one second.
#[tokio::test]
async fn ambiguous_date_forces_refetch() {
    let origin = TestOrigin::start().await;
    let modified = "last-modified: Sun, 06 Nov 1994 08:49:37 GMT";
    let sent = ["date: Sun, 06 Nov 1994 08:49:37 GMT", "date: Sun, 06 Nov 1994 08:49:38 GMT"];
    for (path, date, condition) in [("/a", sent[0], ""), ("/b", sent[1], "Sun, 06 Nov 1994 08:49:37 GMT")] {
        origin
            .on(path, OriginScript::ok(&["cache-control: max-age=0", modified, date], b"first"))
            .on(path, OriginScript::ok(&["cache-control: max-age=0", modified], b"second"));
        let proxy = TestProxy::forward().await;
        for body in ["first", "second"] {
            assert_eq!(get(proxy.address, &origin.url(path), &[]).await.text(), body);
        }
        assert_eq!(origin.got().pop().expect("a request").header("if-modified-since"), condition, "{path}");
    }
}

#[tokio::test]
async fn a_request_can_demand_validation() {
    let origin = TestOrigin::start().await;
    origin
        .on("/a", OriginScript::ok(&["cache-control: max-age=60", "etag: \"x\""], b"hello"))
        .on("/a", OriginScript::raw(b"HTTP/1.1 304 Not Modified\r\n\r\n"));
    let proxy = TestProxy::forward().await;
    get(proxy.address, &origin.url("/a"), &[]).await;
    for demand in ["cache-control: no-cache", "cache-control: max-age=0", "pragma: no-cache"] {
        let reply = get(proxy.address, &origin.url("/a"), &[demand]).await;
        assert_eq!(reply.cache_status(), "nectary; fwd=request; fwd-status=304; stored", "{demand}");
        assert_eq!(reply.text(), "hello");
    }
    assert!(get(proxy.address, &origin.url("/a"), &[]).await.is_hit());
    assert_eq!(origin.count(), 4);
}

#[tokio::test]
async fn concurrent_validations_share_one_request() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(&["cache-control: max-age=0", "etag: \"x\""], b"hello")).on(
        "/a",
        OriginScript::raw(b"").wait("answer").then(b"HTTP/1.1 304 Not Modified\r\ncache-control: max-age=60\r\n\r\n"),
    );
    let proxy = TestProxy::forward().await;
    get(proxy.address, &origin.url("/a"), &[]).await;
    let line = format!("GET {} HTTP/1.1", origin.url("/a"));
    let mut clients = Vec::new();
    for _ in 0..4 {
        let mut client = TestClient::connect(proxy.address).await;
        client.send(request(&[&line]).as_bytes()).await;
        clients.push(client);
    }
    proxy.wait_for(|stats| stats.requests == 5).await;
    origin.open("answer");
    for client in &mut clients {
        assert_eq!(client.reply(false).await.text(), "hello");
    }
    assert_eq!(origin.count(), 2);
}

/// Sends the same request on several connections, and lets the origin answer when all wait.
async fn at_the_same_time(origin: &TestOrigin, proxy: &TestProxy, lines: &[&str]) -> Vec<ClientReply> {
    let before = proxy.stats().requests;
    let mut clients = Vec::new();
    for _ in 0..5 {
        let mut client = TestClient::connect(proxy.address).await;
        client.send(request(lines).as_bytes()).await;
        clients.push(client);
    }
    proxy.wait_for(|stats| stats.requests == before + 5).await;
    origin.open("answer");
    let mut replies = Vec::new();
    for client in &mut clients {
        replies.push(client.reply(false).await);
    }
    replies
}

#[tokio::test]
async fn demands_for_validation_share_one_revalidation() {
    const FRESH: &[u8] =
        b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\netag: \"x\"\r\ncontent-length: 5\r\n\r\nhello";
    for demand in
        ["cache-control: max-age=0", "cache-control: no-cache", "pragma: no-cache", "cache-control: min-fresh=90"]
    {
        for answer in [&b"HTTP/1.1 304 Not Modified\r\n\r\n"[..], FRESH] {
            let origin = TestOrigin::start().await;
            origin.on("/a", OriginScript::raw(FRESH)).on("/a", OriginScript::raw(b"").wait("answer").then(answer));
            let proxy = TestProxy::forward().await;
            get(proxy.address, &origin.url("/a"), &[]).await;
            let line = format!("GET {} HTTP/1.1", origin.url("/a"));
            for reply in at_the_same_time(&origin, &proxy, &[&line, demand]).await {
                assert_eq!(reply.text(), "hello", "{demand}");
            }
            assert_eq!(origin.count(), 2, "{demand}");
            // A later request demands its own validation.
            get(proxy.address, &origin.url("/a"), &[demand]).await;
            assert_eq!(origin.count(), 3, "{demand}");
        }
    }
}

/// The store refuses the renewed headers if what they belong to is purged meanwhile. The origin has confirmed it all the
/// same, and is there for those who wait.
#[tokio::test]
async fn purge_during_validation_fails_nobody() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(&["cache-control: max-age=0, must-revalidate", "etag: \"x\""], b"hello"));
    origin.on("/a", OriginScript::raw(b"").wait("answer").then(b"HTTP/1.1 304 Not Modified\r\n\r\n"));
    origin.on("/a", OriginScript::ok(&["cache-control: max-age=0, must-revalidate", "etag: \"x\""], b"hello"));
    let proxy = TestProxy::forward().await;
    get(proxy.address, &origin.url("/a"), &[]).await;
    let line = format!("GET {} HTTP/1.1", origin.url("/a"));
    let mut clients = Vec::new();
    for number in 1..=3 {
        let mut client = TestClient::connect(proxy.address).await;
        client.send(request(&[&line]).as_bytes()).await;
        proxy.wait_for(|stats| stats.requests == 1 + number).await;
        clients.push(client);
    }
    origin.wait_for(2).await;
    let purge = format!("PURGE {} HTTP/1.1", origin.url("/a"));
    assert_eq!(TestClient::connect(proxy.address).await.ask(&[&purge, AUTHORIZATION]).await.status, 200);
    origin.open("answer");
    for client in &mut clients {
        let reply = client.reply(false).await;
        assert_eq!((reply.status, reply.text().as_str()), (200, "hello"), "{reply:?}");
    }
}

/// Such a response may be for one client alone, as far as a cache knows.
#[tokio::test]
async fn no_cache_validates_per_client() {
    let origin = TestOrigin::start().await;
    let response = ["cache-control: no-cache", "etag: \"x\""];
    origin.on("/a", OriginScript::ok(&response, b"hello"));
    origin.on("/a", OriginScript::raw(b"").wait("answer").then(b"HTTP/1.1 304 Not Modified\r\n\r\n"));
    let proxy = TestProxy::forward().await;
    get(proxy.address, &origin.url("/a"), &[]).await;
    let line = format!("GET {} HTTP/1.1", origin.url("/a"));
    for reply in at_the_same_time(&origin, &proxy, &[&line]).await {
        assert!(reply.status == 200 || reply.status == 304, "{reply:?}");
    }
    assert_eq!(origin.count(), 6);
}

/// The answer to a request that was under way before may be older than the demand.
#[tokio::test]
async fn earlier_answer_meets_no_demand() {
    let origin = TestOrigin::start().await;
    let head = b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: 3\r\n\r\n";
    origin.on("/a", OriginScript::raw(head).then(b"ol").wait("rest").then(b"d")).on("/a", OriginScript::fresh(b"new"));
    let proxy = TestProxy::forward().await;
    let line = format!("GET {} HTTP/1.1", origin.url("/a"));
    let mut first = TestClient::connect(proxy.address).await;
    first.send(request(&[&line]).as_bytes()).await;
    first.head().await;
    tokio::time::sleep(std::time::Duration::from_millis(3)).await;
    let reply = get(proxy.address, &origin.url("/a"), &["cache-control: no-cache"]).await;
    assert_eq!((reply.text().as_str(), origin.count()), ("new", 2));
    origin.open("rest");
}

#[tokio::test]
async fn origin_error_keeps_stored_response() {
    let origin = TestOrigin::start().await;
    origin
        .on("/a", OriginScript::ok(&["cache-control: max-age=0", "etag: \"x\""], b"hello"))
        .on("/a", OriginScript::response("500 Oh", &[], b"no"))
        .on("/a", OriginScript::raw(b"HTTP/1.1 304 Not Modified\r\n\r\n"));
    let proxy = TestProxy::forward().await;
    get(proxy.address, &origin.url("/a"), &[]).await;
    assert_eq!(get(proxy.address, &origin.url("/a"), &[]).await.status, 500);
    assert_eq!(get(proxy.address, &origin.url("/a"), &[]).await.text(), "hello");
}

/// The operator can have validation that requests demand ignored.
#[tokio::test]
async fn ignored_demand_causes_no_validation() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(&["cache-control: max-age=60", "etag: \"x\""], b"hello"));
    origin.on("/stale", OriginScript::ok(&["cache-control: max-age=0", "etag: \"x\""], b"hello"));
    let options = ProxyOptions { ignore_request_cache_control: true, ..options() };
    let proxy = TestProxy::start(options).await;
    let demands =
        ["cache-control: max-age=0", "cache-control: no-cache", "pragma: no-cache", "cache-control: min-fresh=90"];
    get(proxy.address, &origin.url("/a"), &[demands[0]]).await;
    for demand in demands {
        let reply = get(proxy.address, &origin.url("/a"), &[demand]).await;
        assert!(reply.is_hit() && reply.text() == "hello", "{demand}: {}", reply.cache_status());
    }
    assert_eq!(origin.count(), 1);
    // The origin's directives still apply, and requests can still forbid that a response is stored or fetched.
    for count in 2..=3 {
        get(proxy.address, &origin.url("/stale"), &[]).await;
        assert_eq!(origin.count(), count);
    }
    assert_eq!(get(proxy.address, &origin.url("/b"), &["cache-control: only-if-cached"]).await.status, 504);
    for count in 4..=5 {
        get(proxy.address, &origin.url("/c"), &["cache-control: no-store"]).await;
        assert_eq!(origin.count(), count);
    }
}
