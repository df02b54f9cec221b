//! The parts of a configuration that hold for the whole process.

use std::net::SocketAddr;
use std::sync::Arc;

use nectary_config::{LimitConfig, ListenAddress, Located, LogTarget, Network, ProxyConfig, TlsVersion, UnknownName};

use super::refused::{ConfigProblems, NOT_YET, Refused};
use super::{accepted_acme, value_or};
use crate::accept::{CertificateFiles, TlsRules};
use crate::admin::{AdminOptions, AdminToken};
use crate::options::{AccessLog, ClientNet, ForwardedOptions, Limits, LogFormat, NetworkLimits, ProxyOptions};

/// The options of a proxy that a configuration describes.
///
/// *Errors*: what this version does not act on, with its place; a token that cannot be read.
pub fn options_of(config: &Arc<ProxyConfig>) -> Result<ProxyOptions, ConfigProblems> {
    let mut refused = Refused::new(&config.source);
    let (listen, redirect) = addresses(config, &mut refused);
    let forward = config.forward.as_ref();
    let certificates = config.tls.certificates.iter();
    let certificates = certificates
        .map(|files| CertificateFiles { certificate: files.cert.value.clone(), key: files.key.value.clone() })
        .collect();
    let is_tls = config.listeners.iter().any(|listener| value_or(&listener.tls, false));
    let options = ProxyOptions {
        listen,
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

/// The addresses for clients, and those at which they are sent to TLS.
fn addresses(config: &ProxyConfig, refused: &mut Refused) -> (Vec<SocketAddr>, Vec<SocketAddr>) {
    let (mut listen, mut redirect) = (Vec::new(), Vec::new());
    let serves = |listener: &&Located<nectary_config::ListenerConfig>| !value_or(&listener.redirect_to_https, false);
    let is_tls = config.listeners.iter().find(serves).is_some_and(|listener| value_or(&listener.tls, false));
    for listener in &config.listeners {
        let ListenAddress::Socket(address) = &listener.address.value else {
            refused.refuse(listener.address.place, "address", format!("Unix sockets: {NOT_YET}"));
            continue;
        };
        if value_or(&listener.redirect_to_https, false) {
            redirect.push(*address);
            continue;
        }
        if value_or(&listener.tls, false) != is_tls {
            let what = "this version serves sites either with TLS or without it: set `redirect-to-https` at the \
                        listeners without TLS";
            refused.refuse(listener.address.place, "address", what);
        }
        listen.push(*address);
    }
    (listen, redirect)
}

/// The peers that begin with the PROXY protocol, each with the address of its listener.
fn proxy_protocol_from(config: &ProxyConfig) -> Vec<(SocketAddr, ClientNet)> {
    let mut found = Vec::new();
    for listener in &config.listeners {
        if let ListenAddress::Socket(address) = &listener.address.value {
            found.extend(nets(&listener.proxy_protocol_from).into_iter().map(|net| (*address, net)));
        }
    }
    found
}

fn admin(config: &ProxyConfig, refused: &mut Refused) -> AdminOptions {
    let token = config.admin.token_file.as_ref().and_then(|path| match AdminToken::read(&path.value) {
        Ok(token) => Some(token),
        Err(error) => {
            refused.refuse(path.place, "token-file", error.to_string());
            None
        }
    });
    let options = AdminOptions {
        listen: config.admin.listen.iter().map(|address| address.value).collect(),
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

fn nets(networks: &[Located<Network>]) -> Vec<ClientNet> {
    networks.iter().filter_map(|network| network.value.to_string().parse().ok()).collect()
}

/// The limits, with the defaults of the proxy.
pub(super) fn limits(config: &LimitConfig) -> Limits {
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut limits = Limits::default();
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
