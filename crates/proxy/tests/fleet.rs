//! Two proxies of a fleet in memory: a purge at one of them reaches the other, also if that is down; a node that has not
//! caught up, or is cut off, serves from its store only what it may.

use std::sync::Arc;
use std::time::Duration;

use nectary_block::{MemoryDevice, SharedDevice};
use nectary_config::{FleetConfig, PurgeAnswer, RequestRate};
use nectary_host::fleet::{
    AppliedMark, FleetMembership, FleetPurge, LoggedPurge, PurgeScope, PurgeStore, RulesHash, RulesRecord,
};
use nectary_proxy::{AdminOptions, FleetStore, ProxyOptions};
use nectary_store::{CreateOptions, OpenOptions, Store};
use serde_json::Value;

use crate::common::model_fleet::ModelNode;
use crate::common::sites::at;
use crate::common::*;

const JSON: &str = "accept: application/json";

/// A proxy that is a node, and what stays when it ends.
struct FleetProxyNode {
    proxy: TestProxy,
    member: Arc<ModelNode>,
    device: SharedDevice,
}

fn node_options() -> ProxyOptions {
    let listen = vec!["127.0.0.1:0".parse().expect("an address")];
    ProxyOptions { admin: AdminOptions { listen, token: Some(token()), ..AdminOptions::default() }, ..options() }
}

async fn device() -> SharedDevice {
    let device: SharedDevice = Arc::new(MemoryDevice::new(256 << 20));
    Store::create(device.clone(), &CreateOptions::default()).await.expect("a store");
    device
}

/// A node that has not caught up.
async fn start(fleet: &ModelFleet, name: &str, device: SharedDevice, config: &FleetConfig) -> FleetProxyNode {
    let mut member = None;
    let proxy = TestProxy::in_fleet(node_options(), device.clone(), |store| {
        let node = fleet.node(name, store);
        member = Some(node.clone());
        node.seat(config)
    })
    .await;
    FleetProxyNode { proxy, member: member.expect("made"), device }
}

/// Two nodes that serve.
async fn pair(fleet: &ModelFleet) -> [FleetProxyNode; 2] {
    let nodes = ["a", "b"].map(|name| async move {
        let node = start(fleet, name, device().await, &FleetConfig::default()).await;
        node.member.come_up().await;
        node
    });
    let [a, b] = nodes;
    [a.await, b.await]
}

/// Lets each node store what the origin has at a path.
async fn store(nodes: &[FleetProxyNode], url: &str) {
    for node in nodes {
        get(node.proxy.address, url, &[]).await;
        assert!(get(node.proxy.address, url, &[]).await.is_hit(), "{url}");
    }
}

async fn purge(node: &FleetProxyNode, url: &str, headers: &[&str]) -> ClientReply {
    let line = format!("PURGE {url} HTTP/1.1");
    TestClient::connect(node.proxy.address).await.ask(&[&[line.as_str(), AUTHORIZATION, JSON], headers].concat()).await
}

async fn purge_by_body(node: &FleetProxyNode, body: &str) -> ClientReply {
    purge_by_body_with(node, body, &[]).await
}

async fn purge_by_body_with(node: &FleetProxyNode, body: &str, headers: &[&str]) -> ClientReply {
    let admin = node.proxy.admin_address.expect("an address for administration");
    let mut client = TestClient::connect(admin).await;
    let length = body.len();
    let head =
        format!("POST /purge HTTP/1.1\r\nhost: {admin}\r\n{AUTHORIZATION}\r\n{JSON}\r\ncontent-length: {length}");
    let headers = [&[""][..], headers].concat().join("\r\n");
    client.send(format!("{head}{headers}\r\n\r\n{body}").as_bytes()).await;
    client.reply(false).await
}

fn json(reply: &ClientReply) -> Value {
    serde_json::from_str(&reply.text()).expect("JSON")
}

#[tokio::test]
async fn purge_reaches_every_node() {
    let (origin, fleet) = (TestOrigin::start().await, ModelFleet::default());
    let tagged = || OriginScript::ok(&["cache-control: max-age=60", "surrogate-key: t"], b"x");
    let nodes = pair(&fleet).await;
    let url = origin.url("/a");
    let requests = [
        r#"{"url": "URL"}"#.replace("URL", &url),
        r#"{"prefix": "URL", "wait": "applied"}"#.replace("URL", &origin.url("/")),
        r#"{"tags": ["t"]}"#.to_owned(),
        r#"{"all": true}"#.to_owned(),
    ];
    for (number, body) in requests.iter().enumerate() {
        origin.on("/a", tagged()).on("/a", tagged());
        store(&nodes, &url).await;
        let reply = purge_by_body(&nodes[0], body).await;
        assert_eq!((reply.status, reply.cache_status().as_str()), (200, "nectary; detail=purge-applied"), "{body}");
        let said = json(&reply)["fleet"].clone();
        assert_eq!((said["state"].as_str(), said["nodes"].as_u64()), (Some("applied"), Some(2)), "{body}");
        assert_eq!(said["revision"].as_u64(), Some(number as u64 + 1));
        origin.on("/a", tagged()).on("/a", tagged());
        for node in &nodes {
            assert!(!get(node.proxy.address, &url, &[]).await.is_hit(), "{body}");
            assert_eq!(node.member.mark().revision, number as u64 + 1);
        }
    }
}

#[tokio::test]
async fn soft_purge_has_one_time_everywhere() {
    let (origin, fleet) = (TestOrigin::start().await, ModelFleet::default());
    let fresh = || OriginScript::ok(&["cache-control: max-age=60", "etag: \"x\""], b"x");
    origin.on("/a", fresh()).on("/a", fresh());
    let nodes = pair(&fleet).await;
    let url = origin.url("/a");
    store(&nodes, &url).await;
    let reply = purge(&nodes[1], &url, &["fastly-soft-purge: 1"]).await;
    assert_eq!((reply.status, json(&reply)["soft"].as_bool()), (200, Some(true)));
    assert!(fleet.log()[0].soft_since_s.is_some());
    for node in &nodes {
        origin.now(
            "/a",
            OriginScript::raw(b"HTTP/1.1 304 Not Modified\r\netag: \"x\"\r\ncache-control: max-age=60\r\n\r\n"),
        );
        let reply = get(node.proxy.address, &url, &[]).await;
        assert_eq!(reply.cache_status(), "nectary; fwd=stale; fwd-status=304; stored");
    }
}

/// While it is down and while it catches up, nothing of its store is seen.
#[tokio::test]
async fn node_that_was_down_applies_purge() {
    let (origin, fleet) = (TestOrigin::start().await, ModelFleet::default());
    origin.on("/a", OriginScript::fresh(b"old")).on("/a", OriginScript::fresh(b"old"));
    let [a, mut b] = pair(&fleet).await;
    let url = origin.url("/a");
    store(std::slice::from_ref(&a), &url).await;
    store(std::slice::from_ref(&b), &url).await;
    b.member.go_down();
    b.proxy.stop().await;
    b.proxy.store.close().await.expect("closed");
    let reply = purge(&a, &url, &[]).await;
    assert_eq!((reply.status, json(&reply)["fleet"]["nodes"].as_u64()), (200, Some(1)));

    let b = start(&fleet, "b", b.device.clone(), &FleetConfig::default()).await;
    origin.now("/a", OriginScript::fresh(b"new"));
    let reply = get(b.proxy.address, &url, &[]).await;
    assert_eq!((reply.text().as_str(), reply.cache_status().as_str()), ("new", "nectary; fwd=bypass; fwd-status=200"));
    b.member.come_up().await;
    assert_eq!(b.member.mark().revision, 1);
    let reply = get(b.proxy.address, &url, &[]).await;
    assert_eq!((reply.text().as_str(), reply.is_hit()), ("new", false));
    assert!(get(b.proxy.address, &url, &[]).await.is_hit());
}

#[tokio::test]
async fn cut_node_reports_and_asks_origin() {
    let (origin, fleet) = (TestOrigin::start().await, ModelFleet::default());
    origin.on("/a", OriginScript::fresh(b"old"));
    let rate = RequestRate { count: 2, period: Duration::from_secs(60) };
    let config = FleetConfig { validate_when_cut: Some(at(rate)), ..FleetConfig::default() };
    let node = start(&fleet, "a", device().await, &config).await;
    node.member.come_up().await;
    let url = origin.url("/a");
    store(std::slice::from_ref(&node), &url).await;
    node.member.cut();
    let reply = get(node.proxy.address, &url, &[]).await;
    assert!(reply.is_hit() && reply.cache_status().ends_with("; fleet=cut"), "{}", reply.cache_status());
    node.member.shut();
    for _ in 0..2 {
        origin.now("/a", OriginScript::fresh(b"new"));
        assert_eq!(get(node.proxy.address, &url, &[]).await.text(), "new");
    }
    let reply = get(node.proxy.address, &url, &[]).await;
    assert_eq!((reply.status, reply.cache_status().as_str()), (503, "nectary; detail=fleet-cut"));
    assert!((1..=60).contains(&reply.header("retry-after").parse::<u64>().expect("seconds")));
    let reply = get(node.proxy.address, &url, &["cache-control: only-if-cached"]).await;
    assert_eq!(reply.status, 504);
}

#[tokio::test]
async fn purge_at_cut_node_fails_clearly() {
    let (origin, fleet) = (TestOrigin::start().await, ModelFleet::default());
    origin.on("/a", OriginScript::fresh(b"x")).on("/a", OriginScript::fresh(b"x"));
    let nodes = pair(&fleet).await;
    let url = origin.url("/a");
    store(&nodes, &url).await;
    nodes[0].member.shut();
    let reply = purge(&nodes[0], &url, &[]).await;
    assert_eq!((reply.status, reply.cache_status().as_str()), (503, "nectary; detail=fleet-away"));
    assert!(reply.text().contains("nothing is purged") && fleet.log().is_empty(), "{}", reply.text());
    assert!(get(nodes[1].proxy.address, &url, &[]).await.is_hit());
}

#[tokio::test]
async fn unsafe_requests_invalidate_their_node_alone() {
    let (origin, fleet) = (TestOrigin::start().await, ModelFleet::default());
    origin.on("/a", OriginScript::fresh(b"x")).on("/a", OriginScript::fresh(b"x"));
    let nodes = pair(&fleet).await;
    let url = origin.url("/a");
    store(&nodes, &url).await;
    origin.now("/a", OriginScript::ok(&[], b"done"));
    let line = format!("POST {url} HTTP/1.1");
    let reply = TestClient::connect(nodes[0].proxy.address).await.ask(&[&line, "content-length: 0"]).await;
    assert_eq!(reply.status, 200);
    assert!(fleet.log().is_empty() && get(nodes[1].proxy.address, &url, &[]).await.is_hit());
    origin.now("/a", OriginScript::fresh(b"y"));
    assert_eq!(get(nodes[0].proxy.address, &url, &[]).await.text(), "y");
}

#[tokio::test]
async fn caller_chooses_purge_wait() {
    let (origin, fleet) = (TestOrigin::start().await, ModelFleet::default());
    let mut config = FleetConfig::default();
    config.purges.answer = Some(at(PurgeAnswer::Accepted));
    let node = start(&fleet, "a", device().await, &config).await;
    node.member.come_up().await;
    let url = origin.url("/a");
    for (header, detail) in [
        ("x-nothing: 1", "nectary; detail=purge-accepted"),
        ("nectary-purge-wait: accepted", "nectary; detail=purge-accepted"),
        ("nectary-purge-wait: applied", "nectary; detail=purge-applied"),
    ] {
        let reply = purge(&node, &url, &[header]).await;
        assert_eq!((reply.status, reply.cache_status().as_str()), (200, detail), "{header}");
    }
    assert_eq!(purge(&node, &url, &["nectary-purge-wait: never"]).await.status, 400);
    assert_eq!(purge_by_body(&node, r#"{"all": true, "wait": "never"}"#).await.status, 400);
    // A body may leave the choice to the header.
    for (wait, header, detail) in [
        ("", "nectary-purge-wait: applied", "nectary; detail=purge-applied"),
        (r#", "wait": "accepted""#, "nectary-purge-wait: applied", "nectary; detail=purge-accepted"),
    ] {
        let reply = purge_by_body_with(&node, &format!(r#"{{"url": "{url}"{wait}}}"#), &[header]).await;
        assert_eq!((reply.status, reply.cache_status().as_str()), (200, detail), "{wait}");
    }
    let unclear = purge_by_body_with(&node, r#"{"all": true}"#, &["nectary-purge-wait: never"]).await;
    assert_eq!((unclear.status, unclear.cache_status().as_str()), (400, "nectary; detail=purge-unclear"));
    let log = fleet.log();
    assert_eq!(log.len(), 5);
    assert!(log.iter().all(|purge| purge.scope == PurgeScope::Keys(vec![url.clone().into_bytes()])), "{log:?}");
}

/// A store remembers prefixes of 256 lengths; what is in the log cannot be refused.
#[tokio::test]
async fn purges_without_room_purge_everything() {
    let (origin, fleet) = (TestOrigin::start().await, ModelFleet::default());
    let nodes = pair(&fleet).await;
    let url = origin.url("/a");
    for length in 20..60 {
        let body = format!(r#"{{"prefix": "http://b.test/{}"}}"#, "x".repeat(length));
        let reply = purge_by_body(&nodes[length % 2], &body).await;
        assert_eq!((reply.status, reply.cache_status().as_str()), (200, "nectary; detail=purge-applied"), "{length}");
    }
    origin.on("/a", OriginScript::fresh(b"old")).on("/a", OriginScript::fresh(b"old"));
    store(&nodes, &url).await;
    // The room is for the first few of these.
    for length in 100..360 {
        let body = format!(r#"{{"prefix": "http://c.test/{}"}}"#, "x".repeat(length));
        assert_eq!(purge_by_body(&nodes[0], &body).await.status, 200);
    }
    for node in &nodes {
        origin.now("/a", OriginScript::fresh(b"new"));
        assert_eq!(get(node.proxy.address, &url, &[]).await.text(), "new", "everything was purged");
    }
}

/// A worker whose table is not the one that the fleet knows may miss what a purge is about.
#[tokio::test]
async fn unknown_tables_use_no_store() {
    let (origin, fleet) = (TestOrigin::start().await, ModelFleet::default());
    origin.on("/a", OriginScript::fresh(b"old"));
    let node = start(&fleet, "a", device().await, &FleetConfig::default()).await;
    node.member.come_up().await;
    let url = origin.url("/a");
    store(std::slice::from_ref(&node), &url).await;
    node.member.set_rules(RulesHash(1));
    for _ in 0..2 {
        origin.now("/a", OriginScript::fresh(b"new"));
        let reply = get(node.proxy.address, &url, &[]).await;
        assert_eq!(
            (reply.text().as_str(), reply.cache_status().as_str()),
            ("new", "nectary; fwd=bypass; fwd-status=200")
        );
    }
    purge(&node, &url, &[]).await;
    node.member.set_rules(fleet.log().pop().expect("a purge").rules);
    origin.now("/a", OriginScript::fresh(b"newer"));
    assert_eq!(get(node.proxy.address, &url, &[]).await.text(), "newer");
    assert!(get(node.proxy.address, &url, &[]).await.is_hit());
}

#[tokio::test]
async fn reload_tells_the_fleet_new_rules() {
    let fleet = ModelFleet::default();
    let origin = TestOrigin::start().await;
    let described = |name: &str, servers: &[std::net::SocketAddr]| {
        let site = sites::site(&[name], vec![sites::route("/", "o")]);
        Arc::new(sites::config(vec![site], vec![sites::origin("o", servers)]))
    };
    let config = described("a.test", &[origin.address]);
    let options = nectary_proxy::options_of(&config).expect("options");
    let mut member = None;
    let proxy = TestProxy::in_fleet(options, device().await, |store| {
        let node = fleet.node("a", store);
        member = Some(node.clone());
        node.seat(&FleetConfig::default())
    })
    .await;
    let member = member.expect("made");
    let hash = |config: &_| nectary_proxy::rules_of(config).expect("a hash");
    let elsewhere = described("a.test", &["127.0.0.1:9".parse().expect("an address")]);
    assert_eq!(hash(&config), hash(&elsewhere), "servers make no keys");
    let renamed = described("b.test", &[origin.address]);
    assert_ne!(hash(&config), hash(&renamed));
    proxy.reopener().reload(&renamed).expect("reloaded");
    assert_eq!(member.rules(), [hash(&renamed)]);
    assert_ne!(hash(&renamed), RulesHash::default());
}

/// On a disk each flush takes milliseconds, and all purges of the fleet wait for it.
#[tokio::test]
async fn purges_of_a_batch_share_flushes() {
    let store = Store::open(device().await, OpenOptions::default()).await.expect("an open store");
    let logged = |revision: u64| {
        let scope = PurgeScope::Tags(vec![format!("t{revision}").into_bytes()]);
        LoggedPurge { revision, purge: FleetPurge { scope, soft_since_s: None, rules: RulesHash(1) } }
    };
    let before = store.stat().counts.flushes;
    let mark = AppliedMark { fleet: 7, revision: 64, rules: RulesRecord::NONE };
    let purges = FleetStore::new(store.clone());
    purges.apply((1..=64).map(logged).collect(), Some(mark)).await.expect("durable");
    let flushes = store.stat().counts.flushes - before;
    assert!((1..16).contains(&flushes), "{flushes} flushes");
    assert_eq!(purges.mark(), mark);
}
