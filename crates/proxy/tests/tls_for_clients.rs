//! Clients use TLS: the certificate is that for the name that they ask for, files are read again, and a client that
//! does not speak TLS costs nothing but its own connection.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use nectary_proxy::{AccessLog, CertificateFiles, Error, LogFormat, ProxyOptions};
use rustls::HandshakeKind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::common::certificates::TestCertificates;
use crate::common::http2::{Http2Client, head, tls, tls_config, tls_with};
use crate::common::*;

async fn proxy_with(origin: &TestOrigin, certificates: Vec<CertificateFiles>) -> TestProxy {
    let url = Some(format!("http://{}", origin.address).parse().expect("an origin"));
    TestProxy::start(ProxyOptions { origin: url, certificates, ..options() }).await
}

/// The names of the certificate that a client is shown.
async fn shown(address: SocketAddr, name: &str, ca: &Path) -> Result<Vec<u8>, String> {
    let stream = tls(address, name, ca, &[b"http/1.1"]).await.map_err(|error| error.to_string())?;
    let chain = stream.get_ref().1.peer_certificates().map(<[_]>::to_vec).unwrap_or_default();
    Ok(chain.first().map(|certificate| certificate.to_vec()).unwrap_or_default())
}

#[tokio::test]
async fn both_protocols_report_tls() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(&["cache-control: max-age=60"], b"hello"));
    let files = TestCertificates::new("both");
    let proxy = proxy_with(&origin, vec![files.sign("site", &["site.test"])]).await;
    let mut newer = Http2Client::tls(proxy.address, "site.test", &files.ca()).await;
    assert_eq!(newer.ask("GET", "https://site.test/a", &[]).await.text(), "hello");
    assert!(newer.ask("GET", "https://site.test/a", &[]).await.is_hit());
    // A client that names no protocol gets the older one.
    for protocols in [&[&b"http/1.1"[..]][..], &[]] {
        let mut stream = tls(proxy.address, "site.test", &files.ca(), protocols).await.expect("TLS");
        stream.write_all(request(&["GET /a HTTP/1.1", "connection: close"]).as_bytes()).await.expect("room");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer that ends as TLS ends");
        assert!(answer.contains("nectary; hit") && answer.ends_with("\r\n\r\nhello"), "{answer}");
    }
    let got = &origin.got()[0];
    assert_eq!(got.header("x-forwarded-proto"), "https");
    assert!(got.header("forwarded").ends_with("proto=https") && origin.got().len() == 1);
    let stats = proxy.stats();
    assert_eq!((stats.handshakes, stats.failed_handshakes, stats.http2_connections), (3, 0, 1));
}

#[tokio::test]
async fn json_log_tells_version_of_tls() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(b"hello"));
    let files = TestCertificates::new("log");
    let path = files.ca().with_file_name("access.log");
    let url = Some(format!("http://{}", origin.address).parse().expect("an origin"));
    let mut proxy = TestProxy::start(ProxyOptions {
        origin: url,
        certificates: vec![files.sign("site", &["site.test"])],
        access_log: AccessLog::File(path.clone()),
        log_format: LogFormat::Json,
        ..options()
    })
    .await;
    let mut newer = Http2Client::tls(proxy.address, "site.test", &files.ca()).await;
    assert_eq!(newer.ask("GET", "https://site.test/a", &[]).await.text(), "hello");
    let mut older = tls(proxy.address, "site.test", &files.ca(), &[]).await.expect("TLS");
    older.write_all(request(&["GET /a HTTP/1.1", "connection: close"]).as_bytes()).await.expect("room");
    older.read_to_end(&mut Vec::new()).await.expect("an answer");
    drop(newer);
    proxy.stop().await;
    let text = std::fs::read_to_string(&path).expect("a log");
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    let told: Vec<_> = lines.iter().map(|line| (line["protocol"].as_str(), line["tls"].as_str())).collect();
    assert_eq!(told, [(Some("HTTP/2"), Some("1.3")), (Some("HTTP/1.1"), Some("1.3"))]);
}

#[tokio::test]
async fn certificate_matches_requested_name() {
    let origin = TestOrigin::start().await;
    let files = TestCertificates::new("names");
    let all = vec![
        files.sign("first", &["first.test"]),
        files.sign("wild", &["*.wild.test"]),
        files.sign("exact", &["a.wild.test", "Other.TEST"]),
        // What was named before counts.
        files.sign("late", &["first.test", "*.wild.test", "late.test"]),
    ];
    let expected: Vec<Vec<u8>> = all
        .iter()
        .map(|files| nectary_host::tls::read_certificates(&files.certificate).expect("a certificate")[0].to_vec())
        .collect();
    let proxy = proxy_with(&origin, all).await;
    for (name, index) in
        [("first.test", 0), ("b.wild.test", 1), ("a.wild.test", 2), ("OTHER.test", 2), ("late.test", 3)]
    {
        let found = shown(proxy.address, name, &files.ca()).await;
        assert_eq!(found.as_ref(), Ok(&expected[index]), "{name}");
    }
    // Of what a client offers, the newer protocol counts.
    let protocols = [&b"http/1.1"[..], b"h2"];
    let stream = tls(proxy.address, "first.test", &files.ca(), &protocols).await.expect("TLS");
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    // The first is shown for other names, and its client refuses it.
    for name in ["unknown.test", "a.b.wild.test", "127.0.0.1"] {
        assert!(shown(proxy.address, name, &files.ca()).await.is_err(), "{name}");
    }
    let described: Vec<_> = proxy.reader().certificates().into_iter().map(|found| found.names).collect();
    assert_eq!(
        described,
        [
            vec!["first.test"],
            vec!["*.wild.test"],
            vec!["a.wild.test", "other.test"],
            vec!["first.test", "*.wild.test", "late.test"]
        ]
    );
    assert!(proxy.reader().certificates()[0].days_left() > 0);
}

#[tokio::test]
async fn bad_files_change_no_certificate() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(&["cache-control: max-age=60"], b"hello"));
    let files = TestCertificates::new("again");
    let own = files.sign("site", &["site.test"]);
    let proxy = proxy_with(&origin, vec![own.clone()]).await;
    let reopen = || {
        let reopener = proxy.reopener();
        async move { tokio::task::spawn_blocking(move || reopener.reopen()).await.expect("joined") }
    };
    let before = shown(proxy.address, "site.test", &files.ca()).await;
    let mut open = Http2Client::tls(proxy.address, "site.test", &files.ca()).await;
    files.sign("site", &["site.test", "more.test"]);
    assert_eq!(reopen().await.len(), 0);
    assert_eq!(proxy.reader().certificates()[0].names, ["site.test", "more.test"]);
    let after = shown(proxy.address, "site.test", &files.ca()).await;
    assert!(before.is_ok() && after.is_ok() && before != after);
    assert_eq!(open.ask("GET", "https://site.test/a", &[]).await.text(), "hello", "it keeps its connection");
    // A new certificate that waits for its key, as when two files are replaced one after the other.
    let key = std::fs::read(&own.key).expect("a key");
    files.sign("site", &["site.test"]);
    std::fs::write(&own.key, &key).expect("written");
    let problems = reopen().await;
    assert!(problems.len() == 1 && problems[0].to_string().contains("site.pem"), "{problems:?}");
    std::fs::write(&own.certificate, "nothing").expect("written");
    assert_eq!(reopen().await.len(), 1);
    std::fs::remove_file(&own.certificate).expect("removed");
    assert_eq!(reopen().await.len(), 1);
    assert_eq!(shown(proxy.address, "site.test", &files.ca()).await, after);
}

#[tokio::test]
async fn sessions_outlive_a_reload() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(&["cache-control: max-age=60"], b"hello"));
    let files = TestCertificates::new("session");
    let proxy = proxy_with(&origin, vec![files.sign("site", &["site.test"])]).await;
    let config = tls_config(&files.ca(), &[b"http/1.1"]);
    for (turn, expected) in
        [HandshakeKind::Full, HandshakeKind::Resumed, HandshakeKind::Resumed].into_iter().enumerate()
    {
        if turn == 2 {
            files.sign("site", &["site.test"]);
            let reopener = proxy.reopener();
            let problems = tokio::task::spawn_blocking(move || reopener.reopen()).await.expect("joined");
            assert_eq!(problems.len(), 0);
        }
        let mut stream = tls_with(config.clone(), proxy.address, "site.test").await.expect("TLS");
        // The ticket for the next connection comes with the answer.
        stream.write_all(request(&["GET /a HTTP/1.1", "connection: close"]).as_bytes()).await.expect("room");
        stream.read_to_end(&mut Vec::new()).await.expect("an answer");
        assert_eq!(stream.get_ref().1.handshake_kind(), Some(expected), "{turn}");
    }
}

/// A file that is read while it is written ends anywhere.
#[tokio::test]
async fn half_a_file_changes_no_certificate() {
    let origin = TestOrigin::start().await;
    let files = TestCertificates::new("half");
    let own = files.sign("site", &["site.test"]);
    let proxy = proxy_with(&origin, vec![own.clone()]).await;
    let before = shown(proxy.address, "site.test", &files.ca()).await;
    assert!(before.is_ok());
    files.sign("site", &["site.test"]);
    for path in [&own.certificate, &own.key] {
        let whole = std::fs::read(path).expect("a file");
        for length in (0..whole.trim_ascii().len()).step_by(37) {
            std::fs::write(path, &whole[..length]).expect("written");
            let reopener = proxy.reopener();
            let problems = tokio::task::spawn_blocking(move || reopener.reopen()).await.expect("joined");
            let is_named = problems.iter().any(|problem| problem.to_string().contains("site"));
            assert!(is_named, "{} ends after {length} bytes: {problems:?}", path.display());
        }
        std::fs::write(path, &whole).expect("written");
    }
    assert_eq!(shown(proxy.address, "site.test", &files.ca()).await, before);
}

#[tokio::test]
async fn bad_handshakes_end_alone() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(&["cache-control: max-age=60"], b"hello"));
    let files = TestCertificates::new("stall");
    let url = Some(format!("http://{}", origin.address).parse().expect("an origin"));
    let certificates = vec![files.sign("site", &["site.test"])];
    let mut options = ProxyOptions { origin: url, certificates, ..options() };
    options.limits.head_timeout = Duration::from_millis(300);
    let proxy = TestProxy::start(options).await;
    let mut stalled = Vec::new();
    for sent in [&b""[..], b"\x16\x03\x01\x02\x00\x01", b"\x16\x03"] {
        let mut stream = TcpStream::connect(proxy.address).await.expect("a connection");
        stream.write_all(sent).await.expect("room");
        stalled.push(stream);
    }
    for sent in [&b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"[..], b"\x16\x03\x01\xff\xff\x01\0\0\0", &[0x80; 4000]] {
        let mut stream = TcpStream::connect(proxy.address).await.expect("a connection");
        stream.write_all(sent).await.expect("room");
        stalled.push(stream);
    }
    assert_eq!(
        Http2Client::tls(proxy.address, "site.test", &files.ca())
            .await
            .ask("GET", "https://site.test/a", &[])
            .await
            .status,
        200
    );
    for mut stream in stalled {
        let mut rest = Vec::new();
        let end = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut rest)).await;
        assert!(end.is_ok(), "it stays open");
    }
    proxy.wait_for(|stats| stats.failed_handshakes == 6 && stats.connections_open <= 1).await;
}

/// A client that expects TLS could not read the answer of a full proxy.
#[tokio::test]
async fn full_proxy_sends_no_plaintext() {
    let origin = TestOrigin::start().await;
    origin.on("/hang", OriginScript::raw(b"").hang());
    let files = TestCertificates::new("full");
    let url = Some(format!("http://{}", origin.address).parse().expect("an origin"));
    let certificates = vec![files.sign("site", &["site.test"])];
    let mut options = ProxyOptions { origin: url, certificates, ..options() };
    options.limits.connections_max = 1;
    options.limits.drain_timeout = Duration::from_millis(100);
    let proxy = TestProxy::start(options).await;
    let mut first = Http2Client::tls(proxy.address, "site.test", &files.ca()).await;
    let _hanging = first.send(head("GET", "https://site.test/hang", &[]), true).await;
    proxy.wait_for(|stats| stats.requests == 1).await;
    let mut second = TcpStream::connect(proxy.address).await.expect("a connection");
    let mut came = Vec::new();
    let end = tokio::time::timeout(Duration::from_secs(5), second.read_to_end(&mut came)).await;
    assert!(end.is_ok() && came.is_empty(), "{:?}", String::from_utf8_lossy(&came));
    assert_eq!(proxy.stats().excess_connections, 1);
}

#[tokio::test]
async fn limited_network_gets_no_text_in_tls() {
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(b"hello"));
    let files = TestCertificates::new("limited");
    let url = Some(format!("http://{}", origin.address).parse().expect("an origin"));
    let certificates = vec![files.sign("site", &["site.test"])];
    let mut options = ProxyOptions { origin: url, certificates, ..options() };
    options.limits.by_network.connections_max = Some(1);
    let proxy = TestProxy::start(options).await;
    let mut first = Http2Client::tls(proxy.address, "site.test", &files.ca()).await;
    assert_eq!(first.ask("GET", "https://site.test/a", &[]).await.text(), "hello");
    let mut second = TcpStream::connect(proxy.address).await.expect("a connection");
    let mut came = Vec::new();
    let end = tokio::time::timeout(Duration::from_secs(5), second.read_to_end(&mut came)).await;
    assert!(end.is_ok() && came.is_empty(), "{:?}", String::from_utf8_lossy(&came));
    assert_eq!(proxy.stats().limited_connections, 1);
}

#[tokio::test]
async fn plain_clients_are_redirected() {
    let origin = TestOrigin::start().await;
    let files = TestCertificates::new("redirect");
    let url = Some(format!("http://{}", origin.address).parse().expect("an origin"));
    let certificates = vec![files.sign("site", &["site.test"])];
    let redirect = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    // The port is that of the first address.
    let listen = vec![SocketAddr::from(([127, 0, 0, 1], 0)); 2];
    let options = ProxyOptions { listen, origin: url, certificates, redirect, ..options() };
    let proxy = TestProxy::start(options).await;
    let port = proxy.address.port();
    // Not even what is in memory is served without TLS.
    origin.on("/a", OriginScript::ok(&["cache-control: max-age=60"], b"hello"));
    let mut secure = Http2Client::tls(proxy.address, "site.test", &files.ca()).await;
    assert_eq!(secure.ask("GET", "https://site.test/a", &[]).await.text(), "hello");
    let address = proxy.redirect_address.expect("an address");
    let location = |line: &'static str, host: &'static str| async move {
        let reply = TestClient::connect(address).await.ask(&[line, host]).await;
        (reply.status, reply.header("location"))
    };
    assert_eq!(location("GET /a?b HTTP/1.1", "host: site.test").await, (308, format!("https://site.test:{port}/a?b")));
    assert_eq!(location("POST / HTTP/1.1", "host: site.test:80").await, (308, format!("https://site.test:{port}/")));
    assert_eq!(location("GET http://b/x HTTP/1.1", "host: b").await, (308, format!("https://b:{port}/x")));
    assert_eq!(location("GET /a HTTP/1.1", "host: [::1]:80").await, (308, format!("https://[::1]:{port}/a")));
    assert_eq!(location("HEAD //b HTTP/1.1", "host: a").await, (308, format!("https://a:{port}//b")));
    assert_eq!(location("OPTIONS * HTTP/1.1", "host: a").await, (308, format!("https://a:{port}/")));
    assert_eq!(location("PURGE /a HTTP/1.1", "host: a").await, (308, format!("https://a:{port}/a")));
    assert_eq!(location("GET http://u@b:1/ HTTP/1.1", "host: b").await, (308, format!("https://b:{port}/")));
    for host in ["host: a b", "host: a/b", "host: u@a", "host: a:b", "host:"] {
        assert_eq!(location("GET / HTTP/1.1", host).await.0, 400, "{host}");
    }
    assert_eq!(location("GET http://:80/ HTTP/1.1", "host: a").await.0, 400);
    let mut newer = Http2Client::plain(address).await;
    let reply = newer.ask("GET", "http://site.test/a", &[]).await;
    assert_eq!((reply.status, reply.header("location")), (308, format!("https://site.test:{port}/a")));
    assert_eq!(location("GET /a HTTP/1.1", "host: site.test").await.0, 308);
    assert_eq!(origin.got().len(), 1);
}

#[test]
fn start_names_bad_certificate() {
    let files = TestCertificates::new("wrong");
    let (one, other) = (files.sign("one", &["one.test"]), files.sign("other", &["other.test"]));
    let text = |certificates: Vec<CertificateFiles>| {
        let bound = nectary_proxy::Proxy::bind(ProxyOptions { certificates, ..options() });
        bound.err().map(|error: Error| error.to_string()).unwrap_or_default()
    };
    assert_eq!(text(vec![one.clone(), other.clone()]), "");
    let found = text(vec![CertificateFiles { certificate: one.certificate.clone(), key: other.key.clone() }]);
    assert!(found.contains("one.pem") && found.contains("other-key.pem"), "{found}");
    let found = text(vec![CertificateFiles { certificate: one.key.clone(), key: one.key.clone() }]);
    assert!(found.contains("one-key.pem") && found.contains("no certificate"), "{found}");
    let found = text(vec![CertificateFiles { certificate: one.certificate.clone(), key: "/absent".into() }]);
    assert!(found.contains("/absent") && found.contains("no private key"), "{found}");
    let redirect = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    let found = nectary_proxy::Proxy::bind(ProxyOptions { redirect, ..options() });
    assert!(found.is_err_and(|error| error.to_string().contains("--tls-cert")));
}
