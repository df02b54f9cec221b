//! Writes sites, routes and the forward proxy.
//!
//! Owns: the values of their keys.

use super::value_text::{given_list, list, number, optional, size, switch, text, time};
use super::writer::{Entries, inline, pairs};
use crate::keys;
use crate::place::{LocatedValue, Setting};
use crate::quantity::exact_time;
use crate::values::{
    AccessRules, ForwardConfig, HeaderEdits, IpNetwork, KeyRules, NameFilter, NamePattern, RedirectConfig, RequestRate,
    RouteAction, RouteConfig, RouteRules, SiteConfig,
};

/// The keys of `[forward-proxy]`.
pub(super) fn forward_entries(forward: &ForwardConfig) -> Entries {
    let ports = forward.connect_ports.as_ref().map(|ports| given_list(ports, ToString::to_string));
    let mut entries =
        vec![("allow", list(&forward.allow, |network| text(&network.to_string()))), ("connect-ports", ports)];
    entries.extend(rules(&forward.rules));
    entries
}

/// The keys of a `[[site]]`, without its routes.
pub(super) fn site_entries(site: &SiteConfig) -> Entries {
    let mut entries =
        vec![("names", list(&site.names, |name| text(&name.to_string()))), ("default", switch(&site.default))];
    entries.extend(access(&site.access));
    entries.push(rate(&site.client_requests));
    entries
}

/// The keys of a `[[site.route]]`.
pub(super) fn route_entries(route: &RouteConfig) -> Entries {
    let (origin, redirect) = match &route.action {
        RouteAction::Origin(name) => (Some(text(name)), None),
        RouteAction::Redirect(redirect) => (None, Some(redirect_text(redirect))),
    };
    let mut entries = vec![
        ("path", Some(text(&route.path.to_string()))),
        ("origin", origin),
        ("redirect", redirect),
        ("request-headers", edits(&route.request_headers)),
        ("response-headers", edits(&route.response_headers)),
    ];
    entries.extend(rules(&route.rules));
    entries.extend(access(&route.access));
    entries.push(rate(&route.client_requests));
    entries
}

fn redirect_text(redirect: &RedirectConfig) -> String {
    let entries = vec![
        ("to", Some(text(&redirect.to))),
        ("status", number(&redirect.status)),
        ("keep-path", switch(&redirect.keep_path)),
    ];
    inline(&keys::REDIRECT, entries)
}

fn rate(rate: &Setting<RequestRate>) -> (&'static str, Option<String>) {
    ("client-requests", optional(rate, |rate| text(&rate.to_string())))
}

fn access(access: &AccessRules) -> Entries {
    let networks = |networks: &[LocatedValue<IpNetwork>]| list(networks, |network| text(&network.to_string()));
    vec![("allow", networks(&access.allow)), ("deny", networks(&access.deny))]
}

fn edits(edits: &HeaderEdits) -> Option<String> {
    if edits.is_empty() {
        return None;
    }
    let set = edits.set.iter().map(|header| (header.name.value.clone(), text(&header.value))).collect::<Vec<_>>();
    let set = (!set.is_empty()).then(|| pairs(set));
    Some(inline(&keys::HEADERS, vec![("set", set), ("remove", list(&edits.remove, |name| text(name)))]))
}

fn rules(rules: &RouteRules) -> Entries {
    let KeyRules { query, cookies, cookies_key, key_headers } = &rules.key;
    let patterns = |patterns: &[LocatedValue<NamePattern>]| given_list(patterns, |pattern| text(&pattern.to_string()));
    let filter = |filter: &Setting<NameFilter>| match filter.as_ref().map(|filter| &filter.value) {
        Some(NameFilter::Ignore(names)) => (Some(patterns(names)), None),
        Some(NameFilter::Keep(names)) => (None, Some(patterns(names))),
        None => (None, None),
    };
    let (query_ignore, query_keep) = filter(query);
    let (cookies_ignore, cookies_keep) = filter(cookies);
    let lifetimes = &rules.lifetimes;
    let statuses = lifetimes.status_ttl.iter().map(|(status, ttl)| (status.to_string(), text(&exact_time(ttl.value))));
    let status_ttl = (!lifetimes.status_ttl.is_empty()).then(|| pairs(statuses.collect()));
    vec![
        ("pass", switch(&rules.pass)),
        ("default-ttl", time(&lifetimes.default_ttl)),
        ("status-ttl", status_ttl),
        ("stale-unreachable", time(&lifetimes.stale_unreachable)),
        ("stale-while-revalidate", time(&lifetimes.stale_while_revalidate)),
        ("query-ignore", query_ignore),
        ("query-keep", query_keep),
        ("cookies-ignore", cookies_ignore),
        ("cookies-keep", cookies_keep),
        ("cookies-key", list(cookies_key, |name| text(name))),
        ("key-headers", list(key_headers, |name| text(name))),
        ("ignore-request-cache-control", switch(&rules.ignore_request_cache_control)),
        ("store-set-cookie", switch(&rules.store_set_cookie)),
        ("part-size", size(&rules.part_size)),
        ("strip-tags", switch(&rules.strip_tags)),
        ("tags", list(&rules.tags, |tag| text(tag))),
    ]
}
