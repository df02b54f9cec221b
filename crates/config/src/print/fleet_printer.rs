//! Writes `[fleet]`.
//!
//! Owns: the form of its values.

use super::value_text::{file, list, number, optional, size, spelled, text, time};
use super::writer::Entries;
use crate::values::{FleetConfig, PurgeAnswer, PurgeWhenCut, ServerUrl};

/// The keys of `[fleet]`.
pub(super) fn fleet_entries(fleet: &FleetConfig) -> Entries {
    let cut = [(PurgeWhenCut::Fail, "fail"), (PurgeWhenCut::Queue, "queue")];
    let answers = [(PurgeAnswer::Applied, "applied"), (PurgeAnswer::Accepted, "accepted")];
    let (etcd, purges, share) = (&fleet.etcd_tls, &fleet.purges, fleet.share.as_ref());
    vec![
        ("name", optional(&fleet.name, |name| text(name))),
        ("node", fleet.members.is_empty().then(|| text(&fleet.node))),
        ("zone", optional(&fleet.zone, |zone| text(zone))),
        ("address", share.map(|share| text(&share.address.to_string()))),
        ("listen", share.and_then(|share| optional(&share.listen, |address| text(&address.to_string())))),
        ("cert", share.map(|share| file(&share.cert))),
        ("key", share.map(|share| file(&share.key))),
        ("ca", share.map(|share| file(&share.ca))),
        ("members", list(&fleet.members, |member| text(&member.to_string()))),
        ("etcd", list(&fleet.etcd, |url| text(&with_port(url)))),
        ("etcd-ca", optional(&etcd.ca, |path| file(path))),
        ("etcd-cert", optional(&etcd.cert, |path| file(path))),
        ("etcd-key", optional(&etcd.key, |path| file(path))),
        ("lease", time(&fleet.lease)),
        ("serve-when-cut", time(&fleet.serve_when_cut)),
        ("validate-when-cut", optional(&fleet.validate_when_cut, |rate| text(&rate.to_string()))),
        ("purge-when-cut", spelled(&purges.when_cut, &cut)),
        ("purge-queue-max", number(&purges.queue_max)),
        ("purge-answer", spelled(&purges.answer, &answers)),
        ("purge-time", time(&purges.time)),
        ("purge-rate", optional(&purges.rate, |rate| text(&rate.to_string()))),
        ("purge-log-size", size(&purges.log_bytes_max)),
        ("purge-log", optional(&purges.log, |path| file(path))),
        ("purge-log-age", time(&purges.log_age)),
    ]
}

/// A URL with its port, also if that is the scheme's.
fn with_port(url: &ServerUrl) -> String {
    let written = url.to_string();
    if url.port == url.scheme.default_port() { format!("{written}:{}", url.port) } else { written }
}
