//! `--print-config`: the options of a command line as a configuration file.
//!
//! Owns: which key of the file says what an option says. Promises: a file that is printed starts a proxy with the same
//! addresses, origin and rules; what a file cannot say is an error and never left out. The keys of stored responses are
//! others: those of a file begin with a site's name, those of `--origin` with the origin's.

use std::time::Duration;

use nectary_config::{
    AdmitRule, CertificateConfig, ClusterRead, ForwardConfig, HostRule, IpNetwork, LifetimeRules, ListenAddress,
    ListenerConfig, LocatedValue, LogTarget, OriginConfig, ProxyConfig, RouteAction, RouteConfig, RoutePath,
    RouteRules, ServerConfig, ServerScheme, ServerUrl, Setting, SiteConfig, StoreIoEngine, WriteBudget, to_toml,
};
use nectary_proxy::{AccessLog, ClientNet, ProxyLimits};

use super::config_file;
use crate::arguments::{self, ProxyArguments};
use crate::exit::{CommandFailure, GOOD, USAGE};
use crate::output;

/// The name of the one origin.
const ORIGIN: &str = "origin";

/// Prints the options as a file. *Returns*: the exit code.
pub fn print(arguments: &ProxyArguments) -> Result<u8, CommandFailure> {
    let config = match &arguments.file.config {
        Some(path) => {
            let help = "`nectary proxy --check-config --config FILE` checks a file";
            let read = config_file::read(path).map_err(|what| CommandFailure::new(USAGE, what, help))?;
            ProxyConfig::clone(&read)
        }
        None => config_of(arguments).map_err(|what| {
            CommandFailure::new(USAGE, what, "leave it out, and add to the printed file what it is for")
        })?,
    };
    output::text(&to_toml(&config))?;
    Ok(GOOD)
}

fn at<T>(value: T) -> LocatedValue<T> {
    LocatedValue::nowhere(value)
}

/// A setting, unless it is the default.
fn unless<T: PartialEq>(value: T, default: &T) -> Setting<T> {
    (value != *default).then(|| at(value))
}

/// The configuration that the options describe. *Errors*: what a file cannot say.
fn config_of(arguments: &ProxyArguments) -> Result<ProxyConfig, String> {
    let mut config = ProxyConfig::default();
    let certificates = arguments.tls.certificates().map_err(|failure| failure.message())?;
    let is_tls = !certificates.is_empty();
    let listener = |address: &ListenAddress, tls: bool, redirect: bool| {
        at(ListenerConfig {
            address: at(address.clone()),
            tls: unless(tls, &false),
            redirect_to_https: unless(redirect, &false),
            proxy_protocol_from: Vec::new(),
            socket_mode: None,
        })
    };
    config.listeners = arguments.listen.iter().map(|address| listener(address, is_tls, false)).collect();
    config.listeners.extend(arguments.tls.redirect_listen.iter().map(|address| listener(address, false, true)));
    let files = certificates.into_iter();
    config.tls.certificates =
        files.map(|files| at(CertificateConfig { cert: at(files.certificate), key: at(files.key) })).collect();
    config.server.workers = arguments.workers.map(at);
    config.server.trust_forwarded = nets(&arguments.trust_forwarded)?;
    config.server.send_forwarded = unless(!arguments.no_forwarded, &true);
    config.admin.listen = arguments.admin.admin_listen.iter().cloned().map(at).collect();
    config.admin.token_file = arguments.admin.admin_token_file.clone().map(at);
    config.admin.relayed = unless(arguments.admin.admin_relayed, &false);
    config.log.access = match &arguments.access_log {
        AccessLog::None => None,
        AccessLog::Stdout => Some(at(LogTarget::Stdout)),
        AccessLog::File(path) => Some(at(LogTarget::File(path.clone()))),
    };
    store(&mut config, arguments)?;
    limits(&mut config, &arguments.limits.limits());
    match &arguments.origin.origin {
        Some(url) => site(&mut config, arguments, &url.to_string())?,
        None => {
            let rules = rules(arguments, default_ttl(arguments)?);
            let ports = arguments.connect_port.clone();
            let connect_ports = (ports != [443]).then(|| ports.into_iter().map(at).collect());
            config.forward = Some(at(ForwardConfig { allow: nets(&arguments.allow)?, connect_ports, rules }));
        }
    }
    Ok(config)
}

/// The one lifetime of all responses without one. *Errors*: there are rules for some of them.
fn default_ttl(arguments: &ProxyArguments) -> Result<Option<Duration>, String> {
    match arguments.default_ttl.as_slice() {
        [] => Ok(None),
        [rule] if rule.host() == "*" && rule.path().is_empty() => Ok(Some(rule.ttl())),
        [rule, ..] => Err(format!("--default-ttl {rule}: a forward proxy's file has one lifetime for all hosts")),
    }
}

/// The rules of all routes.
fn rules(arguments: &ProxyArguments, default_ttl: Option<Duration>) -> RouteRules {
    let mut rules = RouteRules {
        lifetimes: LifetimeRules {
            default_ttl: default_ttl.map(at),
            stale_unreachable: unless(arguments.stale_unreachable, &Duration::from_secs(24 * 3600)),
            ..LifetimeRules::default()
        },
        ignore_request_cache_control: unless(arguments.ignore_request_cache_control, &false),
        store_set_cookie: unless(arguments.store_set_cookie, &false),
        strip_tags: unless(arguments.strip_tags, &false),
        ..RouteRules::default()
    };
    let names = arguments.origin.key_header.iter().map(|header| at(header.to_string().to_ascii_lowercase()));
    rules.key.key_headers = names.collect();
    rules
}

/// The one origin, and a site of all hosts.
fn site(config: &mut ProxyConfig, arguments: &ProxyArguments, url: &str) -> Result<(), String> {
    let (scheme, _) = url.split_once("://").unwrap_or(("http", ""));
    let scheme = if scheme == "https" { ServerScheme::Https } else { ServerScheme::Http };
    let (host, port) = arguments.origin.origin.as_ref().map(|url| url.host_and_port()).unwrap_or_default();
    let url = at(ServerUrl { scheme, host: host.to_owned(), port });
    let mut origin = OriginConfig {
        name: at(ORIGIN.to_owned()),
        servers: vec![at(ServerConfig { url, weight: None })],
        host: match arguments.origin.origin_host.to_string().as_str() {
            "origin" => None,
            "client" => Some(at(HostRule::Client)),
            host => Some(at(HostRule::Fixed(host.to_ascii_lowercase()))),
        },
        store_close_delimited: unless(!arguments.origin.no_store_close_delimited, &true),
        ..OriginConfig::default()
    };
    origin.tls.ca = arguments.origin.origin_ca.clone().map(at);
    config.origins = vec![at(origin)];
    let route = |path: &str, ttl: Option<Duration>| {
        at(RouteConfig {
            path: at(RoutePath::Prefix(path.to_owned())),
            action: RouteAction::Origin(at(ORIGIN.to_owned())),
            rules: rules(arguments, ttl),
            request_headers: Default::default(),
            response_headers: Default::default(),
            access: Default::default(),
            client_requests: None,
        })
    };
    let mut routes: Vec<LocatedValue<RouteConfig>> = Vec::new();
    for rule in &arguments.default_ttl {
        let path = if rule.path().is_empty() { "/" } else { rule.path() };
        let is_below = |other: &LocatedValue<RouteConfig>| match &other.path.value {
            RoutePath::Prefix(before) => path.starts_with(before.as_str()),
            RoutePath::Exact(_) => false,
        };
        // The first rule counts, and of the routes the longest.
        if rule.host() != "*" || path.contains('*') || routes.iter().any(is_below) {
            return Err(format!(
                "--default-ttl {rule}: a file has lifetimes by path alone, of which the longest counts"
            ));
        }
        routes.push(route(path, Some(rule.ttl())));
    }
    if !routes.iter().any(|route| route.path.value == RoutePath::Prefix("/".to_owned())) {
        routes.push(route("/", None));
    }
    config.sites = vec![at(SiteConfig { default: Some(at(true)), routes, ..SiteConfig::default() })];
    Ok(())
}

fn nets(nets: &[ClientNet]) -> Result<Vec<LocatedValue<IpNetwork>>, String> {
    let of = |net: &ClientNet| {
        IpNetwork::new(net.address(), net.prefix_bits()).map(at).ok_or_else(|| "this is no network".to_owned())
    };
    nets.iter().map(of).collect()
}

fn store(config: &mut ProxyConfig, arguments: &ProxyArguments) -> Result<(), String> {
    let store = &mut config.store;
    let usual = nectary_store::OpenOptions::default();
    store.device = at(arguments.store_spec().to_owned());
    store.spans = arguments.spans.spans.iter().cloned().map(at).collect();
    store.forget_if_spans_missing = unless(arguments.forget_if_spans_missing, &false);
    store.size_bytes = arguments.size.map(at);
    store.memory_bytes = arguments.memory.map(at);
    store.io = match arguments.engine.io {
        arguments::DeviceIoEngine::Auto => None,
        arguments::DeviceIoEngine::Uring => Some(at(StoreIoEngine::Uring)),
        arguments::DeviceIoEngine::Posix => Some(at(StoreIoEngine::Posix)),
    };
    store.disk_deadline = unless(arguments.disk_deadline, &Duration::from_secs(2));
    store.admit = match arguments.admission.admit {
        nectary_store::AdmitRule::All => None,
        nectary_store::AdmitRule::SecondRequest => Some(at(AdmitRule::SecondRequest)),
    };
    store.admit_bytes_min = arguments.admission.admit_bytes_min.map(at);
    store.admit_bytes_max = arguments.admission.admit_bytes_max.map(at);
    store.write_budget =
        arguments.admission.write_budget.map(|budget| at(WriteBudget { bytes: budget.bytes, period: budget.period }));
    store.reinsert_percent = unless(arguments.reinsert, &usual.reinsert_percent);
    store.rewrite_percent = unless(arguments.rewrite, &usual.rewrite_percent);
    store.cluster_size_bytes = unless(arguments.cluster_size, &(64 << 10));
    store.cluster_read = match arguments.cluster_read {
        nectary_store::ClusterRead::Cluster => Some(at(ClusterRead::Cluster)),
        nectary_store::ClusterRead::Object => Some(at(ClusterRead::Object)),
        _ => None,
    };
    Ok(())
}

fn limits(config: &mut ProxyConfig, given: &ProxyLimits) {
    let (usual, limits) = (ProxyLimits::default(), &mut config.limits);
    let size = |bytes: usize, usual: usize| unless(bytes as u64, &(usual as u64));
    let count = |count: usize, usual: usize| unless(u32::try_from(count).unwrap_or(u32::MAX), &(usual as u32));
    limits.connections_max = count(given.connections_max, usual.connections_max);
    limits.request_head_bytes_max = size(given.request_head_bytes_max, usual.request_head_bytes_max);
    limits.response_head_bytes_max = size(given.response_head_bytes_max, usual.response_head_bytes_max);
    limits.headers_max = unless(given.headers_max as u16, &(usual.headers_max as u16));
    limits.url_bytes_max = size(given.url_bytes_max, usual.url_bytes_max);
    limits.upload_bytes_max = unless(given.request_body_bytes_max, &usual.request_body_bytes_max);
    limits.fills_max = count(given.fills_max, usual.fills_max);
    limits.range_start_bytes_max = unless(given.range_fill_start_bytes_max, &usual.range_fill_start_bytes_max);
    limits.origin_idle_max = count(given.origin_idle_connections_max, usual.origin_idle_connections_max);
    limits.head_time = unless(given.head_timeout, &usual.head_timeout);
    limits.keep_alive = unless(given.keep_alive_timeout, &usual.keep_alive_timeout);
    limits.client_silence = unless(given.body_timeout, &usual.body_timeout);
    limits.send_silence = unless(given.write_timeout, &usual.write_timeout);
    limits.connect_time = unless(given.connect_timeout, &usual.connect_timeout);
    limits.first_byte = unless(given.response_timeout, &usual.response_timeout);
    limits.origin_silence = unless(given.origin_body_timeout, &usual.origin_body_timeout);
    limits.origin_keep_alive = unless(given.origin_idle_timeout, &usual.origin_idle_timeout);
    limits.tunnel_silence = unless(given.tunnel_timeout, &usual.tunnel_timeout);
    limits.drain = unless(given.drain_timeout, &usual.drain_timeout);
}
