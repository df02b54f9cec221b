//! Several sites in one proxy: each host has its own routes and its own copies.

use std::net::SocketAddr;

use nectary_config::{HostRule, ListenAddress, ProxyConfig, RedirectConfig, RouteAction};
use nectary_store::KeyRef;

use crate::common::http2::Http2Client;
use crate::common::sites::{at, config, configured, origin, route, site};
use crate::common::*;

/// An address at which nothing listens.
fn nowhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 1))
}

/// Two sites, each with its origin.
fn two(one: &TestOrigin, other: &TestOrigin) -> ProxyConfig {
    config(
        vec![
            site(&["one.example", "www.one.example"], vec![route("/", "one")]),
            site(&["*.two.example"], vec![route("/", "two")]),
        ],
        vec![origin("one", &[one.address]), origin("two", &[other.address])],
    )
}

#[tokio::test]
async fn two_sites_share_nothing() {
    let (one, other) = (TestOrigin::start().await, TestOrigin::start().await);
    one.on("/x", OriginScript::fresh(b"one"));
    other.on("/x", OriginScript::fresh(b"two"));
    let proxy = configured(two(&one, &other)).await;
    for round in 0..2 {
        for (host, body) in [("one.example", "one"), ("A.two.example:81", "two")] {
            let named = format!("host: {host}");
            // Plain requests are answered without hyper, others with it.
            for more in [&[][..], &["x-other: 1"]] {
                let reply = get(proxy.address, "/x", &[&[named.as_str()], more].concat()).await;
                assert_eq!(reply.text(), body, "{host}");
                assert_eq!(reply.is_hit(), round > 0 || !more.is_empty(), "{host}: {reply:?}");
            }
        }
    }
    assert_eq!((one.count(), other.count()), (1, 1));
    // The names of a site share its copies, and what a client writes into its target counts.
    for (target, host) in [("/x", "WWW.one.example"), ("http://one.example:8080/x", "x.two.example")] {
        let reply = get(proxy.address, target, &[&format!("host: {host}")]).await;
        assert!(reply.is_hit() && reply.text() == "one", "{target}: {reply:?}");
    }
    assert_eq!(one.got()[0].header("host"), one.address.to_string());
    assert!(proxy.store.get(KeyRef::new(b"http://one.example/x", b"")).await.is_some());
    assert!(proxy.store.get(KeyRef::new(b"http://*.two.example/x", b"")).await.is_some());
}

#[tokio::test]
async fn unknown_host_is_refused() {
    let (one, other) = (TestOrigin::start().await, TestOrigin::start().await);
    let proxy = configured(two(&one, &other)).await;
    for host in ["three.example", "two.example", "one.example.evil"] {
        let reply = get(proxy.address, "/x", &[&format!("host: {host}")]).await;
        assert_eq!((reply.status, reply.cache_status().as_str()), (404, "nectary; detail=no-site"), "{host}");
    }
    let mut client = Http2Client::plain(proxy.address).await;
    assert_eq!(client.ask("GET", "http://three.example/x", &[]).await.status, 421);
    // Such a request does not end the connection.
    assert_eq!(client.ask("GET", "http://one.example/none", &[]).await.status, 404);
    let mut client = TestClient::connect(proxy.address).await;
    let purged = client.ask(&["PURGE /x HTTP/1.1", "host: three.example", AUTHORIZATION]).await;
    assert_eq!(purged.status, 400);
    assert!(purged.text().starts_with("No site has this host."), "{}", purged.text());
    assert_eq!(other.count(), 0);
}

#[tokio::test]
async fn purge_accepts_any_site_name() {
    let (one, other) = (TestOrigin::start().await, TestOrigin::start().await);
    one.on("/x", OriginScript::ok(&["cache-control: max-age=60", "surrogate-key: a"], b"one"));
    other.on("/x", OriginScript::fresh(b"two"));
    let proxy = configured(two(&one, &other)).await;
    let ask = async |host: &str| get(proxy.address, "/x", &[&format!("host: {host}")]).await;
    ask("one.example").await;
    ask("a.two.example").await;
    let mut client = TestClient::connect(proxy.address).await;
    let purged = client.ask(&["PURGE /x HTTP/1.1", "host: www.one.example", AUTHORIZATION]).await;
    assert_eq!(purged.text(), "purged http://one.example/x\n");
    assert!(!ask("one.example").await.is_hit() && ask("b.two.example").await.is_hit());
    let reopener = proxy.reopener();
    let texts =
        |keys: Vec<Vec<u8>>| keys.into_iter().map(|key| String::from_utf8(key).expect("text")).collect::<Vec<_>>();
    for (url, is_prefix, expected) in [
        ("https://WWW.one.example:8443/x?y", false, "http://one.example/x?y"),
        ("http://b.two.example", false, "http://*.two.example/"),
        ("http://www.one.example/a/", true, "http://one.example/a/"),
        ("http://one", true, "http://one"),
        ("https://www.one.example", true, "http://one.example/"),
        ("http://three.example/x", false, "http://three.example/x"),
        ("http://Three.example:80/X", false, "http://three.example/X"),
        ("HTTP://Three.example:80/X", true, "http://three.example/X"),
        ("http://Three.example:81/", true, "http://three.example:81/"),
        ("http://Thr", true, "http://thr"),
    ] {
        assert_eq!(texts(reopener.keys_of(url, is_prefix)), [expected], "{url}");
    }
    let tagged = client.ask(&["PURGE / HTTP/1.1", "host: anything", "surrogate-key: a", AUTHORIZATION]).await;
    assert_eq!(tagged.status, 200);
    assert!(!ask("one.example").await.is_hit());
}

/// A purge for a host that no site has is made all the same, and its answer says so.
#[tokio::test]
async fn purges_of_unknown_hosts_say_so() {
    let (one, other) = (TestOrigin::start().await, TestOrigin::start().await);
    let mut config = two(&one, &other);
    config.admin.listen = vec![at(ListenAddress::Socket(SocketAddr::from(([127, 0, 0, 1], 0))))];
    let proxy = configured(config).await;
    let ask = async |body: &str, accept: &str| {
        let length = format!("content-length: {}", body.len());
        let mut client = TestClient::connect(proxy.admin_address.expect("one")).await;
        let lines = ["POST /purge HTTP/1.1", "host: localhost", AUTHORIZATION, &length, accept];
        client.send(request(&lines).as_bytes()).await;
        client.send(body.as_bytes()).await;
        let reply = client.reply(false).await;
        assert_eq!((reply.status, reply.cache_status().as_str()), (200, "nectary; detail=purged"), "{body}");
        reply.text().trim().to_owned()
    };
    let (unknown, known) = (r#"{"url": "http://three.example/x"}"#, r#"{"url": "http://www.one.example/x"}"#);
    let json = "accept: application/json";
    assert_eq!(ask(unknown, "accept: */*").await, "purged http://three.example/x; but no site has this host");
    assert_eq!(ask(unknown, json).await, r#"{"note":"no site has this host","purged":"http://three.example/x"}"#);
    assert_eq!(ask(known, json).await, r#"{"purged":"http://www.one.example/x"}"#);
    let (reopener, none) = (proxy.reopener(), Some("no site has this host"));
    for (url, is_prefix, doubt) in [
        ("https://A.two.example:81", false, None),
        ("http://b.two.example/", true, None),
        ("http://one", true, None),
        ("http://three.example", false, none),
        ("http://three.example/a/", true, none),
        ("http://three.ex", true, none),
    ] {
        assert_eq!(reopener.doubt_of(url, is_prefix).as_deref(), doubt, "{url}");
    }
    let (forward, reverse) = (TestProxy::forward().await, TestProxy::reverse(one.address).await);
    assert_eq!(forward.reopener().doubt_of("http://three.example/x", false), None);
    let own = one.url("/");
    for (url, is_prefix) in
        [(own.as_str(), false), (own.as_str(), true), (&own[..own.len() - 1], true), ("http://12", true)]
    {
        assert_eq!(reverse.reopener().doubt_of(url, is_prefix), None, "{url}");
    }
    let doubt = reverse.reopener().doubt_of("http://www.example.org/x", false);
    assert_eq!(doubt, Some(format!("the URLs of this proxy begin with {own}")));
}

#[tokio::test]
async fn host_rule_sets_origin_host() {
    let origins =
        [TestOrigin::start().await, TestOrigin::start().await, TestOrigin::start().await, TestOrigin::start().await];
    let rules =
        [HostRule::Site, HostRule::Client, HostRule::Fixed("Fixed.example:81".to_ascii_lowercase()), HostRule::Own];
    let mut list = Vec::new();
    for (index, (origin, rule)) in origins.iter().zip(rules).enumerate() {
        origin.on("/x", OriginScript::ok(&["cache-control: max-age=60", "location: http://fixed.example:81/y"], b"x"));
        let mut made = crate::common::sites::origin(&format!("o{index}"), &[origin.address]);
        made.host = Some(at(rule));
        list.push(made);
    }
    let sites = (0..4).map(|index| {
        let names = [format!("s{index}.example"), format!("*.s{index}.example")];
        site(&[names[0].as_str(), names[1].as_str()], vec![route("/", &format!("o{index}"))])
    });
    let proxy = configured(config(sites.collect(), list)).await;
    let own = origins[3].address.to_string();
    for (index, sent) in ["s0.example", "a.s1.example:82", "fixed.example:81", own.as_str()].iter().enumerate() {
        let host = format!("host: a.s{index}.example:82");
        let reply = get(proxy.address, "/x", &[&host]).await;
        assert_eq!(origins[index].got()[0].header("host"), *sent);
        assert_eq!(reply.header("location"), if index == 2 { "/y" } else { "http://fixed.example:81/y" });
        assert!(get(proxy.address, "/x", &[&host]).await.is_hit());
        // Only where the client's host is sent is it in the key.
        let other = get(proxy.address, "/x", &[&format!("host: b.s{index}.example")]).await;
        assert_eq!(other.is_hit(), index != 1, "{index}");
    }
    assert!(proxy.store.get(KeyRef::new(b"http://s1.example!a.s1.example:82/x", b"")).await.is_some());
    let keys = proxy.reopener().keys_of("https://a.s1.example:82/x", false);
    assert_eq!(keys, [b"http://s1.example!a.s1.example:82/x".to_vec()]);
}

#[tokio::test]
async fn prefix_purges_keys_of_all_routes() {
    let (named, own) = (TestOrigin::start().await, TestOrigin::start().await);
    named.on("/x", OriginScript::fresh(b"x"));
    own.on("/own/x", OriginScript::fresh(b"x"));
    let mut of_client = origin("c", &[named.address]);
    of_client.host = Some(at(HostRule::Client));
    let routes = vec![route("/", "c"), route("/own/", "o")];
    let mut config =
        config(vec![site(&["m.example", "*.m.example"], routes)], vec![of_client, origin("o", &[own.address])]);
    config.admin.listen = vec![at(ListenAddress::Socket(SocketAddr::from(([127, 0, 0, 1], 0))))];
    let proxy = configured(config).await;
    let ask = async |path: &str| get(proxy.address, path, &["host: a.m.example"]).await;
    for path in ["/x", "/own/x"] {
        ask(path).await;
        assert!(ask(path).await.is_hit(), "{path}");
    }
    let mut keys = proxy.reopener().keys_of("https://a.m.example/", true);
    keys.sort_unstable();
    assert_eq!(keys, [b"http://m.example!a.m.example/".to_vec(), b"http://m.example/".to_vec()]);
    let body = r#"{"prefix": "http://a.m.example/"}"#;
    let length = format!("content-length: {}", body.len());
    let mut client = TestClient::connect(proxy.admin_address.expect("one")).await;
    client.send(request(&["POST /purge HTTP/1.1", "host: localhost", AUTHORIZATION, &length]).as_bytes()).await;
    client.send(body.as_bytes()).await;
    assert_eq!(client.reply(false).await.status, 200);
    for path in ["/x", "/own/x"] {
        assert!(!ask(path).await.is_hit(), "{path}");
    }
}

#[tokio::test]
async fn default_site_serves_unknown_hosts() {
    let (one, other) = (TestOrigin::start().await, TestOrigin::start().await);
    one.on("/x", OriginScript::fresh(b"one"));
    other.on("/x", OriginScript::fresh(b"other"));
    let sites = vec![site(&["one.example"], vec![route("/", "one")]), site(&[], vec![route("/", "other")])];
    let origins = vec![origin("one", &[one.address]), origin("other", &[other.address])];
    let proxy = configured(config(sites, origins)).await;
    for (host, body) in [("one.example", "one"), ("a", "other"), ("127.0.0.1:80", "other")] {
        assert_eq!(get(proxy.address, "/x", &[&format!("host: {host}")]).await.text(), body);
    }
    let mut client = TestClient::connect(proxy.address).await;
    client.send(b"GET /x HTTP/1.0\r\n\r\n").await;
    assert_eq!(client.reply(false).await.text(), "other");
    assert_eq!(other.count(), 1);
}

#[tokio::test]
async fn paths_lead_to_routes() {
    let (one, other) = (TestOrigin::start().await, TestOrigin::start().await);
    for path in ["/", "/api/x", "/apis", "/api%2fx"] {
        one.on(path, OriginScript::fresh(b"one"));
        other.on(path, OriginScript::fresh(b"other"));
    }
    let mut moved = route("=/moved", "one");
    moved.action = RouteAction::Redirect(at(RedirectConfig {
        to: at("https://new.example/".to_owned()),
        status: Some(at(308)),
        keep_path: Some(at(true)),
    }));
    let routes = vec![route("/", "one"), route("/api/", "other"), moved];
    let origins = vec![origin("one", &[one.address]), origin("other", &[other.address])];
    let proxy = configured(config(vec![site(&["a"], routes)], origins)).await;
    let ask = async |path: &str| get(proxy.address, path, &["host: a"]).await;
    for (path, body) in [("/", "one"), ("/api/x", "other"), ("/apis", "one")] {
        assert_eq!(ask(path).await.text(), body, "{path}");
    }
    let reply = ask("/moved?x").await;
    assert_eq!((reply.status, reply.header("location").as_str()), (308, "https://new.example/moved?x"));
    // An origin that decodes paths would see one that belongs to the other route.
    for path in ["/api%2fx", "/./api/x", "//api/x", "/b/../api/x"] {
        let reply = ask(path).await;
        assert_eq!((reply.status, reply.cache_status().as_str()), (400, "nectary; detail=ambiguous-path"), "{path}");
    }
    let proxy =
        configured(config(vec![site(&["a"], vec![route("/api/", "one")])], vec![origin("one", &[nowhere()])])).await;
    let reply = get(proxy.address, "/", &["host: a"]).await;
    assert_eq!((reply.status, reply.cache_status().as_str()), (404, "nectary; detail=no-route"));
}
