//! A reload replaces sites, routes, origins and rules while requests go on; a bad one changes nothing.

use std::sync::Arc;
use std::time::Duration;

use nectary_config::ProxyConfig;

use crate::common::sites::{at, config, configured, origin, route, site};
use crate::common::*;

fn one(name: &str, from: &Origin) -> ProxyConfig {
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
    let (first, second) = (Origin::start().await, Origin::start().await);
    first.on("/x", Script::fresh(b"first"));
    second.on("/x", Script::fresh(b"second"));
    let proxy = configured(one("a", &first)).await;
    wait_for(&proxy, "a", 200).await;
    let mut client = Client::connect(proxy.address).await;
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
async fn a_request_keeps_the_route_with_which_it_began() {
    let (first, second) = (Origin::start().await, Origin::start().await);
    first.on("/x", Script::default().wait("answer").then(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nfirst"));
    let proxy = configured(one("a", &first)).await;
    let address = proxy.address;
    let asked = tokio::spawn(async move { get(address, "/x", &["host: a"]).await });
    first.wait_for(1).await;
    second.on("/x", Script::fresh(b"second"));
    proxy.reopener().reload(&Arc::new(one("b", &second))).expect("a good configuration");
    wait_for(&proxy, "b", 200).await;
    first.open("answer");
    assert_eq!(asked.await.expect("an answer").text(), "first");
}

#[tokio::test]
async fn a_bad_configuration_changes_nothing() {
    let (first, second) = (Origin::start().await, Origin::start().await);
    first.on("/x", Script::fresh(b"first"));
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
async fn a_new_lifetime_counts_for_what_is_in_memory() {
    let origin = Origin::start().await;
    origin.on("/x", Script::ok(&[], b"hello")).on("/said", Script::fresh(b"hello"));
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
