//! Opening connections to origins: the race of an origin's addresses, TLS.
//!
//! Owns: one race for each new connection. An attempt includes TLS, so an address that accepts connections and then is
//! silent loses like one that drops them. *Source*: RFC 8305.

use std::cell::Cell;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use nectary_host::descriptors;
use nectary_host::log::{LogLevel, LogThrottles};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio_rustls::client::TlsStream;

use super::error::{CONNECTING, FetchError, LOOKUP};
use super::names::NO_ADDRESS;
use super::race::race;
use super::server_limit::{ServerLimit, ServerPlace};
use super::shared::{self, OpenedConnection};
use super::socket::{OriginStream, SharedSocket};
use super::switch::{DuplexIo, OfServer, SwitchedConnection};
use super::{ALIVE_MAX, Destination, IdleConnection, Upstream};
use crate::options::HEADERS;
use crate::room::ConnectionPlace;
use crate::wire::http1::stream::WatchedStream;

/// The maximum number of bytes that hyper buffers, unless longer heads are allowed. It is hyper's default.
const BUFFER_BYTES_MAX: usize = 8192 + 4096 * 100;

/// Limits how often a refused certificate of a server is logged, by its host and port.
static REFUSED: LogThrottles = LogThrottles::every(Duration::from_secs(60));

/// The time after which the next address of an origin is tried beside those that have not answered. *Source*: RFC 8305,
/// 8.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// The only address of a server at a Unix socket, which has none.
const SOCKET_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// The time between two attempts at a Unix socket whose queue is full.
const QUEUE_PAUSE: Duration = Duration::from_millis(5);

/// The time that TLS has on a new connection before the next address is tried.
const TLS_DELAY: Duration = Duration::from_secs(1);

/// Connects to one of the destination's addresses, within the connect timeout. Also returns the connection's place.
pub(crate) async fn connect_tcp(
    upstream: &Upstream,
    to: &Destination,
) -> Result<(TcpStream, ConnectionPlace), FetchError> {
    let attempt = async |address| {
        let connection = open(upstream, address).await?;
        upstream.known.addresses.note_success(address);
        Ok(connection)
    };
    let connected = connect_to_one(upstream, to, &[], || false, attempt).await?;
    connected.ok_or_else(|| FetchError::Connect(NO_ADDRESS.into()))
}

/// Opens a connection to one of an origin's addresses, except those that were `tried` before; `None` if it has no other.
/// The connection keeps `place`, if connections to the server are limited. If `may_switch`, it is for one request, which
/// asks for another protocol.
pub(super) async fn connect(
    upstream: &Upstream,
    to: &Destination,
    tried: &[SocketAddr],
    place: Option<ServerPlace>,
    may_switch: bool,
) -> Result<Option<IdleConnection>, FetchError> {
    // The attempt that wins gets it.
    let place = Cell::new(place);
    // The last time at which a connection was opened, on which TLS then begins.
    let opened = Cell::new(None);
    let is_promising = || opened.get().is_some_and(|at: Instant| at.elapsed() < TLS_DELAY);
    connect_to_one(upstream, to, tried, is_promising, |address| {
        connect_at(upstream, to, address, (&opened, &place), may_switch)
    })
    .await
}

/// Opens a connection to one of an origin's addresses, except those that were `tried` before, as [`connect`] does. Its
/// server may choose HTTP/2; without TLS it must speak that.
pub(super) async fn connect_shared(
    upstream: &Upstream,
    to: &Destination,
    tried: &[SocketAddr],
    place: Option<ServerPlace>,
) -> Result<Option<OpenedConnection>, FetchError> {
    // As in `connect`.
    let (place, opened) = (Cell::new(place), Cell::new(None));
    let is_promising = || opened.get().is_some_and(|at: Instant| at.elapsed() < TLS_DELAY);
    connect_to_one(upstream, to, tried, is_promising, |address| {
        connect_shared_at(upstream, to, address, (&opened, &place))
    })
    .await
}

/// Opens a connection to an address of an origin, as [`connect_at`] does, whose server may choose HTTP/2.
async fn connect_shared_at(
    upstream: &Upstream,
    to: &Destination,
    address: SocketAddr,
    (opened, server_place): (&Cell<Option<Instant>>, &Cell<Option<ServerPlace>>),
) -> Result<OpenedConnection, FetchError> {
    let begun = Instant::now();
    let (socket, place) = open_stream(upstream, to, address, opened).await?;
    let stream: Box<dyn DuplexIo> = if to.origin.https {
        let stream = tls(to, socket.clone(), true).await?;
        if stream.get_ref().1.alpn_protocol() != Some(&b"h2"[..]) {
            let places = (place, server_place.take());
            let mut alone = handshake(upstream, to, stream, socket, address, places, false).await?;
            alone.connect_time = Some(begun.elapsed());
            return Ok(OpenedConnection::Alone(alone));
        }
        Box::new(stream)
    } else {
        Box::new(socket)
    };
    let connection = shared::begin(upstream, to, stream, address, (place, server_place.take())).await?;
    Ok(OpenedConnection::Shared(connection.connected_in(begun.elapsed())))
}

/// Opens a connection to an address of an origin. `opened` gets the time at which TLS begins; the connection takes the
/// server's place when it is ready.
async fn connect_at(
    upstream: &Upstream,
    to: &Destination,
    address: SocketAddr,
    (opened, server_place): (&Cell<Option<Instant>>, &Cell<Option<ServerPlace>>),
    may_switch: bool,
) -> Result<IdleConnection, FetchError> {
    let begun = Instant::now();
    let (socket, place) = open_stream(upstream, to, address, opened).await?;
    let mut connected = if to.origin.https {
        let stream = tls(to, socket.clone(), false).await?;
        handshake(upstream, to, stream, socket, address, (place, server_place.take()), may_switch).await?
    } else {
        let stream = socket.clone();
        handshake(upstream, to, stream, socket, address, (place, server_place.take()), may_switch).await?
    };
    connected.connect_time = Some(begun.elapsed());
    Ok(connected)
}

/// Opens a stream to an address of an origin, or to its socket, and counts it.
async fn open_stream(
    upstream: &Upstream,
    to: &Destination,
    address: SocketAddr,
    opened: &Cell<Option<Instant>>,
) -> Result<(SharedSocket, ConnectionPlace), FetchError> {
    let (stream, place) = match to.origin.socket_path() {
        Some(path) => open_socket(upstream, path).await?,
        None => open(upstream, address).await.map(|(tcp, place)| (OriginStream::Tcp(tcp), place))?,
    };
    opened.set(Some(Instant::now()));
    upstream.stats.origin_connections.add(1);
    Ok((SharedSocket::new(stream), place))
}

/// Opens a connection to an address of an origin, within the connect timeout.
pub(super) async fn connect_in_time(
    upstream: &Upstream,
    to: &Destination,
    address: SocketAddr,
) -> Result<OpenedConnection, FetchError> {
    let place = to.limit.as_ref().map(ServerLimit::try_take);
    if let Some(None) = place {
        return Err(FetchError::Busy("none is free".to_owned()));
    }
    let (opened, place) = (Cell::new(None), Cell::new(place.flatten()));
    let attempt = async {
        match to.rules.http2 {
            true => connect_shared_at(upstream, to, address, (&opened, &place)).await,
            false => connect_at(upstream, to, address, (&opened, &place), false).await.map(OpenedConnection::Alone),
        }
    };
    let result = tokio::time::timeout(to.rules.times.connect, attempt).await;
    result.unwrap_or(Err(FetchError::TimedOut(CONNECTING)))
}

/// The addresses of an origin in the order in which they are tried, except those that were `tried` before.
pub(super) async fn addresses_of(
    upstream: &Upstream,
    to: &Destination,
    tried: &[SocketAddr],
) -> Result<Vec<SocketAddr>, FetchError> {
    if to.origin.socket_path().is_some() {
        return Ok([SOCKET_ADDRESS].into_iter().filter(|address| !tried.contains(address)).collect());
    }
    let name = to.looked_up();
    let found = tokio::time::timeout(to.rules.times.connect, upstream.lookups.look_up(&name, to.client)).await;
    let found = found.map_err(|_| FetchError::TimedOut(LOOKUP))??;
    let mut addresses = upstream.known.addresses.order(&found, to.origin.port, Instant::now());
    if addresses.is_empty() {
        return Err(FetchError::Connect(NO_ADDRESS.into()));
    }
    addresses.retain(|address| to.reach.includes(address.ip()));
    if addresses.is_empty() {
        return Err(FetchError::OutOfReach);
    }
    addresses.retain(|address| !tried.contains(address));
    Ok(addresses)
}

/// Races attempts at the addresses of a host, except those that were `tried` before. The race includes the lookup of the
/// name, and ends after the connect timeout. Returns `None` if all addresses were tried before.
async fn connect_to_one<T, F: Future<Output = Result<T, FetchError>>>(
    upstream: &Upstream,
    to: &Destination,
    tried: &[SocketAddr],
    is_promising: impl Fn() -> bool,
    attempt: impl Fn(SocketAddr) -> F,
) -> Result<Option<T>, FetchError> {
    let memory = &upstream.known.addresses;
    let limit = to.rules.times.connect;
    let deadline = tokio::time::Instant::now() + limit;
    let addresses = addresses_of(upstream, to, tried).await?;
    // The number of addresses at which an attempt has begun.
    let begun = &Cell::new(0usize);
    let attempt = &attempt;
    let limited = |&address: &SocketAddr| async move {
        begun.set(begun.get() + 1);
        let result = tokio::time::timeout(limit, attempt(address)).await;
        let result = result.unwrap_or(Err(FetchError::TimedOut(CONNECTING)));
        if !matches!(result, Ok(_) | Err(FetchError::Crowded | FetchError::Busy(_))) {
            memory.note_failure(address, Instant::now());
        }
        result
    };
    let race = race(&addresses, ATTEMPT_DELAY, is_promising, limited);
    match tokio::time::timeout_at(deadline, race).await {
        Ok(Ok((winner, connection))) => {
            // Those that began earlier are slower, or do not answer at all.
            addresses[..winner].iter().for_each(|&address| memory.note_failure(address, Instant::now()));
            Ok(Some(connection))
        }
        Ok(Err(Some(error))) => Err(error),
        Ok(Err(None)) => Ok(None),
        Err(_) => {
            // The last one may have had too little time. The next race begins with it and those that had no turn.
            let silent = &addresses[..begun.get().saturating_sub(1)];
            silent.iter().for_each(|&address| memory.note_failure(address, Instant::now()));
            Err(FetchError::TimedOut(CONNECTING))
        }
    }
}

/// Why a connection cannot be opened.
fn failed(error: std::io::Error) -> FetchError {
    match descriptors::is_lack(&error) {
        // The origin is not to blame.
        true => {
            descriptors::note_refused(format!("no file descriptor was free for a connection to an origin: {error}"));
            FetchError::Crowded
        }
        false => FetchError::Connect(error.to_string()),
    }
}

/// Opens a connection to a Unix socket. If its queue is full, the kernel does not wait, as it does with TCP; so this tries
/// again until the caller's time is over. *Errors*: also if there is no place for it.
async fn open_socket(upstream: &Upstream, path: &str) -> Result<(OriginStream, ConnectionPlace), FetchError> {
    let place = upstream.place().await?;
    loop {
        match UnixStream::connect(path).await {
            Ok(stream) => return Ok((OriginStream::Unix(stream), place)),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => tokio::time::sleep(QUEUE_PAUSE).await,
            Err(error) => return Err(failed(error)),
        }
    }
}

/// Opens a TCP connection. *Errors*: also if there is no place for it.
async fn open(upstream: &Upstream, address: SocketAddr) -> Result<(TcpStream, ConnectionPlace), FetchError> {
    let place = upstream.place().await?;
    let stream = TcpStream::connect(address).await.map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    Ok((stream, place))
}

/// Begins TLS on a connection to an origin, whose server may choose HTTP/2 if it `offers_http2`.
async fn tls(
    to: &Destination,
    socket: SharedSocket,
    offers_http2: bool,
) -> Result<TlsStream<SharedSocket>, FetchError> {
    let (origin, rules) = (&to.origin, &to.rules);
    let connector = rules.trust.connector(offers_http2).map_err(FetchError::Connect)?;
    let name = rules.tls_name.as_deref().unwrap_or(origin.bare_host()).to_owned();
    let name = ServerName::try_from(name).map_err(|error| FetchError::Connect(error.to_string()))?;
    connector.connect(name, socket).await.map_err(|error| {
        if let Some(remedy) = rules.trust.remedy(&error) {
            let authority = origin.authority();
            let text = format_args!("https://{authority}: {error}: {remedy}");
            REFUSED.write(&authority, LogLevel::Warning, "proxy", text);
        }
        FetchError::Connect(format!("TLS: {error}"))
    })
}

/// Runs hyper on a stream, in a separate task that ends when the connection ends.
async fn handshake<S>(
    upstream: &Upstream,
    to: &Destination,
    stream: S,
    socket: SharedSocket,
    address: SocketAddr,
    (place, server_place): (ConnectionPlace, Option<ServerPlace>),
    may_switch: bool,
) -> Result<IdleConnection, FetchError>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let watch = upstream.connections.new_origin_watch(&to.rules.times);
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
    let inside = if may_switch {
        let (tell, inside) = oneshot::channel();
        upstream.connections.supervise(watch.clone(), async move {
            if let Ok(parts) = connection.without_shutdown().await {
                let stream = Box::new(parts.io.into_inner().into_inner());
                let of_server = OfServer::with_place(server_place);
                _ = tell.send(SwitchedConnection { stream, early: parts.read_buf, place, of_server });
            }
        });
        Some(inside)
    } else {
        let (of_task, shared) = (watch.clone(), socket.clone());
        upstream.connections.supervise(watch.clone(), async move {
            match &server_place {
                None => _ = connection.await,
                Some(wanted) => tokio::select! {
                    _ = connection => {}
                    // The server must see the end before another connection takes the place.
                    () = wanted.is_wanted(&of_task.transport) => shared.close(),
                },
            }
            drop((place, server_place));
        });
        None
    };
    let since = Instant::now();
    Ok(IdleConnection { sender, watch, socket, inside, address, connect_time: None, since, alive: ALIVE_MAX })
}
