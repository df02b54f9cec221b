//! The rules by which requests of one kind are answered.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use http::header::HOST;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};

use nectary_config::AccessRules;

use super::{CookieRule, HeaderEdits, QueryRule, SiteKey};
use crate::client_limits::RequestRule;
use crate::rules::invalidate::is_unsafe;
use crate::rules::key::push_key;
use crate::rules::origin::references::OwnReferences;
use crate::rules::policy::ResponsePolicy;
use crate::upstream::{OriginRules, ServerPool};

/// What answers the requests of a route.
#[derive(Debug, Clone)]
pub(crate) enum RouteTarget {
    /// The origin that the request's URL names, as a forward proxy has it.
    Named(Arc<OriginRules>),
    /// A server of an origin.
    Pool(Arc<ServerPool>),
    /// The proxy itself, with another URL.
    Redirect(RedirectTo),
    /// No site has the host that the client names.
    NoSite,
    /// The site has nothing at this path.
    NoRoute,
    /// Origins that decode a path would see another route's in it.
    Ambiguous,
}

/// Where clients are sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RedirectTo {
    pub status: StatusCode,
    /// A URL, or a path of the same site.
    pub url: String,
    /// Whether path and query of the request follow it.
    pub keeps_path: bool,
}

impl RedirectTo {
    /// The `Location` for a request; `None` if it would not be one. A path that begins with several slashes would be read
    /// as a host, so one is left of them.
    pub fn location(&self, uri: &Uri) -> Option<HeaderValue> {
        if !self.keeps_path {
            return HeaderValue::from_str(&self.url).ok();
        }
        let path = uri.path_and_query().map_or("", PathAndQuery::as_str).trim_start_matches(['/', '\\']);
        HeaderValue::from_str(&format!("{}/{path}", self.url.strip_suffix('/').unwrap_or(&self.url))).ok()
    }
}

/// The `Host` that an origin gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HostSent {
    /// The authority of the server that is asked.
    Server,
    /// Always this one.
    Fixed(String),
    /// The one in the key, which the client names.
    Client,
}

/// The name of a route in the access log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RouteName {
    /// The first name of the site; `*` if it has none.
    pub site: String,
    /// The path, as the configuration has it; an exact one begins with `=`.
    pub path: String,
}

/// A route: what a request's key is, where its response comes from, and how long that is good for.
#[derive(Debug)]
pub(crate) struct SiteRoute {
    /// The name; `None` for what is no site's.
    pub name: Option<Arc<RouteName>>,
    pub key: SiteKey,
    pub target: RouteTarget,
    pub host: HostSent,
    pub policy: ResponsePolicy,
    /// Whether nothing is stored and nothing is answered from the store.
    pub is_pass: bool,
    /// The size of the parts in which bodies are fetched and stored; `None` if they are whole. *Units*: bytes, not 0.
    pub part_bytes: Option<u64>,
    pub query: QueryRule,
    pub cookies: CookieRule,
    /// The request headers that are part of every key, sorted. Those that stand for single cookies are among them.
    pub key_headers: Vec<HeaderName>,
    /// The changes of requests to the origin.
    pub request_headers: HeaderEdits,
    /// The changes of responses to clients.
    pub response_headers: HeaderEdits,
    /// The origin's references to itself, which clients get in a form that is right for each of them.
    pub references: Option<OwnReferences>,
    /// Who may use the route; everyone if it is `None`.
    pub access: Option<AccessRules>,
    /// How often a network of clients may send requests to the route, or to the site.
    pub request_rule: Option<RequestRule>,
    /// The tags of every stored response, beside those that it names.
    pub tags: Vec<Vec<u8>>,
    /// Whether bodies that end with the origin's connection are not stored.
    pub distrusts_close: bool,
    /// Whether tags are removed from responses to clients.
    pub strips_tags: bool,
    /// Whether clients' demands for a fresher response are ignored.
    pub ignores_demands: bool,
    /// Whether the origin is not told who asked.
    pub is_silent: bool,
}

impl SiteRoute {
    /// A route without rules.
    pub fn new(key: SiteKey, target: RouteTarget) -> SiteRoute {
        SiteRoute {
            name: None,
            key,
            target,
            host: HostSent::Server,
            policy: ResponsePolicy::default(),
            is_pass: false,
            part_bytes: None,
            query: QueryRule::default(),
            cookies: CookieRule::default(),
            key_headers: Vec::new(),
            request_headers: HeaderEdits::default(),
            response_headers: HeaderEdits::default(),
            references: None,
            access: None,
            request_rule: None,
            tags: Vec::new(),
            distrusts_close: false,
            strips_tags: false,
            ignores_demands: false,
            is_silent: false,
        }
    }

    /// The rules that make keys, in one line.
    pub fn key_rules(&self) -> String {
        let names: Vec<_> = self.key_headers.iter().map(HeaderName::as_str).collect();
        let kind = match &self.target {
            RouteTarget::Named(_) => "forward",
            RouteTarget::Pool(_) => "origin",
            _ => "none",
        };
        let (key, query, cookies, parts) = (&self.key, &self.query, &self.cookies, self.part_bytes);
        format!("{kind} {key:?} {query:?} {cookies:?} {names:?} {parts:?} {}", self.is_pass)
    }

    /// Whether a client with this address may use the route.
    #[inline]
    pub fn admits(&self, client: IpAddr) -> bool {
        self.access.as_ref().is_none_or(|access| access.admits(client))
    }

    /// Whether clients name any origin, as those of a forward proxy do.
    pub fn is_forward(&self) -> bool {
        matches!(self.target, RouteTarget::Named(_))
    }

    /// Whether requests may be answered from the store.
    #[inline]
    pub fn is_stored(&self) -> bool {
        matches!(self.target, RouteTarget::Named(_) | RouteTarget::Pool(_)) && !self.is_pass
    }

    /// Whether nothing but URL and host decides about the answer to a plain request, and the stored headers are sent as
    /// they are.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.key_headers.is_empty() && self.response_headers.is_empty() && self.access.is_none() && !self.is_forward()
    }

    /// The URL of a request as the access log has it: what the client asked for, where the key is not that.
    pub fn logged_url<'a>(&self, key: &'a [u8], is_tls: bool, host: Option<&[u8]>, path: &[u8]) -> Cow<'a, [u8]> {
        let has_url = matches!(self.target, RouteTarget::NoSite | RouteTarget::NoRoute | RouteTarget::Ambiguous);
        if !(self.key.is_of_site || has_url) {
            return Cow::Borrowed(key);
        }
        let scheme = if is_tls { &b"https://"[..] } else { b"http://" };
        Cow::Owned([scheme, host.unwrap_or_default(), path].concat())
    }

    /// Appends the primary key of a request to `out`; false if the target has no key.
    ///
    /// Unless the client's host is in the key, the key has the site's, whatever authority the client names. The authority
    /// in the target counts more than `Host`.
    pub fn push_request_key(&self, uri: &Uri, host: Option<&HeaderValue>, out: &mut Vec<u8>) -> bool {
        match self.target {
            RouteTarget::Named(_) => push_key(out, uri),
            RouteTarget::NoSite | RouteTarget::NoRoute | RouteTarget::Ambiguous => false,
            RouteTarget::Pool(_) | RouteTarget::Redirect(_) => {
                let named = uri.authority().map(|authority| authority.as_str().as_bytes());
                let has_key = uri.path_and_query().is_none_or(|path| path.as_str() != "*")
                    && self.key.push_prefix(out, named.or_else(|| host.map(HeaderValue::as_bytes)));
                if has_key {
                    self.push_path(path_of(uri), out);
                }
                has_key
            }
        }
    }

    /// Appends the path of a key and what counts of its query; an empty path is `/`.
    #[inline]
    pub fn push_path(&self, path_and_query: &[u8], out: &mut Vec<u8>) {
        if path_and_query.first() != Some(&b'/') {
            out.push(b'/');
        }
        self.query.push(path_and_query, out);
    }

    /// The path and query that the origin gets, if it is not the request's: a response that may be stored must not depend
    /// on what is not in the key.
    pub fn target_sent(&self, uri: &Uri) -> Option<PathAndQuery> {
        if self.query.is_all() || self.is_pass {
            return None;
        }
        let mut target = Vec::new();
        self.push_path(path_of(uri), &mut target);
        PathAndQuery::try_from(target).ok()
    }

    /// Removes the cookies that do not count from a request: neither `Vary` nor the origin sees them. As with the query,
    /// an unsafe request and one that is passed keep all. A second call changes nothing.
    #[inline]
    pub fn clean_cookies(&self, method: &Method, headers: &mut HeaderMap) {
        if !self.cookies.is_all() && !self.is_pass && !is_unsafe(method) {
            self.cookies.clean(headers);
        }
    }

    /// The `Host` that a server with this authority gets with a request that has this key.
    pub fn host_for<'a>(&'a self, key: &'a [u8], authority: &'a str) -> &'a str {
        match &self.host {
            HostSent::Server => authority,
            HostSent::Fixed(host) => host,
            HostSent::Client => self.key.client_host_of(key).unwrap_or(authority),
        }
    }

    /// Makes an origin's response fit for all clients, before anything else is read from its headers.
    pub fn adapt(&self, headers: &mut HeaderMap) {
        if let Some(references) = &self.references {
            references.rewrite(headers);
        }
    }
}

/// The authority that a request names: that of its target, else its `Host`.
pub(super) fn authority_of<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a [u8]> {
    let named = uri.authority().map(|authority| authority.as_str().as_bytes());
    named.or_else(|| headers.get(HOST).map(HeaderValue::as_bytes))
}

/// Path and query of a URI.
pub(crate) fn path_of(uri: &Uri) -> &[u8] {
    uri.path_and_query().map_or(b"", |path| path.as_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirect_stays_on_its_host() {
        let location = |url: &str, keeps_path, uri: &str| {
            let to = RedirectTo { status: StatusCode::FOUND, url: url.to_owned(), keeps_path };
            let uri = uri.parse().expect("a target");
            to.location(&uri).map(|value| value.to_str().expect("ASCII").to_owned()).unwrap_or_default()
        };
        assert_eq!(location("https://b/x", false, "/y?z"), "https://b/x");
        assert_eq!(location("https://b", true, "/y?z"), "https://b/y?z");
        assert_eq!(location("https://b/x/", true, "http://a/y?z"), "https://b/x/y?z");
        assert_eq!(location("https://b", true, "http://a"), "https://b/");
        assert_eq!(location("/", true, "//evil/"), "/evil/");
        assert_eq!(location("/", true, "/\\evil/"), "/evil/");
        assert_eq!(location("/new", true, "//evil/"), "/new/evil/");
    }

    #[test]
    fn log_has_client_url() {
        let logged = |key: SiteKey, is_tls, host: Option<&str>| {
            let to = RedirectTo { status: StatusCode::FOUND, url: "/".to_owned(), keeps_path: false };
            let route = SiteRoute::new(key, RouteTarget::Redirect(to));
            let url = route.logged_url(b"http://key/a", is_tls, host.map(str::as_bytes), b"/a?b");
            String::from_utf8(url.into_owned()).expect("text")
        };
        let site = || SiteKey::of_site("one.test", true, true);
        assert_eq!(logged(site(), true, Some("www.one.test:8443")), "https://www.one.test:8443/a?b");
        assert_eq!(logged(site(), false, None), "http:///a?b");
        assert_eq!(logged(SiteKey::of_origin(true, "own", false), true, Some("x")), "http://key/a");
    }
}
