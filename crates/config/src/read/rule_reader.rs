//! Reads the rules of a route: caching, access, and changes of headers.
//!
//! Owns: their bounds, and what must fit within them.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::findings::ReadFindings;
use super::table_reader::{LIST_MAX, TableReader, TimeBound, text_element, time_in};
use crate::keys;
use crate::place::{LocatedValue, Setting, SourcePosition};
use crate::problem::quoted;
use crate::text::{Read, header_value, name_pattern, network, plain_name, settable_header, tag};
use crate::values::{AccessRules, HeaderEdits, HeaderValue, KeyRules, LifetimeRules, NameFilter, RouteRules};

/// The sizes that parts of bodies may have. *Units*: bytes.
const PART_BYTES: RangeInclusive<u64> = 64 << 10..=64 << 20;

/// Reads the rules of caching.
pub(super) fn rules(out: &mut ReadFindings, table: &TableReader<'_>) -> RouteRules {
    let rules = RouteRules {
        key: KeyRules {
            query: filter(out, table, "query-ignore", "query-keep"),
            cookies: filter(out, table, "cookies-ignore", "cookies-keep"),
            cookies_key: table.list(out, "cookies-key", plain_name),
            key_headers: table.list(out, "key-headers", settable_header),
        },
        lifetimes: LifetimeRules {
            default_ttl: table.time(out, "default-ttl", TimeBound::Lifetime),
            status_ttl: status_ttl(out, table),
            stale_unreachable: table.time(out, "stale-unreachable", TimeBound::Lifetime),
            stale_while_revalidate: table.time(out, "stale-while-revalidate", TimeBound::Lifetime),
        },
        pass: table.switch(out, "pass"),
        part_size: table.size(out, "part-size", PART_BYTES),
        ignore_request_cache_control: table.switch(out, "ignore-request-cache-control"),
        store_set_cookie: table.switch(out, "store-set-cookie"),
        strip_tags: table.switch(out, "strip-tags"),
        tags: table.list(out, "tags", tag),
    };
    doubts(out, table, &rules);
    rules
}

/// Tells what is probably not meant.
fn doubts(out: &mut ReadFindings, table: &TableReader<'_>, rules: &RouteRules) {
    if rules.pass.is_some_and(|pass| pass.value) {
        let lifetimes = &rules.lifetimes;
        let given = [
            ("default-ttl", lifetimes.default_ttl.is_some()),
            ("status-ttl", !lifetimes.status_ttl.is_empty()),
            ("stale-unreachable", lifetimes.stale_unreachable.is_some()),
            ("stale-while-revalidate", lifetimes.stale_while_revalidate.is_some()),
            ("part-size", rules.part_size.is_some()),
            ("tags", !rules.tags.is_empty()),
        ];
        for (name, is_given) in given {
            if is_given {
                let message = format!("`{name}` has no effect with `pass = true`");
                out.doubt(table.key_place(out, name), message, "with `pass` nothing is stored");
            }
        }
    }
    for cookie in &rules.key.cookies_key {
        if rules.key.cookies.as_ref().is_some_and(|filter| !filter.keeps(cookie)) {
            let message = format!("the cookie {} is in the key, but it is removed before", quoted(cookie));
            out.doubt(cookie.place, message, "change `cookies-ignore` or `cookies-keep`");
        }
    }
}

/// Reads a list of what is removed, or one of what remains.
fn filter(out: &mut ReadFindings, table: &TableReader<'_>, ignore: &str, keep: &str) -> Setting<NameFilter> {
    let ignored = table.given_list(out, ignore, name_pattern);
    let kept = table.given_list(out, keep, name_pattern);
    if table.get(ignore).is_some() && table.get(keep).is_some() {
        let place = table.key_place(out, ignore).max(table.key_place(out, keep));
        let help = format!("leave out one of them: {keep} alone removes all that it does not name");
        out.unfit(place, format!("`{ignore}` and `{keep}` are given together"), help);
    }
    let place = |name: &str| table.get(name).map(|value| out.place(value.span())).unwrap_or_default();
    match (ignored, kept) {
        (Some(list), _) => Some(LocatedValue::new(NameFilter::Ignore(list), place(ignore))),
        (None, Some(list)) => Some(LocatedValue::new(NameFilter::Keep(list), place(keep))),
        (None, None) => None,
    }
}

fn status_ttl(out: &mut ReadFindings, table: &TableReader<'_>) -> Vec<(LocatedValue<u16>, LocatedValue<Duration>)> {
    let mut list = Vec::new();
    for (key, value) in table.entries(out, "status-ttl", "a table such as { 404 = \"1m\" }") {
        let is_number = key.len() == 3 && key.bytes().all(|byte| byte.is_ascii_digit());
        let status = key.parse::<u16>().ok().filter(|status| is_number && (200..=599).contains(status));
        if status.is_none() {
            out.wrong(key.place, format!("{} is not a status", quoted(key.value)), "allowed: 200 to 599");
        }
        let time = time_in(out, "a lifetime in `status-ttl`", value, TimeBound::Lifetime);
        list.extend(status.map(|status| LocatedValue::new(status, key.place)).zip(time));
    }
    list
}

/// Reads who may use a site or a route.
pub(super) fn access(out: &mut ReadFindings, table: &TableReader<'_>) -> AccessRules {
    let access = AccessRules { allow: table.list(out, "allow", network), deny: table.list(out, "deny", network) };
    if table.get("allow").is_some_and(|value| value.get_ref().as_array().is_some_and(|list| list.is_empty())) {
        let help = "leave it out to allow everyone, or write `deny = [\"0.0.0.0/0\", \"::/0\"]` to allow nobody";
        out.wrong(table.key_place(out, "allow"), "`allow` is empty", help);
    }
    access
}

/// Reads changes of headers.
pub(super) fn edits(out: &mut ReadFindings, table: &TableReader<'_>, name: &str) -> HeaderEdits {
    let Some(inner) = table.table(out, name, &keys::HEADERS) else { return HeaderEdits::default() };
    let mut names = HashSet::new();
    let mut set = Vec::new();
    for (key, value) in inner.entries(out, "set", "a table such as { x-served-by = \"nectary\" }") {
        let header = once(out, &mut names, settable_header(key.value), key.place);
        let value = text_element(out, "set", value, header_value);
        set.extend(header.zip(value).map(|(name, value)| HeaderValue { name, value }));
    }
    let read = inner.elements(out, "remove", "a list such as [\"server\"]", LIST_MAX);
    let mut remove = Vec::new();
    for element in read.into_iter().flatten() {
        let Some(text) = text_element(out, "remove", element, |text| Ok(text.to_owned())) else { continue };
        remove.extend(once(out, &mut names, settable_header(&text.value), text.place));
    }
    HeaderEdits { set, remove }
}

/// A name that is right, and was not read before.
fn once(
    out: &mut ReadFindings,
    names: &mut HashSet<String>,
    read: Read<String>,
    place: SourcePosition,
) -> Setting<String> {
    match read {
        Ok(name) if names.insert(name.clone()) => Some(LocatedValue::new(name, place)),
        Ok(name) => {
            let help = "a header is set or removed once; capital letters do not count in names";
            out.unfit(place, format!("the header {} is given twice", quoted(&name)), help);
            None
        }
        Err(wrong) => {
            out.wrong_text(place, wrong);
            None
        }
    }
}
