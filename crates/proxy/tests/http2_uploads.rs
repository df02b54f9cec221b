//! Bodies over HTTP/2, in both directions: what is cut off never looks whole, limits and early answers are as with
//! HTTP/1.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use nectary_proxy::ProxyOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::common::http2::{Http2Client, head, reply, take};
use crate::common::*;

fn of_origin(address: SocketAddr) -> ProxyOptions {
    ProxyOptions { origin: Some(format!("http://{address}").parse().expect("an origin")), ..options() }
}

/// An origin that answers each connection's request after its head, in these pieces, and closes. Without any it reads
/// nothing more.
async fn early(pieces: Vec<Vec<u8>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        let mut silent = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut room = [0; 1024];
            let _ = stream.read(&mut room).await;
            if pieces.is_empty() {
                silent.push(stream);
                continue;
            }
            for piece in &pieces {
                let _ = stream.write_all(piece).await;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            let _ = stream.shutdown().await;
            // What still comes is read, so that the answer is not lost.
            tokio::spawn(async move { tokio::io::copy(&mut stream, &mut tokio::io::sink()).await });
        }
    });
    address
}

#[tokio::test]
async fn long_uploads_are_refused() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(&[], b"done"));
    let mut options = of_origin(origin.address);
    options.limits.request_body_bytes_max = 10;
    let proxy = TestProxy::start(options).await;
    let mut client = Http2Client::plain(proxy.address).await;
    for length in [Some("11"), None] {
        let lines: Vec<_> = length.iter().map(|length| ("content-length", *length)).collect();
        let (response, mut body) = client.send(head("POST", "http://site/a", &lines), false).await;
        let _ = body.send_data(Bytes::from_static(b"01234567890"), true);
        let reply = reply(response).await;
        assert_eq!(
            (reply.status, reply.cache_status().as_str()),
            (413, "nectary; detail=body-too-large"),
            "{length:?}"
        );
    }
    let (response, mut body) = client.send(head("POST", "http://site/a", &[]), false).await;
    body.send_data(Bytes::from_static(b"0123456789"), true).expect("sent");
    assert_eq!(reply(response).await.text(), "done");
    assert_eq!(origin.got().len(), 1);
}

#[tokio::test]
async fn reset_upload_never_looks_whole() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(&[], b"done"));
    let proxy = TestProxy::start(of_origin(origin.address)).await;
    let mut client = Http2Client::plain(proxy.address).await;
    for (turn, lines) in [&[][..], &[("content-length", "6")]].into_iter().enumerate() {
        let (response, mut body) = client.send(head("POST", "http://site/a", lines), false).await;
        body.send_data(Bytes::from_static(b"abc"), false).expect("sent");
        proxy.wait_for(|stats| stats.origin_requests == turn as u64 + 1).await;
        body.send_reset(h2::Reason::CANCEL);
        assert!(response.await.is_err());
        origin.wait_for_ends(turn + 1).await;
    }
    assert!(origin.got().is_empty(), "{:?}", origin.got());
    assert_eq!((proxy.stats().origin_failures, proxy.stats().origin_connections), (0, 2));
}

#[tokio::test]
async fn upload_trailers_are_not_forwarded() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(&[], b"done"));
    let proxy = TestProxy::start(of_origin(origin.address)).await;
    let mut client = Http2Client::plain(proxy.address).await;
    let (response, mut body) = client.send(head("POST", "http://site/a", &[]), false).await;
    body.send_data(Bytes::from_static(b"abc"), false).expect("sent");
    let mut trailers = http::HeaderMap::new();
    trailers.insert("x-evil", http::HeaderValue::from_static("1"));
    body.send_trailers(trailers).expect("sent");
    assert_eq!(reply(response).await.text(), "done");
    let got = &origin.got()[0];
    assert_eq!(String::from_utf8_lossy(&got.body), "3\r\nabc\r\n0\r\n\r\n");
}

#[tokio::test]
async fn early_answer_reaches_uploading_client() {
    // A little more than the client's window and the proxy's buffer, so that the last piece waits for the client.
    let begin = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 72000\r\n\r\n".to_vec();
    let address = early([vec![begin], vec![vec![b'x'; 4000]; 18]].concat()).await;
    let mut options = of_origin(address);
    options.limits.body_timeout = Duration::from_millis(500);
    let proxy = TestProxy::start(options).await;
    let mut client = Http2Client::plain(proxy.address).await;
    let (response, mut body) = client.send(head("POST", "http://site/a", &[]), false).await;
    body.send_data(Bytes::from_static(b"abc"), false).expect("sent");
    let mut answer = response.await.expect("an answer").into_body();
    // The client takes its time. It need not send more of its body, as nobody waits for that.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let mut found = Vec::new();
    assert!(take(&mut answer, &mut found).await, "{} bytes", found.len());
    assert_eq!((found.len(), proxy.stats().cut_streams), (72_000, 0));
}

/// An origin that reads nothing stops the upload.
#[tokio::test]
async fn unread_upload_is_stopped() {
    let mut options = of_origin(early(Vec::new()).await);
    options.limits.drain_timeout = Duration::from_millis(100);
    let proxy = TestProxy::start(options).await;
    let mut client = Http2Client::plain(proxy.address).await;
    let (_response, mut body) = client.send(head("POST", "http://site/a", &[]), false).await;
    let mut sent = 0;
    let sending = async {
        while sent < 64 << 20 {
            body.reserve_capacity(1 << 20);
            let room = std::future::poll_fn(|context| body.poll_capacity(context)).await;
            let room = room.expect("a stream").expect("a connection").min(1 << 20);
            body.send_data(Bytes::from(vec![0; room]), false).expect("sent");
            sent += room;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(2), sending).await.is_err(), "all was taken");
    assert!(sent < 16 << 20, "{sent} bytes");
}

#[tokio::test]
async fn answers_keep_their_form() {
    let origin = TestOrigin::start().await;
    origin.on("/cut", OriginScript::raw(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n01234").close());
    origin.on(
        "/chunk",
        OriginScript::raw(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n01234\r\n").close(),
    );
    origin.on("/empty", OriginScript::raw(b"HTTP/1.1 204 No Content\r\ncache-control: no-store\r\n\r\n"));
    origin.on("/same", OriginScript::raw(b"HTTP/1.1 304 Not Modified\r\netag: \"a\"\r\ncontent-length: 5\r\n\r\n"));
    origin.on("/head", OriginScript::raw(b"HTTP/1.1 200 OK\r\ncache-control: no-store\r\ncontent-length: 5\r\n\r\n"));
    let hop = ["connection: x-hop", "x-hop: 1", "keep-alive: timeout=5", "proxy-connection: close", "x-kept: 1"];
    origin.on("/hop", OriginScript::ok(&hop, b"a"));
    let proxy = TestProxy::start(of_origin(origin.address)).await;
    let mut client = Http2Client::plain(proxy.address).await;
    for path in ["/cut", "/chunk"] {
        for method in ["GET", "POST"] {
            let (response, _) = client.send(head(method, &format!("http://site{path}"), &[]), true).await;
            let mut found = Vec::new();
            let is_whole = match response.await {
                Ok(response) => take(&mut response.into_body(), &mut found).await,
                Err(_) => false,
            };
            assert!(!is_whole && b"01234".starts_with(&found[..]), "{method} {path}: {found:?}");
        }
    }
    let reply = client.ask("GET", "http://site/empty", &[]).await;
    assert_eq!((reply.status, reply.is_complete, reply.header("content-length").as_str()), (204, true, ""));
    let reply = client.ask("GET", "http://site/same", &[("if-match", "\"a\"")]).await;
    assert_eq!((reply.status, reply.is_complete, reply.body.len()), (304, true, 0));
    let reply = client.ask("HEAD", "http://site/head", &[]).await;
    assert_eq!((reply.status, reply.is_complete, reply.header("content-length").as_str()), (200, true, "5"));
    let reply = client.ask("GET", "http://site/hop", &[]).await;
    assert_eq!((reply.status, reply.header("x-kept").as_str(), reply.text().as_str()), (200, "1", "a"));
    for name in ["connection", "x-hop", "keep-alive", "proxy-connection", "transfer-encoding"] {
        assert_eq!(reply.header(name), "", "{name}");
    }
}
