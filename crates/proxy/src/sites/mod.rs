//! From a request's host and path to the route that answers it.
//!
//! Owns: the table of sites ([`SiteTable`]), the rules of a route ([`SiteRoute`]): its key, the `Host` that its origin gets,
//! what of query and cookies counts, and the headers that are set or removed. Everything here is pure: no I/O, no clock.
//! Promises: the key of a request is its site's and never the chosen server's; nothing that a client chooses leads to
//! another client's answer unless it is in the key. A table never changes: a reload makes a new one, and a request keeps
//! the route with which it began. Leaves to others: the servers of an origin (`upstream`), the answers (`service`).

mod cookie_rule;
mod header_edits;
mod live_sites;
#[cfg(test)]
mod model_tests;
mod name_rule;
mod preset;
mod query_rule;
mod site_key;
mod site_path;
mod site_route;
mod site_table;
mod url_keys;

pub(crate) use cookie_rule::CookieRule;
pub(crate) use header_edits::HeaderEdits;
pub(crate) use live_sites::LiveSites;
pub(crate) use name_rule::NameRule;
pub(crate) use preset::preset;
pub use preset::unused_lifetimes;
pub(crate) use query_rule::QueryRule;
pub(crate) use site_key::SiteKey;
pub(crate) use site_route::{HostSent, RedirectTo, RouteName, RouteTarget, SiteRoute, path_of};
pub(crate) use site_table::{FallbackRoutes, PathRule, SiteEntry, SiteTable};
pub(crate) use url_keys::KeysOfUrl;
