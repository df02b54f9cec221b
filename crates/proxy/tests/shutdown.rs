//! A proxy that is told to stop finishes requests under way, and ends in bounded time.

use std::time::{Duration, Instant};

use tokio::net::TcpStream;

use crate::common::*;

#[tokio::test]
async fn what_is_under_way_is_finished_and_nothing_new_is_taken() {
    let origin = Origin::start().await;
    let head = b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: 10\r\n\r\n01234";
    origin.on("/a", Script::raw(head).wait("rest").then(b"56789"));
    let mut proxy = TestProxy::forward().await;
    let mut idle = Client::connect(proxy.address).await;
    idle.send(b"GET http://a/ HTTP/1.1\r\n").await;
    let mut client = Client::connect(proxy.address).await;
    client.send(request(&[&format!("GET {} HTTP/1.1", origin.url("/a"))]).as_bytes()).await;
    assert_eq!(client.head().await.status, 200);
    let address = proxy.address;
    proxy.shutdown.request();
    // The proxy drains as soon as it no longer listens.
    while TcpStream::connect(address).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    origin.open("rest");
    assert_eq!(client.take(10).await, b"0123456789");
    assert!(client.rest().await.is_empty());
    drop(idle);
    proxy.stop().await;
    let stored = nectary_store::KeyRef::new(origin.url("/a").as_bytes(), b"").to_owned();
    assert_eq!(proxy.store.get(stored.as_ref()).await.expect("stored").body_bytes(), 10);
}

#[tokio::test]
async fn what_does_not_end_is_cut_off_after_the_drain_timeout() {
    let origin = Origin::start().await;
    let head = b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: 10\r\n\r\n01234";
    origin.on("/a", Script::raw(head).hang());
    let mut options = options();
    options.limits.drain_timeout = Duration::from_millis(300);
    let mut proxy = TestProxy::start(options).await;
    let mut client = Client::connect(proxy.address).await;
    client.send(request(&[&format!("GET {} HTTP/1.1", origin.url("/a"))]).as_bytes()).await;
    assert_eq!(client.head().await.status, 200);
    let began = Instant::now();
    proxy.stop().await;
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(client.rest().await, b"01234");
    let stored = nectary_store::KeyRef::new(origin.url("/a").as_bytes(), b"").to_owned();
    assert!(proxy.store.get(stored.as_ref()).await.is_none());
}

#[tokio::test]
async fn connections_that_wait_are_closed_at_once() {
    let origin = Origin::start().await;
    origin.on("/a", Script::fresh(b"x"));
    let mut proxy = TestProxy::forward().await;
    let mut client = Client::connect(proxy.address).await;
    assert_eq!(client.ask(&[&format!("GET {} HTTP/1.1", origin.url("/a"))]).await.status, 200);
    let began = Instant::now();
    proxy.stop().await;
    assert!(began.elapsed() < Duration::from_secs(5));
    assert!(client.rest().await.is_empty());
}

#[tokio::test]
async fn several_workers_share_a_port_and_end_together() {
    let origin = Origin::start().await;
    origin.on("/a", Script::fresh(b"x"));
    let mut proxy = TestProxy::start(nectary_proxy::ProxyOptions { workers: 3, ..options() }).await;
    for _ in 0..20 {
        assert_eq!(get(proxy.address, &origin.url("/a"), &[]).await.text(), "x");
    }
    assert_eq!(proxy.stats().requests, 20);
    assert_eq!(origin.count(), 1);
    proxy.stop().await;
}
