//! How many connections a server gets, how requests wait for one, and how long a whole response may take.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nectary_config::OriginConfig;

use crate::common::sites::{at, config, configured, origin, route, site, with_workers};
use crate::common::*;

const ASK: &[u8] = b"GET /x HTTP/1.1\r\nhost: a\r\n\r\n";

/// An origin with one server and one connection.
fn narrow(server: &TestOrigin) -> OriginConfig {
    OriginConfig { connections_max: Some(at(1)), ..origin("o", &[server.address]) }
}

fn of(origin: OriginConfig) -> nectary_config::ProxyConfig {
    config(vec![site(&["a"], vec![route("/", "o")])], vec![origin])
}

/// An origin that answers `/x` when the gate is open.
async fn gated() -> TestOrigin {
    let answer = b"HTTP/1.1 200 OK\r\ncache-control: no-store\r\ncontent-length: 1\r\n\r\nx";
    let server = TestOrigin::start().await;
    server.on("/x", OriginScript::raw(b"").wait("gate").then(answer));
    server
}

#[tokio::test]
async fn requests_wait_for_the_only_connection() {
    let server = gated().await;
    let proxy = configured(of(narrow(&server))).await;
    let mut clients = Vec::new();
    for number in 0..6 {
        // Each asks for another URL, so that none waits for another's fetch.
        server.on(&format!("/{number}"), OriginScript::raw(b"").wait("gate").then(b"HTTP/1.1 204 No Content\r\n\r\n"));
        let mut client = TestClient::connect(proxy.address).await;
        client.send(format!("GET /{number} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes()).await;
        clients.push(client);
    }
    proxy.wait_for(|stats| stats.queued == 5).await;
    server.wait_for(1).await;
    assert_eq!((server.count(), server.connections()), (1, 1));
    server.open("gate");
    for client in &mut clients {
        assert_eq!(client.reply(false).await.status, 204);
    }
    assert_eq!((server.count(), server.connections()), (6, 1), "the connection is handed over");
    assert_eq!(proxy.stats().queue_refusals, 0);
}

#[tokio::test]
async fn too_many_that_wait_get_503() {
    let server = gated().await;
    let mut pool = OriginConfig { queue_max: Some(at(1)), ..narrow(&server) };
    pool.times.queue_time = Some(at(Duration::from_secs(2)));
    let proxy = configured(of(pool)).await;
    let mut first = TestClient::connect(proxy.address).await;
    first.send(b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nhi").await;
    server.wait_for(1).await;
    let mut second = TestClient::connect(proxy.address).await;
    second.send(b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nho").await;
    proxy.wait_for(|stats| stats.queued == 1).await;
    let mut third = TestClient::connect(proxy.address).await;
    third.send(b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nha").await;
    let crowded = third.reply(false).await;
    assert_eq!(crowded.status, 503);
    assert!(crowded.text().contains("1 requests wait for one already"), "{}", crowded.text());
    let late = second.reply(false).await;
    assert_eq!(late.status, 503);
    assert!(late.text().contains("none was free for 2s"), "{}", late.text());
    server.open("gate");
    assert_eq!(first.reply(false).await.status, 200);
    assert_eq!((server.count(), proxy.stats().queue_refusals), (1, 2));
    // The server is not to blame.
    assert_eq!(proxy.reader().origins_failing(), []);
}

#[tokio::test]
async fn workers_release_unused_connections() {
    let server = TestOrigin::start().await;
    server.on("/x", OriginScript::ok(&["cache-control: no-store"], b"x"));
    let proxy = with_workers(of(narrow(&server)), 4).await;
    let begin = Instant::now();
    for _ in 0..40 {
        assert_eq!(get(proxy.address, "/x", &["host: a"]).await.text(), "x");
    }
    assert!(begin.elapsed() < Duration::from_secs(5), "nobody waits for the end of the queue's time");
    assert!(server.connections() > 1, "several workers had requests");
}

#[tokio::test]
async fn there_are_never_more_connections() {
    let server = TestOrigin::start().await;
    server.on("/x", OriginScript::ok(&["cache-control: no-store"], b"x"));
    let pool = OriginConfig { connections_max: Some(at(2)), ..origin("o", &[server.address]) };
    let proxy = with_workers(of(pool), 4).await;
    let address = proxy.address;
    let clients = (0..8).map(|_| {
        tokio::spawn(async move {
            for _ in 0..25 {
                assert_eq!(get(address, "/x", &["host: a"]).await.text(), "x");
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.expect("all are answered");
    }
    // The origin sees an end a moment after a beginning on another connection.
    assert!(server.open_max() <= 4, "{} were open", server.open_max());
    assert!(proxy.stats().queued > 0);
}

#[tokio::test]
async fn idle_connections_make_no_server_full() {
    let servers = [TestOrigin::start().await, TestOrigin::start().await];
    for server in &servers {
        server.on("/x", OriginScript::ok(&["cache-control: no-store"], b"x"));
    }
    let pool = origin("o", &[servers[0].address, servers[1].address]);
    let proxy = configured(of(OriginConfig { connections_max: Some(at(1)), ..pool })).await;
    for _ in 0..10 {
        assert_eq!(get(proxy.address, "/x", &["host: a"]).await.text(), "x");
    }
    assert_eq!((servers[0].count(), servers[1].count()), (5, 5));
}

#[tokio::test]
async fn waits_in_queues_blame_no_server() {
    let server = TestOrigin::start().await;
    let switched = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n";
    server
        .on("/socket", OriginScript::raw(switched).wait("end").close())
        .on("/x", OriginScript::ok(&["cache-control: no-store"], b"x"));
    let mut pool = narrow(&server);
    pool.times.total_time = Some(at(Duration::from_millis(200)));
    pool.times.queue_time = Some(at(Duration::from_secs(20)));
    let proxy = configured(of(pool)).await;
    // A tunnel keeps the only place.
    let mut tunnel = TestClient::connect(proxy.address).await;
    tunnel.send(b"GET /socket HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n").await;
    assert_eq!(tunnel.head().await.status, 101);
    for _ in 0..4 {
        let late = get(proxy.address, "/x", &["host: a"]).await;
        assert_eq!(late.status, 503);
        assert!(late.text().contains("none was free in the time for the whole response"), "{}", late.text());
    }
    assert_eq!((server.count(), proxy.reader().origins_failing()), (1, vec![]));
    server.open("end");
    drop(tunnel);
    while get(proxy.address, "/x", &["host: a"]).await.status != 200 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_whole_response_has_its_time() {
    let server = TestOrigin::start().await;
    let head = b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: 100\r\n\r\nsome";
    server.on("/half", OriginScript::raw(head).hang()).on("/none", OriginScript::default().hang());
    let mut pool = origin("o", &[server.address]);
    pool.times.total_time = Some(at(Duration::from_millis(300)));
    let proxy = configured(of(pool)).await;
    assert_eq!(get(proxy.address, "/none", &["host: a"]).await.status, 504);
    let half = get(proxy.address, "/half", &["host: a"]).await;
    assert_eq!((half.status, half.is_complete), (200, false));
    proxy.wait_for(|stats| stats.failed_fills >= 1).await;
    server.now("/half", OriginScript::fresh(b"whole"));
    assert_eq!(get(proxy.address, "/half", &["host: a"]).await.text(), "whole");
}

#[tokio::test]
async fn checks_need_no_place() {
    let server = gated().await;
    server.on("/health", OriginScript::ok(&[], b""));
    let check = nectary_config::HealthCheck {
        path: at("/health".to_owned()),
        interval: Some(at(Duration::from_millis(20))),
        ..Default::default()
    };
    let proxy = configured(of(OriginConfig { check: Some(at(check)), ..narrow(&server) })).await;
    let mut client = TestClient::connect(proxy.address).await;
    client.send(ASK).await;
    server.wait_for(6).await;
    assert_eq!(proxy.reader().origins_unhealthy(), []);
    server.open("gate");
    assert_eq!(client.reply(false).await.status, 200);
}

/// Sends a request that nobody else's answer can answer.
async fn post(client: &mut TestClient) {
    client.send(b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nhi").await;
}

/// The two clients are often at different workers, and then the one with the connection has nobody who waits.
#[tokio::test]
async fn freed_place_goes_to_waiting_worker() {
    for _ in 0..12 {
        let server = gated().await;
        let mut pool = narrow(&server);
        pool.times.queue_time = Some(at(Duration::from_secs(2)));
        let proxy = with_workers(of(pool), 2).await;
        let mut clients = [TestClient::connect(proxy.address).await, TestClient::connect(proxy.address).await];
        post(&mut clients[0]).await;
        server.wait_for(1).await;
        post(&mut clients[1]).await;
        proxy.wait_for(|stats| stats.queued == 1).await;
        server.open("gate");
        for client in &mut clients {
            assert_eq!(client.reply(false).await.status, 200);
        }
    }
}

#[tokio::test]
async fn busy_worker_leaves_turns_to_others() {
    let server = TestOrigin::start().await;
    server.on("/x", OriginScript::ok(&["cache-control: no-store"], b"x"));
    let mut pool = narrow(&server);
    pool.times.queue_time = Some(at(Duration::from_secs(2)));
    let proxy = with_workers(of(pool), 2).await;
    let (address, left) = (proxy.address, Arc::new(AtomicUsize::new(16)));
    let clients = (0..16).map(|_| {
        let left = left.clone();
        // Nobody stops before everybody has been answered, so no worker is without requests that wait.
        tokio::spawn(async move {
            let (mut client, mut count) = (TestClient::connect(address).await, 0);
            while left.load(Ordering::Relaxed) > 0 {
                post(&mut client).await;
                let status = client.reply(false).await.status;
                count += 1;
                match status {
                    200 if count == 5 => _ = left.fetch_sub(1, Ordering::Relaxed),
                    200 => {}
                    refused => {
                        left.store(0, Ordering::Relaxed);
                        return refused;
                    }
                }
            }
            200
        })
    });
    for client in clients.collect::<Vec<_>>() {
        assert_eq!(client.await.expect("an answer"), 200, "it waited in vain");
    }
}

#[tokio::test]
async fn handed_connection_ends_when_unused() {
    let server = gated().await;
    let mut pool = narrow(&server);
    pool.times.keep_alive = Some(at(Duration::from_millis(500)));
    let proxy = configured(of(pool)).await;
    let mut clients = [TestClient::connect(proxy.address).await, TestClient::connect(proxy.address).await];
    post(&mut clients[0]).await;
    server.wait_for(1).await;
    post(&mut clients[1]).await;
    proxy.wait_for(|stats| stats.queued == 1).await;
    server.open("gate");
    for client in &mut clients {
        assert_eq!(client.reply(false).await.status, 200);
    }
    assert_eq!(server.connections(), 1, "it was handed over");
    let ended = tokio::time::timeout(Duration::from_secs(10), server.wait_for_ends(1)).await;
    assert!(ended.is_ok(), "it counts as busy");
}
