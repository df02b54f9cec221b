//! Clients at a Unix socket: they are served as at any other address, count as this machine, and are told apart by a load
//! balancer alone. The file of the socket is there while the proxy listens, and no longer.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nectary_block::{MemoryDevice, SharedDevice};
use nectary_config::{
    AccessRules, CertificateConfig, HeaderSender, IpNetwork, ListenAddress, ListenerConfig, LogTarget, ProxyConfig,
    RequestRate, SocketMode,
};
use nectary_host::Shutdown;
use nectary_host::inherited::InheritedListeners;
use nectary_proxy::{Error, Proxy, ProxyOptions, SocketFault, SocketUsers, UnixSocket};
use nectary_store::{CreateOptions, OpenOptions, Store};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::common::certificates::TestCertificates;
use crate::common::http2::{Http2Client, tls_config, tls_over};
use crate::common::sites::{at, config, configured, origin, route, site, with_workers};
use crate::common::*;

const LINE: &[u8] = b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 443\r\n";
const UNKNOWN: &[u8] = b"PROXY UNKNOWN\r\n";

/// The longest time that a test may wait for an answer. After it, the test fails.
const LIMIT: Duration = Duration::from_secs(20);

/// A new directory, which is removed at the end.
struct ListenSocketDirectory(PathBuf);

impl ListenSocketDirectory {
    fn new(name: &str) -> ListenSocketDirectory {
        let path = std::env::temp_dir().join(format!("nectary-unix-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a folder");
        ListenSocketDirectory(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("http.sock")
    }
}

impl Drop for ListenSocketDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn network(text: &str, prefix_bits: u8) -> IpNetwork {
    IpNetwork::new(text.parse().expect("an address"), prefix_bits).expect("a network")
}

/// A site at a free port and at a Unix socket.
fn at_socket(from: &TestOrigin, path: &Path) -> ProxyConfig {
    let mut config = config(vec![site(&["site.test"], vec![route("/", "o")])], vec![origin("o", &[from.address])]);
    config.listeners.push(at(ListenerConfig {
        address: at(ListenAddress::Unix(path.to_owned())),
        tls: None,
        redirect_to_https: None,
        proxy_protocol_from: Vec::new(),
        socket_mode: None,
    }));
    config
}

/// Sends a header and a request for a site on a new connection, and reads all that comes.
async fn ask(path: &Path, header: &[u8], lines: &[&str]) -> String {
    let mut stream = UnixStream::connect(path).await.expect("it listens");
    answer(&mut stream, header, lines).await
}

async fn answer(stream: &mut UnixStream, header: &[u8], lines: &[&str]) -> String {
    let host = if lines.iter().any(|line| line.starts_with("host: ")) { &[][..] } else { &["host: site.test"] };
    let lines = request(&[lines, host, &["connection: close"]].concat());
    stream.write_all(&[header, lines.as_bytes()].concat()).await.expect("room");
    let mut bytes = Vec::new();
    // A reset ends the connection as well.
    _ = tokio::time::timeout(LIMIT, stream.read_to_end(&mut bytes)).await.expect("in time");
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test]
async fn unix_clients_count_as_this_machine() {
    let from = TestOrigin::start().await;
    from.on("/a", OriginScript::ok(&["cache-control: no-store"], b"hello"));
    let folder = ListenSocketDirectory::new("machine");
    let log = folder.0.join("access.log");
    for (rules, status) in [
        (AccessRules { allow: vec![at(network("127.0.0.1", 32))], deny: Vec::new() }, 200),
        (AccessRules { allow: Vec::new(), deny: vec![at(network("127.0.0.0", 8))] }, 403),
    ] {
        let mut config = at_socket(&from, &folder.socket());
        config.sites[0].value.routes[0].value.access = rules;
        config.server.trust_forwarded = vec![at(network("127.0.0.1", 32))];
        config.log.access = Some(at(LogTarget::File(log.clone())));
        let mut proxy = with_workers(config, 2).await;
        let reply = ask(&folder.socket(), b"", &["GET /a HTTP/1.1", "x-forwarded-for: 198.51.100.7"]).await;
        assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{reply}");
        proxy.stop().await;
    }
    let got = from.got().pop().expect("a request");
    assert_eq!(got.header("x-forwarded-for"), "198.51.100.7, 127.0.0.1");
    let text = std::fs::read_to_string(&log).expect("a log");
    assert_eq!(text.lines().filter(|line| line.starts_with("unix: - - [")).count(), 2, "{text}");
}

#[tokio::test]
async fn hits_and_tls_and_http2_work() {
    let from = TestOrigin::start().await;
    from.on("/a", OriginScript::fresh(b"hello"));
    let (folder, files) = (ListenSocketDirectory::new("protocols"), TestCertificates::new("unix"));
    let plain = configured(at_socket(&from, &folder.socket())).await;
    for _ in 0..3 {
        assert!(ask(&folder.socket(), b"", &["GET /a HTTP/1.1"]).await.ends_with("\r\n\r\nhello"));
    }
    let stream = UnixStream::connect(folder.socket()).await.expect("it listens");
    assert_eq!(Http2Client::over(stream).await.ask("GET", "http://site.test/a", &[]).await.text(), "hello");
    assert_eq!((from.count(), plain.stats().http2_connections), (1, 1), "one copy for all");
    let path = folder.0.join("tls.sock");
    let mut secure = at_socket(&from, &path);
    let own = files.sign("site", &["site.test"]);
    secure.listeners.iter_mut().for_each(|listener| listener.value.tls = Some(at(true)));
    let (cert, key) = (at(own.certificate.clone()), at(own.key.clone()));
    secure.tls.certificates = vec![at(CertificateConfig { cert, key })];
    let secure = configured(secure).await;
    for protocol in [&b"h2"[..], b"http/1.1"] {
        let stream = UnixStream::connect(&path).await.expect("it listens");
        let mut stream = tls_over(tls_config(&files.ca(), &[protocol]), stream, "site.test").await.expect("TLS");
        if protocol == b"h2" {
            assert_eq!(Http2Client::over(stream).await.ask("GET", "https://site.test/a", &[]).await.text(), "hello");
            continue;
        }
        let lines = request(&["GET /a HTTP/1.1", "host: site.test", "connection: close"]);
        stream.write_all(lines.as_bytes()).await.expect("room");
        let mut text = String::new();
        stream.read_to_string(&mut text).await.expect("an answer");
        assert!(text.ends_with("\r\n\r\nhello"), "{text}");
    }
    assert_eq!(secure.stats().handshakes, 2);
}

#[tokio::test]
async fn long_body_arrives_whole() {
    let from = TestOrigin::start().await;
    let body: Vec<u8> = (0..6_000_000_u32).map(|number| (number % 251) as u8).collect();
    from.on("/a", OriginScript::fresh(&body));
    let folder = ListenSocketDirectory::new("long");
    let _proxy = configured(at_socket(&from, &folder.socket())).await;
    for _ in 0..2 {
        let mut stream = UnixStream::connect(folder.socket()).await.expect("it listens");
        let lines = request(&["GET /a HTTP/1.1", "host: site.test", "connection: close"]);
        stream.write_all(lines.as_bytes()).await.expect("room");
        let mut bytes = Vec::new();
        let read = tokio::time::timeout(LIMIT, stream.read_to_end(&mut bytes)).await;
        read.expect("in time").expect("to its end");
        assert!(bytes.ends_with(&body), "{} bytes", bytes.len());
    }
}

#[tokio::test]
async fn load_balancer_names_its_clients() {
    let from = TestOrigin::start().await;
    from.on("/a", OriginScript::ok(&["cache-control: no-store"], b"hello"));
    let folder = ListenSocketDirectory::new("named");
    let mut config = at_socket(&from, &folder.socket());
    config.listeners[1].value.proxy_protocol_from = vec![at(HeaderSender::Unix)];
    config.sites[0].value.routes[0].value.access.allow = vec![at(network("192.0.2.0", 24))];
    let proxy = configured(config).await;
    let reply = ask(&folder.socket(), LINE, &["GET /a HTTP/1.1"]).await;
    assert!(reply.ends_with("\r\n\r\nhello"), "{reply}");
    assert_eq!(from.got().pop().expect("a request").header("x-forwarded-for"), "192.0.2.7");
    // A header without a client leaves this machine, which may not use the route.
    assert!(ask(&folder.socket(), UNKNOWN, &["GET /a HTTP/1.1"]).await.starts_with("HTTP/1.1 403 "));
    assert_eq!(ask(&folder.socket(), b"", &["GET /a HTTP/1.1"]).await, "", "the header is missing");
    proxy.wait_for(|stats| stats.failed_proxy_headers == 1).await;
    // The other address has no such peers.
    let reply = get(proxy.address, "/a", &["host: site.test"]).await;
    assert_eq!((reply.status, from.count()), (403, 1));
}

#[tokio::test]
async fn limits_by_network_need_a_name() {
    let from = TestOrigin::start().await;
    from.on("/a", OriginScript::fresh(b"hello"));
    for is_named in [false, true] {
        let folder = ListenSocketDirectory::new(if is_named { "limited" } else { "unlimited" });
        let mut config = at_socket(&from, &folder.socket());
        // The place of a connection that ends is free a moment later.
        config.limits.client_connections_max = Some(at(if is_named { 3 } else { 1 }));
        config.limits.client_requests = Some(at(RequestRate { count: 1, period: Duration::from_secs(60) }));
        if is_named {
            config.listeners[1].value.proxy_protocol_from = vec![at(HeaderSender::Unix)];
        }
        let proxy = configured(config).await;
        // The same without a client's name has no limits either.
        let headers: &[&[u8]] = if is_named { &[UNKNOWN, LINE] } else { &[b""] };
        for header in headers {
            let mut open = Vec::new();
            for _ in 0..3 {
                open.push(UnixStream::connect(folder.socket()).await.expect("it listens"));
            }
            let mut refused = 0;
            for stream in &mut open {
                let reply = answer(stream, header, &["GET /a HTTP/1.1"]).await;
                assert!(reply.starts_with("HTTP/1.1 200 ") || reply.starts_with("HTTP/1.1 429 "), "{reply}");
                refused += usize::from(reply.starts_with("HTTP/1.1 429 "));
            }
            assert_eq!(refused, if *header == LINE { 2 } else { 0 });
        }
        assert_eq!(proxy.stats().limited_requests, if is_named { 2 } else { 0 });
    }
}

/// With a name, the connections of one client are counted too.
#[tokio::test]
async fn named_connections_are_bounded() {
    let from = TestOrigin::start().await;
    from.on("/a", OriginScript::fresh(b"hello"));
    let folder = ListenSocketDirectory::new("bounded");
    let mut config = at_socket(&from, &folder.socket());
    config.listeners[1].value.proxy_protocol_from = vec![at(HeaderSender::Unix)];
    config.limits.client_connections_max = Some(at(1));
    let proxy = configured(config).await;
    let mut first = UnixStream::connect(folder.socket()).await.expect("it listens");
    let lines = request(&["GET /a HTTP/1.1", "host: site.test"]);
    first.write_all(&[LINE, lines.as_bytes()].concat()).await.expect("room");
    let mut byte = [0];
    first.read_exact(&mut byte).await.expect("an answer");
    assert!(ask(&folder.socket(), UNKNOWN, &["GET /a HTTP/1.1"]).await.starts_with("HTTP/1.1 200 "));
    ask(&folder.socket(), LINE, &["GET /a HTTP/1.1"]).await;
    assert_eq!(proxy.stats().limited_connections, 1);
}

#[tokio::test]
async fn admin_socket_needs_no_token() {
    let folder = ListenSocketDirectory::new("admin");
    let path = folder.0.join("admin.sock");
    let unix = vec![UnixSocket::new(folder.socket(), SocketUsers::Clients), UnixSocket::new(&path, SocketUsers::Admin)];
    let mut options = ProxyOptions { unix, ..options() };
    options.admin.listen = vec!["127.0.0.1:0".parse().expect("an address")];
    let proxy = TestProxy::start(options).await;
    let purge = ["PURGE http://a.test/x HTTP/1.1", "host: a.test"];
    assert!(ask(&path, b"", &purge).await.starts_with("HTTP/1.1 200 "));
    let refused = TestClient::connect(proxy.admin_address.expect("one")).await.ask(&purge).await;
    assert_eq!(refused.status, 401, "other addresses need it");
    assert!(ask(&folder.socket(), b"", &purge).await.starts_with("HTTP/1.1 401 "), "and so do clients");
    let relayed = [&purge[..], &["x-forwarded-for: 192.0.2.7"]].concat();
    assert!(ask(&path, b"", &relayed).await.starts_with("HTTP/1.1 403 "));
    let by_page = [&purge[..], &["origin: http://evil.test"]].concat();
    assert!(ask(&path, b"", &by_page).await.starts_with("HTTP/1.1 403 "));
    assert!(ask(&path, b"", &["GET /x HTTP/1.1"]).await.starts_with("HTTP/1.1 405 "));
    let mode = |path: &Path| std::fs::metadata(path).expect("a file").permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(&folder.socket())), (0o600, 0o666));
}

#[tokio::test]
async fn file_goes_at_the_end() {
    let from = TestOrigin::start().await;
    from.on("/a", OriginScript::fresh(b"hello"));
    let folder = ListenSocketDirectory::new("end");
    let mut config = at_socket(&from, &folder.socket());
    config.listeners[1].value.socket_mode = Some(at(SocketMode(0o660)));
    // No other address is needed.
    config.listeners.remove(0);
    for _ in 0..2 {
        let mut proxy = with_workers(config.clone(), 2).await;
        let mode = std::fs::metadata(folder.socket()).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        assert!(ask(&folder.socket(), b"", &["GET /a HTTP/1.1"]).await.ends_with("hello"));
        proxy.stop().await;
        assert!(std::fs::symlink_metadata(folder.socket()).is_err(), "it is removed");
    }
}

#[tokio::test]
async fn live_socket_is_left_alone() {
    let from = TestOrigin::start().await;
    from.on("/a", OriginScript::fresh(b"hello"));
    let folder = ListenSocketDirectory::new("live");
    let unix = vec![UnixSocket::new(folder.socket(), SocketUsers::Clients)];
    let first = configured(at_socket(&from, &folder.socket())).await;
    let error = Proxy::bind(ProxyOptions { unix: unix.clone(), ..options() }).expect_err("another proxy listens");
    assert!(matches!(&error, Error::UnixSocket { fault: SocketFault::InUse, .. }), "{error}");
    assert!(error.to_string().contains(&*folder.socket().to_string_lossy()), "{error}");
    assert!(ask(&folder.socket(), b"", &["GET /a HTTP/1.1"]).await.ends_with("hello"));
    drop(first);
    // A start that fails later leaves no file.
    let mut broken = unix.clone();
    broken.push(UnixSocket::new(folder.0.join("absent/http.sock"), SocketUsers::Clients));
    let error = Proxy::bind(ProxyOptions { unix: broken, ..options() }).expect_err("there is no directory");
    assert!(matches!(&error, Error::UnixSocket { fault: SocketFault::NoDirectory { .. }, .. }), "{error}");
    assert!(std::fs::symlink_metadata(folder.socket()).is_err());
    let twice = [unix.clone(), unix].concat();
    let error = Proxy::bind(ProxyOptions { unix: twice, ..options() }).expect_err("it is given twice");
    assert!(matches!(&error, Error::UnixSocket { fault: SocketFault::GivenTwice, .. }), "{error}");
}

async fn inheriting(path: &Path, listener: &std::os::unix::net::UnixListener) -> (Proxy, Shutdown) {
    let device: SharedDevice = Arc::new(MemoryDevice::new(256 << 20));
    Store::create(device.clone(), &CreateOptions::default()).await.expect("a store");
    let store = Store::open(device, OpenOptions::default()).await.expect("an open store");
    let unix = vec![UnixSocket::new(path, SocketUsers::Admin)];
    let inherited = InheritedListeners { tcp: Vec::new(), unix: vec![listener.try_clone().expect("a clone")] };
    let bound = Proxy::bind_with(ProxyOptions { unix, workers: 2, ..options() }, inherited).expect("bound");
    assert!(bound.has_successor());
    let shutdown = Shutdown::new();
    (bound.serve(store, shutdown.clone()).expect("a proxy"), shutdown)
}

/// Who made the file keeps it, and connections wait in it while no proxy runs.
#[tokio::test]
async fn inherited_socket_outlives_the_proxy() {
    let folder = ListenSocketDirectory::new("inherited");
    let listener = std::os::unix::net::UnixListener::bind(folder.socket()).expect("a socket");
    let lines = ["GET /x HTTP/1.1", "host: localhost"];
    let mut waiting = UnixStream::connect(folder.socket()).await.expect("it listens");
    for _ in 0..2 {
        let (proxy, shutdown) = inheriting(&folder.socket(), &listener).await;
        assert!(answer(&mut waiting, b"", &lines).await.starts_with("HTTP/1.1 405 "));
        shutdown.request();
        tokio::task::spawn_blocking(move || proxy.wait()).await.expect("joined").expect("a good end");
        waiting = UnixStream::connect(folder.socket()).await.expect("it listens all the time");
    }
    let inherited = InheritedListeners { tcp: Vec::new(), unix: vec![listener] };
    let error = Proxy::bind_with(options(), inherited).expect_err("no address is that of the socket");
    assert!(matches!(error, Error::InheritedUnix { .. }), "{error}");
    assert!(error.to_string().contains("http.sock"), "{error}");
}
