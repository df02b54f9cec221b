//! The origins of a configuration.

use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;
use nectary_config::{
    HostRule, LoadBalancing, LocatedValue, OriginConfig, ProxyConfig, ServerConfig, ServerScheme, ServerUrl, Setting,
};

use super::refused::ProblemCollector;
use super::value_or;
use crate::options::{OriginTimes, ProxyLimits};
use crate::rules::key::UrlOrigin;
use crate::upstream::{
    EjectRule, LimitRule, OriginRules, OriginServer, OriginTrust, ServerCheck, ServerPool, ServiceRule, TrustFiles,
};

/// Requests that wait for a connection to a server, and for how long, if the file does not say.
const QUEUE_MAX: u32 = 100;
const QUEUE_TIME: Duration = Duration::from_secs(5);

/// The time between two checks of a server, and that of an answer, if the file does not say.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
const CHECK_TIME: Duration = Duration::from_secs(5);

/// An origin that the proxy can use.
pub(super) struct AcceptedOrigin {
    pub pool: Arc<ServerPool>,
    pub host: HostRule,
    pub distrusts_close: bool,
}

/// The origins of a configuration, in its order; `None` for one that is refused.
pub(super) fn origins(config: &ProxyConfig, refused: &mut ProblemCollector) -> Vec<Option<AcceptedOrigin>> {
    let limits = super::process_options::limits(&config.limits);
    config.origins.iter().map(|origin| accept(origin, &limits, refused)).collect()
}

fn accept(
    origin: &LocatedValue<OriginConfig>,
    limits: &ProxyLimits,
    refused: &mut ProblemCollector,
) -> Option<AcceptedOrigin> {
    if let (Some(retries), 1, None) = (&origin.retries, origin.servers.len(), &origin.srv) {
        refused.refuse(
            retries.place,
            "retries",
            "there is no other server to which a request is sent again: remove it",
        );
    }
    let tls = &origin.tls;
    let path = |setting: &Setting<std::path::PathBuf>| setting.as_ref().map(|path| path.value.clone());
    let (authorities, certificate, key) = (path(&tls.ca), path(&tls.client_cert), path(&tls.client_key));
    let files = TrustFiles { authorities, certificate, key, is_exclusive: false };
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
    let times = OriginTimes {
        connect: value_or(&origin.times.connect_time, limits.connect_timeout),
        response: value_or(&origin.times.first_byte, limits.response_timeout),
        silence: value_or(&origin.times.silence, limits.origin_body_timeout),
        total: origin.times.total_time.as_ref().map(|total| total.value).filter(|total| !total.is_zero()),
        idle: value_or(&origin.times.keep_alive, limits.origin_idle_timeout),
        idle_max: origin
            .times
            .idle_max
            .as_ref()
            .map_or(limits.origin_idle_connections_max, |count| count.value as usize),
    };
    let limit = limit_rule(origin);
    let service = service_of(origin, limit);
    // Who can change an answer about names could name any server.
    let domain = service.as_ref().map(|service| service.named.host.clone());
    let rules = OriginRules {
        times,
        trust: trust?,
        tls_name: tls.tls_name.as_ref().map(|name| name.value.clone()).or(domain),
        http2: value_or(&origin.http2, false),
        retries: value_or(&origin.retries, 1) as usize,
        balance: value_or(&origin.balance, LoadBalancing::RoundRobin),
        eject: eject_rule(origin),
        check: check_of(origin, refused),
    };
    let servers: Vec<_> = origin.servers.iter().map(|server| server_of(server).limited(limit)).collect();
    let (name, rules) = (origin.name.value.clone(), Arc::new(rules));
    let pool = match service {
        Some(service) => ServerPool::of_service(name, rules, service, servers),
        None => ServerPool::new(name, rules, servers),
    };
    Some(AcceptedOrigin {
        pool: Arc::new(pool),
        host: origin.host.as_ref().map_or(HostRule::Own, |host| host.value.clone()),
        distrusts_close: !value_or(&origin.store_close_delimited, true),
    })
}

/// The service whose records name the servers, if one does.
fn service_of(origin: &OriginConfig, limit: Option<LimitRule>) -> Option<ServiceRule> {
    let srv = &origin.srv.as_ref()?.value;
    let https = value_or(&origin.srv_tls, false);
    let named = UrlOrigin { https, host: srv.domain().to_owned(), port: if https { 443 } else { 80 } };
    Some(ServiceRule { name: srv.to_string(), named, limit })
}

fn eject_rule(origin: &OriginConfig) -> EjectRule {
    let (eject, default) = (origin.eject.as_ref().map(|eject| &eject.value), EjectRule::default());
    EjectRule {
        failures: eject.map_or(default.failures, |eject| value_or(&eject.failures, default.failures)),
        pause: eject.map_or(default.pause, |eject| value_or(&eject.time, default.pause)),
    }
}

fn limit_rule(origin: &OriginConfig) -> Option<LimitRule> {
    let connections_max = origin.connections_max.as_ref()?.value as usize;
    let queue_max = value_or(&origin.queue_max, QUEUE_MAX) as usize;
    Some(LimitRule { connections_max, queue_max, queue_time: value_or(&origin.times.queue_time, QUEUE_TIME) })
}

fn check_of(origin: &OriginConfig, refused: &mut ProblemCollector) -> Option<ServerCheck> {
    let check = &origin.check.as_ref()?.value;
    let Ok(path) = PathAndQuery::try_from(check.path.value.as_str()) else {
        refused.refuse(check.path.place, "path", "a URL cannot have this path");
        return None;
    };
    let host = match &origin.host.as_ref().map(|host| &host.value) {
        Some(HostRule::Fixed(host)) => Some(host.clone()),
        _ => None,
    };
    let statuses = check.status.iter().map(|status| status.value).collect();
    let (interval, time) = (value_or(&check.interval, CHECK_INTERVAL), value_or(&check.time, CHECK_TIME));
    Some(ServerCheck { path, host, interval, time, statuses })
}

fn server_of(server: &ServerConfig) -> OriginServer {
    let url: &LocatedValue<ServerUrl> = &server.url;
    if url.scheme == ServerScheme::Unix {
        return OriginServer::new(UrlOrigin::of_socket(&url.host), value_or(&server.weight, 1));
    }
    let host = if url.host.contains(':') { format!("[{}]", url.host) } else { url.host.clone() };
    let origin = UrlOrigin { https: url.scheme == ServerScheme::Https, host, port: url.port };
    OriginServer::new(origin, value_or(&server.weight, 1))
}
