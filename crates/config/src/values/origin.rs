//! Origins: the servers that responses are fetched from.
//!
//! Owns: the values of `[origins.NAME]`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::server_url::ServerUrl;
use crate::place::{LocatedValue, Setting};

/// `[origins.NAME]`: servers that give the same responses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OriginConfig {
    /// The name, by which routes refer to it: letters, digits, `-`, `_` and `.`, at most 64.
    pub name: LocatedValue<String>,
    /// `servers`: the servers, in the order of the file; at least one has a weight above 0. Required without
    /// [`srv`](Self::srv); with it, they are asked when all others are out.
    pub servers: Vec<LocatedValue<ServerConfig>>,
    /// `srv`: the name of the SRV records that name the servers. Default: none.
    pub srv: Setting<SrvName>,
    /// `srv-tls`: whether those servers have TLS. Default: false.
    pub srv_tls: Setting<bool>,
    /// `host`: the `Host` that the servers get. Default: [`HostRule::Own`].
    pub host: Setting<HostRule>,
    /// `balance`: which server a request goes to. Default: [`LoadBalancing::RoundRobin`].
    pub balance: Setting<LoadBalancing>,
    /// `store-close-delimited`: whether bodies that end with the connection are stored. Default: true; false is for
    /// servers that break off and close cleanly.
    pub store_close_delimited: Setting<bool>,
    /// `http2`: whether requests share connections of HTTP/2: with `https` servers that offer it, and with all
    /// others. Default: false.
    pub http2: Setting<bool>,
    /// Times, and how many connections are kept.
    pub times: OriginTimes,
    /// TLS with `https` servers.
    pub tls: OriginTls,
    /// `connections-max`: connections to each server at a time, of all workers together. Default: no limit.
    pub connections_max: Setting<u32>,
    /// `queue-max`: requests that wait for a connection, if there is a limit on connections; others get 503.
    /// Default: 100.
    pub queue_max: Setting<u32>,
    /// `retries`: how often a request is sent again, to another server if there is one. Only requests of which nothing
    /// was answered, and whose method is safe to repeat, are sent again. Default: 1.
    pub retries: Setting<u32>,
    /// `check`: requests that ask whether a server works. Default: none.
    pub check: Setting<HealthCheck>,
    /// `eject`: when a server that fails gets no more requests. Default: see [`EjectRules`].
    pub eject: Setting<EjectRules>,
}

/// The name of SRV records: a name in lower case, in which labels that begin with `_` may come first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SrvName(String);

impl SrvName {
    /// Makes a name; `None` if nothing is left of it without the labels that begin with `_`.
    pub fn new(name: String) -> Option<SrvName> {
        let srv = SrvName(name);
        (!srv.domain().is_empty()).then_some(srv)
    }

    /// The domain of the service: the name without the labels before it that begin with `_`.
    pub fn domain(&self) -> &str {
        let mut rest = self.0.as_str();
        while rest.starts_with('_') {
            rest = rest.split_once('.').map_or("", |(_, rest)| rest);
        }
        rest
    }
}

impl fmt::Display for SrvName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One server of an origin: a URL, or `{ url = "…", weight = N }`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// `url`: scheme, host and port.
    pub url: LocatedValue<ServerUrl>,
    /// `weight`: its share of the requests, relative to the other servers' weights: 0 to 1,000; 0 gets none.
    /// Default: 1.
    pub weight: Setting<u16>,
}

/// The `Host` that servers get. It is also in the keys, where it depends on the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostRule {
    /// `"own"`: host and port of the server's URL.
    Own,
    /// `"site"`: the first name of the site. For a default site without names it is the client's, which is in the key;
    /// for a wildcard the client's, which is in the key, too.
    Site,
    /// `"client"`: the one that the client names, which is then in the key.
    Client,
    /// This host, in lower case, with a port if one is given: `www.example.org` or `www.example.org:8080`.
    Fixed(String),
}

/// Which server a request goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadBalancing {
    /// `"round-robin"`: one after another, by weight.
    RoundRobin,
    /// `"least-outstanding"`: the one with the fewest requests under way, relative to its weight.
    LeastOutstanding,
    /// `"hash"`: the same server for the same key, by a consistent hash.
    Hash,
}

/// Times of an origin. Each has the default of `[limits]`, whose name is given.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OriginTimes {
    /// `connect-time`: for connecting, at all addresses and with TLS; not 0. Default: `connect-time` of `[limits]`.
    pub connect_time: Setting<Duration>,
    /// `first-byte`: from the request to the end of the response's head; not 0. Default: `first-byte` of `[limits]`.
    pub first_byte: Setting<Duration>,
    /// `silence`: how long it may send nothing of a body; 0 for any time. Default: `origin-silence` of `[limits]`.
    pub silence: Setting<Duration>,
    /// `total-time`: for a whole response; 0 for any time. Default: 0.
    pub total_time: Setting<Duration>,
    /// `keep-alive`: how long an unused connection is kept; not 0. Default: `origin-keep-alive` of `[limits]`.
    pub keep_alive: Setting<Duration>,
    /// `idle-max`: unused connections that each worker keeps. Default: `origin-idle-max` of `[limits]`.
    pub idle_max: Setting<u32>,
    /// `queue-time`: how long a request may wait for a connection, if there is a limit on connections; not 0.
    /// Default: 5 s.
    pub queue_time: Setting<Duration>,
}

/// TLS with the servers of an origin. The files are not read here.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OriginTls {
    /// `ca`: a PEM file with certificates that may sign the servers', in addition to the system's. Default: none.
    pub ca: Setting<PathBuf>,
    /// `tls-name`: the name that the servers' certificates must have. Default: the host of each URL.
    pub tls_name: Setting<String>,
    /// `client-cert`: a PEM file with the certificate that is shown to servers; with [`client_key`](Self::client_key).
    /// Default: none.
    pub client_cert: Setting<PathBuf>,
    /// `client-key`: a PEM file with its private key.
    pub client_key: Setting<PathBuf>,
}

/// `check`: requests that ask whether a server works.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HealthCheck {
    /// `path`: path and query of the `GET` request. Required.
    pub path: LocatedValue<String>,
    /// `interval`: from one request to the next; not 0. Default: 10 s.
    pub interval: Setting<Duration>,
    /// `time`: how long a response may take; not 0. Default: 5 s.
    pub time: Setting<Duration>,
    /// `status`: the statuses that say that it works: 100 to 599. Default: 200 to 299.
    pub status: Vec<LocatedValue<u16>>,
}

/// `eject`: when a server that fails gets no more requests, until a copy of one shows that it works. If all servers of an
/// origin fail, all are asked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EjectRules {
    /// `failures`: how many requests, or checks, in a row must fail; at least 1. Default: 3.
    pub failures: Setting<u32>,
    /// `time`: from one such copy to the next; not 0. Default: 1 s.
    pub time: Setting<Duration>,
}
