//! Opening connections to origins: looking up names, trying addresses, TLS.

use std::io;
use std::time::Duration;

use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use nectary_host::log::{Level, Throttle};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::error::FetchError;
use super::socket::Socket;
use super::{Destination, Idle, Reach, Upstream, trust};
use crate::room::Place;
use crate::wire::deadlines::Side;
use crate::wire::stream::WatchedStream;

/// Limits how often a refused certificate of an origin is logged.
static REFUSED: Throttle = Throttle::every(Duration::from_secs(60));

/// Connects to the first of a host's addresses that accepts the connection, within the connect timeout.
pub(crate) async fn connect_tcp(
    upstream: &Upstream,
    host: &str,
    port: u16,
    reach: Reach,
) -> Result<TcpStream, FetchError> {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    let attempt = async {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in tokio::net::lookup_host((bare, port)).await? {
            if !reach.includes(address.ip()) {
                last =
                    io::Error::new(io::ErrorKind::PermissionDenied, "the proxy's own machine is not for its clients");
                continue;
            }
            match TcpStream::connect(address).await {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    };
    match tokio::time::timeout(upstream.options.limits.connect_timeout, attempt).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(FetchError::Connect(error.to_string())),
        Err(_) => Err(FetchError::TimedOut("connecting")),
    }
}

/// Opens a connection to an origin.
pub(super) async fn connect(upstream: &Upstream, to: &Destination, place: Place) -> Result<Idle, FetchError> {
    let origin = &to.origin;
    let tcp = connect_tcp(upstream, &origin.host, origin.port, to.reach).await?;
    upstream.stats.origin_connections.add(1);
    let socket = Socket::new(tcp);
    if !origin.https {
        return handshake(upstream, socket.clone(), socket, place).await;
    }
    let connector = upstream.trust.connector().map_err(FetchError::Connect)?;
    let name = origin.host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(name).map_err(|error| FetchError::Connect(error.to_string()))?;
    let attempt = connector.connect(name, socket.clone());
    match tokio::time::timeout(upstream.options.limits.connect_timeout, attempt).await {
        Ok(Ok(stream)) => handshake(upstream, stream, socket, place).await,
        Ok(Err(error)) => {
            if let Some(remedy) = trust::remedy(&error) {
                let authority = origin.authority();
                REFUSED.write(Level::Warning, "proxy", format_args!("https://{authority}: {error}: {remedy}"));
            }
            Err(FetchError::Connect(format!("TLS: {error}")))
        }
        Err(_) => Err(FetchError::TimedOut("the TLS handshake")),
    }
}

/// Runs hyper on a stream, in a separate task that ends when the connection ends.
async fn handshake<S>(upstream: &Upstream, stream: S, socket: Socket, place: Place) -> Result<Idle, FetchError>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let watch = upstream.connections.new_watch(Side::Origin);
    let stream = TokioIo::new(WatchedStream::new(stream, watch.clone()));
    let (sender, connection) =
        http1::handshake(stream).await.map_err(|error| FetchError::Connect(error.to_string()))?;
    upstream.connections.supervise(watch.clone(), connection, place);
    Ok(Idle { sender, watch, socket })
}
