//! The two tables that options of the command line make: a reverse proxy of one origin, and a forward proxy.

use std::sync::Arc;

use http::uri::Authority;

use super::{HostSent, RouteTarget, SiteKey, SiteRoute, SiteTable};
use crate::options::ProxyOptions;
use crate::rules::default_ttl::DefaultTtl;
use crate::rules::key::UrlOrigin;
use crate::rules::key_headers;
use crate::rules::origin::host_sent::{HostChoice, push_host};
use crate::rules::origin::references::OwnReferences;
use crate::rules::policy::ResponsePolicy;
use crate::upstream::{OriginRules, ServerPool};

/// The table of a proxy whose options name one origin or none.
pub(crate) fn preset(options: &ProxyOptions, rules: Arc<OriginRules>) -> SiteTable {
    let policy = ResponsePolicy {
        default_ttl: DefaultTtl::new(options.default_ttl.clone()),
        is_for_origin: options.origin.is_some(),
        stores_cookies: options.store_set_cookie,
        stale_unreachable_s: options.stale_unreachable.as_secs(),
        ..ResponsePolicy::default()
    };
    let (key, host, references, target) = match &options.origin {
        None => (SiteKey::of_origin(false, "", false), HostSent::Server, None, RouteTarget::Named(rules)),
        Some(url) => {
            let origin = &url.0;
            let (host, authority, own) = host_of(origin, &options.origin_rules.host.0);
            let key = SiteKey::of_origin(origin.https, &authority, host == HostSent::Client);
            (
                key,
                host,
                Some(OwnReferences::new(own)),
                RouteTarget::Pool(Arc::new(ServerPool::of_one(origin.clone(), rules))),
            )
        }
    };
    SiteTable::one(SiteRoute {
        host,
        policy,
        key_headers: key_headers::names(&options.origin_rules.key_headers),
        references,
        distrusts_close: options.origin_rules.distrusts_close,
        strips_tags: options.strip_tags,
        ignores_demands: options.ignore_request_cache_control,
        is_silent: options.forwarded.is_silent,
        ..SiteRoute::new(key, target)
    })
}

/// The `Host` that the origin gets, the authority of its keys, and the authorities by which it names itself.
fn host_of(origin: &UrlOrigin, choice: &HostChoice) -> (HostSent, String, Vec<UrlOrigin>) {
    let mut own = vec![origin.clone()];
    let mut authority = Vec::new();
    let host = match choice {
        HostChoice::Fixed(host) if push_host(&mut authority, host.as_bytes(), origin.https) => {
            own.extend(Authority::try_from(&authority[..]).ok().and_then(|host| UrlOrigin::new(origin.https, &host)));
            HostSent::Fixed(String::from_utf8_lossy(&authority).into_owned())
        }
        HostChoice::Client => HostSent::Client,
        _ => HostSent::Server,
    };
    let authority = match &host {
        HostSent::Fixed(host) => host.clone(),
        _ => origin.authority(),
    };
    (host, authority, own)
}
