//! Keys of a node with the lease that it holds, and no other.

use nectary_host::fleet::FleetNode;

use super::*;
use crate::etcd::calls::{FleetCalls, JoinError, KeepResult};
use crate::etcd::client::EtcdClient;
use crate::records::FleetKeys;

const LEASE: Duration = Duration::from_secs(20);

fn calls(etcd: &FakeEtcd, run: u64) -> FleetCalls {
    let client = EtcdClient::new(vec![etcd.endpoint.clone()], None, Duration::from_secs(5));
    FleetCalls::new(client, FleetKeys::new("test"), NodeName::new("a").expect("a name"), run)
}

fn node(run: u64, rules: u128) -> FleetNode {
    FleetNode {
        name: NodeName::new("a").expect("a name"),
        address: String::new(),
        zone: String::new(),
        weight: 1,
        rules: RulesHash(rules),
        run,
        since: 0,
    }
}

/// Else the key would end with the earlier lease, although the node lives.
#[tokio::test]
async fn late_writes_with_earlier_leases_do_nothing() {
    let etcd = FakeEtcd::start().await;
    let calls = calls(&etcd, 7);
    let mut leases = Vec::new();
    for _ in 0..2 {
        let lease = calls.grant(LEASE).await.expect("a lease");
        calls.join(lease, &node(7, 1), AppliedMark::NONE).await.expect("joined");
        leases.push(lease);
    }
    calls.rewrite(leases[0], &node(7, 2)).await.expect("an answer");
    assert_eq!(etcd.leases("/nodes/a"), [leases[1]]);
    assert!(!calls.publish(leases[0], 9).await.expect("an answer"));
    assert_eq!(etcd.leases("/applied/a"), [leases[1]]);
    calls.revoke(leases[0]).await.expect("an answer");
    assert_eq!(etcd.values("/nodes/a").len(), 1);
    calls.rewrite(leases[1], &node(7, 2)).await.expect("an answer");
    assert!(etcd.values("/nodes/a")[0].contains(&RulesHash(2).to_string()));
    assert!(calls.publish(leases[1], 9).await.expect("an answer"));
}

#[tokio::test]
async fn kept_leases_tell_of_the_key() {
    let etcd = FakeEtcd::start().await;
    let calls = calls(&etcd, 7);
    let lease = calls.grant(LEASE).await.expect("a lease");
    assert_eq!(calls.keep(lease).await.expect("an answer"), KeepResult::WithoutKey);
    calls.join(lease, &node(7, 1), AppliedMark::NONE).await.expect("joined");
    assert_eq!(calls.keep(lease).await.expect("an answer"), KeepResult::Kept);
    etcd.remove("/nodes/a");
    assert_eq!(calls.keep(lease).await.expect("an answer"), KeepResult::WithoutKey);
    calls.revoke(lease).await.expect("an answer");
    assert_eq!(calls.keep(lease).await.expect("an answer"), KeepResult::Ended);
}

#[tokio::test]
async fn taken_names_are_claimed() {
    let etcd = FakeEtcd::start().await;
    let (first, second) = (calls(&etcd, 7), calls(&etcd, 8));
    let leases = [first.grant(LEASE).await.expect("a lease"), second.grant(LEASE).await.expect("a lease")];
    first.join(leases[0], &node(7, 1), AppliedMark::NONE).await.expect("joined");
    let process = format!(", process {}", std::process::id());
    match second.join(leases[1], &node(8, 1), AppliedMark::NONE).await {
        Err(JoinError::Taken(other)) => assert!(other.starts_with("host ") && other.ends_with(&process), "{other}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(etcd.leases("/claims/a"), [leases[1]], "it ends with that process");
    assert!(etcd.values("/claims/a")[0].contains(&process));
}

/// A member of etcd that led, and hangs, may go on keeping leases that the others end.
#[tokio::test]
async fn leases_kept_by_one_member_lapse() {
    let etcd = FakeEtcd::start().await;
    let [store] = stores();
    let lease = Duration::from_secs(2);
    let limits = FleetRules { lease, serve_when_cut: Duration::ZERO, ..rules() };
    let fleet = start_with(&etcd, "a", &store, limits);
    joined(&fleet, 1).await;
    etcd.mislead(true);
    // What was under way may still be answered.
    let begun = since_boot() + Duration::from_millis(500);
    until("its lease has ended", || etcd.leases("/nodes/a").is_empty()).await;
    assert_eq!(fleet.gate().standing(), NodeStanding::ValidateOnly, "a purge may be applied without it");
    assert_eq!(fleet.gate().standing_at(begun + lease), NodeStanding::ValidateOnly);
    etcd.mislead(false);
    joined(&fleet, 1).await;
}
