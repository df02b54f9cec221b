//! Questions to servers of names.
//!
//! Owns: how servers are asked, about which names, and which records of an answer count. The messages and their transport
//! (UDP, and TCP if an answer is too long for UDP) are the `domain` library's. Leaves to others: the questions for addresses
//! (`host_addresses`) and for services (`services`). *Source*: RFC 1035 and 2308.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use domain::base::iana::{Class, Rcode};
use domain::base::{Message, MessageBuilder, Name, ParseRecordData, Rtype};
use domain::net::client::protocol::{TcpConnect, UdpConnect};
use domain::net::client::request::{RequestMessage, SendRequest};
use domain::net::client::{dgram, dgram_stream, multi_stream};
use domain::rdata::Soa;

use super::files::ResolverSettings;
use crate::upstream::race::race;

/// The time after which the next server is asked beside those that have not answered.
const SERVER_DELAY: Duration = Duration::from_secs(1);

/// The lifetime of the knowledge that a name has nothing, if its zone does not say it.
const NOTHING_LIFETIME: Duration = Duration::from_secs(5);

/// The longest message that is wanted by UDP. *Source*: RFC 9715.
const UDP_BYTES_MAX: u16 = 1232;

/// What the servers say about a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NameReply<T> {
    /// It has these, for this time.
    Found(Vec<T>, Duration),
    /// It has none, or does not exist.
    Nothing(Duration),
}

/// Asks about a name with `ask`, and about longer names if it is short, until one has something.
///
/// *Errors*: those of `ask`. *Cancel safety*: that of `ask`.
pub(super) async fn ask_full_names<T>(
    servers: &ResolverSettings,
    name: &str,
    ask: impl AsyncFn(&Name<Vec<u8>>) -> Result<NameReply<T>, String>,
) -> Result<NameReply<T>, String> {
    let mut shortest: Option<Duration> = None;
    for name in servers.full_names(name) {
        // A name that cannot be written in a message does not exist.
        let Ok(full) = name.parse::<Name<Vec<u8>>>() else { continue };
        match ask(&full).await? {
            NameReply::Nothing(lifetime) => shortest = Some(shortest.unwrap_or(lifetime).min(lifetime)),
            found => return Ok(found),
        }
    }
    Ok(NameReply::Nothing(shortest.unwrap_or(NOTHING_LIFETIME)))
}

/// Asks the servers in turn, each as often as the settings say, until one gives an answer that has a meaning.
pub(super) async fn ask_servers<T>(
    servers: &ResolverSettings,
    name: &Name<Vec<u8>>,
    kind: Rtype,
    meaning: fn(&Message<Bytes>, Rtype) -> Result<T, QueryRefusal>,
) -> Result<T, String> {
    let count = servers.addresses.len() * servers.attempts;
    let turns = servers.addresses.iter().cycle().take(count);
    let attempt = |&server: &SocketAddr| async move {
        let answer = match query(server, name, kind, servers.timeout, Some(UDP_BYTES_MAX)).await {
            // The server does not know the extension that allows long messages.
            Err(QueryRefusal::Format) => query(server, name, kind, servers.timeout, None).await,
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
pub(super) enum QueryRefusal {
    /// The server did not understand the question.
    #[error("the name server does not understand")]
    Format,
    /// The server could not be reached, or said that it cannot answer.
    #[error("{0}")]
    Other(String),
}

/// A refusal that is not about the form of the question.
pub(super) fn other(error: impl std::fmt::Display) -> QueryRefusal {
    QueryRefusal::Other(format!("name server: {error}"))
}

/// Asks one server once. *Returns*: its answer, which may be that there is nothing.
async fn query(
    server: SocketAddr,
    name: &Name<Vec<u8>>,
    kind: Rtype,
    timeout: Duration,
    udp_bytes_max: Option<u16>,
) -> Result<Message<Bytes>, QueryRefusal> {
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
        Rcode::FORMERR => Err(QueryRefusal::Format),
        rcode => Err(other(rcode)),
    }
}

/// What a server's answer says: what `read` makes of the records of this kind that the name, or the last of its aliases, has.
pub(super) fn records_of<'a, D: ParseRecordData<'a, Bytes>, T>(
    answer: &'a Message<Bytes>,
    kind: Rtype,
    read: impl Fn(&D) -> T,
) -> Result<NameReply<T>, QueryRefusal> {
    let Some(name) = answer.canonical_name() else { return Err(other("the answer is damaged")) };
    let (mut found, mut lifetime) = (Vec::new(), Duration::MAX);
    for record in answer.answer().map_err(other)? {
        let record = record.map_err(other)?;
        // An alias on the way may change earlier than the records.
        lifetime = lifetime.min(record.ttl().into_duration());
        if record.class() != Class::IN || record.rtype() != kind || record.owner() != name {
            continue;
        }
        if let Some(record) = record.to_record::<D>().map_err(other)? {
            found.push(read(record.data()));
        }
    }
    match found.is_empty() {
        false => Ok(NameReply::Found(found, lifetime)),
        true => Ok(NameReply::Nothing(nothing_lifetime(answer)?)),
    }
}

/// How long it counts that there is nothing.
fn nothing_lifetime(answer: &Message<Bytes>) -> Result<Duration, QueryRefusal> {
    let mut lifetime = None;
    for record in answer.authority().map_err(other)?.limit_to_in::<Soa<_>>() {
        let record = record.map_err(other)?;
        lifetime = Some(record.ttl().into_duration().min(record.data().minimum().into_duration()));
    }
    Ok(lifetime.unwrap_or(NOTHING_LIFETIME))
}
