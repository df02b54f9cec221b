//! Connections of HTTP/2 to other machines, with TLS or without.
//!
//! Owns: connecting, the pings that find a dead connection, and its end. Leaves to others: requests (`etcd`, `fixed`), and
//! how long connecting may take.

use std::fmt;
use std::io::ErrorKind;
use std::time::Duration;

use http_body::Body;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use nectary_host::tls::{ClientTls, explain};
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

/// Why there is no connection.
#[derive(Debug, Clone)]
pub(crate) struct ConnectFailure {
    /// Whether the machine answers, and nobody listens there.
    pub is_refused: bool,
    what: String,
}

impl ConnectFailure {
    fn other(what: impl fmt::Display) -> ConnectFailure {
        ConnectFailure { is_refused: false, what: what.to_string() }
    }
}

impl fmt::Display for ConnectFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

/// A connection. Requests share it; it ends when it is dropped.
pub(crate) struct Http2Connection<B> {
    /// What takes requests.
    pub sender: SendRequest<B>,
    /// The scheme, host and port with which targets begin.
    pub base: String,
    _connection: AbortOnDropHandle<()>,
}

impl<B> Http2Connection<B>
where
    B: Body + Unpin + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    /// Connects; IPv6 addresses are without brackets. A connection that does not answer pings for `silence_max` ends. The
    /// caller bounds the time.
    ///
    /// *Errors*: nothing was sent.
    pub async fn connect(
        (host, port): (&str, u16),
        tls: Option<&ClientTls>,
        silence_max: Duration,
    ) -> Result<Http2Connection<B>, ConnectFailure> {
        let stream = nectary_host::connect::connect(host, port).await.map_err(|error| ConnectFailure {
            is_refused: error.kind() == ErrorKind::ConnectionRefused,
            what: error.to_string(),
        })?;
        let _ = stream.set_nodelay(true);
        let authority = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        match tls {
            Some(tls) => {
                let explained = |error| ConnectFailure::other(explain(&error).unwrap_or_else(|| error.to_string()));
                let connected = tls.connect(host, stream).await.map_err(explained)?;
                Http2Connection::over(TokioIo::new(connected), format!("https://{authority}"), silence_max).await
            }
            None => {
                let stream = TokioIo::<TcpStream>::new(stream);
                Http2Connection::over(stream, format!("http://{authority}"), silence_max).await
            }
        }
    }

    async fn over<S>(stream: S, base: String, silence_max: Duration) -> Result<Http2Connection<B>, ConnectFailure>
    where
        S: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    {
        let built = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(silence_max)
            .keep_alive_timeout(silence_max)
            .keep_alive_while_idle(true)
            .handshake(stream)
            .await;
        let (sender, connection) = built.map_err(ConnectFailure::other)?;
        let connection = tokio::spawn(async move {
            // Its error is that of the requests.
            let _ = connection.await;
        });
        Ok(Http2Connection { sender, base, _connection: AbortOnDropHandle::new(connection) })
    }
}
