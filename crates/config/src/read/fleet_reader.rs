//! Reads `[fleet]`.
//!
//! Owns: its bounds, and that its keys fit to each other. Each rule that needs two keys is told at one of them.

use std::time::Duration;

use super::findings::ReadFindings;
use super::table_reader::{TableReader, TimeBound};
use crate::place::{LocatedValue, Setting};
use crate::quantity::exact_time;
use crate::text::{etcd_url, fleet_name, node_name, peer_address, request_rate, socket_address, zone_name};
use crate::values::{
    EtcdTls, FleetConfig, FleetPurges, FleetShare, PeerAddress, PurgeAnswer, PurgeWhenCut, ServerScheme,
};

/// The bounds of a lease. etcd ends none earlier than two seconds after it was asked.
const LEASE: std::ops::RangeInclusive<Duration> = Duration::from_secs(2)..=Duration::from_secs(300);
/// The bounds of the log. *Units*: bytes.
const LOG_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=1 << 30;
/// The most fixed members: each one asks all others.
const MEMBERS_MAX: usize = 16;
/// The longest name of a node, which is the address of a fixed member. *Units*: bytes.
const NAME_MAX: usize = 128;
/// The most purges that wait for etcd.
const QUEUE_MAX: u32 = 100_000;

/// Reads `[fleet]`.
pub(super) fn fleet(out: &mut ReadFindings, table: &TableReader<'_>) -> LocatedValue<FleetConfig> {
    let config = FleetConfig {
        name: table.text(out, "name", fleet_name),
        node: node(out, table),
        zone: table.text(out, "zone", zone_name),
        share: share(out, table),
        members: table.list(out, "members", peer_address),
        etcd: table.list(out, "etcd", etcd_url),
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
    connection(out, table);
    members(out, table, &config);
    etcd_tls(out, table, &config);
    LocatedValue::new(config, table.place)
}

/// What the nodes share keys with: all of it, or nothing.
fn share(out: &mut ReadFindings, table: &TableReader<'_>) -> Option<FleetShare> {
    let address = table.text(out, "address", peer_address);
    let listen = table.text(out, "listen", socket_address);
    let [cert, key, ca] = ["cert", "key", "ca"].map(|name| table.file(out, name));
    let needed = ["address", "cert", "key", "ca"];
    let first = ["address", "listen", "cert", "key", "ca"].into_iter().find(|name| table.get(name).is_some())?;
    for other in needed.into_iter().filter(|other| table.get(other).is_none()) {
        let place = table.key_place(out, first);
        let help = "nodes share keys with `address`, `cert`, `key` and `ca` together";
        out.unfit(place, format!("`{first}` is set without `{other}`"), help);
    }
    Some(FleetShare { address: address?, listen, cert: cert?, key: key?, ca: ca? })
}

fn lease(out: &mut ReadFindings, table: &TableReader<'_>) -> Setting<Duration> {
    let lease = table.time(out, "lease", TimeBound::Positive)?;
    if LEASE.contains(&lease.value) && lease.value.subsec_nanos() == 0 {
        return Some(lease);
    }
    let message = format!("`lease` cannot be {}", exact_time(lease.value));
    out.wrong(lease.place, message, "allowed: whole seconds from 2s to 5m");
    None
}

fn purges(out: &mut ReadFindings, table: &TableReader<'_>) -> FleetPurges {
    let cut = [("fail", PurgeWhenCut::Fail), ("queue", PurgeWhenCut::Queue)];
    let answers = [("applied", PurgeAnswer::Applied), ("accepted", PurgeAnswer::Accepted)];
    let purges = FleetPurges {
        when_cut: table.choice(out, "purge-when-cut", &cut),
        queue_max: table.number(out, "purge-queue-max", 1..=QUEUE_MAX),
        answer: table.choice(out, "purge-answer", &answers),
        time: table.time(out, "purge-time", TimeBound::Positive),
        rate: table.text(out, "purge-rate", request_rate),
        log_bytes_max: table.size(out, "purge-log-size", LOG_BYTES),
        log: table.file(out, "purge-log"),
        log_age: table.time(out, "purge-log-age", TimeBound::Positive),
    };
    let queues = purges.when_cut.is_some_and(|when| when.value == PurgeWhenCut::Queue);
    if let (Some(queue_max), false) = (purges.queue_max, queues) {
        out.doubt(queue_max.place, "`purge-queue-max` has no effect", "write `purge-when-cut = \"queue\"`");
    }
    purges
}

/// The name of this node. Fixed members are named by their addresses.
fn node(out: &mut ReadFindings, table: &TableReader<'_>) -> LocatedValue<String> {
    if table.get("members").is_none() {
        return table.required(out, "node", |out| table.text(out, "node", node_name)).unwrap_or_default();
    }
    if table.get("node").is_some() {
        let place = table.key_place(out, "node");
        out.unfit(place, "`node` is set with `members`", "leave it out: the members are named by their addresses");
    }
    let address = table.get("address").and_then(|value| value.get_ref().as_str());
    let name = address.and_then(|text| peer_address(text).ok()).map(|address| address.to_string());
    LocatedValue::new(name.unwrap_or_default(), table.place)
}

/// What fixed members need, and what they have no use for.
fn members(out: &mut ReadFindings, table: &TableReader<'_>, config: &FleetConfig) {
    if table.get("members").is_none() {
        if let Some(log) = &config.purges.log {
            out.doubt(log.place, "`purge-log` has no effect: etcd has the log", "leave it out, or write `members`");
        }
        return;
    }
    let place = table.key_place(out, "members");
    if config.members.len() > MEMBERS_MAX {
        out.unfit(place, format!("`members` has more than {MEMBERS_MAX} addresses"), "use etcd for so many nodes");
    }
    let is_twice = |(index, member): (usize, &LocatedValue<PeerAddress>)| {
        config.members[..index].iter().any(|other| other.value == member.value)
    };
    if config.members.iter().enumerate().any(is_twice) {
        out.unfit(place, "`members` has an address twice", "write each address once");
    }
    if let Some(long) = config.members.iter().find(|member| member.value.to_string().len() > NAME_MAX) {
        let help = format!("a member is named by its address, which has at most {NAME_MAX} bytes");
        out.unfit(place, format!("`{}` is too long", long.value), &help);
    }
    for needed in ["address", "purge-log"].into_iter().filter(|needed| table.get(needed).is_none()) {
        let help = "fixed members need `address`, `cert`, `key`, `ca` and `purge-log`";
        out.unfit(place, format!("`members` is set without `{needed}`"), help);
    }
    let share = config.share.as_ref();
    if share.is_some_and(|share| !config.members.iter().any(|member| member.value == share.address.value)) {
        let help = "write the addresses of all nodes, also that of this one";
        out.unfit(place, "`address` is not among `members`", help);
    }
    let others = ["etcd", "etcd-ca", "etcd-cert", "etcd-key", "purge-when-cut", "purge-queue-max"];
    for other in others.into_iter().filter(|other| table.get(other).is_some()) {
        let place = table.key_place(out, other);
        out.unfit(
            place,
            format!("`{other}` is set with `members`"),
            "it is for a fleet by etcd: leave one of them out",
        );
    }
}

/// A fleet is connected by etcd, or its members are fixed.
fn connection(out: &mut ReadFindings, table: &TableReader<'_>) {
    const HELP: &str =
        "write `etcd` with the URLs of the members of etcd, or `members` with the addresses of all nodes";
    if let Some(value) = table.get("members") {
        if value.get_ref().as_array().is_some_and(|list| list.is_empty()) {
            let place = table.key_place(out, "members");
            out.unfit(place, "`members` is empty", HELP);
        }
        return;
    }
    match table.get("etcd") {
        None => out.unfit(table.place, "[fleet] has no `etcd` and no `members`", HELP),
        Some(value) if value.get_ref().as_array().is_some_and(|list| list.is_empty()) => {
            let place = table.key_place(out, "etcd");
            out.unfit(place, "`etcd` is empty", HELP);
        }
        Some(_) => {}
    }
}

/// What TLS with etcd needs.
fn etcd_tls(out: &mut ReadFindings, table: &TableReader<'_>, config: &FleetConfig) {
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
