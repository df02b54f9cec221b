//! Requests whose framing is ambiguous get an error or no answer, and never reach an origin.

use crate::common::*;

#[tokio::test]
async fn ambiguous_requests_end_their_connection() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(b"hello"));
    let proxy = TestProxy::forward().await;
    let target = origin.url("/a");
    let smuggled = format!("GET {} HTTP/1.1\r\nhost: a\r\n\r\n", origin.url("/smuggled"));
    let table = [
        (
            "both lengths",
            "POST @ HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        (
            "both lengths, the other way",
            "POST @ HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n",
        ),
        ("two lengths", "POST @ HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\ncontent-length: 5\r\n\r\nabcd"),
        ("a list of lengths", "POST @ HTTP/1.1\r\nhost: a\r\ncontent-length: 4, 4\r\n\r\nabcd"),
        ("a signed length", "POST @ HTTP/1.1\r\nhost: a\r\ncontent-length: +4\r\n\r\nabcd"),
        ("an empty length", "POST @ HTTP/1.1\r\nhost: a\r\ncontent-length:\r\n\r\n"),
        ("a space before a colon", "POST @ HTTP/1.1\r\nhost: a\r\ncontent-length : 4\r\n\r\nabcd"),
        ("a space before another colon", "GET @ HTTP/1.1\r\nhost: a\r\nx : y\r\n\r\n"),
        ("an unknown coding", "POST @ HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
        (
            "a coding that only looks known",
            "POST @ HTTP/1.1\r\nhost: a\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
        ),
        (
            "two codings",
            "POST @ HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n",
        ),
        ("a coding in 1.0", "POST @ HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
        ("a folded line", "GET @ HTTP/1.1\r\nhost: a\r\nx: y\r\n z\r\n\r\n"),
        ("a leading space", "GET @ HTTP/1.1\r\n host: a\r\n\r\n"),
        ("a bare LF in the start line", "GET @ HTTP/1.1\nhost: a\r\n\r\n"),
        ("a bare LF in a header", "GET @ HTTP/1.1\r\nhost: a\nx: y\r\n\r\n"),
        ("a bare LF at the end", "GET @ HTTP/1.1\r\nhost: a\r\n\n"),
        ("a bare CR in a value", "GET @ HTTP/1.1\r\nhost: a\r\nx: y\rz\r\n\r\n"),
        ("a bare CR in a name", "GET @ HTTP/1.1\r\nhost: a\r\nx\ry: z\r\n\r\n"),
        ("a NUL", "GET @ HTTP/1.1\r\nhost: a\r\nx: \0\r\n\r\n"),
        ("no colon", "GET @ HTTP/1.1\r\nhost: a\r\nnonsense\r\n\r\n"),
        ("no version", "GET @\r\nhost: a\r\n\r\n"),
        ("a later version", "GET @ HTTP/2.0\r\nhost: a\r\n\r\n"),
        ("a space in the target", "GET @ x HTTP/1.1\r\nhost: a\r\n\r\n"),
        ("a control character in the method", "G\x01T @ HTTP/1.1\r\nhost: a\r\n\r\n"),
    ];
    for (name, head) in table {
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
    for body in [
        "x\r\n",
        "-1\r\n",
        "3\nabc\r\n",
        "3\r\nabcd\r\n",
        "3 \r\nabc\r\n",
        "0x3\r\nabc\r\n",
        "3;a\nb\r\nabc\r\n",
        "11111111111111111\r\n",
        "3\r\nabc\r\n0\r\nx: y\n\r\n",
    ] {
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
