//! Nodes of a fleet that share keys, each with its own proxy and store.

use std::net::SocketAddr;
use std::sync::Arc;

use nectary_block::{MemoryDevice, SharedDevice};
use nectary_config::{FleetConfig, ProxyConfig, RouteConfig};
use nectary_host::fleet::{FleetMembership, PeerFigures};
use nectary_proxy::{FleetSeat, PeerOptions, ProxyOptions, options_of};
use nectary_store::{CreateOptions, Store};

use super::certificates::TestCertificates;
use super::model_fleet::{ModelFleet, ModelNode};
use super::sites::{at, config, origin, route, site};
use super::{AUTHORIZATION, ClientReply, TestClient, TestOrigin, TestProxy, get};

/// The host of the site.
pub const HOST: &str = "host: site.test";

/// A node, and its place in the fleet.
pub struct SharingNode {
    pub proxy: TestProxy,
    pub member: Arc<ModelNode>,
    pub seat: FleetSeat,
}

impl SharingNode {
    /// Where the other nodes reach it.
    pub fn peer(&self) -> SocketAddr {
        self.proxy.peer_address.expect("an address for nodes")
    }

    /// What it and another node have asked each other.
    pub fn with(&self, name: &str) -> PeerFigures {
        let peers = self.seat.figures().peers;
        peers.into_iter().find(|peer| peer.name == name).unwrap_or_default()
    }

    /// Asks for a path of the site.
    pub async fn get(&self, path: &str) -> ClientReply {
        get(self.proxy.address, path, &[HOST]).await
    }

    /// Objects that were put into its store, and those of them that stay in memory alone.
    pub fn puts(&self) -> (u64, u64) {
        let counts = self.proxy.store.stat().counts;
        (counts.puts, counts.unadmitted_copies)
    }
}

/// Whether the node that was asked answered from its own store. The owner's part of `NameCache-Status` is before its own.
pub fn is_own_hit(reply: &ClientReply) -> bool {
    reply.cache_status().rsplit(", ").next().is_some_and(|own| own.starts_with("nectary; hit"))
}

/// One site of an origin.
pub fn one_site(from: &TestOrigin, routes: Vec<RouteConfig>) -> ProxyConfig {
    config(vec![site(&["site.test"], routes)], vec![origin("o", &[from.address])])
}

/// A node that serves one site from an origin.
pub async fn start(fleet: &ModelFleet, name: &str, from: &TestOrigin, files: &TestCertificates) -> SharingNode {
    start_with(fleet, name, one_site(from, vec![route("/", "o")]), files).await
}

/// A node with this configuration.
pub async fn start_with(
    fleet: &ModelFleet,
    name: &str,
    described: ProxyConfig,
    files: &TestCertificates,
) -> SharingNode {
    start_sized(fleet, name, described, files, 256 << 20).await
}

/// A node with this configuration, and a store of this size.
pub async fn start_sized(
    fleet: &ModelFleet,
    name: &str,
    described: ProxyConfig,
    files: &TestCertificates,
    store_bytes: u64,
) -> SharingNode {
    let options = options_of(&Arc::new(described)).expect("a good configuration");
    let peers = PeerOptions {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        certificate: files.sign(name, &["localhost"]),
        ca: files.ca(),
    };
    let device: SharedDevice = Arc::new(MemoryDevice::new(store_bytes));
    Store::create(device.clone(), &CreateOptions::default()).await.expect("a store");
    let mut member = None;
    let proxy = TestProxy::in_fleet(
        ProxyOptions { workers: 1, peers: Some(peers), admin: crate::common::options().admin, ..options },
        device,
        |store| {
            let node = fleet.node(name, store);
            let seat = node.seat(&FleetConfig::default());
            member = Some((node, seat.clone()));
            seat
        },
    )
    .await;
    let (member, seat): (Arc<ModelNode>, FleetSeat) = member.expect("made");
    member.come_up().await;
    SharingNode { proxy, member, seat }
}

/// Three nodes; `a` asks `b`, and then `c`.
pub async fn three(fleet: &ModelFleet, from: &TestOrigin, files: &TestCertificates) -> [SharingNode; 3] {
    three_with(fleet, || one_site(from, vec![route("/", "o")]), files).await
}

/// Like [`three`], but a range that does not begin at the front is fetched alone.
pub async fn with_far_ranges(fleet: &ModelFleet, from: &TestOrigin, files: &TestCertificates) -> [SharingNode; 3] {
    let described = || {
        let mut described = one_site(from, vec![route("/", "o")]);
        described.limits.range_start_bytes_max = Some(at(1000));
        described
    };
    three_with(fleet, described, files).await
}

/// Like [`three`], with this configuration.
pub async fn three_with(
    fleet: &ModelFleet,
    described: impl Fn() -> ProxyConfig,
    files: &TestCertificates,
) -> [SharingNode; 3] {
    let nodes = [
        start_with(fleet, "a", described(), files).await,
        start_with(fleet, "b", described(), files).await,
        start_with(fleet, "c", described(), files).await,
    ];
    set_owners(&nodes);
    nodes
}

/// The owner of all keys is `b`, and then `c`.
pub fn set_owners(nodes: &[SharingNode; 3]) {
    let owners = [("b", nodes[1].peer()), ("c", nodes[2].peer()), ("a", nodes[0].peer())];
    nodes.iter().for_each(|node| node.member.set_owners(&owners));
}

/// Sends a request without a body.
pub async fn send(node: &SharingNode, method: &str, path: &str, headers: &[&str]) -> ClientReply {
    let line = format!("{method} {path} HTTP/1.1");
    let lines = [&[line.as_str(), HOST, "content-length: 0"], headers].concat();
    TestClient::connect(node.proxy.address).await.ask(&lines).await
}
