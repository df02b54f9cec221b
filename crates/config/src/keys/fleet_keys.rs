//! The keys of a fleet.
//!
//! Owns: the keys of `[fleet]`.

use super::{ConfigTable, key};

/// `[fleet]`.
pub const FLEET: ConfigTable = ConfigTable {
    header: "[fleet]",
    meaning: "Several proxies as one cache: a purge reaches all of them, and they can share the keys.",
    groups: &[&[
        key(
            "name",
            "NAME",
            "\"nectary\"",
            "\"edge\"",
            "The name of the fleet. Nodes with the same name and the same etcd are one fleet.",
        ),
        key("node", "NAME", "required", "\"a\"", "The name of this node, which no other node of the fleet has."),
        key("zone", "NAME", "none", "\"rack-7\"", "Where this node is, for the status."),
        key(
            "address",
            "HOST:PORT",
            "none",
            "\"10.0.0.1:7443\"",
            "Where the other nodes reach this one, which then shares the keys with them. Its host is in cert.",
        ),
        key(
            "listen",
            "ADDRESS",
            "every address, and the port of address",
            "\"10.0.0.1:7443\"",
            "Where this node listens for the others.",
        ),
        key(
            "cert",
            "FILE",
            "none",
            "\"/etc/nectary/fleet.pem\"",
            "PEM file with the certificate of this node, for both sides.",
        ),
        key("key", "FILE", "none", "\"/etc/nectary/fleet.key\"", "PEM file with its private key."),
        key(
            "ca",
            "FILE",
            "none",
            "\"/etc/nectary/fleet-ca.pem\"",
            "PEM file with certificates that have signed those of all nodes. They must sign nothing else.",
        ),
        key(
            "etcd",
            "list of URL",
            "required",
            "[\"https://10.0.0.9:2379\"]",
            "The members of etcd, http or https; any of them may be away.",
        ),
        key(
            "etcd-ca",
            "FILE",
            "the system's",
            "\"/etc/nectary/etcd-ca.pem\"",
            "PEM file with certificates that may sign those of etcd.",
        ),
        key(
            "etcd-cert",
            "FILE",
            "none",
            "\"/etc/nectary/etcd.pem\"",
            "PEM file with the certificate that is shown to etcd; with etcd-key.",
        ),
        key("etcd-key", "FILE", "none", "\"/etc/nectary/etcd.key\"", "PEM file with its private key."),
        key(
            "lease",
            "TIME",
            "\"10s\"",
            "\"5s\"",
            "How long a node that is cut off still counts as living, whole seconds from 2s to 5m. Purges wait for it so long.",
        ),
        key(
            "serve-when-cut",
            "TIME",
            "\"60s\"",
            "\"10s\"",
            "How long a node without a word from etcd serves from its store; then origins answer every request.",
        ),
        key(
            "validate-when-cut",
            "N/PERIOD",
            "\"100/s\"",
            "\"20/s\"",
            "Requests to origins in a period (s or min) while the store may not be used; others get 503 with Retry-After.",
        ),
        key(
            "purge-when-cut",
            "\"fail\" or \"queue\"",
            "\"fail\"",
            "\"queue\"",
            "What becomes of a purge while etcd is away: an error, or it waits in memory and is made here at once.",
        ),
        key("purge-queue-max", "N", "1000", "100", "Purges that wait for etcd; others are refused."),
        key(
            "purge-answer",
            "\"applied\" or \"accepted\"",
            "\"applied\"",
            "\"accepted\"",
            "When a purge is answered that does not say it: when every living node has applied it, or when it is in the log.",
        ),
        key(
            "purge-time",
            "TIME",
            "\"20s\"",
            "\"5s\"",
            "How long a purge waits until it is applied; then the answer names the nodes that are missing.",
        ),
        key(
            "purge-rate",
            "N/PERIOD",
            "\"1000/s\"",
            "\"100/s\"",
            "Purges that this node accepts in a period (s or min).",
        ),
        key(
            "purge-log-size",
            "SIZE",
            "\"64M\"",
            "\"16M\"",
            "Size of the log, and of a minute's purges: 1M to 1G. A node that misses removed ones purges everything.",
        ),
        key("purge-log-age", "TIME", "\"1d\"", "\"12h\"", "How long purges stay in the log."),
    ]],
};
