//! The choice of a route against a model that looks at everything in turn.

use std::sync::Arc;

use proptest::prelude::*;

use super::site_path::{path_alone, plain_form};
use super::site_table::{FallbackRoutes, bare_name};
use super::*;

/// A route that can be told from others by its key.
fn route(name: &str) -> SiteRoute {
    SiteRoute::new(SiteKey::of_site(name, false, false), RouteTarget::NoSite)
}

fn name_of(route: &SiteRoute) -> String {
    String::from_utf8_lossy(&route.key.prefix()[b"http://".len()..]).into_owned()
}

/// A site: names, whether it is the default, and paths; one that begins with `=` is exact.
type Given = (Vec<String>, bool, Vec<String>);

fn table(sites: &[Given]) -> SiteTable {
    let site = |(index, (names, is_default, paths)): (usize, &Given)| SiteEntry {
        names: names.clone(),
        is_default: *is_default,
        routes: paths
            .iter()
            .map(|path| {
                let rule = match path.strip_prefix('=') {
                    Some(exact) => PathRule::Exact(exact.as_bytes().to_vec()),
                    None => PathRule::Prefix(path.as_bytes().to_vec()),
                };
                (rule, Arc::new(route(&format!("{index}{path}"))))
            })
            .collect(),
    };
    let named = |name: &str| Arc::new(route(name));
    let otherwise =
        FallbackRoutes { no_site: named("no-site"), no_route: named("no-route"), ambiguous: named("ambiguous") };
    SiteTable::named(sites.iter().enumerate().map(site).collect(), otherwise)
}

/// The name of the route that the rules say, found by looking at every site and every path.
fn expected(sites: &[Given], host: Option<&str>, target: &str) -> String {
    let host = host.map(|host| String::from_utf8_lossy(bare_name(host.as_bytes())).to_ascii_lowercase());
    let mut best: Option<(usize, usize)> = None;
    for (index, (names, is_default, _)) in sites.iter().enumerate() {
        let ranks = names.iter().filter_map(|name| match (&host, name.strip_prefix('*')) {
            (Some(host), None) => (host == name).then_some(usize::MAX),
            (Some(host), Some(suffix)) => (host.len() > suffix.len() && host.ends_with(suffix)).then_some(suffix.len()),
            (None, _) => None,
        });
        for rank in ranks.chain(is_default.then_some(0)) {
            if best.is_none_or(|(highest, _)| rank > highest) {
                best = Some((rank, index));
            }
        }
    }
    let Some((_, index)) = best else { return "no-site".into() };
    let as_it_is = |rule: &str| rule.as_bytes().to_vec();
    let decoded = |rule: &str| plain_form(rule.as_bytes()).unwrap_or(rule.as_bytes().to_vec());
    let of_path = |path: &[u8], form: &dyn Fn(&str) -> Vec<u8>| {
        let rules = || sites[index].2.iter();
        let exact = rules().find(|rule| rule.strip_prefix('=').is_some_and(|it| form(it) == path));
        let prefixes = rules().filter(|rule| !rule.starts_with('=') && path.starts_with(&form(rule)));
        let longest = prefixes.rev().max_by_key(|rule| form(rule).len());
        exact.or(longest).map(|rule| format!("{index}{rule}"))
    };
    let path = path_alone(target.as_bytes());
    let found = of_path(path, &as_it_is);
    if of_path(&plain_form(path).unwrap_or(path.to_vec()), &decoded) != found {
        return "ambiguous".into();
    }
    found.unwrap_or("no-route".into())
}

fn names() -> impl Strategy<Value = String> {
    "(\\*\\.)?[ab](\\.[ab]){0,2}"
}

fn given() -> impl Strategy<Value = Vec<Given>> {
    let site =
        (proptest::collection::hash_set(names(), 0..3), proptest::collection::hash_set("=?/(([ab]|%61)/?){0,3}", 1..5));
    (proptest::collection::vec(site, 0..4), 0..6usize).prop_map(|(sites, default)| {
        let mut taken = std::collections::HashSet::new();
        let site = |(index, (names, paths)): (usize, (std::collections::HashSet<String>, _))| {
            let names = names.into_iter().filter(|name| taken.insert(name.clone())).collect();
            let paths: std::collections::HashSet<String> = paths;
            (names, index == default, paths.into_iter().collect())
        };
        sites.into_iter().enumerate().map(site).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]
    #[test]
    fn the_table_chooses_as_the_model(
        sites in given(),
        host in proptest::option::of("[abAB](\\.[abAB]){0,3}\\.?(:80)?"),
        target in "(/|/[ab]|//|/\\.\\.|/%61|/%2e|%2f){0,5}(\\?a)?",
    ) {
        let table = table(&sites);
        let found = name_of(table.find(host.as_deref().map(str::as_bytes), target.as_bytes()));
        prop_assert_eq!(found, expected(&sites, host.as_deref(), &target).to_ascii_lowercase());
    }
}

#[test]
fn names_precede_wildcards_and_default() {
    let site = |names: &[&str], is_default, paths: &[&str]| {
        let owned = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        (owned(names), is_default, owned(paths))
    };
    let sites = [
        site(&["www.a", "*.a"], false, &["/", "/static/", "=/static/one"]),
        site(&["*.b.a", "[::1]"], false, &["/only/"]),
        site(&[], true, &["/"]),
    ];
    for (host, target, expected) in [
        (Some("WWW.A:8080"), "/x?/static/", "0/"),
        (Some("www.a."), "/static/one?x", "0=/static/one"),
        (Some("x.a"), "/static/two", "0/static/"),
        (Some("x.y.a"), "/", "0/"),
        (Some("x.b.a"), "/only/x", "1/only/"),
        (Some("b.a"), "/", "0/"),
        (Some(".a"), "/", "2/"),
        (Some("a"), "/", "2/"),
        (Some("[::1]:81"), "/only/", "1/only/"),
        (Some("x.b.a"), "/other", "no-route"),
        (Some("c"), "*", "no-route"),
        (None, "/", "2/"),
        (Some("www.a"), "/x/..%2fstatic/two", "ambiguous"),
        (Some("www.a"), "/x/../y", "0/"),
    ] {
        let table = table(&sites);
        let found = table.find(host.map(str::as_bytes), target.as_bytes());
        assert_eq!(name_of(found), expected, "{host:?} {target}");
    }
    let encoded = [site(&["a"], false, &["/", "/caf%C3%A9/", "=/b%20c", "/%61dmin/"])];
    for (target, expected) in [
        ("/caf%C3%A9/x", "0/caf%c3%a9/"),
        ("/b%20c", "0=/b%20c"),
        ("/%61dmin/x", "0/%61dmin/"),
        ("/caf%c3%a9/x", "ambiguous"),
        ("/admin/x", "ambiguous"),
        ("/other", "0/"),
    ] {
        let table = table(&encoded);
        assert_eq!(name_of(table.find(Some(b"a"), target.as_bytes())).to_ascii_lowercase(), expected, "{target}");
    }
    let long = "a".repeat(300);
    assert_eq!(name_of(table(&sites).find(Some(long.as_bytes()), b"/")), "2/");
    assert_eq!(name_of(table(&sites[..2]).find(Some(long.as_bytes()), b"/")), "no-site");
}
