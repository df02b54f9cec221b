//! A client of HTTP/2, with or without TLS.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::Request;
use nectary_proxy::CertificateFiles;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::client::TlsStream;

use super::ClientReply;

/// The longest time that a test may wait for an answer. After it, the test fails.
const LIMIT: Duration = Duration::from_secs(20);

/// The first bytes of a connection: the preface and empty settings.
pub const OPENING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// A connection of HTTP/2 to the proxy.
pub struct Http2Client {
    pub sender: SendRequest<Bytes>,
    /// What ends when the connection does.
    pub task: JoinHandle<Result<(), h2::Error>>,
}

impl Http2Client {
    /// Connects without TLS, knowing that the proxy speaks HTTP/2.
    pub async fn plain(address: SocketAddr) -> Http2Client {
        Http2Client::over(TcpStream::connect(address).await.expect("a connection")).await
    }

    /// Connects with TLS.
    pub async fn tls(address: SocketAddr, name: &str, ca: &Path) -> Http2Client {
        let stream = tls(address, name, ca, &[b"h2"]).await.expect("TLS");
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        Http2Client::over(stream).await
    }

    /// Begins HTTP/2 on a connection.
    pub async fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Http2Client {
        // A stream that is not read does not hold up the others.
        let builder = Builder::new().initial_connection_window_size(16 << 20).clone();
        let (sender, connection) = builder.handshake(stream).await.expect("a handshake");
        Http2Client { sender, task: tokio::spawn(connection) }
    }

    /// Sends the head of a request.
    pub async fn send(&mut self, request: Request<()>, is_whole: bool) -> (ResponseFuture, SendStream<Bytes>) {
        let ready = tokio::time::timeout(LIMIT, self.sender.clone().ready()).await;
        self.sender = ready.expect("in time").expect("room for a stream");
        self.sender.send_request(request, is_whole).expect("a request")
    }

    /// Sends a request without a body, and reads its response.
    pub async fn ask(&mut self, method: &str, url: &str, headers: &[(&str, &str)]) -> ClientReply {
        let (response, _) = self.send(head(method, url, headers), true).await;
        reply(response).await
    }
}

/// The head of a request.
pub fn head(method: &str, url: &str, headers: &[(&str, &str)]) -> Request<()> {
    let mut request = Request::builder().method(method).uri(url).version(http::Version::HTTP_2);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).expect("a request")
}

/// Reads a response to its end.
pub async fn reply(response: ResponseFuture) -> ClientReply {
    tokio::time::timeout(LIMIT, async {
        let response = response.await.expect("a response");
        let (parts, mut body) = response.into_parts();
        let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let headers = parts.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
        let mut found = ClientReply { status: parts.status.as_u16(), headers, body: Vec::new(), is_complete: false };
        found.is_complete = take(&mut body, &mut found.body).await;
        found
    })
    .await
    .expect("in time")
}

/// Reads a body to its end; false if it is cut off.
pub async fn take(body: &mut RecvStream, into: &mut Vec<u8>) -> bool {
    while let Some(data) = body.data().await {
        let Ok(data) = data else { return false };
        into.extend_from_slice(&data);
        body.flow_control().release_capacity(data.len()).expect("released");
    }
    true
}

/// Does the handshake of TLS as a client that trusts `ca` and offers these protocols.
pub async fn tls(
    address: SocketAddr,
    name: &str,
    ca: &Path,
    protocols: &[&[u8]],
) -> std::io::Result<TlsStream<TcpStream>> {
    tls_with(tls_config(ca, protocols), address, name).await
}

/// Does the handshake of TLS as a client with this configuration, which keeps the client's sessions.
pub async fn tls_with(
    config: Arc<rustls::ClientConfig>,
    address: SocketAddr,
    name: &str,
) -> std::io::Result<TlsStream<TcpStream>> {
    tls_over(config, TcpStream::connect(address).await.expect("a connection"), name).await
}

/// The same on a connection that was made before.
pub async fn tls_over<S: AsyncRead + AsyncWrite + Unpin>(
    config: Arc<rustls::ClientConfig>,
    stream: S,
    name: &str,
) -> std::io::Result<TlsStream<S>> {
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    tokio_rustls::TlsConnector::from(config).connect(name, stream).await
}

/// The configuration of a client that trusts `ca` and offers these protocols.
pub fn tls_config(ca: &Path, protocols: &[&[u8]]) -> Arc<rustls::ClientConfig> {
    tls_config_with(ca, protocols, None)
}

/// The same of a client that shows its own certificate, if it has one.
pub fn tls_config_with(ca: &Path, protocols: &[&[u8]], own: Option<&CertificateFiles>) -> Arc<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in nectary_host::tls::read_certificates(ca).expect("certificates") {
        roots.add(certificate).expect("a certificate");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let chain = nectary_host::tls::read_certificates(&own.certificate).expect("a certificate");
            let key = nectary_host::tls::read_key(&own.key).expect("a key");
            builder.with_client_auth_cert(chain, key).expect("they fit")
        }
    };
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    Arc::new(config)
}

/// A frame: its type, its flags, its stream and its payload.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}
