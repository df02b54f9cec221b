//! Cookies that a route ignores select no copy and reach no origin; those in its key have copies of their own.

use nectary_config::{ForwardConfig, LocatedValue, NameFilter, NamePattern, ProxyConfig, RouteConfig, RouteRules};

use crate::common::http2::Http2Client;
use crate::common::sites::{at, config, configured, with_rule};
use crate::common::*;

fn names(texts: &[&str]) -> Vec<LocatedValue<NamePattern>> {
    let name = |text: &&str| match text.strip_suffix('*') {
        Some(begin) => at(NamePattern::Prefix(begin.to_owned())),
        None => at(NamePattern::Exact((*text).to_owned())),
    };
    texts.iter().map(name).collect()
}

fn ignore(route: &mut RouteConfig, texts: &[&str]) {
    route.rules.key.cookies = Some(at(NameFilter::Ignore(names(texts))));
}

fn keep(route: &mut RouteConfig, texts: &[&str]) {
    route.rules.key.cookies = Some(at(NameFilter::Keep(names(texts))));
}

/// A response that is fresh for a minute and varies by the cookies.
fn varying(body: &[u8]) -> OriginScript {
    OriginScript::ok(&["cache-control: max-age=60", "vary: Cookie", "etag: \"x\""], body)
}

/// Sends a GET with these lines of `Cookie`.
async fn ask(proxy: &TestProxy, path: &str, cookies: &[&str]) -> ClientReply {
    let cookies: Vec<String> = cookies.iter().map(|cookie| format!("cookie: {cookie}")).collect();
    let lines: Vec<&str> = std::iter::once("host: a").chain(cookies.iter().map(String::as_str)).collect();
    get(proxy.address, path, &lines).await
}

/// The `Cookie` of each request that an origin got.
fn cookies_got(origin: &TestOrigin) -> Vec<String> {
    origin.got().iter().map(|got| got.header("cookie")).collect()
}

#[tokio::test]
async fn ignored_cookies_select_no_copy() {
    let origin = TestOrigin::start().await;
    origin.on("/x", varying(b"hello")).on("/plain/x", varying(b"hello"));
    let proxy = with_rule(&origin, |route| ignore(route, &["_ga*"])).await;
    let table: &[(&[&str], bool)] = &[
        (&["_ga=1; session=s"], false),
        (&["session=s;_gat_x=2"], true),
        (&["_ga=3", "session=s"], true),
        (&["_ga=1; session=t"], false),
        (&["_ga=4"], false),
        (&[], true),
    ];
    for (cookies, is_hit) in table {
        let reply = ask(&proxy, "/x", cookies).await;
        assert_eq!((reply.text().as_str(), reply.is_hit()), ("hello", *is_hit), "{cookies:?}");
    }
    let session = ["host: a", "cookie: _ga=9; session=s"];
    let part = get(proxy.address, "/x", &[&session[..], &["range: bytes=0-1"]].concat()).await;
    assert_eq!((part.status, part.text().as_str(), part.is_hit()), (206, "he", true));
    let known = get(proxy.address, "/x", &[&session[..], &["if-none-match: \"x\""]].concat()).await;
    assert_eq!((known.status, known.is_hit()), (304, true));
    assert_eq!(cookies_got(&origin), ["session=s", "session=t", ""]);
    // Without the rule each client has a separate copy.
    for cookie in ["_ga=1;session=s", "_ga=2;session=s"] {
        assert!(!ask(&proxy, "/plain/x", &[cookie]).await.is_hit());
        assert_eq!(cookies_got(&origin).last().map(String::as_str), Some(cookie));
    }
}

#[tokio::test]
async fn only_kept_cookies_reach_origins() {
    let origin = TestOrigin::start().await;
    origin.on("/x", varying(b"hello"));
    let proxy = with_rule(&origin, |route| keep(route, &["session"])).await;
    assert!(!ask(&proxy, "/x", &["a=1; session=s; b"]).await.is_hit());
    assert!(ask(&proxy, "/x", &["session=s; Session=t"]).await.is_hit());
    let none = with_rule(&origin, |route| keep(route, &[])).await;
    assert!(!ask(&none, "/x", &["a=1; session=s"]).await.is_hit());
    for cookies in [&["a=2"][..], &["=", ";;", "\"a"], &[]] {
        assert!(ask(&none, "/x", cookies).await.is_hit(), "{cookies:?}");
    }
    assert_eq!(cookies_got(&origin), ["session=s", ""]);
}

#[tokio::test]
async fn forward_proxy_ignores_cookies_too() {
    let origin = TestOrigin::start().await;
    origin.on("/x", varying(b"hello"));
    let mut rules = RouteRules::default();
    rules.key.cookies = Some(at(NameFilter::Ignore(names(&["_ga*"]))));
    let forward = ForwardConfig { rules, ..ForwardConfig::default() };
    let proxy = configured(ProxyConfig { forward: Some(at(forward)), ..config(Vec::new(), Vec::new()) }).await;
    for (cookie, is_hit) in [("cookie: _ga=1; session=s", false), ("cookie: session=s; _ga=2", true)] {
        assert_eq!(get(proxy.address, &origin.url("/x"), &[cookie]).await.is_hit(), is_hit, "{cookie}");
    }
    assert_eq!(cookies_got(&origin), ["session=s"]);
}

#[tokio::test]
async fn unsafe_and_passed_requests_keep_cookies() {
    let origin = TestOrigin::start().await;
    origin.on("/x", varying(b"hello"));
    let proxy = with_rule(&origin, |route| ignore(route, &["*"])).await;
    let mut client = TestClient::connect(proxy.address).await;
    client.ask(&["POST /x HTTP/1.1", "host: a", "content-length: 0", "cookie: a=1;b=2"]).await;
    client.ask(&["OPTIONS /x HTTP/1.1", "host: a", "cookie: a=1;b=2"]).await;
    let passing = with_rule(&origin, |route| {
        route.rules.pass = Some(at(true));
        ignore(route, &["*"]);
    })
    .await;
    ask(&passing, "/x", &["a=1;b=2"]).await;
    assert_eq!(cookies_got(&origin), ["a=1;b=2", "", "a=1;b=2"]);
}

#[tokio::test]
async fn keyed_cookies_have_own_copies() {
    let origin = TestOrigin::start().await;
    for body in [&b"german"[..], b"french", b"none", b"empty"] {
        origin.on("/x", OriginScript::fresh(body));
    }
    let proxy = with_rule(&origin, |route| route.rules.key.cookies_key = vec![at("language".to_owned())]).await;
    let first: [(&[&str], &str); 4] =
        [(&["language=de; a=1"], "german"), (&["language=fr"], "french"), (&[], "none"), (&["language="], "empty")];
    for (cookies, body) in first {
        let reply = ask(&proxy, "/x", cookies).await;
        assert_eq!((reply.text().as_str(), reply.is_hit()), (body, false), "{cookies:?}");
    }
    let again: [(&[&str], &str); 6] = [
        (&["a=2; b=\"x\"; language=de"], "german"),
        (&["a=2", "language=fr"], "french"),
        (&["a=2; lang=de"], "none"),
        (&[], "none"),
        (&["b;language=;a"], "empty"),
        (&["language=de"], "german"),
    ];
    for (cookies, body) in again {
        let reply = ask(&proxy, "/x", cookies).await;
        assert_eq!((reply.text().as_str(), reply.is_hit()), (body, true), "{cookies:?}");
    }
    assert_eq!(cookies_got(&origin)[0], "language=de; a=1");
    // Some origins take these for the same cookie, and others do not.
    for cookie in ["Language=fr", "language =fr", "language=de; language=fr"] {
        assert!(!ask(&proxy, "/x", &[cookie]).await.is_hit(), "{cookie}");
    }
    // A header of a client is not mistaken for the cookie.
    let named = get(proxy.address, "/x", &["host: a", "cookie!language: =de"]).await;
    assert_eq!((named.text().as_str(), named.is_hit()), ("none", true));
    let mut client = TestClient::connect(proxy.address).await;
    assert_eq!(client.ask(&["PURGE /x HTTP/1.1", "host: a", AUTHORIZATION]).await.status, 200);
    for (cookies, _) in first {
        assert!(!ask(&proxy, "/x", cookies).await.is_hit(), "{cookies:?}");
    }
}

#[tokio::test]
async fn cookies_split_by_http2_are_joined() {
    let origin = TestOrigin::start().await;
    origin.on("/x", OriginScript::fresh(b"hello"));
    let proxy = with_rule(&origin, |route| {
        keep(route, &["language", "session"]);
        route.rules.key.cookies_key = vec![at("language".to_owned())];
    })
    .await;
    let mut client = Http2Client::plain(proxy.address).await;
    let split = [("cookie", "_ga=1"), ("cookie", "session=s"), ("cookie", "language=de")];
    assert!(!client.ask("GET", "http://a/x", &split).await.is_hit());
    assert_eq!(cookies_got(&origin), ["session=s; language=de"]);
    assert!(ask(&proxy, "/x", &["language=de; _ga=2"]).await.is_hit());
    assert!(ask(&proxy, "/x", &["_ga=2", "language=de"]).await.is_hit());
    assert!(client.ask("GET", "http://a/x", &split[2..]).await.is_hit());
    assert!(!client.ask("GET", "http://a/x", &split[..2]).await.is_hit());
}

#[tokio::test]
async fn validation_in_background_has_clean_cookies() {
    let origin = TestOrigin::start().await;
    let lines = ["cache-control: max-age=10, stale-while-revalidate=60", "age: 20", "etag: \"x\"", "vary: cookie"];
    origin.on("/x", OriginScript::ok(&lines, b"old")).on("/x", varying(b"new"));
    let proxy = with_rule(&origin, |route| ignore(route, &["_ga*"])).await;
    assert_eq!(ask(&proxy, "/x", &["_ga=1; session=s"]).await.text(), "old");
    let reply = ask(&proxy, "/x", &["_ga=2; session=s"]).await;
    assert_eq!((reply.text().as_str(), reply.cache_status().as_str()), ("old", "nectary; hit; ttl=-10"));
    origin.wait_for(2).await;
    let got = &origin.got()[1];
    assert_eq!((got.header("cookie").as_str(), got.header("if-none-match").as_str()), ("session=s", "\"x\""));
    while ask(&proxy, "/x", &["_ga=3; session=s"]).await.text() != "new" {
        tokio::task::yield_now().await;
    }
    assert!(ask(&proxy, "/x", &["session=s"]).await.is_hit());
    assert_eq!(origin.count(), 2);
}
