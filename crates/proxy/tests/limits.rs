//! Every size, count and time that a client or an origin decides has a limit.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nectary_config::RequestRate;
use nectary_proxy::{AccessLog, ProxyOptions};

use crate::common::http2::Http2Client;
use crate::common::*;

#[tokio::test]
async fn heads_and_urls_are_bounded() {
    let mut options = options();
    options.limits.request_head_bytes_max = 4096;
    options.limits.url_bytes_max = 1000;
    let proxy = TestProxy::start(options).await;
    let long = "x".repeat(5000);
    let header = format!("GET http://a/ HTTP/1.1\r\nhost: a\r\nx: {long}\r\n\r\n");
    let many = format!("GET http://a/ HTTP/1.1\r\nhost: a\r\n{}\r\n", "x: y\r\n".repeat(101));
    let url = format!("GET http://a/{} HTTP/1.1\r\nhost: a\r\n\r\n", &long[..1000]);
    for (head, status) in [(&header, 431), (&many, 431), (&url, 414)] {
        let mut client = TestClient::connect(proxy.address).await;
        client.send(head.as_bytes()).await;
        assert_eq!(client.reply(false).await.status, status);
        assert!(client.rest().await.is_empty());
    }
}

#[tokio::test]
async fn bodies_of_requests_are_bounded() {
    let origin = TestOrigin::start().await;
    let mut options = options();
    options.limits.request_body_bytes_max = 10;
    let proxy = TestProxy::start(options).await;
    let line = format!("POST {} HTTP/1.1", origin.url("/a"));
    let mut client = TestClient::connect(proxy.address).await;
    client.send(request(&[&line, "content-length: 11"]).as_bytes()).await;
    assert_eq!(client.reply(false).await.status, 413);
    let mut client = TestClient::connect(proxy.address).await;
    client.send(request(&[&line, "transfer-encoding: chunked"]).as_bytes()).await;
    client.send(b"b\r\n01234567890\r\n0\r\n\r\n").await;
    assert_eq!(client.reply(false).await.status, 413);
    assert_eq!((origin.count(), proxy.stats().origin_failures), (0, 0));
}

#[tokio::test]
async fn dripping_head_times_out() {
    let mut options = options();
    options.limits.head_timeout = Duration::from_millis(500);
    let proxy = TestProxy::start(options).await;
    let mut client = TestClient::connect(proxy.address).await;
    client.send(b"GET http://a/ HTTP/1.1\r\nhost").await;
    assert!(client.reply_or_end().await.is_none());
    assert_eq!(proxy.stats().overdue_connections, 1);
}

#[tokio::test]
async fn idle_connections_time_out() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(b"x"));
    let mut options = options();
    options.limits.keep_alive_timeout = Duration::from_millis(500);
    let proxy = TestProxy::start(options).await;
    let mut client = TestClient::connect(proxy.address).await;
    let line = format!("GET {} HTTP/1.1", origin.url("/a"));
    assert_eq!(client.ask(&[&line]).await.status, 200);
    assert_eq!(client.ask(&[&line]).await.status, 200);
    assert!(client.rest().await.is_empty());
    proxy.wait_for(|stats| stats.connections_open == 0).await;
}

#[tokio::test]
async fn stalled_request_body_times_out() {
    let origin = TestOrigin::start().await;
    let mut options = options();
    options.limits.body_timeout = Duration::from_millis(500);
    let proxy = TestProxy::start(options).await;
    let mut client = TestClient::connect(proxy.address).await;
    let line = format!("POST {} HTTP/1.1", origin.url("/a"));
    client.send(request(&[&line, "content-length: 100"]).as_bytes()).await;
    client.send(b"some").await;
    let reply = client.reply_or_end().await;
    assert!(reply.is_none_or(|reply| reply.status >= 400));
    proxy.wait_for(|stats| stats.connections_open == 0).await;
}

#[tokio::test]
async fn unreading_client_times_out() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(&vec![7; 32 << 20]));
    let mut options = options();
    options.limits.write_timeout = Duration::from_millis(500);
    let proxy = TestProxy::start(options).await;
    let mut client = TestClient::connect(proxy.address).await;
    client.send(request(&[&format!("GET {} HTTP/1.1", origin.url("/a"))]).as_bytes()).await;
    proxy.wait_for(|stats| stats.overdue_connections == 1 && stats.connections_open == 0).await;
    assert!(client.rest().await.len() < 32 << 20);
}

#[tokio::test]
async fn excess_connections_get_503() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(b"x"));
    let mut options = options();
    options.limits.connections_max = 2;
    let proxy = TestProxy::start(options).await;
    let line = format!("GET {} HTTP/1.1", origin.url("/a"));
    let (mut first, mut second) = (TestClient::connect(proxy.address).await, TestClient::connect(proxy.address).await);
    // Both are in a request, however long it takes.
    for client in [&mut first, &mut second] {
        assert_eq!(client.ask(&[&line]).await.status, 200);
        client.send(&request(&[&line]).as_bytes()[..9]).await;
    }
    let mut third = TestClient::connect(proxy.address).await;
    let reply = third.reply(false).await;
    assert_eq!((reply.status, reply.header("retry-after").as_str()), (503, "1"));
    assert!(reply.header("date").ends_with(" GMT") && reply.header("connection") == "close");
    second.send(&request(&[&line]).as_bytes()[9..]).await;
    assert_eq!(second.reply(false).await.status, 200, "a client in a request keeps its place");
    drop(first);
    proxy.wait_for(|stats| stats.connections_open == 1).await;
    let mut third = TestClient::connect(proxy.address).await;
    assert_eq!(third.ask(&[&line]).await.status, 200);
    assert_eq!((proxy.stats().excess_connections, proxy.stats().displaced_connections), (1, 0));
}

/// Connects from an address of this machine.
async fn connect_from(source: [u8; 4], to: SocketAddr) -> TestClient {
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.bind(SocketAddr::from((source, 0))).expect("an address of this machine");
    TestClient::of(socket.connect(to).await.expect("a connection"))
}

#[tokio::test]
async fn connections_of_a_network_are_bounded() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(b"x"));
    let mut options = options();
    options.workers = 2;
    options.limits.by_network.connections_max = Some(2);
    options.admin.listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    let proxy = TestProxy::start(options).await;
    let line = format!("GET {} HTTP/1.1", origin.url("/a"));
    let (mut first, mut second) = (TestClient::connect(proxy.address).await, TestClient::connect(proxy.address).await);
    for client in [&mut first, &mut second] {
        assert_eq!(client.ask(&[&line]).await.status, 200);
    }
    let reply = TestClient::connect(proxy.address).await.reply(false).await;
    assert_eq!((reply.status, reply.header("retry-after").as_str()), (429, "1"));
    assert_eq!(reply.cache_status(), "nectary; detail=client-connections");
    let reply = connect_from([127, 0, 0, 2], proxy.address).await.ask(&[&line]).await;
    assert_eq!(reply.status, 200, "another network");
    let admin = proxy.admin_address.expect("one");
    assert_eq!(TestClient::connect(admin).await.ask(&["GET http://a/ HTTP/1.1"]).await.status, 405, "an operator");
    drop(first);
    proxy.wait_for(|stats| stats.connections_open == 1).await;
    assert_eq!(TestClient::connect(proxy.address).await.ask(&[&line]).await.status, 200);
    let stats = proxy.stats();
    assert_eq!((stats.limited_connections, stats.excess_connections), (1, 0));
}

/// The limit holds for answers with and without hyper, and for both protocols.
#[tokio::test]
async fn requests_of_a_network_are_bounded() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(b"x"));
    let path = std::env::temp_dir().join(format!("nectary-proxy-limited-{}.log", std::process::id()));
    _ = std::fs::remove_file(&path);
    let url = Some(format!("http://{}", origin.address).parse().expect("an origin"));
    let mut options = ProxyOptions { origin: url, access_log: AccessLog::File(path.clone()), ..options() };
    options.workers = 2;
    options.limits.by_network.requests = Some(RequestRate { count: 4, period: Duration::from_secs(3600) });
    options.admin.listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    let mut proxy = TestProxy::start(options).await;
    let (plain, other) = (["GET /a HTTP/1.1"], ["GET /a HTTP/1.1", "x-other: 1"]);
    let mut client = TestClient::connect(proxy.address).await;
    for lines in [&plain[..], &plain, &other, &plain] {
        assert_eq!(client.ask(lines).await.status, 200);
    }
    for lines in [&plain[..], &other, &["POST /a HTTP/1.1", "content-length: 0"]] {
        let reply = client.ask(lines).await;
        assert_eq!((reply.status, reply.cache_status().as_str()), (429, "nectary; detail=client-requests"));
        let wait_s: u64 = reply.header("retry-after").parse().expect("seconds");
        assert!((1..=900).contains(&wait_s), "{wait_s}");
    }
    assert_eq!(Http2Client::plain(proxy.address).await.ask("GET", "http://test/a", &[]).await.status, 429);
    let reply = connect_from([127, 0, 0, 2], proxy.address).await.ask(&plain).await;
    assert!(reply.is_hit(), "another network");
    let admin = proxy.admin_address.expect("one");
    assert_eq!(TestClient::connect(admin).await.ask(&["GET http://a/ HTTP/1.1"]).await.status, 405, "an operator");
    assert_eq!((proxy.stats().limited_requests, origin.count()), (4, 1));
    drop(client);
    proxy.stop().await;
    let text = std::fs::read_to_string(&path).expect("a log");
    let refused = text.lines().filter(|line| line.contains("\" 429 ") && line.contains(" OWN "));
    assert_eq!(refused.count(), 4, "{text}");
    std::fs::remove_file(&path).expect("removed");
}

/// Connects and asks until the proxy has a place: clients are idle only after a while.
async fn served(address: std::net::SocketAddr, line: &str) -> TestClient {
    loop {
        let mut client = TestClient::connect(address).await;
        client.send(request(&[line]).as_bytes()).await;
        // A refused client may see its connection reset before it reads the refusal.
        if client.reply_or_end().await.is_some_and(|reply| reply.status == 200) {
            return client;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn idle_clients_keep_no_newcomer_out() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(b"x"));
    let mut options = options();
    options.limits.connections_max = 4;
    let proxy = TestProxy::start(options).await;
    let line = format!("GET {} HTTP/1.1", origin.url("/a"));
    let mut busy = TestClient::connect(proxy.address).await;
    busy.send(&request(&[&line]).as_bytes()[..9]).await;
    // The silent one has never sent a request.
    let mut silent = TestClient::connect(proxy.address).await;
    proxy.wait_for(|stats| stats.connections == 2).await;
    let (mut older, mut newer) = (TestClient::connect(proxy.address).await, TestClient::connect(proxy.address).await);
    assert_eq!(older.ask(&[&line]).await.status, 200);
    assert_eq!(newer.ask(&[&line]).await.status, 200);
    let mut newcomers = Vec::new();
    for (number, longest) in [&mut silent, &mut older].into_iter().enumerate() {
        newcomers.push(served(proxy.address, &line).await);
        assert!(longest.rest().await.is_empty(), "the {number}. is disconnected");
        assert_eq!(newer.ask(&[&line]).await.status, 200, "the others are not");
        assert_eq!(proxy.stats().displaced_connections, number as u64 + 1);
    }
    busy.send(&request(&[&line]).as_bytes()[9..]).await;
    assert_eq!(busy.reply(false).await.status, 200);
    for client in &mut newcomers {
        assert_eq!(client.ask(&[&line]).await.status, 200);
    }
    drop((busy, newer, newcomers));
    proxy.wait_for(|stats| stats.connections_open == 0).await;
    // All places are free again: as many as before are served, and no client is displaced.
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(TestClient::connect(proxy.address).await);
        assert_eq!(clients.last_mut().expect("a client").ask(&[&line]).await.status, 200);
    }
    assert_eq!(proxy.stats().displaced_connections, 2);
}

/// The next request of a client that has just been answered may be on its way.
#[tokio::test]
async fn answered_client_keeps_its_place() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(b"x"));
    let mut options = options();
    options.limits.connections_max = 1;
    let proxy = TestProxy::start(options).await;
    let line = format!("GET {} HTTP/1.1", origin.url("/a"));
    // A machine that stands still for a second makes the client idle; then it is tried again.
    for _ in 0..20 {
        let mut first = served(proxy.address, &line).await;
        let (before, begun) = (proxy.stats().displaced_connections, std::time::Instant::now());
        let refused =
            TestClient::connect(proxy.address).await.reply_or_end().await.is_none_or(|reply| reply.status == 503);
        if begun.elapsed() < Duration::from_millis(700) {
            assert!(refused && proxy.stats().displaced_connections == before);
            assert_eq!(first.ask(&[&line]).await.status, 200);
            return;
        }
    }
    panic!("the machine is too slow");
}

/// Eleven hundred idle clients displace no new one.
#[tokio::test]
async fn newcomers_displace_idle_clients_only() {
    nectary_host::descriptors::raise();
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(b"x"));
    let mut options = options();
    (options.limits.connections_max, options.workers) = (1000, 2);
    let proxy = TestProxy::start(options).await;
    let line = format!("GET {} HTTP/1.1", origin.url("/a"));
    let mut idle = Vec::new();
    for _ in 0..1100 {
        idle.push(tokio::net::TcpStream::connect(proxy.address).await.expect("a connection"));
    }
    let begun = std::time::Instant::now();
    let mut newcomers = Vec::new();
    for _ in 0..50 {
        newcomers.push(served(proxy.address, &line).await);
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    for client in &mut newcomers {
        assert_eq!(client.ask(&[&line]).await.status, 200, "no newcomer is displaced");
    }
    let stats = proxy.stats();
    assert!(stats.displaced_connections >= 50, "{stats:?}");
    proxy.wait_for(|stats| stats.connections_open <= 1000).await;
}

#[tokio::test]
async fn workers_give_each_other_idle_places() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(b"x"));
    let mut options = options();
    (options.limits.connections_max, options.workers) = (1, 4);
    let proxy = TestProxy::start(options).await;
    let line = format!("GET {} HTTP/1.1", origin.url("/a"));
    let mut last = served(proxy.address, &line).await;
    // One client after another takes the only place; most come to another worker than the one before.
    for displaced in 1..=6 {
        let next = served(proxy.address, &line).await;
        assert!(last.rest().await.is_empty());
        last = next;
        assert_eq!(proxy.stats().displaced_connections, displaced);
    }
    assert_eq!(last.ask(&[&line]).await.status, 200);
}

/// Several are idle, and the one that has been so for longest goes.
#[tokio::test]
async fn the_longest_idle_client_is_displaced() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(b"x"));
    let mut options = options();
    options.limits.connections_max = 2;
    let proxy = TestProxy::start(options).await;
    let line = format!("GET {} HTTP/1.1", origin.url("/a"));
    let mut older = served(proxy.address, &line).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut newer = served(proxy.address, &line).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let _newcomer = served(proxy.address, &line).await;
    assert!(older.rest().await.is_empty());
    assert_eq!(newer.ask(&[&line]).await.status, 200);
}

/// Newcomers reach workers at random; none is refused while any worker has an idle client.
#[tokio::test]
async fn idle_clients_of_workers_make_room() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(b"x"));
    let mut options = options();
    (options.limits.connections_max, options.workers) = (8, 4);
    let proxy = TestProxy::start(options).await;
    let line = format!("GET {} HTTP/1.1", origin.url("/a"));
    let mut idle = Vec::new();
    for _ in 0..8 {
        idle.push(served(proxy.address, &line).await);
    }
    tokio::time::sleep(Duration::from_millis(1600)).await;
    let mut newcomers = Vec::new();
    for _ in 0..8 {
        newcomers.push(TestClient::connect(proxy.address).await);
        assert_eq!(newcomers.last_mut().expect("a client").ask(&[&line]).await.status, 200);
    }
    let stats = proxy.stats();
    assert_eq!((stats.displaced_connections, stats.excess_connections), (8, 0));
}

#[tokio::test]
async fn connection_that_rested_serves_on() {
    let origin = TestOrigin::start().await;
    origin.on("/kept", OriginScript::ok(&["cache-control: max-age=60"], b"kept"));
    origin.on("/passed", OriginScript::ok(&["cache-control: no-store"], b"passed"));
    let proxy = TestProxy::forward().await;
    let (kept, passed) =
        (format!("GET {} HTTP/1.1", origin.url("/kept")), format!("GET {} HTTP/1.1", origin.url("/passed")));
    let mut clients = Vec::new();
    for line in [&kept, &passed] {
        let mut client = TestClient::connect(proxy.address).await;
        assert_eq!(client.ask(&[line]).await.status, 200);
        clients.push(client);
    }
    // Their memory for requests is given back after a second. One request comes in two pieces.
    for last in [&passed, &kept] {
        tokio::time::sleep(Duration::from_millis(1800)).await;
        for client in &mut clients {
            let request = client::request(&[last]);
            client.send(&request.as_bytes()[..9]).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
            client.send(&request.as_bytes()[9..]).await;
            let expected = if last == &passed { "passed" } else { "kept" };
            assert_eq!(client.reply(false).await.text(), expected);
            assert_eq!(client.ask(&[&kept]).await.text(), "kept");
        }
    }
    assert_eq!(proxy.stats().connections, 2);
}

#[tokio::test]
async fn origin_connections_are_reused() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(&["cache-control: no-store"], b"x"));
    let proxy = TestProxy::forward().await;
    for _ in 0..5 {
        assert_eq!(get(proxy.address, &origin.url("/a"), &[]).await.text(), "x");
    }
    assert_eq!((origin.count(), origin.connections()), (5, 1));
}

/// Waits until the proxy has closed `count` connections to the origin.
async fn wait_for_ends(origin: &TestOrigin, count: usize) {
    let ends = origin.wait_for_ends(count);
    tokio::time::timeout(Duration::from_secs(10), ends).await.expect("the proxy closes the connections");
}

#[tokio::test]
async fn origin_connections_stay_open() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(&["cache-control: no-store"], b"x"));
    let mut options = options();
    options.limits.origin_idle_timeout = Duration::from_millis(300);
    let proxy = TestProxy::start(options).await;
    for closed in 1..=2 {
        assert_eq!(get(proxy.address, &origin.url("/a"), &[]).await.text(), "x");
        wait_for_ends(&origin, closed).await;
    }
    assert_eq!(origin.connections(), 2);
}

#[tokio::test]
async fn unused_origin_connections_are_bounded() {
    let origin = TestOrigin::start().await;
    for path in ["/0", "/1", "/2"] {
        let answer = b"HTTP/1.1 200 OK\r\ncache-control: no-store\r\ncontent-length: 1\r\n\r\nx";
        origin.on(path, OriginScript::raw(b"").wait("answer").then(answer));
    }
    let mut options = options();
    options.limits.origin_idle_connections_max = 1;
    let proxy = TestProxy::start(options).await;
    let mut clients = Vec::new();
    for number in 0..3 {
        let mut client = TestClient::connect(proxy.address).await;
        client.send(request(&[&format!("GET {} HTTP/1.1", origin.url(&format!("/{number}")))]).as_bytes()).await;
        clients.push(client);
    }
    origin.wait_for(3).await;
    origin.open("answer");
    for client in &mut clients {
        assert_eq!(client.reply(false).await.text(), "x");
    }
    wait_for_ends(&origin, 2).await;
    // The one that is kept is used.
    assert_eq!(get(proxy.address, &origin.url("/0"), &[]).await.text(), "x");
    assert_eq!((origin.count(), origin.connections()), (4, 3));
}

#[tokio::test]
async fn connecting_takes_no_longer_than_allowed() {
    let probe = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = SocketAddr::from(([127, 0, 0, 31], probe.local_addr().expect("an address").port()));
    let _full = FullListener::start(address).await;
    let mut options = options();
    options.limits.connect_timeout = Duration::from_millis(600);
    let proxy = TestProxy::start(options).await;
    let begun = Instant::now();
    assert_eq!(get(proxy.address, &format!("http://{address}/a"), &[]).await.status, 504);
    let taken = begun.elapsed();
    assert!(taken >= Duration::from_millis(600) && taken < Duration::from_secs(6), "{taken:?}");
}

#[tokio::test]
async fn heads_of_responses_are_bounded() {
    let origin = TestOrigin::start().await;
    let long = format!("x-long: {}", "y".repeat(5000));
    origin.on("/a", OriginScript::fresh(b"x")).on("/long", OriginScript::ok(&[&long, "cache-control: no-store"], b"x"));
    for (max, status) in [(4096, 502), (8192, 200)] {
        let mut options = options();
        options.limits.response_head_bytes_max = max;
        let proxy = TestProxy::start(options).await;
        assert_eq!(get(proxy.address, &origin.url("/long"), &[]).await.status, status, "{max}");
        assert_eq!(get(proxy.address, &origin.url("/a"), &[]).await.status, 200, "{max}");
    }
}

/// Responses of fetches beyond the limit are passed on.
#[tokio::test]
async fn excess_fetches_are_not_stored() {
    let origin = TestOrigin::start().await;
    origin.on("/slow", OriginScript::raw(b"").wait("answer").then(b"HTTP/1.1 204 No Content\r\n\r\n"));
    origin.on("/a", OriginScript::fresh(b"x"));
    let mut options = options();
    options.limits.fills_max = 1;
    let proxy = TestProxy::start(options).await;
    let mut slow = TestClient::connect(proxy.address).await;
    slow.send(request(&[&format!("GET {} HTTP/1.1", origin.url("/slow"))]).as_bytes()).await;
    origin.wait_for(1).await;
    for _ in 0..2 {
        let reply = get(proxy.address, &origin.url("/a"), &[]).await;
        assert_eq!(
            (reply.text().as_str(), reply.cache_status().as_str()),
            ("x", "nectary; fwd=uri-miss; fwd-status=200")
        );
    }
    origin.open("answer");
    assert_eq!(slow.reply(false).await.status, 204);
    while !get(proxy.address, &origin.url("/a"), &[]).await.cache_status().contains("stored") {}
    assert!(get(proxy.address, &origin.url("/a"), &[]).await.is_hit());
}

#[tokio::test]
async fn event_stream_survives_allowed_silence() {
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n";
    for (silence, is_whole) in [(Duration::ZERO, true), (Duration::from_millis(250), false)] {
        let origin = TestOrigin::start().await;
        origin.on("/events", OriginScript::raw(head).wait("next").then(b"3\r\ntwo\r\n0\r\n\r\n"));
        let mut options = options();
        // The limit on the bodies of clients does not matter for what origins send.
        options.limits.body_timeout = Duration::from_millis(250);
        options.limits.origin_body_timeout = silence;
        let proxy = TestProxy::start(options).await;
        let mut client = TestClient::connect(proxy.address).await;
        client.send(request(&[&format!("GET {} HTTP/1.1", origin.url("/events"))]).as_bytes()).await;
        let pause = tokio::time::sleep(Duration::from_millis(1500));
        let (reply, ()) = tokio::join!(client.reply(false), async {
            pause.await;
            origin.open("next");
        });
        assert_eq!((reply.is_complete, reply.text().starts_with("one")), (is_whole, true), "{silence:?}: {reply:?}");
    }
}

#[tokio::test]
async fn header_count_is_limited() {
    let origin = TestOrigin::start().await;
    let many: Vec<String> = (0..150).map(|number| format!("x-{number}: y")).collect();
    let lines: Vec<&str> = many.iter().map(String::as_str).collect();
    origin.on("/a", OriginScript::ok(&lines, b"x"));
    for (max, status) in [(200, 200), (100, 502)] {
        let mut options = options();
        options.limits.headers_max = max;
        let proxy = TestProxy::start(options).await;
        assert_eq!(get(proxy.address, &origin.url("/a"), &[]).await.status, status, "{max}");
        let reply = get(proxy.address, &origin.url("/b"), &lines).await;
        assert_eq!(reply.status, if max == 200 { 404 } else { 431 }, "{max}");
    }
}
