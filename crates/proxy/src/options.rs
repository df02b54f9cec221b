//! The settings that a proxy starts with.
//!
//! Owns: the options, the limits and the rules about who may use the proxy. All defaults are finite and safe. Leaves to
//! others: reading the options from arguments and files.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use nectary_config::{ProxyConfig, RequestRate};

use crate::accept::{CertificateFiles, TlsRules};
use crate::acme::AcmeOptions;
use crate::admin::AdminOptions;
use crate::fleet::PeerOptions;
use crate::listening::unix_socket::UnixSocket;
use crate::origin_options::OriginOptions;
use crate::rules::default_ttl::DefaultTtlRule;
use crate::rules::key::UrlOrigin;

/// The number of headers for which hyper needs no allocation.
pub(crate) const HEADERS: usize = 100;

/// How a proxy runs.
#[derive(Debug, Clone)]
pub struct ProxyOptions {
    /// The addresses to listen on; port 0 picks a free port. None are needed if there are [`unix`](Self::unix) sockets for
    /// clients.
    pub listen: Vec<SocketAddr>,
    /// The Unix sockets to listen on, for clients and for administration. Their clients count as this machine, at
    /// 127.0.0.1, unless they are named by the PROXY protocol; limits by network do not count for those without a name.
    pub unix: Vec<UnixSocket>,
    /// The certificates for clients. If there are any, the addresses to listen on are for TLS, with HTTP/1.1 and HTTP/2.
    pub certificates: Vec<CertificateFiles>,
    /// What orders certificates for other names. If it is there, the addresses to listen on are for TLS, too.
    pub acme: Option<AcmeOptions>,
    /// The rules of TLS with clients.
    pub tls: TlsRules,
    /// The sites, routes and origins of a configuration file; `None` for one origin or a forward proxy.
    pub config: Option<Arc<ProxyConfig>>,
    /// Addresses without TLS, at which clients are sent to the same URL with TLS.
    pub redirect: Vec<SocketAddr>,
    /// The peers that begin each connection with the PROXY protocol (version 1 or 2), each with the address of
    /// [`listen`](Self::listen) or [`redirect`](Self::redirect) that it connects to. The client that they name is then
    /// the client for every rule and for the log. From all others such a header is no valid request.
    pub proxy_protocol_from: Vec<(SocketAddr, ClientNet)>,
    /// The origin of a reverse proxy; `None` for a forward proxy.
    pub origin: Option<OriginUrl>,
    /// The number of worker threads; 0 for one per processor.
    pub workers: usize,
    /// Rules that give a lifetime to responses that have no lifetime. The first rule that matches a URL counts; by
    /// default there are no rules.
    pub default_ttl: Vec<DefaultTtlRule>,
    /// The time beyond its lifetime for which a response is served while its origin cannot be reached; zero if it never
    /// is. A response can override this (`stale-if-error`) or forbid it (`must-revalidate`).
    pub stale_unreachable: Duration,
    /// Where requests are logged.
    pub access_log: AccessLog,
    /// The form of the log's lines.
    pub log_format: LogFormat,
    /// The clients that may use a forward proxy, in addition to those with loopback addresses.
    pub clients: Vec<ClientNet>,
    /// A PEM file of certificates that are trusted for origins, in addition to the system's certificates.
    pub origin_ca: Option<PathBuf>,
    /// What the origin is asked for, and what of a request is part of the key.
    pub origin_rules: OriginOptions,
    /// The files that say how names of origins are looked up.
    pub names: NameFiles,
    /// The ports to which `CONNECT` may tunnel.
    pub connect_ports: Vec<u16>,
    /// Whether `Surrogate-Key` and `NameCache-Tag` are removed from responses to clients.
    pub strip_tags: bool,
    /// Whether to ignore `no-cache`, `max-age`, `min-fresh` and `Pragma` in requests. With these a client demands a
    /// fresher response than the origin requires.
    pub ignore_request_cache_control: bool,
    /// Whether responses with `Set-Cookie` are stored in the same way as responses without it.
    pub store_set_cookie: bool,
    /// The peers whose headers about earlier hops are trusted, and whether the proxy adds such headers.
    pub forwarded: ForwardedOptions,
    /// The settings that decide who may purge over HTTP; by default nobody may.
    pub admin: AdminOptions,
    /// How the other nodes of a fleet reach this one; `None` if it shares no keys with them.
    pub peers: Option<PeerOptions>,
    /// Limits on the sizes, counts and times that clients and origins decide.
    pub limits: ProxyLimits,
}

impl Default for ProxyOptions {
    fn default() -> ProxyOptions {
        ProxyOptions {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 8080))],
            unix: Vec::new(),
            certificates: Vec::new(),
            acme: None,
            tls: TlsRules::default(),
            config: None,
            redirect: Vec::new(),
            proxy_protocol_from: Vec::new(),
            origin: None,
            workers: 0,
            default_ttl: Vec::new(),
            stale_unreachable: Duration::from_secs(24 * 3600),
            access_log: AccessLog::None,
            log_format: LogFormat::Combined,
            clients: Vec::new(),
            origin_ca: None,
            origin_rules: OriginOptions::default(),
            names: NameFiles::default(),
            connect_ports: vec![443],
            strip_tags: false,
            ignore_request_cache_control: false,
            store_set_cookie: false,
            forwarded: ForwardedOptions::default(),
            admin: AdminOptions::default(),
            peers: None,
            limits: ProxyLimits::default(),
        }
    }
}

impl ProxyOptions {
    /// The number of worker threads that the proxy starts.
    pub fn worker_count(&self) -> usize {
        match self.workers {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            count => count,
        }
    }

    /// Whether a client may use a forward proxy. `is_local` says whether it is a program on this machine.
    pub fn admits(&self, client: IpAddr, is_local: bool) -> bool {
        is_local || self.clients.iter().any(|net| net.contains(client))
    }
}

/// The treatment of `Forwarded` and `X-Forwarded-*`, the headers about the hops before this proxy.
#[derive(Debug, Clone, Default)]
pub struct ForwardedOptions {
    /// The proxies in front of this one whose headers are trusted. From all other peers, such headers are removed.
    pub trusted: Vec<ClientNet>,
    /// Whether a reverse proxy adds no such headers to its requests to the origin.
    pub is_silent: bool,
}

impl ForwardedOptions {
    /// Whether a peer is trusted. Only listed addresses are trusted; even a loopback address must be listed.
    pub fn trusts(&self, peer: IpAddr) -> bool {
        self.trusted.iter().any(|net| net.contains(peer))
    }
}

/// The files that say how names are looked up. Their changes are followed while the proxy runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameFiles {
    /// Names and their addresses, as in `/etc/hosts`.
    pub hosts: PathBuf,
    /// The servers of names, as in `/etc/resolv.conf`. A server may have a port, as in `nameserver 192.0.2.1:5353`.
    pub resolv_conf: PathBuf,
}

impl Default for NameFiles {
    fn default() -> NameFiles {
        NameFiles { hosts: "/etc/hosts".into(), resolv_conf: "/etc/resolv.conf".into() }
    }
}

/// The destination of access log lines.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum AccessLog {
    /// Lines are not written.
    #[default]
    None,
    /// Lines are appended to a file.
    File(PathBuf),
    /// Lines are written to the standard output.
    Stdout,
}

/// The form of access log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// The combined log format, and what the cache did.
    #[default]
    Combined,
    /// A JSON object a line.
    Json,
}

/// Limits on the sizes, counts and times that clients and origins decide. Sizes are in bytes.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ProxyLimits {
    /// The maximum number of client connections of all workers together. Further connections are answered by `503` and
    /// closed.
    pub connections_max: usize,
    /// The limits of each network of clients.
    pub by_network: NetworkLimits,
    /// The longest head of a request. A longer head is answered by `431`.
    pub request_head_bytes_max: usize,
    /// The maximum number of headers of a request, which is otherwise answered by `431`, and of an origin's response, for
    /// which the client otherwise gets `502`. More than 100 cost an allocation for each message.
    pub headers_max: usize,
    /// The longest URL. A longer URL is answered by `414`.
    pub url_bytes_max: usize,
    /// The longest body of a request. A longer body is answered by `413`, and its connection ends.
    pub request_body_bytes_max: u64,
    /// The longest head of an origin's response. If the head is longer, the client gets `502`.
    pub response_head_bytes_max: usize,
    /// The maximum number of concurrent fetches for the store, per worker. Responses to further requests are passed on
    /// and not stored.
    pub fills_max: usize,
    /// A range that starts beyond this position is fetched alone and not stored; otherwise its client would wait for
    /// all bytes before the range.
    pub range_fill_start_bytes_max: u64,
    /// The longest time from the first to the last byte of a request's head.
    pub head_timeout: Duration,
    /// The longest time between two requests on a client's connection.
    pub keep_alive_timeout: Duration,
    /// The longest time in which no byte of an expected body arrives from a client; zero for no limit.
    pub body_timeout: Duration,
    /// The longest time in which no byte of an expected body arrives from an origin; zero for no limit.
    pub origin_body_timeout: Duration,
    /// The longest time in which the peer accepts no byte of a response or request; zero for no limit.
    pub write_timeout: Duration,
    /// The longest time for connecting to an origin. This time covers the attempts at all addresses of the origin, and
    /// TLS.
    pub connect_timeout: Duration,
    /// The longest time from sending a request to an origin to the end of the response's head. The time in which the
    /// client sends nothing of the request's body does not count.
    pub response_timeout: Duration,
    /// The longest time in which a tunnel carries no byte in either direction; zero for no limit.
    pub tunnel_timeout: Duration,
    /// The time for which an unused connection to an origin is kept.
    pub origin_idle_timeout: Duration,
    /// The maximum number of unused connections that a worker keeps to one origin.
    pub origin_idle_connections_max: usize,
    /// The longest time for which a stopping proxy waits for requests under way.
    pub drain_timeout: Duration,
}

/// The limits of one network of clients, which is an IPv4 address, or the first 64 bits of an IPv6 address. All workers
/// count together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NetworkLimits {
    /// The maximum number of connections at a time, at least 1; `None` for no limit. Further connections are answered
    /// by `429` and closed, with TLS only closed.
    pub connections_max: Option<u32>,
    /// How often requests may come; `None` for no limit. As many as in a period may come at once. Further requests are
    /// answered by `429`.
    pub requests: Option<RequestRate>,
}

impl Default for ProxyLimits {
    fn default() -> ProxyLimits {
        ProxyLimits {
            connections_max: 10_000,
            by_network: NetworkLimits::default(),
            request_head_bytes_max: 32 * 1024,
            headers_max: HEADERS,
            url_bytes_max: 8000,
            request_body_bytes_max: 1 << 30,
            response_head_bytes_max: 32 * 1024,
            fills_max: 1000,
            range_fill_start_bytes_max: 16 << 20,
            head_timeout: Duration::from_secs(20),
            keep_alive_timeout: Duration::from_secs(75),
            body_timeout: Duration::from_secs(60),
            origin_body_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(10),
            response_timeout: Duration::from_secs(60),
            tunnel_timeout: Duration::from_secs(600),
            origin_idle_timeout: Duration::from_secs(30),
            origin_idle_connections_max: 128,
            drain_timeout: Duration::from_secs(30),
        }
    }
}

impl ProxyLimits {
    /// The limits as JSON, under names with their units. Those by network are there if they are set.
    pub fn figures(&self) -> serde_json::Value {
        let seconds = |time: Duration| time.as_secs_f64();
        let mut figures = serde_json::json!({
            "connections_max": self.connections_max,
            "request_head_bytes_max": self.request_head_bytes_max,
            "response_head_bytes_max": self.response_head_bytes_max,
            "headers_max": self.headers_max,
            "url_bytes_max": self.url_bytes_max,
            "upload_bytes_max": self.request_body_bytes_max,
            "fills_max": self.fills_max,
            "range_start_bytes_max": self.range_fill_start_bytes_max,
            "origin_idle_max": self.origin_idle_connections_max,
            "head_seconds": seconds(self.head_timeout),
            "keep_alive_seconds": seconds(self.keep_alive_timeout),
            "client_silence_seconds": seconds(self.body_timeout),
            "send_silence_seconds": seconds(self.write_timeout),
            "connect_seconds": seconds(self.connect_timeout),
            "first_byte_seconds": seconds(self.response_timeout),
            "origin_silence_seconds": seconds(self.origin_body_timeout),
            "origin_keep_alive_seconds": seconds(self.origin_idle_timeout),
            "tunnel_silence_seconds": seconds(self.tunnel_timeout),
            "drain_seconds": seconds(self.drain_timeout),
        });
        if let Some(max) = self.by_network.connections_max {
            figures["client_connections_max"] = max.into();
        }
        if let Some(rate) = self.by_network.requests {
            figures["client_requests"] = rate.to_string().into();
        }
        figures
    }
}

/// The times and counts of the connections to an origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OriginTimes {
    /// For connecting, at all addresses of a server and with TLS.
    pub connect: Duration,
    /// From the request to the end of the response's head.
    pub response: Duration,
    /// In which no byte of an expected body arrives; zero for no limit.
    pub silence: Duration,
    /// For a whole response; `None` for no limit.
    pub total: Option<Duration>,
    /// For which an unused connection is kept.
    pub idle: Duration,
    /// The unused connections that a worker keeps to a server.
    pub idle_max: usize,
}

impl OriginTimes {
    /// The times that the proxy's limits say.
    pub fn of(limits: &ProxyLimits) -> OriginTimes {
        OriginTimes {
            connect: limits.connect_timeout,
            response: limits.response_timeout,
            silence: limits.origin_body_timeout,
            total: None,
            idle: limits.origin_idle_timeout,
            idle_max: limits.origin_idle_connections_max,
        }
    }
}

/// The URL of a reverse proxy's origin: scheme, host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OriginUrl(pub(crate) UrlOrigin);

impl OriginUrl {
    /// The host, without the brackets of an IPv6 address, and the port.
    pub fn host_and_port(&self) -> (&str, u16) {
        (self.0.bare_host(), self.0.port)
    }
}

impl FromStr for OriginUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<OriginUrl, String> {
        let uri: Uri = text.parse().map_err(|error| format!("`{text}` is no URL: {error}"))?;
        if uri.path_and_query().is_some_and(|path| path.as_str() != "/") {
            return Err(format!(
                "`{text}` has a path: an origin is scheme, host and port, as `https://example.org:8443`"
            ));
        }
        UrlOrigin::of(&uri).map(OriginUrl).ok_or_else(|| {
            format!("`{text}` is no origin: write one as `http://example.org` or `https://example.org:8443`")
        })
    }
}

impl std::fmt::Display for OriginUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}", self.0.scheme(), self.0.authority())
    }
}

/// The address of one client, or a network of clients, for example `192.0.2.0/24`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientNet {
    address: IpAddr,
    prefix_bits: u8,
}

impl ClientNet {
    /// The address of the network.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The bits that all addresses of the network share.
    pub fn prefix_bits(&self) -> u8 {
        self.prefix_bits
    }

    /// Whether the network contains an address.
    pub fn contains(&self, client: IpAddr) -> bool {
        match (self.address, client.to_canonical()) {
            (IpAddr::V4(net), IpAddr::V4(client)) => {
                let shift = 32 - u32::from(self.prefix_bits);
                shift == 32 || u32::from(net) >> shift == u32::from(client) >> shift
            }
            (IpAddr::V6(net), IpAddr::V6(client)) => {
                let shift = 128 - u32::from(self.prefix_bits);
                shift == 128 || u128::from(net) >> shift == u128::from(client) >> shift
            }
            _ => false,
        }
    }
}

impl FromStr for ClientNet {
    type Err = String;

    fn from_str(text: &str) -> Result<ClientNet, String> {
        let wrong = || {
            format!("`{text}` is no address or network: write one as `192.0.2.7`, `192.0.2.0/24` or `2001:db8::/32`")
        };
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        let prefix_bits = match bits {
            Some(bits) => bits.parse().ok().filter(|&bits: &u8| bits <= bits_max).ok_or_else(wrong)?,
            None => bits_max,
        };
        Ok(ClientNet { address, prefix_bits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::is_loopback;

    /// Only loopback and listed clients are admitted.
    #[test]
    fn unlisted_clients_are_not_admitted() {
        let options = ProxyOptions {
            clients: ["192.0.2.0/24", "2001:db8::/32", "198.51.100.7"].map(|net| net.parse().expect("a net")).to_vec(),
            ..ProxyOptions::default()
        };
        let table = [
            ("127.0.0.1", true),
            ("127.8.8.8", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("192.0.2.200", true),
            ("::ffff:192.0.2.200", true),
            ("192.0.3.1", false),
            ("198.51.100.7", true),
            ("198.51.100.8", false),
            ("2001:db8:1::1", true),
            ("2001:db9::1", false),
        ];
        for (client, expected) in table {
            let address: IpAddr = client.parse().expect("an address");
            assert_eq!(options.admits(address, is_loopback(address)), expected, "{client}");
        }
        // A load balancer's own loopback address is not this machine's.
        assert!(!options.admits("127.0.0.1".parse().expect("an address"), false));
        let everyone: ClientNet = "0.0.0.0/0".parse().expect("a net");
        assert!(everyone.contains("8.8.8.8".parse().expect("an address")));
        for text in ["", "a", "1.2.3.4/33", "::/129", "1.2.3.4/x", "1.2.3"] {
            assert!(text.parse::<ClientNet>().expect_err(text).contains("write one as"));
        }
    }

    #[test]
    fn origin_is_scheme_host_and_port() {
        for (text, shown) in [
            ("http://a", "http://a"),
            ("HTTPS://A:443/", "https://a"),
            ("https://a:8443", "https://a:8443"),
            ("http://[::1]:81/", "http://[::1]:81"),
        ] {
            assert_eq!(text.parse::<OriginUrl>().expect(text).to_string(), shown);
        }
        for text in ["", "a", "ftp://a", "http://a/path", "http://u@a", "http://a:0"] {
            assert!(text.parse::<OriginUrl>().is_err(), "{text}");
        }
    }
}
