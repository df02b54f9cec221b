//! Several proxies as one cache.
//!
//! Owns: the values of `[fleet]`.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::limits::RequestRate;
use super::server_url::ServerUrl;
use crate::place::{LocatedValue, Setting};

/// `[fleet]`: several proxies as one cache. In a configuration that was read,
/// either [`etcd`](FleetConfig::etcd) or [`members`](FleetConfig::members) has elements.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FleetConfig {
    /// `name`: the name of the fleet. Default: `nectary`.
    pub name: Setting<String>,
    /// `node`: the name of this node; with `members` its address.
    pub node: LocatedValue<String>,
    /// `zone`: where this node is. Default: none.
    pub zone: Setting<String>,
    /// How the nodes share keys. Default: they do not.
    pub share: Option<FleetShare>,
    /// `members`: the addresses of all nodes, which then need no etcd, and share no keys.
    pub members: Vec<LocatedValue<PeerAddress>>,
    /// `etcd`: the members of etcd.
    pub etcd: Vec<LocatedValue<ServerUrl>>,
    /// `etcd-ca`, `etcd-cert` and `etcd-key`: TLS with etcd.
    pub etcd_tls: EtcdTls,
    /// `lease`: how long a node that is cut off still counts as living. Default: 10 s.
    pub lease: Setting<Duration>,
    /// `serve-when-cut`: how long a node that is cut off serves from its store. Default: 60 s.
    pub serve_when_cut: Setting<Duration>,
    /// `validate-when-cut`: requests to origins in a period when it no longer does. Default: 100 a second.
    pub validate_when_cut: Setting<RequestRate>,
    /// The keys that begin with `purge-`.
    pub purges: FleetPurges,
}

/// How a node shares keys with the others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FleetShare {
    /// `address`: where the other nodes reach this one.
    pub address: LocatedValue<PeerAddress>,
    /// `listen`: where this node listens for the others. Default: every address, with the port of `address`.
    pub listen: Setting<SocketAddr>,
    /// `cert`: the certificate of this node.
    pub cert: LocatedValue<PathBuf>,
    /// `key`: its private key.
    pub key: LocatedValue<PathBuf>,
    /// `ca`: the certificates that have signed those of all nodes.
    pub ca: LocatedValue<PathBuf>,
}

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct PeerAddress {
    /// A name in lower case or an address; IPv6 without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// TLS with etcd.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EtcdTls {
    /// `etcd-ca`: the certificates that may sign those of etcd. Default: those of the system.
    pub ca: Setting<PathBuf>,
    /// `etcd-cert`: the certificate that is shown to etcd. Default: none.
    pub cert: Setting<PathBuf>,
    /// `etcd-key`: its private key.
    pub key: Setting<PathBuf>,
}

/// What becomes of purges in a fleet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FleetPurges {
    /// `purge-when-cut`: what becomes of a purge while etcd is away. Default: [`PurgeWhenCut::Fail`].
    pub when_cut: Setting<PurgeWhenCut>,
    /// `purge-queue-max`: purges that wait for etcd. Default: 1,000.
    pub queue_max: Setting<u32>,
    /// `purge-answer`: when a purge is answered. Default: [`PurgeAnswer::Applied`].
    pub answer: Setting<PurgeAnswer>,
    /// `purge-time`: how long a purge waits until it is applied. Default: 20 s.
    pub time: Setting<Duration>,
    /// `purge-rate`: purges that this node accepts in a period. Default: 1,000 a second.
    pub rate: Setting<RequestRate>,
    /// `purge-log-size`: the size of the log. *Units*: bytes. Default: 64 MiB.
    pub log_bytes_max: Setting<u64>,
    /// `purge-log`: the file of the log, with `members`.
    pub log: Setting<PathBuf>,
    /// `purge-log-age`: how long purges stay in the log. Default: a day.
    pub log_age: Setting<Duration>,
}

/// What becomes of a purge while etcd is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PurgeWhenCut {
    /// `"fail"`: it is an error.
    Fail,
    /// `"queue"`: it waits in memory, and is made on this node at once.
    Queue,
}

/// When a purge is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PurgeAnswer {
    /// `"applied"`: when every living node has applied it.
    Applied,
    /// `"accepted"`: when it is in the log.
    Accepted,
}
