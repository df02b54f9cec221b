//! The headers that tell an origin about earlier hops are the same for every method.

use nectary_host::Shutdown;
use nectary_proxy::{Error, ForwardedOptions, OriginOptions, Proxy, ProxyOptions};

use crate::common::*;

const SAID: [&str; 5] = [
    "forwarded: for=192.0.2.1;host=evil;proto=https",
    "x-forwarded-for: 192.0.2.1",
    "x-forwarded-host: evil",
    "x-forwarded-proto: https",
    "x-real-ip: 192.0.2.1",
];
const NAMES: [&str; 5] = ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"];

/// The forwarding headers that an origin gets if the client sends the headers `saying`. They must be the same for each
/// method.
async fn told(origin: &TestOrigin, proxy: &TestProxy, target: &str, saying: &[&str]) -> [String; 5] {
    let mut found = None;
    for method in ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"] {
        let line = format!("{method} {target} HTTP/1.1");
        let lines = [&[line.as_str(), "content-length: 0", "connection: forwarded, x-forwarded-for"], saying].concat();
        TestClient::connect(proxy.address).await.ask(&lines).await;
        let got = origin.got().pop().expect("a request");
        assert!(got.line.starts_with(method), "{}", got.line);
        let now = NAMES.map(|name| got.header(name));
        assert_eq!(*found.get_or_insert(now.clone()), now, "{method}");
    }
    found.expect("requests")
}

async fn reverse(origin: &TestOrigin, forwarded: ForwardedOptions) -> TestProxy {
    TestProxy::start(with_key_headers(origin, forwarded, &[])).await
}

fn with_key_headers(origin: &TestOrigin, forwarded: ForwardedOptions, names: &[&str]) -> ProxyOptions {
    let url = Some(format!("http://{}", origin.address).parse().expect("an origin"));
    let key_headers = names.iter().map(|name| name.parse().expect("a header")).collect();
    ProxyOptions {
        origin: url,
        forwarded,
        origin_rules: OriginOptions { key_headers, ..Default::default() },
        ..options()
    }
}

fn trusting(net: &str) -> ForwardedOptions {
    ForwardedOptions { trusted: vec![net.parse().expect("a net")], is_silent: false }
}

/// What clients claim in these headers is not passed on.
#[tokio::test]
async fn origin_learns_real_client_address() {
    let origin = TestOrigin::start().await;
    let proxy = reverse(&origin, ForwardedOptions::default()).await;
    let own = ["for=127.0.0.1;proto=http", "127.0.0.1", "", "http", ""];
    assert_eq!(told(&origin, &proxy, "/a", &[]).await, own);
    assert_eq!(told(&origin, &proxy, "/a", &SAID).await, own, "this machine is no more believed than others");
    let silent = reverse(&origin, ForwardedOptions { is_silent: true, ..ForwardedOptions::default() }).await;
    assert_eq!(told(&origin, &silent, "/a", &SAID).await, [""; 5]);
}

#[tokio::test]
async fn trusted_front_proxy_headers_continue() {
    let origin = TestOrigin::start().await;
    let net = |text: &str| vec![text.parse().expect("a net")];
    let trusting = ForwardedOptions { trusted: net("127.0.0.0/8"), is_silent: false };
    let proxy = reverse(&origin, trusting).await;
    let expected = ["for=192.0.2.1, for=127.0.0.1;proto=http", "192.0.2.1, 127.0.0.1", "", "http", "192.0.2.1"];
    assert_eq!(told(&origin, &proxy, "/a", &SAID).await, expected);
    let another = reverse(&origin, ForwardedOptions { trusted: net("192.0.2.0/24"), is_silent: false }).await;
    assert_eq!(told(&origin, &another, "/a", &SAID).await[1], "127.0.0.1");
}

#[tokio::test]
async fn forward_proxy_hides_clients() {
    let origin = TestOrigin::start().await;
    let proxy = TestProxy::forward().await;
    assert_eq!(told(&origin, &proxy, &origin.url("/a"), &SAID).await, [""; 5]);
}

/// An origin that builds links from such headers must not be able to store one client's links for others.
#[tokio::test]
async fn forwarded_host_is_not_keyed() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(b"links"));
    let proxy = reverse(&origin, trusting("127.0.0.1")).await;
    let said = [&SAID[..], &["x-forwarded-port: 1", "x-forwarded-prefix: /evil", "x-url-scheme: https"]].concat();
    assert!(!get(proxy.address, "/a", &said).await.is_hit());
    let got = &origin.got()[0];
    for name in ["x-forwarded-host", "x-forwarded-port", "x-forwarded-prefix", "x-url-scheme"] {
        assert_eq!(got.header(name), "", "{name}");
    }
    assert_eq!((got.header("x-forwarded-proto").as_str(), got.header("forwarded").contains("evil")), ("http", false));
    assert!(get(proxy.address, "/a", &[]).await.is_hit());
}

/// A purge removes all copies.
#[tokio::test]
async fn key_header_separates_stored_copies() {
    let origin = TestOrigin::start().await;
    for body in [b"http.", b"https", b"again"] {
        origin.on("/a", OriginScript::fresh(body));
    }
    let names = ["X-Forwarded-Proto", "x-forwarded-host", "X-Forwarded-Proto"];
    let proxy = TestProxy::start(with_key_headers(&origin, trusting("127.0.0.1"), &names)).await;
    let (http, https) = (["x-forwarded-proto: http"], ["x-forwarded-proto: https", "x-forwarded-host: a"]);
    assert_eq!(get(proxy.address, "/a", &http).await.text(), "http.");
    assert_eq!(get(proxy.address, "/a", &https).await.text(), "https");
    let got = &origin.got()[1];
    assert_eq!((got.header("x-forwarded-proto"), got.header("x-forwarded-host")), ("https".into(), "a".into()));
    for (saying, body) in [(&http[..], "http."), (&https, "https")] {
        let reply = get(proxy.address, "/a", saying).await;
        assert!(reply.is_hit() && reply.text() == body, "{reply:?}");
    }
    let mut client = TestClient::connect(proxy.address).await;
    assert!(client.ask(&["PURGE /a HTTP/1.1", AUTHORIZATION]).await.text().starts_with("purged"));
    for saying in [&http[..], &https] {
        assert_eq!(get(proxy.address, "/a", saying).await.text(), "again");
    }
    assert_eq!(origin.count(), 4);
}

/// A client that may not say such a thing must not reach what was stored for those who may.
#[tokio::test]
async fn untrusted_key_header_is_ignored() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(b"hello"));
    let proxy = TestProxy::start(with_key_headers(&origin, trusting("192.0.2.0/24"), &["x-forwarded-user"])).await;
    assert!(!get(proxy.address, "/a", &[]).await.is_hit());
    for user in ["admin", "another"] {
        assert!(get(proxy.address, "/a", &[&format!("x-forwarded-user: {user}")]).await.is_hit(), "{user}");
    }
    assert_eq!(origin.got()[0].header("x-forwarded-user"), "");
    // The same holds if the origin names such a header in `Vary`.
    origin.on("/v", OriginScript::ok(&["cache-control: max-age=60", "vary: x-forwarded-user"], b"hello"));
    let proxy = reverse(&origin, ForwardedOptions::default()).await;
    get(proxy.address, "/v", &["x-forwarded-user: admin"]).await;
    assert!(get(proxy.address, "/v", &["x-forwarded-user: another"]).await.is_hit());
}

#[tokio::test]
async fn new_key_header_replaces_responses() {
    let origin = TestOrigin::start().await;
    for path in ["/a", "/v"] {
        let headers = ["cache-control: max-age=60", if path == "/v" { "vary: accept" } else { "x: y" }];
        origin.on(path, OriginScript::ok(&headers, b"before")).on(path, OriginScript::ok(&headers, b"after."));
    }
    let before = reverse(&origin, ForwardedOptions::default()).await;
    for path in ["/a", "/v"] {
        assert_eq!(get(before.address, path, &[]).await.text(), "before");
        assert!(get(before.address, path, &[]).await.is_hit());
    }
    let (shutdown, rules) = (Shutdown::new(), with_key_headers(&origin, trusting("127.0.0.1"), &["x-forwarded-proto"]));
    let after = Proxy::start(rules, before.store.clone(), shutdown.clone()).expect("a proxy");
    for path in ["/a", "/v"] {
        for is_hit in [false, true] {
            let reply = get(after.addresses()[0], path, &[]).await;
            assert!(reply.is_hit() == is_hit && reply.text() == "after.", "{path}: {reply:?}");
        }
    }
    shutdown.request();
    tokio::task::spawn_blocking(move || after.wait()).await.expect("joined").expect("a good end");
}

#[tokio::test]
async fn too_many_key_headers_fail_start() {
    let origin = TestOrigin::start().await;
    let names: Vec<String> = (0..=nectary_proxy::KEY_HEADERS_MAX).map(|index| format!("x-{index}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let bind = |count| Proxy::bind(with_key_headers(&origin, trusting("127.0.0.1"), &names[..count]));
    assert!(bind(names.len() - 1).is_ok());
    assert!(matches!(bind(names.len()), Err(Error::KeyHeaders { count: 9 })));
}

/// The proxy tells the origin the client's address, which is in no key.
#[tokio::test]
async fn client_address_prevents_sharing() {
    let origin = TestOrigin::start().await;
    for name in ["X-Forwarded-For", "Forwarded"] {
        let path = format!("/{name}");
        origin
            .on(&path, OriginScript::ok(&["cache-control: max-age=60", &format!("vary: {name}")], b"for one address"));
        let proxy = reverse(&origin, ForwardedOptions::default()).await;
        let keyed = TestProxy::start(with_key_headers(&origin, ForwardedOptions::default(), &[name])).await;
        for proxy in [&proxy, &proxy, &keyed, &keyed] {
            assert!(!get(proxy.address, &path, &[]).await.is_hit(), "{name}");
        }
        // An origin that is not told the address answers the same to all.
        let silent = reverse(&origin, ForwardedOptions { is_silent: true, ..ForwardedOptions::default() }).await;
        get(silent.address, &path, &[]).await;
        assert!(get(silent.address, &path, &[]).await.is_hit(), "{name}");
        // The address that a trusted peer names is in the key.
        let trusting = reverse(&origin, trusting("127.0.0.1")).await;
        let said = |number| format!("{name}: {}192.0.2.{number}", if name == "Forwarded" { "for=" } else { "" });
        get(trusting.address, &path, &[&said(1)]).await;
        assert!(get(trusting.address, &path, &[&said(1)]).await.is_hit(), "{name}");
        assert!(!get(trusting.address, &path, &[&said(2)]).await.is_hit(), "{name}");
    }
}
