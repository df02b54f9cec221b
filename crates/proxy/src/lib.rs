//! A caching HTTP proxy over a store: HTTP/1.1 and HTTP/2, with and without TLS.
//!
//! Owns: the rules of HTTP caching (pure functions in [`rules`]), the format of a stored response (`stored`), the
//! server, the client of origins, tunnels, purges, the access log, and certificates that are ordered (`acme`).
//!
//! Promises: a partial response is never stored or passed on as a complete one; message framing that could be read in
//! two ways is refused from clients and from origins; every queue, wait, head and memory has a limit; a hit in memory
//! copies no body and waits for nothing.
//!
//! Leaves to others: keeping objects and collapsing fetches (`nectary-store`), arguments and signals (`nectary`).
//!
//! A caller opens a store, starts a [`Proxy`] with [`ProxyOptions`], requests the [`Shutdown`](nectary_host::Shutdown)
//! to end it, waits until it has ended, and closes the store.
#![forbid(unsafe_code)]

mod accept;
mod access_log;
mod acme;
mod admin;
mod body;
mod client_limits;
mod configured;
mod connections;
mod error;
mod fleet;
#[doc(hidden)]
pub mod fuzzing;
mod hit_for_miss;
mod listening;
mod options;
mod origin_options;
mod pieces;
mod purge_request;
mod reload;
mod rendered_values;
mod room;
pub mod rules;
mod server;
mod service;
mod sites;
mod stats;
mod stored;
mod successor;
mod upstream;
mod wire;
mod worker;

pub use accept::{CertificateFiles, ShownCertificate, TlsRules};
pub use acme::{AcmeFailure, AcmeName, AcmeOptions, LETS_ENCRYPT, RetryRule, check_state as check_acme_state};
pub use admin::{AdminAnswer, AdminOptions, AdminPage, AdminPages, AdminToken, TOKEN_BYTES_MAX, TOKEN_BYTES_MIN};
pub use configured::{ConfigProblems, check as check_config, options_of, unchanged_parts};
pub use error::Error;
pub use fleet::{FleetSeat, FleetStore, PeerOptions, outcome_json, outcome_text, rules_of};
pub use listening::unix_socket::{SOCKET_PATH_BYTES_MAX, SocketFault, SocketUsers, UnixSocket};
pub use options::{
    AccessLog, ClientNet, ForwardedOptions, LogFormat, NameFiles, NetworkLimits, OriginUrl, ProxyLimits, ProxyOptions,
};
pub use origin_options::OriginOptions;
pub use purge_request::{PurgeRequest, PurgeSubject};
pub use reload::ProxyReopener;
pub use room::ConnectionLimits;
pub use rules::default_ttl::{DefaultTtlRule, parse_duration};
pub use rules::key_headers::{KEY_HEADERS_MAX, KeyHeader};
pub use rules::origin::host_sent::OriginHost;
pub use server::{BoundProxy, Proxy, run};
pub use sites::unused_lifetimes;
pub use stats::{LATENCY_BOUNDS_US, OutcomeLatency, ProxyStats, StatsReader, TopTraffic, TrafficRow};
pub use stored::by_hand;
pub use successor::PurgeElsewhere;
pub use upstream::{OriginDown, ServerFigures, ServiceFigures, count_service_servers};
