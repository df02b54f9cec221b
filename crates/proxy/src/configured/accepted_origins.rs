//! The origins of a configuration.

use std::sync::Arc;

use nectary_config::{
    Balance, HostRule, Located, OriginConfig, ProxyConfig, ServerConfig, ServerScheme, ServerUrl, Setting,
};

use super::refused::{NOT_YET, Refused};
use super::value_or;
use crate::options::{Limits, OriginTimes};
use crate::rules::key::Origin;
use crate::upstream::{OriginRules, OriginTrust, Pool, Server, TrustFiles};

/// An origin that the proxy can use.
pub(super) struct AcceptedOrigin {
    pub pool: Arc<Pool>,
    pub host: HostRule,
    pub distrusts_close: bool,
}

/// The origins of a configuration, in its order; `None` for one that is refused.
pub(super) fn origins(config: &ProxyConfig, refused: &mut Refused) -> Vec<Option<AcceptedOrigin>> {
    let limits = super::process_options::limits(&config.limits);
    config.origins.iter().map(|origin| accept(origin, &limits, refused)).collect()
}

fn accept(origin: &Located<OriginConfig>, limits: &Limits, refused: &mut Refused) -> Option<AcceptedOrigin> {
    refused.not_yet_if(&origin.balance, "balance", |balance| *balance != Balance::RoundRobin);
    refused.not_yet(&origin.connections_max, "connections-max");
    refused.not_yet(&origin.queue_max, "queue-max");
    refused.not_yet(&origin.times.queue_time, "queue-time");
    refused.not_yet_if(&origin.times.total_time, "total-time", |time| !time.is_zero());
    refused.not_yet(&origin.check, "check");
    refused.not_yet(&origin.eject, "eject");
    if let (Some(retries), 1) = (&origin.retries, origin.servers.len()) {
        refused.refuse(
            retries.place,
            "retries",
            "there is no other server to which a request is sent again: remove it",
        );
    }
    let tls = &origin.tls;
    let path = |setting: &Setting<std::path::PathBuf>| setting.as_ref().map(|path| path.value.clone());
    let files =
        TrustFiles { authorities: path(&tls.ca), certificate: path(&tls.client_cert), key: path(&tls.client_key) };
    let trust = match OriginTrust::with_files(files) {
        Ok(trust) => Some(Arc::new(trust)),
        Err(error) => {
            let set = [(&tls.ca, "ca"), (&tls.client_cert, "client-cert"), (&tls.client_key, "client-key")];
            let is_at_fault = |(setting, _): &&(&Setting<std::path::PathBuf>, &str)| {
                setting.as_ref().is_some_and(|path| error.to_string().contains(&*path.value.to_string_lossy()))
            };
            let found = set.iter().find(is_at_fault).unwrap_or(&set[0]);
            let place = found.0.as_ref().map_or(origin.place, |path| path.place);
            refused.refuse(place, found.1, error.to_string());
            None
        }
    };
    let servers: Vec<_> = origin.servers.iter().filter_map(|server| server_of(server, refused)).collect();
    if servers.len() < origin.servers.len() {
        return None;
    }
    let times = OriginTimes {
        connect: value_or(&origin.times.connect_time, limits.connect_timeout),
        response: value_or(&origin.times.first_byte, limits.response_timeout),
        silence: value_or(&origin.times.silence, limits.origin_body_timeout),
        idle: value_or(&origin.times.keep_alive, limits.origin_idle_timeout),
        idle_max: origin
            .times
            .idle_max
            .as_ref()
            .map_or(limits.origin_idle_connections_max, |count| count.value as usize),
    };
    let rules = OriginRules {
        times,
        trust: trust?,
        tls_name: tls.tls_name.as_ref().map(|name| name.value.clone()),
        retries: value_or(&origin.retries, 1) as usize,
    };
    Some(AcceptedOrigin {
        pool: Arc::new(Pool::new(origin.name.value.clone(), Arc::new(rules), servers)),
        host: origin.host.as_ref().map_or(HostRule::Own, |host| host.value.clone()),
        distrusts_close: !value_or(&origin.store_close_delimited, true),
    })
}

fn server_of(server: &ServerConfig, refused: &mut Refused) -> Option<Server> {
    let url: &Located<ServerUrl> = &server.url;
    if url.scheme == ServerScheme::H2 {
        refused.refuse(url.place, "servers", format!("HTTP/2 to origins: {NOT_YET}; write https:// instead"));
        return None;
    }
    let host = if url.host.contains(':') { format!("[{}]", url.host) } else { url.host.clone() };
    let origin = Origin { https: url.scheme == ServerScheme::Https, host, port: url.port };
    Some(Server::new(origin, value_or(&server.weight, 1)))
}
