//! Sites: what is served under which names.
//!
//! Owns: the values of `[[site]]`.

use std::fmt;

use super::limits::RequestRate;
use super::network::AccessRules;
use super::route::RouteConfig;
use crate::place::{LocatedValue, Setting};

/// `[[site]]`: names, and routes by path.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SiteConfig {
    /// `names`: its names; no two sites share one. An exact name wins over a wildcard, and a longer wildcard over a
    /// shorter one. May be empty only for the default site.
    pub names: Vec<LocatedValue<SiteName>>,
    /// `default`: whether it serves hosts that are no site's. At most one site is. Default: false.
    pub default: Setting<bool>,
    /// Who may use it. Default: everyone.
    pub access: AccessRules,
    /// `client-requests`: how often one client network may send requests to it. Default: no limit but that of
    /// `[limits]`.
    pub client_requests: Setting<RequestRate>,
    /// `[[site.route]]`: its routes, at least one; no two have the same path. A path without a route gets 404.
    pub routes: Vec<LocatedValue<RouteConfig>>,
}

/// A name of a site, in lower case, without a port, and without a dot at the end. Names in other scripts are in their
/// ASCII form (`xn--…`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SiteName {
    /// `example.org`: this name; or an IP address, one of IPv6 without brackets.
    Exact(String),
    /// `*.example.org`: every name that ends in `.example.org`, however many labels are before it, but not
    /// `example.org` itself. The value is what follows `*.`.
    Wildcard(String),
}

impl SiteName {
    /// Whether it is the name of a host, which is in lower case and without port.
    pub fn matches(&self, host: &str) -> bool {
        match self {
            SiteName::Exact(name) => host == name,
            SiteName::Wildcard(suffix) => {
                let first = host.strip_suffix(suffix.as_str()).and_then(|before| before.strip_suffix('.'));
                first.is_some_and(|first| !first.is_empty())
            }
        }
    }
}

impl fmt::Display for SiteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SiteName::Exact(name) => f.write_str(name),
            SiteName::Wildcard(suffix) => write!(f, "*.{suffix}"),
        }
    }
}
