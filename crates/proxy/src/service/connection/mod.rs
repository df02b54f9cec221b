//! The beginning of a client's connection: whose it is, TLS, and the choice of the protocol.
//!
//! Owns: the header of a load balancer and the handshake, each within the time for a request's head, and the
//! recognition of HTTP/2: by the protocol that TLS has chosen, or by the first bytes of a connection without TLS.
//! Promises: a client that is silent meanwhile is idle: it gives up its place when others want one, and when the worker
//! stops. `http1` and `http2` run hyper on the stream, and `answer` begins the answer to each request.

mod answer;
mod http1;
mod http2;

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use nectary_host::log::{LogLevel, LogThrottle};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

use super::request::RequestClient;
use crate::accept::proxy_header::{self, HeaderFault};
use crate::accept::{ClientSocket, ClientStream, NewConnection, ShownAddress, refuse_network};
use crate::admin::is_loopback;
use crate::connections::{ConnectionRegistration, EntranceRole};
use crate::wire::exchange::ClientExchange;
use crate::wire::http1::watch::ConnectionWatch;
use crate::wire::http2::PREFACE;
use crate::wire::transport::{Transport, until_killed};
use crate::worker::ProxyWorker;

/// The time for which the proxy still reads and discards the bytes of a client whose connection ends, so that the
/// client can read the last answer: the kernel drops what is unsent if bytes come for a socket that is closed.
const LINGER: Duration = Duration::from_secs(1);

/// The maximum number of bytes that are read and discarded for that.
const LINGER_BYTES_MAX: usize = 256 * 1024;

/// Limits how often failed handshakes are logged.
static HANDSHAKE_FAILED: LogThrottle = LogThrottle::every(Duration::from_secs(60));

/// Limits how often connections without a valid header are logged.
static HEADER_FAILED: LogThrottle = LogThrottle::every(Duration::from_secs(60));

/// Serves a client until its connection ends.
pub(crate) async fn serve(
    worker: Rc<ProxyWorker>,
    watch: Rc<ConnectionWatch>,
    new: NewConnection,
    enlisted: &ConnectionRegistration,
) {
    let NewConnection { mut stream, peer, door, has_header, mut counted } = new;
    let limit = worker.options.limits.head_timeout;
    let is_unix = stream.is_unix();
    let is_unnamed = |named: Option<SocketAddr>| is_unix && (!has_header || named.is_none());
    let greeting = async {
        let named = if has_header { client_behind(&worker, &mut stream, peer, limit).await? } else { Some(peer) };
        let address = named.unwrap_or(peer);
        if has_header && !is_unnamed(named) {
            counted = match worker.client_limits.count(address.ip()) {
                Ok(counted) => counted,
                Err(_) => {
                    refuse_network(&worker, &stream, door);
                    _ = stream.shutdown().await;
                    _ = tokio::time::timeout(LINGER, discard(&mut stream, &watch.transport)).await;
                    return None;
                }
            };
        }
        let (stream, is_http2) = match door {
            EntranceRole::Tls | EntranceRole::Fleet => {
                let shown = ShownAddress((!is_unnamed(named)).then(|| address.ip()));
                agree_on_tls(&worker, &watch.transport, (stream, door), &shown, limit).await?
            }
            EntranceRole::Admin => (ClientStream::Plain(stream), false),
            EntranceRole::Clients | EntranceRole::Redirect => {
                let is_http2 = is_http2(&stream, limit).await;
                if is_http2.is_none() {
                    worker.stats.overdue_connections.add(1);
                }
                (ClientStream::Plain(stream), is_http2?)
            }
        };
        Some((named, stream, is_http2))
    };
    let Some((named, stream, is_http2)) = unless_ended(&watch.transport, greeting).await.flatten() else { return };
    let address = named.unwrap_or(peer);
    // The loopback addresses that a load balancer on another machine names are those of that machine, and one that names
    // nobody on this machine may serve anybody.
    let is_loopback = named.is_some_and(|named| is_loopback(named.ip())) && is_loopback(peer.ip());
    let client = RequestClient {
        address,
        is_unnamed: is_unnamed(named),
        is_admitted: worker.options.admits(address.ip(), is_loopback),
        is_loopback,
        is_trusted: worker.options.forwarded.trusts(address.ip()),
        node: None,
        door,
        is_secure: door == EntranceRole::Tls,
        tls: stream.tls_version(),
        exchange: ClientExchange::Http1(watch.clone()),
        is_at_fault: Default::default(),
        tunnel: Default::default(),
    };
    if is_http2 {
        let connection = worker.connections.multiplexed();
        enlisted.replace(connection.clone());
        http2::serve(worker, connection, stream, client).await;
    } else {
        http1::serve(worker, watch, stream, Rc::new(client)).await;
    }
    drop(counted);
}

/// Reads the header with which a load balancer begins a connection. *Returns*: the client's address, if the header names
/// one; `None` if the connection ends.
async fn client_behind(
    worker: &ProxyWorker,
    stream: &mut ClientSocket,
    peer: SocketAddr,
    limit: Duration,
) -> Option<Option<SocketAddr>> {
    let fault = match tokio::time::timeout(limit, proxy_header::read(stream)).await {
        Ok(Ok(client)) => return Some(client),
        // Load balancers connect and close to see whether the proxy is there.
        Ok(Err(HeaderFault::Absent)) => return None,
        Ok(Err(fault)) => fault.to_string(),
        Err(_) => "it did not come in time".to_owned(),
    };
    worker.stats.failed_proxy_headers.add(1);
    let peer = ShownAddress((!stream.is_unix()).then(|| peer.ip()));
    HEADER_FAILED.write(
        LogLevel::Warning,
        "proxy",
        format_args!("no valid header of the PROXY protocol from {peer}, which `proxy-protocol-from` has: {fault}"),
    );
    None
}

/// Agrees on TLS in time. *Returns*: the stream, and whether HTTP/2 was chosen; `None` if the connection ends.
async fn agree_on_tls(
    worker: &ProxyWorker,
    transport: &Transport,
    (stream, door): (ClientSocket, EntranceRole),
    client: &ShownAddress,
    limit: Duration,
) -> Option<(ClientStream, bool)> {
    let refused = match tokio::time::timeout(limit, handshake(worker, stream, door, client)).await {
        Ok(Ok((mut stream, is_http2))) => {
            if !stream.is_check() {
                return Some((stream, is_http2));
            }
            // An authority has seen the certificate by which it checks a name. This protocol has no messages.
            _ = tokio::time::timeout(LINGER, stream.shutdown()).await;
            return None;
        }
        Ok(Err(refused)) => refused,
        Err(_) => None,
    };
    worker.stats.failed_handshakes.add(1);
    if let Some(mut stream) = refused {
        _ = stream.shutdown().await;
        _ = tokio::time::timeout(LINGER, discard(&mut stream, transport)).await;
    }
    None
}

/// Does the proxy's part of the handshake. *Returns*: the stream, and whether HTTP/2 was chosen. *Errors*: the
/// connection, if its client must be able to read why it was refused.
async fn handshake(
    worker: &ProxyWorker,
    stream: ClientSocket,
    door: EntranceRole,
    client: &ShownAddress,
) -> Result<(ClientStream, bool), Option<ClientSocket>> {
    let acceptor = match door {
        EntranceRole::Fleet => worker.peers.as_ref().map(|peers| peers.acceptor()),
        _ => worker.tls.as_ref().map(|tls| tls.acceptor()),
    };
    let Some(acceptor) = acceptor else { return Err(None) };
    match acceptor.accept(stream).into_fallible().await {
        Ok(stream) => {
            worker.stats.handshakes.add(1);
            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            Ok((ClientStream::Tls(Box::new(stream)), is_http2))
        }
        Err((error, stream)) => {
            HANDSHAKE_FAILED.write(LogLevel::Note, "proxy", format_args!("no TLS with {client}: {error}"));
            Err(is_about_certificate(&error).then_some(stream))
        }
    }
}

/// Whether a handshake failed because of the client's certificate. Such a client may have sent a request already.
fn is_about_certificate(error: &io::Error) -> bool {
    let error = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    matches!(error, Some(rustls::Error::NoCertificatesPresented | rustls::Error::InvalidCertificate(_)))
}

/// Whether a connection begins as one of HTTP/2. Nothing is read from it. *Returns*: `None` if the client sends too
/// little to tell for `limit`, which is the time that a head may take.
async fn is_http2(stream: &ClientSocket, limit: Duration) -> Option<bool> {
    // A client that sends nothing at all is idle; others have a head to send.
    if stream.readable().await.is_err() {
        return Some(false);
    }
    tokio::time::timeout(limit, begins_as_http2(stream)).await.ok()
}

/// Waits for enough bytes to tell. *Cost*: one look at each part that comes. A client that sends a few bytes must not
/// cost more than one that sends none.
async fn begins_as_http2(stream: &ClientSocket) -> bool {
    let mut first = [0; PREFACE.len()];
    loop {
        let Ok(ready) = stream.read_readiness().await else { return false };
        let Ok(count) = stream.peek(&mut first).await else { return false };
        if count == 0 || count == PREFACE.len() || first[..count] != PREFACE[..count] {
            return count > 0 && first[..count] == *PREFACE;
        }
        if ready.is_read_closed() {
            return false;
        }
        // The bytes stay where they are, so the stream is told that only further ones make it readable.
        stream.await_further_bytes();
    }
}

/// Reads and discards what a client sends, until it closes its side, [`LINGER_BYTES_MAX`] have come, or the connection
/// must end.
async fn discard(stream: &mut (impl AsyncRead + Unpin), transport: &Transport) {
    let reading = async {
        // Not in the future, which is a part of every connection.
        let (mut left, mut room) = (LINGER_BYTES_MAX, vec![0; 4096]);
        while left > 0 {
            match stream.read(&mut room).await {
                Ok(0) | Err(_) => return,
                Ok(count) => left = left.saturating_sub(count),
            }
        }
    };
    until_killed(transport, reading).await;
}

/// Runs `work` until it is done, or until the connection must end. *Returns*: `None` if that was first.
async fn unless_ended<T>(transport: &Transport, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    poll_fn(|context| {
        transport.register(context);
        if transport.is_killed() || transport.is_draining() {
            return Poll::Ready(None);
        }
        work.as_mut().poll(context).map(Some)
    })
    .await
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    const LIMIT: Duration = Duration::from_millis(400);

    async fn connected() -> (TcpStream, ClientSocket) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("an address")).await.expect("a connection");
        (client, ClientSocket::Tcp(listener.accept().await.expect("a connection").0))
    }

    #[tokio::test]
    async fn partial_preface_costs_few_polls() {
        let (mut client, stream) = connected().await;
        client.write_all(&PREFACE[..3]).await.expect("room");
        let mut looking = pin!(is_http2(&stream, LIMIT));
        let mut polls = 0;
        let found = poll_fn(|context| {
            polls += 1;
            looking.as_mut().poll(context)
        });
        assert_eq!(found.await, None);
        assert!(polls <= 8, "polled {polls} times");
    }

    #[tokio::test]
    async fn preface_is_found_in_pieces() {
        for (sent, expected) in
            [(PREFACE, true), (&b"PRI * HTTP/2.0\r\nhost: a\r\n\r\n"[..], false), (&b"POST /"[..], false)]
        {
            let (mut client, stream) = connected().await;
            let sending = async {
                for byte in sent {
                    client.write_all(&[*byte]).await.expect("room");
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            let (found, ()) = tokio::join!(is_http2(&stream, Duration::from_secs(20)), sending);
            assert_eq!(found, Some(expected));
        }
        let (mut client, stream) = connected().await;
        client.write_all(&PREFACE[..3]).await.expect("room");
        client.shutdown().await.expect("its side");
        assert_eq!(is_http2(&stream, Duration::from_secs(20)).await, Some(false), "no more can come");
    }
}
