//! Connecting to a name that has several addresses.
//!
//! Owns: the race of the addresses. The next one is tried when one has failed or has been silent for a moment, so a dead
//! first address costs a quarter of a second; the families take turns. Leaves to others: the time for the whole, and
//! what is remembered about addresses (the proxy has its own). *Source*: RFC 8305.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// The time after which the next address is tried beside those that have not answered.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Connects to one of the addresses of a host.
///
/// *Errors*: the last attempt's, or that of the lookup. *Cancel safety*: dropping the future ends all attempts.
pub async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    race(tokio::net::lookup_host((host, port)).await?.collect()).await
}

/// Connects to one of the addresses.
async fn race(found: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let mut waiting = in_turns(found).into_iter().peekable();
    let mut attempts = JoinSet::new();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    loop {
        if let Some(address) = waiting.next() {
            attempts.spawn(TcpStream::connect(address));
        } else if attempts.is_empty() {
            return Err(last);
        }
        tokio::select! {
            done = attempts.join_next() => match done {
                Some(Ok(Ok(stream))) => return Ok(stream),
                Some(Ok(Err(error))) => last = error,
                _ => {}
            },
            () = tokio::time::sleep(ATTEMPT_DELAY), if waiting.peek().is_some() => {}
        }
    }
}

/// The addresses, the families in turns, beginning with that of the first.
fn in_turns(found: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first_is_v6 = found.first().is_some_and(SocketAddr::is_ipv6);
    let (ours, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|address| address.is_ipv6() == first_is_v6);
    let (mut ours, mut others) = (ours.into_iter(), others.into_iter());
    let mut all = Vec::new();
    loop {
        let before = all.len();
        all.extend(ours.next().into_iter().chain(others.next()));
        if all.len() == before {
            return all;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use socket2::{Domain, Socket, Type};

    use super::*;

    #[test]
    fn families_take_turns() {
        let all = |texts: &[&str]| texts.iter().map(|text| text.parse().expect("an address")).collect::<Vec<_>>();
        assert_eq!(in_turns(all(&["[::1]:1", "[::2]:1", "1.1.1.1:1"])), all(&["[::1]:1", "1.1.1.1:1", "[::2]:1"]));
        assert_eq!(in_turns(all(&["1.1.1.1:1", "1.1.1.2:1"])), all(&["1.1.1.1:1", "1.1.1.2:1"]));
        assert!(in_turns(Vec::new()).is_empty());
    }

    /// One address drops the first packets of connections (its queue is full), one refuses them.
    #[tokio::test]
    async fn dead_first_addresses_cost_little() {
        let good = tokio::net::TcpListener::bind("127.0.0.33:0").await.expect("a port");
        let good = (good.local_addr().expect("an address"), good);
        let at = |last| SocketAddr::from(([127, 0, 0, last], good.0.port()));
        let full = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        full.bind(&at(31).into()).expect("the address");
        full.listen(0).expect("listening");
        let mut queue = Vec::new();
        while let Ok(stream) = tokio::time::timeout(Duration::from_millis(100), TcpStream::connect(at(31))).await {
            queue.push(stream.expect("a place in the queue"));
        }
        let begin = Instant::now();
        let stream = race(vec![at(31), at(32), at(33)]).await.expect("a connection");
        assert_eq!(stream.peer_addr().expect("an address"), at(33));
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        let error = race(vec![at(32)]).await.expect_err("refused");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
