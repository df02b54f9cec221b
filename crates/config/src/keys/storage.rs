//! The keys of the store and of the limits.
//!
//! Owns: the keys of `[store]` and `[limits]`. They have the names of the options of `nectary proxy`; for the limits by
//! client network there are no options.

use super::{ConfigTable, key};

/// `[store]`.
pub const STORE: ConfigTable = ConfigTable {
    header: "[store]",
    meaning: "The store of responses.",
    groups: &[&[
        key(
            "device",
            "SPEC",
            "required",
            "\"/var/lib/nectary/store\"",
            "Device of the store, made if it is absent: a path, disk:/dev/sdb or memory:2G.",
        ),
        key("spans", "list of SPEC", "[]", "[\"disk:/dev/sdc\"]", "The other devices of a store on several."),
        key(
            "forget-if-spans-missing",
            "BOOL",
            "false",
            "true",
            "Whether to begin empty instead of failing, if the missing spans may have served without the others.",
        ),
        key("size", "SIZE", "\"4G\"", "\"64G\"", "Size of a store that is created, or of each of its spans."),
        key("memory", "SIZE", "\"256M\", or half of what there is", "\"2G\"", "Memory for objects, index and buffers."),
        key(
            "io",
            "\"auto\", \"uring\" or \"posix\"",
            "\"auto\"",
            "\"posix\"",
            "How devices are read and written. auto is io_uring if the kernel allows it.",
        ),
        key(
            "disk-deadline",
            "TIME",
            "\"2s\"",
            "\"500ms\"",
            "How long an operation of the disk may take: then a read is a miss, and a purge fails. 0s for no bound.",
        ),
        key(
            "admit",
            "\"all\" or \"second-request\"",
            "\"all\"",
            "\"second-request\"",
            "Which objects are written to the disk: all, or only those that are requested again.",
        ),
        key(
            "admit-bytes-min",
            "SIZE",
            "\"0\"",
            "\"100\"",
            "Responses with shorter bodies are not written to the disk.",
        ),
        key("admit-bytes-max", "SIZE", "none", "\"100M\"", "Responses with longer bodies are not written to the disk."),
        key(
            "write-budget",
            "SIZE/PERIOD",
            "none",
            "\"50G/day\"",
            "How much may be written to the disk in a period: s, min, h or day.",
        ),
        key(
            "reinsert",
            "PERCENT",
            "the store's",
            "10",
            "How much of a segment is rewritten before it is overwritten, of requested objects: 0 to 50.",
        ),
        key(
            "rewrite",
            "PERCENT",
            "the store's",
            "20",
            "How much may be rewritten from memory, of what is admitted to the disk: 0 to 100.",
        ),
        key(
            "cluster-read",
            "\"auto\", \"cluster\" or \"object\"",
            "\"auto\"",
            "\"object\"",
            "The extent of a read from the disk. auto is whichever has recently saved reads.",
        ),
        key(
            "cluster-size",
            "SIZE",
            "\"64K\"",
            "\"128K\"",
            "Size of a cluster, in which a page's objects are kept beside it: a power of two from 4K to 1M, or 0 for none.",
        ),
    ]],
};

/// `[limits]`.
pub const LIMITS: ConfigTable = ConfigTable {
    header: "[limits]",
    meaning: "Sizes, counts and times that clients and origins could otherwise choose.",
    groups: &[&[
        key(
            "connections-max",
            "N",
            "10000",
            "50000",
            "Connections of clients at a time; others get 503. It is less where the limit of open files does not suffice.",
        ),
        key(
            "client-connections-max",
            "N",
            "no limit",
            "100",
            "Connections of one client network (an IPv4 address, or an IPv6 /64) at a time; further ones get 429, or \
             are closed at a listener with TLS.",
        ),
        key(
            "client-requests",
            "N/PERIOD",
            "no limit",
            "\"50/s\"",
            "Requests of one client network in a period (s or min), which may also come at once; further ones get 429 \
             with Retry-After.",
        ),
        key("request-head-max", "SIZE", "\"32K\"", "\"16K\"", "The longest head of a request: 1K to 16M."),
        key("response-head-max", "SIZE", "\"32K\"", "\"64K\"", "The longest head of an origin's response: 1K to 16M."),
        key("headers-max", "N", "100", "200", "Headers of a request or response: 1 to 10000."),
        key("url-max", "SIZE", "\"8000\"", "\"16K\"", "The longest URL, at most as long as a request's head."),
        key("upload-max", "SIZE", "\"1G\"", "\"100M\"", "The longest body of a request."),
        key(
            "fills-max",
            "N",
            "1000",
            "500",
            "Fetches for the store at a time, in each worker; others are passed on and not stored.",
        ),
        key(
            "range-start-max",
            "SIZE",
            "\"16M\"",
            "\"64M\"",
            "A range that starts beyond this is fetched alone and not stored.",
        ),
        key("origin-idle-max", "N", "128", "32", "Unused connections that each worker keeps to one origin."),
        key("head-time", "TIME", "\"20s\"", "\"10s\"", "How long the head of a request may take."),
        key("keep-alive", "TIME", "\"75s\"", "\"30s\"", "How long a client's connection stays open without a request."),
        key(
            "client-silence",
            "TIME",
            "\"60s\"",
            "\"20s\"",
            "How long a client may send nothing of its request's body. 0s for any time.",
        ),
        key(
            "send-silence",
            "TIME",
            "\"60s\"",
            "\"20s\"",
            "How long a client or an origin may take no byte of what is sent to it. 0s for any time.",
        ),
        key(
            "connect-time",
            "TIME",
            "\"10s\"",
            "\"3s\"",
            "How long connecting to an origin may take, at all its addresses and with TLS.",
        ),
        key(
            "first-byte",
            "TIME",
            "\"60s\"",
            "\"30s\"",
            "How long an origin may take from the request to the end of the response's head.",
        ),
        key(
            "origin-silence",
            "TIME",
            "\"60s\"",
            "\"20s\"",
            "How long an origin may send nothing of a response's body. 0s for any time.",
        ),
        key("origin-keep-alive", "TIME", "\"30s\"", "\"10s\"", "How long an unused connection to an origin is kept."),
        key(
            "tunnel-silence",
            "TIME",
            "\"10m\"",
            "\"1h\"",
            "How long a tunnel (CONNECT, WebSocket) may carry nothing in either direction. 0s for any time.",
        ),
        key("drain", "TIME", "\"30s\"", "\"2m\"", "How long responses may go on after SIGTERM."),
    ]],
};
