//! Each site and each route bounds the requests of a network of clients, whichever way answers them.

use std::sync::Arc;
use std::time::Duration;

use nectary_config::{ListenAddress, LocatedValue, ProxyConfig, RequestRate};

use crate::common::http2::Http2Client;
use crate::common::sites::{at, config, configured, origin, route, site};
use crate::common::*;

fn rate(count: u32) -> Option<LocatedValue<RequestRate>> {
    Some(at(RequestRate { count, period: Duration::from_secs(60) }))
}

/// Site `a` with a rule, whose route `/own/` has a stricter one; and site `b` without a rule.
fn limited(from: &TestOrigin, count: u32) -> ProxyConfig {
    let mut own = route("/own/", "o");
    own.client_requests = rate(1);
    let mut a = site(&["a"], vec![route("/", "o"), route("/more/", "o"), own]);
    a.client_requests = rate(count);
    config(vec![a, site(&["b"], vec![route("/", "o")])], vec![origin("o", &[from.address])])
}

async fn status(client: &mut TestClient, lines: &[&str]) -> u16 {
    client.ask(lines).await.status
}

#[tokio::test]
async fn requests_to_a_site_are_bounded() {
    let from = TestOrigin::start().await;
    from.on("/x", OriginScript::fresh(b"x")).on("/more/x", OriginScript::fresh(b"x"));
    let proxy = configured(limited(&from, 5)).await;
    let mut client = TestClient::connect(proxy.address).await;
    // A miss, hits without hyper and with it, another route, and a request that is passed.
    for lines in [
        &["GET /x HTTP/1.1", "host: a"][..],
        &["GET /x HTTP/1.1", "host: a"],
        &["GET /x HTTP/1.1", "host: a", "x-other: 1"],
        &["GET /more/x HTTP/1.1", "host: a"],
        &["POST /x HTTP/1.1", "host: a", "content-length: 0"],
    ] {
        assert_eq!(status(&mut client, lines).await, 200, "{lines:?}");
    }
    let asked = from.count();
    for lines in [
        &["GET /x HTTP/1.1", "host: a"][..],
        &["GET /x HTTP/1.1", "host: a", "x-other: 1"],
        &["POST /x HTTP/1.1", "host: a", "content-length: 0"],
    ] {
        let reply = client.ask(lines).await;
        assert_eq!((reply.status, reply.cache_status().as_str()), (429, "nectary; detail=client-requests"));
        let wait_s: u64 = reply.header("retry-after").parse().expect("seconds");
        assert!((1..=12).contains(&wait_s), "{wait_s}");
    }
    assert_eq!(Http2Client::plain(proxy.address).await.ask("GET", "http://a/x", &[]).await.status, 429);
    assert_eq!(status(&mut client, &["GET /x HTTP/1.1", "host: b"]).await, 200, "another site");
    assert_eq!(proxy.stats().limited_requests, 4);
    assert_eq!(from.count(), asked + 1, "none of them reached the origin but that of the other site");
}

#[tokio::test]
async fn rule_of_a_route_counts_apart() {
    let from = TestOrigin::start().await;
    from.on("/own/x", OriginScript::fresh(b"x")).on("/x", OriginScript::fresh(b"x"));
    let proxy = configured(limited(&from, 1)).await;
    let mut client = TestClient::connect(proxy.address).await;
    assert_eq!(status(&mut client, &["GET /own/x HTTP/1.1", "host: a"]).await, 200);
    assert_eq!(status(&mut client, &["GET /own/x HTTP/1.1", "host: a"]).await, 429);
    assert_eq!(status(&mut client, &["GET /x HTTP/1.1", "host: a"]).await, 200, "the site's bucket is full");
    assert_eq!(status(&mut client, &["GET /x HTTP/1.1", "host: a"]).await, 429);
}

#[tokio::test]
async fn site_refusals_spare_other_sites() {
    let from = TestOrigin::start().await;
    from.on("/x", OriginScript::fresh(b"x"));
    let mut both = limited(&from, 1);
    both.limits.client_requests = rate(3);
    let proxy = configured(both).await;
    let mut client = TestClient::connect(proxy.address).await;
    assert_eq!(status(&mut client, &["GET /x HTTP/1.1", "host: a"]).await, 200);
    for more in ["x-plain: 1", "connection: keep-alive", "range: bytes=0-0", "cache-control: no-cache"] {
        assert_eq!(status(&mut client, &["GET /x HTTP/1.1", "host: a", more]).await, 429, "{more}");
    }
    for expected in [200, 200, 429] {
        assert_eq!(status(&mut client, &["GET /x HTTP/1.1", "host: b"]).await, expected);
    }
}

#[tokio::test]
async fn reload_keeps_unchanged_counts() {
    let from = TestOrigin::start().await;
    from.on("/x", OriginScript::fresh(b"x"));
    let proxy = configured(limited(&from, 2)).await;
    let mut client = TestClient::connect(proxy.address).await;
    for expected in [200, 200, 429] {
        assert_eq!(status(&mut client, &["GET /x HTTP/1.1", "host: a"]).await, expected);
    }
    // Site `c` shows that the worker uses the new table.
    let with = |count, name: &str| {
        let mut changed = limited(&from, count);
        changed.sites.push(at(site(&[name], vec![route("/", "o")])));
        Arc::new(changed)
    };
    for (count, name, expected) in [(2, "c", 429), (3, "d", 200)] {
        proxy.reopener().reload(&with(count, name)).expect("a good configuration");
        let host = format!("host: {name}");
        while status(&mut client, &["GET /x HTTP/1.1", &host]).await != 200 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert_eq!(status(&mut client, &["GET /x HTTP/1.1", "host: a"]).await, expected, "{count}");
    }
}

#[tokio::test]
async fn administration_needs_no_tokens() {
    let from = TestOrigin::start().await;
    let mut config = limited(&from, 1);
    config.limits.client_requests = rate(1);
    config.admin.listen = vec![at(ListenAddress::Socket("127.0.0.1:0".parse().expect("an address")))];
    let proxy = configured(config).await;
    let mut client = TestClient::connect(proxy.admin_address.expect("one")).await;
    for _ in 0..3 {
        assert_eq!(status(&mut client, &["PURGE /x HTTP/1.1", "host: a", AUTHORIZATION]).await, 200);
    }
    assert_eq!(proxy.stats().limited_requests, 0);
}
