//! If an origin dies, lies, stalls or sends nonsense, clients see an error or an aborted connection, and nothing is
//! stored.

use std::time::Duration;

use nectary_proxy::{OriginOptions, ProxyOptions};
use nectary_store::KeyRef;

use crate::common::*;

/// Sends a request twice, asserts that the second request went to the origin, too, and returns the second reply.
async fn ask_twice(origin: &TestOrigin, proxy: &TestProxy, path: &str) -> Option<ClientReply> {
    let line = format!("GET {} HTTP/1.1", origin.url(path));
    let mut first = None;
    for count in 1..=2 {
        let mut client = TestClient::connect(proxy.address).await;
        client.send(request(&[&line]).as_bytes()).await;
        first = client.reply_or_end().await;
        assert_eq!(origin.count(), count, "nothing was stored");
    }
    first
}

#[tokio::test]
async fn short_body_is_never_whole() {
    let fresh = "cache-control: max-age=60\r\n";
    let table = [
        format!("HTTP/1.1 200 OK\r\n{fresh}content-length: 10\r\n\r\n01234"),
        format!("HTTP/1.1 200 OK\r\n{fresh}transfer-encoding: chunked\r\n\r\n5\r\n01234\r\n"),
        format!("HTTP/1.1 200 OK\r\n{fresh}transfer-encoding: chunked\r\n\r\n5\r\n012"),
        format!("HTTP/1.1 200 OK\r\n{fresh}transfer-encoding: chunked\r\n\r\n5\r\n01234\r\n0\r\n"),
        format!("HTTP/1.1 200 OK\r\n{fresh}transfer-encoding: chunked\r\n\r\n5\r\n0123456\r\n0\r\n\r\n"),
        format!("HTTP/1.1 200 OK\r\n{fresh}transfer-encoding: chunked\r\n\r\nzz\r\n0123456\r\n0\r\n\r\n"),
    ];
    for response in table {
        let origin = TestOrigin::start().await;
        origin.on("/a", OriginScript::raw(response.as_bytes()).close());
        let proxy = TestProxy::forward().await;
        let reply = ask_twice(&origin, &proxy, "/a").await;
        assert!(reply.is_none_or(|reply| !reply.is_complete || reply.status == 502), "{response:?}");
        proxy.wait_for(|stats| stats.failed_fills == 2).await;
    }
}

#[tokio::test]
async fn cleanly_closed_body_is_stored() {
    for version in ["1.0", "1.1"] {
        let origin = TestOrigin::start().await;
        let head = format!("HTTP/{version} 200 OK\r\ncache-control: max-age=60\r\n\r\nfirst");
        origin.on("/a", OriginScript::raw(head.as_bytes()).wait("rest").then(b"later").close());
        let proxy = TestProxy::forward().await;
        let line = format!("GET {} HTTP/1.1", origin.url("/a"));
        let mut client = TestClient::connect(proxy.address).await;
        client.send(request(&[&line]).as_bytes()).await;
        assert!(client.head().await.cache_status().ends_with("stored"));
        origin.open("rest");
        let hit = loop {
            let reply = get(proxy.address, &origin.url("/a"), &[]).await;
            assert_eq!(reply.text(), "firstlater");
            if reply.is_hit() {
                break reply;
            }
        };
        assert_eq!((hit.header("content-length").as_str(), origin.count()), ("10", 1));
    }
}

#[tokio::test]
async fn a_clean_close_can_be_distrusted() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::raw(b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\n\r\nwho knows").close());
    let origin_rules = OriginOptions { distrusts_close: true, ..Default::default() };
    let proxy = TestProxy::start(ProxyOptions { origin_rules, ..options() }).await;
    let reply = ask_twice(&origin, &proxy, "/a").await.expect("a response");
    assert_eq!((reply.status, reply.text().as_str()), (200, "who knows"));
    assert!(!reply.cache_status().contains("stored"));
    // The last chunk says that a body is whole.
    let chunked =
        b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n";
    origin.on("/chunked", OriginScript::raw(chunked));
    assert!(get(proxy.address, &origin.url("/chunked"), &[]).await.cache_status().contains("stored"));
}

/// A body that would have ended with its connection: the connection is reset, or nothing comes any more, or the proxy
/// is stopped. Neither is a clean close.
#[tokio::test]
async fn unfinished_body_is_not_stored() {
    let origin = TestOrigin::start().await;
    let head = b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\n\r\nfirst";
    origin.on("/reset", OriginScript::raw(head).wait("reset").reset()).on("/stall", OriginScript::raw(head).hang());
    let mut options = options();
    options.limits.origin_body_timeout = Duration::from_millis(300);
    options.limits.drain_timeout = Duration::from_millis(100);
    let mut proxy = TestProxy::start(options).await;
    for (count, path) in [(1, "/reset"), (2, "/stall"), (3, "/stall")] {
        let line = format!("GET {} HTTP/1.1", origin.url(path));
        let mut client = TestClient::connect(proxy.address).await;
        client.send(request(&[&line]).as_bytes()).await;
        client.head().await;
        origin.open("reset");
        if count == 3 {
            proxy.stop().await;
            break;
        }
        proxy.wait_for(|stats| stats.failed_fills == count).await;
        assert_eq!(client.rest().await, b"5\r\nfirst\r\n", "{path}");
    }
    for path in ["/reset", "/stall"] {
        assert!(proxy.store.get(KeyRef::new(origin.url(path).as_bytes(), b"")).await.is_none(), "{path}");
    }
}

#[tokio::test]
async fn excess_body_bytes_are_ignored() {
    let origin = TestOrigin::start().await;
    origin.on(
        "/a",
        OriginScript::raw(b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: 5\r\n\r\n0123456789"),
    );
    origin.on("/b", OriginScript::fresh(b"other"));
    let proxy = TestProxy::forward().await;
    let line = format!("GET {} HTTP/1.1", origin.url("/a"));
    let mut client = TestClient::connect(proxy.address).await;
    client.send(request(&[&line]).as_bytes()).await;
    if let Some(reply) = client.reply_or_end().await {
        assert!(reply.status == 502 || !reply.is_complete || reply.text() == "01234", "{reply:?}");
    }
    // The proxy does not use the extra bytes as the answer to another request.
    assert_eq!(get(proxy.address, &origin.url("/b"), &[]).await.text(), "other");
}

#[tokio::test]
async fn unsolicited_response_answers_nobody() {
    let evil = b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: 4\r\n\r\nevil";
    let good = b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: 4\r\n\r\ngood";
    let switch = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n";
    let empty = b"HTTP/1.1 204 No Content\r\n\r\n";
    let table = [
        ("behind a response", OriginScript::raw(&[&good[..], evil].concat())),
        ("behind one without a body", OriginScript::raw(&[&empty[..], evil].concat())),
        ("later", OriginScript::raw(good).wait("later").then(evil)),
        ("behind a switch", OriginScript::raw(&[&switch[..], evil].concat())),
    ];
    for (name, script) in table {
        let origin = TestOrigin::start().await;
        for path in ["/a", "/b", "/c"] {
            origin.on(path, OriginScript::raw(good));
        }
        let proxy = TestProxy::forward().await;
        // After this exchange, the proxy keeps the connection to the origin open.
        assert_eq!(get(proxy.address, &origin.url("/a"), &[]).await.text(), "good");
        origin.on("/x", script);
        let reply = get(proxy.address, &origin.url("/x"), &[]).await;
        assert_ne!(reply.text(), "evil", "{name}");
        if name == "later" {
            origin.open("later");
            origin.wait_for_ends(1).await;
        }
        for path in ["/b", "/c"] {
            let reply = get(proxy.address, &origin.url(path), &[]).await;
            assert_eq!((reply.status, reply.text().as_str()), (200, "good"), "{name}, {path}");
        }
        for path in ["/b", "/c"] {
            let reply = get(proxy.address, &origin.url(path), &[]).await;
            assert_eq!((reply.is_hit(), reply.text().as_str()), (true, "good"), "{name}, {path}");
        }
    }
}

#[tokio::test]
async fn nonsense_is_502_and_not_stored() {
    let table = [
        "total nonsense\r\n\r\n",
        "HTTP/1.1 abc OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\ncache-control: max-age=60\r\n\r\n012345",
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\ncache-control: max-age=60\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\ncache-control: max-age=60\r\n\r\n0\r\n\r\n",
        "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\ncache-control: max-age=60\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: x\r\ncache-control: max-age=60\r\n\r\n",
        "HTTP/1.1 200 OK\r\nx: y\r\n folded\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",
        "",
    ];
    for response in table {
        let origin = TestOrigin::start().await;
        origin.on("/a", OriginScript::raw(response.as_bytes()).close());
        let proxy = TestProxy::forward().await;
        let reply = ask_twice(&origin, &proxy, "/a").await.expect("a response");
        assert_eq!(reply.status, 502, "{response:?}: {reply:?}");
        assert!(reply.cache_status().starts_with("nectary; fwd=uri-miss"), "{response:?}");
        assert!(reply.text().contains("origin"), "{}", reply.text());
    }
}

#[tokio::test]
async fn a_head_without_end_is_502() {
    let origin = TestOrigin::start().await;
    let head = format!("HTTP/1.1 200 OK\r\nx: {}\r\ncontent-length: 0\r\n\r\n", "y".repeat(100_000));
    origin.on("/a", OriginScript::raw(head.as_bytes()));
    let proxy = TestProxy::forward().await;
    let reply = ask_twice(&origin, &proxy, "/a").await.expect("a response");
    assert_eq!(reply.status, 502);
}

#[tokio::test]
async fn silent_origin_is_504() {
    let origin = TestOrigin::start().await;
    origin.on("/silent", OriginScript::raw(b"").hang());
    origin.on("/half", OriginScript::raw(b"HTTP/1.1 200 OK\r\ncontent-le").hang());
    let mut options = options();
    options.limits.response_timeout = Duration::from_millis(500);
    let proxy = TestProxy::start(options).await;
    for path in ["/silent", "/half"] {
        let reply = get(proxy.address, &origin.url(path), &[]).await;
        assert_eq!(reply.status, 504, "{path}: {}", reply.text());
    }
}

/// A body that stalls is cut off.
#[tokio::test]
async fn stalled_body_is_not_stored() {
    let origin = TestOrigin::start().await;
    let head = b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: 10\r\n\r\n01234";
    origin.on("/a", OriginScript::raw(head).hang());
    let mut options = options();
    options.limits.origin_body_timeout = Duration::from_millis(500);
    let proxy = TestProxy::start(options).await;
    let reply = get(proxy.address, &origin.url("/a"), &[]).await;
    assert!(!reply.is_complete && reply.text() == "01234");
    assert_eq!(proxy.stats().failed_fills, 1);
}

#[tokio::test]
async fn absent_origin_is_502() {
    let proxy = TestProxy::forward().await;
    let reply = get(proxy.address, "http://127.0.0.1:1/", &[]).await;
    assert_eq!(reply.status, 502);
    assert!(reply.text().contains("cannot connect"), "{}", reply.text());
    let reply = get(proxy.address, "http://no-such-name.invalid/", &[]).await;
    assert_eq!(reply.status, 502);
}

#[tokio::test]
async fn dead_kept_connection_costs_nothing() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(&["cache-control: no-store"], b"1").close());
    let proxy = TestProxy::forward().await;
    for _ in 0..5 {
        assert_eq!(get(proxy.address, &origin.url("/a"), &[]).await.text(), "1");
    }
    assert_eq!(origin.count(), 5);
}

/// Sends a request with a body of four bytes, and returns the reply.
async fn ask_with_body(proxy: &TestProxy, method: &str, url: &str) -> ClientReply {
    ask_with(proxy, method, url, "body").await
}

async fn ask_with(proxy: &TestProxy, method: &str, url: &str, body: &str) -> ClientReply {
    let (line, length) = (format!("{method} {url} HTTP/1.1"), format!("content-length: {}", body.len()));
    let mut client = TestClient::connect(proxy.address).await;
    client.send(format!("{}{body}", request(&[&line, &length])).as_bytes()).await;
    client.reply(false).await
}

#[tokio::test]
async fn unsafe_requests_reuse_live_connections() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(&["cache-control: no-store"], b"1"));
    let proxy = TestProxy::forward().await;
    for method in ["POST", "PUT", "DELETE", "PATCH"].repeat(5) {
        assert_eq!(ask_with_body(&proxy, method, &origin.url("/a")).await.status, 200);
        let line = format!("{method} {} HTTP/1.1", origin.url("/a"));
        assert_eq!(TestClient::connect(proxy.address).await.ask(&[&line, "content-length: 0"]).await.status, 200);
    }
    assert_eq!((origin.count(), origin.connections()), (40, 1));
    assert!(origin.got().iter().step_by(2).all(|got| got.body == b"body"));
}

#[tokio::test]
async fn unsafe_requests_avoid_doubtful_connections() {
    let origin = TestOrigin::start().await;
    origin.on("/closed", OriginScript::ok(&["cache-control: no-store"], b"1").close());
    origin.on("/short", OriginScript::ok(&["cache-control: no-store", "keep-alive: max=9, timeout=0"], b"1"));
    origin.on("/early", OriginScript::raw(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n1"));
    let proxy = TestProxy::forward().await;
    // The origin has closed the connection, or says that it will soon.
    for (path, count) in [("/closed", 4), ("/short", 4)] {
        let before = origin.connections();
        for sent in 1..=count {
            assert_eq!(ask_with_body(&proxy, "POST", &origin.url(path)).await.status, 200, "{path}");
            if path == "/closed" {
                origin.wait_for_ends(sent).await;
            }
        }
        assert_eq!(origin.connections() - before, count, "{path}");
    }
    // A connection that has waited for long is good enough only for requests that may be repeated.
    let before = origin.connections();
    assert_eq!(ask_with_body(&proxy, "POST", &origin.url("/early")).await.status, 200);
    tokio::time::sleep(Duration::from_millis(1050)).await;
    assert_eq!(get(proxy.address, &origin.url("/early"), &[]).await.status, 200);
    tokio::time::sleep(Duration::from_millis(1050)).await;
    assert_eq!(ask_with_body(&proxy, "POST", &origin.url("/early")).await.status, 200);
    assert_eq!(origin.connections() - before, 2);
}

/// A request with consequences that breaks on a kept connection is not sent again.
#[tokio::test]
async fn unsafe_request_is_not_repeated() {
    // Nor is one with a body, whatever its method.
    let empty = ["POST", "PUT", "DELETE", "PATCH"].map(|method| (method, ""));
    for (method, body) in empty.into_iter().chain([("POST", "body"), ("GET", "body")]) {
        for end in [OriginScript::raw(b"").close(), OriginScript::raw(b"").reset()] {
            let origin = TestOrigin::start().await;
            origin.on("/a", OriginScript::ok(&["cache-control: no-store"], b"1")).on("/a", end);
            let proxy = TestProxy::forward().await;
            let statuses = [
                ask_with(&proxy, method, &origin.url("/a"), body).await.status,
                ask_with(&proxy, method, &origin.url("/a"), body).await.status,
            ];
            assert_eq!((statuses, origin.count(), origin.connections()), ([200, 502], 2, 1), "{method}");
        }
    }
}

/// The other half may be over when a request arrives.
#[tokio::test]
async fn half_of_keep_alive_counts() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(&["cache-control: no-store", "keep-alive: timeout=1"], b"1"));
    let proxy = TestProxy::forward().await;
    for connections in 1..=2 {
        assert_eq!(ask_with_body(&proxy, "POST", &origin.url("/a")).await.status, 200);
        assert_eq!(origin.connections(), connections);
        tokio::time::sleep(Duration::from_millis(600)).await;
    }
}

/// An origin may answer before it has got the whole body. What is left of the body is not the next request.
#[tokio::test]
async fn early_answer_ends_its_connection() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let far = tokio::spawn(async move {
        let mut open = Vec::new();
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            let mut far = TestClient::of(stream);
            far.take("GET / HTTP/1.1".len()).await;
            far.send(b"HTTP/1.1 200 OK\r\ncache-control: no-store\r\ncontent-length: 1\r\n\r\n1").await;
            open.push(far);
        }
    });
    let proxy = TestProxy::reverse(address).await;
    let mut uploading = TestClient::connect(proxy.address).await;
    uploading.send(format!("{}bo", request(&["POST / HTTP/1.1", "content-length: 4"])).as_bytes()).await;
    assert_eq!(uploading.reply(false).await.text(), "1");
    assert_eq!(get(proxy.address, "/", &[]).await.text(), "1");
    assert_eq!(proxy.stats().origin_connections, 2);
    far.abort();
}

/// An origin that reads nothing of a request does not hold its client up for ever.
#[tokio::test]
async fn unreading_origin_times_out() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let mut options = ProxyOptions {
        origin: Some(format!("http://{}", listener.local_addr().expect("an address")).parse().expect("an origin")),
        ..options()
    };
    options.limits.write_timeout = Duration::from_millis(300);
    let proxy = TestProxy::start(options).await;
    let mut client = TestClient::connect(proxy.address).await;
    client.send(request(&["POST / HTTP/1.1", "content-length: 100000000"]).as_bytes()).await;
    let upload = async {
        use tokio::io::AsyncWriteExt;
        while client.stream.write_all(&[7; 1 << 16]).await.is_ok() {}
    };
    tokio::select! {
        () = upload => {}
        () = proxy.wait_for(|stats| stats.overdue_connections == 1) => {}
        () = tokio::time::sleep(Duration::from_secs(15)) => panic!("the origin is still waited for"),
    }
    assert_eq!(proxy.stats().overdue_connections, 1);
}

/// A client without lengths sees a cut-off body as a reset connection.
#[tokio::test]
async fn cut_body_resets_old_client() {
    use tokio::io::AsyncReadExt;
    let origin = TestOrigin::start().await;
    let head = b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ntransfer-encoding: chunked\r\n\r\n5\r\n01234\r\n";
    origin.on("/a", OriginScript::raw(head).wait("end").close());
    let proxy = TestProxy::forward().await;
    let mut client = TestClient::connect(proxy.address).await;
    client.send(format!("GET {} HTTP/1.0\r\n\r\n", origin.url("/a")).as_bytes()).await;
    assert_eq!(client.head().await.header("content-length"), "");
    assert_eq!(client.take(5).await, b"01234");
    origin.open("end");
    let error = client.stream.read(&mut [0; 8]).await.expect_err("no good end");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}
