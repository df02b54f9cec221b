//! Several servers of one origin: turns, failover, and one key whichever answers.

use nectary_store::KeyRef;

use crate::common::sites::{at, config, configured, origin, route, site};
use crate::common::*;

/// A proxy of one site over these servers.
async fn over(servers: &[std::net::SocketAddr]) -> TestProxy {
    configured(config(vec![site(&["a"], vec![route("/", "o")])], vec![origin("o", servers)])).await
}

/// An address at which nothing listens.
async fn free() -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    listener.local_addr().expect("an address")
}

#[tokio::test]
async fn servers_take_turns_and_share_keys() {
    let servers = [TestOrigin::start().await, TestOrigin::start().await];
    for server in &servers {
        server.on("/x", OriginScript::fresh(b"x")).on("/y", OriginScript::ok(&["cache-control: no-store"], b"y"));
    }
    let proxy = over(&[servers[0].address, servers[1].address]).await;
    for _ in 0..6 {
        assert_eq!(get(proxy.address, "/y", &["host: a"]).await.text(), "y");
    }
    assert_eq!((servers[0].count(), servers[1].count()), (3, 3));
    for server in &servers {
        assert_eq!(server.got()[0].header("host"), server.address.to_string());
    }
    for round in 0..4 {
        assert_eq!(get(proxy.address, "/x", &["host: a"]).await.is_hit(), round > 0);
    }
    assert!(proxy.store.get(KeyRef::new(b"http://a/x", b"")).await.is_some());
}

#[tokio::test]
async fn a_dead_server_costs_no_request() {
    let live = TestOrigin::start().await;
    live.on("/x", OriginScript::ok(&["cache-control: no-store"], b"x"));
    let proxy = over(&[free().await, live.address]).await;
    // Nothing of the first request was sent to the dead server, so the next one gets all of it.
    let mut client = TestClient::connect(proxy.address).await;
    client.send(b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nhi").await;
    assert_eq!(client.reply(false).await.status, 200);
    assert_eq!(live.got()[0].body, b"hi");
    for _ in 0..8 {
        assert_eq!(get(proxy.address, "/x", &["host: a"]).await.text(), "x");
    }
    assert_eq!(live.count(), 9);
    let down = proxy.reader().origins_down();
    assert_eq!((down.len(), down[0].name.as_str()), (1, "o"), "{down:?}");
}

#[tokio::test]
async fn websocket_skips_dead_server() {
    const ASK: [&str; 4] = ["GET /socket HTTP/1.1", "host: a", "connection: upgrade", "upgrade: websocket"];
    let live = TestOrigin::start().await;
    live.on("/socket", OriginScript::response("426 Upgrade Required", &["upgrade: websocket"], b"no"));
    let proxy = over(&[free().await, live.address]).await;
    for _ in 0..4 {
        assert_eq!(TestClient::connect(proxy.address).await.ask(&ASK).await.status, 426);
    }
    assert_eq!(live.got()[0].header("host"), live.address.to_string());
}

#[tokio::test]
async fn reload_keeps_server_state() {
    let dead = free().await;
    let made = || config(vec![site(&["a"], vec![route("/", "o")])], vec![origin("o", &[dead])]);
    let proxy = configured(made()).await;
    for _ in 0..3 {
        assert_eq!(get(proxy.address, "/x", &["host: a"]).await.status, 502);
    }
    let before = proxy.reader().origins_down();
    proxy.reopener().reload(&std::sync::Arc::new(made())).expect("a good configuration");
    assert_eq!((proxy.reader().origins_down(), before.len()), (before, 1));
}

#[tokio::test]
async fn reload_keeps_counts_of_servers() {
    let server = TestOrigin::start().await;
    server.on("/x", OriginScript::ok(&["cache-control: no-store"], b"x"));
    let made = || config(vec![site(&["a"], vec![route("/", "o")])], vec![origin("o", &[server.address])]);
    let proxy = configured(made()).await;
    for _ in 0..3 {
        assert_eq!(get(proxy.address, "/x", &["host: a"]).await.status, 200);
    }
    proxy.reopener().reload(&std::sync::Arc::new(made())).expect("a good configuration");
    let counts: Vec<_> = proxy.reader().servers().iter().map(|server| server.requests).collect();
    assert_eq!(counts, [3], "a counter of a monitor never goes back");
}

#[tokio::test]
async fn an_unsafe_request_is_sent_once() {
    let servers = [TestOrigin::start().await, TestOrigin::start().await];
    for server in &servers {
        server
            .on("/x", OriginScript::default().close())
            .on("/y", OriginScript::raw(b"HTTP/1.1 200 OK\r\ncontent").close());
    }
    let proxy = over(&[servers[0].address, servers[1].address]).await;
    let mut client = TestClient::connect(proxy.address).await;
    client.send(b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nhi").await;
    assert_eq!(client.reply(false).await.status, 502);
    assert_eq!(servers[0].count() + servers[1].count(), 1);
    // A safe one goes to the other server.
    assert_eq!(get(proxy.address, "/x", &["host: a"]).await.status, 502);
    assert!(servers[0].count() > 0 && servers[1].count() > 0);
}

#[tokio::test]
async fn returned_server_gets_requests() {
    let (address, live) = (free().await, TestOrigin::start().await);
    live.on("/x", OriginScript::ok(&["cache-control: no-store"], b"x"));
    let proxy = over(&[address, live.address]).await;
    for _ in 0..8 {
        get(proxy.address, "/x", &["host: a"]).await;
    }
    let back = TestOrigin::start_at(address).await;
    back.on("/x", OriginScript::ok(&["cache-control: no-store"], b"x"));
    while back.count() == 0 {
        assert_eq!(get(proxy.address, "/x", &["host: a"]).await.text(), "x");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(proxy.reader().origins_down().is_empty());
}

#[tokio::test]
async fn weights_are_shares() {
    let servers = [TestOrigin::start().await, TestOrigin::start().await];
    for server in &servers {
        server.on("/x", OriginScript::ok(&["cache-control: no-store"], b"x"));
    }
    let mut pool = origin("o", &[servers[0].address, servers[1].address]);
    pool.servers[0].value.weight = Some(at(3));
    let proxy = configured(config(vec![site(&["a"], vec![route("/", "o")])], vec![pool])).await;
    for _ in 0..12 {
        get(proxy.address, "/x", &["host: a"]).await;
    }
    assert_eq!((servers[0].count(), servers[1].count()), (9, 3));
}
