//! Routes: what is done with the requests for a path.
//!
//! Owns: the values of `[[site.route]]`.

use std::fmt;
use std::time::Duration;

use super::RouteRules;
use super::header_edits::HeaderEdits;
use super::limits::RequestRate;
use super::network::AccessRules;
use crate::place::{LocatedValue, Setting};

/// `[[site.route]]`: a path and what is done with requests for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteConfig {
    /// `path`: `/static/` for a prefix, or `=/exact` for one path. Default: `/`, which is every path.
    pub path: LocatedValue<RoutePath>,
    /// `origin` or `redirect`: exactly one of them. Required.
    pub action: RouteAction,
    /// The rules of caching. Empty if the route is a redirect.
    pub rules: RouteRules,
    /// `request-headers`: what is changed of the request to the origin. Default: nothing. What the key is made of is
    /// read before.
    pub request_headers: HeaderEdits,
    /// `response-headers`: what is changed of the response to the client, after the cache. Default: nothing.
    pub response_headers: HeaderEdits,
    /// Who may use it, instead of who may use the site; the site's rules count where this is empty.
    pub access: AccessRules,
    /// `client-requests`: how often one client network may send requests to it, counted apart and instead of the
    /// site's. Default: the site's.
    pub client_requests: Setting<RequestRate>,
}

/// The paths of a route. Of the routes that match, an exact path wins, then the longest prefix. The query does not
/// count. Paths are compared byte by byte, as they are in the URL: `%2F` is not `/`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RoutePath {
    /// `/static/`: every path that begins with this; it begins with `/`.
    Prefix(String),
    /// `=/exact`: this path alone; it begins with `/`.
    Exact(String),
}

impl RoutePath {
    /// Whether a path, without query, is one of these.
    pub fn matches(&self, path: &str) -> bool {
        match self {
            RoutePath::Prefix(prefix) => path.starts_with(prefix.as_str()),
            RoutePath::Exact(exact) => path == exact,
        }
    }
}

impl fmt::Display for RoutePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RoutePath::Prefix(prefix) => f.write_str(prefix),
            RoutePath::Exact(exact) => write!(f, "={exact}"),
        }
    }
}

/// What is done with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouteAction {
    /// `origin`: it is answered from the store, or by the origin of this name, which the file has.
    Origin(LocatedValue<String>),
    /// `redirect`: it is answered by a redirect.
    Redirect(LocatedValue<RedirectConfig>),
}

/// `redirect`: where clients are sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedirectConfig {
    /// `to`: a URL with `http://` or `https://`, or a path of the same site. Visible ASCII only. Required.
    pub to: LocatedValue<String>,
    /// `status`: 301, 302, 303, 307 or 308. Default: 302.
    pub status: Setting<u16>,
    /// `keep-path`: whether path and query of the request follow `to`, without a `/` twice between them.
    /// Default: false.
    pub keep_path: Setting<bool>,
}

/// What of a request is part of the key. What is ignored is also kept from the origin, so that its response cannot
/// depend on it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeyRules {
    /// `query-ignore` or `query-keep`: the parameters of the query that are removed, or the only ones that remain.
    /// Default: the whole query remains. The place is that of the key's value.
    pub query: Setting<NameFilter>,
    /// `cookies-ignore` or `cookies-keep`: the cookies of the request that are removed, or the only ones that remain.
    /// Default: all remain, in the form in which the client sent them; see also `cookies-key`.
    pub cookies: Setting<NameFilter>,
    /// `cookies-key`: the cookies whose values are in the key. Default: none.
    pub cookies_key: Vec<LocatedValue<String>>,
    /// `key-headers`: request headers that are in the key, in lower case, as if each response named them in `Vary`.
    /// Default: none.
    pub key_headers: Vec<LocatedValue<String>>,
}

/// Which of several named things are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameFilter {
    /// All but these.
    Ignore(Vec<LocatedValue<NamePattern>>),
    /// Only these; an empty list keeps none.
    Keep(Vec<LocatedValue<NamePattern>>),
}

impl NameFilter {
    /// Whether something of this name is kept. Capital letters count.
    pub fn keeps(&self, name: &str) -> bool {
        match self {
            NameFilter::Ignore(patterns) => !patterns.iter().any(|pattern| pattern.matches(name)),
            NameFilter::Keep(patterns) => patterns.iter().any(|pattern| pattern.matches(name)),
        }
    }
}

/// A name, or the beginning of names. It has 1 to 256 visible ASCII characters without `*`, `&`, `=`, `;` and `,`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum NamePattern {
    /// `session`: this name.
    Exact(String),
    /// `utm_*`: every name that begins with this; every name if it is empty. The value is what precedes `*`.
    Prefix(String),
}

impl NamePattern {
    /// Whether a name matches. Capital letters count.
    pub fn matches(&self, name: &str) -> bool {
        match self {
            NamePattern::Exact(exact) => name == exact,
            NamePattern::Prefix(prefix) => name.starts_with(prefix.as_str()),
        }
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NamePattern::Exact(exact) => f.write_str(exact),
            NamePattern::Prefix(prefix) => write!(f, "{prefix}*"),
        }
    }
}

/// How long responses are served. What a response says itself comes first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LifetimeRules {
    /// `default-ttl`: the lifetime of responses that give none; 0 for stale at once. Default: none, so they are fetched
    /// each time.
    pub default_ttl: Setting<Duration>,
    /// `status-ttl`: the same by status (200 to 599), instead of `default-ttl`, in the order of the file; no status
    /// twice. Default: none.
    pub status_ttl: Vec<(LocatedValue<u16>, LocatedValue<Duration>)>,
    /// `stale-unreachable`: how long beyond its lifetime a response is served while the origin cannot be reached; 0 for
    /// not at all. Default: 1 day.
    pub stale_unreachable: Setting<Duration>,
    /// `stale-while-revalidate`: how long beyond its lifetime a response is served while it is fetched again; 0 for not
    /// at all. Default: 0.
    pub stale_while_revalidate: Setting<Duration>,
}
