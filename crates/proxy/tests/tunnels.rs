//! `CONNECT` opens a tunnel to allowed ports. The tunnel carries bytes in both directions, and also the bytes that
//! directly follow the head of the `CONNECT` request.

use std::time::Duration;

use nectary_proxy::ProxyOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::common::*;

async fn tunnelling_to(port: u16) -> TestProxy {
    TestProxy::start(ProxyOptions { connect_ports: vec![port], ..options() }).await
}

/// The tunnel begins with the first byte behind the head.
#[tokio::test]
async fn tunnel_carries_bytes_both_ways() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let far = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut found = [0; 5];
        stream.read_exact(&mut found).await.expect("bytes");
        assert_eq!(&found, b"early");
        stream.write_all(b"hello\n\nGET").await.expect("room");
        let mut found = Vec::new();
        stream.read_to_end(&mut found).await.expect("bytes");
        assert_eq!(found, b"later");
        stream.write_all(b"bye").await.expect("room");
    });
    let proxy = tunnelling_to(address.port()).await;
    let mut client = TestClient::connect(proxy.address).await;
    let head = request(&[&format!("CONNECT {address} HTTP/1.1")]);
    client.send(format!("{head}early").as_bytes()).await;
    assert_eq!(client.head().await.status, 200);
    assert_eq!(client.take(10).await, b"hello\n\nGET");
    client.send(b"later").await;
    client.stream.shutdown().await.expect("half closed");
    assert_eq!(client.rest().await, b"bye");
    far.await.expect("all as it should be");
    proxy.wait_for(|stats| stats.tunnels == 1 && stats.connections_open == 0).await;
}

/// Other ports are refused too.
#[tokio::test]
async fn invalid_tunnel_targets_are_refused() {
    let proxy = TestProxy::forward().await;
    for (target, status) in [("127.0.0.1:25", 403), ("127.0.0.1:80", 403), ("127.0.0.1", 400)] {
        let mut client = TestClient::connect(proxy.address).await;
        client
            .send(
                format!(
                    "{}GET http://a/ HTTP/1.1\r\nhost: a\r\n\r\n",
                    request(&[&format!("CONNECT {target} HTTP/1.1")])
                )
                .as_bytes(),
            )
            .await;
        assert_eq!(client.reply(false).await.status, status, "{target}");
        assert!(client.rest().await.is_empty(), "what follows is not taken for a request");
    }
}

#[tokio::test]
async fn absent_tunnel_target_is_502() {
    let proxy = tunnelling_to(1).await;
    let mut client = TestClient::connect(proxy.address).await;
    assert_eq!(client.ask(&["CONNECT 127.0.0.1:1 HTTP/1.1"]).await.status, 502);
    assert!(client.rest().await.is_empty());
}

#[tokio::test]
async fn a_reverse_proxy_tunnels_nowhere() {
    let origin = TestOrigin::start().await;
    let proxy = TestProxy::reverse(origin.address).await;
    let reply = TestClient::connect(proxy.address).await.ask(&["CONNECT 127.0.0.1:443 HTTP/1.1"]).await;
    assert_eq!(reply.status, 405);
}

#[tokio::test]
async fn an_idle_tunnel_is_closed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let mut options = options();
    options.connect_ports = vec![address.port()];
    options.limits.tunnel_timeout = Duration::from_millis(500);
    let proxy = TestProxy::start(options).await;
    let mut client = TestClient::connect(proxy.address).await;
    client.send(request(&[&format!("CONNECT {address} HTTP/1.1")]).as_bytes()).await;
    assert_eq!(client.head().await.status, 200);
    let (mut far, _) = listener.accept().await.expect("a connection");
    assert!(client.rest().await.is_empty());
    assert_eq!(far.read(&mut [0; 8]).await.unwrap_or(0), 0);
}
