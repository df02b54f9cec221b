//! The proxy speaks TLS to an `https` origin, and uses the origin only if its certificate is trusted. The key in
//! `common/tls` is published with the source and serves only these tests.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nectary_proxy::ProxyOptions;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::common::*;

/// The path of a file of `common/tls`.
pub fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/common/tls").join(name)
}

/// Starts a TLS origin that sends the same response to every request and ends each connection without TLS's closing
/// message, as if an attacker had cut it; returns its port and its task.
pub async fn origin(response: &'static [u8]) -> (u16, JoinHandle<()>) {
    origin_that_ends(response, false).await
}

fn acceptor() -> tokio_rustls::TlsAcceptor {
    let certificate = CertificateDer::from_pem_file(fixture("cert.pem")).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(fixture("key.pem")).expect("a key");
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("a certificate with its key");
    tokio_rustls::TlsAcceptor::from(Arc::new(config))
}

async fn origin_that_ends(response: &'static [u8], says_farewell: bool) -> (u16, JoinHandle<()>) {
    let acceptor = acceptor();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let task = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut got = Vec::new();
            while !got.ends_with(b"\r\n\r\n") && stream.read_buf(&mut got).await.is_ok_and(|count| count > 0) {}
            let _ = stream.write_all(response).await;
            let _ = stream.flush().await;
            if says_farewell {
                let _ = stream.shutdown().await;
            }
        }
    });
    (port, task)
}

/// Starts a TLS origin that keeps its connections; returns its port, its task, and the counts of connections and of
/// requests, which have no body or one of four bytes.
async fn keeping_origin() -> (u16, JoinHandle<()>, Arc<[AtomicUsize; 2]>) {
    let (acceptor, counts) = (acceptor(), Arc::new([const { AtomicUsize::new(0) }; 2]));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let counting = counts.clone();
    let task = tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, counts) = (acceptor.clone(), counting.clone());
            counts[0].fetch_add(1, Ordering::SeqCst);
            connections.spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut got = Vec::new();
                while stream.read_buf(&mut got).await.is_ok_and(|count| count > 0) {
                    let text = String::from_utf8_lossy(&got).to_lowercase();
                    let is_whole = text.ends_with("\r\n\r\n") && !text.contains("content-length: 4");
                    if is_whole || text.ends_with("\r\n\r\nbody") {
                        counts[1].fetch_add(1, Ordering::SeqCst);
                        got.clear();
                        let answer = b"HTTP/1.1 200 OK\r\ncache-control: no-store\r\ncontent-length: 1\r\n\r\n1";
                        let _ = stream.write_all(answer).await;
                    }
                }
            });
        }
    });
    (port, task, counts)
}

#[tokio::test]
async fn unsafe_requests_reuse_a_live_connection() {
    let (port, task, counts) = keeping_origin().await;
    let proxy = trusting(port, "localhost").await;
    for method in ["POST", "PUT", "DELETE", "PATCH"].repeat(5) {
        let mut client = TestClient::connect(proxy.address).await;
        let head = request(&[&format!("{method} /a HTTP/1.1"), "content-length: 4"]);
        client.send(format!("{head}body").as_bytes()).await;
        assert_eq!(client.reply(false).await.status, 200);
    }
    let found = [0, 1].map(|count| counts[count].load(Ordering::SeqCst));
    assert_eq!(found, [1, 20], "connections and requests");
    task.abort();
}

async fn trusting(port: u16, host: &str) -> TestProxy {
    let origin = Some(format!("https://{host}:{port}").parse().expect("an origin"));
    TestProxy::start(ProxyOptions { origin, origin_ca: Some(fixture("ca.pem")), ..options() }).await
}

#[tokio::test]
async fn a_trusted_origin_is_cached() {
    let response = b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: 5\r\n\r\nhello";
    let (port, task) = origin(response).await;
    for host in ["localhost", "127.0.0.1"] {
        let proxy = trusting(port, host).await;
        assert_eq!(get(proxy.address, "/a", &[]).await.text(), "hello");
        assert!(get(proxy.address, "/a", &[]).await.is_hit());
    }
    // A forward proxy caches responses of an `https` origin, too.
    let proxy = TestProxy::start(ProxyOptions { origin_ca: Some(fixture("ca.pem")), ..options() }).await;
    let url = format!("https://localhost:{port}/a");
    assert_eq!(get(proxy.address, &url, &[]).await.text(), "hello");
    assert!(get(proxy.address, &url, &[]).await.is_hit());
    task.abort();
}

#[tokio::test]
async fn untrusted_origin_is_502() {
    let (port, task) = origin(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    let origin = Some(format!("https://localhost:{port}").parse().expect("an origin"));
    let untrusting = TestProxy::start(ProxyOptions { origin, ..options() }).await;
    let reply = get(untrusting.address, "/a", &[]).await;
    assert_eq!(reply.status, 502);
    // The certificate is not valid for the address 127.0.0.2.
    let proxy = TestProxy::start(ProxyOptions { origin_ca: Some(fixture("ca.pem")), ..options() }).await;
    let reply = get(proxy.address, &format!("https://127.0.0.2:{port}/a"), &[]).await;
    assert_eq!(reply.status, 502);
    task.abort();
}

#[tokio::test]
async fn body_without_close_notify_is_cut() {
    let (port, task) = origin(b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\n\r\nhello").await;
    let proxy = trusting(port, "localhost").await;
    for _ in 0..2 {
        let reply = get(proxy.address, "/a", &[]).await;
        assert!(!reply.is_complete && !reply.is_hit(), "{reply:?}");
    }
    task.abort();
    let (port, task) = origin_that_ends(b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\n\r\nhello", true).await;
    let proxy = trusting(port, "localhost").await;
    let reply = get(proxy.address, "/a", &[]).await;
    assert!(reply.is_complete && reply.text() == "hello", "{reply:?}");
    while !get(proxy.address, "/a", &[]).await.is_hit() {}
    task.abort();
}

/// A bad file changes nothing.
#[tokio::test]
async fn reload_rereads_certificates() {
    let folder = std::env::temp_dir().join(format!("nectary-proxy-ca-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let ca = folder.join("ca.pem");
    // This certificate is trusted, but it is not the one that signed the origin's.
    std::fs::copy(fixture("cert.pem"), &ca).expect("copied");
    let (port, task) = origin(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    let url = Some(format!("https://localhost:{port}").parse().expect("an origin"));
    let proxy = TestProxy::start(ProxyOptions { origin: url, origin_ca: Some(ca.clone()), ..options() }).await;
    let reopen = || {
        let reopener = proxy.reopener();
        async move { tokio::task::spawn_blocking(move || reopener.reopen()).await.expect("joined") }
    };
    let before = get(proxy.address, "/a", &[]).await.status;
    std::fs::copy(fixture("ca.pem"), &ca).expect("copied");
    assert_eq!(reopen().await.len(), 0);
    assert_eq!((before, get(proxy.address, "/a", &[]).await.status), (502, 200));
    std::fs::write(&ca, "nothing").expect("written");
    let problems = reopen().await;
    assert!(problems.len() == 1 && problems[0].to_string().contains("no certificate"), "{problems:?}");
    assert_eq!(get(proxy.address, "/a", &[]).await.status, 200);
    task.abort();
    std::fs::remove_dir_all(&folder).expect("removed");
}

/// An address that accepts connections and is silent then costs a second, not the whole time for connecting.
#[tokio::test]
async fn address_silent_in_tls_is_skipped() {
    let (port, task) = origin(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").await;
    let silent = TcpListener::bind(("127.0.0.2", port)).await.expect("the same port");
    let files = TestNameFiles::new("127.0.0.2 localhost\n127.0.0.1 localhost\n", None);
    let url = Some(format!("https://localhost:{port}").parse().expect("an origin"));
    let mut options =
        ProxyOptions { origin: url, origin_ca: Some(fixture("ca.pem")), names: files.names.clone(), ..options() };
    options.limits.connect_timeout = std::time::Duration::from_secs(5);
    let proxy = TestProxy::start(options).await;
    assert_eq!(get(proxy.address, "/a", &[]).await.text(), "hello");
    // It comes last for a while.
    assert_eq!((get(proxy.address, "/a", &[]).await.text(), proxy.stats().origin_connections), ("hello".into(), 3));
    drop(silent);
    task.abort();
}
