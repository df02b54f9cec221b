//! The ends of connections of HTTP/2: no client loses what was written for it, each learns that no more is answered,
//! and one that takes back its requests again and again loses its connection.

use std::time::Duration;

use nectary_proxy::ProxyOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::common::http2::{Http2Client, OPENING, frame, head};
use crate::common::*;

/// The types of frames that these tests look for.
const DATA: u8 = 0;
const GOAWAY: u8 = 7;

/// `:method GET`, `:scheme http`, `:authority a` and this path, in the words of HPACK's static table.
fn get_of(path: &str) -> Vec<u8> {
    [&[0x82, 0x86, 0x41, 1, b'a', 0x44, path.len() as u8][..], path.as_bytes()].concat()
}

/// The type, the flags and the length of each whole frame.
fn frames(mut bytes: &[u8]) -> Vec<(u8, u8, usize)> {
    let mut found = Vec::new();
    while let [a, b, c, kind, flags, _, _, _, _, rest @ ..] = bytes {
        let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
        if rest.len() < length {
            break;
        }
        found.push((*kind, *flags, length));
        bytes = &rest[length..];
    }
    found
}

/// A proxy that waits for little at its end.
async fn hasty(origin: &TestOrigin) -> TestProxy {
    let url = Some(format!("http://{}", origin.address).parse().expect("an origin"));
    let mut options = ProxyOptions { origin: url, ..options() };
    options.limits.drain_timeout = Duration::from_millis(100);
    TestProxy::start(options).await
}

/// A client that opens its windows wide and takes little from its socket at a time.
async fn slow(proxy: &TestProxy) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(8 << 10).expect("a small buffer");
    let mut stream = socket.connect(proxy.address).await.expect("a connection");
    let windows = [&OPENING[..24], &frame(4, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff]), &frame(8, 0, 0, &[0x70, 0, 0, 0])];
    stream.write_all(&windows.concat()).await.expect("room");
    stream
}

/// While a client takes what was written for it, it opens its windows again. The kernel would drop the rest if the
/// proxy had closed the connection.
#[tokio::test]
async fn stop_waits_for_slow_client() {
    let origin = TestOrigin::start().await;
    origin.on("/long", OriginScript::fresh(&vec![7; 300_000]));
    let url = Some(format!("http://{}", origin.address).parse().expect("an origin"));
    let mut options = ProxyOptions { origin: url, ..options() };
    options.limits.drain_timeout = Duration::from_secs(20);
    let mut proxy = TestProxy::start(options).await;
    assert_eq!(get(proxy.address, "/long", &[]).await.body.len(), 300_000);
    let mut stream = slow(&proxy).await;
    stream.write_all(&frame(1, 5, 1, &get_of("/long"))).await.expect("room");
    proxy.wait_for(|stats| stats.body_bytes_sent == 600_000).await;
    proxy.shutdown.request();
    // It takes nothing for longer than a silent client is waited for.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let (mut came, mut room) = (Vec::new(), vec![0; 16 << 10]);
    loop {
        match stream.read(&mut room).await {
            Ok(count) if count > 0 => came.extend_from_slice(&room[..count]),
            _ => break,
        }
        _ = stream.write_all(&frame(8, 0, 0, &[0, 0, 0x40, 0])).await;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let data: Vec<_> = frames(&came).into_iter().filter(|(kind, ..)| *kind == DATA).collect();
    assert_eq!(data.iter().map(|(_, _, length)| length).sum::<usize>(), 300_000);
    assert!(data.last().is_some_and(|(_, flags, _)| flags & 1 == 1), "the end of the stream");
    drop(stream);
    tokio::time::timeout(Duration::from_secs(5), proxy.stop()).await.expect("a stop in time");
}

#[tokio::test]
async fn lingering_client_delays_no_stop() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(b"a"));
    let mut proxy = TestProxy::reverse(origin.address).await;
    let mut stream = slow(&proxy).await;
    stream.write_all(&frame(1, 5, 1, &get_of("/a"))).await.expect("room");
    proxy.wait_for(|stats| stats.body_bytes_sent == 1).await;
    tokio::time::timeout(Duration::from_secs(6), proxy.stop()).await.expect("a stop in time");
}

#[tokio::test]
async fn idle_client_learns_of_the_end() {
    let mut options = options();
    options.limits.keep_alive_timeout = Duration::from_millis(500);
    let proxy = TestProxy::start(options).await;
    let mut stream = TcpStream::connect(proxy.address).await.expect("a connection");
    stream.write_all(OPENING).await.expect("room");
    let mut came = Vec::new();
    let end = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut came)).await;
    end.expect("an end").expect("a good end");
    assert!(frames(&came).iter().any(|(kind, ..)| *kind == GOAWAY), "{:?}", frames(&came));
    // One that answers goes by itself.
    let client = Http2Client::plain(proxy.address).await;
    client.task.await.expect("joined").expect("a good end");
}

#[tokio::test]
async fn requests_taken_back_end_the_connection() {
    const AT_ONCE: u32 = 20;
    let origin = TestOrigin::start().await;
    origin.on("/hang", OriginScript::raw(b"").hang());
    origin.on("/a", OriginScript::fresh(b"a"));
    let proxy = hasty(&origin).await;
    let mut stream = TcpStream::connect(proxy.address).await.expect("a connection");
    stream.write_all(OPENING).await.expect("room");
    let mut begun = 0;
    let ended = loop {
        let streams = (0..AT_ONCE).map(|turn| 2 * (begun + turn) + 1);
        let asks: Vec<u8> = streams.clone().flat_map(|number| frame(1, 5, number, &get_of("/hang"))).collect();
        let resets: Vec<u8> = streams.flat_map(|number| frame(3, 0, number, &[0, 0, 0, 8])).collect();
        if stream.write_all(&asks).await.is_err() {
            break true;
        }
        begun += AT_ONCE;
        let is_seen =
            |stats: &nectary_proxy::ProxyStats| stats.requests >= u64::from(begun) || stats.refused_connections > 0;
        proxy.wait_for(is_seen).await;
        if proxy.stats().refused_connections > 0 || begun > 600 {
            break proxy.stats().refused_connections == 1;
        }
        _ = stream.write_all(&resets).await;
    };
    assert!(ended && (200..=260).contains(&begun), "{begun}");
    // A client may take back as many that most of its requests were answered.
    let mut client = Http2Client::plain(proxy.address).await;
    for _ in 0..210 {
        for path in ["http://site/a", "http://site/a"] {
            assert_eq!(client.ask("GET", path, &[]).await.status, 200);
        }
        let requests = proxy.stats().requests;
        let (response, _) = client.send(head("GET", "http://site/hang", &[]), true).await;
        proxy.wait_for(|stats| stats.requests > requests).await;
        drop(response);
    }
    assert_eq!(client.ask("GET", "http://site/a", &[]).await.status, 200);
}
