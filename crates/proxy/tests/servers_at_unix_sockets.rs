//! Servers of origins at Unix sockets: they are asked, kept and left out as others are.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nectary_config::{OriginConfig, ProxyConfig, ServerConfig, ServerScheme, ServerUrl};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{TcpStream, UnixListener};

use crate::common::sites::{at, config, configured, route, site};
use crate::common::*;

/// A new directory, which is removed at the end.
struct ServerSocketDirectory(PathBuf);

impl ServerSocketDirectory {
    fn new(name: &str) -> ServerSocketDirectory {
        let path = std::env::temp_dir().join(format!("nectary-app-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a folder");
        ServerSocketDirectory(path)
    }
}

impl Drop for ServerSocketDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A site of one origin with these servers.
fn over(paths: &[&Path]) -> ProxyConfig {
    let server = |path: &&Path| {
        let url = ServerUrl { scheme: ServerScheme::Unix, host: path.display().to_string(), port: 0 };
        at(ServerConfig { url: at(url), weight: None })
    };
    let servers = paths.iter().map(server).collect();
    let origin = OriginConfig { name: at("o".to_owned()), servers, ..OriginConfig::default() };
    config(vec![site(&["site.test"], vec![route("/", "o")])], vec![origin])
}

/// Passes the connections at a Unix socket on to an origin.
async fn relay(listener: UnixListener, to: SocketAddr) {
    while let Ok((mut near, _)) = listener.accept().await {
        tokio::spawn(async move {
            let mut far = TcpStream::connect(to).await.expect("the origin listens");
            // Either side may end it.
            _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
        });
    }
}

#[tokio::test]
async fn server_at_a_unix_socket_answers() {
    let from = TestOrigin::start().await;
    from.on("/a", OriginScript::fresh(b"hello")).on("/b", OriginScript::ok(&["cache-control: no-store"], b"b"));
    from.on("/c", OriginScript::response("302 Found", &["location: http://localhost/b"], b""));
    let folder = ServerSocketDirectory::new("answers");
    let path = folder.0.join("app.sock");
    tokio::spawn(relay(UnixListener::bind(&path).expect("a socket"), from.address));
    let proxy = configured(over(&[&path])).await;
    for round in 0..3 {
        let reply = get(proxy.address, "/a", &["host: site.test"]).await;
        assert_eq!((reply.text().as_str(), reply.is_hit()), ("hello", round > 0));
    }
    for _ in 0..3 {
        assert_eq!(get(proxy.address, "/b", &["host: site.test"]).await.text(), "b");
    }
    assert_eq!(get(proxy.address, "/c", &["host: site.test"]).await.header("location"), "/b");
    let mut client = TestClient::connect(proxy.address).await;
    client.send(b"POST /b HTTP/1.1\r\nhost: site.test\r\ncontent-length: 2\r\n\r\nhi").await;
    assert_eq!(client.reply(false).await.status, 200);
    let got = from.got();
    assert!(got.iter().all(|got| got.header("host") == "localhost"));
    assert_eq!(got.last().expect("a request").body, b"hi");
    assert_eq!((got.len(), from.connections()), (6, 1), "connections are kept");
    let figures = proxy.reader().servers();
    assert_eq!(figures[0].url, format!("unix:{}", path.display()));
}

#[tokio::test]
async fn unix_server_may_speak_http2() {
    let from = Http2Origin::start().await;
    let folder = ServerSocketDirectory::new("http2");
    let path = folder.0.join("app.sock");
    tokio::spawn(relay(UnixListener::bind(&path).expect("a socket"), from.address));
    let mut config = over(&[&path]);
    let origin = OriginConfig { http2: Some(at(true)), ..config.origins.remove(0).value };
    config.origins.push(at(origin));
    let proxy = configured(config).await;
    for _ in 0..3 {
        assert_eq!(get(proxy.address, "/x", &["host: site.test"]).await.text(), "x");
    }
    assert_eq!((from.count(), from.connections()), (3, 1), "they share a connection");
    let mut client = TestClient::connect(proxy.address).await;
    client.send(b"POST /upload HTTP/1.1\r\nhost: site.test\r\ncontent-length: 2\r\n\r\nhi").await;
    assert_eq!(client.reply(false).await.text(), "2 whole");
    // A request that cannot be answered fails at once: a socket has no other address.
    assert_eq!(get(proxy.address, "/reset", &["host: site.test"]).await.status, 502);
    assert!(from.seen().iter().all(|seen| seen.authority == "localhost"));
}

#[tokio::test]
async fn failing_unix_server_is_left_out() {
    let from = TestOrigin::start().await;
    from.on("/b", OriginScript::ok(&["cache-control: no-store"], b"b"));
    let folder = ServerSocketDirectory::new("failing");
    let (absent, path) = (folder.0.join("absent.sock"), folder.0.join("app.sock"));
    tokio::spawn(relay(UnixListener::bind(&path).expect("a socket"), from.address));
    let proxy = configured(over(&[&absent, &path])).await;
    for _ in 0..10 {
        assert_eq!(get(proxy.address, "/b", &["host: site.test"]).await.text(), "b");
    }
    let down = proxy.reader().origins_down();
    assert_eq!((down.len(), from.count()), (1, 10), "{down:?}");
    assert_eq!(down[0].server_url, format!("unix:{}", absent.display()));
    assert!(down[0].last.contains("No such file"), "{down:?}");
}

/// With TCP the kernel waits while the queue of a server is full; here the proxy does.
#[tokio::test]
async fn full_server_queue_is_awaited() {
    let from = TestOrigin::start().await;
    from.on("/a", OriginScript::fresh(b"hello"));
    let folder = ServerSocketDirectory::new("full");
    let path = folder.0.join("app.sock");
    let address = SockAddr::unix(&path).expect("an address");
    let socket = || {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None).expect("a socket");
        socket.set_nonblocking(true).expect("an option");
        socket
    };
    let server = socket();
    server.bind(&address).and_then(|()| server.listen(0)).expect("it listens");
    let mut waiting = Vec::new();
    loop {
        let client = socket();
        match client.connect(&address) {
            Ok(()) => waiting.push(client),
            Err(_) => break,
        }
    }
    let proxy = configured(over(&[&path])).await;
    let to = proxy.address;
    let asking = tokio::spawn(async move { get(to, "/a", &["host: site.test"]).await });
    proxy.wait_for(|stats| stats.requests == 1).await;
    // The first attempts have time to fail; then the server goes on.
    tokio::time::sleep(Duration::from_millis(100)).await;
    tokio::spawn(relay(UnixListener::from_std(server.into()).expect("a listener"), from.address));
    let reply = asking.await.expect("no panic");
    assert_eq!((reply.status, reply.text().as_str()), (200, "hello"));
}
