//! Connecting to a host that may have several addresses, of which some may be dead.
//!
//! Owns: the order of the attempts, and the time after which the next address is tried while earlier ones still do not
//! answer (RFC 8305). Promises: an address that does not answer delays the connection by [`NEXT_TIME`], and never
//! prevents it; no attempt goes on after the call. Leaves to others: the limit of the whole time, and the use of the
//! stream.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;

/// The time for which an address is tried alone, before the next one is tried beside it.
pub const NEXT_TIME: Duration = Duration::from_millis(250);

/// The maximum number of addresses that are tried.
const ADDRESSES_MAX: usize = 16;

/// Connects to the first address of a host that answers. *Cancel safety*: if the future is dropped, all attempts end.
///
/// *Errors*: the host has no address, or none of them accepts; then the error is that of the first address that failed.
pub async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let found: Vec<SocketAddr> = lookup_host((host, port)).await?.collect();
    connect_any(&found).await
}

/// Connects to the first of these addresses that answers; they are of one host. *Errors* and *cancel safety*: as
/// [`connect`].
pub async fn connect_any(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    if let [only] = addresses {
        return TcpStream::connect(only).await;
    }
    let mut left = alternating(addresses).into_iter();
    let mut attempts = JoinSet::new();
    let mut first_error = None;
    loop {
        match left.next() {
            Some(address) => {
                attempts.spawn(TcpStream::connect(address));
            }
            None if attempts.is_empty() => break,
            None => {}
        }
        // The last address is waited for without a limit.
        let wait = if left.len() > 0 { NEXT_TIME } else { Duration::MAX };
        match tokio::time::timeout(wait, attempts.join_next()).await {
            Ok(Some(Ok(Ok(stream)))) => return Ok(stream),
            Ok(Some(Ok(Err(error)))) => {
                first_error.get_or_insert(error);
            }
            // The next address is due, or an attempt has panicked.
            _ => {}
        }
    }
    let none = || io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    Err(first_error.unwrap_or_else(none))
}

/// Puts addresses of both families in turn, beginning with the family that the system prefers.
fn alternating(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let is_first = |address: &&SocketAddr| address.is_ipv6() == addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (one, other): (Vec<&SocketAddr>, Vec<&SocketAddr>) = addresses.iter().partition(is_first);
    let (mut one, mut other) = (one.into_iter(), other.into_iter());
    let mut list = Vec::new();
    while list.len() < ADDRESSES_MAX {
        match (one.next(), other.next()) {
            (None, None) => break,
            (first, second) => list.extend(first.into_iter().chain(second)),
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// A listener that accepts nothing, and whose queue is full, so that the kernel drops the next clients' packets.
    async fn dead() -> (socket2::Socket, Vec<TcpStream>, SocketAddr) {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
        socket.listen(0).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        let mut queue = Vec::new();
        while let Ok(Ok(stream)) = tokio::time::timeout(Duration::from_millis(100), TcpStream::connect(address)).await {
            queue.push(stream);
        }
        (socket, queue, address)
    }

    #[tokio::test]
    async fn dead_first_address_is_no_obstacle() {
        let (_socket, _queue, dead) = dead().await;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let alive = listener.local_addr().unwrap();
        let began = Instant::now();
        let stream = connect_any(&[dead, alive]).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), alive);
        assert!(began.elapsed() >= NEXT_TIME && began.elapsed() < Duration::from_secs(10));
        // An address that refuses costs no time.
        let refused = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let began = Instant::now();
        assert_eq!(connect_any(&[refused, alive]).await.unwrap().peer_addr().unwrap(), alive);
        assert!(began.elapsed() < NEXT_TIME);
        assert_eq!(connect_any(&[refused, refused]).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert!(connect_any(&[]).await.is_err());
    }

    #[test]
    fn families_take_turns() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let given = ["[::1]:1", "[::2]:1", "[::3]:1", "1.1.1.1:1"].map(address);
        assert_eq!(alternating(&given), ["[::1]:1", "1.1.1.1:1", "[::2]:1", "[::3]:1"].map(address));
        assert_eq!(alternating(&[]), []);
    }
}
