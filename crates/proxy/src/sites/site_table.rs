//! The table of sites, and the choice of a route.
//!
//! Owns: the choice. A host that is a site's name counts more than the longest wildcard that it matches, and that more
//! than the default site. `*.example.org` stands for every name that ends with `.example.org`. Case, port and a dot at the
//! end of the host do not count. In a site, a route for exactly the path counts more than the one with the longest prefix;
//! paths are compared byte by byte. Without a table (one origin, or a forward proxy), nothing is looked up.

use std::collections::HashMap;
use std::sync::Arc;

use http::{HeaderMap, Uri};
use nectary_host::fleet::RulesHash;
use xxhash_rust::xxh3::xxh3_128;

use super::site_path::{path_alone, plain_form};
use super::site_route::{RouteTarget, SiteRoute, authority_of, path_of};
use crate::upstream::{OriginTrust, ServerPool};

/// The longest name of a host. *Source*: RFC 1035, 2.3.4.
const NAME_BYTES_MAX: usize = 255;

/// The paths for which a route is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PathRule {
    /// This path alone.
    Exact(Vec<u8>),
    /// All paths that begin so.
    Prefix(Vec<u8>),
}

/// A site of the table.
#[derive(Debug)]
pub(crate) struct SiteEntry {
    /// The names in lower case; one that begins with `*.` is a wildcard.
    pub names: Vec<String>,
    /// Whether the site has all hosts that no site names.
    pub is_default: bool,
    pub routes: Vec<(PathRule, Arc<SiteRoute>)>,
}

/// The sites of a proxy.
#[derive(Debug)]
pub(crate) struct SiteTable {
    choice: SiteChoice,
    rules: RulesHash,
}

#[derive(Debug)]
enum SiteChoice {
    /// One route for all requests.
    One(Arc<SiteRoute>),
    Named(Box<NamedSites>),
}

/// Sites with names.
#[derive(Debug)]
struct NamedSites {
    sites: Vec<SitePaths>,
    exact: HashMap<Box<[u8]>, usize>,
    /// The wildcards without their `*`: `.example.org`.
    wildcards: HashMap<Box<[u8]>, usize>,
    default: Option<usize>,
    otherwise: FallbackRoutes,
}

/// The routes of requests that no site has a route for.
#[derive(Debug)]
pub(crate) struct FallbackRoutes {
    /// The host is no site's.
    pub no_site: Arc<SiteRoute>,
    /// The site has nothing at the path.
    pub no_route: Arc<SiteRoute>,
    /// The path leads to two routes.
    pub ambiguous: Arc<SiteRoute>,
}

/// The routes of a site.
#[derive(Debug)]
struct SitePaths {
    as_written: PathTable,
    /// The routes by the plain form of their paths, if one of them has another one.
    plain: Option<PathTable>,
}

/// The routes of a site by one form of their paths.
#[derive(Debug)]
struct PathTable {
    exact: HashMap<Box<[u8]>, Arc<SiteRoute>>,
    /// The longest prefix first.
    prefixes: Vec<(Box<[u8]>, Arc<SiteRoute>)>,
}

impl SiteTable {
    /// A table with one route for all requests.
    pub fn one(route: SiteRoute) -> SiteTable {
        SiteTable::of(SiteChoice::One(Arc::new(route)))
    }

    /// A table of sites. Of two sites with the same name, the first has it; the caller refuses that before.
    pub fn named(sites: Vec<SiteEntry>, otherwise: FallbackRoutes) -> SiteTable {
        let (mut exact, mut wildcards, mut default) = (HashMap::new(), HashMap::new(), None);
        for (index, site) in sites.iter().enumerate() {
            for name in &site.names {
                match name.strip_prefix('*') {
                    Some(suffix) => wildcards.entry(suffix.as_bytes().into()).or_insert(index),
                    None => exact.entry(name.as_bytes().into()).or_insert(index),
                };
            }
            if site.is_default {
                default.get_or_insert(index);
            }
        }
        let sites = sites.into_iter().map(SitePaths::new).collect();
        SiteTable::of(SiteChoice::Named(Box::new(NamedSites { sites, exact, wildcards, default, otherwise })))
    }

    /// The route of a request for `path_and_query` that names `host`. *Cost*: nothing without a table; else two look-ups,
    /// and one more for each label of a host that only a wildcard matches. No allocation, unless the path has codes or
    /// dot segments.
    #[inline]
    pub fn find(&self, host: Option<&[u8]>, path_and_query: &[u8]) -> &Arc<SiteRoute> {
        match &self.choice {
            SiteChoice::One(route) => route,
            SiteChoice::Named(sites) => sites.find(host, path_and_query),
        }
    }

    /// The route of a request with this target and these headers.
    #[inline]
    pub fn find_for(&self, uri: &Uri, headers: &HeaderMap) -> &Arc<SiteRoute> {
        match &self.choice {
            SiteChoice::One(route) => route,
            SiteChoice::Named(sites) => sites.find(authority_of(uri, headers), path_of(uri)),
        }
    }

    fn of(choice: SiteChoice) -> SiteTable {
        let mut sites = SiteTable { choice, rules: RulesHash::default() };
        // xxh3 has a fixed definition.
        sites.rules = RulesHash(xxh3_128(sites.key_rules().join("\n").as_bytes()));
        sites
    }

    /// The hash of the rules that make keys: names of sites, paths of routes, and of each route the keys' beginning, the
    /// query, the cookies, the headers in keys and the size of parts. Times, origins and access are not in it: the nodes of
    /// a fleet may differ in these. It is the same for every build that has the same rules.
    #[inline]
    pub fn rules(&self) -> RulesHash {
        self.rules
    }

    /// The rules that make keys, a line each, in an order that the table alone decides.
    fn key_rules(&self) -> Vec<String> {
        let SiteChoice::Named(named) = &self.choice else {
            return self.routes().into_iter().map(|it| it.key_rules()).collect();
        };
        let line = |kind: &str, name: &[u8], index: usize| format!("{kind} {} {index}", name.escape_ascii());
        let exact = named.exact.iter().map(|(name, index)| line("exact", name, *index));
        let wildcards = named.wildcards.iter().map(|(name, index)| line("wildcard", name, *index));
        let mut names: Vec<_> = exact.chain(wildcards).collect();
        names.sort();
        let sites = named.sites.iter().flat_map(|site| site.as_written.key_rules());
        let default = std::iter::once(format!("default {:?}", named.default));
        let otherwise = std::iter::once(named.otherwise.no_site.key_rules());
        names.into_iter().chain(sites).chain(default).chain(otherwise).collect()
    }

    /// The routes, each once.
    pub fn routes(&self) -> Vec<&Arc<SiteRoute>> {
        match &self.choice {
            SiteChoice::One(route) => vec![route],
            SiteChoice::Named(named) => {
                let otherwise = std::iter::once(&named.otherwise.no_site);
                named.sites.iter().flat_map(SitePaths::routes).chain(otherwise).collect()
            }
        }
    }

    /// The routes of the site that has a host; none if there is none.
    pub fn routes_of(&self, host: &[u8]) -> Vec<&Arc<SiteRoute>> {
        match &self.choice {
            SiteChoice::One(route) => vec![route],
            SiteChoice::Named(named) => {
                named.site_of(host).map(|index| named.sites[index].routes().collect()).unwrap_or_default()
            }
        }
    }

    /// Whether a site has this host by its name, and not as the default.
    pub fn is_named(&self, host: &[u8]) -> bool {
        matches!(&self.choice, SiteChoice::Named(named) if named.named_site_of(host).is_some())
    }

    /// What all origins are trusted by, each once.
    pub fn trusts(&self) -> Vec<Arc<OriginTrust>> {
        let mut trusts: Vec<Arc<OriginTrust>> = Vec::new();
        for route in self.routes() {
            let rules = match &route.target {
                RouteTarget::Pool(pool) => &pool.rules,
                RouteTarget::Named(rules) => rules,
                _ => continue,
            };
            if !trusts.iter().any(|known| Arc::ptr_eq(known, &rules.trust)) {
                trusts.push(rules.trust.clone());
            }
        }
        trusts
    }

    /// The origins of all routes, each once.
    pub fn pools(&self) -> Vec<Arc<ServerPool>> {
        let mut pools: Vec<Arc<ServerPool>> = Vec::new();
        for route in self.routes() {
            if let RouteTarget::Pool(pool) = &route.target
                && !pools.iter().any(|known| Arc::ptr_eq(known, pool))
            {
                pools.push(pool.clone());
            }
        }
        pools
    }

    /// Whether plain requests may be answered without hyper.
    pub fn may_be_direct(&self) -> bool {
        !matches!(&self.choice, SiteChoice::One(route) if route.is_forward())
    }

    /// Whether there is a table of names.
    pub fn has_names(&self) -> bool {
        matches!(self.choice, SiteChoice::Named(_))
    }
}

impl NamedSites {
    fn find(&self, host: Option<&[u8]>, path_and_query: &[u8]) -> &Arc<SiteRoute> {
        match host.map_or(self.default, |host| self.site_of(host)) {
            Some(index) => self.sites[index].find(path_alone(path_and_query), &self.otherwise),
            None => &self.otherwise.no_site,
        }
    }

    fn site_of(&self, host: &[u8]) -> Option<usize> {
        self.named_site_of(host).or(self.default)
    }

    fn named_site_of(&self, host: &[u8]) -> Option<usize> {
        let mut room = [0; NAME_BYTES_MAX];
        let name = bare_name(host);
        let room = room.get_mut(..name.len())?;
        room.copy_from_slice(name);
        room.make_ascii_lowercase();
        let name = &*room;
        if let Some(&index) = self.exact.get(name) {
            return Some(index);
        }
        if self.wildcards.is_empty() {
            return None;
        }
        // The longest suffix comes first. A wildcard stands for at least one byte.
        let dots = name.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'.');
        dots.map(|(at, _)| &name[at..]).find_map(|suffix| self.wildcards.get(suffix)).copied()
    }
}

impl SitePaths {
    fn new(site: SiteEntry) -> SitePaths {
        let path_of = |rule: &PathRule| match rule {
            PathRule::Exact(path) | PathRule::Prefix(path) => plain_form(path).filter(|plain| plain != path),
        };
        let plain = site.routes.iter().any(|(rule, _)| path_of(rule).is_some()).then(|| {
            let plain = |(rule, route): &(PathRule, Arc<SiteRoute>)| {
                let rule = match (path_of(rule), rule) {
                    (Some(plain), PathRule::Exact(_)) => PathRule::Exact(plain),
                    (Some(plain), PathRule::Prefix(_)) => PathRule::Prefix(plain),
                    (None, as_written) => as_written.clone(),
                };
                (rule, route.clone())
            };
            PathTable::new(site.routes.iter().map(plain).collect())
        });
        SitePaths { as_written: PathTable::new(site.routes), plain }
    }

    fn find<'a>(&'a self, path: &[u8], otherwise: &'a FallbackRoutes) -> &'a Arc<SiteRoute> {
        let found = self.as_written.of_path(path);
        let plain = plain_form(path);
        if plain.is_some() || self.plain.is_some() {
            let by_plain = self.plain.as_ref().unwrap_or(&self.as_written);
            let is_same = match (found, by_plain.of_path(plain.as_deref().unwrap_or(path))) {
                (Some(one), Some(other)) => Arc::ptr_eq(one, other),
                (one, other) => one.is_none() && other.is_none(),
            };
            if !is_same {
                return &otherwise.ambiguous;
            }
        }
        found.unwrap_or(&otherwise.no_route)
    }

    fn routes(&self) -> impl Iterator<Item = &Arc<SiteRoute>> {
        self.as_written.exact.values().chain(self.as_written.prefixes.iter().map(|(_, route)| route))
    }
}

impl PathTable {
    /// The paths, each with the rules that make keys there.
    fn key_rules(&self) -> Vec<String> {
        let line = |kind: &str, path: &[u8], route: &SiteRoute| {
            format!("{kind} {} {}", path.escape_ascii(), route.key_rules())
        };
        let mut exact: Vec<_> = self.exact.iter().map(|(path, route)| line("path", path, route)).collect();
        exact.sort();
        let prefixes = self.prefixes.iter().map(|(path, route)| line("prefix", path, route));
        std::iter::once("site".to_owned()).chain(exact).chain(prefixes).collect()
    }

    fn new(routes: Vec<(PathRule, Arc<SiteRoute>)>) -> PathTable {
        let (mut exact, mut prefixes) = (HashMap::new(), Vec::new());
        for (path, route) in routes {
            match path {
                PathRule::Exact(path) => _ = exact.entry(path.into()).or_insert(route),
                PathRule::Prefix(prefix) => prefixes.push((Box::<[u8]>::from(prefix), route)),
            }
        }
        // The sort is stable: of two that are the same, the first counts.
        prefixes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        PathTable { exact, prefixes }
    }

    fn of_path(&self, path: &[u8]) -> Option<&Arc<SiteRoute>> {
        if !self.exact.is_empty()
            && let Some(route) = self.exact.get(path)
        {
            return Some(route);
        }
        self.prefixes.iter().find(|(prefix, _)| path.starts_with(prefix)).map(|(_, route)| route)
    }
}

/// The name in a `Host`: without its port, and without a dot at its end.
pub(super) fn bare_name(host: &[u8]) -> &[u8] {
    let bracket = memchr::memchr(b']', host).unwrap_or(0);
    let end = memchr::memchr(b':', &host[bracket..]).map_or(host.len(), |at| bracket + at);
    let name = &host[..end];
    name.strip_suffix(b".").filter(|name| !name.is_empty()).unwrap_or(name)
}
