//! The keys of origins.
//!
//! Owns: the keys of `[origins.NAME]` and of its tables.

use super::{ConfigTable, key};

/// `[origins.NAME]`.
pub const ORIGIN: ConfigTable = ConfigTable {
    header: "[origins.NAME]",
    meaning: "Servers that give the same responses. Routes refer to them by NAME: letters, digits, -, _ and dots.",
    groups: &[&[
        key(
            "servers",
            "list of URL or table",
            "required without srv",
            "[\"http://10.0.0.5:3000\"]",
            "The servers. A URL has a scheme (http or https), a host and perhaps a port; or it is unix: and the path of a socket.",
        ),
        key(
            "srv",
            "NAME",
            "none",
            "\"_http._tcp.app.internal\"",
            "The name of SRV records that name the servers, with ports, priorities and weights; looked up by their lifetime. \
             servers are asked when all of these are out.",
        ),
        key("srv-tls", "BOOL", "false", "true", "Whether the servers that srv names have TLS."),
        key(
            "host",
            "\"own\", \"site\", \"client\" or HOST",
            "\"own\"",
            "\"client\"",
            "The Host that servers get: of their URL, or the domain of srv; the site's first name; the client's (it is then \
             in the key); or this.",
        ),
        key(
            "balance",
            "\"round-robin\", \"least-outstanding\" or \"hash\"",
            "\"round-robin\"",
            "\"hash\"",
            "Which server gets a request: one after another, the one with the fewest under way, or the same for a key.",
        ),
        key(
            "store-close-delimited",
            "BOOL",
            "true",
            "false",
            "Whether bodies that end with the connection are stored. false is for servers that break off and close cleanly.",
        ),
        key(
            "http2",
            "BOOL",
            "false",
            "true",
            "Whether requests share connections of HTTP/2: with https servers that offer it, and with all others.",
        ),
        key("connect-time", "TIME", "that of [limits]", "\"2s\"", "How long connecting may take, with TLS."),
        key(
            "first-byte",
            "TIME",
            "that of [limits]",
            "\"30s\"",
            "How long a server may take from the request to the end of the response's head.",
        ),
        key(
            "silence",
            "TIME",
            "origin-silence of [limits]",
            "\"10s\"",
            "How long a server may send nothing of a body. 0s for any time.",
        ),
        key("total-time", "TIME", "\"0s\"", "\"5m\"", "How long a whole response may take. 0s for any time."),
        key("keep-alive", "TIME", "origin-keep-alive of [limits]", "\"10s\"", "How long an unused connection is kept."),
        key("idle-max", "N", "origin-idle-max of [limits]", "32", "Unused connections that each worker keeps."),
        key(
            "connections-max",
            "N",
            "no limit",
            "200",
            "Connections to each server at a time, of all workers together.",
        ),
        key(
            "queue-max",
            "N",
            "100",
            "50",
            "Requests that wait for a connection, where connections-max limits them; others get 503.",
        ),
        key("queue-time", "TIME", "\"5s\"", "\"1s\"", "How long a request waits for a connection; then it gets 503."),
        key(
            "retries",
            "N",
            "1",
            "2",
            "How often a request is sent again, to another server if there is one, if nothing was answered and its method \
             allows it: 0 to 10.",
        ),
        key(
            "ca",
            "FILE",
            "none",
            "\"/etc/nectary/origin-ca.pem\"",
            "PEM file with certificates that may sign those of servers, in addition to the system's.",
        ),
        key(
            "tls-name",
            "HOST",
            "the host of the URL, or the domain of srv",
            "\"app.internal\"",
            "The name that the certificates of the servers must have.",
        ),
        key(
            "client-cert",
            "FILE",
            "none",
            "\"/etc/nectary/client.pem\"",
            "PEM file with the certificate that is shown to servers; with client-key.",
        ),
        key("client-key", "FILE", "none", "\"/etc/nectary/client.key\"", "PEM file with its private key."),
        key("check", "table", "none", "{ path = \"/health\" }", "Requests that ask whether a server works."),
        key("eject", "table", "see below", "{ failures = 5 }", "When a server that fails gets no more requests."),
    ]],
};

/// One element of `servers` that is a table.
pub const ORIGIN_SERVER: ConfigTable = ConfigTable {
    header: "servers = [{ … }]",
    meaning: "A server with a weight.",
    groups: &[&[
        key("url", "URL", "required", "\"https://10.0.0.6\"", "Its URL."),
        key("weight", "N", "1", "2", "Its share of the requests, relative to the others': 0 to 1000. 0 gets none."),
    ]],
};

/// `check` of an origin.
pub const CHECK: ConfigTable = ConfigTable {
    header: "check = { … }",
    meaning: "Requests that ask whether a server of an origin works.",
    groups: &[&[
        key(
            "path",
            "PATH",
            "required",
            "\"/health\"",
            "Path and query of the GET request. Its Host is that of the server's URL, or the one that host fixes.",
        ),
        key("interval", "TIME", "\"10s\"", "\"2s\"", "The time from one request to the next."),
        key("time", "TIME", "\"5s\"", "\"1s\"", "How long a response may take."),
        key("status", "list of STATUS", "200 to 299", "[200, 204]", "The statuses that say that it works."),
    ]],
};

/// `eject` of an origin.
pub const EJECT: ConfigTable = ConfigTable {
    header: "eject = { … }",
    meaning: "When a server that fails gets no more requests, until a copy of one, whose answer nobody waits for, shows that it works. If all servers of an origin fail, all are asked.",
    groups: &[&[
        key("failures", "N", "3", "5", "How many requests, or checks, in a row must fail: 1 to 1000."),
        key("time", "TIME", "\"1s\"", "\"30s\"", "The time from one such copy to the next."),
    ]],
};
