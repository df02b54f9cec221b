//! Questions to servers of names.
//!
//! Owns: how servers are asked, the questions for the addresses of a name, and what their answers mean. The messages and
//! their transport (UDP, and TCP if an answer is too long for UDP) are the `domain` library's. Leaves to others: questions
//! for services (`services`). *Source*: RFC 1035, 2308, and 8305, 3.

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use domain::base::iana::{Class, Rcode};
use domain::base::{Message, MessageBuilder, Name, Rtype};
use domain::net::client::protocol::{TcpConnect, UdpConnect};
use domain::net::client::request::{RequestMessage, SendRequest};
use domain::net::client::{dgram, dgram_stream, multi_stream};
use domain::rdata::{A, Aaaa, Soa};

use super::files::Servers;
use crate::upstream::race::race;

/// The time after which the next server is asked beside those that have not answered.
const SERVER_DELAY: Duration = Duration::from_secs(1);

/// The time for which the addresses of one family wait for those of the other. *Source*: RFC 8305, 8.
const FAMILY_DELAY: Duration = Duration::from_millis(50);

/// The lifetime of the knowledge that a name has no address, if its zone does not say it.
pub(super) const NOTHING_LIFETIME: Duration = Duration::from_secs(5);

/// The lifetime of addresses if those of the other family were not waited for.
const HALF_LIFETIME_MAX: Duration = Duration::from_secs(60);

/// The longest message that is wanted by UDP. *Source*: RFC 9715.
const UDP_BYTES_MAX: u16 = 1232;

/// What the servers say about a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    /// It has these addresses.
    Addresses(Vec<IpAddr>, Duration),
    /// It has no address, or does not exist.
    Nothing(Duration),
}

/// Asks for the addresses of a name, and those of longer names if it is short.
///
/// *Errors*: a text if no server gave an answer. *Cancel safety*: dropping the future ends its sockets.
pub(super) async fn ask(servers: &Servers, name: &str) -> Result<Said, String> {
    let mut shortest = None;
    for name in servers.full_names(name) {
        // A name that cannot be written in a message does not exist.
        let Ok(full) = name.parse::<Name<Vec<u8>>>() else { continue };
        match ask_both(servers, &full).await? {
            Said::Nothing(lifetime) => shortest = Some(shortest.unwrap_or(lifetime).min(lifetime)),
            found => return Ok(found),
        }
    }
    Ok(Said::Nothing(shortest.unwrap_or(NOTHING_LIFETIME)))
}

/// Asks for the addresses of both families.
async fn ask_both(servers: &Servers, name: &Name<Vec<u8>>) -> Result<Said, String> {
    let mut v6 = pin!(ask_servers(servers, name, Rtype::AAAA, meaning));
    let mut v4 = pin!(ask_servers(servers, name, Rtype::A, meaning));
    let (first, is_v6) = tokio::select! {
        said = &mut v6 => (said, true),
        said = &mut v4 => (said, false),
    };
    let second = async { if is_v6 { v4.await } else { v6.await } };
    let second = match &first {
        Ok(Said::Addresses(found, lifetime)) => match tokio::time::timeout(FAMILY_DELAY, second).await {
            Ok(second) => second,
            Err(_) => return Ok(Said::Addresses(found.clone(), (*lifetime).min(HALF_LIFETIME_MAX))),
        },
        _ => second.await,
    };
    if is_v6 { join(first, second) } else { join(second, first) }
}

/// What the answers for both families say together. Addresses of one family are good although the other's are unknown.
fn join(v6: Result<Said, String>, v4: Result<Said, String>) -> Result<Said, String> {
    use Said::{Addresses, Nothing};
    Ok(match (v6, v4) {
        (Ok(Addresses(mut v6, one)), Ok(Addresses(v4, other))) => {
            v6.extend(v4);
            Addresses(v6, one.min(other))
        }
        (Ok(Addresses(found, lifetime)), Ok(Nothing(_))) | (Ok(Nothing(_)), Ok(Addresses(found, lifetime))) => {
            Addresses(found, lifetime)
        }
        (Ok(Addresses(found, lifetime)), Err(_)) | (Err(_), Ok(Addresses(found, lifetime))) => {
            Addresses(found, lifetime.min(HALF_LIFETIME_MAX))
        }
        (Ok(Nothing(one)), Ok(Nothing(other))) => Nothing(one.min(other)),
        (Err(error), _) | (_, Err(error)) => return Err(error),
    })
}

/// Asks the servers in turn, each as often as the settings say, until one gives an answer that has a meaning.
pub(super) async fn ask_servers<T>(
    servers: &Servers,
    name: &Name<Vec<u8>>,
    kind: Rtype,
    meaning: fn(&Message<Bytes>, Rtype) -> Result<T, Refusal>,
) -> Result<T, String> {
    let count = servers.addresses.len() * servers.attempts;
    let turns = servers.addresses.iter().cycle().take(count);
    let attempt = |&server: &SocketAddr| async move {
        let answer = match query(server, name, kind, servers.timeout, Some(UDP_BYTES_MAX)).await {
            // The server does not know the extension that allows long messages.
            Err(Refusal::Format) => query(server, name, kind, servers.timeout, None).await,
            result => result,
        };
        meaning(&answer?, kind)
    };
    match race(turns, SERVER_DELAY.min(servers.timeout), || false, attempt).await {
        Ok((_, said)) => Ok(said),
        Err(Some(refusal)) => Err(refusal.to_string()),
        Err(None) => Err("there is no name server".into()),
    }
}

/// Why a server gave no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    /// The server did not understand the question.
    #[error("the name server does not understand")]
    Format,
    /// The server could not be reached, or said that it cannot answer.
    #[error("{0}")]
    Other(String),
}

/// A refusal that is not about the form of the question.
pub(super) fn other(error: impl std::fmt::Display) -> Refusal {
    Refusal::Other(format!("name server: {error}"))
}

/// Asks one server once. *Returns*: its answer, which may be that there is nothing.
async fn query(
    server: SocketAddr,
    name: &Name<Vec<u8>>,
    kind: Rtype,
    timeout: Duration,
    udp_bytes_max: Option<u16>,
) -> Result<Message<Bytes>, Refusal> {
    let mut question = MessageBuilder::new_vec();
    question.header_mut().set_rd(true);
    let mut question = question.question();
    question.push((name, kind)).map_err(other)?;
    let question = RequestMessage::new(question.into_message()).map_err(other)?;
    let mut udp = dgram::Config::new();
    udp.set_read_timeout(timeout);
    udp.set_max_retries(0);
    udp.set_udp_payload_size(udp_bytes_max);
    let config = dgram_stream::Config::from_parts(udp, multi_stream::Config::default());
    let (udp, tcp) = (UdpConnect::new(server), TcpConnect::new(server));
    let (connection, transport) = dgram_stream::Connection::with_config(udp, tcp, config);
    let mut request = connection.send_request(question);
    let answer = tokio::select! {
        answer = request.get_response() => answer.map_err(other)?,
        () = transport.run() => return Err(other("the transport has ended")),
        () = tokio::time::sleep(timeout) => return Err(other("no answer in time")),
    };
    match answer.header().rcode() {
        Rcode::NOERROR | Rcode::NXDOMAIN => Ok(answer),
        Rcode::FORMERR => Err(Refusal::Format),
        rcode => Err(other(rcode)),
    }
}

/// What a server's answer means.
fn meaning(answer: &Message<Bytes>, kind: Rtype) -> Result<Said, Refusal> {
    let Some(name) = answer.canonical_name() else { return Err(other("the answer is damaged")) };
    let (mut found, mut lifetime) = (Vec::new(), Duration::MAX);
    for record in answer.answer().map_err(other)? {
        let record = record.map_err(other)?;
        // An alias on the way may change earlier than the addresses.
        lifetime = lifetime.min(record.ttl().into_duration());
        if record.class() != Class::IN || record.rtype() != kind || record.owner() != name {
            continue;
        }
        if let Some(record) = record.to_record::<A>().map_err(other)? {
            found.push(IpAddr::V4(record.data().addr()));
        } else if let Some(record) = record.to_record::<Aaaa>().map_err(other)? {
            found.push(IpAddr::V6(record.data().addr()));
        }
    }
    if !found.is_empty() {
        return Ok(Said::Addresses(found, lifetime));
    }
    Ok(Said::Nothing(nothing_lifetime(answer)?))
}

/// How long it counts that there is nothing.
pub(super) fn nothing_lifetime(answer: &Message<Bytes>) -> Result<Duration, Refusal> {
    let mut lifetime = None;
    for record in answer.authority().map_err(other)?.limit_to_in::<Soa<_>>() {
        let record = record.map_err(other)?;
        lifetime = Some(record.ttl().into_duration().min(record.data().minimum().into_duration()));
    }
    Ok(lifetime.unwrap_or(NOTHING_LIFETIME))
}
