//! What does not fit together in a file whose values are right.
//!
//! Owns: the rules between tables: names and addresses that are given twice, names that are missing, keys that need
//! others.

use std::collections::{HashMap, HashSet};

use super::findings::ReadFindings;
use crate::place::{LocatedValue, SourcePosition};
use crate::problem::quoted;
use crate::quantity::exact_size;
use crate::suggest::nearest;
use crate::values::{
    AcmeChallenge, HeaderSender, ListenAddress, ListenerConfig, LogTarget, ProxyConfig, RouteAction, SiteName,
};

/// Without a key, the longest URL. *Units*: bytes.
const URL_BYTES_MAX: u64 = 8000;
/// Without a key, the longest head of a request. *Units*: bytes.
const HEAD_BYTES_MAX: u64 = 32 << 10;
/// What to do about a key that only Unix sockets have.
const UNIX_HELP: &str = "leave it out, or write an address such as `unix:/run/nectary/http.sock`";
/// The most origins whose names are suggested or listed.
const LISTED_MAX: usize = 100;

/// Tells what does not fit together. `has_listeners` and the like say what the file has, right or wrong.
pub(super) fn check(out: &mut ReadFindings, config: &ProxyConfig) {
    listeners(out, config);
    acme(out, config);
    administration(out, config);
    sites(out, config);
    origins(out, config);
    limits(out, config);
}

fn is_set(setting: &Option<LocatedValue<bool>>) -> bool {
    setting.as_ref().is_some_and(|setting| setting.value)
}

fn listeners(out: &mut ReadFindings, config: &ProxyConfig) {
    let has_tls = config.listeners.iter().any(|listener| is_set(&listener.tls));
    let mut known: HashMap<&ListenAddress, SourcePosition> = HashMap::new();
    for listener in &config.listeners {
        let ListenerConfig { address, tls, redirect_to_https, .. } = &listener.value;
        if let Some(first) = known.insert(&address.value, address.place).filter(|_| !address.is_any_port()) {
            let message = format!("two listeners have the address {}", quoted(&address.to_string()));
            out.unfit(address.place, message, format!("the first is at line {}", first.line));
        }
        let redirect = redirect_to_https.as_ref().filter(|setting| setting.value);
        if let (Some(redirect), true) = (redirect, is_set(tls)) {
            let message = "`redirect-to-https` is set where `tls` is";
            out.unfit(redirect.place, message, "clients of this listener have https already: leave out one of them");
        } else if let (Some(redirect), false) = (redirect, has_tls) {
            let message = "`redirect-to-https` has nowhere to send clients";
            out.unfit(redirect.place, message, "a listener with `tls = true` is needed");
        }
        unix_socket(out, listener);
    }
    let first_tls = config.listeners.iter().find_map(|listener| listener.tls.filter(|tls| tls.value));
    match first_tls {
        Some(tls) if config.tls.certificates.is_empty() && config.tls.acme.is_none() => {
            let help = "write [[tls.certificate]] with `cert` and `key`, or [tls.acme] with `accept-terms = true`";
            out.unfit(tls.place, "a listener has `tls`, and there is no certificate", help);
        }
        None => {
            let certificate = config.tls.certificates.first().map(|certificate| certificate.place);
            let client_ca = config.tls.client_ca.as_ref().map(|file| file.place);
            let acme = config.tls.acme.as_ref().map(|acme| acme.place);
            if let Some(place) = certificate.or(client_ca).or(acme) {
                out.doubt(place, "no listener uses the certificates", "write `tls = true` in a [[listener]]");
            }
        }
        Some(_) => {}
    }
}

/// Peers of a Unix socket have no address, and those of another address are no file's.
fn unix_socket(out: &mut ReadFindings, listener: &ListenerConfig) {
    let is_unix = listener.address.is_unix();
    for sender in &listener.proxy_protocol_from {
        let (message, help) = match (&sender.value, is_unix) {
            (HeaderSender::Network(_), true) => {
                let message =
                    format!("peers of a Unix socket have no address, so none is in {}", quoted(&sender.to_string()));
                (message, "write `proxy-protocol-from = [\"unix\"]` if all of them send the header")
            }
            (HeaderSender::Unix, false) => {
                ("`unix` is for the peers of a Unix socket".to_owned(), "write networks, such as `10.0.0.0/8`")
            }
            _ => continue,
        };
        out.unfit(sender.place, message, help);
    }
    if let (Some(mode), false) = (&listener.socket_mode, is_unix) {
        out.doubt(mode.place, "`socket-mode` has no effect without a Unix socket", UNIX_HELP);
    }
}

/// Certificates that are ordered need a name, and a listener that the authority can ask.
fn acme(out: &mut ReadFindings, config: &ProxyConfig) {
    let Some(acme) = &config.tls.acme else { return };
    if config.acme_names().is_empty() {
        let help = "write `names`, or a [[site]] with a name that is neither a wildcard nor an address";
        out.unfit(acme.place, "[tls.acme] has no name for a certificate", help);
    }
    let challenge = acme.challenge.map_or(AcmeChallenge::Http01, |challenge| challenge.value);
    if let (AcmeChallenge::TlsAlpn01, Some(given), Some(_)) = (challenge, acme.challenge, &config.tls.client_ca) {
        let help = "an authority shows no certificate: write `challenge = \"http-01\"`";
        out.unfit(given.place, "`tls-alpn-01` cannot be answered where `client-ca` is set", help);
    }
    let is_plain = |listener: &LocatedValue<ListenerConfig>| {
        !is_set(&listener.tls) && matches!(listener.address.value, ListenAddress::Socket(_))
    };
    if challenge == AcmeChallenge::Http01 && !config.listeners.iter().any(is_plain) {
        let place = acme.challenge.map_or(acme.place, |challenge| challenge.place);
        let help = "write a [[listener]] at port 80 with `redirect-to-https = true`, or `challenge = \"tls-alpn-01\"`";
        out.doubt(place, "no listener answers the challenge `http-01`", help);
    }
}

fn administration(out: &mut ReadFindings, config: &ProxyConfig) {
    let admin = &config.admin;
    let mut known: HashSet<_> = config.listeners.iter().map(|listener| &listener.address.value).cloned().collect();
    for address in &admin.listen {
        let is_open = match &address.value {
            ListenAddress::Socket(address) => !address.ip().to_canonical().is_loopback(),
            // The permissions of its file say who may connect.
            ListenAddress::Unix(_) => false,
        };
        if is_open && admin.token_file.is_none() {
            let message = format!("the address {} for administration is open to others", quoted(&address.to_string()));
            out.unfit(address.place, message, "write a loopback address, such as `127.0.0.1:9180`, or a `token-file`");
        }
        if !known.insert(address.value.clone()) && !address.is_any_port() {
            let message = format!("the address {} is used twice", quoted(&address.to_string()));
            out.unfit(address.place, message, "administration has its own address");
        }
    }
    if let (Some(mode), false) = (&admin.socket_mode, admin.listen.iter().any(|it| it.is_unix())) {
        out.doubt(mode.place, "`socket-mode` has no effect without a Unix socket", UNIX_HELP);
    }
    if let (Some(relayed), None, true) = (admin.relayed, &admin.token_file, admin.listen.is_empty()) {
        let help = "write `listen` or `token-file`: without them nobody may purge over HTTP";
        out.doubt(relayed.place, "`relayed` has no effect", help);
    }
    let has_log = config.log.access.as_ref().is_some_and(|access| access.value != LogTarget::None);
    if let (Some(format), false) = (&config.log.format, has_log) {
        out.doubt(format.place, "`format` has no effect without `access`", "write `access` and a file, or \"-\"");
    }
}

fn sites(out: &mut ReadFindings, config: &ProxyConfig) {
    let mut names: HashMap<&SiteName, SourcePosition> = HashMap::new();
    let mut default: Option<SourcePosition> = None;
    for site in &config.sites {
        for name in &site.names {
            if let Some(first) = names.get(&name.value) {
                let message = format!("the name {} is given twice", quoted(&name.to_string()));
                let help = format!("the first is at line {}; a name belongs to one site", first.line);
                out.unfit(name.place, message, help);
                continue;
            }
            names.insert(&name.value, name.place);
        }
        if let Some(setting) = site.default.filter(|setting| setting.value) {
            match default {
                Some(first) => {
                    let help = format!("the first is at line {}; at most one site serves all other hosts", first.line);
                    out.unfit(setting.place, "two sites are the default", help);
                }
                None => default = Some(setting.place),
            }
        }
    }
}

fn origins(out: &mut ReadFindings, config: &ProxyConfig) {
    let known: HashSet<&str> = config.origins.iter().map(|origin| origin.name.as_str()).collect();
    let mut used: HashSet<&str> = HashSet::new();
    for route in config.sites.iter().flat_map(|site| &site.routes) {
        let RouteAction::Origin(name) = &route.action else { continue };
        used.insert(name.as_str());
        if known.contains(name.as_str()) || out.is_full() {
            continue;
        }
        let names = || config.origins.iter().map(|origin| origin.name.as_str()).take(LISTED_MAX);
        let listed = names().take(10).map(quoted).collect::<Vec<_>>().join(", ");
        let help = match nearest(name, names()) {
            Some(near) => format!("perhaps {}", quoted(near)),
            None if known.is_empty() => "write [origins.NAME] with this NAME and `servers`".to_owned(),
            None => format!("the origins are {listed}"),
        };
        out.unfit(name.place, format!("there is no origin {}", quoted(name)), help);
    }
    for origin in &config.origins {
        if !used.contains(origin.name.as_str()) {
            let message = format!("no route uses the origin {}", quoted(&origin.name));
            out.doubt(origin.name.place, message, "name it as `origin` of a route, or leave it out");
        }
    }
}

fn limits(out: &mut ReadFindings, config: &ProxyConfig) {
    let (url, head) = (config.limits.url_bytes_max, config.limits.request_head_bytes_max);
    let url_bytes = url.map_or(URL_BYTES_MAX, |url| url.value);
    let head_bytes = head.map_or(HEAD_BYTES_MAX, |head| head.value);
    if let Some(given) = url.or(head).filter(|_| url_bytes > head_bytes) {
        let (url, head) = (exact_size(url_bytes), exact_size(head_bytes));
        let message = format!("`url-max` ({url}) is more than `request-head-max` ({head})");
        out.unfit(
            given.place,
            message,
            "a URL is a part of a head: make `url-max` smaller or `request-head-max` larger",
        );
    }
    let (least, most) = (config.store.admit_bytes_min, config.store.admit_bytes_max);
    if let (Some(least), Some(most)) = (least, most)
        && least.value > most.value
    {
        let (shown_least, shown_most) = (exact_size(least.value), exact_size(most.value));
        let message = format!("`admit-bytes-min` ({shown_least}) is more than `admit-bytes-max` ({shown_most})");
        out.unfit(least.place, message, "no object would be written to the disk");
    }
}
