//! Names of origins are looked up without blocking others; answers and failures are remembered for their time.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use nectary_proxy::ProxyOptions;
use tokio::net::TcpSocket;

use crate::common::*;

const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

async fn forward(files: &TestNameFiles) -> TestProxy {
    let mut options = ProxyOptions { names: files.names.clone(), ..options() };
    options.limits.drain_timeout = Duration::from_millis(100);
    TestProxy::start(options).await
}

fn url(name: &str, origin: &TestOrigin) -> String {
    format!("http://{name}:{}/a", origin.address.port())
}

async fn status_of(proxy: &TestProxy, name: &str, origin: &TestOrigin) -> u16 {
    get(proxy.address, &url(name, origin), &["connection: close"]).await.status
}

async fn origin() -> TestOrigin {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(&["cache-control: no-store"], b"1").close());
    origin
}

#[tokio::test]
async fn hosts_file_changes_are_followed() {
    let origin = origin().await;
    let files = TestNameFiles::new("127.0.0.1 here.test Also.Here.test", None);
    let proxy = forward(&files).await;
    for name in ["here.test", "HERE.test", "also.here.test", "here.test."] {
        assert_eq!(status_of(&proxy, name, &origin).await, 200, "{name}");
    }
    assert_eq!(status_of(&proxy, "later.test", &origin).await, 502);
    files.set_hosts("127.0.0.1 later.test");
    let begin = Instant::now();
    while status_of(&proxy, "later.test", &origin).await != 200 {
        assert!(begin.elapsed() < Duration::from_secs(5));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(status_of(&proxy, "here.test", &origin).await, 502);
}

#[tokio::test]
async fn another_name_server_is_followed() {
    let (origin, one, other) = (origin().await, NameServer::start().await, NameServer::start().await);
    one.on("a.test", NameResponse::NoName(30));
    other.on("a.test", NameResponse::Addresses(vec![LOCAL], 60));
    let files = TestNameFiles::new("", Some(one.address));
    let proxy = forward(&files).await;
    assert_eq!(status_of(&proxy, "a.test", &origin).await, 502);
    files.set_server(other.address);
    let begin = Instant::now();
    while status_of(&proxy, "a.test", &origin).await != 200 {
        assert!(begin.elapsed() < Duration::from_secs(5), "the old answer counts no more");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Answers and failures are requested once.
#[tokio::test]
async fn name_answers_are_cached() {
    let (origin, server) = (origin().await, NameServer::start().await);
    server
        .on("good.test", NameResponse::Addresses(vec![LOCAL], 60))
        .on("short.test", NameResponse::Addresses(vec![LOCAL], 0))
        .on("long.test", NameResponse::TooLong(vec![LOCAL]))
        .on("none.test", NameResponse::NoName(30))
        .on("empty.test", NameResponse::Addresses(vec![], 0))
        .on("failing.test", NameResponse::Failure);
    let files = TestNameFiles::new("", Some(server.address));
    let proxy = forward(&files).await;
    for (name, status) in [
        ("good.test", 200),
        ("short.test", 200),
        ("long.test", 200),
        ("none.test", 502),
        ("empty.test", 502),
        ("failing.test", 502),
    ] {
        assert_eq!(status_of(&proxy, name, &origin).await, status, "{name}");
        let asked = server.count(name);
        for _ in 0..3 {
            assert_eq!(status_of(&proxy, name, &origin).await, status, "{name}");
        }
        assert_eq!(server.count(name), asked, "{name}");
    }
    tokio::time::sleep(Duration::from_millis(1050)).await;
    let (short, good) = (server.count("short.test"), server.count("good.test"));
    for name in ["short.test", "good.test"] {
        assert_eq!(status_of(&proxy, name, &origin).await, 200);
    }
    assert_eq!((server.count("short.test"), server.count("good.test")), (short + 1, good), "its second is over");
}

#[tokio::test]
async fn concurrent_lookups_are_shared() {
    let (origin, server) = (origin().await, NameServer::start().await);
    let files = TestNameFiles::new("", Some(server.address));
    let proxy = forward(&files).await;
    let line = format!("GET {} HTTP/1.1", url("a.test", &origin));
    let mut clients = Vec::new();
    for number in 0..8 {
        let mut client = TestClient::connect(proxy.address).await;
        client.send(request(&[&line.replace("/a ", &format!("/a?{number} "))]).as_bytes()).await;
        clients.push(client);
    }
    while server.count("a.test") == 0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    server.on("a.test", NameResponse::Addresses(vec![LOCAL], 60));
    for client in &mut clients {
        assert_eq!(client.reply(false).await.status, 404, "the answer came to the second question");
    }
    assert_eq!(server.count("a.test"), 2);
}

/// Sends a request from an address of this machine.
async fn ask_from(from: &str, proxy: SocketAddr, url: &str) -> TestClient {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(format!("{from}:0").parse().expect("an address")).expect("bound");
    let mut client = TestClient::of(socket.connect(proxy).await.expect("a connection"));
    client.send(request(&[&format!("GET {url} HTTP/1.1")]).as_bytes()).await;
    client
}

/// With 64 names that no server answers, other names, addresses and clients are served at once.
#[tokio::test]
async fn silent_names_delay_only_their_client() {
    let (origin, server) = (origin().await, NameServer::start().await);
    server.on("good.test", NameResponse::Addresses(vec![LOCAL], 60));
    let files = TestNameFiles::new("", Some(server.address));
    let proxy = forward(&files).await;
    let mut waiting = Vec::new();
    for number in 0..64 {
        waiting.push(ask_from("127.0.0.2", proxy.address, &url(&format!("silent{number}.test"), &origin)).await);
    }
    let asked = || (0..64).filter(|number| server.count(&format!("silent{number}.test")) > 0).count();
    while asked() < 16 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let begin = Instant::now();
    for name in ["good.test", "127.0.0.1"] {
        assert_eq!(ask_from("127.0.0.3", proxy.address, &url(name, &origin)).await.reply(false).await.status, 200);
    }
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    assert_eq!(asked(), 16, "a client has a share of the lookups");
}
