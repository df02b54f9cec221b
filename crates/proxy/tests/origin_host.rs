//! The `Host` that an origin gets, and the origin's references to itself, are right for every client that shares a
//! stored response.

use nectary_proxy::{OriginOptions, ProxyOptions};
use nectary_store::KeyRef;

use crate::common::*;

async fn with_host(origin: &TestOrigin, host: &str) -> TestProxy {
    let url = Some(format!("http://{}", origin.address).parse().expect("an origin"));
    let origin_rules = OriginOptions { host: host.parse().expect("a host"), ..Default::default() };
    TestProxy::start(ProxyOptions { origin: url, origin_rules, ..options() }).await
}

#[tokio::test]
async fn client_hosts_have_separate_copies() {
    let origin = TestOrigin::start().await;
    for body in [b"one", b"two"] {
        origin.on("/x", OriginScript::fresh(body));
    }
    let proxy = with_host(&origin, "client").await;
    for (host, sent, body) in [("A.example:80", "a.example", "one"), ("b.example:81", "b.example:81", "two")] {
        let reply = get(proxy.address, "/x", &[&format!("host: {host}")]).await;
        assert_eq!((reply.text().as_str(), reply.is_hit()), (body, false));
        assert_eq!(origin.got().pop().expect("a request").header("host"), sent);
    }
    // Plain requests, other requests, and those with a host in the target find the same copies.
    for (host, body) in [("a.example", "one"), ("a.example:80", "one"), ("B.example:81", "two")] {
        for more in [&[][..], &["x-other: 1"]] {
            let named = format!("host: {host}");
            let lines = [&[named.as_str()], more].concat();
            let reply = get(proxy.address, "/x", &lines).await;
            assert!(reply.is_hit() && reply.text() == body, "{host}: {reply:?}");
        }
        assert_eq!(get(proxy.address, &format!("http://{host}/x"), &["host: c"]).await.text(), body);
    }
    assert_eq!(origin.count(), 2);
    let mut client = TestClient::connect(proxy.address).await;
    let purged = client.ask(&["PURGE /x HTTP/1.1", "host: a.example", AUTHORIZATION]).await;
    assert_eq!(purged.text(), "purged http://a.example/x\n");
    assert!(!get(proxy.address, "/x", &["host: a.example"]).await.is_hit());
    assert!(get(proxy.address, "/x", &["host: b.example:81"]).await.is_hit());
}

#[tokio::test]
async fn client_host_must_be_valid() {
    let origin = TestOrigin::start().await;
    origin.on("/x", OriginScript::fresh(b"hello"));
    let proxy = with_host(&origin, "client").await;
    for host in ["a:99999", "a:0", "a b"] {
        assert_eq!(get(proxy.address, "/x", &[&format!("host: {host}")]).await.status, 400, "{host}");
    }
    // A client of HTTP/1.0 may name no host.
    let mut client = TestClient::connect(proxy.address).await;
    client.send(b"GET /x HTTP/1.0\r\n\r\n").await;
    assert_eq!(client.reply(false).await.text(), "hello");
    assert_eq!(origin.got()[0].header("host"), origin.address.to_string());
}

/// A fixed host is sent to the origin and is in the key.
#[tokio::test]
async fn fixed_host_is_keyed() {
    let origin = TestOrigin::start().await;
    origin.on("/x", OriginScript::ok(&["cache-control: max-age=60", "location: http://www.example/y"], b"hello"));
    let proxy = with_host(&origin, "WWW.example:80").await;
    for host in ["a", "b"] {
        let reply = get(proxy.address, "/x", &[&format!("host: {host}")]).await;
        assert_eq!((reply.text().as_str(), reply.header("location").as_str()), ("hello", "/y"));
    }
    assert_eq!((origin.count(), origin.got()[0].header("host").as_str()), (1, "www.example"));
    assert!(proxy.store.get(KeyRef::new(b"http://www.example/x", b"")).await.is_some());
}

#[tokio::test]
async fn origin_references_are_rewritten() {
    let origin = TestOrigin::start().await;
    let own = format!("http://{}", origin.address);
    let headers = [
        &*format!("location: {own}/to"),
        &format!("content-location: {own}/x"),
        &format!("link: <{own}/style.css>; rel=preload, <http://elsewhere/>; rel=next"),
    ];
    let fresh = [&headers[..], &["cache-control: max-age=60"]].concat();
    let hint = format!("HTTP/1.1 103 Early Hints\r\n{}\r\n\r\n", headers[2]);
    origin.on("/x", OriginScript::raw(hint.as_bytes()).then(&OriginScript::response("301 Moved", &fresh, b"").bytes()));
    origin.on("/post", OriginScript::response("201 Created", &[&format!("location: {own}/to")], b""));
    origin.on("/no-store", OriginScript::ok(&[&headers[..], &["cache-control: no-store"]].concat(), b""));
    origin.on("/to", OriginScript::fresh(b"old")).on("/to", OriginScript::fresh(b"new"));
    let proxy = TestProxy::reverse(origin.address).await;
    let link = "</style.css>; rel=preload, <http://elsewhere/>; rel=next";
    let mut client = TestClient::connect(proxy.address).await;
    client.send(request(&["GET /x HTTP/1.1"]).as_bytes()).await;
    assert_eq!(client.head().await.header("link"), link);
    client.reply(false).await;
    let switch = ["GET /no-store HTTP/1.1", "connection: upgrade", "upgrade: websocket"];
    assert_eq!(TestClient::connect(proxy.address).await.ask(&switch).await.header("location"), "/to");
    for path in ["/x", "/no-store"] {
        let reply = get(proxy.address, path, &[]).await;
        assert_eq!(reply.is_hit(), path == "/x");
        let found = ["location", "content-location", "link"].map(|name| reply.header(name));
        assert_eq!(found, ["/to", "/x", link], "{path}");
    }
    // An unsafe request still invalidates what its response names.
    assert_eq!(get(proxy.address, "/to", &[]).await.text(), "old");
    let reply = client.ask(&["POST /post HTTP/1.1", "content-length: 0"]).await;
    assert_eq!((reply.status, reply.header("location").as_str()), (201, "/to"));
    assert_eq!(get(proxy.address, "/to", &[]).await.text(), "new");
    // A forward proxy changes no reference.
    let forward = TestProxy::forward().await;
    assert_eq!(get(forward.address, &origin.url("/no-store"), &[]).await.header("location"), format!("{own}/to"));
}
