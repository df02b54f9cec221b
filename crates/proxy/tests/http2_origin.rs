//! Requests to origins with `http2 = true`: they share connections, keep the rules that HTTP/1.1 has, and none is sent twice
//! that must not be.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nectary_config::{HealthCheck, OriginConfig, ProxyConfig, ServerScheme};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::common::http2::frame;
use crate::common::http2_server::{acceptor, fixture, large};
use crate::common::sites::{at, config, configured, origin, route, site, with_workers};
use crate::common::*;

/// An origin of one server that is spoken to in HTTP/2.
fn shared(address: SocketAddr) -> OriginConfig {
    OriginConfig { http2: Some(at(true)), ..origin("o", &[address]) }
}

/// The same with TLS.
fn shared_tls(address: SocketAddr) -> OriginConfig {
    let mut origin = shared(address);
    origin.servers[0].value.url.value.scheme = ServerScheme::Https;
    origin.tls.ca = Some(at(fixture("ca.pem")));
    origin
}

fn of(origin: OriginConfig) -> ProxyConfig {
    config(vec![site(&["a"], vec![route("/", "o")])], vec![origin])
}

/// Sends requests for `PATH/0` and so on, each on its own connection.
fn ask_many(proxy: &TestProxy, method: &'static str, path: &'static str, count: usize) -> Vec<JoinHandle<ClientReply>> {
    let address = proxy.address;
    let ask = move |number: usize| async move {
        let line = format!("{method} {path}/{number} HTTP/1.1");
        TestClient::connect(address).await.ask(&[&line, "host: a", "content-length: 0"]).await
    };
    (0..count).map(|number| tokio::spawn(ask(number))).collect()
}

async fn statuses(asked: Vec<JoinHandle<ClientReply>>) -> Vec<u16> {
    let mut found = Vec::new();
    for reply in asked {
        found.push(reply.await.expect("a reply").status);
    }
    found
}

#[tokio::test]
async fn many_requests_share_one_connection() {
    let server = Http2Origin::start().await;
    let proxy = configured(of(shared(server.address))).await;
    let asked = ask_many(&proxy, "GET", "/wait", 50);
    server.wait_for(50).await;
    assert_eq!(server.connections(), 1);
    server.open();
    assert!(statuses(asked).await.iter().all(|status| *status == 200));
    let posted = statuses(ask_many(&proxy, "POST", "/x", 20)).await;
    assert!(posted.iter().all(|status| *status == 200), "{posted:?}");
    assert_eq!((server.count(), server.connections(), proxy.stats().origin_connections), (70, 1, 1));
}

#[tokio::test]
async fn full_connection_gets_another_beside_it() {
    let server = Http2Origin::start_with(None, 10).await;
    let proxy = configured(of(shared(server.address))).await;
    // The server says how many streams it allows.
    assert_eq!(get(proxy.address, "/x", &["host: a"]).await.status, 200);
    let asked = ask_many(&proxy, "GET", "/wait", 15);
    server.wait_for(16).await;
    assert_eq!(server.connections(), 2);
    server.open();
    assert!(statuses(asked).await.iter().all(|status| *status == 200));
}

#[tokio::test]
async fn tls_server_negotiates_http2() {
    let server = Http2Origin::start_tls().await;
    let proxy = configured(of(shared_tls(server.address))).await;
    assert!(statuses(ask_many(&proxy, "GET", "/x", 10)).await.iter().all(|status| *status == 200));
    assert_eq!((server.count(), server.connections()), (10, 1));
    assert_eq!(server.seen()[0].authority, server.address.to_string());
}

/// A server with TLS that chooses HTTP/1.1.
#[tokio::test]
async fn tls_server_without_http2_gets_http1() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let task = tokio::spawn(async move {
        let (acceptor, mut connections) = (acceptor(&[b"http/1.1"]), tokio::task::JoinSet::new());
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            connections.spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut got = Vec::new();
                while stream.read_buf(&mut got).await.is_ok_and(|count| count > 0) {
                    if got.ends_with(b"\r\n\r\n") {
                        assert!(got.starts_with(b"GET /") || got.starts_with(b"POST /"), "{got:?}");
                        got.clear();
                        let answer = b"HTTP/1.1 200 OK\r\ncache-control: no-store\r\ncontent-length: 1\r\n\r\n1";
                        _ = stream.write_all(answer).await;
                    }
                }
            });
        }
    });
    let proxy = configured(of(shared_tls(address))).await;
    for method in ["GET", "POST", "GET", "POST"] {
        assert_eq!(statuses(ask_many(&proxy, method, "/x", 1)).await, [200]);
    }
    assert_eq!(proxy.stats().origin_connections, 1, "the connection is kept, as others of HTTP/1.1 are");
    assert!(statuses(ask_many(&proxy, "GET", "/x", 20)).await.iter().all(|status| *status == 200));
    task.abort();
}

#[tokio::test]
async fn headers_have_the_form_of_http2() {
    let server = Http2Origin::start().await;
    let pool = OriginConfig { host: Some(at(nectary_config::HostRule::Client)), ..shared(server.address) };
    let proxy = configured(of(pool)).await;
    let lines =
        ["host: a:81", "connection: x-hop, te", "x-hop: 1", "te: trailers", "keep-alive: timeout=5", "x-keep: 1"];
    assert_eq!(get(proxy.address, "/x?q=1", &lines).await.status, 200);
    let seen = &server.seen()[0];
    assert_eq!((seen.method.as_str(), seen.path.as_str(), seen.authority.as_str()), ("GET", "/x", "a:81"));
    for name in ["host", "connection", "x-hop", "te", "keep-alive", "transfer-encoding"] {
        assert!(!seen.headers.contains_key(name), "{name}");
    }
    assert_eq!(seen.headers["x-keep"], "1");
}

#[tokio::test]
async fn responses_of_http2_are_stored() {
    let server = Http2Origin::start().await;
    let proxy = configured(of(shared(server.address))).await;
    for is_hit in [false, true] {
        let reply = get(proxy.address, "/fresh", &["host: a"]).await;
        assert_eq!((reply.text().as_str(), reply.is_hit()), ("x", is_hit));
    }
    let head = TestClient::connect(proxy.address).await.ask(&["HEAD /x HTTP/1.1", "host: a"]).await;
    assert_eq!((head.status, head.header("content-length").as_str()), (200, "1"));
    assert_eq!((server.count(), server.connections()), (2, 1));
}

/// The end of a stream may come after the head of a response without a body.
#[tokio::test]
async fn empty_responses_are_not_reset() {
    let server = Http2Origin::start().await;
    let proxy = configured(of(shared(server.address))).await;
    for method in ["GET", "POST", "POST"] {
        let mut client = TestClient::connect(proxy.address).await;
        let line = format!("{method} /empty HTTP/1.1");
        let reply = client.ask(&[&line, "host: a", "content-length: 0"]).await;
        assert!(reply.status / 100 == 2 && reply.is_complete && reply.body.is_empty(), "{reply:?}");
    }
    let waited = async {
        while server.unreset() < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let result = tokio::time::timeout(Duration::from_secs(5), waited).await;
    assert!(result.is_ok(), "{} of 3 streams could end", server.unreset());
}

#[tokio::test]
async fn requests_after_goaway_are_sent_again() {
    for method in ["GET", "POST"] {
        let server = LeavingServer::start(true).await;
        let proxy = configured(of(shared(server.address))).await;
        let found = statuses(ask_many(&proxy, method, "/x", 10)).await;
        assert!(found.iter().all(|status| *status == 200), "{method}: {found:?}");
        assert_eq!(*server.requests.lock().expect("counts"), [10, 5], "{method}");
    }
}

#[tokio::test]
async fn begun_unsafe_requests_are_not_repeated() {
    let server = LeavingServer::start(false).await;
    let proxy = configured(of(shared(server.address))).await;
    let found = statuses(ask_many(&proxy, "POST", "/x", 10)).await;
    let good = found.iter().filter(|status| **status == 200).count();
    assert_eq!((good, found.len()), (5, 10), "{found:?}");
    assert_eq!(*server.requests.lock().expect("counts"), [10, 5]);
}

#[tokio::test]
async fn refused_stream_is_sent_again() {
    let server = Http2Origin::start().await;
    let proxy = configured(of(shared(server.address))).await;
    for method in ["GET", "POST", "DELETE"] {
        let mut client = TestClient::connect(proxy.address).await;
        let line = format!("{method} /refuse/{method} HTTP/1.1");
        assert_eq!(client.ask(&[&line, "host: a", "content-length: 0"]).await.status, 200, "{method}");
    }
    assert_eq!((server.count(), server.connections()), (6, 1));
}

#[tokio::test]
async fn server_that_refuses_all_is_left() {
    let server = Http2Origin::start().await;
    let proxy = configured(of(shared(server.address))).await;
    for (method, count) in [("GET", 4), ("POST", 8)] {
        let mut client = TestClient::connect(proxy.address).await;
        let line = format!("{method} /never/{method} HTTP/1.1");
        assert_eq!(client.ask(&[&line, "host: a", "content-length: 0"]).await.status, 502, "{method}");
        assert_eq!(server.count(), count, "{method}");
    }
}

#[tokio::test]
async fn refused_body_is_not_sent_again() {
    let server = Http2Origin::start().await;
    let proxy = configured(of(shared(server.address))).await;
    let mut client = TestClient::connect(proxy.address).await;
    // Without a length the server could not see that the body is missing.
    client.send(b"PUT /refuse HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n").await;
    assert_eq!(client.reply(false).await.status, 502);
    assert_eq!(server.count(), 1, "nobody has the body any more");
}

#[tokio::test]
async fn unsafe_request_is_sent_once() {
    let server = Http2Origin::start().await;
    let proxy = configured(of(shared(server.address))).await;
    let mut client = TestClient::connect(proxy.address).await;
    assert_eq!(client.ask(&["POST /reset HTTP/1.1", "host: a", "content-length: 0"]).await.status, 502);
    assert_eq!(server.count(), 1);
    // Another one may be repeated, and then is.
    assert_eq!(get(proxy.address, "/reset/get", &["host: a"]).await.status, 502);
    assert!((3..6).contains(&server.count()), "{}", server.count());
}

#[tokio::test]
async fn unsafe_requests_avoid_silent_connections() {
    let server = Http2Origin::start().await;
    let proxy = configured(of(shared(server.address))).await;
    assert_eq!(statuses(ask_many(&proxy, "POST", "/x", 1)).await, [200]);
    // Nothing says any more that the server keeps the connection open.
    tokio::time::sleep(Duration::from_millis(1600)).await;
    assert_eq!(statuses(ask_many(&proxy, "GET", "/x", 1)).await, [200]);
    assert_eq!(server.connections(), 1, "a GET can be repeated");
    tokio::time::sleep(Duration::from_millis(1600)).await;
    assert_eq!(statuses(ask_many(&proxy, "POST", "/x", 1)).await, [200]);
    assert_eq!(server.connections(), 2);
    server.wait_for_ends(1).await;
}

#[tokio::test]
async fn broken_bodies_are_not_stored() {
    let server = Http2Origin::start().await;
    let proxy = configured(of(shared(server.address))).await;
    for (path, count) in [("/half", 2), ("/unmeasured", 4), ("/graceful", 6)] {
        for _ in 0..2 {
            let reply = get(proxy.address, path, &["host: a"]).await;
            assert!(reply.status != 200 || !reply.is_complete, "{path}: {reply:?}");
            assert!(!reply.is_hit(), "{path}");
        }
        assert!(server.count() >= count, "{path}");
    }
    assert_eq!(get(proxy.address, "/x", &["host: a"]).await.status, 200);
    assert_eq!(server.connections(), 1, "the others on the connection go on");
}

#[tokio::test]
async fn silent_stream_ends_alone() {
    let server = Http2Origin::start().await;
    let mut pool = shared(server.address);
    pool.times.silence = Some(at(Duration::from_millis(500)));
    pool.times.first_byte = Some(at(Duration::from_millis(500)));
    let proxy = configured(of(pool)).await;
    let begin = Instant::now();
    let stalled = get(proxy.address, "/stall", &["host: a"]).await;
    assert!(!stalled.is_complete && begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    let begin = Instant::now();
    let mut client = TestClient::connect(proxy.address).await;
    assert_eq!(client.ask(&["POST /silent HTTP/1.1", "host: a", "content-length: 0"]).await.status, 504);
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
}

/// A server that accepts connections and says nothing.
#[tokio::test]
async fn silent_server_costs_first_byte() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let mut pool = shared(listener.local_addr().expect("an address"));
    pool.times.first_byte = Some(at(Duration::from_secs(1)));
    let proxy = configured(of(pool)).await;
    let begin = Instant::now();
    let address = proxy.address;
    let asked = tokio::spawn(async move { get(address, "/x", &["host: a"]).await });
    let (mut stream, _) = listener.accept().await.expect("a connection");
    assert_eq!(asked.await.expect("a reply").status, 504);
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "the connection ends");
}

/// The type, the flags and the stream of the next frame; `None` at the end of the connection.
async fn next_frame(stream: &mut TcpStream) -> Option<(u8, u8, u32)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.ok()?;
    let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
    stream.read_exact(&mut payload).await.ok()?;
    Some((head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]])))
}

/// The server answers an upload by `413` at once, and says nothing about the rest of it.
#[tokio::test]
async fn unfinished_upload_retires_its_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let proxy = configured(of(shared(listener.local_addr().expect("an address")))).await;
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    let task = tokio::spawn(async move {
        let mut serving = tokio::task::JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::Relaxed);
            serving.spawn(async move {
                _ = stream.read_exact(&mut [0; 24]).await;
                while let Some(found) = next_frame(&mut stream).await {
                    let answer = match found {
                        (4, 0, _) => [frame(4, 0, 0, &[]), frame(4, 1, 0, &[])].concat(),
                        (1, flags, number) if flags & 1 == 0 => frame(1, 5, number, &[0x08, 3, b'4', b'1', b'3']),
                        (1, _, number) => frame(1, 5, number, &[0x88]),
                        _ => continue,
                    };
                    _ = stream.write_all(&answer).await;
                }
            });
        }
    });
    let mut client = TestClient::connect(proxy.address).await;
    client.send(b"PUT /x HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\nsome").await;
    assert_eq!(client.reply(false).await.status, 413);
    assert_eq!(get(proxy.address, "/x", &["host: a"]).await.status, 200);
    assert_eq!(connections.load(Ordering::Relaxed), 2, "the rest of the upload may still come");
    task.abort();
}

#[tokio::test]
async fn large_bodies_go_both_ways() {
    let server = Http2Origin::start().await;
    let proxy = configured(of(shared(server.address))).await;
    let reply = get(proxy.address, "/large", &["host: a"]).await;
    assert!(reply.is_complete && reply.body == large(), "{} bytes", reply.body.len());
    let bytes = vec![7; 3 << 20];
    for _ in 0..2 {
        let mut client = TestClient::connect(proxy.address).await;
        let head = format!("PUT /upload HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", bytes.len());
        client.send(head.as_bytes()).await;
        client.send(&bytes).await;
        assert_eq!(client.reply(false).await.text(), format!("{} whole", bytes.len()));
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn upload_that_breaks_off_is_cut() {
    let server = Http2Origin::start().await;
    let proxy = configured(of(shared(server.address))).await;
    let mut client = TestClient::connect(proxy.address).await;
    client.send(b"PUT /upload HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\nsome").await;
    server.wait_for(1).await;
    drop(client);
    assert_eq!(get(proxy.address, "/x", &["host: a"]).await.status, 200);
    assert_eq!(server.connections(), 1, "the connection goes on");
}

#[tokio::test]
async fn early_answer_ends_the_upload() {
    let server = Http2Origin::start().await;
    let proxy = configured(of(shared(server.address))).await;
    let mut client = TestClient::connect(proxy.address).await;
    client.send(b"PUT /early HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\nsome").await;
    assert_eq!(client.reply(false).await.status, 413);
    assert_eq!(get(proxy.address, "/x", &["host: a"]).await.status, 200);
}

#[tokio::test]
async fn limited_connections_are_shared() {
    let server = Http2Origin::start_with(None, 5).await;
    let pool = OriginConfig { connections_max: Some(at(1)), ..shared(server.address) };
    let proxy = configured(of(pool)).await;
    assert_eq!(get(proxy.address, "/x", &["host: a"]).await.status, 200);
    let asked = ask_many(&proxy, "GET", "/wait", 12);
    proxy.wait_for(|stats| stats.queued == 7).await;
    server.wait_for(6).await;
    server.open();
    assert!(statuses(asked).await.iter().all(|status| *status == 200));
    assert_eq!((server.count(), server.open_max()), (13, 1));
}

#[tokio::test]
async fn workers_take_turns_with_one_connection() {
    let server = Http2Origin::start().await;
    let pool = OriginConfig { connections_max: Some(at(1)), ..shared(server.address) };
    let proxy = with_workers(of(pool), 4).await;
    let begin = Instant::now();
    for _ in 0..20 {
        let found = statuses(ask_many(&proxy, "GET", "/x", 4)).await;
        assert!(found.iter().all(|status| *status == 200), "{found:?}");
    }
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    // The server sees an end a moment after a beginning on another connection.
    assert!(server.open_max() <= 4, "{} were open", server.open_max());
}

#[tokio::test]
async fn unused_connection_ends_in_time() {
    let server = Http2Origin::start().await;
    let mut pool = shared(server.address);
    pool.times.keep_alive = Some(at(Duration::from_millis(500)));
    let proxy = configured(of(pool)).await;
    assert_eq!(get(proxy.address, "/x", &["host: a"]).await.status, 200);
    server.wait_for_ends(1).await;
    assert_eq!(get(proxy.address, "/x", &["host: a"]).await.status, 200);
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn checks_speak_the_protocol_of_requests() {
    let (server, other) = (Http2Origin::start().await, TestOrigin::start().await);
    other.on("/health", OriginScript::ok(&[], b""));
    let check = || HealthCheck {
        path: at("/health".to_owned()),
        interval: Some(at(Duration::from_millis(20))),
        ..HealthCheck::default()
    };
    let mut first = shared(server.address);
    first.check = Some(at(check()));
    // This one speaks HTTP/1.1 alone, and without TLS it is not asked what it speaks.
    let mut second = shared(other.address);
    (second.name, second.check) = (at("p".to_owned()), Some(at(check())));
    let routes = vec![route("/", "o"), route("/p/", "p")];
    let proxy = configured(config(vec![site(&["a"], routes)], vec![first, second])).await;
    server.wait_for(6).await;
    while proxy.reader().origins_unhealthy().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let names: Vec<_> = proxy.reader().origins_unhealthy().into_iter().map(|origin| origin.name).collect();
    assert_eq!(names, ["p"]);
}

#[tokio::test]
async fn dead_server_costs_no_request() {
    // It is dropped, so its port refuses connections.
    let address = Http2Origin::start().await.address;
    let good = Http2Origin::start().await;
    let mut pool = shared(good.address);
    pool.servers.insert(0, origin("x", &[address]).servers.remove(0));
    let proxy = configured(of(pool)).await;
    for _ in 0..10 {
        assert_eq!(get(proxy.address, "/x", &["host: a"]).await.status, 200, "the other server answers");
    }
    assert_eq!(good.count(), 10);
}

#[tokio::test]
async fn websocket_is_spoken_in_http1() {
    let switched = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\nearly";
    let server = TestOrigin::start().await;
    server.on("/socket", OriginScript::raw(switched).wait("end").close());
    let proxy = configured(of(shared(server.address))).await;
    let mut client = TestClient::connect(proxy.address).await;
    client.send(b"GET /socket HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n").await;
    assert_eq!(client.head().await.status, 101);
    assert_eq!(client.take(5).await, b"early");
    assert_eq!(server.got()[0].header("upgrade"), "websocket");
    server.open("end");
}
