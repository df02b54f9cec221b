//! A forward proxy serves clients on other machines only if they are allowed, and never connects them to the services
//! of the proxy's own machine.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use nectary_proxy::{ClientNet, ProxyOptions};

use crate::common::*;

/// An address of this machine that is not a loopback address. Connections that this machine makes to this address also
/// come from this address.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // For UDP, `connect` sends nothing; it only chooses the local address.
    socket.connect("192.0.2.1:9").ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|address| !address.is_loopback())
}

async fn listening_on(address: IpAddr, more: ProxyOptions) -> TestProxy {
    TestProxy::start(ProxyOptions { listen: vec![SocketAddr::new(address, 0)], ..more }).await
}

/// Their requests do not reach addresses of this machine.
#[tokio::test]
async fn only_admitted_clients_are_served() {
    let Some(own) = own_address() else {
        println!("NOT RUN: this machine has no address beside the loopback ones");
        return;
    };
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(b"secret"));
    let proxy = listening_on(own, options()).await;
    let reply = get(proxy.address, &origin.url("/a"), &[]).await;
    assert_eq!((reply.status, reply.cache_status().as_str()), (403, "nectary; detail=client-not-admitted"));
    let reply = TestClient::connect(proxy.address).await.ask(&["CONNECT 192.0.2.1:443 HTTP/1.1"]).await;
    assert_eq!(reply.status, 403);
    let admitting = ProxyOptions {
        clients: vec![own.to_string().parse().expect("a net")],
        connect_ports: vec![origin.address.port()],
        ..options()
    };
    let proxy = listening_on(own, admitting).await;
    let reply = get(proxy.address, &origin.url("/a"), &[]).await;
    assert_eq!(reply.status, 502, "{}", reply.text());
    let line = format!("CONNECT {} HTTP/1.1", origin.address);
    assert_eq!(TestClient::connect(proxy.address).await.ask(&[&line]).await.status, 502);
    assert_eq!(origin.connections(), 0);
}

/// What a load balancer on another machine calls `127.0.0.1` is not this machine.
#[tokio::test]
async fn loopback_in_header_is_not_local() {
    let Some(own) = own_address() else {
        println!("NOT RUN: this machine has no address beside the loopback ones");
        return;
    };
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(b"secret"));
    let net: ClientNet = own.to_string().parse().expect("a net");
    let behind = ProxyOptions { proxy_protocol_from: vec![(SocketAddr::new(own, 0), net)], ..options() };
    let proxy = listening_on(own, behind).await;
    let mut client = TestClient::connect(proxy.address).await;
    client.send(b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n").await;
    let reply = client.ask(&[&format!("GET {} HTTP/1.1", origin.url("/a"))]).await;
    assert_eq!((reply.status, reply.cache_status().as_str()), (403, "nectary; detail=client-not-admitted"));
    assert_eq!(origin.connections(), 0);
}

/// Only clients with the token can purge.
#[tokio::test]
async fn reverse_proxy_serves_all_clients() {
    let Some(own) = own_address() else {
        println!("NOT RUN: this machine has no address beside the loopback ones");
        return;
    };
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(b"x"));
    let url = Some(format!("http://{}", origin.address).parse().expect("an origin"));
    let proxy = listening_on(own, ProxyOptions { origin: url, ..options() }).await;
    assert_eq!(get(proxy.address, "/a", &[]).await.text(), "x");
    let reply = TestClient::connect(proxy.address).await.ask(&["PURGE /a HTTP/1.1"]).await;
    assert_eq!((reply.status, reply.cache_status().as_str()), (401, "nectary; detail=purge-token"));
    assert!(get(proxy.address, "/a", &[]).await.is_hit());
    assert_eq!(TestClient::connect(proxy.address).await.ask(&["PURGE /a HTTP/1.1", AUTHORIZATION]).await.status, 200);
    assert!(!get(proxy.address, "/a", &[]).await.is_hit());
}
