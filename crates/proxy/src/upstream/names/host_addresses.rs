//! Questions for the addresses of a name.
//!
//! Owns: the questions for both families, and what their answers say together. *Source*: RFC 8305, 3.

use std::net::IpAddr;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use domain::base::{Message, Name, Rtype};
use domain::rdata::{A, Aaaa};

use super::files::ResolverSettings;
use super::query::{NameReply, QueryRefusal, ask_full_names, ask_servers, records_of};

/// The time for which the addresses of one family wait for those of the other. *Source*: RFC 8305, 8.
const FAMILY_DELAY: Duration = Duration::from_millis(50);

/// The lifetime of addresses if those of the other family were not waited for.
const HALF_LIFETIME_MAX: Duration = Duration::from_secs(60);

/// What the servers say about the addresses of a name.
pub(super) type SaidAddresses = NameReply<IpAddr>;

/// Asks for the addresses of a name, and those of longer names if it is short.
///
/// *Errors*: a text if no server gave an answer. *Cancel safety*: dropping the future ends its sockets.
pub(super) async fn ask(servers: &ResolverSettings, name: &str) -> Result<SaidAddresses, String> {
    ask_full_names(servers, name, async |full| ask_both(servers, full).await).await
}

/// Asks for the addresses of both families.
async fn ask_both(servers: &ResolverSettings, name: &Name<Vec<u8>>) -> Result<SaidAddresses, String> {
    let mut v6 = pin!(ask_servers(servers, name, Rtype::AAAA, meaning));
    let mut v4 = pin!(ask_servers(servers, name, Rtype::A, meaning));
    let (first, is_v6) = tokio::select! {
        said = &mut v6 => (said, true),
        said = &mut v4 => (said, false),
    };
    let second = async { if is_v6 { v4.await } else { v6.await } };
    let second = match &first {
        Ok(NameReply::Found(found, lifetime)) => match tokio::time::timeout(FAMILY_DELAY, second).await {
            Ok(second) => second,
            Err(_) => return Ok(NameReply::Found(found.clone(), (*lifetime).min(HALF_LIFETIME_MAX))),
        },
        _ => second.await,
    };
    if is_v6 { join(first, second) } else { join(second, first) }
}

/// What the answers for both families say together. Addresses of one family are good although the other's are unknown.
fn join(v6: Result<SaidAddresses, String>, v4: Result<SaidAddresses, String>) -> Result<SaidAddresses, String> {
    use NameReply::{Found, Nothing};
    Ok(match (v6, v4) {
        (Ok(Found(mut v6, one)), Ok(Found(v4, other))) => {
            v6.extend(v4);
            Found(v6, one.min(other))
        }
        (Ok(Found(found, lifetime)), Ok(Nothing(_))) | (Ok(Nothing(_)), Ok(Found(found, lifetime))) => {
            Found(found, lifetime)
        }
        (Ok(Found(found, lifetime)), Err(_)) | (Err(_), Ok(Found(found, lifetime))) => {
            Found(found, lifetime.min(HALF_LIFETIME_MAX))
        }
        (Ok(Nothing(one)), Ok(Nothing(other))) => Nothing(one.min(other)),
        (Err(error), _) | (_, Err(error)) => return Err(error),
    })
}

fn meaning(answer: &Message<Bytes>, kind: Rtype) -> Result<SaidAddresses, QueryRefusal> {
    match kind {
        Rtype::AAAA => records_of(answer, kind, |data: &Aaaa| IpAddr::V6(data.addr())),
        _ => records_of(answer, kind, |data: &A| IpAddr::V4(data.addr())),
    }
}
