//! Opening connections to origins: looking up names, trying addresses, TLS.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use nectary_host::log::{Level, Throttle};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use super::error::FetchError;
use super::socket::Socket;
use super::switch::Inside;
use super::{Destination, Idle, Reach, Upstream, trust};
use crate::options::HEADERS;
use crate::room::Place;
use crate::wire::deadlines::Side;
use crate::wire::stream::WatchedStream;

/// The maximum number of bytes that hyper buffers, unless longer heads are allowed. It is hyper's default.
const BUFFER_BYTES_MAX: usize = 8192 + 4096 * 100;

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

/// Opens a connection to an origin. If `may_switch`, it is for one request that asks for another protocol.
pub(super) async fn connect(
    upstream: &Upstream,
    to: &Destination,
    place: Rc<Place>,
    may_switch: bool,
) -> Result<Idle, FetchError> {
    let origin = &to.origin;
    let tcp = connect_tcp(upstream, &origin.host, origin.port, to.reach).await?;
    upstream.stats.origin_connections.add(1);
    let socket = Socket::new(tcp);
    if !origin.https {
        return handshake(upstream, socket.clone(), socket, place, may_switch).await;
    }
    let connector = upstream.trust.connector().map_err(FetchError::Connect)?;
    let name = origin.host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(name).map_err(|error| FetchError::Connect(error.to_string()))?;
    let attempt = connector.connect(name, socket.clone());
    match tokio::time::timeout(upstream.options.limits.connect_timeout, attempt).await {
        Ok(Ok(stream)) => handshake(upstream, stream, socket, place, may_switch).await,
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
async fn handshake<S>(
    upstream: &Upstream,
    stream: S,
    socket: Socket,
    place: Rc<Place>,
    may_switch: bool,
) -> Result<Idle, FetchError>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let watch = upstream.connections.new_watch(Side::Origin);
    let stream = TokioIo::new(WatchedStream::new(stream, watch.clone()));
    let mut builder = http1::Builder::new();
    let limits = &upstream.options.limits;
    if limits.headers_max != HEADERS {
        builder.max_headers(limits.headers_max);
    }
    // hyper buffers a head as a whole.
    if limits.response_head_bytes_max + 8192 > BUFFER_BYTES_MAX {
        builder.max_buf_size(limits.response_head_bytes_max + 8192);
    }
    let (sender, connection) =
        builder.handshake(stream).await.map_err(|error| FetchError::Connect(error.to_string()))?;
    let inside = may_switch.then(oneshot::channel::<Inside>);
    let Some((tell, inside)) = inside else {
        upstream.connections.supervise(watch.clone(), connection, place);
        return Ok(Idle { sender, watch, socket, inside: None });
    };
    let held = place.clone();
    let until_switched = async move {
        if let Ok(parts) = connection.without_shutdown().await {
            let stream = Box::new(parts.io.into_inner().into_inner());
            _ = tell.send(Inside { stream, early: parts.read_buf, place: held });
        }
    };
    upstream.connections.supervise(watch.clone(), until_switched, place);
    Ok(Idle { sender, watch, socket, inside: Some(inside) })
}
