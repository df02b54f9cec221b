//! Tests of purges over HTTP, and of the pages for operators: by default nobody may purge, not even a client on the
//! same machine.

use nectary_proxy::{AdminOptions, ProxyOptions};

use crate::common::*;

/// Starts a proxy and lets it store the path `/a` of an origin.
async fn holding(origin: &TestOrigin, admin: AdminOptions) -> TestProxy {
    origin.on("/a", OriginScript::fresh(b"x"));
    let proxy = TestProxy::start(ProxyOptions { admin, ..options() }).await;
    get(proxy.address, &origin.url("/a"), &[]).await;
    proxy
}

/// Options with a listener for administration and without a token.
fn listener() -> AdminOptions {
    AdminOptions { listen: vec!["127.0.0.1:0".parse().expect("an address")], ..AdminOptions::default() }
}

async fn purge(to: std::net::SocketAddr, origin: &TestOrigin, headers: &[&str]) -> ClientReply {
    let line = format!("PURGE {} HTTP/1.1", origin.url("/a"));
    let reply = TestClient::connect(to).await.ask(&[&[line.as_str()], headers].concat()).await;
    assert_eq!(reply.header("connection") == "close", reply.status != 200, "a refusal ends the connection");
    reply
}

async fn is_hit(proxy: &TestProxy, origin: &TestOrigin) -> bool {
    get(proxy.address, &origin.url("/a"), &[]).await.is_hit()
}

/// The answer says what to do.
#[tokio::test]
async fn http_purge_refused_by_default() {
    let origin = TestOrigin::start().await;
    let proxy = holding(&origin, AdminOptions::default()).await;
    for headers in [&[][..], &["x-forwarded-for: 192.0.2.1"], &[AUTHORIZATION], &["surrogate-key: a"]] {
        let reply = purge(proxy.address, &origin, headers).await;
        assert_eq!((reply.status, reply.cache_status().as_str()), (405, "nectary; detail=purge-off"));
        assert!(reply.text().contains("--admin-listen") && reply.text().contains("--admin-token-file"));
        assert!(reply.header("allow").contains("GET") && !reply.header("allow").contains("PURGE"));
    }
    assert!(is_hit(&proxy, &origin).await);
    assert_eq!((proxy.stats().purges, proxy.stats().purges_refused), (0, 4));
}

/// The operator can allow purges that another proxy relays.
#[tokio::test]
async fn relayed_purge_refused_by_default() {
    let origin = TestOrigin::start().await;
    let relays = [
        "forwarded: for=192.0.2.1",
        "x-forwarded-for: 192.0.2.1",
        "x-forwarded-proto: https",
        "x-forwarded-host: h",
        "x-real-ip: 192.0.2.1",
        "via: 1.1 terminator",
        "via:",
    ];
    let refusing = holding(&origin, AdminOptions { token: Some(token()), ..listener() }).await;
    for relay in relays {
        for address in [refusing.address, refusing.admin_address.expect("one")] {
            let reply = purge(address, &origin, &[AUTHORIZATION, relay]).await;
            assert_eq!((reply.status, reply.cache_status().as_str()), (403, "nectary; detail=purge-relayed"));
            assert!(reply.text().contains(relay.split(':').next().expect("a name")), "{}", reply.text());
            assert!(reply.text().contains("--admin-relayed"));
        }
    }
    assert!(is_hit(&refusing, &origin).await);
    let allowing = holding(&origin, AdminOptions { token: Some(token()), relayed: true, ..listener() }).await;
    for relay in relays {
        assert_eq!(purge(allowing.address, &origin, &[relay]).await.status, 401, "the token is needed all the same");
        assert_eq!(purge(allowing.address, &origin, &[AUTHORIZATION, relay]).await.status, 200, "{relay}");
        assert!(!is_hit(&allowing, &origin).await && is_hit(&allowing, &origin).await);
    }
}

#[tokio::test]
async fn token_purges_on_every_address() {
    let origin = TestOrigin::start().await;
    let proxy = holding(&origin, AdminOptions { token: Some(token()), ..listener() }).await;
    let addresses = [proxy.address, proxy.admin_address.expect("one")];
    for headers in [
        &[][..],
        &["authorization: Bearer a-token-for-testt"],
        &["authorization: Bearer a-token-for-test"],
        &["authorization: Basic a-token-for-tests"],
        &[AUTHORIZATION, AUTHORIZATION],
        &["proxy-authorization: Bearer a-token-for-tests"],
    ] {
        for address in addresses {
            let reply = purge(address, &origin, headers).await;
            assert_eq!((reply.status, reply.header("www-authenticate").as_str()), (401, "Bearer realm=\"nectary\""));
            assert!(!reply.text().contains("a-token"), "{}", reply.text());
        }
    }
    assert!(is_hit(&proxy, &origin).await);
    for address in addresses {
        assert_eq!(purge(address, &origin, &[AUTHORIZATION]).await.status, 200);
        assert!(!is_hit(&proxy, &origin).await && is_hit(&proxy, &origin).await);
    }
    assert!(origin.got().iter().all(|got| got.header("authorization").is_empty()));
}

#[tokio::test]
async fn admin_address_serves_only_purges() {
    let origin = TestOrigin::start().await;
    let proxy = holding(&origin, listener()).await;
    let admin = proxy.admin_address.expect("one");
    let own = origin.url("/a");
    for line in ["GET", "HEAD", "POST", "OPTIONS"].map(|method| format!("{method} {own} HTTP/1.1")) {
        let reply = TestClient::connect(admin).await.ask(&[&line]).await;
        assert_eq!((reply.status, reply.header("allow").as_str()), (405, "PURGE"), "{line}");
    }
    let reply = TestClient::connect(admin).await.ask(&[&format!("CONNECT {} HTTP/1.1", origin.address)]).await;
    assert_eq!(reply.status, 405);
    assert_eq!((origin.count(), purge(proxy.address, &origin, &[]).await.status), (1, 405));
    assert_eq!(purge(admin, &origin, &[]).await.status, 200, "without a token, as none was given");
    assert!(!is_hit(&proxy, &origin).await);
    let reverse = TestProxy::start(ProxyOptions {
        origin: Some(format!("http://{}", origin.address).parse().expect("an origin")),
        admin: listener(),
        ..options()
    })
    .await;
    get(reverse.address, "/a", &[]).await;
    let admin = reverse.admin_address.expect("one");
    assert_eq!(get(admin, "/a", &[]).await.status, 405, "not even what is in memory");
    assert!(get(reverse.address, "/a", &[]).await.is_hit());
    assert_eq!(TestClient::connect(admin).await.ask(&["PURGE /a HTTP/1.1"]).await.status, 200);
    assert!(!get(reverse.address, "/a", &[]).await.is_hit());
}

#[tokio::test]
async fn pages_are_for_administration_alone() {
    use nectary_proxy::{AdminAnswer, AdminPage, AdminPages};
    let pages = AdminPages(std::sync::Arc::new(|page| AdminAnswer {
        is_good: page != AdminPage::Ready,
        content_type: "text/plain",
        text: format!("{page:?}"),
    }));
    let origin = TestOrigin::start().await;
    let open = holding(&origin, AdminOptions { pages: Some(pages.clone()), ..listener() }).await;
    let address = open.admin_address.expect("one");
    for (path, status, text) in
        [("/metrics", 200, "Metrics\n"), ("/healthz", 200, "Health\n"), ("/readyz", 503, "Ready\n")]
    {
        let reply = get(address, path, &["host: localhost"]).await;
        assert_eq!((reply.status, reply.text().as_str()), (status, text));
        assert_eq!(reply.header("content-type"), "text/plain");
        let reply = get(open.address, path, &[]).await;
        assert_eq!(reply.status, 400, "it is a forward proxy, and serves no pages");
        let reply = TestClient::connect(address).await.ask(&[&format!("POST {path} HTTP/1.1")]).await;
        assert_eq!((reply.status, reply.cache_status().as_str()), (405, "nectary; detail=admin-only"));
    }
    assert_eq!(get(address, "/metric", &[]).await.status, 405);
    let bare = TestClient::connect(address).await.ask(&["HEAD /metrics HTTP/1.1", "host: localhost"]).await;
    assert_eq!((bare.status, bare.header("content-length").as_str()), (200, "8"));
    let reply = TestClient::connect(address).await.ask(&["POST /metrics HTTP/1.1"]).await;
    assert_eq!(reply.header("allow"), "GET, HEAD, PURGE");
    // Who balances load needs no token.
    let closed = holding(&origin, AdminOptions { pages: Some(pages), token: Some(token()), ..listener() }).await;
    let address = closed.admin_address.expect("one");
    assert_eq!(get(address, "/metrics", &[]).await.status, 401);
    assert_eq!(get(address, "/metrics", &[AUTHORIZATION]).await.status, 200);
    assert_eq!((get(address, "/healthz", &[]).await.status, get(address, "/readyz", &[]).await.status), (200, 503));
}

/// A page of the web can make its own name mean this machine, and then read what it gets here.
#[tokio::test]
async fn browsers_see_and_purge_nothing() {
    use nectary_proxy::{AdminAnswer, AdminPage, AdminPages};
    let pages = AdminPages(std::sync::Arc::new(|page| AdminAnswer {
        is_good: page != AdminPage::Ready,
        content_type: "text/plain",
        text: "state\nproblem".into(),
    }));
    let origin = TestOrigin::start().await;
    let open = holding(&origin, AdminOptions { pages: Some(pages.clone()), ..listener() }).await;
    let address = open.admin_address.expect("one");
    for host in ["localhost", "LocalHost:8090", "127.0.0.1:8090", "[::1]:8090", "192.0.2.1"] {
        let host = format!("host: {host}");
        assert_eq!(get(address, "/metrics", &[&host]).await.text(), "state\nproblem\n", "{host}");
        assert_eq!(get(address, "/readyz", &[&host]).await.text(), "state\nproblem\n", "{host}");
    }
    for host in ["evil.test", "localhost.evil.test", "127.0.0.1.evil.test:8090", "xlocalhost"] {
        let host = format!("host: {host}");
        let reply = get(address, "/metrics", &[&host]).await;
        assert_eq!((reply.status, reply.cache_status().as_str()), (403, "nectary; detail=admin-host"), "{host}");
        let reply = get(address, "/readyz", &[&host]).await;
        assert_eq!((reply.status, reply.text().as_str()), (503, "state\n"), "{host}");
    }
    let reply = get(address, "http://evil.test/metrics", &["host: localhost"]).await;
    assert_eq!(reply.status, 403, "the target counts more than Host");
    let reply = purge(address, &origin, &["origin: http://evil.test:8090"]).await;
    assert_eq!((reply.status, reply.cache_status().as_str()), (403, "nectary; detail=purge-browser"));
    assert!(is_hit(&open, &origin).await);
    // A token is what a page of the web does not have.
    let closed = holding(&origin, AdminOptions { pages: Some(pages), token: Some(token()), ..listener() }).await;
    let address = closed.admin_address.expect("one");
    assert_eq!(get(address, "/metrics", &["host: evil.test", AUTHORIZATION]).await.status, 200);
    assert_eq!(get(address, "/readyz", &[]).await.text(), "state\n", "who has no token learns no more");
    assert_eq!(get(address, "/readyz", &[AUTHORIZATION]).await.text(), "state\nproblem\n");
    assert_eq!(purge(address, &origin, &["origin: http://own.test", AUTHORIZATION]).await.status, 200);
}

/// Pages that say their own name.
fn named_pages() -> Option<nectary_proxy::AdminPages> {
    use nectary_proxy::{AdminAnswer, AdminPages};
    Some(AdminPages(std::sync::Arc::new(|page| AdminAnswer {
        is_good: true,
        content_type: "text/html; charset=utf-8",
        text: format!("<p>{page:?}</p>\nmore"),
    })))
}

/// The page itself is the same everywhere. What it shows needs what the metrics need.
#[tokio::test]
async fn operators_page_is_open_without_figures() {
    let origin = TestOrigin::start().await;
    let closed = holding(&origin, AdminOptions { pages: named_pages(), token: Some(token()), ..listener() }).await;
    let open = holding(&origin, AdminOptions { pages: named_pages(), ..listener() }).await;
    let (closed, open) = (closed.admin_address.expect("one"), open.admin_address.expect("one"));
    let page = "<p>Operator</p>\nmore\n";
    for address in [closed, open] {
        for host in ["host: localhost", "host: evil.test"] {
            assert_eq!(get(address, "/", &[host]).await.text(), page);
            assert_eq!(get(address, "/?x=1", &[host]).await.text(), page);
            for path in ["/page.css", "/page.js", "/page.svg"] {
                let reply = get(address, path, &[host]).await;
                assert!(reply.status == 200 && reply.text().ends_with("more\n"), "{path}: {}", reply.text());
            }
        }
        let bare = TestClient::connect(address).await.ask(&["HEAD / HTTP/1.1", "host: localhost"]).await;
        assert_eq!((bare.status, bare.header("content-length")), (200, page.len().to_string()));
        let reply = TestClient::connect(address).await.ask(&["POST / HTTP/1.1"]).await;
        assert_eq!((reply.status, reply.header("allow").as_str()), (405, "GET, HEAD, PURGE"));
        let reply = get(address, "/page.html", &[]).await;
        assert_eq!((reply.status, reply.cache_status().as_str()), (405, "nectary; detail=admin-only"));
        for served in ["PURGE", "/purge", "GET of / ", "/status.json", "/metrics", "/healthz", "/readyz"] {
            assert!(reply.text().contains(served), "{}", reply.text());
        }
    }
    let reply = get(closed, "/status.json", &[]).await;
    assert_eq!((reply.status, reply.cache_status().as_str()), (401, "nectary; detail=status-token"));
    assert_eq!(reply.header("www-authenticate"), "Bearer realm=\"nectary\"");
    assert_eq!(get(closed, "/status.json", &[AUTHORIZATION, "host: evil.test"]).await.status, 200);
    assert_eq!(get(open, "/status.json", &["host: localhost"]).await.text(), "<p>Status</p>\nmore\n");
    let reply = get(open, "/status.json", &["host: evil.test"]).await;
    assert_eq!((reply.status, reply.cache_status().as_str()), (403, "nectary; detail=admin-host"));
}

#[tokio::test]
async fn admin_pages_send_strict_browser_headers() {
    let origin = TestOrigin::start().await;
    let closed = holding(&origin, AdminOptions { pages: named_pages(), token: Some(token()), ..listener() }).await;
    let address = closed.admin_address.expect("one");
    for path in ["/", "/page.css", "/page.js", "/page.svg", "/status.json", "/metrics", "/healthz", "/readyz"] {
        let reply = get(address, path, &[]).await;
        let policy = reply.header("content-security-policy");
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self'; ") && !policy.contains("unsafe"),
            "{policy}"
        );
        assert!(policy.contains("frame-ancestors 'none'") && policy.contains("require-trusted-types-for 'script'"));
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-store"),
            ("cross-origin-resource-policy", "same-origin"),
        ] {
            assert_eq!(reply.header(name), value, "{path}: {name}");
        }
    }
}

/// Without a token the browser is believed about the page that sends a purge, if that page is the one served here.
#[tokio::test]
async fn own_page_purges_and_no_other() {
    let origin = TestOrigin::start().await;
    let proxy = holding(&origin, AdminOptions { pages: named_pages(), ..listener() }).await;
    let admin = proxy.admin_address.expect("one");
    let all = r#"{"all": true}"#;
    let other_port = format!("origin: http://127.0.0.1:{}", admin.port() ^ 1);
    let (secure, own) = (format!("origin: https://{admin}"), format!("origin: http://{admin}"));
    for wrong in
        ["origin: http://evil.test", "origin: null", "origin:", "origin: http://127.0.0.1", &other_port, &secure]
    {
        let reply = purge_by_body(admin, all, &[wrong]).await;
        assert_eq!((reply.status, reply.cache_status().as_str()), (403, "nectary; detail=purge-browser"), "{wrong}");
    }
    assert_eq!(purge_by_body(admin, all, &[&own, &own]).await.status, 403, "two origins");
    for host in ["evil.test", "localhost.evil.test:8090"] {
        let (host, origin) = (format!("host: {host}"), format!("origin: http://{host}"));
        let reply =
            TestClient::connect(admin).await.ask(&["POST /purge HTTP/1.1", &host, &origin, "content-length: 0"]).await;
        assert_eq!((reply.status, reply.cache_status().as_str()), (403, "nectary; detail=purge-browser"), "{host}");
    }
    assert!(is_hit(&proxy, &origin).await);
    assert_eq!(purge_by_body(admin, all, &[&own]).await.status, 200);
    assert!(!is_hit(&proxy, &origin).await);
}

/// Hits are not among them; what is not stored is, each time.
#[tokio::test]
async fn urls_that_ask_origins_are_ranked() {
    let origin = TestOrigin::start().await;
    origin.on("/stored", OriginScript::fresh(b"12345"));
    origin.on("/passed", OriginScript::ok(&["cache-control: no-store"], b"x"));
    let proxy = TestProxy::forward().await;
    for _ in 0..3 {
        get(proxy.address, &origin.url("/stored"), &[]).await;
        get(proxy.address, &origin.url("/passed"), &[]).await;
    }
    let row = |name: String, requests, bytes| nectary_proxy::TrafficRow { name, requests, bytes, error_max: 0 };
    let (stored, passed) = (row(origin.url("/stored"), 1, 5), row(origin.url("/passed"), 3, 3));
    let origins = [row(origin.url(""), 4, 8)];
    let mut top = proxy.reader().top_traffic(20);
    // A request counts when it is over, which may be a moment after its client has the answer.
    while top.origins != origins {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        top = proxy.reader().top_traffic(20);
    }
    assert_eq!(top.urls_by_requests, [passed.clone(), stored.clone()]);
    assert_eq!(top.urls_by_bytes, [stored, passed]);
    assert_eq!(proxy.reader().top_traffic(1).urls_by_bytes.len(), 1);
}

/// Sixteen connections are all that addresses for administration have.
#[tokio::test]
async fn idle_watchers_give_up_their_places() {
    let origin = TestOrigin::start().await;
    let proxy = holding(&origin, listener()).await;
    let address = proxy.admin_address.expect("one");
    let mut idle = Vec::new();
    for _ in 0..16 {
        idle.push(TestClient::connect(address).await);
    }
    proxy.wait_for(|stats| stats.connections_open >= 16).await;
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    assert_eq!(get(address, "/metric", &[]).await.status, 405);
    assert_eq!(proxy.stats().displaced_connections, 1);
}

#[tokio::test]
async fn latency_is_counted_by_outcome() {
    let origin = TestOrigin::start().await;
    let proxy = holding(&origin, AdminOptions::default()).await;
    for _ in 0..3 {
        assert!(is_hit(&proxy, &origin).await);
    }
    let of = |result: &str| {
        let all = proxy.reader().latencies();
        let found = all.iter().find(|latency| latency.result == result).expect("one").clone();
        (found.buckets.iter().sum::<u64>(), found.sum_us > 0)
    };
    assert_eq!((of("hit"), of("miss"), of("failed")), ((3, true), (1, true), (0, false)));
}

/// Sends a purge that says in its body what it purges.
async fn purge_by_body(to: std::net::SocketAddr, body: &str, headers: &[&str]) -> ClientReply {
    let mut lines = vec!["POST /purge HTTP/1.1".to_owned(), format!("host: {to}")];
    lines.push(format!("content-length: {}", body.len()));
    lines.extend(headers.iter().map(|line| (*line).to_owned()));
    let mut client = TestClient::connect(to).await;
    client.send(format!("{}\r\n\r\n{body}", lines.join("\r\n")).as_bytes()).await;
    client.reply(false).await
}

#[tokio::test]
async fn a_body_says_what_is_purged() {
    let origin = TestOrigin::start().await;
    let proxy = holding(&origin, listener()).await;
    let admin = proxy.admin_address.expect("one");
    let paths = ["/a/1", "/a/2", "/b/1", "/tagged"];
    for path in &paths[..3] {
        origin.on(path, OriginScript::fresh(b"x"));
    }
    origin.on("/tagged", OriginScript::ok(&["cache-control: max-age=60", "surrogate-key: news"], b"x"));
    let kept = async || {
        let mut kept = Vec::new();
        for path in paths {
            if get(proxy.address, &origin.url(path), &[]).await.is_hit() {
                kept.push(path);
            }
        }
        kept
    };
    kept().await;
    for (body, left) in [
        (format!(r#"{{"prefix": "{}"}}"#, origin.url("/a/")), vec!["/b/1", "/tagged"]),
        (format!(r#"{{"url": "{}"}}"#, origin.url("/b/1")), vec!["/a/1", "/a/2", "/tagged"]),
        (r#"{"tags": ["news", "none"]}"#.to_owned(), vec!["/a/1", "/a/2", "/b/1"]),
        (r#"{"all": true}"#.to_owned(), vec![]),
        (format!(r#"{{"key": "{}"}}"#, origin.url("/a/1")), vec!["/a/2", "/b/1", "/tagged"]),
    ] {
        let reply = purge_by_body(admin, &body, &["accept: application/json"]).await;
        assert_eq!((reply.status, reply.cache_status().as_str()), (200, "nectary; detail=purged"), "{body}");
        assert!(reply.text().starts_with("{\"purged"), "{}", reply.text());
        assert_eq!(kept().await, left, "{body}");
    }
    assert_eq!(proxy.stats().purges, 5);
}

#[tokio::test]
async fn foreign_pages_purge_nothing_by_body() {
    let origin = TestOrigin::start().await;
    let proxy = holding(&origin, listener()).await;
    let admin = proxy.admin_address.expect("one");
    let all = r#"{"all": true}"#;
    for header in ["origin: http://evil.test", "sec-fetch-site: cross-site"] {
        assert_eq!(purge_by_body(admin, all, &[header]).await.status, 403, "{header}");
    }
    // The name of a page that has made it mean this machine.
    let mut client = TestClient::connect(admin).await;
    client.send(b"POST /purge HTTP/1.1\r\nhost: evil.test\r\ncontent-length: 13\r\n\r\n{\"all\": true}").await;
    assert_eq!(client.reply(false).await.cache_status(), "nectary; detail=admin-host");
    assert!(is_hit(&proxy, &origin).await);
    assert_eq!(proxy.stats().purges_refused, 3);
    assert_eq!(purge_by_body(admin, all, &["sec-fetch-site: same-origin"]).await.status, 200);
}

#[tokio::test]
async fn unclear_purges_purge_nothing() {
    let origin = TestOrigin::start().await;
    let proxy = holding(&origin, AdminOptions { token: Some(token()), ..listener() }).await;
    let admin = proxy.admin_address.expect("one");
    let wrong = ["", "{}", "[]", r#"{"all": false}"#, r#"{"url": ""}"#, r#"{"prefix": ""}"#, r#"{"tags": []}"#];
    for body in wrong.into_iter().chain([r#"{"url": "a", "all": true}"#, r#"{"everything": true}"#, "\u{1}"]) {
        let reply = purge_by_body(admin, body, &[AUTHORIZATION]).await;
        assert_eq!(reply.status, 400, "{body}");
    }
    for body in [r#"{"url": "127.0.0.1/a"}"#, r#"{"prefix": "/"}"#, r#"{"prefix": "http://", "soft": true}"#] {
        let reply = purge_by_body(admin, body, &[AUTHORIZATION]).await;
        assert_eq!((reply.status, reply.cache_status().as_str()), (400, "nectary; detail=purge-unclear"), "{body}");
        assert!(reply.text().contains("begins with http:// or https:// and a host"), "{}", reply.text());
    }
    let mut client = TestClient::connect(admin).await;
    let head = ["POST /purge HTTP/1.1", AUTHORIZATION, "content-length: 2000000"];
    assert_eq!(client.ask(&head).await.status, 400);
    let all = r#"{"all": true}"#;
    assert_eq!(purge_by_body(admin, all, &[]).await.status, 401);
    assert_eq!(purge_by_body(admin, all, &[AUTHORIZATION, "via: 1.1 other"]).await.status, 403);
    // The path is an ordinary one for clients.
    assert_ne!(purge_by_body(proxy.address, all, &[AUTHORIZATION]).await.status, 200);
    assert!(is_hit(&proxy, &origin).await);
}

#[tokio::test]
async fn late_purge_body_is_refused() {
    let origin = TestOrigin::start().await;
    let proxy = holding(&origin, listener()).await;
    let mut idle = TestClient::connect(proxy.address).await;
    let line = format!("GET {} HTTP/1.1", origin.url("/a"));
    assert_eq!(idle.ask(&[&line]).await.status, 200);
    let before = proxy.stats().requests;
    let mut late = TestClient::connect(proxy.admin_address.expect("one")).await;
    late.send(b"POST /purge HTTP/1.1\r\nhost: localhost\r\ncontent-length: 13\r\n\r\n{\"all\"").await;
    proxy.wait_for(|stats| stats.requests > before).await;
    // The worker leaves the store before it ends its idle connections.
    proxy.shutdown.request();
    assert_eq!(idle.rest().await, b"");
    late.send(b": true}").await;
    let reply = late.reply(false).await;
    assert_eq!((reply.status, reply.cache_status().as_str()), (503, "nectary; detail=stopping"));
}
