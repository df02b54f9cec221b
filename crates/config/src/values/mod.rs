//! The values of a configuration.
//!
//! Owns: the types, one for each table of the file. Promises: a configuration that was read is consistent: every route
//! has an origin of the file or a redirect, names and paths are unique, and every value is within its bounds. A key that
//! is absent is `None` or empty; its default is in the documentation of its field, and is applied by the proxy.

mod acme_config;
mod admin;
mod fleet_config;
mod header_edits;
mod limits;
mod listener;
mod network;
mod origin;
mod route;
mod server_url;
mod site;
mod store;

pub use acme_config::{AcmeChallenge, AcmeConfig};
pub use admin::{AdminConfig, LogConfig, LogFormat, LogTarget};
pub use fleet_config::{EtcdTls, FleetConfig, FleetPurges, FleetShare, PeerAddress, PurgeAnswer, PurgeWhenCut};
pub use header_edits::{HeaderEdits, HeaderValue};
pub use limits::{LimitConfig, RequestRate};
pub use listener::{
    CertificateConfig, HeaderSender, ListenAddress, ListenerConfig, SocketMode, TlsConfig, TlsVersion, UnknownName,
};
pub use network::{AccessRules, IpNetwork};
pub use origin::{
    EjectRules, HealthCheck, HostRule, LoadBalancing, OriginConfig, OriginTimes, OriginTls, ServerConfig, SrvName,
};
pub use route::{
    KeyRules, LifetimeRules, NameFilter, NamePattern, RedirectConfig, RouteAction, RouteConfig, RoutePath,
};
pub use server_url::{ServerScheme, ServerUrl};
pub use site::{SiteConfig, SiteName};
pub use store::{AdmitRule, ClusterRead, StoreConfig, StoreIoEngine, WriteBudget};

use crate::place::{LocatedValue, Setting};
use crate::source::ConfigSource;

/// The whole configuration of a proxy.
///
/// Two configurations are equal if they mean the same: places and [`source`](ProxyConfig::source) do not count.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProxyConfig {
    /// The file that it was read from, so that later checks can show the line of a [`SourcePosition`](crate::SourcePosition).
    pub source: ConfigSource,
    /// `[server]`: what belongs to the whole process.
    pub server: ProcessConfig,
    /// `[[listener]]`: where clients connect; at least one.
    pub listeners: Vec<LocatedValue<ListenerConfig>>,
    /// `[store]`: the store of responses.
    pub store: StoreConfig,
    /// `[admin]`: who may administer the proxy over HTTP; by default nobody may.
    pub admin: AdminConfig,
    /// `[log]`: the access log; by default there is none.
    pub log: LogConfig,
    /// `[tls]`: the certificates for clients.
    pub tls: TlsConfig,
    /// `[limits]`: sizes, counts and times that clients and origins could otherwise choose.
    pub limits: LimitConfig,
    /// `[fleet]`: several proxies as one cache; `None` if this one is alone.
    pub fleet: Setting<FleetConfig>,
    /// `[forward-proxy]`: the rules for requests to hosts that are no site's; `None` if such requests are refused.
    pub forward: Setting<ForwardConfig>,
    /// `[origins.NAME]`: the origins, in the order of the file; their names are unique.
    pub origins: Vec<LocatedValue<OriginConfig>>,
    /// `[[site]]`: the sites, in the order of the file. There is at least one, or [`forward`](ProxyConfig::forward).
    pub sites: Vec<LocatedValue<SiteConfig>>,
}

impl ProxyConfig {
    /// The origin of this name. Every [`RouteAction::Origin`] of a configuration that was read has one.
    pub fn origin(&self, name: &str) -> Option<&LocatedValue<OriginConfig>> {
        self.origins.iter().find(|origin| origin.name.value == name)
    }
}

/// `[server]`: what belongs to the whole process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProcessConfig {
    /// `workers`: the threads that serve, each with its own connections: 1 to 1,024. Default: one for each processor.
    pub workers: Setting<u16>,
    /// `trust-forwarded`: the proxies in front of this one whose `X-Forwarded-For`, `X-Real-IP` and, if a route names
    /// them in `key-headers`, other `X-Forwarded-*` are passed on. Default: none; from others they are removed.
    pub trust_forwarded: Vec<LocatedValue<IpNetwork>>,
    /// `send-forwarded`: whether origins are told who asked, in `Forwarded`, `X-Forwarded-For` and `X-Forwarded-Proto`.
    /// Default: true.
    pub send_forwarded: Setting<bool>,
}

/// `[forward-proxy]`: requests with an absolute URL whose host is no site's name, and `CONNECT`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ForwardConfig {
    /// `allow`: the clients that may use it, beside those with loopback addresses. Default: none.
    pub allow: Vec<LocatedValue<IpNetwork>>,
    /// `connect-ports`: the ports to which `CONNECT` may tunnel; an empty list for no tunnels. Default: 443.
    pub connect_ports: Option<Vec<LocatedValue<u16>>>,
    /// The rules `default-ttl`, `stale-unreachable` and the like, as those of a route.
    pub rules: RouteRules,
}

/// The rules of caching that a route and the forward proxy share.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RouteRules {
    /// What of a request is part of the key.
    pub key: KeyRules,
    /// How long responses are served.
    pub lifetimes: LifetimeRules,
    /// `pass`: whether every request goes to the origin, and no response is stored. Default: false.
    pub pass: Setting<bool>,
    /// `part-size`: the size of the parts in which bodies are fetched and stored, 64K to 64M. *Units*: bytes. Default:
    /// none, so bodies are fetched and stored as a whole.
    pub part_size: Setting<u64>,
    /// `ignore-request-cache-control`: whether `no-cache`, `max-age`, `min-fresh` and `Pragma` of requests are ignored.
    /// Default: false.
    pub ignore_request_cache_control: Setting<bool>,
    /// `store-set-cookie`: whether responses with `Set-Cookie` are stored as if they had none. Default: false.
    pub store_set_cookie: Setting<bool>,
    /// `strip-tags`: whether `Surrogate-ConfigKey` and `Cache-Tag` of responses are kept from clients. Default: false.
    pub strip_tags: Setting<bool>,
    /// `tags`: tags of every response that is stored, in addition to those that it names. By a tag it can be purged.
    /// Each has 1 to 256 visible ASCII characters without comma. Default: none.
    pub tags: Vec<LocatedValue<String>>,
}
