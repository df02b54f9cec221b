//! Proxies of a fleet that share keys: the owner of a key answers the others, which keep copies in memory alone; a purge
//! reaches the copies; and a node that is away, slow or behind costs a miss and never an error.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nectary_block::{MemoryDevice, SharedDevice};
use nectary_config::FleetConfig;
use nectary_host::fleet::Membership;
use nectary_proxy::{PeerOptions, ProxyOptions, options_of};
use nectary_store::{CreateOptions, Store};
use tokio::net::TcpListener;

use crate::common::certificates::Certificates;
use crate::common::http2::{Http2, tls_config, tls_config_with, tls_with};
use crate::common::model_fleet::ModelNode;
use crate::common::sites::{config, origin, route, site};
use crate::common::*;

const HOST: &str = "host: site.test";

struct Node {
    proxy: TestProxy,
    member: Arc<ModelNode>,
}

impl Node {
    fn peer(&self) -> SocketAddr {
        self.proxy.peer_address.expect("an address for nodes")
    }

    async fn get(&self, path: &str) -> Reply {
        get(self.proxy.address, path, &[HOST]).await
    }

    /// Objects that were put into its store, and those of them that stay in memory alone.
    fn puts(&self) -> (u64, u64) {
        let counts = self.proxy.store.stat().counts;
        (counts.puts, counts.unadmitted_copies)
    }
}

/// Whether the node that was asked answered from its own store. The owner's part of `Cache-Status` is before its own.
fn is_own_hit(reply: &Reply) -> bool {
    reply.cache_status().rsplit(", ").next().is_some_and(|own| own.starts_with("nectary; hit"))
}

/// A node that serves one site from an origin.
async fn start(fleet: &ModelFleet, name: &str, from: &Origin, files: &Certificates) -> Node {
    let described = config(vec![site(&["site.test"], vec![route("/", "o")])], vec![origin("o", &[from.address])]);
    let options = options_of(&Arc::new(described)).expect("a good configuration");
    let peers = PeerOptions {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        certificate: files.sign(name, &["localhost"]),
        ca: files.ca(),
    };
    let device: SharedDevice = Arc::new(MemoryDevice::new(256 << 20));
    Store::create(device.clone(), &CreateOptions::default()).await.expect("a store");
    let mut member = None;
    let proxy = TestProxy::in_fleet(
        ProxyOptions { workers: 1, peers: Some(peers), admin: crate::common::options().admin, ..options },
        device,
        |store| {
            let node = fleet.node(name, store);
            member = Some(node.clone());
            node.seat(&FleetConfig::default())
        },
    )
    .await;
    let member: Arc<ModelNode> = member.expect("made");
    member.come_up().await;
    Node { proxy, member }
}

/// Three nodes; `a` asks `b`, and then `c`.
async fn three(fleet: &ModelFleet, from: &Origin, files: &Certificates) -> [Node; 3] {
    let nodes = [
        start(fleet, "a", from, files).await,
        start(fleet, "b", from, files).await,
        start(fleet, "c", from, files).await,
    ];
    let owners = [("b", nodes[1].peer()), ("c", nodes[2].peer()), ("a", nodes[0].peer())];
    nodes.iter().for_each(|node| node.member.set_owners(&owners));
    nodes
}

#[tokio::test]
async fn owner_answers_other_nodes() {
    let (from, fleet, files) = (Origin::start().await, ModelFleet::default(), Certificates::new("shares"));
    from.on("/a", Script::ok(&["cache-control: max-age=60", "surrogate-key: t"], b"one"));
    let [a, b, c] = three(&fleet, &from, &files).await;
    let reply = a.get("/a").await;
    let said = "nectary; fwd=uri-miss; fwd-status=200; stored; fleet=\"b\", nectary; fwd=uri-miss; fwd-status=200";
    assert_eq!((reply.text().as_str(), reply.cache_status().as_str()), ("one", said));
    assert!(is_own_hit(&a.get("/a").await) && is_own_hit(&b.get("/a").await));
    let reply = c.get("/a").await;
    assert!(reply.cache_status().starts_with("nectary; hit; ttl="), "{}", reply.cache_status());
    assert_eq!(from.count(), 1, "the origin is asked once");
    assert_eq!((a.puts(), b.puts(), c.puts()), ((1, 1), (1, 0), (1, 1)), "copies are in memory alone");
}

#[tokio::test]
async fn cold_objects_are_fetched_once() {
    let (from, fleet, files) = (Origin::start().await, ModelFleet::default(), Certificates::new("shares-cold"));
    from.on("/a", Script::fresh(b"one"));
    let nodes = three(&fleet, &from, &files).await;
    let (a, b, c) = tokio::join!(nodes[0].get("/a"), nodes[1].get("/a"), nodes[2].get("/a"));
    assert_eq!([a, b, c].map(|reply| reply.text()), ["one", "one", "one"]);
    assert_eq!(from.count(), 1);
}

#[tokio::test]
async fn purges_reach_copies() {
    let (from, fleet, files) = (Origin::start().await, ModelFleet::default(), Certificates::new("shares-purge"));
    let nodes = three(&fleet, &from, &files).await;
    for (number, what) in ["url", "tag"].into_iter().enumerate() {
        from.now("/a", Script::ok(&["cache-control: max-age=60", "surrogate-key: t"], what.as_bytes()));
        for node in &nodes {
            assert_eq!(node.get("/a").await.text(), what);
        }
        let tags = if what == "tag" { vec!["surrogate-key: t"] } else { Vec::new() };
        let lines = [vec!["PURGE /a HTTP/1.1", HOST, AUTHORIZATION], tags].concat();
        let reply = Client::connect(nodes[2].proxy.address).await.ask(&lines).await;
        assert_eq!((reply.status, fleet.log().len()), (200, number + 1), "{what}");
    }
    from.now("/a", Script::fresh(b"last"));
    for node in &nodes {
        assert_eq!(node.get("/a").await.text(), "last");
    }
    assert_eq!(from.count(), 3);
}

/// A write that passes through a node is seen there, although the owner has what was before it.
#[tokio::test]
async fn writes_are_seen_at_their_node() {
    let (from, fleet, files) = (Origin::start().await, ModelFleet::default(), Certificates::new("shares-write"));
    from.now("/a", Script::fresh(b"old"));
    let [a, b, _c] = three(&fleet, &from, &files).await;
    assert_eq!(a.get("/a").await.text(), "old");
    from.now("/a", Script::ok(&[], b"done"));
    let lines = ["POST /a HTTP/1.1", HOST, "content-length: 0"];
    assert_eq!(Client::connect(a.proxy.address).await.ask(&lines).await.text(), "done");
    from.now("/a", Script::fresh(b"new"));
    assert_eq!((a.get("/a").await.text(), from.count()), ("new".to_owned(), 3));
    assert_eq!((b.get("/a").await.text(), from.count()), ("new".to_owned(), 3));
}

/// The owner has not applied a purge that the asking node is just applying: its answer may be what that purges.
#[tokio::test]
async fn older_answers_are_not_kept() {
    let (from, fleet, files) = (Origin::start().await, ModelFleet::default(), Certificates::new("shares-older"));
    let [a, _b, _c] = three(&fleet, &from, &files).await;
    a.member.gate().set_begun(5);
    // On a busy machine a node may be too slow, and then this one asks the origin itself.
    let path = 'answered: {
        for number in 0..50 {
            let path = format!("/{number}");
            from.on(&path, Script::fresh(b"one"));
            if a.get(&path).await.cache_status().contains("fleet=") {
                break 'answered path;
            }
        }
        panic!("no node has answered");
    };
    let count = from.count();
    let reply = a.get(&path).await;
    assert_eq!((reply.text().as_str(), is_own_hit(&reply)), ("one", false), "{}", reply.cache_status());
    a.member.gate().set_begun(0);
    a.get(&path).await;
    assert!(is_own_hit(&a.get(&path).await));
    assert_eq!(from.count(), count);
}

#[tokio::test]
async fn nodes_behind_or_cut_do_not_answer() {
    let (from, fleet, files) = (Origin::start().await, ModelFleet::default(), Certificates::new("shares-behind"));
    let [a, b, c] = three(&fleet, &from, &files).await;
    c.member.cut();
    a.member.gate().set_applied(5);
    from.on("/a", Script::fresh(b"origin"));
    let reply = a.get("/a").await;
    let said = "nectary; fwd=uri-miss; fwd-status=200";
    assert_eq!((reply.text().as_str(), reply.cache_status().as_str()), ("origin", said), "b is behind, c is cut");
    assert_eq!((b.puts(), c.puts()), ((0, 0), (0, 0)));
    b.member.gate().set_applied(5);
    from.on("/b", Script::fresh(b"b"));
    assert!(a.get("/b").await.cache_status().contains("fleet=\"b\""), "it has caught up");
}

#[tokio::test]
async fn dead_and_silent_owners_cost_misses() {
    let (from, fleet, files) = (Origin::start().await, ModelFleet::default(), Certificates::new("shares-dead"));
    let [a, b, c] = three(&fleet, &from, &files).await;
    let gone = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("an address");
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let silent_address = silent.local_addr().expect("an address");
    for (number, (first, second)) in
        [(gone, c.peer()), (silent_address, c.peer()), (gone, gone), (silent_address, gone)].into_iter().enumerate()
    {
        a.member.set_owners(&[("b", first), ("c", second), ("a", a.peer())]);
        let path = format!("/{number}");
        from.on(&path, Script::fresh(b"x"));
        let begun = Instant::now();
        let reply = a.get(&path).await;
        assert_eq!((reply.status, reply.text().as_str()), (200, "x"), "{number}");
        assert_eq!(reply.cache_status().contains("fleet=\"c\""), number < 2, "{}", reply.cache_status());
        assert!(begun.elapsed() < Duration::from_secs(10), "{number}: {:?}", begun.elapsed());
        assert!(is_own_hit(&a.get(&path).await), "{number}");
    }
    drop((silent, b));
}

/// What nodes say to each other counts at their own listener alone, which takes certificates of the fleet.
#[tokio::test]
async fn headers_of_nodes_need_certificates() {
    let (from, fleet, files) = (Origin::start().await, ModelFleet::default(), Certificates::new("shares-trust"));
    from.on("/a", Script::fresh(b"x"));
    let [a, b, _c] = three(&fleet, &from, &files).await;
    let spoofed = ["nectary-fleet-hop: 1", "nectary-fleet-from: b", "nectary-fleet-client: 192.0.2.1", HOST];
    let reply = get(a.proxy.address, "/a", &spoofed).await;
    assert!(reply.cache_status().contains("fleet=\"b\""), "the owner answers nevertheless: {}", reply.cache_status());
    assert!(!reply.headers.iter().any(|(name, _)| name.starts_with("nectary-fleet")), "{:?}", reply.headers);
    let got = from.got();
    assert!(
        got.len() == 1
            && spoofed[..3].iter().all(|line| got[0].header(line.split(':').next().unwrap_or("")).is_empty())
    );
    let none = tls_config(&files.ca(), &[b"http/1.1"]);
    let others = Certificates::new("shares-foreign");
    let foreign = others.sign("x", &["localhost"]);
    let other = tls_config_with(&files.ca(), &[b"http/1.1"], Some(&foreign));
    for config in [none, other] {
        let refused = async {
            let mut stream = tls_with(config.clone(), b.peer(), "localhost").await?;
            tokio::io::AsyncWriteExt::write_all(&mut stream, b"GET /a HTTP/1.1\r\nhost: site.test\r\n\r\n").await?;
            tokio::io::AsyncReadExt::read_u8(&mut stream).await
        };
        assert!(refused.await.is_err(), "it has no certificate of the fleet");
    }
    let own = tls_config_with(&files.ca(), &[b"h2"], Some(&files.sign("own", &["localhost"])));
    let stream = tls_with(own, b.peer(), "localhost").await.expect("TLS");
    let reply = Http2::over(stream).await.ask("GET", "https://site.test/a", &[]).await;
    assert_eq!(reply.status, 400, "it says nothing of the fleet");
}
