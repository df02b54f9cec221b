//! A reload replaces sites, routes, origins and rules while requests go on; a bad one changes nothing.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nectary_config::{CertificateConfig, ListenAddress, ProxyConfig, SiteName};

use crate::common::certificates::TestCertificates;
use crate::common::sites::{at, config, configured, origin, route, site};
use crate::common::*;

fn one(name: &str, from: &TestOrigin) -> ProxyConfig {
    config(vec![site(&[name], vec![route("/", "o")])], vec![origin("o", &[from.address])])
}

/// Waits until the proxy answers a request for this host by this status.
async fn wait_for(proxy: &TestProxy, host: &str, status: u16) {
    while get(proxy.address, "/x", &[&format!("host: {host}")]).await.status != status {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn new_sites_replace_the_old() {
    let (first, second) = (TestOrigin::start().await, TestOrigin::start().await);
    first.on("/x", OriginScript::fresh(b"first"));
    second.on("/x", OriginScript::fresh(b"second"));
    let proxy = configured(one("a", &first)).await;
    wait_for(&proxy, "a", 200).await;
    let mut client = TestClient::connect(proxy.address).await;
    assert_eq!(client.ask(&["GET /x HTTP/1.1", "host: b"]).await.status, 404);
    let needs_restart = proxy.reopener().reload(&Arc::new(one("b", &second))).expect("a good configuration");
    assert_eq!(needs_restart, Vec::<&str>::new());
    wait_for(&proxy, "a", 404).await;
    // The client's connection goes on.
    assert_eq!(client.ask(&["GET /x HTTP/1.1", "host: b"]).await.text(), "second");
    // What was stored is found again when the site is back.
    proxy.reopener().reload(&Arc::new(one("a", &second))).expect("a good configuration");
    wait_for(&proxy, "b", 404).await;
    let reply = get(proxy.address, "/x", &["host: a"]).await;
    assert!(reply.is_hit() && reply.text() == "first", "{reply:?}");
}

#[tokio::test]
async fn running_request_keeps_its_route() {
    let (first, second) = (TestOrigin::start().await, TestOrigin::start().await);
    first.on("/x", OriginScript::default().wait("answer").then(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nfirst"));
    let proxy = configured(one("a", &first)).await;
    let address = proxy.address;
    let asked = tokio::spawn(async move { get(address, "/x", &["host: a"]).await });
    first.wait_for(1).await;
    second.on("/x", OriginScript::fresh(b"second"));
    proxy.reopener().reload(&Arc::new(one("b", &second))).expect("a good configuration");
    wait_for(&proxy, "b", 200).await;
    first.open("answer");
    assert_eq!(asked.await.expect("an answer").text(), "first");
}

#[tokio::test]
async fn a_bad_configuration_changes_nothing() {
    let (first, second) = (TestOrigin::start().await, TestOrigin::start().await);
    first.on("/x", OriginScript::fresh(b"first"));
    let proxy = configured(one("a", &first)).await;
    let mut bad = one("a", &second);
    bad.origins[0].value.retries = Some(at(1));
    let error = proxy.reopener().reload(&Arc::new(bad)).expect_err("refused").to_string();
    assert!(error.contains("no other server"), "{error}");
    assert_eq!(get(proxy.address, "/x", &["host: a"]).await.text(), "first");
    let mut other = one("a", &first);
    other.store.device = at("memory:1G".to_owned());
    other.limits.url_bytes_max = Some(at(100));
    let needs_restart = proxy.reopener().reload(&Arc::new(other)).expect("a good configuration");
    assert_eq!(needs_restart, ["[store]", "[limits]"]);
}

#[tokio::test]
async fn changed_listener_needs_a_restart() {
    let from = TestOrigin::start().await;
    let proxy = configured(one("a", &from)).await;
    let mut other = one("a", &from);
    other.listeners[0].value.address = at(ListenAddress::Socket("127.0.0.1:1".parse().expect("an address")));
    let needs_restart = proxy.reopener().reload(&Arc::new(other)).expect("a good configuration");
    assert_eq!(needs_restart, ["[[listener]]"]);
}

#[tokio::test]
async fn unusable_certificate_changes_no_site() {
    let (from, files) = (TestOrigin::start().await, TestCertificates::new("reload"));
    let own = files.sign("site", &["a"]);
    let made = |name: &str, key: &Path| {
        let mut config = one(name, &from);
        // The keys of what is stored tell the names of a site apart.
        config.sites[0].value.names.push(at(SiteName::Exact("other".to_owned())));
        config.listeners[0].value.tls = Some(at(true));
        let (cert, key) = (at(own.certificate.clone()), at(key.to_owned()));
        config.tls.certificates = vec![at(CertificateConfig { cert, key })];
        config
    };
    let proxy = configured(made("a", &own.key)).await;
    let reopener = proxy.reopener();
    let key = || reopener.keys_of("http://other/x", false).concat();
    assert_eq!(key(), b"http://a/x");
    let error = reopener.reload(&Arc::new(made("b", Path::new("/no/such/key")))).expect_err("there is no key");
    assert!(error.to_string().contains("/no/such/key"), "{error}");
    assert_eq!(key(), b"http://a/x", "nothing has changed");
    reopener.reload(&Arc::new(made("b", &own.key))).expect("a good configuration");
    assert_eq!(key(), b"http://b/x");
}

#[tokio::test]
async fn another_origin_has_no_failures_yet() {
    // It is dropped, so its port refuses connections.
    let from = TestOrigin::start().await.address;
    let made = |name: &str| config(vec![site(&["a"], vec![route("/", name)])], vec![origin(name, &[from])]);
    let proxy = configured(made("o")).await;
    for _ in 0..3 {
        assert_eq!(get(proxy.address, "/x", &["host: a"]).await.status, 502);
    }
    assert_eq!(proxy.reader().origins_down().len(), 1);
    proxy.reopener().reload(&Arc::new(made("p"))).expect("a good configuration");
    assert_eq!(proxy.reader().origins_down(), []);
}

#[tokio::test]
async fn new_lifetime_applies_in_memory() {
    let origin = TestOrigin::start().await;
    origin.on("/x", OriginScript::ok(&[], b"hello")).on("/said", OriginScript::fresh(b"hello"));
    let with_ttl = |seconds: u64| {
        let mut config = one("a", &origin);
        let lifetimes = &mut config.sites[0].value.routes[0].value.rules.lifetimes;
        lifetimes.default_ttl = Some(at(Duration::from_secs(seconds)));
        Arc::new(config)
    };
    let proxy = configured(ProxyConfig::clone(&with_ttl(60))).await;
    for path in ["/x", "/x", "/said"] {
        get(proxy.address, path, &["host: a"]).await;
    }
    assert_eq!(origin.count(), 2);
    proxy.reopener().reload(&with_ttl(450)).expect("a good configuration");
    while !get(proxy.address, "/x", &["host: a"]).await.cache_status().contains("ttl=4") {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    proxy.reopener().reload(&with_ttl(0)).expect("a good configuration");
    while get(proxy.address, "/x", &["host: a"]).await.is_hit() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert!(get(proxy.address, "/said", &["host: a"]).await.is_hit(), "the origin has said this one's");
}
