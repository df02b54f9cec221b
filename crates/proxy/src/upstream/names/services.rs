//! Questions for the servers of a service.
//!
//! Owns: the question for SRV records, and what its answer says. Leaves to others: which records can be used, as a zone may
//! say anything (`discovery`). *Source*: RFC 2782.

use bytes::Bytes;
use domain::base::{Message, ParsedName, Rtype};
use domain::rdata::Srv;

use super::files::ResolverSettings;
use super::query::{NameReply, QueryRefusal, ask_full_names, ask_servers, records_of};

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
pub(super) type SaidServices = NameReply<ServiceRecord>;

/// Asks for the records of a service, and those of longer names if its name is short.
///
/// *Errors*: a text if no server gave an answer. *Cancel safety*: dropping the future ends its sockets.
pub(super) async fn ask(servers: &ResolverSettings, name: &str) -> Result<SaidServices, String> {
    ask_full_names(servers, name, async |full| ask_servers(servers, full, Rtype::SRV, meaning).await).await
}

fn meaning(answer: &Message<Bytes>, kind: Rtype) -> Result<SaidServices, QueryRefusal> {
    records_of(answer, kind, |data: &Srv<ParsedName<Bytes>>| {
        let target = if data.target().is_root() { String::new() } else { data.target().to_string() };
        ServiceRecord { priority: data.priority(), weight: data.weight(), port: data.port(), target }
    })
}
