//! Questions for the servers of a service.
//!
//! Owns: the question for SRV records, and what its answer says. Leaves to others: which records can be used, as a zone may
//! say anything (`discovery`). *Source*: RFC 2782.

use std::time::Duration;

use bytes::Bytes;
use domain::base::iana::Class;
use domain::base::{Message, Name, Rtype};
use domain::rdata::Srv;

use super::files::Servers;
use super::query::{NOTHING_LIFETIME, Refusal, ask_servers, nothing_lifetime, other};

/// A record of a service, as the zone has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServiceRecord {
    /// Servers with a lower number are asked first.
    pub priority: u16,
    /// The share of the requests, relative to the others of the same priority.
    pub weight: u16,
    pub port: u16,
    /// The name of the server, without the dot at its end; empty if the record says that there is no server.
    pub target: String,
}

/// What the servers of names say about a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ServiceSaid {
    /// It has these records.
    Records(Vec<ServiceRecord>, Duration),
    /// It has none, or does not exist.
    Nothing(Duration),
}

/// Asks for the records of a service, and those of longer names if its name is short.
///
/// *Errors*: a text if no server gave an answer. *Cancel safety*: dropping the future ends its sockets.
pub(super) async fn ask(servers: &Servers, name: &str) -> Result<ServiceSaid, String> {
    let mut shortest: Option<Duration> = None;
    for name in servers.full_names(name) {
        // A name that cannot be written in a message does not exist.
        let Ok(full) = name.parse::<Name<Vec<u8>>>() else { continue };
        match ask_servers(servers, &full, Rtype::SRV, meaning).await? {
            ServiceSaid::Nothing(lifetime) => shortest = Some(shortest.unwrap_or(lifetime).min(lifetime)),
            found => return Ok(found),
        }
    }
    Ok(ServiceSaid::Nothing(shortest.unwrap_or(NOTHING_LIFETIME)))
}

fn meaning(answer: &Message<Bytes>, kind: Rtype) -> Result<ServiceSaid, Refusal> {
    let Some(name) = answer.canonical_name() else { return Err(other("the answer is damaged")) };
    let (mut found, mut lifetime) = (Vec::new(), Duration::MAX);
    for record in answer.answer().map_err(other)? {
        let record = record.map_err(other)?;
        // An alias on the way may change earlier than the records.
        lifetime = lifetime.min(record.ttl().into_duration());
        if record.class() != Class::IN || record.rtype() != kind || record.owner() != name {
            continue;
        }
        let Some(record) = record.to_record::<Srv<_>>().map_err(other)? else { continue };
        let data = record.data();
        let target = if data.target().is_root() { String::new() } else { data.target().to_string() };
        found.push(ServiceRecord { priority: data.priority(), weight: data.weight(), port: data.port(), target });
    }
    match found.is_empty() {
        false => Ok(ServiceSaid::Records(found, lifetime)),
        true => Ok(ServiceSaid::Nothing(nothing_lifetime(answer)?)),
    }
}
