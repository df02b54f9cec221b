//! HTTP/2 has the same rules as HTTP/1 and shares the cache with it, and no client of it can hold up others.

use std::time::Duration;

use bytes::Bytes;
use nectary_proxy::ProxyOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::common::http2::{Http2Client, OPENING, frame, head, reply, take};
use crate::common::*;

const FRESH: &[&str] = &["cache-control: max-age=3600", "etag: \"a\""];

async fn proxied(origin: &TestOrigin) -> TestProxy {
    TestProxy::reverse(origin.address).await
}

/// A proxy with short time limits on what clients send and take.
async fn hasty(origin: &TestOrigin) -> TestProxy {
    let url = Some(format!("http://{}", origin.address).parse().expect("an origin"));
    let mut options = ProxyOptions { origin: url, ..options() };
    options.limits.body_timeout = Duration::from_millis(500);
    options.limits.write_timeout = Duration::from_millis(500);
    TestProxy::start(options).await
}

#[tokio::test]
async fn both_protocols_share_what_is_stored() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(FRESH, b"0123456789"));
    let proxy = proxied(&origin).await;
    let mut client = Http2Client::plain(proxy.address).await;
    let first = client.ask("GET", "http://site/a", &[]).await;
    assert_eq!((first.status, first.text().as_str(), first.is_hit()), (200, "0123456789", false));
    assert!(first.is_complete && !first.header("date").is_empty() && first.header("connection").is_empty());
    assert!(get(proxy.address, "/a", &["host: site"]).await.is_hit());
    let again = client.ask("GET", "http://site/a", &[]).await;
    assert!(again.is_hit() && again.text() == "0123456789" && !again.header("age").is_empty(), "{again:?}");
    let part = client.ask("GET", "http://site/a", &[("range", "bytes=2-4")]).await;
    assert_eq!((part.status, part.text().as_str(), part.header("content-length").as_str()), (206, "234", "3"));
    let known = client.ask("GET", "http://site/a", &[("if-none-match", "\"a\"")]).await;
    assert_eq!((known.status, known.body.len()), (304, 0));
    let bare = client.ask("HEAD", "http://site/a", &[]).await;
    assert_eq!((bare.status, bare.header("content-length").as_str(), bare.body.len()), (200, "10", 0));
    assert!(bare.is_complete, "nothing follows its head");
    assert_eq!(origin.got().len(), 1);
    let stats = proxy.stats();
    assert_eq!((stats.http2_connections, stats.requests, stats.hits), (1, 6, 5));
}

#[tokio::test]
async fn http2_request_becomes_http1() {
    let origin = TestOrigin::start().await;
    origin.on("/up", OriginScript::ok(&[], b"done"));
    let proxy = proxied(&origin).await;
    let mut client = Http2Client::plain(proxy.address).await;
    let headers = [("cookie", "a=1"), ("cookie", "b=2"), ("te", "trailers"), ("x-kept", "1")];
    let (response, mut body) = client.send(head("POST", "http://site/up", &headers), false).await;
    body.send_data(Bytes::from_static(b"hello "), false).expect("sent");
    body.send_data(Bytes::from_static(b"there"), true).expect("sent");
    assert_eq!(reply(response).await.text(), "done");
    let got = &origin.got()[0];
    assert_eq!(got.line, "POST /up HTTP/1.1");
    assert_eq!(String::from_utf8_lossy(&got.body), "6\r\nhello \r\n5\r\nthere\r\n0\r\n\r\n");
    assert_eq!((got.header("cookie").as_str(), got.header("x-kept").as_str()), ("a=1; b=2", "1"));
    assert!(got.header("via").starts_with("2 nectary-"), "{got:?}");
    assert_eq!((got.header("te"), got.header("transfer-encoding")), (String::new(), "chunked".to_owned()));
    assert_eq!(got.header("host"), origin.address.to_string());
}

#[tokio::test]
async fn what_http1_would_refuse_is_refused() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(FRESH, b"a"));
    let proxy = proxied(&origin).await;
    let mut client = Http2Client::plain(proxy.address).await;
    for headers in [
        &[("host", "other")][..],
        &[("host", "site"), ("host", "site")],
        &[("content-length", "5")],
        &[("content-length", "0"), ("content-length", "0")],
        &[("content-length", "x")],
    ] {
        let (response, _) = client.send(head("GET", "http://site/a", headers), true).await;
        let refused = match response.await {
            Ok(response) => response.status() == 400,
            // h2 knows some of these mistakes itself.
            Err(error) => error.is_reset(),
        };
        assert!(refused, "{headers:?}");
    }
    let names: Vec<String> = (0..100).map(|number| format!("x-{number}")).collect();
    let lines: Vec<_> = names.iter().map(|name| (name.as_str(), "1")).collect();
    // With `Host` they are as many as HTTP/1 allows, and one more.
    assert_eq!(client.ask("GET", "http://site/a", &lines[..99]).await.status, 200);
    assert_eq!(client.ask("GET", "http://site/a", &lines).await.status, 431);
    let long = "y".repeat(40_000);
    let (response, _) = client.send(head("GET", "http://site/a", &[("x-long", &long)]), true).await;
    assert!(response.await.map_or(true, |response| response.status() == 431));
    assert_eq!(client.ask("TRACE", "http://site/a", &[]).await.status, 405);
    let (response, _) = client.send(head("CONNECT", "site:443", &[]), false).await;
    assert_eq!(response.await.expect("an answer").status(), 501);
    let long = format!("http://site/{}", "x".repeat(9000));
    assert_eq!(client.ask("GET", &long, &[]).await.status, 414);
    // A body that is not as long as its request says.
    for sent in [&b"abc"[..], b"abcdefgh"] {
        let (response, mut body) = client.send(head("POST", "http://site/a", &[("content-length", "5")]), false).await;
        body.send_data(Bytes::copy_from_slice(sent), true).expect("sent");
        assert!(response.await.map_or(true, |response| response.status() == 400));
    }
    assert_eq!(client.ask("GET", "http://site/a", &[]).await.status, 200, "the connection lives");
    let whole = origin.got().iter().filter(|got| got.line.starts_with("POST") && !got.body.is_empty()).count();
    assert_eq!(whole, 0, "{:?}", origin.got());
}

#[tokio::test]
async fn stalled_download_loses_its_stream_alone() {
    let origin = TestOrigin::start().await;
    let body: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8).collect();
    origin.on("/long", OriginScript::ok(FRESH, &body));
    origin.on("/a", OriginScript::ok(FRESH, b"a"));
    let proxy = hasty(&origin).await;
    let mut client = Http2Client::plain(proxy.address).await;
    // Fetched, from memory, and read as slowly as the client's window allows.
    for _ in 0..2 {
        let (response, _) = client.send(head("GET", "http://site/long", &[]), true).await;
        let mut stalled = response.await.expect("a response").into_body();
        let cut = proxy.stats().cut_streams;
        while proxy.stats().cut_streams == cut {
            assert_eq!(client.ask("GET", "http://site/a", &[]).await.text(), "a");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut found = Vec::new();
        assert!(!take(&mut stalled, &mut found).await && body.starts_with(&found), "{} bytes", found.len());
    }
    let whole = client.ask("GET", "http://site/long", &[]).await;
    assert!(whole.is_complete && whole.body == body);
}

#[tokio::test]
async fn silent_upload_loses_its_stream_alone() {
    let origin = TestOrigin::start().await;
    origin.on("/up", OriginScript::ok(&[], b"done"));
    origin.on("/a", OriginScript::ok(FRESH, b"a"));
    let proxy = hasty(&origin).await;
    let mut client = Http2Client::plain(proxy.address).await;
    let (response, mut body) = client.send(head("POST", "http://site/up", &[]), false).await;
    body.send_data(Bytes::from_static(b"some"), false).expect("sent");
    while proxy.stats().cut_streams == 0 {
        assert_eq!(client.ask("GET", "http://site/a", &[]).await.text(), "a");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(response.await.is_err_and(|error| error.is_reset()));
    assert!(client.ask("GET", "http://site/a", &[]).await.is_hit());
}

#[tokio::test]
async fn pings_keep_no_connection_open() {
    let mut options = options();
    options.limits.keep_alive_timeout = Duration::from_millis(500);
    let proxy = TestProxy::start(options).await;
    let mut stream = TcpStream::connect(proxy.address).await.expect("a connection");
    stream.write_all(OPENING).await.expect("room");
    let pings = async {
        loop {
            if stream.write_all(&frame(6, 0, 0, b"12345678")).await.is_err() {
                return;
            }
            let mut room = [0; 4096];
            let read = tokio::time::timeout(Duration::from_millis(50), stream.read(&mut room)).await;
            if matches!(read, Ok(Ok(0) | Err(_))) {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), pings).await.expect("an end");
    assert_eq!(proxy.stats().overdue_connections, 1);
}

/// Floods that cost a server memory or time for little: what a client sends again and again.
#[tokio::test]
async fn floods_hold_up_nobody_else() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(FRESH, b"a"));
    let proxy = proxied(&origin).await;
    assert_eq!(get(proxy.address, "/a", &[]).await.text(), "a");
    // `GET http://a/a`, in the words of HPACK's static table.
    let request = [0x82, 0x86, 0x41, 1, b'a', 0x44, 2, b'/', b'a'];
    type Flood = Box<dyn Fn(u32) -> Vec<u8>>;
    let floods: Vec<(&str, Flood, bool)> = vec![
        (
            "rapid reset",
            Box::new(move |turn| {
                let stream = 2 * turn + 1;
                [frame(1, 5, stream, &request), frame(3, 0, stream, &[0, 0, 0, 8])].concat()
            }),
            true,
        ),
        (
            "a head without end",
            Box::new(move |turn| match turn {
                0 => frame(1, 1, 1, &request),
                _ => frame(9, 0, 1, &[&[0x40, 1, b'x', 0x7f, 0xa1, 0x1e][..], &[b'y'; 4000]].concat()),
            }),
            true,
        ),
        ("settings", Box::new(|_| frame(4, 0, 0, &[0, 3, 0, 0, 0, 100])), false),
        ("pings", Box::new(|_| frame(6, 0, 0, b"12345678")), false),
        ("priorities", Box::new(|turn| frame(2, 0, 2 * turn + 1, &[0, 0, 0, 0, 1])), false),
        ("empty data on a closed stream", Box::new(|_| frame(0, 0, 1, &[])), true),
        (
            "resets that the client provokes",
            Box::new(move |turn| {
                let stream = 2 * turn + 1;
                [frame(1, 5, stream, &request), frame(8, 0, stream, &[0x7f, 0xff, 0xff, 0xff])].concat()
            }),
            true,
        ),
        ("windows", Box::new(|_| frame(8, 0, 0, &[0x7f, 0xff, 0xff, 0xff])), true),
    ];
    for (name, flood, ends) in floods {
        let mut stream = TcpStream::connect(proxy.address).await.expect("a connection");
        stream.write_all(OPENING).await.expect("room");
        // Nothing of what the proxy answers is read, and sending stops when the proxy takes no more.
        let mut sent = 0;
        let sending = async {
            for turn in 0..100_000 {
                if stream.write_all(&flood(turn)).await.is_err() {
                    return true;
                }
                sent += 1;
            }
            false
        };
        let ended = tokio::time::timeout(Duration::from_secs(2), sending).await;
        assert!(!ends || ended == Ok(true), "{name}: {sent} turns, {ended:?}");
        let others = tokio::time::timeout(Duration::from_secs(5), get(proxy.address, "/a", &[])).await;
        assert!(others.is_ok_and(|reply| reply.is_hit()), "{name}");
    }
    assert_eq!(origin.got().len(), 1, "what was reset may be answered from memory");
}

/// So few resets are no flood yet, but none of these requests was seen before it was taken back.
#[tokio::test]
async fn burst_of_resets_ends_the_connection() {
    let origin = TestOrigin::start().await;
    let proxy = proxied(&origin).await;
    // `GET http://a/a`, in the words of HPACK's static table.
    let request = [0x82, 0x86, 0x41, 1, b'a', 0x44, 2, b'/', b'a'];
    let pair = |turn: u32| [frame(1, 5, 2 * turn + 1, &request), frame(3, 0, 2 * turn + 1, &[0, 0, 0, 8])].concat();
    let mut stream = TcpStream::connect(proxy.address).await.expect("a connection");
    let sent = [OPENING, &(0..100).flat_map(pair).collect::<Vec<_>>()].concat();
    stream.write_all(&sent).await.expect("room");
    let mut answer = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut answer)).await;
    assert!(ended.is_ok(), "the connection goes on");
}

#[tokio::test]
async fn requests_of_a_connection_are_bounded() {
    let origin = TestOrigin::start().await;
    origin.on("/wait", OriginScript::ok(&["cache-control: no-store"], b"a").wait("never"));
    origin.on("/hang", OriginScript::raw(b"").wait("gate").then(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na"));
    let url = Some(format!("http://{}", origin.address).parse().expect("an origin"));
    let mut options = ProxyOptions { origin: url, ..options() };
    options.limits.drain_timeout = Duration::from_millis(100);
    let proxy = TestProxy::start(options).await;
    let mut client = Http2Client::plain(proxy.address).await;
    let mut asked = Vec::new();
    for turn in 0..100 {
        asked.push(client.send(head("GET", &format!("http://site/hang?{turn}"), &[]), true).await.0);
    }
    let mut more = client.sender.clone();
    let ready =
        tokio::time::timeout(Duration::from_millis(200), std::future::poll_fn(|context| more.poll_ready(context)));
    let (late, _) = match ready.await {
        Ok(ready) => {
            ready.expect("a connection");
            more.send_request(head("GET", "http://site/hang?late", &[]), true).expect("queued by the client")
        }
        Err(_) => return,
    };
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(proxy.stats().requests <= 100, "{}", proxy.stats().requests);
    drop(late);
}

#[tokio::test]
async fn stop_finishes_running_requests() {
    let origin = TestOrigin::start().await;
    let response = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n01234";
    origin.on("/slow", OriginScript::raw(response).wait("rest").then(b"56789"));
    let mut proxy = proxied(&origin).await;
    let mut client = Http2Client::plain(proxy.address).await;
    let (response, _) = client.send(head("GET", "http://site/slow", &[]), true).await;
    let mut body = response.await.expect("a response").into_body();
    let mut idle = Http2Client::plain(proxy.address).await;
    assert_eq!(idle.ask("TRACE", "http://site/", &[]).await.status, 405);
    proxy.shutdown.request();
    // A client that has no request under way is told to go at once.
    idle.task.await.expect("joined").expect("a good end");
    origin.open("rest");
    let mut found = Vec::new();
    assert!(take(&mut body, &mut found).await && found == b"0123456789");
    client.task.await.expect("joined").expect("a good end");
    proxy.stop().await;
}
