//! Each rule of a route has its effect, and only on that route.

use std::sync::Arc;
use std::time::Duration;

use nectary_config::{AccessRules, HeaderEdits, HeaderValue, IpNetwork, NameFilter, NamePattern, ProxyConfig};
use nectary_proxy::check_config;

use crate::common::sites::{at, with_rule, with_rule_config};
use crate::common::*;

async fn ask(proxy: &TestProxy, path: &str) -> ClientReply {
    get(proxy.address, path, &["host: a"]).await
}

#[tokio::test]
async fn what_is_passed_is_not_stored() {
    let origin = TestOrigin::start().await;
    for path in ["/x?y", "/plain/x"] {
        origin.on(path, OriginScript::fresh(b"hello"));
    }
    let proxy = with_rule(&origin, |route| {
        route.rules.pass = Some(at(true));
        route.rules.key.query = Some(at(NameFilter::Keep(Vec::new())));
    })
    .await;
    for _ in 0..3 {
        let reply = ask(&proxy, "/x?y").await;
        assert_eq!((reply.text().as_str(), reply.is_hit()), ("hello", false));
        ask(&proxy, "/plain/x").await;
    }
    assert_eq!(origin.count(), 4, "three and one");
}

/// Ignored parameters are neither in the key nor sent.
#[tokio::test]
async fn ignored_parameters_are_dropped() {
    let origin = TestOrigin::start().await;
    for path in ["/x?a=1", "/x?a=2", "/x", "/plain/x?utm_a=1", "/plain/x?utm_a=2", "/x?utm_a=1"] {
        origin.on(path, OriginScript::fresh(path.as_bytes()));
    }
    let proxy = with_rule(&origin, |route| {
        let names = vec![at(NamePattern::Prefix("utm_".into())), at(NamePattern::Exact("id".into()))];
        route.rules.key.query = Some(at(NameFilter::Ignore(names)));
    })
    .await;
    for (path, body, hit) in [
        ("/x?utm_b=1&a=1&id=5", "/x?a=1", false),
        ("/x?a=1", "/x?a=1", true),
        ("/x?a=1&utm_c", "/x?a=1", true),
        ("/x?id=1", "/x", false),
        ("/x?a=2", "/x?a=2", false),
        ("/plain/x?utm_a=1", "/plain/x?utm_a=1", false),
        ("/plain/x?utm_a=2", "/plain/x?utm_a=2", false),
    ] {
        for more in [&[][..], &["x-other: 1"]] {
            let reply = get(proxy.address, path, &[&["host: a"], more].concat()).await;
            assert_eq!((reply.text().as_str(), reply.is_hit()), (body, hit || !more.is_empty()), "{path}");
        }
    }
    // What changes something is sent as it is, and changes what is stored under the key.
    let mut client = TestClient::connect(proxy.address).await;
    client.ask(&["POST /x?utm_a=1 HTTP/1.1", "host: a", "content-length: 0"]).await;
    assert!(origin.got().last().expect("a request").line.starts_with("POST /x?utm_a=1 "));
    assert!(!ask(&proxy, "/x").await.is_hit());
}

#[tokio::test]
async fn headers_are_changed_on_both_ways() {
    let origin = TestOrigin::start().await;
    let lines = ["cache-control: max-age=60", "server: secret", "x-one: 1", "x-one: 2"];
    origin.on("/x", OriginScript::ok(&lines, b"hello")).on("/plain/x", OriginScript::ok(&lines, b"hello"));
    let set = |name: &str, value: &str| HeaderValue { name: at(name.to_owned()), value: at(value.to_owned()) };
    let proxy = with_rule(&origin, |route| {
        route.request_headers = HeaderEdits {
            set: vec![set("x-token", "t"), set("accept-encoding", "identity")],
            remove: vec![at("cookie".to_owned())],
        };
        route.response_headers = HeaderEdits { set: vec![set("x-one", "new")], remove: vec![at("server".to_owned())] };
    })
    .await;
    let lines = ["host: a", "cookie: c=d", "x-token: evil", "accept-encoding: gzip"];
    for round in 0..3 {
        // The last request is one that could be answered without hyper.
        let lines = if round == 2 { &lines[..1] } else { &lines[..] };
        let reply = get(proxy.address, "/x", lines).await;
        assert_eq!(reply.is_hit(), round > 0);
        assert_eq!((reply.header("x-one").as_str(), reply.header("server").as_str()), ("new", ""));
    }
    let got = origin.got().pop().expect("a request");
    assert_eq!((got.header("x-token").as_str(), got.header("cookie").as_str()), ("t", ""));
    assert_eq!(got.header("accept-encoding"), "identity");
    let reply = get(proxy.address, "/plain/x", &lines).await;
    assert_eq!((reply.header("x-one").as_str(), reply.header("server").as_str()), ("1, 2", "secret"));
    assert_eq!(origin.got().pop().expect("a request").header("cookie"), "c=d");
}

#[tokio::test]
async fn lifetime_depends_on_route_and_status() {
    let origin = TestOrigin::start().await;
    for path in ["/x", "/plain/x"] {
        origin.on(path, OriginScript::ok(&[], b"hello"));
    }
    origin.on("/none", OriginScript::response("404 Not Found", &[], b"none"));
    origin.on("/error", OriginScript::response("500 No", &[], b"error"));
    let proxy = with_rule(&origin, |route| {
        route.rules.lifetimes.default_ttl = Some(at(Duration::from_secs(55)));
        route.rules.lifetimes.status_ttl = vec![(at(404), at(Duration::from_secs(25)))];
        route.rules.tags = vec![at("mine".to_owned())];
    })
    .await;
    for path in ["/x", "/none", "/error", "/plain/x"] {
        ask(&proxy, path).await;
    }
    for (path, ttl) in [("/x", "5"), ("/none", "2")] {
        let reply = ask(&proxy, path).await;
        assert!(reply.cache_status().contains(&format!("hit; ttl={ttl}")), "{path}: {reply:?}");
    }
    assert!(!ask(&proxy, "/error").await.is_hit() && !ask(&proxy, "/plain/x").await.is_hit());
    let mut client = TestClient::connect(proxy.address).await;
    client.ask(&["PURGE / HTTP/1.1", "host: a", "surrogate-key: mine", AUTHORIZATION]).await;
    assert!(!ask(&proxy, "/x").await.is_hit(), "the route's tag is on what it stores");
}

#[tokio::test]
async fn only_admitted_clients_use_a_route() {
    let origin = TestOrigin::start().await;
    for path in ["/x", "/plain/x"] {
        origin.on(path, OriginScript::fresh(b"hello"));
    }
    let network = |text: &str| at(IpNetwork::new(text.parse().expect("an address"), 32).expect("a network"));
    let proxy = with_rule(&origin, |route| {
        route.access = AccessRules { allow: Vec::new(), deny: vec![network("127.0.0.1")] };
    })
    .await;
    for _ in 0..2 {
        let reply = ask(&proxy, "/x").await;
        assert_eq!((reply.status, reply.cache_status().as_str()), (403, "nectary; detail=client-not-allowed"));
    }
    assert_eq!(ask(&proxy, "/plain/x").await.text(), "hello");
    assert_eq!(origin.count(), 1);
}

fn refused(config: ProxyConfig) -> String {
    check_config(&Arc::new(config)).expect_err("refused").to_string()
}

#[tokio::test]
async fn keys_beyond_their_bounds_are_refused() {
    let origin = TestOrigin::start().await;
    let texts = |from: &str, count: usize| (0..count).map(|index| at(format!("{from}{index}"))).collect::<Vec<_>>();
    let with = |headers: usize, cookies: usize| {
        with_rule_config(&origin, |route| {
            route.rules.key.key_headers = texts("x-", headers);
            route.rules.key.cookies_key = texts("c", cookies);
        })
    };
    for (headers, cookies, key) in [(0, 9, "cookies-key"), (9, 0, "key-headers"), (4, 5, "key-headers")] {
        let text = refused(with(headers, cookies));
        assert!(text.contains(&format!("`{key}`: at most 8 headers and cookies")), "{text}");
    }
    assert!(check_config(&Arc::new(with(4, 4))).is_ok());
    let long = with_rule_config(&origin, |route| route.rules.key.cookies_key = vec![at("+".repeat(100))]);
    let text = refused(long);
    assert!(text.contains("`cookies-key`") && text.contains("too long"), "{text}");
}

#[tokio::test]
async fn impossible_keys_are_refused_by_name() {
    let origin = TestOrigin::start().await;
    let mut checked = with_rule_config(&origin, |_| ());
    checked.origins[0].value.tls.ca = Some(at("/no/such/file".into()));
    checked.origins[0].value.retries = Some(at(1));
    let text = refused(checked.clone());
    assert!(text.contains("/no/such/file") && text.contains("no other server"), "{text}");
    assert!(check_config(&Arc::new(with_rule_config(&origin, |_| ()))).is_ok());
}
