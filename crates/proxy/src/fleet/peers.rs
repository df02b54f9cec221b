//! What nodes that share keys need of each other: certificates, and the rules of their connections.
//!
//! Owns: [`PeerOptions`] and [`FleetPeers`]. A peer is one whose certificate the fleet's authority has signed: no other is served
//! at the listener for nodes, and no other is asked. Leaves to others: the requests (`service/peers`).

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nectary_host::fleet::{FleetCertificate, FleetNode};
use tokio_rustls::TlsAcceptor;
use xxhash_rust::xxh3::xxh3_64;

use super::certificate_ends::{certificate_of, last_end};
use super::peer_counts::PeerCounts;
use crate::accept::{CertificateFiles, ProxyCertificates, TlsRules};
use crate::error::Error;
use crate::options::{OriginTimes, ProxyLimits};
use crate::rules::key::UrlOrigin;
use crate::upstream::{OriginRules, OriginTrust, TrustFiles};

/// The longest time to connect to another node.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(1);

/// The keys, and the tags, that are remembered as invalidated.
const INVALIDATED_MAX: usize = 1 << 16;

/// How a node of a fleet and the others that share its keys reach each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerOptions {
    /// Where this node listens for the others.
    pub listen: SocketAddr,
    /// The certificate of this node, which it shows as a server and as a client.
    pub certificate: CertificateFiles,
    /// The certificates that have signed those of all nodes, in a file.
    pub ca: PathBuf,
}

/// What the workers share for requests between nodes.
pub(crate) struct FleetPeers {
    certificates: ProxyCertificates,
    ca: PathBuf,
    /// The last end of the authorities in use, in Unix seconds.
    ca_end_s: Mutex<Option<i64>>,
    /// What the nodes have asked each other.
    pub counts: PeerCounts,
    /// The rules of connections to other nodes.
    pub rules: Arc<OriginRules>,
    invalidated: Mutex<InvalidatedKeys>,
    tags: Mutex<InvalidatedTags>,
}

/// The tags that unsafe requests have invalidated at this node, and when: what owners have of them is older. Which keys have
/// a tag is known from their responses alone.
#[derive(Debug, Default)]
struct InvalidatedTags {
    /// The hash of each tag, and the time of its last invalidation in Unix milliseconds.
    times: HashMap<u64, u64>,
    /// The same in order; those that were invalidated again are passed over.
    order: VecDeque<(u64, u64)>,
}

impl InvalidatedTags {
    fn insert(&mut self, tag: u64, at_ms: u64) {
        self.times.insert(tag, at_ms);
        self.order.push_back((tag, at_ms));
        while self.order.len() > INVALIDATED_MAX {
            let Some((oldest, time)) = self.order.pop_front() else { return };
            if self.times.get(&oldest) == Some(&time) {
                self.times.remove(&oldest);
            }
        }
    }
}

/// The keys that unsafe requests have invalidated at this node, and not at their owners: these are to validate what they have.
#[derive(Debug, Default)]
struct InvalidatedKeys {
    /// The hash of each key, and the number of its last invalidation.
    numbers: HashMap<u64, u64>,
    /// The same in order; those that were invalidated again, or validated since, are passed over.
    order: VecDeque<(u64, u64)>,
    last: u64,
}

impl InvalidatedKeys {
    fn insert(&mut self, key: u64) {
        self.last += 1;
        self.numbers.insert(key, self.last);
        self.order.push_back((key, self.last));
        while self.order.len() > INVALIDATED_MAX {
            let Some((oldest, number)) = self.order.pop_front() else { return };
            self.remove(oldest, number);
        }
    }

    fn remove(&mut self, key: u64, number: u64) {
        if self.numbers.get(&key) == Some(&number) {
            self.numbers.remove(&key);
        }
    }
}

impl FleetPeers {
    /// Reads the certificates. *Errors*: [`Error::Certificate`], [`Error::TlsService`], [`Error::ClientCa`], [`Error::OriginCa`].
    pub fn new(options: &PeerOptions, limits: &ProxyLimits) -> Result<FleetPeers, Error> {
        let PeerOptions { certificate, ca, .. } = options;
        let tls = TlsRules { refuses_unknown: false, is_13_only: true, client_ca: Some(ca.clone()) };
        let certificates = ProxyCertificates::new(vec![certificate.clone()], tls, None)?;
        let files = TrustFiles {
            authorities: Some(ca.clone()),
            certificate: Some(certificate.certificate.clone()),
            key: Some(certificate.key.clone()),
            is_exclusive: true,
        };
        let times = OriginTimes::of(limits);
        let times = OriginTimes { connect: times.connect.min(CONNECT_TIME_MAX), ..times };
        let rules = OriginRules { http2: true, ..OriginRules::new(times, Arc::new(OriginTrust::with_files(files)?)) };
        Ok(FleetPeers {
            certificates,
            ca: ca.clone(),
            ca_end_s: Mutex::new(last_end(ca)),
            counts: PeerCounts::default(),
            rules: Arc::new(rules),
            invalidated: Mutex::default(),
            tags: Mutex::default(),
        })
    }

    /// The certificates in use: that of this node, and those that have signed all of them.
    pub fn shown(&self) -> Vec<FleetCertificate> {
        let own = self.certificates.shown();
        let own = own.iter().map(|shown| certificate_of("cert", &shown.path, shown.not_after_s));
        let ca_end_s = *self.ca_end_s.lock().unwrap_or_else(PoisonError::into_inner);
        own.chain(ca_end_s.map(|end_s| certificate_of("ca", &self.ca, end_s))).collect()
    }

    fn invalidated(&self) -> MutexGuard<'_, InvalidatedKeys> {
        self.invalidated.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a key was invalidated at this node. The oldest of very many are forgotten.
    pub fn note_invalidated(&self, key: &[u8]) {
        self.invalidated().insert(xxh3_64(key));
    }

    /// Whether an owner has to validate what it has of a key: the number of the invalidation, for
    /// [`note_fresh`](FleetPeers::note_fresh).
    pub fn invalidation_of(&self, key: &[u8]) -> Option<u64> {
        self.invalidated().numbers.get(&xxh3_64(key)).copied()
    }

    /// Notes that an owner has validated what it has of a key since an invalidation.
    pub fn note_fresh(&self, key: &[u8], invalidation: u64) {
        self.invalidated().remove(xxh3_64(key), invalidation);
    }

    fn tags(&self) -> MutexGuard<'_, InvalidatedTags> {
        self.tags.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a tag was invalidated at this node at a time in Unix milliseconds. The oldest of very many are forgotten.
    pub fn note_invalidated_tag(&self, tag: &[u8], at_ms: u64) {
        self.tags().insert(xxh3_64(tag), at_ms);
    }

    /// Whether tags were invalidated at this node.
    pub fn has_invalidated_tags(&self) -> bool {
        !self.tags().times.is_empty()
    }

    /// Whether a tag was invalidated at this node at a time in Unix milliseconds or later.
    pub fn is_tag_invalidated_since(&self, tag: &[u8], time_ms: u64) -> bool {
        self.tags().times.get(&xxh3_64(tag)).is_some_and(|at_ms| *at_ms >= time_ms)
    }

    /// What does the handshake with another node.
    pub fn acceptor(&self) -> TlsAcceptor {
        self.certificates.acceptor()
    }

    /// Reads the certificates again. *Errors*: as [`new`](FleetPeers::new); then what was read before stays in use.
    pub fn reload(&self) -> Result<(), Error> {
        self.certificates.reload()?;
        self.rules.trust.reload()?;
        *self.ca_end_s.lock().unwrap_or_else(PoisonError::into_inner) = last_end(&self.ca);
        Ok(())
    }
}

impl fmt::Debug for FleetPeers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FleetPeers").finish_non_exhaustive()
    }
}

/// Where a node is reached; `None` if it is nowhere.
pub(crate) fn origin_of(node: &FleetNode) -> Option<UrlOrigin> {
    let (host, port) = node.address.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port != 0)?;
    Some(UrlOrigin { https: true, host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nectary_host::fleet::{NodeName, RulesHash};

    #[test]
    fn invalidated_keys_are_bounded() {
        let mut keys = InvalidatedKeys::default();
        keys.insert(1);
        let first = keys.numbers[&1];
        keys.insert(1);
        keys.remove(1, first);
        assert!(keys.numbers.contains_key(&1), "it was invalidated again since");
        (0..INVALIDATED_MAX as u64).for_each(|key| keys.insert(key + 10));
        assert!(!keys.numbers.contains_key(&1) && keys.numbers.contains_key(&10));
        keys.insert(5);
        assert!(!keys.numbers.contains_key(&10) && keys.order.len() == INVALIDATED_MAX);
        let mut tags = InvalidatedTags::default();
        (0..2).for_each(|at_ms| tags.insert(1, at_ms));
        (0..INVALIDATED_MAX as u64 - 1).for_each(|tag| tags.insert(tag + 10, 5));
        assert!(tags.times.contains_key(&1), "it was invalidated again since");
        tags.insert(5, 5);
        assert!(!tags.times.contains_key(&1) && tags.order.len() == INVALIDATED_MAX);
    }

    #[test]
    fn addresses_of_nodes_are_origins() {
        let of = |address: &str| {
            let name = NodeName::new("a").expect("a name");
            let (zone, rules) = (String::new(), RulesHash(1));
            origin_of(&FleetNode { name, address: address.to_owned(), zone, weight: 1, rules, run: 1, since: 1 })
        };
        let origin = |host: &str, port| Some(UrlOrigin { https: true, host: host.to_owned(), port });
        assert_eq!(of("node-a.internal:7443"), origin("node-a.internal", 7443));
        assert_eq!(of("[2001:db8::1]:1"), origin("[2001:db8::1]", 1));
        assert!(of("").is_none() && of("a:0").is_none() && of("a").is_none());
    }
}
