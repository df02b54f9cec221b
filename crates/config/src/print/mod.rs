//! Writes a configuration as a file.
//!
//! Owns: the order of the tables and the form of values. Promises: what was read and is written is read as an equal
//! value; the same value gives the same bytes. Keys of tables that are there once are written also if they are not set,
//! as comments, so that the file shows what could be set. Leaves to others: the comments (`keys`).

mod fleet_printer;
mod routing_printer;
mod value_text;
mod writer;

use crate::keys;
use crate::values::{
    AcmeChallenge, AcmeConfig, AdmitRule, ClusterRead, HostRule, ListenerConfig, LoadBalancing, LogFormat, LogTarget,
    OriginConfig, ProxyConfig, ServerConfig, StoreIoEngine, TlsVersion, UnknownName,
};
use value_text::{file, key, list, number, optional, size, spelled, switch, text, time};
use writer::{ConfigWriter, Entries};

/// Writes a configuration as a TOML file with comments.
///
/// Paths that are no UTF-8 are written with replacement characters. Times are written in milliseconds at the finest.
pub fn to_toml(config: &ProxyConfig) -> String {
    let mut writer = ConfigWriter::new();
    writer
        .comment("The configuration of a proxy: nectary proxy --config FILE. docs/proxy-config.md explains every key.");
    for listener in &config.listeners {
        writer.section("[[listener]]", &keys::LISTENER, listener_entries(listener));
    }
    tls(&mut writer, config);
    writer.full_section("[store]", &keys::STORE, store_entries(config));
    let server = &config.server;
    let entries = vec![
        ("workers", number(&server.workers)),
        ("trust-forwarded", list(&server.trust_forwarded, |network| text(&network.to_string()))),
        ("send-forwarded", switch(&server.send_forwarded)),
    ];
    writer.full_section("[server]", &keys::SERVER, entries);
    writer.full_section("[admin]", &keys::ADMIN, admin_entries(config));
    let log = &config.log;
    let target = |target: &LogTarget| match target {
        LogTarget::None => text("none"),
        LogTarget::Stdout => text("-"),
        LogTarget::File(path) => file(path),
    };
    let formats = [(LogFormat::Combined, "combined"), (LogFormat::Json, "json")];
    let entries = vec![("access", optional(&log.access, target)), ("format", spelled(&log.format, &formats))];
    writer.full_section("[log]", &keys::LOG, entries);
    writer.full_section("[limits]", &keys::LIMITS, limit_entries(config));
    if let Some(fleet) = &config.fleet {
        writer.section("[fleet]", &keys::FLEET, fleet_printer::fleet_entries(fleet));
    }
    if let Some(forward) = &config.forward {
        writer.section("[forward-proxy]", &keys::FORWARD, routing_printer::forward_entries(forward));
    }
    for origin in &config.origins {
        let header = format!("[origins.{}]", key(&origin.name));
        writer.section(&header, &keys::ORIGIN, origin_entries(origin));
    }
    for site in &config.sites {
        writer.section("[[site]]", &keys::SITE, routing_printer::site_entries(site));
        for route in &site.routes {
            writer.section("[[site.route]]", &keys::ROUTE, routing_printer::route_entries(route));
        }
    }
    writer.end()
}

fn listener_entries(listener: &ListenerConfig) -> Entries {
    vec![
        ("address", Some(text(&listener.address.to_string()))),
        ("tls", switch(&listener.tls)),
        ("redirect-to-https", switch(&listener.redirect_to_https)),
        ("proxy-protocol-from", list(&listener.proxy_protocol_from, |sender| text(&sender.to_string()))),
        ("socket-mode", optional(&listener.socket_mode, |mode| text(&mode.to_string()))),
    ]
}

fn tls(writer: &mut ConfigWriter, config: &ProxyConfig) {
    let tls = &config.tls;
    let names = [(UnknownName::First, "first"), (UnknownName::Refuse, "refuse")];
    let versions = [(TlsVersion::Tls12, "1.2"), (TlsVersion::Tls13, "1.3")];
    let entries = vec![
        ("unknown-name", spelled(&tls.unknown_name, &names)),
        ("version-min", spelled(&tls.version_min, &versions)),
        ("client-ca", optional(&tls.client_ca, |path| file(path))),
    ];
    writer.full_section("[tls]", &keys::TLS, entries);
    if let Some(acme) = &tls.acme {
        writer.section("[tls.acme]", &keys::ACME, acme_entries(acme));
    }
    for certificate in &tls.certificates {
        let entries = vec![("cert", Some(file(&certificate.cert))), ("key", Some(file(&certificate.key)))];
        writer.section("[[tls.certificate]]", &keys::CERTIFICATE, entries);
    }
}

fn acme_entries(acme: &AcmeConfig) -> Entries {
    let challenges = [(AcmeChallenge::Http01, "http-01"), (AcmeChallenge::TlsAlpn01, "tls-alpn-01")];
    vec![
        ("directory", optional(&acme.directory, |url| text(url))),
        ("contact", list(&acme.contact, |address| text(address))),
        ("accept-terms", switch(&acme.accept_terms)),
        ("names", list(&acme.names, |name| text(name))),
        ("state", optional(&acme.state, |path| file(path))),
        ("challenge", spelled(&acme.challenge, &challenges)),
        ("ca", optional(&acme.ca, |path| file(path))),
    ]
}

fn admin_entries(config: &ProxyConfig) -> Entries {
    let admin = &config.admin;
    let listen = match admin.listen.as_slice() {
        [one] => Some(text(&one.to_string())),
        several => list(several, |address| text(&address.to_string())),
    };
    vec![
        ("listen", listen),
        ("socket-mode", optional(&admin.socket_mode, |mode| text(&mode.to_string()))),
        ("token-file", optional(&admin.token_file, |path| file(path))),
        ("relayed", switch(&admin.relayed)),
    ]
}

fn store_entries(config: &ProxyConfig) -> Entries {
    let store = &config.store;
    let engines = [(StoreIoEngine::Auto, "auto"), (StoreIoEngine::Uring, "uring"), (StoreIoEngine::Posix, "posix")];
    let reads = [(ClusterRead::Auto, "auto"), (ClusterRead::Cluster, "cluster"), (ClusterRead::Object, "object")];
    let rules = [(AdmitRule::All, "all"), (AdmitRule::SecondRequest, "second-request")];
    vec![
        ("device", Some(text(&store.device))),
        ("spans", list(&store.spans, |spec| text(spec))),
        ("forget-if-spans-missing", switch(&store.forget_if_spans_missing)),
        ("size", size(&store.size_bytes)),
        ("memory", size(&store.memory_bytes)),
        ("io", spelled(&store.io, &engines)),
        ("disk-deadline", time(&store.disk_deadline)),
        ("admit", spelled(&store.admit, &rules)),
        ("admit-bytes-min", size(&store.admit_bytes_min)),
        ("admit-bytes-max", size(&store.admit_bytes_max)),
        ("write-budget", optional(&store.write_budget, |budget| text(&budget.to_string()))),
        ("reinsert", number(&store.reinsert_percent)),
        ("rewrite", number(&store.rewrite_percent)),
        ("cluster-read", spelled(&store.cluster_read, &reads)),
        ("cluster-size", size(&store.cluster_size_bytes)),
    ]
}

fn limit_entries(config: &ProxyConfig) -> Entries {
    let limits = &config.limits;
    vec![
        ("connections-max", number(&limits.connections_max)),
        ("client-connections-max", number(&limits.client_connections_max)),
        ("client-requests", optional(&limits.client_requests, |rate| text(&rate.to_string()))),
        ("request-head-max", size(&limits.request_head_bytes_max)),
        ("response-head-max", size(&limits.response_head_bytes_max)),
        ("headers-max", number(&limits.headers_max)),
        ("url-max", size(&limits.url_bytes_max)),
        ("upload-max", size(&limits.upload_bytes_max)),
        ("fills-max", number(&limits.fills_max)),
        ("range-start-max", size(&limits.range_start_bytes_max)),
        ("origin-idle-max", number(&limits.origin_idle_max)),
        ("head-time", time(&limits.head_time)),
        ("keep-alive", time(&limits.keep_alive)),
        ("client-silence", time(&limits.client_silence)),
        ("send-silence", time(&limits.send_silence)),
        ("connect-time", time(&limits.connect_time)),
        ("first-byte", time(&limits.first_byte)),
        ("origin-silence", time(&limits.origin_silence)),
        ("origin-keep-alive", time(&limits.origin_keep_alive)),
        ("tunnel-silence", time(&limits.tunnel_silence)),
        ("drain", time(&limits.drain)),
    ]
}

fn origin_entries(origin: &OriginConfig) -> Entries {
    let balances = [
        (LoadBalancing::RoundRobin, "round-robin"),
        (LoadBalancing::LeastOutstanding, "least-outstanding"),
        (LoadBalancing::Hash, "hash"),
    ];
    let host = |rule: &HostRule| match rule {
        HostRule::Own => text("own"),
        HostRule::Site => text("site"),
        HostRule::Client => text("client"),
        HostRule::Fixed(host) => text(host),
    };
    let (times, tls) = (&origin.times, &origin.tls);
    // Without `srv` there must be servers, so a list without elements is a mistake that is shown.
    let required = || origin.srv.is_none().then(|| "[]".to_owned());
    vec![
        ("servers", list(&origin.servers, server).or_else(required)),
        ("srv", optional(&origin.srv, |name| text(&name.to_string()))),
        ("srv-tls", switch(&origin.srv_tls)),
        ("host", optional(&origin.host, host)),
        ("balance", spelled(&origin.balance, &balances)),
        ("store-close-delimited", switch(&origin.store_close_delimited)),
        ("http2", switch(&origin.http2)),
        ("connect-time", time(&times.connect_time)),
        ("first-byte", time(&times.first_byte)),
        ("silence", time(&times.silence)),
        ("total-time", time(&times.total_time)),
        ("keep-alive", time(&times.keep_alive)),
        ("idle-max", number(&times.idle_max)),
        ("connections-max", number(&origin.connections_max)),
        ("queue-max", number(&origin.queue_max)),
        ("queue-time", time(&times.queue_time)),
        ("retries", number(&origin.retries)),
        ("ca", optional(&tls.ca, |path| file(path))),
        ("tls-name", optional(&tls.tls_name, |name| text(&bracketed(name)))),
        ("client-cert", optional(&tls.client_cert, |path| file(path))),
        ("client-key", optional(&tls.client_key, |path| file(path))),
        ("check", check(origin)),
        ("eject", eject(origin)),
    ]
}

/// A host as it is written: an IPv6 address in brackets.
fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

fn server(server: &ServerConfig) -> String {
    let url = text(&server.url.to_string());
    match &server.weight {
        Some(weight) => format!("{{ url = {url}, weight = {} }}", weight.value),
        None => url,
    }
}

fn check(origin: &OriginConfig) -> Option<String> {
    let check = origin.check.as_ref()?;
    let entries = vec![
        ("path", Some(text(&check.path))),
        ("interval", time(&check.interval)),
        ("time", time(&check.time)),
        ("status", list(&check.status, ToString::to_string)),
    ];
    Some(writer::inline(&keys::CHECK, entries))
}

fn eject(origin: &OriginConfig) -> Option<String> {
    let eject = origin.eject.as_ref()?;
    Some(writer::inline(&keys::EJECT, vec![("failures", number(&eject.failures)), ("time", time(&eject.time))]))
}
