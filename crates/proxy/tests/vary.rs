//! A response that varies by request headers is served only to requests with the same values of these headers.

use crate::common::*;

#[tokio::test]
async fn variants_are_stored_separately() {
    let origin = TestOrigin::start().await;
    for body in [b"one", b"two"] {
        origin.on("/a", OriginScript::ok(&["cache-control: max-age=60", "vary: Accept-Language, X-Kind"], body));
    }
    let proxy = TestProxy::forward().await;
    let url = origin.url("/a");
    let german = ["accept-language: de,  en"];
    let french = ["accept-language: fr", "x-kind: 1"];
    assert_eq!(get(proxy.address, &url, &german).await.cache_status(), "nectary; fwd=uri-miss; fwd-status=200; stored");
    assert_eq!(
        get(proxy.address, &url, &french).await.cache_status(),
        "nectary; fwd=vary-miss; fwd-status=200; stored"
    );
    let reply = get(proxy.address, &url, &["accept-language: de, en"]).await;
    assert!(reply.is_hit() && reply.text() == "one", "{reply:?}");
    let reply = get(proxy.address, &url, &french).await;
    assert!(reply.is_hit() && reply.text() == "two", "{reply:?}");
    assert!(!get(proxy.address, &url, &["accept-language: fr"]).await.is_hit());
    assert_eq!(origin.count(), 3);
}

#[tokio::test]
async fn names_learned_later_join_those_known() {
    let origin = TestOrigin::start().await;
    origin
        .on("/a", OriginScript::ok(&["cache-control: max-age=60", "vary: a"], b"1"))
        .on("/a", OriginScript::ok(&["cache-control: max-age=60", "vary: b"], b"2"))
        .on("/a", OriginScript::ok(&["cache-control: max-age=60"], b"3"));
    let proxy = TestProxy::forward().await;
    let url = origin.url("/a");
    assert_eq!(get(proxy.address, &url, &["a: 1", "b: 1"]).await.text(), "1");
    assert_eq!(get(proxy.address, &url, &["a: 2", "b: 1"]).await.text(), "2");
    let reply = get(proxy.address, &url, &["a: 2", "b: 1"]).await;
    assert!(reply.is_hit() && reply.text() == "2");
    assert_eq!(get(proxy.address, &url, &["a: 2", "b: 2"]).await.text(), "3");
    assert!(get(proxy.address, &url, &["a: 2", "b: 2"]).await.is_hit());
}

#[tokio::test]
async fn vary_star_is_not_stored() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(&["cache-control: max-age=60", "vary: *"], b"x"));
    let proxy = TestProxy::forward().await;
    for count in 1..=2 {
        assert!(!get(proxy.address, &origin.url("/a"), &[]).await.is_hit());
        assert_eq!(origin.count(), count);
    }
}

#[tokio::test]
async fn follower_fetches_other_variant() {
    let origin = TestOrigin::start().await;
    let head = b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\nvary: a\r\ncontent-length: 3\r\n\r\n";
    origin.on("/a", OriginScript::raw(b"").wait("answer").then(head).then(b"one"));
    origin.on("/a", OriginScript::raw(head).then(b"two"));
    let proxy = TestProxy::forward().await;
    let line = format!("GET {} HTTP/1.1", origin.url("/a"));
    let mut clients = Vec::new();
    for header in ["a: 1", "a: 1", "a: 2", "a: 2"] {
        let mut client = TestClient::connect(proxy.address).await;
        client.send(request(&[&line, header]).as_bytes()).await;
        proxy.wait_for(|stats| stats.requests == clients.len() as u64 + 1).await;
        clients.push(client);
    }
    origin.wait_for(1).await;
    origin.open("answer");
    let mut bodies = Vec::new();
    for client in &mut clients {
        bodies.push(client.reply(false).await.text());
    }
    assert_eq!(bodies, ["one", "one", "two", "two"]);
    assert_eq!(origin.count(), 2);
}

/// A `304` with a new `Vary` does not leave the response where all requests find it.
#[tokio::test]
async fn varying_304_moves_stored_response() {
    let origin = TestOrigin::start().await;
    let head = "cache-control: max-age=60";
    origin
        .on("/a", OriginScript::ok(&["cache-control: max-age=0", "etag: \"x\""], b"old"))
        .on("/a", OriginScript::raw(b"HTTP/1.1 304 Not Modified\r\ncache-control: max-age=60\r\nvary: a\r\n\r\n"))
        .on("/a", OriginScript::ok(&[head, "vary: a", "etag: \"x\""], b"one"))
        .on("/a", OriginScript::ok(&[head, "vary: a", "etag: \"y\""], b"two"));
    let proxy = TestProxy::forward().await;
    let url = origin.url("/a");
    assert_eq!(get(proxy.address, &url, &["a: 1"]).await.text(), "old");
    assert_eq!(get(proxy.address, &url, &["a: 1"]).await.text(), "one");
    assert_eq!(get(proxy.address, &url, &["a: 2"]).await.text(), "two");
    let reply = get(proxy.address, &url, &["a: 1"]).await;
    assert!(reply.is_hit() && reply.text() == "one");
}

#[tokio::test]
async fn too_many_vary_names_are_not_stored() {
    let origin = TestOrigin::start().await;
    let names = |from: u8| (from..from + 10).map(|index| format!("x-{index}")).collect::<Vec<_>>().join(", ");
    for (from, body) in [(0, b"one"), (10, b"two"), (10, b"new")] {
        origin.on("/a", OriginScript::ok(&["cache-control: max-age=60", &format!("vary: {}", names(from))], body));
    }
    let proxy = TestProxy::forward().await;
    let url = origin.url("/a");
    assert_eq!(get(proxy.address, &url, &[]).await.text(), "one");
    assert_eq!(get(proxy.address, &url, &["x-1: a", "x-11: a"]).await.text(), "two");
    let reply = get(proxy.address, &url, &["x-1: a", "x-11: b"]).await;
    assert_eq!((reply.text().as_str(), reply.is_hit()), ("new", false));
}

#[tokio::test]
async fn browser_encodings_share_copies() {
    let browsers = [
        "gzip, deflate, br, zstd",
        "gzip, deflate, br",
        "deflate, gzip, br, zstd",
        "br, gzip, deflate",
        "gzip, deflate",
        "gzip,deflate",
        "gzip",
        "identity",
        "",
    ];
    let odd: Vec<String> = (0..51).flat_map(|at| [format!("gzip;q=0.{at:03}1"), format!("x-odd-{at}, br")]).collect();
    let origin = TestOrigin::start().await;
    for body in ["0", "1", "2", "3", "4", "5"] {
        origin.on("/a", OriginScript::ok(&["cache-control: max-age=60", "vary: accept-encoding"], body.as_bytes()));
    }
    let proxy = TestProxy::forward().await;
    for wish in browsers.into_iter().chain(odd.iter().map(String::as_str)) {
        let reply = get(proxy.address, &origin.url("/a"), &[&format!("accept-encoding: {wish}")]).await;
        // The body is the number of the request with which it was fetched.
        let fetch: usize = reply.text().parse().expect("a number");
        let asked = origin.got()[fetch].header("accept-encoding");
        for coding in asked.split(", ").filter(|coding| *coding != "identity") {
            assert!(wish.contains(coding), "{wish} got what was asked for by {asked}");
        }
    }
    let asked: Vec<String> = origin.got().iter().map(|got| got.header("accept-encoding")).collect();
    assert_eq!(asked, ["br, zstd, gzip", "br, gzip", "gzip", "identity", "br"]);
    assert!(get(proxy.address, &origin.url("/a"), &[]).await.is_hit(), "no wish is like `identity`");
}

#[tokio::test]
async fn six_browsers_share_two_copies() {
    // What Chrome, Edge, Firefox, Opera, Samsung Internet and Safari send.
    let browsers = [
        "gzip, deflate, br, zstd",
        "gzip, deflate, br, zstd",
        "gzip, deflate, br, zstd",
        "gzip, deflate, br, zstd",
        "gzip, deflate, br",
        "gzip, deflate, br",
    ];
    let origin = TestOrigin::start().await;
    let lines = |coding| ["cache-control: max-age=60", "vary: accept-encoding", coding];
    origin.on("/a", OriginScript::ok(&lines("content-encoding: zstd"), b"in zstd"));
    origin.on("/a", OriginScript::ok(&lines("content-encoding: br"), b"in br"));
    let proxy = TestProxy::forward().await;
    for wish in browsers.iter().chain(&browsers) {
        let reply = get(proxy.address, &origin.url("/a"), &[&format!("accept-encoding: {wish}")]).await;
        let expected = if wish.ends_with("zstd") { ("zstd", "in zstd") } else { ("br", "in br") };
        assert_eq!((reply.header("content-encoding").as_str(), reply.text().as_str()), expected, "{wish}");
    }
    assert_eq!(origin.count(), 2);
}

#[tokio::test]
async fn unstored_response_uses_client_encoding() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(&["cache-control: no-store"], b"x"));
    let proxy = TestProxy::forward().await;
    let (url, wish) = (origin.url("/a"), "accept-encoding: zstd");
    for _ in 0..2 {
        get(proxy.address, &url, &[wish]).await;
    }
    let mut client = TestClient::connect(proxy.address).await;
    client.ask(&[&format!("POST {url} HTTP/1.1"), "content-length: 0", wish]).await;
    let asked: Vec<String> = origin.got().iter().map(|got| got.header("accept-encoding")).collect();
    assert_eq!(asked, ["identity", "zstd", "zstd"]);
}

/// An origin does not get what `SweptConnection` names, so its response must not be found by that.
#[tokio::test]
async fn hop_headers_select_no_variant() {
    let origin = TestOrigin::start().await;
    for body in [b"none", b"ours"] {
        origin.on("/a", OriginScript::ok(&["cache-control: max-age=60", "vary: origin"], body));
    }
    let proxy = TestProxy::forward().await;
    let (url, page) = (origin.url("/a"), "origin: https://page.example");
    let named = [page, "connection: keep-alive, Origin"];
    assert_eq!(get(proxy.address, &url, &named).await.text(), "none");
    assert_eq!(origin.got()[0].header("origin"), "");
    let reply = get(proxy.address, &url, &[page]).await;
    assert_eq!((reply.text().as_str(), reply.is_hit()), ("ours", false));
    for lines in [&named[..], &[]] {
        let reply = get(proxy.address, &url, lines).await;
        assert!(reply.is_hit() && reply.text() == "none", "{lines:?}: {reply:?}");
    }
    assert_eq!(origin.count(), 2);
}
