//! Reads `[[site]]`, `[[site.route]]` and `[forward-proxy]`.
//!
//! Owns: their bounds, and what must fit within one of them. Leaves to others: what must fit between them
//! (`consistency`).

use std::collections::HashMap;

use super::findings::ReadFindings;
use super::rule_reader::{access, edits, rules};
use super::table_reader::{LIST_MAX, TableReader, number_in};
use crate::keys;
use crate::place::{LocatedValue, Setting};
use crate::problem::quoted;
use crate::text::{network, redirect_target, request_rate, route_path, site_name};
use crate::values::{ForwardConfig, RedirectConfig, RouteAction, RouteConfig, RoutePath, SiteConfig};

/// The statuses of redirects.
const REDIRECTS: [u16; 5] = [301, 302, 303, 307, 308];
/// The most ports for tunnels.
const PORTS_MAX: usize = 1000;

/// Reads a `[[site]]`.
pub(super) fn site(out: &mut ReadFindings, table: &TableReader<'_>) -> LocatedValue<SiteConfig> {
    let names = table.given_list(out, "names", site_name);
    let default = table.switch(out, "default");
    let is_default = default.is_some_and(|value| value.value);
    match &names {
        None if !is_default && table.get("names").is_none() => {
            let help = "write for example `names = [\"example.org\"]`, or `default = true` to serve all other hosts";
            out.unfit(table.place, "the site has no `names`", help);
        }
        Some(_) if !is_default && table.get("names").is_some_and(|value| is_empty(value.get_ref())) => {
            let place = table.key_place(out, "names");
            out.unfit(place, "`names` is empty", "write a name, or `default = true` to serve all other hosts");
        }
        _ => {}
    }
    let access = access(out, table);
    let client_requests = table.text(out, "client-requests", request_rate);
    let routes = routes(out, table);
    let site = SiteConfig { names: names.unwrap_or_default(), default, access, client_requests, routes };
    LocatedValue::new(site, table.place)
}

fn is_empty(value: &toml::de::DeValue<'_>) -> bool {
    value.as_array().is_some_and(|elements| elements.is_empty())
}

fn routes(out: &mut ReadFindings, table: &TableReader<'_>) -> Vec<LocatedValue<RouteConfig>> {
    let elements = table.elements(out, "route", "tables, each with a header [[site.route]]", LIST_MAX);
    if elements.as_ref().is_none_or(Vec::is_empty) && table.get("route").is_none_or(|value| is_empty(value.get_ref())) {
        let help = "write for example [[site.route]] with `path = \"/\"` and `origin = \"app\"`";
        out.unfit(table.place, "the site has no routes", help);
    }
    let mut routes: Vec<LocatedValue<RouteConfig>> = Vec::new();
    let mut known: HashMap<RoutePath, u32> = HashMap::new();
    for value in elements.into_iter().flatten() {
        let Some(inner) = TableReader::open(out, &keys::ROUTE, value) else { continue };
        let (path, route) = route(out, &inner);
        let Some(path) = path else { continue };
        match known.get(&path.value) {
            Some(line) => {
                let shown = quoted(&path.value.to_string());
                let help = format!("the first is at line {line}; paths of a site's routes differ");
                out.unfit(path.place, format!("two routes of the site have the path {shown}"), help);
            }
            None => {
                known.insert(path.value.clone(), path.place.line);
            }
        }
        routes.extend(route);
    }
    routes
}

/// Reads a route: its path, if that is right, and all of it, if it is complete.
fn route(out: &mut ReadFindings, table: &TableReader<'_>) -> (Setting<RoutePath>, Option<LocatedValue<RouteConfig>>) {
    let path = match table.get("path") {
        Some(_) => table.text(out, "path", route_path),
        None => Some(LocatedValue::new(RoutePath::Prefix("/".to_owned()), table.place)),
    };
    let action = action(out, table);
    let rules = rules(out, table);
    let (request_headers, response_headers) =
        (edits(out, table, "request-headers"), edits(out, table, "response-headers"));
    let access = access(out, table);
    let client_requests = table.text(out, "client-requests", request_rate);
    let complete = path.clone().zip(action).map(|(path, action)| {
        let route = RouteConfig { path, action, rules, request_headers, response_headers, access, client_requests };
        LocatedValue::new(route, table.place)
    });
    (path, complete)
}

/// Reads what is done with requests: exactly one of `origin` and `redirect`.
fn action(out: &mut ReadFindings, table: &TableReader<'_>) -> Option<RouteAction> {
    let origin = table.text(out, "origin", |text| Ok(text.to_owned()));
    let redirect = table.table(out, "redirect", &keys::REDIRECT).and_then(|inner| redirect(out, &inner));
    match (table.get("origin").is_some(), table.get("redirect").is_some()) {
        (true, false) => origin.map(RouteAction::Origin),
        (false, true) => {
            without_effect(out, table);
            redirect.map(RouteAction::Redirect)
        }
        (true, true) => {
            let place = table.key_place(out, "redirect").max(table.key_place(out, "origin"));
            out.unfit(place, "the route has both `origin` and `redirect`", "leave out one of them");
            None
        }
        (false, false) => {
            let help = "write `origin = \"NAME\"` with the NAME of an [origins.NAME], or a `redirect`";
            out.unfit(table.place, "the route has no `origin`", help);
            None
        }
    }
}

/// Tells which keys of a redirect have no meaning.
fn without_effect(out: &mut ReadFindings, table: &TableReader<'_>) {
    for name in keys::ROUTE.keys().map(|key| key.name) {
        let has_effect =
            matches!(name, "path" | "redirect" | "response-headers" | "allow" | "deny" | "client-requests");
        if !has_effect && table.get(name).is_some() {
            let message = format!("`{name}` has no meaning with `redirect`");
            out.unfit(
                table.key_place(out, name),
                message,
                "a redirect asks no origin and stores nothing: leave it out",
            );
        }
    }
}

fn redirect(out: &mut ReadFindings, table: &TableReader<'_>) -> Option<LocatedValue<RedirectConfig>> {
    let to = table.required(out, "to", |out| table.text(out, "to", redirect_target));
    let status = table.number(out, "status", 0..=u16::MAX).filter(|status| {
        let is_redirect = REDIRECTS.contains(&status.value);
        if !is_redirect {
            let message = format!("the status {} is no redirect", status.value);
            out.wrong(status.place, message, "allowed: 301, 302, 303, 307, 308");
        }
        is_redirect
    });
    let keep_path = table.switch(out, "keep-path");
    Some(LocatedValue::new(RedirectConfig { to: to?, status, keep_path }, table.place))
}

/// Reads `[forward-proxy]`.
pub(super) fn forward(out: &mut ReadFindings, table: &TableReader<'_>) -> LocatedValue<ForwardConfig> {
    let allow = table.list(out, "allow", network);
    let ports = table.elements(out, "connect-ports", "a list such as [443]", PORTS_MAX);
    let read = |value| number_in(out, "an element of `connect-ports`", value, 1..=u16::MAX);
    let connect_ports = ports.map(|values| values.into_iter().filter_map(read).collect());
    LocatedValue::new(ForwardConfig { allow, connect_ports, rules: rules(out, table) }, table.place)
}
