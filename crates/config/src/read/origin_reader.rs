//! Reads `[origins.NAME]`.
//!
//! Owns: the bounds of an origin, and what must fit within it.

use toml::de::DeValue;

use super::findings::ReadFindings;
use super::table_reader::{TableReader, TimeBound, Value, described, number_in};
use crate::keys;
use crate::place::{LocatedValue, Setting};
use crate::problem::quoted;
use crate::text::{ValueProblem, check_path, host_rule, host_word, origin_name, server_url, srv_name};
use crate::values::{
    EjectRules, HealthCheck, HostRule, LoadBalancing, OriginConfig, OriginTimes, OriginTls, ServerConfig, ServerScheme,
};

/// The most servers of an origin.
const SERVERS_MAX: usize = 1000;
/// The largest weight of a server.
const WEIGHT_MAX: u16 = 1000;
/// The most attempts after the first.
const RETRIES_MAX: u32 = 10;
/// The most failures in a row that are waited for.
const FAILURES_MAX: u32 = 1000;
/// The most statuses of a health check.
const STATUSES_MAX: usize = 100;

/// Reads an origin. An origin that is wrong keeps its name, so that routes to it are not wrong, too.
pub(super) fn origin(
    out: &mut ReadFindings,
    name: LocatedValue<&str>,
    value: Value<'_>,
) -> Option<LocatedValue<OriginConfig>> {
    use TimeBound::{Any, Positive};
    let name = match origin_name(name.value) {
        Ok(text) => LocatedValue::new(text, name.place),
        Err(wrong) => {
            out.wrong_text(name.place, wrong);
            LocatedValue::new(name.value.to_owned(), name.place)
        }
    };
    let Some(table) = TableReader::open(out, &keys::ORIGIN, value) else {
        return Some(LocatedValue::new(OriginConfig { name, ..OriginConfig::default() }, out.place(value.span())));
    };
    let balances = [
        ("round-robin", LoadBalancing::RoundRobin),
        ("least-outstanding", LoadBalancing::LeastOutstanding),
        ("hash", LoadBalancing::Hash),
    ];
    let origin = OriginConfig {
        servers: servers(out, &table, &name.value),
        srv: table.text(out, "srv", srv_name),
        srv_tls: table.switch(out, "srv-tls"),
        host: host(out, &table),
        balance: table.choice(out, "balance", &balances),
        store_close_delimited: table.switch(out, "store-close-delimited"),
        http2: table.switch(out, "http2"),
        times: OriginTimes {
            connect_time: table.time(out, "connect-time", Positive),
            first_byte: table.time(out, "first-byte", Positive),
            silence: table.time(out, "silence", Any),
            total_time: table.time(out, "total-time", Any),
            keep_alive: table.time(out, "keep-alive", Positive),
            idle_max: table.number(out, "idle-max", 0..=u32::MAX),
            queue_time: table.time(out, "queue-time", Positive),
        },
        tls: OriginTls {
            ca: table.file(out, "ca"),
            tls_name: table.text(out, "tls-name", |text| {
                let word = host_word(text)?;
                let wrong = || ValueProblem::has(text, "a port", format!("write {}", quoted(&word.host)));
                if word.port.is_some() { Err(wrong()) } else { Ok(word.host) }
            }),
            client_cert: table.file(out, "client-cert"),
            client_key: table.file(out, "client-key"),
        },
        connections_max: table.number(out, "connections-max", 1..=u32::MAX),
        queue_max: table.number(out, "queue-max", 0..=u32::MAX),
        retries: table.number(out, "retries", 0..=RETRIES_MAX),
        check: table.table(out, "check", &keys::CHECK).and_then(|inner| check(out, &inner)),
        eject: table.table(out, "eject", &keys::EJECT).map(|inner| eject(out, &inner)),
        name,
    };
    fits(out, &table, &origin);
    Some(LocatedValue::new(origin, table.place))
}

fn servers(out: &mut ReadFindings, table: &TableReader<'_>, name: &str) -> Vec<LocatedValue<ServerConfig>> {
    if table.get("servers").is_none() {
        if table.get("srv").is_none() {
            table.missing(out, "servers");
        }
        return Vec::new();
    }
    let expected = "a list such as [\"http://10.0.0.5:3000\"]";
    let Some(elements) = table.elements(out, "servers", expected, SERVERS_MAX) else { return Vec::new() };
    let place = table.key_place(out, "servers");
    if elements.is_empty() {
        out.unfit(place, format!("origin {} has no servers", quoted(name)), format!("write {expected}"));
    }
    let count = elements.len();
    let servers: Vec<_> = elements.into_iter().filter_map(|element| server(out, element)).collect();
    let is_zero = |server: &LocatedValue<ServerConfig>| server.weight.is_some_and(|weight| weight.value == 0);
    if count > 0 && servers.len() == count && servers.iter().all(is_zero) {
        let message = format!("all servers of origin {} have the weight 0", quoted(name));
        out.unfit(place, message, "at least one server has a weight from 1 to 1000");
    }
    servers
}

fn server(out: &mut ReadFindings, value: Value<'_>) -> Option<LocatedValue<ServerConfig>> {
    let place = out.place(value.span());
    match value.get_ref() {
        DeValue::String(text) => match server_url(text) {
            Ok(url) => {
                Some(LocatedValue::new(ServerConfig { url: LocatedValue::new(url, place), weight: None }, place))
            }
            Err(wrong) => {
                out.wrong_text(place, wrong);
                None
            }
        },
        DeValue::Table(_) => {
            let table = TableReader::open(out, &keys::ORIGIN_SERVER, value)?;
            let url = table.required(out, "url", |out| table.text(out, "url", server_url));
            let weight = table.number(out, "weight", 0..=WEIGHT_MAX);
            Some(LocatedValue::new(ServerConfig { url: url?, weight }, place))
        }
        other => {
            let message = format!("a server must be a URL or a table, not {}", described(other));
            out.wrong(
                place,
                message,
                "write \"http://10.0.0.5:3000\" or { url = \"http://10.0.0.5:3000\", weight = 2 }",
            );
            None
        }
    }
}

fn host(out: &mut ReadFindings, table: &TableReader<'_>) -> Setting<HostRule> {
    let read = table.text(out, "host", host_rule)?;
    let (rule, meant) = read.value;
    if let (Some(meant), HostRule::Fixed(host)) = (meant, &rule) {
        out.doubt(read.place, format!("{} is taken as the name of a host", quoted(host)), format!("perhaps `{meant}`"));
    }
    Some(LocatedValue::new(rule, read.place))
}

fn check(out: &mut ReadFindings, table: &TableReader<'_>) -> Setting<HealthCheck> {
    let path = table.required(out, "path", |out| table.text(out, "path", check_path));
    let interval = table.time(out, "interval", TimeBound::Positive);
    let time = table.time(out, "time", TimeBound::Positive);
    let statuses = table.elements(out, "status", "a list such as [200, 204]", STATUSES_MAX);
    if statuses.as_ref().is_some_and(Vec::is_empty) {
        let place = table.key_place(out, "status");
        out.wrong(place, "`status` is empty, so no server ever works", "leave it out for 200 to 299");
    }
    let read = |value| number_in(out, "an element of `status`", value, 100..=599);
    let status = statuses.into_iter().flatten().filter_map(read).collect();
    Some(LocatedValue::new(HealthCheck { path: path?, interval, time, status }, table.place))
}

fn eject(out: &mut ReadFindings, table: &TableReader<'_>) -> LocatedValue<EjectRules> {
    let rules = EjectRules {
        failures: table.number(out, "failures", 1..=FAILURES_MAX),
        time: table.time(out, "time", TimeBound::Positive),
    };
    LocatedValue::new(rules, table.place)
}

/// Tells what of an origin does not fit together.
fn fits(out: &mut ReadFindings, table: &TableReader<'_>, origin: &OriginConfig) {
    let (has_cert, has_key) = (table.get("client-cert").is_some(), table.get("client-key").is_some());
    if has_cert != has_key {
        let (given, missing) = if has_cert { ("client-cert", "client-key") } else { ("client-key", "client-cert") };
        let place = table.key_place(out, given);
        out.unfit(
            place,
            format!("`{given}` is given without `{missing}`"),
            "a certificate and its key belong together",
        );
    }
    if origin.connections_max.is_none() {
        for name in ["queue-max", "queue-time"] {
            if table.get(name).is_some() {
                let message = format!("`{name}` has no effect without `connections-max`");
                out.doubt(table.key_place(out, name), message, "no request waits where connections are not limited");
            }
        }
    }
    let has_tls = |server: &LocatedValue<ServerConfig>| server.url.scheme == ServerScheme::Https;
    let found_have_tls = origin.srv.as_ref().map(|_| origin.srv_tls.is_some_and(|tls| tls.value));
    if let (Some(srv_tls), None) = (origin.srv_tls, table.get("srv")) {
        out.doubt(srv_tls.place, "`srv-tls` has no effect without `srv`", "servers with TLS have https:// URLs");
    }
    let has_servers = !origin.servers.is_empty() || found_have_tls.is_some();
    if has_servers && !origin.servers.iter().any(has_tls) && found_have_tls != Some(true) {
        let help = match found_have_tls {
            Some(_) => "the servers of `srv` have TLS with `srv-tls = true`",
            None => "servers with TLS have https:// URLs",
        };
        for name in ["ca", "tls-name", "client-cert"] {
            if table.get(name).is_some() {
                let message = format!("`{name}` has no effect, as no server has TLS");
                out.doubt(table.key_place(out, name), message, help);
            }
        }
    }
    for (index, server) in origin.servers.iter().enumerate() {
        if origin.servers[..index].iter().any(|other| other.url == server.url) {
            let message = format!("the server {} is given twice", quoted(&server.url.to_string()));
            out.doubt(server.url.place, message, "for a larger share of the requests, give it a `weight`");
        }
    }
}
