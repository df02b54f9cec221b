//! A refusal has the headers that HTTP requires, and a line in the access log.

use std::net::SocketAddr;
use std::path::PathBuf;

use nectary_proxy::{AccessLog, ProxyOptions};
use tokio::io::AsyncWriteExt;

use crate::common::*;

/// Sends bytes, and reads one answer.
async fn answer(proxy: SocketAddr, bytes: &[u8]) -> ClientReply {
    let mut client = TestClient::connect(proxy).await;
    _ = client.stream.write_all(bytes).await;
    client.reply(false).await
}

/// Starts a proxy with small limits and an access log.
async fn logging(name: &str, origin: Option<&TestOrigin>) -> (TestProxy, PathBuf) {
    let path = std::env::temp_dir().join(format!("nectary-proxy-{name}-{}.log", std::process::id()));
    _ = std::fs::remove_file(&path);
    let origin = origin.map(|origin| format!("http://{}", origin.address).parse().expect("an origin"));
    let mut options = ProxyOptions { origin, access_log: AccessLog::File(path.clone()), ..options() };
    options.limits.request_head_bytes_max = 4096;
    options.limits.request_body_bytes_max = 10;
    (TestProxy::start(options).await, path)
}

/// Requests that are refused, with the status and the request in the log.
fn refused() -> Vec<(String, u16, String)> {
    let long = "x".repeat(5000);
    let row = |bytes: &str, status, logged: &str| (bytes.to_owned(), status, logged.to_owned());
    vec![
        row("GET /a HTTP/1.1\r\nhost: a\r\nx : y\r\n\r\n", 400, "GET /a HTTP/1.1"),
        row("GET /a HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", 400, "GET /a HTTP/1.1"),
        row("GET /a\"b\\ HTTP/1.0\nhost: a\r\n\r\n", 400, "GET /a\\x22b\\x5C HTTP/1.0"),
        row("G\u{1}T /a HTTP/1.1\r\nhost: a\r\n\r\n", 400, "- G\\x01T /a HTTP/1.1"),
        row("GET /a<b> HTTP/1.1\r\nhost: a\r\n\r\n", 400, "GET /a<b> HTTP/1.1"),
        row("GET /a b HTTP/1.1\r\nhost: a\r\n\r\n", 400, "GET /a b HTTP/1.1"),
        row("GET /a\r\nhost: a\r\n\r\n", 400, "GET /a HTTP/0.9"),
        row("\u{16}\u{3}\u{1}\r\n\r\n", 400, "- \\x16\\x03\\x01 HTTP/0.9"),
        row("GET /a HTTP/2.0\r\nhost: a\r\n\r\n", 505, "GET /a HTTP/2.0"),
        row("POST /a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip\r\n\r\n", 501, "POST /a HTTP/1.1"),
        row(&format!("GET /a HTTP/1.1\r\nhost: a\r\nx: {long}\r\n\r\n"), 431, "GET /a HTTP/1.1"),
        row(&format!("GET /a HTTP/1.1\r\nhost: a\r\n{}\r\n", "x: y\r\n".repeat(101)), 431, "GET /a HTTP/1.1"),
        row(&format!("GET /{long} HTTP/1.1\r\n\r\n"), 414, &format!("GET /{} HTTP/1.1", &long[..1019])),
        row("POST @/a HTTP/1.1\r\nhost: a\r\ncontent-length: 11\r\n\r\n", 413, "POST @/a HTTP/1.1"),
        row("TRACE @/a HTTP/1.1\r\nhost: a\r\n\r\n", 405, "TRACE @/a HTTP/1.1"),
        row("GET @/a HTTP/1.1\r\n\r\n", 400, "GET @/a HTTP/1.1"),
        row("GET @/a HTTP/1.1\r\nhost: a b\r\n\r\n", 400, "GET @/a HTTP/1.1"),
    ]
}

#[tokio::test]
async fn refusals_are_logged_with_headers() {
    let origin = TestOrigin::start().await;
    for is_reverse in [false, true] {
        let name = format!("refusals-{is_reverse}");
        let (mut proxy, path) = logging(&name, is_reverse.then_some(&origin)).await;
        let authority = format!("http://{}", origin.address);
        let mut expected = Vec::new();
        for (bytes, status, logged) in refused() {
            let sent = if is_reverse { bytes.replace('@', "") } else { bytes.replace('@', &authority) };
            let reply = answer(proxy.address, sent.as_bytes()).await;
            assert_eq!(reply.status, status, "{sent:?}");
            assert_eq!(reply.header("connection"), "close", "{sent:?}");
            assert!(reply.header("date").ends_with(" GMT"), "{sent:?}: {:?}", reply.headers);
            assert_eq!(reply.header("content-length"), reply.body.len().to_string(), "{sent:?}");
            assert_eq!(reply.header("content-type").is_empty(), reply.body.is_empty(), "{sent:?}");
            assert_eq!(reply.header("allow").is_empty(), status != 405, "{sent:?}");
            let logged = logged.replace('@', &authority);
            expected.push(format!("127.0.0.1 \"{logged}\" {status} {} \"-\" \"-\" OWN", reply.body.len()));
        }
        let stats = proxy.stats();
        assert_eq!((stats.own_responses, origin.count()), (expected.len() as u64, 0));
        proxy.stop().await;
        let text = std::fs::read_to_string(&path).expect("a log");
        let found: Vec<String> = text
            .lines()
            .map(|line| {
                let (client, rest) = line.split_once(" - - [").expect("a client");
                let (_, rest) = rest.split_once("] ").expect("a time");
                let (rest, _) = rest.split_once(" OWN ").expect("a result");
                format!("{client} {rest} OWN")
            })
            .collect();
        assert_eq!(found, expected);
        std::fs::remove_file(&path).expect("removed");
    }
}

/// Requests that arrived with the refused one are logged before it.
#[tokio::test]
async fn refused_request_is_logged_last() {
    let origin = TestOrigin::start().await;
    origin.on("/good", OriginScript::fresh(b"x"));
    let (mut proxy, path) = logging("refused-last", Some(&origin)).await;
    let good = request(&["GET /good HTTP/1.1"]);
    for bad in
        ["GET /bad HTTP/1.1\r\n x: y\r\n\r\n", "GET /bad HTTP/1.1\r\nno colon\r\n\r\n", "GET /<bad> HTTP/1.1\r\n\r\n"]
    {
        let mut client = TestClient::connect(proxy.address).await;
        client.send(format!("{good}{good}{bad}").as_bytes()).await;
        for status in [200, 200, 400] {
            assert_eq!(client.reply(false).await.status, status, "{bad:?}");
        }
    }
    proxy.stop().await;
    let text = std::fs::read_to_string(&path).expect("a log");
    let refused: Vec<&str> = text.lines().filter(|line| line.contains("\" 400 ")).collect();
    assert_eq!((text.lines().count(), refused.len()), (9, 3), "{text}");
    assert!(refused[..2].iter().all(|line| line.contains("\"GET /bad HTTP/1.1\"")), "{text}");
    // The parser has taken this head out of its buffer, and the bytes began with another request.
    assert!(refused[2].contains("\"- - HTTP/1.1\""), "{text}");
    std::fs::remove_file(&path).expect("removed");
}

#[tokio::test]
async fn method_405_lists_allowed_methods() {
    const SERVED: &str = "GET, HEAD, OPTIONS, POST, PUT, PATCH, DELETE";
    let origin = TestOrigin::start().await;
    let admin = || nectary_proxy::AdminOptions { listen: vec![([127, 0, 0, 1], 0).into()], ..options().admin };
    let forward = TestProxy::start(ProxyOptions { admin: admin(), ..options() }).await;
    let reverse = TestProxy::reverse(origin.address).await;
    let admin = forward.admin_address.expect("one");
    for (address, line, expected) in [
        (forward.address, "TRACE http://a/ HTTP/1.1", format!("{SERVED}, CONNECT, PURGE")),
        (reverse.address, "TRACE / HTTP/1.1", format!("{SERVED}, PURGE")),
        (reverse.address, "CONNECT a:443 HTTP/1.1", format!("{SERVED}, PURGE")),
        (admin, "TRACE http://a/ HTTP/1.1", "PURGE".to_owned()),
        (admin, "GET http://a/ HTTP/1.1", "PURGE".to_owned()),
    ] {
        let reply = TestClient::connect(address).await.ask(&[line]).await;
        assert_eq!((reply.status, reply.header("allow")), (405, expected), "{line}");
    }
}
