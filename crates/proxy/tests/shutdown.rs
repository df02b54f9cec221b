//! A proxy that is told to stop finishes requests under way, and ends in bounded time.

use std::time::{Duration, Instant};

use std::sync::{Arc, Mutex};

use nectary_block::{Buffer, MemoryDevice, SharedDevice};
use nectary_host::Shutdown;
use nectary_proxy::{Proxy, ProxyOptions, PurgeElsewhere};
use nectary_store::{CreateOptions, OpenOptions, Store};
use tokio::net::TcpStream;

use crate::common::*;

/// A stop accepts nothing new.
#[tokio::test]
async fn stop_finishes_running_exchanges() {
    let origin = TestOrigin::start().await;
    let head = b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: 10\r\n\r\n01234";
    origin.on("/a", OriginScript::raw(head).wait("rest").then(b"56789"));
    let mut proxy = TestProxy::forward().await;
    let mut idle = TestClient::connect(proxy.address).await;
    idle.send(b"GET http://a/ HTTP/1.1\r\n").await;
    let mut client = TestClient::connect(proxy.address).await;
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
async fn drain_timeout_cuts_requests_off() {
    let origin = TestOrigin::start().await;
    let head = b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: 10\r\n\r\n01234";
    origin.on("/a", OriginScript::raw(head).hang());
    let mut options = options();
    options.limits.drain_timeout = Duration::from_millis(300);
    let mut proxy = TestProxy::start(options).await;
    let mut client = TestClient::connect(proxy.address).await;
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
async fn stop_closes_idle_connections() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(b"x"));
    let mut proxy = TestProxy::forward().await;
    let mut client = TestClient::connect(proxy.address).await;
    assert_eq!(client.ask(&[&format!("GET {} HTTP/1.1", origin.url("/a"))]).await.status, 200);
    let began = Instant::now();
    proxy.stop().await;
    assert!(began.elapsed() < Duration::from_secs(5));
    assert!(client.rest().await.is_empty());
}

/// Several workers share a port and end together.
#[tokio::test]
async fn workers_stop_together() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(b"x"));
    let mut proxy = TestProxy::start(ProxyOptions { workers: 3, ..options() }).await;
    for _ in 0..20 {
        assert_eq!(get(proxy.address, &origin.url("/a"), &[]).await.text(), "x");
    }
    assert_eq!(proxy.stats().requests, 20);
    assert_eq!(origin.count(), 1);
    proxy.stop().await;
}

/// A client that gets a body without a length must not take the end of the proxy for the end of the body.
#[tokio::test]
async fn stop_resets_an_unfinished_body() {
    use tokio::io::AsyncReadExt;
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::raw(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n01234\r\n").hang());
    let mut options = options();
    options.limits.drain_timeout = Duration::from_millis(100);
    let mut proxy = TestProxy::start(options).await;
    let mut client = TestClient::connect(proxy.address).await;
    client.send(format!("GET {} HTTP/1.0\r\n\r\n", origin.url("/a")).as_bytes()).await;
    client.head().await;
    assert_eq!(client.take(5).await, b"01234");
    proxy.stop().await;
    let error = client.stream.read(&mut [0; 8]).await.expect_err("no good end");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

/// A proxy that has inherited its listener, over a store on a device that the test can change.
async fn inheriting(device: &SharedDevice) -> (Proxy, Store, Shutdown) {
    inheriting_with(device, options(), None).await
}

async fn inheriting_with(
    device: &SharedDevice,
    options: ProxyOptions,
    successor: Option<PurgeElsewhere>,
) -> (Proxy, Store, Shutdown) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let listen = vec![listener.local_addr().expect("an address")];
    let store = Store::open(device.clone(), OpenOptions { warm_up: false, ..OpenOptions::default() }).await;
    let (store, shutdown) = (store.expect("an open store"), Shutdown::new());
    let mut bound = Proxy::bind_with(ProxyOptions { listen, ..options }, vec![listener].into()).expect("bound");
    assert!(bound.has_successor());
    if let Some(successor) = successor {
        bound = bound.with_successor(successor);
    }
    (bound.serve(store.clone(), shutdown.clone()).expect("a proxy"), store, shutdown)
}

async fn new_device() -> SharedDevice {
    let device: SharedDevice = Arc::new(MemoryDevice::new(256 << 20));
    Store::create(device.clone(), &CreateOptions::default()).await.expect("a store");
    device
}

async fn ended(proxy: Proxy) {
    tokio::task::spawn_blocking(move || proxy.wait()).await.expect("joined").expect("a good end");
}

#[tokio::test]
async fn next_request_bypasses_released_store() {
    let device = new_device().await;
    let (proxy, store, shutdown) = inheriting(&device).await;
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(b"old")).on("/a", OriginScript::fresh(b"new"));
    let line = format!("GET {} HTTP/1.1", origin.url("/a"));
    let mut client = TestClient::connect(proxy.addresses()[0]).await;
    let mut purging = TestClient::connect(proxy.addresses()[0]).await;
    assert_eq!(client.ask(&[&line]).await.text(), "old");
    assert!(client.ask(&[&line]).await.is_hit());
    assert!(purging.ask(&[&line]).await.is_hit());
    shutdown.request();
    proxy.left().await;
    store.close().await.expect("closed");
    let reply = client.ask(&[&line]).await;
    assert_eq!((reply.text().as_str(), reply.header("connection").as_str()), ("new", "close"), "{reply:?}");
    let purge = purging.ask(&[&format!("PURGE {} HTTP/1.1", origin.url("/a")), AUTHORIZATION]).await;
    assert_eq!((purge.status, purge.header("connection").as_str()), (503, "close"));
    ended(proxy).await;
}

/// A plain request takes a way of its own, which must not lead into the store either.
#[tokio::test]
async fn plain_request_bypasses_released_store() {
    let (device, origin) = (new_device().await, TestOrigin::start().await);
    origin.on("/a", OriginScript::fresh(b"old")).on("/a", OriginScript::fresh(b"new"));
    let url = Some(format!("http://{}", origin.address).parse().expect("an origin"));
    let (proxy, store, shutdown) = inheriting_with(&device, ProxyOptions { origin: url, ..options() }, None).await;
    let mut client = TestClient::connect(proxy.addresses()[0]).await;
    assert_eq!(client.ask(&["GET /a HTTP/1.1"]).await.text(), "old");
    assert!(client.ask(&["GET /a HTTP/1.1"]).await.is_hit());
    shutdown.request();
    proxy.left().await;
    store.close().await.expect("closed");
    let reply = client.ask(&["GET /a HTTP/1.1"]).await;
    assert_eq!((reply.text().as_str(), reply.header("connection").as_str()), ("new", "close"), "{reply:?}");
    ended(proxy).await;
}

/// Such connections end after a second, long before the time for requests under way is over.
#[tokio::test]
async fn inherited_idle_connections_end_soon() {
    let (device, origin) = (new_device().await, TestOrigin::start().await);
    origin.on("/a", OriginScript::fresh(b"x"));
    let (proxy, _store, shutdown) = inheriting(&device).await;
    let (mut client, mut silent) =
        (TestClient::connect(proxy.addresses()[0]).await, TestClient::connect(proxy.addresses()[0]).await);
    assert_eq!(client.ask(&[&format!("GET {} HTTP/1.1", origin.url("/a"))]).await.text(), "x");
    let begun = Instant::now();
    shutdown.request();
    assert!(client.rest().await.is_empty() && silent.rest().await.is_empty());
    ended(proxy).await;
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

/// What an unsafe request under way may change is gone before another process opens the store, which is told when the
/// request has ended.
#[tokio::test]
async fn unsafe_requests_purge_before_handover() {
    for has_successor in [false, true] {
        let (device, origin) = (new_device().await, TestOrigin::start().await);
        origin.on("/a", OriginScript::fresh(b"old"));
        let told = Arc::new(Mutex::new(Vec::new()));
        let heard = told.clone();
        let successor: PurgeElsewhere = Arc::new(move |params| {
            heard.lock().expect("a lock").push(params.clone());
            Ok(())
        });
        let (proxy, store, shutdown) = inheriting_with(&device, options(), has_successor.then_some(successor)).await;
        let url = origin.url("/a");
        assert_eq!(get(proxy.addresses()[0], &url, &[]).await.text(), "old");
        origin.now("/a", OriginScript::raw(b"").wait("answer").then(b"HTTP/1.1 204 No Content\r\n\r\n"));
        let mut client = TestClient::connect(proxy.addresses()[0]).await;
        client.send(request(&[&format!("POST {url} HTTP/1.1"), "content-length: 0"]).as_bytes()).await;
        origin.wait_for(2).await;
        let key = nectary_store::KeyRef::new(url.as_bytes(), b"");
        assert!(store.get(key).await.is_some());
        shutdown.request();
        proxy.left().await;
        assert!(store.get(key).await.is_none(), "it may be changed already");
        store.close().await.expect("closed");
        origin.open("answer");
        assert_eq!(client.reply(false).await.status, 204);
        ended(proxy).await;
        let expected = if has_successor { vec![serde_json::json!({ "key": url })] } else { Vec::new() };
        assert_eq!(*told.lock().expect("a lock"), expected);
    }
}

/// Each inherited socket is used for what its address is for.
#[tokio::test]
async fn inherited_socket_serves_administration() {
    let device = new_device().await;
    let sockets = [(), ()].map(|()| std::net::TcpListener::bind("127.0.0.1:0").expect("a port"));
    let [clients, admin] = [&sockets[0], &sockets[1]].map(|socket| socket.local_addr().expect("an address"));
    let mut options = ProxyOptions { listen: vec![clients], workers: 2, ..options() };
    options.admin.listen = vec![admin];
    let proxy = Proxy::bind_with(options, sockets.into_iter().rev().collect::<Vec<_>>().into()).expect("bound");
    let store = Store::open(device, OpenOptions::default()).await.expect("an open store");
    let shutdown = Shutdown::new();
    let proxy = proxy.serve(store, shutdown.clone()).expect("a proxy");
    assert_eq!((proxy.addresses(), proxy.admin_addresses()), (&[clients][..], &[admin][..]));
    let refused = get(admin, "http://127.0.0.1:1/", &[]).await;
    assert!(refused.cache_status().contains("admin-only"), "{refused:?}");
    assert_eq!(get(clients, "http://127.0.0.1:1/", &[]).await.status, 502);
    shutdown.request();
    ended(proxy).await;
}

#[tokio::test]
async fn fetch_survives_store_close() {
    let device = new_device().await;
    let (proxy, store, shutdown) = inheriting(&device).await;
    let origin = TestOrigin::start().await;
    let (first, rest) = (vec![1; 3 << 20], vec![2; 5 << 20]);
    let head = b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: 8388608\r\n\r\n";
    origin.on("/a", OriginScript::raw(&[&head[..], &first].concat()).wait("rest").then(&rest));
    let mut client = TestClient::connect(proxy.addresses()[0]).await;
    client.send(request(&[&format!("GET {} HTTP/1.1", origin.url("/a"))]).as_bytes()).await;
    assert_eq!(client.head().await.status, 200);
    assert_eq!(client.take(first.len()).await, first);
    shutdown.request();
    let begun = Instant::now();
    proxy.left().await;
    store.close().await.expect("closed");
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    origin.open("rest");
    assert!(client.take(rest.len()).await == rest);
    let stats = proxy.stats();
    ended(proxy).await;
    assert_eq!(stats.snapshot().failed_fills, 0);
}

/// Overwrites everything on a device that no store has open.
async fn overwrite(device: &SharedDevice) {
    for offset in (0..device.geometry().size_bytes).step_by(1 << 20) {
        let zeroes = vec![Buffer::zeroed(1 << 20)];
        device.write_at(offset, zeroes, Default::default(), Default::default()).await.expect("written");
    }
}

#[tokio::test]
async fn memory_bodies_survive_stop() {
    let device = new_device().await;
    let (proxy, store, shutdown) = inheriting(&device).await;
    let origin = TestOrigin::start().await;
    let body: Vec<u8> = (0..24u32 << 20).map(|at| (at >> 12) as u8).collect();
    origin.on("/a", OriginScript::ok(&["cache-control: max-age=3600", "etag: \"a\""], &body));
    let line = format!("GET {} HTTP/1.1", origin.url("/a"));
    assert!(TestClient::connect(proxy.addresses()[0]).await.ask(&[&line]).await.body == body);
    let mut client = TestClient::connect(proxy.addresses()[0]).await;
    client.send(request(&[&line]).as_bytes()).await;
    assert!(client.head().await.is_hit());
    let mut found = client.take(1 << 20).await;
    shutdown.request();
    proxy.left().await;
    store.close().await.expect("closed");
    overwrite(&device).await;
    found.extend(client.take(body.len() - found.len()).await);
    assert!(found == body, "the bytes are those of the whole body");
    let stats = proxy.stats();
    ended(proxy).await;
    assert_eq!((origin.count(), stats.snapshot().resumed), (1, 0), "neither disk nor origin has the rest");
}

#[tokio::test]
async fn lost_body_resumes_from_origin() {
    let device = new_device().await;
    let origin = TestOrigin::start().await;
    let body: Vec<u8> = (0..24u32 << 20).map(|at| (at >> 12) as u8).collect();
    let headers = ["cache-control: max-age=3600", "etag: \"a\""];
    origin.on("/a", OriginScript::ok(&headers, &body));
    let line = format!("GET {} HTTP/1.1", origin.url("/a"));
    let (proxy, store, shutdown) = inheriting(&device).await;
    assert!(TestClient::connect(proxy.addresses()[0]).await.ask(&[&line]).await.body == body);
    shutdown.request();
    ended(proxy).await;
    store.close().await.expect("closed");
    drop(store);
    // The next store has nothing in memory.
    let (proxy, store, shutdown) = inheriting(&device).await;
    let mut client = TestClient::connect(proxy.addresses()[0]).await;
    client.send(request(&[&line]).as_bytes()).await;
    let head = client.head().await;
    assert!(head.is_hit(), "{head:?}");
    let mut found = client.take(1 << 20).await;
    shutdown.request();
    proxy.left().await;
    store.close().await.expect("closed");
    overwrite(&device).await;
    origin.now("/a", OriginScript::range(&["etag: \"a\""], &body));
    found.extend(client.take(body.len() - found.len()).await);
    assert!(found == body, "the bytes are those of the whole body");
    let got = origin.got().pop().expect("a request");
    assert_eq!(got.header("if-range"), "\"a\"");
    assert!(got.header("range").ends_with(&format!("-{}", body.len() - 1)), "{}", got.header("range"));
    let stats = proxy.stats();
    ended(proxy).await;
    assert_eq!(stats.snapshot().resumed, 1);
}
