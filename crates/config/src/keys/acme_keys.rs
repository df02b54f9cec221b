//! The keys of certificates that are ordered.
//!
//! Owns: the keys of `[tls.acme]`.

use super::{ConfigTable, key};

/// `[tls.acme]`.
pub const ACME: ConfigTable = ConfigTable {
    header: "[tls.acme]",
    meaning: "Certificates that the proxy orders and renews itself by ACME, one for each name.",
    groups: &[&[
        key(
            "directory",
            "URL",
            "that of Let's Encrypt",
            "\"https://acme-staging-v02.api.letsencrypt.org/directory\"",
            "Directory of the authority.",
        ),
        key(
            "contact",
            "list of MAIL",
            "[]",
            "[\"admin@example.org\"]",
            "Mail addresses that the authority is told when the account is made.",
        ),
        key(
            "accept-terms",
            "BOOL",
            "required",
            "true",
            "Whether you accept the terms of the authority. Only true is allowed: without it there is no certificate.",
        ),
        key(
            "names",
            "list of HOST",
            "those of all sites",
            "[\"example.org\"]",
            "Names that get a certificate. Addresses, wildcards and names that a [[tls.certificate]] is for get none.",
        ),
        key(
            "state",
            "FILE",
            "\"/var/lib/nectary/acme\"",
            "\"/srv/acme\"",
            "Directory of the account and the certificates; it is made if it is absent.",
        ),
        key(
            "challenge",
            "\"http-01\" or \"tls-alpn-01\"",
            "\"http-01\"",
            "\"tls-alpn-01\"",
            "How the authority checks a name: at port 80, or at port 443.",
        ),
        key(
            "ca",
            "FILE",
            "the system's",
            "\"/etc/nectary/acme-ca.pem\"",
            "PEM file of certificates that are trusted for the authority's server.",
        ),
    ]],
};
