//! The memory that an idle connection of a client with TLS takes. The proxy is alone in a process that counts what it
//! allocates; its clients are in this one.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nectary_proxy::{CertificateFiles, ProxyOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::common::certificates::TestCertificates;
use crate::common::counting::live_bytes;
use crate::common::http2::{tls_config, tls_with};
use crate::common::*;

const CLIENTS: usize = 100;

/// The most that one takes when it has given back what only requests need. It is about 14 KiB, and more than 30 before.
const CONNECTION_BYTES_MAX: usize = 20 << 10;
/// One that takes less is not open.
const CONNECTION_BYTES_MIN: usize = 2 << 10;

/// What tells this test that it is the proxy: the origin's URL, the certificate and its key, a line each.
const PROXY: &str = "NECTARY_TEST_IDLE_TLS";

/// What begins a line of the proxy.
const TOLD: &str = "idle_tls: ";

/// The process of the proxy, which ends when it is dropped.
struct ProxyProcess {
    child: Child,
    lines: Receiver<String>,
}

impl ProxyProcess {
    fn start(test: &str, origin: &TestOrigin, certificate: &CertificateFiles) -> ProxyProcess {
        let settings = [
            format!("http://{}", origin.address),
            certificate.certificate.display().to_string(),
            certificate.key.display().to_string(),
        ];
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(PROXY, settings.join("\n"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
        let stdout = BufReader::new(child.stdout.take().expect("its output"));
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            let told = |line: String| line.split_once(TOLD).map(|(_, told)| told.to_owned());
            for line in stdout.lines().map_while(Result::ok).filter_map(told) {
                _ = tell.send(line);
            }
        });
        ProxyProcess { child, lines }
    }

    /// The next line that the proxy tells.
    fn told(&self) -> String {
        self.lines.recv_timeout(Duration::from_secs(20)).expect("a line of the proxy")
    }

    /// The connections of clients that are open, and the bytes that the proxy holds.
    fn held(&mut self) -> (usize, usize) {
        self.child.stdin.as_mut().expect("its input").write_all(b"\n").expect("it runs");
        let line = self.told();
        let (open, bytes) = line.split_once(' ').expect("two numbers");
        (open.parse().expect("a number"), bytes.parse().expect("a number"))
    }
}

impl Drop for ProxyProcess {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Runs the proxy, and tells what it holds for each line that comes, until no more comes.
async fn be_the_proxy(settings: &str) {
    let mut settings = settings.lines();
    let mut next = || settings.next().expect("three settings");
    let origin = Some(next().parse().expect("an origin"));
    let certificates = vec![CertificateFiles { certificate: next().into(), key: next().into() }];
    let proxy = TestProxy::start(ProxyOptions { origin, certificates, ..options() }).await;
    println!("{TOLD}{}", proxy.address);
    for _ in std::io::stdin().lines().map_while(Result::ok) {
        println!("{TOLD}{} {}", proxy.stats().connections_open, live_bytes());
    }
}

/// A connection that has had the answer to one request.
async fn client(config: &Arc<rustls::ClientConfig>, address: SocketAddr) -> TlsStream<TcpStream> {
    let mut stream = tls_with(config.clone(), address, "site.test").await.expect("TLS");
    stream.write_all(request(&["GET /a HTTP/1.1"]).as_bytes()).await.expect("room");
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\nhello") {
        let mut room = [0; 4096];
        let count = tokio::time::timeout(Duration::from_secs(20), stream.read(&mut room)).await;
        let count = count.expect("in time").expect("an answer");
        assert!(count > 0, "{}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&room[..count]);
    }
    stream
}

#[tokio::test]
async fn idle_tls_connections_give_memory_back() {
    if let Ok(settings) = std::env::var(PROXY) {
        return be_the_proxy(&settings).await;
    }
    let origin = TestOrigin::start().await;
    // A stored answer would take the shortcut, which needs no buffers.
    origin.on("/a", OriginScript::ok(&["cache-control: no-store"], b"hello"));
    let files = TestCertificates::new("idle");
    let certificate = files.sign("site", &["site.test"]);
    let mut proxy = ProxyProcess::start("idle_tls::idle_tls_connections_give_memory_back", &origin, &certificate);
    let address = proxy.told().parse().expect("an address");
    let config = tls_config(&files.ca(), &[b"http/1.1"]);
    let mut clients = vec![client(&config, address).await];
    let (_, before) = proxy.held();
    for _ in 0..CLIENTS {
        clients.push(client(&config, address).await);
    }
    assert_eq!(origin.count(), CLIENTS + 1);
    let begin = Instant::now();
    loop {
        let (open, bytes) = proxy.held();
        let each = bytes.saturating_sub(before) / CLIENTS;
        assert!(open > CLIENTS && each >= CONNECTION_BYTES_MIN, "{open} are open, {each} B each");
        if each <= CONNECTION_BYTES_MAX {
            println!("{each} B for each idle connection, after {:?}", begin.elapsed());
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(10), "each idle connection takes {each} B");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
