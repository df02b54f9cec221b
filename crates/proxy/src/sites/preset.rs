//! The two tables that options of the command line make: a reverse proxy of one origin, and a forward proxy.

use std::sync::Arc;

use http::uri::Authority;

use super::{HostSent, RouteTarget, SiteKey, SiteRoute, SiteTable};
use crate::options::ProxyOptions;
use crate::rules::default_ttl::{DefaultTtl, DefaultTtlRule};
use crate::rules::key::{UrlOrigin, host_and_path};
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

/// What is doubtful about the lifetimes that options give to responses without one: a sentence for each rule that never
/// counts, as no URL has its host, or as a rule before it matches all that it matches.
pub fn unused_lifetimes(options: &ProxyOptions) -> Vec<String> {
    let authority = options.origin.as_ref().and_then(|url| {
        let (host, authority, _) = host_of(&url.0, &options.origin_rules.host.0);
        (host != HostSent::Client).then_some(authority)
    });
    let key = authority.map(|authority| format!("http://{authority}/"));
    let host = key.as_ref().map(|key| host_and_path(key.as_bytes()).0);
    let rules = &options.default_ttl;
    let doubt = |(index, rule): (usize, &DefaultTtlRule)| {
        if let Some(host) = host.filter(|host| !rule.is_for_host(host)) {
            let host = String::from_utf8_lossy(host);
            return Some(format!(
                "--default-ttl {rule} never counts: URLs have the host {host} here, that of --origin or --origin-host. Name \
                 that host, or none"
            ));
        }
        let before = rules[..index].iter().find(|before| before.covers(rule))?;
        Some(format!(
            "--default-ttl {rule} never counts: --default-ttl {before} is before it, and matches the same. Change their order"
        ))
    };
    rules.iter().enumerate().filter_map(doubt).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::origin::host_sent::OriginHost;

    /// The rules that never count, with an origin or none, and a choice of the host that it gets.
    fn unused(origin: Option<&str>, host: &str, rules: &[&str]) -> Vec<String> {
        let mut options = ProxyOptions {
            origin: origin.map(|url| url.parse().expect("an origin")),
            default_ttl: rules.iter().map(|text| DefaultTtlRule::parse(text).expect("a rule")).collect(),
            ..ProxyOptions::default()
        };
        options.origin_rules.host = host.parse::<OriginHost>().expect("a host");
        unused_lifetimes(&options)
    }

    #[test]
    fn unused_lifetimes_are_told() {
        let app = Some("http://App.internal:3000");
        assert_eq!(unused(app, "origin", &["app.internal/x=60", "*.internal=5", "*=1"]), [""; 0]);
        assert_eq!(unused(None, "origin", &["a.example=60", "*=5"]), [""; 0]);
        assert_eq!(unused(app, "client", &["www.example=60"]), [""; 0]);
        let found = unused(app, "origin", &["www.example/x=60", "/x=5"]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("--default-ttl www.example/x=60s never counts: URLs have the host app.internal here")
        );
        assert_eq!(unused(app, "www.example:81", &["www.example=60", "app.internal=5"]).len(), 1);
        let found = unused(None, "origin", &["*.example=60", "a.example/x=5", "other=1"]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].contains("a.example/x=5s never counts: --default-ttl *.example=60s is before it"),
            "{found:?}"
        );
    }
}
