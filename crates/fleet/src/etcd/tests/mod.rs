//! Nodes of a fleet with an etcd in memory.

mod certificates;
mod fake_etcd;
mod held_keys;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fake_etcd::FakeEtcd;
use nectary_host::clock::since_boot;
use nectary_host::fleet::{
    AppliedMark, FleetError, FleetMembership, FleetPurge, FleetState, Later, LoggedPurge, NodeName, NodeStanding,
    PurgeScope, PurgeStore, PurgeWish, RulesHash,
};

use super::EtcdFleet;
use crate::machine::FleetRules;
use crate::options::{FleetConnection, FleetOptions, TlsFiles};

/// The longest time that a test waits for something.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// A store that only remembers which purges it made.
#[derive(Default)]
struct NotingStore {
    mark: Mutex<AppliedMark>,
    purges: Mutex<Vec<LoggedPurge>>,
}

impl NotingStore {
    fn revisions(&self) -> Vec<u64> {
        self.purges.lock().expect("a list").iter().map(|purge| purge.revision).collect()
    }

    fn has_purged_everything(&self) -> bool {
        self.purges.lock().expect("a list").iter().any(|purge| purge.purge.is_everything())
    }
}

impl PurgeStore for NotingStore {
    fn mark(&self) -> AppliedMark {
        *self.mark.lock().expect("a mark")
    }

    fn apply(&self, purges: Vec<LoggedPurge>, mark: Option<AppliedMark>) -> Later<Result<(), String>> {
        self.purges.lock().expect("a list").extend(purges);
        let mut own = self.mark.lock().expect("a mark");
        *own = mark.unwrap_or(*own);
        Box::pin(async { Ok(()) })
    }
}

/// A lease that a busy machine does not lose.
fn rules() -> FleetRules {
    FleetRules { lease: Duration::from_secs(5), ..FleetRules::default() }
}

fn start_with(etcd: &FakeEtcd, name: &str, store: &Arc<NotingStore>, limits: FleetRules) -> Arc<EtcdFleet> {
    start_with_tls(etcd, name, store, (limits, TlsFiles::default()))
}

fn start_with_tls(
    etcd: &FakeEtcd,
    name: &str,
    store: &Arc<NotingStore>,
    (limits, tls): (FleetRules, TlsFiles),
) -> Arc<EtcdFleet> {
    let endpoints = vec![etcd.endpoint.clone()];
    let options = FleetOptions {
        fleet: "test".to_owned(),
        node: NodeName::new(name).expect("a name"),
        address: format!("{name}:7443"),
        zone: String::new(),
        weight: 1 << 30,
        rules: RulesHash(1),
        limits,
        connection: FleetConnection::Etcd { endpoints: endpoints.clone(), tls: tls.clone() },
    };
    EtcdFleet::start(&options, endpoints, &tls, store.clone()).expect("a thread")
}

fn start(etcd: &FakeEtcd, name: &str, store: &Arc<NotingStore>) -> Arc<EtcdFleet> {
    start_with(etcd, name, store, rules())
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < WAIT_MAX, "{what}: not within {WAIT_MAX:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn joined(fleet: &EtcdFleet, nodes: usize) {
    let is_so = || fleet.gate().standing() == NodeStanding::Member && fleet.views().borrow().nodes.len() == nodes;
    until("a member", is_so).await;
}

fn purge(key: &str) -> FleetPurge {
    let scope = PurgeScope::Keys(vec![key.as_bytes().to_vec()]);
    FleetPurge { scope, soft_since_s: None, rules: RulesHash(1) }
}

fn stores<const N: usize>() -> [Arc<NotingStore>; N] {
    std::array::from_fn(|_| Arc::default())
}

#[tokio::test]
async fn applied_purges_reach_every_node() {
    let etcd = FakeEtcd::start().await;
    let stores: [_; 3] = stores();
    let fleets = [0, 1, 2].map(|number| start(&etcd, ["a", "b", "c"][number], &stores[number]));
    for fleet in &fleets {
        joined(fleet, 3).await;
    }
    let mut revisions = Vec::new();
    for number in 0..20 {
        let purged = fleets[number % 3].purge(purge(&format!("http://a/{number}")), PurgeWish::Applied).await;
        let outcome = purged.expect("it is in the log");
        assert!(outcome.is_applied && outcome.nodes == 3, "{outcome:?}");
        revisions.push(outcome.revision);
        assert!(stores.iter().all(|store| store.revisions() == revisions), "purge {number} is on every node");
    }
    assert!(revisions.is_sorted() && stores.iter().all(|store| store.mark() == stores[0].mark()));
    assert_eq!(fleets[0].gate().applied(), *revisions.last().expect("20 purges"));
    let figures = fleets[1].figures();
    assert_eq!((figures.state, figures.nodes.len(), figures.purges_applied), (FleetState::Member, 3, 20));
    let owners: Vec<_> = fleets.iter().filter(|fleet| fleet.owners(b"http://a/").is_own()).collect();
    assert_eq!(owners.len(), 1, "a key has one owner");
    for fleet in &fleets {
        fleet.leave().await;
    }
    assert!(etcd.values("/nodes/").is_empty(), "their leases are given back");
}

#[tokio::test]
async fn returning_nodes_catch_up_first() {
    let etcd = FakeEtcd::start().await;
    let [one, other] = stores();
    let (first, second) = (start(&etcd, "a", &one), start(&etcd, "b", &other));
    joined(&first, 2).await;
    joined(&second, 2).await;
    second.leave().await;
    assert_eq!(second.gate().standing(), NodeStanding::ValidateOnly);
    for number in 0..150 {
        let outcome = first.purge(purge(&format!("http://a/{number}")), PurgeWish::Applied).await.expect("accepted");
        assert!(outcome.is_applied, "nobody else lives");
    }
    assert_eq!(other.revisions(), [] as [u64; 0]);
    etcd.compact();
    let second = start(&etcd, "b", &other);
    let is_ready = || second.gate().standing() != NodeStanding::ValidateOnly;
    until("it serves", is_ready).await;
    assert_eq!(other.revisions(), one.revisions(), "it has all of them as soon as it serves");
    assert!(!other.has_purged_everything(), "compaction of etcd loses nothing");
}

/// A node that missed purges which the log no longer has purges everything.
#[tokio::test]
async fn trimmed_purges_purge_everything() {
    let etcd = FakeEtcd::start().await;
    let [one, other] = stores();
    let first = start(&etcd, "a", &one);
    joined(&first, 1).await;
    let second = start(&etcd, "b", &other);
    joined(&second, 2).await;
    second.leave().await;
    for number in 0..3 {
        first.purge(purge(&format!("http://a/{number}")), PurgeWish::Applied).await.expect("accepted");
    }
    first.leave().await;
    // A node whose log may be smaller removes all but the newest purge, when it first looks.
    let limits = FleetRules { log_bytes_max: 1, ..rules() };
    let first = start_with(&etcd, "a", &one, limits);
    joined(&first, 1).await;
    until("the log is small", || etcd.values("/purges/").len() == 1).await;
    assert_eq!(etcd.values("/floor").len(), 1);
    let second = start(&etcd, "b", &other);
    joined(&second, 2).await;
    assert!(other.has_purged_everything() && !one.has_purged_everything());
    assert_eq!(other.mark(), one.mark());
}

#[tokio::test]
async fn nodes_without_etcd_stop_serving() {
    let etcd = FakeEtcd::start().await;
    let [one, other] = stores();
    let (lease, serve_when_cut) = (Duration::from_secs(2), Duration::from_secs(4));
    let limits = FleetRules { lease, serve_when_cut, ..rules() };
    let (first, second) = (start_with(&etcd, "a", &one, limits.clone()), start_with(&etcd, "b", &other, limits));
    joined(&first, 2).await;
    joined(&second, 2).await;
    etcd.hang(true);
    // A request that was under way may still be answered.
    let begun = since_boot() + Duration::from_millis(500);
    until("it is cut", || first.gate().standing() == NodeStanding::Cut).await;
    assert_ne!(first.gate().standing_at(begun + lease), NodeStanding::Member, "before etcd ends its lease");
    // An answer that was under way may make it a member once more, for a while.
    let failed = loop {
        let failed = first.purge(purge("http://a/"), PurgeWish::Accepted).await;
        if !matches!(failed, Err(FleetError::Unknown(_))) {
            break failed;
        }
        assert!(since_boot() < begun + WAIT_MAX, "{failed:?}");
    };
    assert!(matches!(failed, Err(FleetError::Away(_))), "{failed:?}");
    until("it serves no more", || first.gate().standing() == NodeStanding::ValidateOnly).await;
    assert_eq!(
        first.gate().standing_at(begun + serve_when_cut),
        NodeStanding::ValidateOnly,
        "counted from the request"
    );
    etcd.hang(false);
    joined(&first, 2).await;
    joined(&second, 2).await;
    let outcome = first.purge(purge("http://a/"), PurgeWish::Applied).await.expect("accepted");
    assert!(outcome.is_applied && other.revisions().contains(&outcome.revision));
}

#[tokio::test]
async fn cut_connections_lose_no_purge() {
    let etcd = FakeEtcd::start().await;
    let [one, other] = stores();
    let (first, second) = (start(&etcd, "a", &one), start(&etcd, "b", &other));
    joined(&first, 2).await;
    joined(&second, 2).await;
    let mut applied = Vec::new();
    for number in 0..30 {
        if number % 5 == 0 {
            etcd.cut();
        }
        if number % 7 == 0 {
            etcd.compact();
        }
        match first.purge(purge(&format!("http://a/{number}")), PurgeWish::Applied).await {
            Ok(outcome) if outcome.is_applied => applied.push(outcome.revision),
            Ok(_) | Err(FleetError::Unknown(_) | FleetError::Away(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    joined(&second, 2).await;
    until("both are equal", || one.mark() == other.mark() && one.mark().revision >= *applied.last().unwrap_or(&0))
        .await;
    assert!(!applied.is_empty() && one.revisions().is_sorted() && other.revisions().is_sorted());
    assert!(applied.iter().all(|revision| one.revisions().contains(revision) && other.revisions().contains(revision)));
}

#[tokio::test]
async fn another_process_with_the_name_waits() {
    let etcd = FakeEtcd::start().await;
    let [one, other] = stores();
    let first = start(&etcd, "a", &one);
    joined(&first, 1).await;
    let second = start(&etcd, "a", &other);
    let tells = |fleet: &EtcdFleet, what| fleet.figures().problems.iter().any(|problem| problem.what.contains(what));
    // They have the number of one process, as processes of containers may.
    until("it says so", || tells(&second, "the former process of a (host ")).await;
    until("the other one says it, too", || tells(&first, "would be the node a, too")).await;
    assert_eq!(second.gate().standing(), NodeStanding::ValidateOnly);
    first.leave().await;
    joined(&second, 1).await;
}

#[tokio::test]
async fn removed_identity_purges_everything() {
    let etcd = FakeEtcd::start().await;
    let [one] = stores();
    let first = start(&etcd, "a", &one);
    joined(&first, 1).await;
    first.purge(purge("http://a/"), PurgeWish::Applied).await.expect("accepted");
    let before = one.mark().fleet;
    etcd.remove("/fleet");
    until("everything is purged", || one.has_purged_everything()).await;
    joined(&first, 1).await;
    assert_ne!(one.mark().fleet, before);
}

/// Its leases go on, so nodes could believe that nothing has happened.
#[tokio::test]
async fn restored_etcd_purges_everything() {
    let etcd = FakeEtcd::start().await;
    let [one, other] = stores();
    let (first, second) = (start(&etcd, "a", &one), start(&etcd, "b", &other));
    joined(&first, 2).await;
    joined(&second, 2).await;
    let (backup, before) = (etcd.backup(), one.mark().fleet);
    for number in 0..3 {
        first.purge(purge(&format!("http://a/{number}")), PurgeWish::Applied).await.expect("accepted");
    }
    etcd.restore(backup);
    until("everything is purged", || one.has_purged_everything() && other.has_purged_everything()).await;
    joined(&first, 2).await;
    joined(&second, 2).await;
    assert!(one.mark().fleet != before && one.mark().fleet == other.mark().fleet);
    let outcome = first.purge(purge("http://a/"), PurgeWish::Applied).await.expect("accepted");
    assert!(outcome.is_applied && outcome.nodes == 2, "{outcome:?}");
}
