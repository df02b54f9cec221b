//! The parts of a configuration that hold for the whole process.

use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;

use nectary_config::{
    FleetShare, HeaderSender, IpNetwork, LimitConfig, ListenAddress, LocatedValue, LogTarget, ProxyConfig, Setting,
    SocketMode, TlsVersion, UnknownName,
};

use super::refused::{ConfigProblems, ProblemCollector};
use super::{accepted_acme, value_or};
use crate::accept::{CertificateFiles, TlsRules};
use crate::admin::{AdminOptions, AdminToken};
use crate::fleet::PeerOptions;
use crate::listening::unix_socket::{SocketUsers, UnixSocket};
use crate::options::{AccessLog, ClientNet, ForwardedOptions, LogFormat, NetworkLimits, ProxyLimits, ProxyOptions};

/// The options of a proxy that a configuration describes.
///
/// *Errors*: what this version does not act on, with its place; a token that cannot be read.
pub fn options_of(config: &Arc<ProxyConfig>) -> Result<ProxyOptions, ConfigProblems> {
    let mut refused = ProblemCollector::new(&config.source);
    let (listen, redirect, mut unix) = addresses(config, &mut refused);
    unix.extend(admin_sockets(config));
    let forward = config.forward.as_ref();
    let certificates = config.tls.certificates.iter();
    let certificates = certificates
        .map(|files| CertificateFiles { certificate: files.cert.value.clone(), key: files.key.value.clone() })
        .collect();
    let is_tls = config.listeners.iter().any(|listener| value_or(&listener.tls, false));
    let options = ProxyOptions {
        listen,
        unix,
        redirect,
        proxy_protocol_from: proxy_protocol_from(config),
        certificates: if is_tls { certificates } else { Vec::new() },
        acme: accepted_acme::acme(config).filter(|_| is_tls),
        tls: tls_rules(config),
        config: Some(config.clone()),
        workers: config.server.workers.as_ref().map_or(0, |count| usize::from(count.value)),
        access_log: match config.log.access.as_ref().map(|target| &target.value) {
            None | Some(LogTarget::None) => AccessLog::None,
            Some(LogTarget::Stdout) => AccessLog::Stdout,
            Some(LogTarget::File(path)) => AccessLog::File(path.clone()),
        },
        log_format: match config.log.format.as_ref().map(|format| format.value) {
            None | Some(nectary_config::LogFormat::Combined) => LogFormat::Combined,
            Some(nectary_config::LogFormat::Json) => LogFormat::Json,
        },
        clients: forward.map(|forward| nets(&forward.allow)).unwrap_or_default(),
        connect_ports: match forward.and_then(|forward| forward.connect_ports.as_ref()) {
            Some(ports) => ports.iter().map(|port| port.value).collect(),
            None => ProxyOptions::default().connect_ports,
        },
        forwarded: ForwardedOptions {
            trusted: nets(&config.server.trust_forwarded),
            is_silent: !value_or(&config.server.send_forwarded, true),
        },
        admin: admin(config, &mut refused),
        peers: config.fleet.as_ref().and_then(|fleet| fleet.share.as_ref()).map(peers),
        limits: limits(&config.limits),
        ..ProxyOptions::default()
    };
    refused.finish(options)
}

/// The rules of TLS with clients.
pub(crate) fn tls_rules(config: &ProxyConfig) -> TlsRules {
    TlsRules {
        refuses_unknown: value_or(&config.tls.unknown_name, UnknownName::First) == UnknownName::Refuse,
        is_13_only: value_or(&config.tls.version_min, TlsVersion::Tls12) == TlsVersion::Tls13,
        client_ca: config.tls.client_ca.as_ref().map(|path| path.value.clone()),
    }
}

/// The addresses for clients, those at which they are sent to TLS, and the Unix sockets for both.
fn addresses(
    config: &ProxyConfig,
    refused: &mut ProblemCollector,
) -> (Vec<SocketAddr>, Vec<SocketAddr>, Vec<UnixSocket>) {
    let (mut listen, mut redirect, mut unix) = (Vec::new(), Vec::new(), Vec::new());
    let serves =
        |listener: &&LocatedValue<nectary_config::ListenerConfig>| !value_or(&listener.redirect_to_https, false);
    let is_tls = config.listeners.iter().find(serves).is_some_and(|listener| value_or(&listener.tls, false));
    for listener in &config.listeners {
        let is_redirect = value_or(&listener.redirect_to_https, false);
        if !is_redirect && value_or(&listener.tls, false) != is_tls {
            let what = "this version serves sites either with TLS or without it: set `redirect-to-https` at the \
                        listeners without TLS";
            refused.refuse(listener.address.place, "address", what);
        }
        match &listener.address.value {
            ListenAddress::Socket(address) if is_redirect => redirect.push(*address),
            ListenAddress::Socket(address) => listen.push(*address),
            ListenAddress::Unix(path) => {
                let users = if is_redirect { SocketUsers::Redirect } else { SocketUsers::Clients };
                let mut socket = with_mode(UnixSocket::new(path, users), &listener.socket_mode);
                socket.has_proxy_header = !listener.proxy_protocol_from.is_empty();
                unix.push(socket);
            }
        }
    }
    (listen, redirect, unix)
}

/// The Unix sockets for administration.
fn admin_sockets(config: &ProxyConfig) -> impl Iterator<Item = UnixSocket> {
    config.admin.listen.iter().filter_map(|address| match &address.value {
        ListenAddress::Socket(_) => None,
        ListenAddress::Unix(path) => {
            Some(with_mode(UnixSocket::new(path, SocketUsers::Admin), &config.admin.socket_mode))
        }
    })
}

/// The socket with the permissions that the file says, if it says some.
fn with_mode(socket: UnixSocket, mode: &Setting<SocketMode>) -> UnixSocket {
    UnixSocket { mode: mode.as_ref().map_or(socket.mode, |mode| mode.value.0.into()), ..socket }
}

/// The peers that begin with the PROXY protocol, each with the address of its listener.
fn proxy_protocol_from(config: &ProxyConfig) -> Vec<(SocketAddr, ClientNet)> {
    let mut found = Vec::new();
    for listener in &config.listeners {
        if let ListenAddress::Socket(address) = &listener.address.value {
            let networks = listener.proxy_protocol_from.iter().filter_map(|sender| match sender.value {
                HeaderSender::Network(network) => Some(LocatedValue::new(network, sender.place)),
                HeaderSender::Unix => None,
            });
            found.extend(nets(&networks.collect::<Vec<_>>()).into_iter().map(|net| (*address, net)));
        }
    }
    found
}

fn admin(config: &ProxyConfig, refused: &mut ProblemCollector) -> AdminOptions {
    let token = config.admin.token_file.as_ref().and_then(|path| match AdminToken::read(&path.value) {
        Ok(token) => Some(token),
        Err(error) => {
            refused.refuse(path.place, "token-file", error.to_string());
            None
        }
    });
    let options = AdminOptions {
        listen: config
            .admin
            .listen
            .iter()
            .filter_map(|address| match address.value {
                ListenAddress::Socket(address) => Some(address),
                ListenAddress::Unix(_) => None,
            })
            .collect(),
        token,
        relayed: value_or(&config.admin.relayed, false),
        pages: None,
    };
    if config.admin.token_file.is_none()
        && let Err(error) = options.check()
    {
        let place = config.admin.listen.first().map(|address| address.place).unwrap_or_default();
        refused.refuse(place, "listen", error.to_string());
    }
    options
}

/// How the nodes of a fleet that share keys reach this one.
fn peers(share: &FleetShare) -> PeerOptions {
    let every = SocketAddr::from((Ipv6Addr::UNSPECIFIED, share.address.port));
    PeerOptions {
        listen: value_or(&share.listen, every),
        certificate: CertificateFiles { certificate: share.cert.value.clone(), key: share.key.value.clone() },
        ca: share.ca.value.clone(),
    }
}

fn nets(networks: &[LocatedValue<IpNetwork>]) -> Vec<ClientNet> {
    networks.iter().filter_map(|network| network.value.to_string().parse().ok()).collect()
}

/// The limits, with the defaults of the proxy.
pub(super) fn limits(config: &LimitConfig) -> ProxyLimits {
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut limits = ProxyLimits::default();
    macro_rules! set {
        ($($field:ident from $key:ident $with:expr;)*) => {
            $(if let Some(found) = &config.$key { limits.$field = $with(found.value); })*
        };
    }
    let count = |count: u32| count as usize;
    set! {
        connections_max from connections_max count;
        request_head_bytes_max from request_head_bytes_max size;
        response_head_bytes_max from response_head_bytes_max size;
        headers_max from headers_max usize::from;
        url_bytes_max from url_bytes_max size;
        request_body_bytes_max from upload_bytes_max std::convert::identity;
        fills_max from fills_max count;
        range_fill_start_bytes_max from range_start_bytes_max std::convert::identity;
        origin_idle_connections_max from origin_idle_max count;
        head_timeout from head_time std::convert::identity;
        keep_alive_timeout from keep_alive std::convert::identity;
        body_timeout from client_silence std::convert::identity;
        write_timeout from send_silence std::convert::identity;
        connect_timeout from connect_time std::convert::identity;
        response_timeout from first_byte std::convert::identity;
        origin_body_timeout from origin_silence std::convert::identity;
        origin_idle_timeout from origin_keep_alive std::convert::identity;
        tunnel_timeout from tunnel_silence std::convert::identity;
        drain_timeout from drain std::convert::identity;
    }
    limits.by_network = NetworkLimits {
        connections_max: config.client_connections_max.as_ref().map(|max| max.value),
        requests: config.client_requests.as_ref().map(|rate| rate.value),
    };
    limits
}
