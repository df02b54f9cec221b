//! Requests whose framing is ambiguous get an error or no answer, and never reach an origin.

use crate::common::*;

/// The requests, which `nectary bench proxy` also sends through other proxies.
#[path = "../../bench/src/proxy/payloads.rs"]
mod payloads;

use payloads::{AMBIGUOUS_HEADS, WRONG_CHUNKS};

#[tokio::test]
async fn ambiguous_requests_end_their_connection() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(b"hello"));
    let proxy = TestProxy::forward().await;
    let target = origin.url("/a");
    let smuggled = format!("GET {} HTTP/1.1\r\nhost: a\r\n\r\n", origin.url("/smuggled"));
    for (name, head) in AMBIGUOUS_HEADS {
        for piece in [usize::MAX, 1] {
            let mut client = TestClient::connect(proxy.address).await;
            let bytes = format!("{}{smuggled}", head.replace('@', &target)).into_bytes();
            for chunk in bytes.chunks(piece.min(bytes.len())) {
                use tokio::io::AsyncWriteExt;
                if client.stream.write_all(chunk).await.is_err() {
                    break;
                }
            }
            let rest = String::from_utf8_lossy(&client.rest().await).into_owned();
            let is_refusal =
                ["400", "501", "505"].iter().any(|status| rest.starts_with(&format!("HTTP/1.1 {status} ")));
            assert!(rest.is_empty() || is_refusal, "{name}, in pieces of {piece}: {rest}");
            assert_eq!(rest.matches("HTTP/1.1 ").count(), rest.len().min(1), "{name}: one answer at most: {rest}");
            if piece == usize::MAX {
                assert!(is_refusal, "{name}: {rest}");
            }
        }
    }
    assert_eq!(origin.count(), 0, "{:?}", origin.got());
}

/// The request is cut off, and nothing behind the bad chunk is read.
#[tokio::test]
async fn bad_chunks_end_the_connection() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(b"hello"));
    let proxy = TestProxy::forward().await;
    let smuggled = format!("GET {} HTTP/1.1\r\nhost: a\r\n\r\n", origin.url("/smuggled"));
    for body in WRONG_CHUNKS {
        let mut client = TestClient::connect(proxy.address).await;
        let head = format!("POST {} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n", origin.url("/a"));
        client.send(format!("{head}{body}{smuggled}").as_bytes()).await;
        let rest = String::from_utf8_lossy(&client.rest().await).into_owned();
        assert!(rest.matches("HTTP/1.1 ").count() <= 1 && !rest.contains("HTTP/1.1 2"), "{body:?}: {rest}");
    }
    assert!(origin.got().iter().all(|got| !got.line.contains("smuggled")));
}

#[tokio::test]
async fn pipelined_answers_keep_order() {
    let origin = TestOrigin::start().await;
    origin.on("/1", OriginScript::fresh(b"one")).on("/2", OriginScript::fresh(b"two"));
    let proxy = TestProxy::forward().await;
    let mut client = TestClient::connect(proxy.address).await;
    let lines = ["/1", "/2", "/1"].map(|path| request(&[&format!("GET {} HTTP/1.1", origin.url(path))]));
    client.send(lines.concat().as_bytes()).await;
    for expected in ["one", "two", "one"] {
        assert_eq!(client.reply(false).await.text(), expected);
    }
}
