//! A stale response is served if the origin allows that, or if the origin cannot be reached and has not forbidden it.

use std::time::Duration;

use nectary_proxy::ProxyOptions;

use crate::common::*;

/// A response that is stale when it arrives: it is fresh for 10 seconds and 20 seconds old.
fn stale(cache_control: &str, body: &[u8]) -> OriginScript {
    let cache_control = format!("cache-control: max-age=10{cache_control}");
    OriginScript::ok(&[&cache_control, "age: 20", "etag: \"x\""], body)
}

fn unavailable() -> OriginScript {
    OriginScript::response("503 Service Unavailable", &["cache-control: no-store"], b"down")
}

/// Repeats a request until the response's body is `body`.
async fn get_until(proxy: &TestProxy, url: &str, body: &str) -> ClientReply {
    loop {
        let reply = get(proxy.address, url, &[]).await;
        if reply.text() == body {
            return reply;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn stale_while_revalidate_validates_once() {
    let origin = TestOrigin::start().await;
    origin.on("/a", stale(", stale-while-revalidate=60", b"old")).on(
        "/a",
        OriginScript::raw(b"")
            .wait("answer")
            .then(b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: 3\r\n\r\nnew"),
    );
    let proxy = TestProxy::forward().await;
    let url = origin.url("/a");
    assert_eq!(get(proxy.address, &url, &[]).await.text(), "old");
    for _ in 0..3 {
        let reply = get(proxy.address, &url, &[]).await;
        assert_eq!((reply.text().as_str(), reply.cache_status().as_str()), ("old", "nectary; hit; ttl=-10"));
        origin.wait_for(2).await;
    }
    assert_eq!(origin.got()[1].header("if-none-match"), "\"x\"");
    origin.open("answer");
    assert!(get_until(&proxy, &url, "new").await.is_hit());
    assert_eq!(origin.count(), 2);
}

#[tokio::test]
async fn stale_head_validates_by_get() {
    let origin = TestOrigin::start().await;
    origin.on("/a", stale(", stale-while-revalidate=60", b"old")).on("/a", OriginScript::fresh(b"new"));
    let proxy = TestProxy::forward().await;
    let url = origin.url("/a");
    get(proxy.address, &url, &[]).await;
    let line = format!("HEAD {url} HTTP/1.1");
    assert!(TestClient::connect(proxy.address).await.ask(&[&line]).await.is_hit());
    assert!(get_until(&proxy, &url, "new").await.is_hit());
    assert!(origin.got()[1].line.starts_with("GET "), "{}", origin.got()[1].line);
}

#[tokio::test]
async fn must_revalidate_is_never_stale() {
    let origin = TestOrigin::start().await;
    for (path, more) in [
        ("/a", ", stale-while-revalidate=60, must-revalidate"),
        ("/b", ", stale-while-revalidate=60, proxy-revalidate"),
        ("/c", ", stale-while-revalidate=60, s-maxage=10"),
        ("/d", ", stale-while-revalidate=60, no-cache"),
        ("/e", ", stale-while-revalidate=5"),
    ] {
        origin.on(path, stale(more, b"old")).on(path, OriginScript::fresh(b"new"));
        let proxy = TestProxy::forward().await;
        get(proxy.address, &origin.url(path), &[]).await;
        assert_eq!(get(proxy.address, &origin.url(path), &[]).await.text(), "new", "{more}");
    }
}

/// Stale responses are served unless the origin forbids it.
#[tokio::test]
async fn unreachable_origin_serves_stale() {
    let origin = TestOrigin::start().await;
    let end = || OriginScript::raw(b"").close();
    for (path, more) in [("/a", ""), ("/b", ", must-revalidate"), ("/c", ", s-maxage=10"), ("/d", ", stale-if-error=5")]
    {
        origin.on(path, stale(more, b"old")).on(path, end());
    }
    let proxy = TestProxy::forward().await;
    for path in ["/a", "/b", "/c", "/d"] {
        get(proxy.address, &origin.url(path), &[]).await;
    }
    let reply = get(proxy.address, &origin.url("/a"), &[]).await;
    assert_eq!((reply.status, reply.text().as_str()), (200, "old"));
    assert_eq!(reply.cache_status(), "nectary; fwd=stale; ttl=-10; detail=stale");
    assert!(reply.header("age").parse::<u64>().expect("an age") >= 20);
    assert_eq!(proxy.stats().stale, 1);
    // A client that refuses a stale response does not get one.
    assert_eq!(get(proxy.address, &origin.url("/a"), &["cache-control: no-cache"]).await.status, 502);
    for path in ["/b", "/c", "/d"] {
        assert_eq!(get(proxy.address, &origin.url(path), &[]).await.status, 502, "{path}");
    }
    // A client gets no stale response from a proxy whose operator does not allow it.
    let never = TestProxy::start(ProxyOptions { stale_unreachable: Duration::ZERO, ..options() }).await;
    origin.now("/a", stale("", b"old"));
    get(never.address, &origin.url("/a"), &[]).await;
    origin.now("/a", end());
    assert_eq!(get(never.address, &origin.url("/a"), &[]).await.status, 502);
}

/// The origin or the client allows stale responses on an error.
#[tokio::test]
async fn allowed_error_serves_stale() {
    let origin = TestOrigin::start().await;
    for (path, more) in [("/a", ", stale-if-error=60"), ("/b", ""), ("/c", ", stale-if-error=60, must-revalidate")] {
        origin.on(path, stale(more, b"old")).on(path, unavailable());
    }
    let proxy = TestProxy::forward().await;
    for path in ["/a", "/b", "/c"] {
        get(proxy.address, &origin.url(path), &[]).await;
    }
    let reply = get(proxy.address, &origin.url("/a"), &[]).await;
    assert_eq!((reply.status, reply.text().as_str()), (200, "old"));
    assert_eq!(reply.cache_status(), "nectary; fwd=stale; fwd-status=503; ttl=-10; detail=stale");
    let line = format!("HEAD {} HTTP/1.1", origin.url("/a"));
    assert_eq!(TestClient::connect(proxy.address).await.ask(&[&line]).await.status, 200);
    assert_eq!(get(proxy.address, &origin.url("/b"), &[]).await.status, 503);
    let allowed = get(proxy.address, &origin.url("/b"), &["cache-control: stale-if-error=60"]).await;
    assert_eq!((allowed.status, allowed.text().as_str()), (200, "old"));
    assert_eq!(get(proxy.address, &origin.url("/c"), &["cache-control: stale-if-error=60"]).await.status, 503);
}

#[tokio::test]
async fn failed_fetch_serves_followers_stale() {
    let origin = TestOrigin::start().await;
    let down = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
    origin.on("/a", stale(", stale-if-error=60", b"old")).on("/a", OriginScript::raw(b"").wait("answer").then(down));
    let proxy = TestProxy::forward().await;
    let line = format!("GET {} HTTP/1.1", origin.url("/a"));
    get(proxy.address, &origin.url("/a"), &[]).await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        let mut client = TestClient::connect(proxy.address).await;
        client.send(request(&[&line]).as_bytes()).await;
        clients.push(client);
    }
    proxy.wait_for(|stats| stats.requests == 5).await;
    origin.open("answer");
    for client in &mut clients {
        let reply = client.reply(false).await;
        assert_eq!((reply.status, reply.text().as_str()), (200, "old"));
    }
    assert_eq!(origin.count(), 2);
}

#[tokio::test]
async fn unstorable_update_removes_response() {
    let origin = TestOrigin::start().await;
    origin
        .on("/a", stale(", stale-while-revalidate=60, stale-if-error=60", b"old"))
        .on("/a", OriginScript::ok(&["cache-control: no-store"], b"secret"))
        .on("/a", unavailable());
    let proxy = TestProxy::forward().await;
    let url = origin.url("/a");
    get(proxy.address, &url, &[]).await;
    assert_eq!(get(proxy.address, &url, &[]).await.text(), "old");
    proxy.wait_for(|stats| stats.invalidations == 1).await;
    let reply = get(proxy.address, &url, &[]).await;
    assert_eq!((reply.status, reply.text().as_str()), (503, "down"));
}

/// Responses with a status code of no meaning are passed on.
#[tokio::test]
async fn unknown_status_is_not_stored() {
    let origin = TestOrigin::start().await;
    for status in ["600", "777", "999"] {
        let path = format!("/{status}");
        origin.on(&path, OriginScript::response(&format!("{status} Odd"), &["cache-control: max-age=60"], b"odd"));
        let proxy = TestProxy::reverse(origin.address).await;
        let before = origin.count();
        for count in 1..=4 {
            let reply = get(proxy.address, &path, &[]).await;
            assert_eq!((reply.status.to_string().as_str(), reply.text().as_str()), (status, "odd"));
            assert_eq!(origin.count() - before, count, "{}", reply.cache_status());
        }
    }
    // A status above 599 counts as an error of the origin: the stored response stays.
    origin.on("/a", stale("", b"hello")).on("/a", OriginScript::response("999 Odd", &[], b"odd"));
    origin.on("/a", OriginScript::raw(b"HTTP/1.1 304 Not Modified\r\n\r\n"));
    let proxy = TestProxy::reverse(origin.address).await;
    let replies = [get(proxy.address, "/a", &[]).await, get(proxy.address, "/a", &[]).await];
    assert_eq!(replies.map(|reply| reply.status), [200, 999]);
    assert_eq!(get(proxy.address, "/a", &[]).await.text(), "hello");
}

/// With an origin that is known to be failing, stale responses are served at once, and one request asks.
#[tokio::test]
async fn failing_origin_gets_one_probe() {
    let origin = TestOrigin::start().await;
    let proxy = TestProxy::reverse(origin.address).await;
    let paths: Vec<String> = (0..8).map(|number| format!("/{number}")).collect();
    for path in &paths {
        let fresh = b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: 3\r\n\r\nnew";
        origin.on(path, stale("", b"old")).on(path, OriginScript::raw(b"").wait("probe").then(fresh));
        assert_eq!(get(proxy.address, path, &[]).await.status, 200);
    }
    origin.on("/down", OriginScript::raw(b"").close());
    for _ in 0..3 {
        assert_eq!(get(proxy.address, "/down", &[]).await.status, 502);
    }
    let asked = origin.count();
    // Nobody waits for the origin, which does not answer.
    for path in paths.iter().chain(&paths) {
        let reply = get(proxy.address, path, &[]).await;
        assert_eq!((reply.status, reply.text().as_str()), (200, "old"));
        assert_eq!(reply.cache_status(), "nectary; fwd=stale; ttl=-10; detail=stale");
    }
    assert_eq!((origin.count() - asked, proxy.stats().stale), (1, 16));
    // What must be validated still asks, and its answer ends this.
    origin.on("/up", OriginScript::ok(&["cache-control: no-store"], b"up"));
    assert_eq!(get(proxy.address, "/up", &[]).await.text(), "up");
    origin.open("probe");
    assert_eq!(get(proxy.address, &paths[1], &[]).await.text(), "new");
}

#[tokio::test]
async fn a_probe_finds_the_origin_back() {
    let origin = TestOrigin::start().await;
    let proxy = TestProxy::reverse(origin.address).await;
    let swr = stale(", stale-while-revalidate=60", b"old");
    origin.on("/a", stale("", b"old")).on("/a", OriginScript::raw(b"").close()).on("/b", swr);
    for path in ["/a", "/b"] {
        assert_eq!(get(proxy.address, path, &[]).await.text(), "old");
    }
    for _ in 0..3 {
        assert_eq!(get(proxy.address, "/a", &["cache-control: no-cache"]).await.status, 502);
    }
    let asked = origin.count();
    for _ in 0..5 {
        assert_eq!(get(proxy.address, "/a", &[]).await.text(), "old");
        assert_eq!(get(proxy.address, "/b", &[]).await.text(), "old");
    }
    assert_eq!(origin.count(), asked + 1);
    origin.now("/a", OriginScript::fresh(b"new"));
    let begin = std::time::Instant::now();
    get_until(&proxy, "/a", "new").await;
    assert!(begin.elapsed() < Duration::from_secs(8));
}

/// Whether an unsafe request fails may depend on what its client sends, so it says nothing about other requests.
#[tokio::test]
async fn unsafe_requests_change_no_origins_health() {
    let origin = TestOrigin::start().await;
    origin.on("/broken", OriginScript::raw(b"").close()).on("/unavailable", unavailable());
    let proxy = TestProxy::reverse(origin.address).await;
    for path in ["/a", "/b"] {
        origin.on(path, stale("", b"old")).on(path, OriginScript::fresh(b"new"));
        assert_eq!(get(proxy.address, path, &[]).await.text(), "old");
    }
    let post = async |path: &str| {
        let lines = [&format!("POST {path} HTTP/1.1"), "content-length: 0"];
        TestClient::connect(proxy.address).await.ask(&lines).await.status
    };
    for _ in 0..3 {
        assert_eq!(post("/broken").await, 502);
    }
    assert_eq!(get(proxy.address, "/a", &[]).await.text(), "new", "the origin is asked first");
    for _ in 0..3 {
        assert_eq!(get(proxy.address, "/broken", &[]).await.status, 502);
    }
    assert_eq!(post("/unavailable").await, 503);
    assert_eq!(get(proxy.address, "/b", &[]).await.text(), "old", "the origin still fails");
}

/// An origin that accepts connections may still fail, which the operator has to know.
#[tokio::test]
async fn a_failing_origin_is_reported() {
    let origin = TestOrigin::start().await;
    origin.on("/broken", OriginScript::raw(b"").close()).on("/down", unavailable()).on("/a", OriginScript::fresh(b"x"));
    let proxy = TestProxy::reverse(origin.address).await;
    for (path, last) in [("/broken", "broke the exchange"), ("/down", "it answered 503")] {
        for _ in 0..3 {
            assert_eq!(proxy.reader().origin_failing(), None);
            get(proxy.address, path, &[]).await;
        }
        let failing = proxy.reader().origin_failing().expect("failing");
        assert!(failing.failures == 3 && failing.last.contains(last), "{failing:?}");
        assert_eq!(proxy.reader().origin_down(), None, "it accepts connections");
        get(proxy.address, "/a", &["cache-control: no-cache"]).await;
        assert_eq!(proxy.reader().origin_failing(), None);
    }
}

/// Errors by status count like broken exchanges, but allow less: what only an unreachable origin excuses is not served.
#[tokio::test]
async fn error_responses_mark_origin_failing() {
    let origin = TestOrigin::start().await;
    let proxy = TestProxy::reverse(origin.address).await;
    let fresh = OriginScript::fresh(b"new").bytes();
    origin.on("/a", stale(", stale-if-error=60", b"old")).on("/a", OriginScript::raw(b"").wait("probe").then(&fresh));
    origin.on("/b", stale("", b"old")).on("/b", OriginScript::fresh(b"new")).on("/down", unavailable());
    for path in ["/a", "/b"] {
        assert_eq!(get(proxy.address, path, &[]).await.text(), "old");
    }
    for _ in 0..3 {
        assert_eq!(get(proxy.address, "/down", &[]).await.status, 503);
    }
    for _ in 0..2 {
        assert_eq!(get(proxy.address, "/a", &[]).await.text(), "old", "nobody waits for the origin");
    }
    assert_eq!(get(proxy.address, "/b", &[]).await.text(), "new", "this has no stale-if-error");
    origin.open("probe");
}

/// A probe that gets no answer goes on alone: the origin gets no second one beside it.
#[tokio::test]
async fn silent_probe_stays_alone() {
    let origin = TestOrigin::start().await;
    let url = Some(format!("http://{}", origin.address).parse().expect("an origin"));
    let mut options = ProxyOptions { origin: url, ..options() };
    options.limits.drain_timeout = Duration::from_millis(100);
    let proxy = TestProxy::start(options).await;
    origin.on("/down", OriginScript::raw(b"").close());
    for path in ["/a", "/b", "/c"] {
        origin.on(path, stale("", b"old")).on(path, OriginScript::raw(b"").hang());
        assert_eq!(get(proxy.address, path, &[]).await.text(), "old");
    }
    for _ in 0..3 {
        assert_eq!(get(proxy.address, "/down", &[]).await.status, 502);
    }
    let asked = origin.count();
    for path in ["/a", "/b", "/c"] {
        assert_eq!(get(proxy.address, path, &[]).await.text(), "old");
        // Longer than the pause between two probes.
        tokio::time::sleep(Duration::from_millis(if path == "/a" { 1100 } else { 0 })).await;
    }
    assert_eq!(origin.count(), asked + 1);
}

/// A response that is refused is an error of the origin, which does not excuse what only an unreachable one does.
#[tokio::test]
async fn invalid_response_is_origin_error() {
    let origin = TestOrigin::start().await;
    let invalid = OriginScript::raw(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab");
    let proxy = TestProxy::forward().await;
    for (path, more, expected) in [("/a", "", (502, false)), ("/b", ", stale-if-error=60", (200, true))] {
        origin.on(path, stale(more, b"old")).on(path, invalid.clone());
        assert_eq!(get(proxy.address, &origin.url(path), &[]).await.text(), "old");
        let reply = get(proxy.address, &origin.url(path), &[]).await;
        assert_eq!((reply.status, reply.text() == "old"), expected, "{path}");
    }
}

/// A request that was never sent says the same about its origin, whatever its method.
#[tokio::test]
async fn unsafe_requests_that_cannot_connect_count() {
    let proxy = TestProxy::reverse(std::net::SocketAddr::from(([127, 0, 0, 1], 1))).await;
    for _ in 0..3 {
        let reply = TestClient::connect(proxy.address).await.ask(&["POST /a HTTP/1.1", "content-length: 0"]).await;
        assert_eq!(reply.status, 502);
    }
    assert_eq!(proxy.reader().origin_failing().map(|failing| failing.failures), Some(3));
}
