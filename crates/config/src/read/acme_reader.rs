//! Reads `[tls.acme]`.
//!
//! Owns: its bounds, and that the terms are accepted. Leaves to others: whether there is a name and a listener for it
//! (`consistency`).

use std::collections::HashSet;

use super::findings::ReadFindings;
use super::table_reader::TableReader;
use crate::place::LocatedValue;
use crate::problem::quoted;
use crate::text::{acme_directory, certificate_name, mail_address};
use crate::values::{AcmeChallenge, AcmeConfig};

/// Why the terms must be accepted.
const TERMS: &str =
    "authorities give certificates only to who accepts their terms: read them, and write `accept-terms = true`";

/// Reads `[tls.acme]`.
pub(super) fn acme(out: &mut ReadFindings, table: &TableReader<'_>) -> LocatedValue<AcmeConfig> {
    let accept_terms = table.switch(out, "accept-terms");
    match accept_terms {
        None if table.get("accept-terms").is_none() => {
            out.unfit(table.place, "`accept-terms` is missing in [tls.acme]", TERMS);
        }
        Some(terms) if !terms.value => out.wrong(terms.place, "`accept-terms` cannot be false", TERMS),
        _ => {}
    }
    let names = table.given_list(out, "names", certificate_name);
    if table.get("names").is_some_and(|value| value.get_ref().as_array().is_some_and(|list| list.is_empty())) {
        let help = "write a name, or leave the key out: then all names of sites get a certificate";
        let place = table.key_place(out, "names");
        out.unfit(place, "`names` is empty", help);
    }
    let names = names.unwrap_or_default();
    let mut known = HashSet::new();
    for name in &names {
        if !known.insert(&name.value) {
            let message = format!("the name {} is given twice", quoted(&name.value));
            out.unfit(name.place, message, "each name gets one certificate: leave it out");
        }
    }
    let challenges = [("http-01", AcmeChallenge::Http01), ("tls-alpn-01", AcmeChallenge::TlsAlpn01)];
    let acme = AcmeConfig {
        directory: table.text(out, "directory", acme_directory),
        contact: table.list(out, "contact", mail_address),
        accept_terms,
        names,
        state: table.file(out, "state"),
        challenge: table.choice(out, "challenge", &challenges),
        ca: table.file(out, "ca"),
    };
    LocatedValue::new(acme, table.place)
}
