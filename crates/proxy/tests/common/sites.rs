//! Configurations of sites and origins, as a file would describe them.

use std::net::SocketAddr;
use std::sync::Arc;

use nectary_config::{
    ListenAddress, ListenerConfig, LocatedValue, OriginConfig, ProxyConfig, RouteAction, RouteConfig, RoutePath,
    ServerConfig, ServerScheme, ServerUrl, SiteConfig, SiteName,
};
use nectary_proxy::{ProxyOptions, options_of};

use super::origin::TestOrigin;
use super::proxy::{TestProxy, token};

/// A value that is in no file.
pub fn at<T>(value: T) -> LocatedValue<T> {
    LocatedValue::nowhere(value)
}

/// An origin with these servers.
pub fn origin(name: &str, servers: &[SocketAddr]) -> OriginConfig {
    let server = |address: &SocketAddr| {
        let url = ServerUrl { scheme: ServerScheme::Http, host: address.ip().to_string(), port: address.port() };
        at(ServerConfig { url: at(url), weight: None })
    };
    OriginConfig { name: at(name.to_owned()), servers: servers.iter().map(server).collect(), ..OriginConfig::default() }
}

/// A route to an origin; a path that begins with `=` is exact.
pub fn route(path: &str, origin: &str) -> RouteConfig {
    let path = match path.strip_prefix('=') {
        Some(exact) => RoutePath::Exact(exact.to_owned()),
        None => RoutePath::Prefix(path.to_owned()),
    };
    RouteConfig {
        path: at(path),
        action: RouteAction::Origin(at(origin.to_owned())),
        rules: Default::default(),
        request_headers: Default::default(),
        response_headers: Default::default(),
        access: Default::default(),
        client_requests: None,
    }
}

/// A site; without names it is the default site.
pub fn site(names: &[&str], routes: Vec<RouteConfig>) -> SiteConfig {
    let name = |name: &&str| match name.strip_prefix("*.") {
        Some(suffix) => at(SiteName::Wildcard(suffix.to_owned())),
        None => at(SiteName::Exact((*name).to_owned())),
    };
    SiteConfig {
        names: names.iter().map(name).collect(),
        default: Some(at(names.is_empty())),
        routes: routes.into_iter().map(at).collect(),
        ..SiteConfig::default()
    }
}

/// A configuration with one listener.
pub fn config(sites: Vec<SiteConfig>, origins: Vec<OriginConfig>) -> ProxyConfig {
    let listener = ListenerConfig {
        address: at(ListenAddress::Socket(SocketAddr::from(([127, 0, 0, 1], 0)))),
        tls: None,
        redirect_to_https: None,
        proxy_protocol_from: Vec::new(),
        socket_mode: None,
    };
    ProxyConfig {
        listeners: vec![at(listener)],
        sites: sites.into_iter().map(at).collect(),
        origins: origins.into_iter().map(at).collect(),
        ..ProxyConfig::default()
    }
}

/// A proxy with this configuration, one worker, and the token of the tests.
pub async fn configured(config: ProxyConfig) -> TestProxy {
    with_workers(config, 1).await
}

/// A proxy with this configuration, so many workers, and the token of the tests.
pub async fn with_workers(config: ProxyConfig, workers: usize) -> TestProxy {
    let mut options = options_of(&Arc::new(config)).expect("a good configuration");
    options.admin.token = Some(token());
    TestProxy::start(ProxyOptions { workers, ..options }).await
}

/// A proxy of one site with one route for all paths, which has a rule, and one without it.
pub async fn with_rule(from: &TestOrigin, change: impl FnOnce(&mut RouteConfig)) -> TestProxy {
    configured(with_rule_config(from, change)).await
}

/// The configuration of [`with_rule`].
pub fn with_rule_config(from: &TestOrigin, change: impl FnOnce(&mut RouteConfig)) -> ProxyConfig {
    let mut changed = route("/", "o");
    change(&mut changed);
    config(vec![site(&["a"], vec![changed, route("/plain/", "o")])], vec![origin("o", &[from.address])])
}
