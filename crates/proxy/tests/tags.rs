//! Purging a tag removes all responses that have the tag from the store, and no other responses.

use nectary_proxy::ProxyOptions;
use nectary_store::TAGS_MAX;

use crate::common::*;

async fn ask(proxy: &TestProxy, lines: &[&str]) -> ClientReply {
    TestClient::connect(proxy.address).await.ask(lines).await
}

async fn is_hit(proxy: &TestProxy, url: &str) -> bool {
    get(proxy.address, url, &[]).await.is_hit()
}

fn tagged(tags: &[&str]) -> OriginScript {
    OriginScript::ok(&[&["cache-control: max-age=60"], tags].concat(), b"hello")
}

#[tokio::test]
async fn tag_purge_removes_only_tagged() {
    let origin = TestOrigin::start().await;
    let paths = [
        ("/key", &["surrogate-key: news page-1"][..]),
        ("/lines", &["surrogate-key: page-2", "surrogate-key: news"]),
        ("/tag", &["cache-tag: front page, news"]),
        ("/varies", &["cache-tag: news", "vary: accept"]),
        ("/other", &["surrogate-key: newspaper", "cache-tag: sport"]),
        ("/none", &[]),
    ];
    let proxy = TestProxy::forward().await;
    for (path, headers) in paths {
        origin.on(path, tagged(headers));
        assert!(!is_hit(&proxy, &origin.url(path)).await && is_hit(&proxy, &origin.url(path)).await, "{path}");
    }
    let line = format!("PURGE {} HTTP/1.1", origin.url("/none"));
    let reply = ask(&proxy, &[&line, AUTHORIZATION, "surrogate-key: news absent"]).await;
    assert_eq!((reply.status, reply.text().trim()), (200, "purged what has a tag of: news, absent"));
    for (path, _) in paths {
        let stays = ["/other", "/none"].contains(&path);
        assert_eq!(is_hit(&proxy, &origin.url(path)).await, stays, "{path}");
    }
    let reply = ask(&proxy, &[&line, AUTHORIZATION, "cache-tag: sport, front page", "accept: application/json"]).await;
    assert_eq!(reply.text().trim(), "{\"purged_tags\":[\"sport\",\"front page\"]}");
    for (path, _) in paths {
        let stays = !["/other", "/tag"].contains(&path);
        assert_eq!(is_hit(&proxy, &origin.url(path)).await, stays, "{path}");
    }
    assert_eq!(proxy.stats().purges, 2);
}

/// A fetch that began before a purge of its tag stores nothing.
#[tokio::test]
async fn tag_purge_outdates_running_fetch() {
    let origin = TestOrigin::start().await;
    let head = b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\nsurrogate-key: news\r\ncontent-length: 3\r\n\r\n";
    origin.on("/a", OriginScript::raw(head).wait("body").then(b"old")).on("/a", OriginScript::fresh(b"new"));
    let proxy = TestProxy::forward().await;
    let mut client = TestClient::connect(proxy.address).await;
    client.send(request(&[&format!("GET {} HTTP/1.1", origin.url("/a"))]).as_bytes()).await;
    client.head().await;
    let purge = ["PURGE / HTTP/1.1", "host: h", AUTHORIZATION, "surrogate-key: news"];
    assert_eq!(ask(&proxy, &purge).await.status, 200);
    assert_eq!(get(proxy.address, &origin.url("/a"), &[]).await.text(), "new");
    origin.open("body");
    assert_eq!(client.take(3).await, b"old");
    let reply = get(proxy.address, &origin.url("/a"), &[]).await;
    assert!(reply.is_hit() && reply.text() == "new");
}

#[tokio::test]
async fn validation_304_adds_tags() {
    let origin = TestOrigin::start().await;
    let proxy = TestProxy::forward().await;
    for (path, tag) in [("/a", "old"), ("/b", "new")] {
        let not_modified =
            b"HTTP/1.1 304 Not Modified\r\netag: \"x\"\r\ncache-control: max-age=60\r\nsurrogate-key: new\r\n\r\n";
        origin
            .on(path, OriginScript::ok(&["cache-control: max-age=0", "etag: \"x\"", "surrogate-key: old"], b"hello"))
            .on(path, OriginScript::raw(not_modified))
            .on(path, OriginScript::fresh(b"fetched"));
        let url = origin.url(path);
        get(proxy.address, &url, &[]).await;
        assert_eq!(get(proxy.address, &url, &[]).await.cache_status(), "nectary; fwd=stale; fwd-status=304; stored");
        assert!(is_hit(&proxy, &url).await);
        let purge = format!("surrogate-key: {tag}");
        assert_eq!(ask(&proxy, &["PURGE / HTTP/1.1", "host: h", AUTHORIZATION, &purge]).await.status, 200);
        assert_eq!(get(proxy.address, &url, &[]).await.text(), "fetched", "{path}");
    }
}

/// A successful unsafe request can invalidate a group.
#[tokio::test]
async fn groups_belong_to_their_origin() {
    let (origin, stranger) = (TestOrigin::start().await, TestOrigin::start().await);
    let proxy = TestProxy::forward().await;
    for origin in [&origin, &stranger] {
        for (path, headers) in [
            ("/a", ["cache-groups: \"books\", \"all\""]),
            ("/b", ["cache-groups: \"books\";x"]),
            ("/c", ["cache-groups: \"other\""]),
            ("/d", ["surrogate-key: books"]),
        ] {
            origin.on(path, tagged(&headers));
            assert!(!is_hit(&proxy, &origin.url(path)).await && is_hit(&proxy, &origin.url(path)).await);
        }
    }
    let done =
        OriginScript::response("200 OK", &["cache-group-invalidation: \"books\"", "cache-control: no-store"], b"x");
    origin.on("/change", done);
    // A response to a safe request changes nothing.
    get(proxy.address, &origin.url("/change"), &[]).await;
    assert!(is_hit(&proxy, &origin.url("/a")).await);
    ask(&proxy, &[&format!("POST {} HTTP/1.1", origin.url("/change")), "content-length: 0"]).await;
    for (path, stays) in [("/a", false), ("/b", false), ("/c", true), ("/d", true)] {
        assert_eq!(is_hit(&proxy, &origin.url(path)).await, stays, "{path}");
        assert!(is_hit(&proxy, &stranger.url(path)).await, "{path} of another origin");
    }
    let line = format!("PURGE {} HTTP/1.1", stranger.url("/anything"));
    let reply = ask(&proxy, &[&line, AUTHORIZATION, "cache-groups: \"all\", \"other\""]).await;
    assert_eq!(reply.text().trim(), "purged what has a tag of: all, other");
    for (path, stays) in [("/a", false), ("/b", true), ("/c", false), ("/d", true)] {
        assert_eq!(is_hit(&proxy, &stranger.url(path)).await, stays, "{path}");
        assert!(is_hit(&proxy, &origin.url(path)).await, "{path} of another origin");
    }
}

#[tokio::test]
async fn too_many_tags_pass_unstored() {
    let origin = TestOrigin::start().await;
    let tags = |count: usize| {
        let names: Vec<String> = (0..count).map(|number| number.to_string()).collect();
        format!("surrogate-key: {}", names.join(" "))
    };
    origin.on("/most", tagged(&[&tags(TAGS_MAX)])).on("/more", tagged(&[&tags(TAGS_MAX + 1)]));
    origin.on("/long", tagged(&[&format!("cache-tag: {}", "x".repeat(1025))]));
    let proxy = TestProxy::forward().await;
    for (path, stored) in [("/most", true), ("/more", false), ("/long", false)] {
        assert_eq!(get(proxy.address, &origin.url(path), &[]).await.text(), "hello", "{path}");
        let second = get(proxy.address, &origin.url(path), &[]).await;
        assert_eq!((second.is_hit(), second.text().as_str()), (stored, "hello"), "{path}");
    }
    let none = ["surrogate-key: ", "cache-groups: \"open"].map(str::to_owned);
    for bad in [tags(TAGS_MAX + 1), format!("cache-tag: {}", "x".repeat(1025))].into_iter().chain(none) {
        assert_eq!(ask(&proxy, &["PURGE / HTTP/1.1", "host: h", AUTHORIZATION, &bad]).await.status, 400);
    }
    assert!(is_hit(&proxy, &origin.url("/most")).await);
}

#[tokio::test]
async fn stripped_tags_stay_hidden() {
    let origin = TestOrigin::start().await;
    let headers = ["surrogate-key: a", "cache-tag: b", "cache-groups: \"c\"", "etag: \"x\""];
    let fresh = OriginScript::ok(&[&["cache-control: max-age=60"], &headers[..]].concat(), b"hello");
    let private = OriginScript::ok(&[&["cache-control: private"], &headers[..]].concat(), b"hello");
    origin.on("/a", fresh).on("/private", private);
    for strip_tags in [false, true] {
        let proxy = TestProxy::start(ProxyOptions { strip_tags, ..options() }).await;
        for (path, hit) in [("/a", false), ("/a", true), ("/private", false)] {
            let reply = get(proxy.address, &origin.url(path), &[]).await;
            assert_eq!(reply.is_hit(), hit);
            let seen = ["surrogate-key", "cache-tag", "cache-groups"].map(|name| reply.header(name));
            let expected = if strip_tags { ["", "", "\"c\""] } else { ["a", "b", "\"c\""] };
            assert_eq!(seen, expected, "{path}");
        }
        for tag in ["surrogate-key: a", "cache-tag: b"] {
            assert_eq!(ask(&proxy, &["PURGE / HTTP/1.1", "host: h", AUTHORIZATION, tag]).await.status, 200);
            assert!(!is_hit(&proxy, &origin.url("/a")).await && is_hit(&proxy, &origin.url("/a")).await);
        }
    }
}
