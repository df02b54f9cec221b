//! Reads `[fleet]`.
//!
//! Owns: its bounds, and that its keys fit to each other. Each rule that needs two keys is told at one of them.

use std::collections::HashSet;
use std::time::Duration;

use super::findings::Findings;
use super::table_reader::{TableReader, TimeBound};
use crate::place::{Located, Setting};
use crate::problem::quoted;
use crate::quantity::exact_time;
use crate::text::{etcd_url, fleet_name, node_name, peer_address, request_rate, socket_address, zone_name};
use crate::values::{
    EtcdTls, FleetConfig, FleetPurges, FleetTls, PeerAddress, PurgeAnswer, PurgeWhenCut, ServerScheme,
};

/// The bounds of a lease. etcd ends none earlier than two seconds after it was asked.
const LEASE: std::ops::RangeInclusive<Duration> = Duration::from_secs(2)..=Duration::from_secs(300);
/// The bounds of the log. *Units*: bytes.
const LOG_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=1 << 30;
/// The most purges that wait for etcd.
const QUEUE_MAX: u32 = 100_000;
/// The most fixed members.
const MEMBERS_MAX: usize = 64;

/// Reads `[fleet]`.
pub(super) fn fleet(out: &mut Findings, table: &TableReader<'_>) -> Located<FleetConfig> {
    let file = |out: &mut Findings, name| table.required(out, name, |out| table.file(out, name)).unwrap_or_default();
    let address = table.required(out, "address", |out| table.text(out, "address", peer_address));
    let config = FleetConfig {
        name: table.text(out, "name", fleet_name),
        node: table.text(out, "node", node_name),
        address: address.clone().unwrap_or_default(),
        listen: table.text(out, "listen", socket_address),
        zone: table.text(out, "zone", zone_name),
        tls: FleetTls { cert: file(out, "cert"), key: file(out, "key"), ca: file(out, "ca") },
        etcd: table.list(out, "etcd", etcd_url),
        members: table.list(out, "members", peer_address),
        etcd_tls: EtcdTls {
            ca: table.file(out, "etcd-ca"),
            cert: table.file(out, "etcd-cert"),
            key: table.file(out, "etcd-key"),
        },
        lease: lease(out, table),
        serve_when_cut: table.time(out, "serve-when-cut", TimeBound::Any),
        validate_when_cut: table.text(out, "validate-when-cut", request_rate),
        purges: purges(out, table),
    };
    connection(out, table, &config);
    if let Some(address) = address {
        members(out, table, &config, &address);
    }
    etcd_tls(out, table, &config);
    Located::new(config, table.place)
}

fn lease(out: &mut Findings, table: &TableReader<'_>) -> Setting<Duration> {
    let lease = table.time(out, "lease", TimeBound::Positive)?;
    if LEASE.contains(&lease.value) && lease.value.subsec_nanos() == 0 {
        return Some(lease);
    }
    let message = format!("`lease` cannot be {}", exact_time(lease.value));
    out.wrong(lease.place, message, "allowed: whole seconds from 2s to 5m");
    None
}

fn purges(out: &mut Findings, table: &TableReader<'_>) -> FleetPurges {
    let cut = [("fail", PurgeWhenCut::Fail), ("queue", PurgeWhenCut::Queue)];
    let answers = [("applied", PurgeAnswer::Applied), ("accepted", PurgeAnswer::Accepted)];
    let purges = FleetPurges {
        when_cut: table.choice(out, "purge-when-cut", &cut),
        queue_max: table.number(out, "purge-queue-max", 1..=QUEUE_MAX),
        answer: table.choice(out, "purge-answer", &answers),
        time: table.time(out, "purge-time", TimeBound::Positive),
        rate: table.text(out, "purge-rate", request_rate),
        log_bytes_max: table.size(out, "purge-log-size", LOG_BYTES),
        log_age: table.time(out, "purge-log-age", TimeBound::Positive),
    };
    let queues = purges.when_cut.is_some_and(|when| when.value == PurgeWhenCut::Queue);
    if let (Some(queue_max), false) = (purges.queue_max, queues) {
        out.doubt(queue_max.place, "`purge-queue-max` has no effect", "write `purge-when-cut = \"queue\"`");
    }
    purges
}

/// A fleet is connected by etcd, or by its members.
fn connection(out: &mut Findings, table: &TableReader<'_>, config: &FleetConfig) {
    const HELP: &str = "write `etcd` with the URLs of etcd, or `members` with the addresses of all nodes";
    match (table.get("etcd").is_some(), table.get("members").is_some()) {
        (false, false) => out.unfit(table.place, "[fleet] has neither `etcd` nor `members`", HELP),
        (true, true) => {
            let place = table.key_place(out, "members");
            out.unfit(place, "[fleet] has both `etcd` and `members`", "leave out one of them");
        }
        _ => {}
    }
    for name in ["etcd", "members"] {
        if table.get(name).is_some_and(|value| value.get_ref().as_array().is_some_and(|list| list.is_empty())) {
            let place = table.key_place(out, name);
            out.unfit(place, format!("`{name}` is empty"), HELP);
        }
    }
    let when_cut = config.purges.when_cut.filter(|when| when.value == PurgeWhenCut::Queue);
    if let (Some(when), false) = (when_cut, config.members.is_empty()) {
        let help = "leave it out: a purge is sent to all members, and again to those that did not confirm it";
        out.doubt(when.place, "`purge-when-cut` has no effect with `members`", help);
    }
}

/// This node is a member, and each member is there once.
fn members(out: &mut Findings, table: &TableReader<'_>, config: &FleetConfig, address: &Located<PeerAddress>) {
    let mut known = HashSet::new();
    for member in &config.members {
        if !known.insert(&member.value) {
            let message = format!("the member {} is given twice", quoted(&member.to_string()));
            out.unfit(member.place, message, "leave it out");
        }
    }
    if !config.members.is_empty() && !known.contains(&address.value) {
        let message = format!("`members` does not have this node's address {}", quoted(&address.to_string()));
        let place = table.key_place(out, "members");
        out.unfit(place, message, "write the addresses of all nodes, also of this one, as they are in `address`");
    }
    if config.members.len() > MEMBERS_MAX {
        let place = table.key_place(out, "members");
        let message = format!("`members` has {} elements", config.members.len());
        out.unfit(place, message, format!("at most {MEMBERS_MAX} are allowed: larger fleets need `etcd`"));
    }
    if let (Some(node), false) = (&config.node, config.members.is_empty()) {
        let help = "leave it out: the name of a fixed member is its address";
        out.doubt(node.place, "`node` has no effect with `members`", help);
    }
}

/// What TLS with etcd needs.
fn etcd_tls(out: &mut Findings, table: &TableReader<'_>, config: &FleetConfig) {
    let EtcdTls { ca, cert, key } = &config.etcd_tls;
    for (name, given, other) in [("etcd-cert", cert, "etcd-key"), ("etcd-key", key, "etcd-cert")] {
        if let (Some(file), None) = (given, table.get(other)) {
            let help = "a certificate and its key belong together";
            out.unfit(file.place, format!("`{name}` is set without `{other}`"), help);
        }
    }
    let has_tls = config.etcd.iter().any(|url| url.scheme == ServerScheme::Https);
    let first = ca.as_ref().or(cert.as_ref()).or(key.as_ref());
    if let (Some(file), false) = (first, has_tls) {
        out.doubt(file.place, "no member of etcd is reached by https", "write `https://` in `etcd`, or leave this out");
    }
}
