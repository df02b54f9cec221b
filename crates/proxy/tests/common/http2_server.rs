//! An origin that speaks HTTP/2 alone, and does what the path of a request says; and one that writes frames.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{Request, Response};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::http2::{frame, take};
use super::waiting::until;

/// The length of the body of `/large`.
pub const LARGE_BYTES: usize = 4 << 20;

/// A request that the origin got.
#[derive(Clone, Debug)]
pub struct Http2OriginRequest {
    pub method: String,
    pub path: String,
    pub authority: String,
    pub headers: http::HeaderMap,
}

#[derive(Default)]
struct Http2OriginCounts {
    seen: Vec<Http2OriginRequest>,
    connections: usize,
    ended: usize,
    open_max: usize,
    unreset: usize,
}

/// A running origin, which ends when it is dropped.
pub struct Http2Origin {
    pub address: SocketAddr,
    counts: Arc<Mutex<Http2OriginCounts>>,
    gate: Arc<Semaphore>,
    task: JoinHandle<()>,
}

impl Drop for Http2Origin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Http2Origin {
    /// Starts one without TLS that allows 100 streams.
    pub async fn start() -> Http2Origin {
        Http2Origin::start_with(None, 100).await
    }

    /// Starts one with TLS.
    pub async fn start_tls() -> Http2Origin {
        Http2Origin::start_with(Some(acceptor(&[b"h2"])), 100).await
    }

    /// Starts one that allows so many streams on a connection.
    pub async fn start_with(tls: Option<tokio_rustls::TlsAcceptor>, streams_max: u32) -> Http2Origin {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (counts, gate) = (Arc::new(Mutex::new(Http2OriginCounts::default())), Arc::new(Semaphore::new(0)));
        let shared = (counts.clone(), gate.clone());
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                {
                    let mut counts = shared.0.lock().expect("counts");
                    counts.connections += 1;
                    counts.open_max = counts.open_max.max(counts.connections - counts.ended);
                }
                let (shared, tls) = (shared.clone(), tls.clone());
                connections.spawn(async move {
                    match tls {
                        None => serve(stream, streams_max, &shared).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serve(stream, streams_max, &shared).await;
                            }
                        }
                    }
                    shared.0.lock().expect("counts").ended += 1;
                });
            }
        });
        Http2Origin { address, counts, gate, task }
    }

    /// Lets all requests for `/wait` go on.
    pub fn open(&self) {
        self.gate.add_permits(10_000);
    }

    /// The requests that have arrived so far.
    pub fn seen(&self) -> Vec<Http2OriginRequest> {
        self.counts.lock().expect("counts").seen.clone()
    }

    /// The number of requests that have arrived so far.
    pub fn count(&self) -> usize {
        self.counts.lock().expect("counts").seen.len()
    }

    /// The number of connections that were opened so far.
    pub fn connections(&self) -> usize {
        self.counts.lock().expect("counts").connections
    }

    /// The greatest number of connections that were open at a time.
    pub fn open_max(&self) -> usize {
        self.counts.lock().expect("counts").open_max
    }

    /// The number of requests for `/empty` whose streams could end as they should.
    pub fn unreset(&self) -> usize {
        self.counts.lock().expect("counts").unreset
    }

    /// Waits until `count` requests have arrived.
    pub async fn wait_for(&self, count: usize) {
        until("requests at the server", || self.count() >= count).await;
    }

    /// Waits until `count` connections have ended.
    pub async fn wait_for_ends(&self, count: usize) {
        until("ended connections", || self.counts.lock().expect("counts").ended >= count).await;
    }
}

/// A file of the tests' certificates.
pub fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/common/tls").join(name)
}

/// What accepts TLS and these protocols.
pub fn acceptor(protocols: &[&[u8]]) -> tokio_rustls::TlsAcceptor {
    let certificate = CertificateDer::from_pem_file(fixture("cert.pem")).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(fixture("key.pem")).expect("a key");
    let mut config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("a certificate with its key");
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    tokio_rustls::TlsAcceptor::from(Arc::new(config))
}

type Shared = (Arc<Mutex<Http2OriginCounts>>, Arc<Semaphore>);

async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S, streams_max: u32, shared: &Shared) {
    let mut builder = h2::server::Builder::new();
    builder.max_concurrent_streams(streams_max);
    let Ok(mut connection) = builder.handshake::<_, Bytes>(stream).await else { return };
    let mut streams = tokio::task::JoinSet::new();
    while let Some(Ok((request, respond))) = connection.accept().await {
        streams.spawn(answer(request, respond, shared.clone()));
    }
}

fn head(status: u16, headers: &[(&str, &str)]) -> Response<()> {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    response.body(()).expect("a response")
}

async fn answer(request: Request<RecvStream>, mut respond: SendResponse<Bytes>, (counts, gate): Shared) {
    let (parts, mut body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let before = {
        let mut counts = counts.lock().expect("counts");
        let before = counts.seen.iter().filter(|seen| seen.path == path).count();
        let authority = parts.uri.authority().map_or_else(String::new, ToString::to_string);
        let method = parts.method.to_string();
        counts.seen.push(Http2OriginRequest { method, path: path.clone(), authority, headers: parts.headers.clone() });
        before
    };
    let kind = path.split('/').nth(1).unwrap_or_default();
    let (plain, fresh) = (("cache-control", "no-store"), ("cache-control", "max-age=3600"));
    match kind {
        "silent" => std::future::pending().await,
        "never" => respond.send_reset(Reason::REFUSED_STREAM),
        "refuse" if before == 0 => respond.send_reset(Reason::REFUSED_STREAM),
        "reset" => respond.send_reset(Reason::INTERNAL_ERROR),
        "early" => _ = respond.send_response(head(413, &[plain]), true),
        "half" | "stall" => {
            let response = head(200, &[fresh, ("content-length", "100")]);
            let Ok(mut stream) = respond.send_response(response, false) else { return };
            _ = stream.send_data(Bytes::from_static(b"some"), false);
            if kind == "stall" {
                return std::future::pending().await;
            }
            // The bytes go before the reset.
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            stream.send_reset(Reason::INTERNAL_ERROR);
        }
        "unmeasured" | "graceful" => {
            let Ok(mut stream) = respond.send_response(head(200, &[fresh]), false) else { return };
            _ = stream.send_data(Bytes::from_static(b"some"), false);
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            // What ends without an error has not ended well.
            stream.send_reset(if kind == "graceful" { Reason::NO_ERROR } else { Reason::CANCEL });
        }
        "empty" => {
            let response = head(200, &[plain, ("content-length", "0")]);
            let Ok(mut stream) = respond.send_response(response, false) else { return };
            // A reset would come first.
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            if stream.send_data(Bytes::new(), true).is_ok() {
                counts.lock().expect("counts").unreset += 1;
            }
        }
        "large" => {
            let length = LARGE_BYTES.to_string();
            let response = head(200, &[plain, ("content-length", length.as_str())]);
            let Ok(mut stream) = respond.send_response(response, false) else { return };
            send_all(&mut stream, large().into()).await;
        }
        "upload" => {
            let mut bytes = Vec::new();
            let is_complete = take(&mut body, &mut bytes).await;
            let told = format!("{} {}", bytes.len(), if is_complete { "whole" } else { "cut" });
            let Ok(mut stream) = respond.send_response(head(200, &[plain]), false) else { return };
            send_all(&mut stream, told.into()).await;
        }
        _ => {
            if kind == "wait" {
                gate.acquire().await.expect("open for ever").forget();
            }
            let control = if kind == "fresh" { fresh } else { plain };
            let response = head(200, &[control, ("content-length", "1")]);
            let is_head = parts.method == http::Method::HEAD;
            let Ok(mut stream) = respond.send_response(response, is_head) else { return };
            if !is_head {
                send_all(&mut stream, Bytes::from_static(b"x")).await;
            }
        }
    }
}

/// The body of `/large`.
pub fn large() -> Vec<u8> {
    (0..LARGE_BYTES).map(|at| (at % 251) as u8).collect()
}

/// Sends a body as the peer takes it, and its end after it, as many servers do.
async fn send_all(stream: &mut SendStream<Bytes>, mut bytes: Bytes) {
    while !bytes.is_empty() {
        stream.reserve_capacity(bytes.len());
        match poll_fn(|context| stream.poll_capacity(context)).await {
            Some(Ok(room)) => {
                let piece = bytes.split_to(room.min(bytes.len()));
                if stream.send_data(piece, false).is_err() {
                    return;
                }
            }
            _ => return,
        }
    }
    tokio::task::yield_now().await;
    _ = stream.send_data(Bytes::new(), true);
}

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

/// A server that says after ten requests that it has begun with the first five alone, and answers these if it `answers`.
/// On its second connection it answers all.
pub struct LeavingServer {
    pub address: SocketAddr,
    /// The requests that came on each connection.
    pub requests: Arc<Mutex<[usize; 2]>>,
    task: JoinHandle<()>,
}

impl Drop for LeavingServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl LeavingServer {
    pub async fn start(answers: bool) -> LeavingServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let requests = Arc::new(Mutex::new([0; 2]));
        let counting = requests.clone();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            for index in 0..2 {
                let Ok((stream, _)) = listener.accept().await else { return };
                let counting = counting.clone();
                connections.spawn(async move { leave(stream, index, answers, &counting).await });
            }
            while connections.join_next().await.is_some() {}
        });
        LeavingServer { address, requests, task }
    }
}

/// The end of headers and of the stream.
const WHOLE: u8 = 0x5;
/// `:status: 200`.
const OK: &[u8] = &[0x88];

async fn leave(mut stream: TcpStream, index: usize, answers: bool, requests: &Mutex<[usize; 2]>) -> Option<()> {
    let mut preface = [0; 24];
    stream.read_exact(&mut preface).await.ok()?;
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.ok()?;
    let mut streams = Vec::new();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let number = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload).await.ok()?;
        match head[3] {
            SETTINGS if head[4] == 0 => stream.write_all(&frame(SETTINGS, 1, 0, &[])).await.ok()?,
            HEADERS => {
                requests.lock().expect("counts")[index] += 1;
                streams.push(number);
                if index == 1 {
                    stream.write_all(&frame(HEADERS, WHOLE, number, OK)).await.ok()?;
                } else if streams.len() == 10 {
                    let last = [&streams[4].to_be_bytes()[..], &[0; 4]].concat();
                    stream.write_all(&frame(GOAWAY, 0, 0, &last)).await.ok()?;
                    if !answers {
                        // The bytes go before the end.
                        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                        return None;
                    }
                    for number in &streams[..5] {
                        stream.write_all(&frame(HEADERS, WHOLE, *number, OK)).await.ok()?;
                    }
                }
            }
            _ => {}
        }
    }
}
