//! The keys of what belongs to the process: listeners, TLS, administration and the log.
//!
//! Owns: the keys of `[server]`, `[[listener]]`, `[tls]`, `[admin]` and `[log]`.

use super::{ConfigTable, key};

/// `[server]`.
pub const SERVER: ConfigTable = ConfigTable {
    header: "[server]",
    meaning: "What belongs to the whole process.",
    groups: &[&[
        key(
            "workers",
            "N",
            "one for each processor",
            "4",
            "Threads that serve, each with its own connections: 1 to 1024.",
        ),
        key(
            "trust-forwarded",
            "list of NET",
            "[]",
            "[\"10.0.0.0/8\"]",
            "Proxies in front of this one, whose X-Forwarded-For and X-Real-IP are passed on, and any other X-Forwarded-* \
             that key-headers names. From others they are removed.",
        ),
        key(
            "send-forwarded",
            "BOOL",
            "true",
            "false",
            "Whether origins are told who asked: Forwarded, X-Forwarded-For and X-Forwarded-Proto.",
        ),
    ]],
};

/// `[[listener]]`.
pub const LISTENER: ConfigTable = ConfigTable {
    header: "[[listener]]",
    meaning: "An address for clients. There is at least one.",
    groups: &[&[
        key(
            "address",
            "ADDRESS",
            "required",
            "\"0.0.0.0:443\"",
            "IP address and port, :80 for every address, or unix: and the path of a socket.",
        ),
        key("tls", "BOOL", "false", "true", "Whether clients use TLS here. [tls] then has a certificate."),
        key(
            "redirect-to-https",
            "BOOL",
            "false",
            "true",
            "Whether clients are sent to the same URL with https, at the first listener with TLS.",
        ),
        key(
            "proxy-protocol-from",
            "list of NET, or [\"unix\"]",
            "[]",
            "[\"10.0.0.0/8\"]",
            "Peers that begin each connection with the PROXY protocol (version 1 or 2), whose client's address then counts. \
             \"unix\" are those of a Unix socket.",
        ),
        key(
            "socket-mode",
            "MODE",
            "\"0666\"",
            "\"0660\"",
            "Permissions of the file of a Unix socket. Who may write to it may connect.",
        ),
    ]],
};

/// `[tls]`.
pub const TLS: ConfigTable = ConfigTable {
    header: "[tls]",
    meaning: "TLS with clients, at every listener with tls = true.",
    groups: &[&[
        key(
            "certificate",
            "list of tables",
            "none",
            "see below",
            "The certificates. The one for the name that a client asks for counts.",
        ),
        key("acme", "table", "none", "see below", "Certificates that the proxy orders itself."),
        key(
            "unknown-name",
            "\"first\" or \"refuse\"",
            "\"first\"",
            "\"refuse\"",
            "What a client gets that asks for a name without a certificate: the first certificate, or no connection.",
        ),
        key("version-min", "\"1.2\" or \"1.3\"", "\"1.2\"", "\"1.3\"", "The lowest version of TLS."),
        key(
            "client-ca",
            "FILE",
            "none",
            "\"/etc/nectary/clients.pem\"",
            "PEM file. Clients must then show a certificate that one of these has signed.",
        ),
    ]],
};

/// `[[tls.certificate]]`.
pub const CERTIFICATE: ConfigTable = ConfigTable {
    header: "[[tls.certificate]]",
    meaning: "A certificate for clients.",
    groups: &[&[
        key(
            "cert",
            "FILE",
            "required",
            "\"/etc/nectary/example.org.pem\"",
            "PEM file with the certificate and its chain.",
        ),
        key("key", "FILE", "required", "\"/etc/nectary/example.org.key\"", "PEM file with its private key."),
    ]],
};

/// `[admin]`.
pub const ADMIN: ConfigTable = ConfigTable {
    header: "[admin]",
    meaning: "Who may administer the proxy over HTTP.",
    groups: &[&[
        key(
            "listen",
            "ADDRESS, or a list",
            "none",
            "\"127.0.0.1:9180\"",
            "Addresses for PURGE, the operators' page, /metrics, /healthz and /readyz. Without a token these are loopback \
             addresses and Unix sockets.",
        ),
        key(
            "socket-mode",
            "MODE",
            "\"0600\"",
            "\"0660\"",
            "Permissions of the files of Unix sockets in listen. Who may write to one needs no token there.",
        ),
        key(
            "token-file",
            "FILE",
            "none",
            "\"/etc/nectary/token\"",
            "File with the token that PURGE must show. With it, PURGE is served on every address.",
        ),
        key("relayed", "BOOL", "false", "true", "Whether PURGE is served also if it has passed another proxy."),
    ]],
};

/// `[log]`.
pub const LOG: ConfigTable = ConfigTable {
    header: "[log]",
    meaning: "A line for each request.",
    groups: &[&[
        key(
            "access",
            "FILE, \"-\" or \"none\"",
            "\"none\"",
            "\"/var/log/nectary/access.log\"",
            "Where the lines go: a file, the standard output, or nowhere.",
        ),
        key("format", "\"combined\" or \"json\"", "\"combined\"", "\"json\"", "The form of the lines."),
    ]],
};
