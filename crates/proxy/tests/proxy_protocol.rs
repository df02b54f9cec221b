//! Behind a load balancer that speaks the PROXY protocol, the client that it names is the client for every rule; from
//! others, and without a valid header, such an address never counts.

use std::time::Duration;

use nectary_config::{AccessRules, CertificateConfig, IpNetwork, LogTarget, ProxyConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::common::certificates::TestCertificates;
use crate::common::http2::{Http2Client, tls_config, tls_over};
use crate::common::sites::{at, config, configured, origin, route, site};
use crate::common::*;

const LINE: &[u8] = b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 443\r\n";
const OTHER_LINE: &[u8] = b"PROXY TCP4 203.0.113.9 198.51.100.1 56324 443\r\n";
const LINE_IPV6: &[u8] = b"PROXY TCP6 2001:db8::7 2001:db8::1 56324 443\r\n";
const UNKNOWN: &[u8] = b"PROXY UNKNOWN\r\n";
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// A header of version 2 with these bytes after the signature.
fn binary(rest: &[u8]) -> Vec<u8> {
    [SIGNATURE, rest].concat()
}

/// The header of version 2 that names 192.0.2.7, and has two further fields.
fn binary_ipv4() -> Vec<u8> {
    let addresses = [192, 0, 2, 7, 198, 51, 100, 1, 0xdc, 0x04, 1, 187];
    binary(&[&[0x21, 0x11, 0, 22][..], &addresses, &[0x04, 0, 2, 0, 0], &[0x30, 0, 2, b'n', b's']].concat())
}

fn network(text: &str, prefix_bits: u8) -> IpNetwork {
    IpNetwork::new(text.parse().expect("an address"), prefix_bits).expect("a network")
}

/// A site whose peers in `senders` begin with a header.
fn behind(from: &TestOrigin, senders: IpNetwork) -> ProxyConfig {
    let mut config = config(vec![site(&["site.test"], vec![route("/", "o")])], vec![origin("o", &[from.address])]);
    config.listeners[0].value.proxy_protocol_from = vec![at(senders.into())];
    config
}

/// Sends a header and a request for `/a`, and reads the response.
async fn ask(proxy: &TestProxy, header: &[u8], lines: &[&str]) -> ClientReply {
    let mut client = TestClient::connect(proxy.address).await;
    let lines = request(&[&["GET /a HTTP/1.1", "host: site.test"], lines].concat());
    client.send(&[header, lines.as_bytes()].concat()).await;
    client.reply(false).await
}

#[tokio::test]
async fn named_client_counts_everywhere() {
    let from = TestOrigin::start().await;
    from.on("/a", OriginScript::ok(&["cache-control: no-store"], b"hello"));
    let folder = std::env::temp_dir().join(format!("nectary-proxy-behind-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("access.log");
    let _ = std::fs::remove_file(&path);
    let mut config = behind(&from, network("127.0.0.0", 8));
    let allow = [network("192.0.2.0", 24), network("2001:db8::", 32)].map(at).to_vec();
    config.sites[0].value.routes[0].value.access = AccessRules { allow, deny: Vec::new() };
    config.log.access = Some(at(LogTarget::File(path.clone())));
    let mut proxy = configured(config).await;
    for (header, status, client, shown) in [
        (LINE, 200, "192.0.2.7", "192.0.2.7"),
        (LINE_IPV6, 200, "2001:db8::7", "\"[2001:db8::7]\""),
        (&binary_ipv4(), 200, "192.0.2.7", "192.0.2.7"),
        (OTHER_LINE, 403, "", ""),
        // Without a client the load balancer itself counts.
        (UNKNOWN, 403, "", ""),
        (&binary(&[0x20, 0, 0, 0]), 403, "", ""),
    ] {
        let before = from.count();
        let reply = ask(&proxy, header, &[]).await;
        assert_eq!(reply.status, status, "{}", String::from_utf8_lossy(header));
        if status == 200 {
            let got = from.got().pop().expect("a request");
            assert_eq!(got.header("x-forwarded-for"), client);
            assert!(got.header("forwarded").starts_with(&format!("for={shown};")), "{}", got.header("forwarded"));
        }
        assert_eq!(from.count() - before, usize::from(status == 200));
    }
    // A second request on the connection has no header.
    let mut client = TestClient::connect(proxy.address).await;
    client.send(LINE).await;
    for _ in 0..2 {
        assert_eq!(client.ask(&["GET /a HTTP/1.1", "host: site.test"]).await.status, 200);
    }
    proxy.stop().await;
    let text = std::fs::read_to_string(&path).expect("a log");
    let clients: Vec<_> = text.lines().map(|line| line.split(' ').next().unwrap_or_default()).collect();
    let expected = ["192.0.2.7", "2001:db8::7", "192.0.2.7", "203.0.113.9", "127.0.0.1", "127.0.0.1"];
    assert_eq!(clients, [&expected[..], &["192.0.2.7"; 2]].concat());
    std::fs::remove_dir_all(&folder).expect("removed");
}

#[tokio::test]
async fn header_comes_before_tls_and_http2() {
    let from = TestOrigin::start().await;
    from.on("/a", OriginScript::fresh(b"hello"));
    let files = TestCertificates::new("behind");
    let own = files.sign("site", &["site.test"]);
    let mut secure = behind(&from, network("127.0.0.1", 32));
    secure.listeners[0].value.tls = Some(at(true));
    let (cert, key) = (at(own.certificate.clone()), at(own.key.clone()));
    secure.tls.certificates = vec![at(CertificateConfig { cert, key })];
    let secure = configured(secure).await;
    let plain = configured(behind(&from, network("127.0.0.1", 32))).await;
    for header in [LINE, &binary_ipv4()] {
        let mut stream = TcpStream::connect(plain.address).await.expect("a connection");
        stream.write_all(header).await.expect("room");
        let reply = Http2Client::over(stream).await.ask("GET", "http://site.test/a", &[]).await;
        assert_eq!(reply.text(), "hello");
        for protocol in [&b"h2"[..], b"http/1.1"] {
            let mut stream = TcpStream::connect(secure.address).await.expect("a connection");
            stream.write_all(header).await.expect("room");
            let mut stream = tls_over(tls_config(&files.ca(), &[protocol]), stream, "site.test").await.expect("TLS");
            if protocol == b"h2" {
                assert_eq!(
                    Http2Client::over(stream).await.ask("GET", "https://site.test/a", &[]).await.text(),
                    "hello"
                );
                continue;
            }
            let lines = request(&["GET /a HTTP/1.1", "host: site.test", "connection: close"]);
            stream.write_all(lines.as_bytes()).await.expect("room");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.expect("an answer");
            assert!(answer.ends_with("\r\n\r\nhello"), "{answer}");
        }
    }
    assert!(from.got().iter().all(|got| got.header("x-forwarded-for") == "192.0.2.7"));
    assert_eq!((plain.stats().http2_connections, secure.stats().http2_connections), (2, 2));
    assert_eq!((secure.stats().handshakes, secure.stats().failed_proxy_headers), (4, 0));
}

#[tokio::test]
async fn strangers_headers_are_bad_requests() {
    let from = TestOrigin::start().await;
    from.on("/a", OriginScript::fresh(b"hello"));
    let proxy = configured(behind(&from, network("192.0.2.0", 24))).await;
    assert_eq!(ask(&proxy, b"", &[]).await.text(), "hello");
    for header in [LINE, UNKNOWN, &binary_ipv4(), &binary(&[0x20, 0, 0, 0])] {
        let mut client = TestClient::connect(proxy.address).await;
        client.send(&[header, request(&["GET /a HTTP/1.1", "host: site.test"]).as_bytes()].concat()).await;
        let reply = client.reply_or_end().await;
        assert!(reply.as_ref().is_none_or(|reply| reply.status == 400), "{reply:?}");
    }
    let stats = proxy.stats();
    assert_eq!((from.count(), stats.failed_proxy_headers), (1, 0));
}

#[tokio::test]
async fn bad_headers_end_their_connections_alone() {
    let from = TestOrigin::start().await;
    from.on("/a", OriginScript::fresh(b"hello"));
    let mut config = behind(&from, network("127.0.0.1", 32));
    config.limits.head_time = Some(at(Duration::from_secs(1)));
    let proxy = configured(config).await;
    // A check of the address is no fault.
    drop(TestClient::connect(proxy.address).await);
    proxy.wait_for(|stats| stats.connections == 1 && stats.connections_open == 0).await;
    let mut clients = Vec::new();
    for sent in [
        &b""[..],
        b"PROXY TCP4 192.0.2.7",
        &SIGNATURE[..11],
        &binary(&[0x21, 0x11, 0, 12, 192]),
        b"GET /a HTTP/1.1\r\nhost: a\r\n\r\n",
        b"\x16\x03\x01\x02\0",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 65536 443\r\n",
        &binary(&[0x21, 0x11, 0xff, 0xff]),
    ] {
        let mut client = TestClient::connect(proxy.address).await;
        client.send(sent).await;
        clients.push(client);
    }
    assert_eq!(ask(&proxy, LINE, &[]).await.text(), "hello");
    for mut client in clients {
        assert_eq!(client.rest().await, b"");
    }
    proxy.wait_for(|stats| stats.failed_proxy_headers == 8).await;
    assert_eq!((from.count(), proxy.stats().requests), (1, 1));
}

/// A load balancer names its client, and does not vouch for what the client says.
#[tokio::test]
async fn only_a_trusted_client_is_believed() {
    let from = TestOrigin::start().await;
    from.on("/a", OriginScript::ok(&["cache-control: no-store"], b"hello"));
    for (trusted, expected) in
        [(network("127.0.0.1", 32), "192.0.2.7"), (network("192.0.2.0", 24), "198.51.100.77, 192.0.2.7")]
    {
        let mut config = behind(&from, network("127.0.0.1", 32));
        config.server.trust_forwarded = vec![at(trusted)];
        let proxy = configured(config).await;
        ask(&proxy, LINE, &["x-forwarded-for: 198.51.100.77"]).await;
        assert_eq!(from.got().pop().expect("a request").header("x-forwarded-for"), expected);
    }
}

#[tokio::test]
async fn named_clients_have_their_limits() {
    let from = TestOrigin::start().await;
    from.on("/a", OriginScript::ok(&["cache-control: no-store"], b"hello"));
    let mut config = behind(&from, network("127.0.0.0", 8));
    config.limits.client_connections_max = Some(at(1));
    let proxy = configured(config).await;
    let open = async |header: &[u8]| {
        let mut client = TestClient::connect(proxy.address).await;
        client.send(&[header, request(&["GET /a HTTP/1.1", "host: site.test"]).as_bytes()].concat()).await;
        client
    };
    let (mut first, mut other) = (open(LINE).await, open(OTHER_LINE).await);
    assert_eq!((first.reply(false).await.status, other.reply(false).await.status), (200, 200));
    // Another connection of the same client, through the same load balancer.
    let second = open(LINE).await.reply_or_end().await;
    assert!(second.is_none_or(|reply| reply.status == 429));
    assert_eq!(proxy.stats().limited_connections, 1);
    drop(first);
    loop {
        match open(LINE).await.reply_or_end().await {
            Some(reply) if reply.status == 200 => break,
            _ => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}
