//! What a fleet is started with.
//!
//! Owns: [`FleetOptions`]. `configured` makes them of `[fleet]`, the size of the store and the rules of the sites.

use std::path::PathBuf;
use std::time::Duration;

use nectary_host::fleet::{FleetNode, NodeName, RulesHash};

use crate::machine::FleetRules;

/// A fleet, and this node in it.
#[derive(Debug, Clone)]
pub struct FleetOptions {
    /// The name of the fleet.
    pub fleet: String,
    /// The name of this node.
    pub node: NodeName,
    /// Where the other nodes reach it; empty if it shares no keys.
    pub address: String,
    /// Its zone; empty for none.
    pub zone: String,
    /// The size of its store. *Units*: bytes, at least 1.
    pub weight: u64,
    /// The hash of its rules.
    pub rules: RulesHash,
    /// What the configuration says about leases and purges.
    pub limits: FleetRules,
    /// How the nodes are connected.
    pub connection: FleetConnection,
}

/// How the nodes of a fleet are connected.
#[derive(Debug, Clone)]
pub enum FleetConnection {
    /// By etcd.
    Etcd {
        /// Its members.
        endpoints: Vec<EtcdEndpoint>,
        /// TLS with those that use it.
        tls: TlsFiles,
    },
    /// By each other, without etcd. They share no keys.
    Members {
        /// All of them, also this one.
        members: Vec<MemberAddress>,
        /// The file with the purges that this node knows.
        log: PathBuf,
        /// TLS with the others: what this node shows and trusts.
        tls: TlsFiles,
        /// How long a node serves that does not hear from a member; `None` for ever.
        serve_limit: Option<Duration>,
    },
}

/// Where a fixed member is reached, which is its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberAddress {
    /// A name or an address; IPv6 without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl MemberAddress {
    /// The name of the member; `None` if a node cannot have it.
    pub fn name(&self) -> Option<NodeName> {
        let MemberAddress { host, port } = self;
        NodeName::new(&if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
    }
}

/// A member of etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdEndpoint {
    /// A name or an address; IPv6 without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Whether it uses TLS.
    pub has_tls: bool,
}

/// Files of TLS, in PEM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates that are trusted; `None` for the system's.
    pub ca: Option<PathBuf>,
    /// The certificate that this side shows, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl FleetOptions {
    /// This node, with the random number of its process.
    pub fn own_node(&self, run: u64) -> FleetNode {
        FleetNode {
            name: self.node.clone(),
            address: self.address.clone(),
            zone: self.zone.clone(),
            weight: self.weight.max(1),
            rules: self.rules,
            run,
            since: 0,
        }
    }
}
