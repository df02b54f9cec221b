//! The sites and routes of a configuration.

use std::sync::Arc;
use std::time::Duration;

use http::uri::Authority;
use http::{HeaderName, HeaderValue, StatusCode};
use nectary_config::{
    HeaderEdits as EditsConfig, HostRule, KeyRules, LocatedValue, NameFilter, NamePattern, ProxyConfig, RouteAction,
    RouteConfig, RoutePath, RouteRules, Setting, SiteConfig, SiteName,
};

use super::accepted_origins::AcceptedOrigin;
use super::refused::ProblemCollector;
use super::{process_options, value_or};
use crate::client_limits::RequestRule;
use crate::options::OriginTimes;
use crate::rules::default_ttl::DefaultTtl;
use crate::rules::key::UrlOrigin;
use crate::rules::key_headers::{KEY_HEADERS_MAX, KeyHeader, names};
use crate::rules::origin::host_sent::push_host;
use crate::rules::origin::key_cookies::header_of;
use crate::rules::origin::references::OwnReferences;
use crate::rules::policy::ResponsePolicy;
use crate::sites::{
    CookieRule, FallbackRoutes, HeaderEdits, HostSent, NameRule, PathRule, QueryRule, RedirectTo, RouteName,
    RouteTarget, SiteEntry, SiteKey, SiteRoute, SiteTable,
};
use crate::upstream::{OriginRules, OriginTrust, TrustFiles};

/// The name in the keys of a default site without names.
const NO_NAME: &str = "*";

/// The time for which a response is served while its origin cannot be reached, if nothing else is said.
const STALE_UNREACHABLE: Duration = Duration::from_secs(24 * 3600);

/// The table of sites. What is refused has routes that answer nothing.
pub(super) fn sites(
    config: &ProxyConfig,
    origins: &[Option<AcceptedOrigin>],
    generation: u32,
    refused: &mut ProblemCollector,
) -> SiteTable {
    let parts = SiteInputs { config, origins, generation };
    let sites = config.sites.iter().map(|site| parts.site(site, refused)).collect();
    let no_site = match &config.forward {
        Some(forward) => {
            let times = OriginTimes::of(&process_options::limits(&config.limits));
            let trust = OriginTrust::with_files(TrustFiles::default()).expect("there is no file");
            let rules = OriginRules::new(times, Arc::new(trust));
            let route = parts.bare(SiteKey::of_origin(false, "", false), RouteTarget::Named(Arc::new(rules)));
            parts.with_rules(route, &forward.rules, refused)
        }
        None => parts.nowhere(RouteTarget::NoSite),
    };
    if config.forward.is_some() && config.sites.is_empty() {
        return SiteTable::one(no_site);
    }
    let otherwise = FallbackRoutes {
        no_site: Arc::new(no_site),
        no_route: Arc::new(parts.nowhere(RouteTarget::NoRoute)),
        ambiguous: Arc::new(parts.nowhere(RouteTarget::Ambiguous)),
    };
    SiteTable::named(sites, otherwise)
}

struct SiteInputs<'a> {
    config: &'a ProxyConfig,
    origins: &'a [Option<AcceptedOrigin>],
    generation: u32,
}

impl SiteInputs<'_> {
    fn site(&self, site: &LocatedValue<SiteConfig>, refused: &mut ProblemCollector) -> SiteEntry {
        let routes = site.routes.iter().map(|route| {
            let path = match &route.path.value {
                RoutePath::Prefix(prefix) => PathRule::Prefix(prefix.as_bytes().to_vec()),
                RoutePath::Exact(exact) => PathRule::Exact(exact.as_bytes().to_vec()),
            };
            (path, Arc::new(self.route(site, route, refused)))
        });
        SiteEntry {
            routes: routes.collect(),
            names: site.names.iter().map(|name| name_in_table(&name.value)).collect(),
            is_default: value_or(&site.default, false),
        }
    }

    fn route(&self, site: &SiteConfig, route: &RouteConfig, refused: &mut ProblemCollector) -> SiteRoute {
        let first = site.names.first().map_or(NO_NAME.to_owned(), |name| name_in_table(&name.value));
        let made = match &route.action {
            RouteAction::Redirect(redirect) => {
                let to = RedirectTo {
                    status: StatusCode::from_u16(value_or(&redirect.status, 302)).unwrap_or(StatusCode::FOUND),
                    url: redirect.to.value.clone(),
                    keeps_path: value_or(&redirect.keep_path, false),
                };
                self.bare(SiteKey::of_site(&first, false, false), RouteTarget::Redirect(to))
            }
            RouteAction::Origin(name) => {
                let index = self.config.origins.iter().position(|origin| origin.name.value == name.value);
                match index.and_then(|index| self.origins[index].as_ref()) {
                    Some(origin) => self.of_origin(&first, site, origin),
                    // The origin itself was refused.
                    None => self.nowhere(RouteTarget::NoRoute),
                }
            }
        };
        let mut made = self.with_rules(made, &route.rules, refused);
        let path = route.path.to_string();
        made.request_rule = match (&route.client_requests, &site.client_requests) {
            (Some(rate), _) => Some(RequestRule::new(&first, Some(&path), rate.value)),
            (None, Some(rate)) => Some(RequestRule::new(&first, None, rate.value)),
            (None, None) => None,
        };
        made.name = Some(Arc::new(RouteName { site: first, path }));
        made.request_headers = edits(&route.request_headers);
        made.response_headers = edits(&route.response_headers);
        let access = if route.access.is_empty() { &site.access } else { &route.access };
        made.access = (!access.is_empty()).then(|| access.clone());
        made
    }

    fn of_origin(&self, first: &str, site: &SiteConfig, origin: &AcceptedOrigin) -> SiteRoute {
        let (servers, named) = (origin.pool.servers(), origin.pool.named.named());
        let https = named.https;
        let mut own: Vec<_> = servers.all().iter().map(|server| server.origin.named()).collect();
        if !own.contains(&named) {
            own.push(named);
        }
        let mut fixed = |host: &str| {
            let mut authority = Vec::new();
            push_host(&mut authority, host.as_bytes(), https);
            own.extend(Authority::try_from(&authority[..]).ok().and_then(|host| UrlOrigin::new(https, &host)));
            HostSent::Fixed(String::from_utf8_lossy(&authority).into_owned())
        };
        let host = match (&origin.host, site.names.first().map(|name| &name.value)) {
            (HostRule::Own, _) => HostSent::Server,
            (HostRule::Fixed(host), _) => fixed(host),
            (HostRule::Site, Some(SiteName::Exact(_))) => fixed(first),
            (HostRule::Site | HostRule::Client, _) => HostSent::Client,
        };
        let key = SiteKey::of_site(first, false, host == HostSent::Client);
        let route = self.bare(key, RouteTarget::Pool(origin.pool.clone()));
        let references = Some(OwnReferences::new(own));
        SiteRoute { host, references, distrusts_close: origin.distrusts_close, ..route }
    }

    fn with_rules(&self, route: SiteRoute, rules: &RouteRules, refused: &mut ProblemCollector) -> SiteRoute {
        let lifetimes = &rules.lifetimes;
        let status_ttl = lifetimes.status_ttl.iter().map(|(status, ttl)| (status.value, ttl.as_secs())).collect();
        let swr = value_or(&lifetimes.stale_while_revalidate, Duration::ZERO);
        SiteRoute {
            policy: ResponsePolicy {
                default_ttl: DefaultTtl::of_all(lifetimes.default_ttl.as_ref().map(|ttl| ttl.as_secs())),
                status_ttl,
                while_revalidate_s: u32::try_from(swr.as_secs()).unwrap_or(u32::MAX),
                is_for_origin: !route.is_forward(),
                stores_cookies: value_or(&rules.store_set_cookie, false),
                stale_unreachable_s: value_or(&lifetimes.stale_unreachable, STALE_UNREACHABLE).as_secs(),
                generation: self.generation,
            },
            is_pass: value_or(&rules.pass, false),
            part_bytes: rules.part_size.as_ref().map(|bytes| bytes.value),
            query: QueryRule(name_rule(&rules.key.query)),
            cookies: CookieRule(name_rule(&rules.key.cookies)),
            key_headers: key_headers(&rules.key, refused),
            tags: rules.tags.iter().map(|tag| tag.value.clone().into_bytes()).collect(),
            strips_tags: value_or(&rules.strip_tags, false),
            ignores_demands: value_or(&rules.ignore_request_cache_control, false),
            ..route
        }
    }

    fn nowhere(&self, target: RouteTarget) -> SiteRoute {
        self.bare(SiteKey::of_site(NO_NAME, false, false), target)
    }

    /// A route without rules.
    fn bare(&self, key: SiteKey, target: RouteTarget) -> SiteRoute {
        SiteRoute { is_silent: !value_or(&self.config.server.send_forwarded, true), ..SiteRoute::new(key, target) }
    }
}

/// A site's name as the table has it, and as the keys of the site begin.
fn name_in_table(name: &SiteName) -> String {
    match name {
        SiteName::Exact(name) if name.contains(':') => format!("[{name}]"),
        name => name.to_string(),
    }
}

fn name_rule(filter: &Setting<NameFilter>) -> NameRule {
    let texts = |patterns: &[LocatedValue<NamePattern>]| patterns.iter().map(|it| it.to_string()).collect::<Vec<_>>();
    match filter.as_ref().map(|filter| &filter.value) {
        None => NameRule::All,
        Some(NameFilter::Ignore(patterns)) => NameRule::without(&texts(patterns)),
        Some(NameFilter::Keep(patterns)) => NameRule::only(&texts(patterns)),
    }
}

/// The headers that are part of every key, and those that stand for the cookies that are.
fn key_headers(rules: &KeyRules, refused: &mut ProblemCollector) -> Vec<HeaderName> {
    let mut headers: Vec<KeyHeader> = Vec::new();
    for name in &rules.key_headers {
        match name.value.parse() {
            Ok(header) => headers.push(header),
            Err(error) => refused.refuse(name.place, "key-headers", error),
        }
    }
    for name in &rules.cookies_key {
        match header_of(&name.value) {
            Some(header) => headers.push(KeyHeader(header)),
            None => refused.refuse(name.place, "cookies-key", "the name of this cookie is too long to be in a key"),
        }
    }
    let found = names(&headers);
    if found.len() > KEY_HEADERS_MAX {
        let (first, key) = match rules.key_headers.first() {
            Some(first) => (first, "key-headers"),
            None => (&rules.cookies_key[0], "cookies-key"),
        };
        let what = format!("at most {KEY_HEADERS_MAX} headers and cookies can be in a key");
        refused.refuse(first.place, key, what);
    }
    found
}

fn edits(config: &EditsConfig) -> HeaderEdits {
    let name = |text: &str| HeaderName::from_bytes(text.as_bytes()).ok();
    let removed = config.remove.iter().filter_map(|text| name(text)).collect();
    let set = config.set.iter().filter_map(|edit| name(&edit.name).zip(HeaderValue::from_str(&edit.value).ok()));
    HeaderEdits::new(removed, set.collect())
}
