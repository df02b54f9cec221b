//! `Upgrade: websocket` becomes a tunnel to the origin if the origin agrees; other protocols are not passed on.

use nectary_proxy::ProxyOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::common::*;

const SWITCH: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                        Sec-WebSocket-Accept: x\r\n\r\n";
const ASK: [&str; 4] =
    ["GET /socket HTTP/1.1", "connection: keep-alive, Upgrade", "upgrade: WebSocket", "sec-websocket-key: k"];

#[tokio::test]
async fn a_websocket_goes_both_ways() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let far = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.expect("a head"));
        }
        stream.write_all(&[SWITCH, b"early"].concat()).await.expect("room");
        let mut found = [0; 4];
        stream.read_exact(&mut found).await.expect("bytes");
        assert_eq!(&found, b"ping");
        stream.write_all(b"pong").await.expect("room");
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.expect("bytes");
        (String::from_utf8(head).expect("ASCII").to_ascii_lowercase(), rest)
    });
    let proxy = TestProxy::reverse(address).await;
    let mut client = TestClient::connect(proxy.address).await;
    client.send(request(&ASK).as_bytes()).await;
    let head = client.head().await;
    assert_eq!((head.status, head.header("upgrade").as_str()), (101, "websocket"));
    assert!(head.header("connection") == "upgrade" && head.header("sec-websocket-accept") == "x", "{head:?}");
    assert_eq!(client.take(5).await, b"early");
    client.send(b"ping").await;
    assert_eq!(client.take(4).await, b"pong");
    client.send(b"GET / HTTP/1.1\r\n\r\n").await;
    client.stream.shutdown().await.expect("half closed");
    let (head, rest) = far.await.expect("all as it should be");
    assert_eq!(rest, b"GET / HTTP/1.1\r\n\r\n", "what follows is no request to the proxy");
    assert!(head.contains("\r\nupgrade: websocket\r\n") && head.contains("\r\nconnection: upgrade\r\n"), "{head}");
    assert!(head.contains("\r\nsec-websocket-key: k\r\n"), "{head}");
    proxy.wait_for(|stats| stats.tunnels == 1 && stats.requests == 1 && stats.connections_open == 0).await;
}

#[tokio::test]
async fn an_origin_may_decline_to_switch() {
    let origin = TestOrigin::start().await;
    origin.on("/socket", OriginScript::response("426 Upgrade Required", &["upgrade: websocket"], b"no"));
    origin.on("/a", OriginScript::fresh(b"x"));
    let proxy = TestProxy::reverse(origin.address).await;
    let mut client = TestClient::connect(proxy.address).await;
    let reply = client.ask(&ASK).await;
    assert_eq!((reply.status, reply.text().as_str()), (426, "no"));
    assert_eq!(client.ask(&["GET /a HTTP/1.1"]).await.text(), "x", "the connection goes on");
    assert_eq!(origin.connections(), 2, "the origin's is not used again");
}

#[tokio::test]
async fn a_stored_response_answers_no_upgrade() {
    let origin = TestOrigin::start().await;
    origin.on("/socket", OriginScript::fresh(b"page")).on("/socket", OriginScript::raw(SWITCH).close());
    let proxy = TestProxy::reverse(origin.address).await;
    assert_eq!(TestClient::connect(proxy.address).await.ask(&["GET /socket HTTP/1.1"]).await.text(), "page");
    let mut client = TestClient::connect(proxy.address).await;
    client.send(request(&ASK).as_bytes()).await;
    assert_eq!(client.head().await.status, 101);
}

#[tokio::test]
async fn other_protocols_are_not_passed_on() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(&["cache-control: no-store"], b"x"));
    let proxy = TestProxy::reverse(origin.address).await;
    for protocol in ["upgrade: h2c", "upgrade: websocket, h2c", "upgrade: TLS/1.0"] {
        let mut client = TestClient::connect(proxy.address).await;
        let reply = client.ask(&["GET /a HTTP/1.1", "connection: upgrade, http2-settings", protocol]).await;
        assert_eq!((reply.status, reply.text().as_str()), (200, "x"), "{protocol}");
    }
    assert!(origin.got().iter().all(|got| got.header("upgrade").is_empty() && got.header("connection").is_empty()));
}

#[tokio::test]
async fn unrequested_protocol_switch_is_502() {
    let origin = TestOrigin::start().await;
    let other = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n";
    origin.on("/socket", OriginScript::raw(other).close());
    let proxy = TestProxy::start(ProxyOptions {
        origin: Some(format!("http://{}", origin.address).parse().expect("an origin")),
        ..options()
    })
    .await;
    assert_eq!(TestClient::connect(proxy.address).await.ask(&ASK).await.status, 502);
}

/// What a client sends before the answer could be a request or the new protocol.
#[tokio::test]
async fn bytes_before_the_switch_are_refused() {
    let origin = TestOrigin::start().await;
    origin.on("/socket", OriginScript::raw(b"").wait("answer").then(SWITCH).close());
    origin.on("/a", OriginScript::fresh(b"x"));
    let proxy = TestProxy::reverse(origin.address).await;
    origin.open("answer");
    for early in ["GET /a HTTP/1.1\r\nhost: a\r\n\r\n", "GET /a HT", "\r\n"] {
        let mut client = TestClient::connect(proxy.address).await;
        // Requests that were answered before do not matter.
        for line in ["x-plain: no", "accept: */*"] {
            assert_eq!(client.ask(&["GET /a HTTP/1.1", line]).await.text(), "x");
        }
        client.send((request(&ASK) + early).as_bytes()).await;
        let reply = client.reply(false).await;
        assert_eq!((reply.status, reply.cache_status().as_str()), (400, "nectary; detail=early-bytes"), "{early:?}");
        let mut client = TestClient::connect(proxy.address).await;
        assert_eq!(client.ask(&["GET /a HTTP/1.1"]).await.text(), "x");
        client.send(request(&ASK).as_bytes()).await;
        assert_eq!(client.head().await.status, 101);
    }
}
