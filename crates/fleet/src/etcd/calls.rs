//! The requests of a fleet: leases, and the transactions that write.
//!
//! Owns: what each transaction compares, so that a lease, a name or a fleet that is another one meanwhile is noticed.
//! Leaves to others: reading and removing (`reading`), the watch (`watching`).

use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use nectary_host::fleet::{AppliedMark, FleetNode, FleetPurge, NodeName};

use super::client::EtcdClient;
use super::grpc::CallError;
use super::messages::{
    CREATE_REVISION, ComparedValue, EQUAL, EtcdOperation, KeyValue, LEASE, LeaseGrantRequest, LeaseGrantResponse,
    LeaseKeepAliveResponse, LeaseRequest, LeaseRevokeResponse, MOD_REVISION, OperationResult, PutRequest, RangeRequest,
    RequestOp, TxnCompare, TxnRequest, TxnResponse, range_end,
};
use crate::records::{
    FleetKey, FleetKeys, PurgeKey, read_identity, read_node, read_process, write_claim, write_identity, write_node,
    write_purge, write_revision,
};

const TXN: &str = "/etcdserverpb.KV/Txn";
const GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
const KEEP: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
const REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";

/// The fleet in etcd, as one node uses it.
pub(super) struct FleetCalls {
    pub client: EtcdClient,
    pub keys: FleetKeys,
    pub name: NodeName,
    pub run: u64,
    /// Where people find this process.
    process: String,
    /// The revision in which the identity of the fleet was created; transactions compare it.
    identity_created: AtomicI64,
}

/// Whether a lease was kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeepResult {
    /// It was, and the key of this node was there with it just before.
    Kept,
    /// It was, but no key of this node is there with it.
    WithoutKey,
    /// It has ended.
    Ended,
}

/// Why this node has not joined.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum JoinError {
    /// Another process has its name; where people find it.
    Taken(String),
    /// A text for the operator.
    Other(String),
}

impl From<CallError> for JoinError {
    fn from(error: CallError) -> JoinError {
        JoinError::Other(error.to_string())
    }
}

/// What became of a purge.
pub(super) enum AppendResult {
    /// It is in the log.
    Logged {
        /// Its revision.
        revision: u64,
        /// The nodes that were living then, but for those that have gone since.
        living: Vec<NodeName>,
    },
    /// It is not, as the fleet has another identity.
    Refused,
}

impl FleetCalls {
    pub fn new(client: EtcdClient, keys: FleetKeys, name: NodeName, run: u64) -> FleetCalls {
        FleetCalls { client, keys, name, run, process: this_process(), identity_created: AtomicI64::new(0) }
    }

    /// Asks for a lease. etcd chooses its number.
    pub async fn grant(&self, lease: Duration) -> Result<i64, CallError> {
        let ttl = i64::try_from(lease.as_secs()).unwrap_or(i64::MAX);
        let granted: LeaseGrantResponse = self.client.call(GRANT, &LeaseGrantRequest { ttl, id: 0 }).await?;
        // A shorter lease would end before this node gives it up.
        if !granted.error.is_empty() || granted.id == 0 || granted.ttl < ttl {
            return Err(CallError::broken(format!("etcd has granted no lease of {ttl} s: {}", granted.error)));
        }
        Ok(granted.id)
    }

    /// Keeps a lease. A member of etcd that led, hangs and goes on keeps leases alone; but the read before it, at the
    /// same member, needs a majority. Who leads since then has made all leases longer.
    pub async fn keep(&self, lease: i64) -> Result<KeepResult, CallError> {
        let member = self.client.channel().await?;
        let key = self.key(&FleetKey::Node(self.name.clone()));
        let compare = vec![self.same_fleet(), compare_lease(&key, lease)];
        // Without an operation that reads, a member would answer alone.
        let read = || vec![get(&key, true)];
        let request = TxnRequest { compare, success: read(), failure: read() };
        let found: TxnResponse = self.client.call_at(&member, TXN, &request).await?;
        let kept: LeaseKeepAliveResponse = self.client.call_at(&member, KEEP, &LeaseRequest { id: lease }).await?;
        if kept.id != lease {
            return Err(CallError::broken("etcd has answered about another lease"));
        }
        Ok(match (kept.ttl > 0, found.succeeded) {
            (true, true) => KeepResult::Kept,
            (true, false) => KeepResult::WithoutKey,
            (false, _) => KeepResult::Ended,
        })
    }

    /// Ends a lease.
    pub async fn revoke(&self, lease: i64) -> Result<(), CallError> {
        let _: LeaseRevokeResponse = self.client.call(REVOKE, &LeaseRequest { id: lease }).await?;
        Ok(())
    }

    /// Puts the keys of this node; returns the identity of the fleet.
    pub async fn join(&self, lease: i64, node: &FleetNode, mark: AppliedMark) -> Result<u128, JoinError> {
        let identity = self.identity().await?;
        let applied = if mark.fleet == identity { mark.revision } else { 0 };
        let node_key = self.key(&FleetKey::Node(self.name.clone()));
        let puts = || {
            let applied_key = self.key(&FleetKey::Applied(self.name.clone()));
            vec![
                put(&node_key, write_node(node, &self.process), lease),
                put(&applied_key, write_revision(applied), lease),
            ]
        };
        let absent = vec![self.same_fleet(), compare_created(&node_key, EQUAL, 0)];
        let failure = vec![get(&node_key, false)];
        let joined = self.txn(TxnRequest { compare: absent, success: puts(), failure }).await?;
        if joined.succeeded {
            return Ok(identity);
        }
        let Some(found) = kvs(&joined, 0).first().cloned() else {
            return Err(JoinError::Other("the identity of the fleet has changed meanwhile".to_owned()));
        };
        let other = read_node(self.name.clone(), 0, &found.value);
        if other.as_ref().is_none_or(|other| other.run != node.run) {
            // So that the other one can say it, too. If that fails, the next attempt may do it.
            let claim = put(&self.key(&FleetKey::Claim(self.name.clone())), write_claim(&self.process), lease);
            let _ = self.txn(TxnRequest { success: vec![claim], ..TxnRequest::default() }).await;
            let process = Some(read_process(&found.value)).filter(|process| !process.is_empty());
            return Err(JoinError::Taken(process.unwrap_or_else(|| "of an earlier version".to_owned())));
        }
        // The key is of this process, with an earlier lease, or an attempt whose answer was lost.
        let same = vec![self.same_fleet(), compare_modified(&node_key, found.mod_revision)];
        let again = self.txn(TxnRequest { compare: same, success: puts(), failure: Vec::new() }).await?;
        if again.succeeded { Ok(identity) } else { Err(JoinError::Other("the key of this node changes".to_owned())) }
    }

    /// Whether a process that said this of itself ran on this host, and has ended.
    pub fn is_gone(&self, process: &str) -> bool {
        is_gone(process, &self.process)
    }

    /// The identity of the fleet, which is made if there is none.
    async fn identity(&self) -> Result<u128, CallError> {
        let key = self.key(&FleetKey::Identity);
        let request = TxnRequest {
            compare: vec![compare_created(&key, EQUAL, 0)],
            success: vec![put(&key, write_identity(random_identity()), 0), get(&key, false)],
            failure: vec![get(&key, false)],
        };
        let response = self.txn(request).await?;
        let found = kvs(&response, usize::from(response.succeeded)).first().cloned();
        let found = found.ok_or_else(|| CallError::broken("the fleet has no identity"))?;
        self.identity_created.store(found.create_revision, Ordering::Release);
        read_identity(&found.value).ok_or_else(|| {
            let key = String::from_utf8_lossy(&key).into_owned();
            CallError::broken(format!("{key} is not understood: a later version may have written it"))
        })
    }

    /// Puts the key of this node again, if it has this lease still.
    pub async fn rewrite(&self, lease: i64, node: &FleetNode) -> Result<(), CallError> {
        let key = self.key(&FleetKey::Node(self.name.clone()));
        let compare = vec![self.same_fleet(), compare_lease(&key, lease)];
        let success = vec![put(&key, write_node(node, &self.process), lease)];
        self.txn(TxnRequest { compare, success, failure: Vec::new() }).await?;
        Ok(())
    }

    /// Says what this node has applied; whether its key has this lease still.
    pub async fn publish(&self, lease: i64, revision: u64) -> Result<bool, CallError> {
        let node_key = self.key(&FleetKey::Node(self.name.clone()));
        let key = self.key(&FleetKey::Applied(self.name.clone()));
        let compare = vec![self.same_fleet(), compare_lease(&node_key, lease)];
        let success = vec![put(&key, write_revision(revision), lease)];
        Ok(self.txn(TxnRequest { compare, success, failure: Vec::new() }).await?.succeeded)
    }

    /// The key of a purge, and its value; `None` if it is out of bounds.
    pub fn purge_key(&self, number: u64, accepted_s: u32, purge: &FleetPurge) -> Option<(PurgeKey, Bytes)> {
        let value = Bytes::from(write_purge(purge)?);
        let value_bytes = u32::try_from(value.len()).ok()?;
        Some((PurgeKey { node: self.name.clone(), run: self.run, number, accepted_s, value_bytes }, value))
    }

    /// Appends a purge under its key, once.
    pub async fn append(&self, key: PurgeKey, value: Bytes) -> Result<AppendResult, CallError> {
        let key = self.key(&FleetKey::Purge(key));
        let living = || prefix(&self.keys.nodes(), true);
        let request = TxnRequest {
            compare: vec![self.same_fleet(), compare_created(&key, EQUAL, 0)],
            success: vec![put(&key, value, 0), living()],
            failure: vec![get(&key, true), living()],
        };
        let response = self.txn(request).await?;
        let revision = if response.succeeded {
            response.header.as_ref().map(|header| header.revision)
        } else {
            kvs(&response, 0).first().map(|found| found.create_revision)
        };
        let Some(revision) = revision.and_then(|revision| u64::try_from(revision).ok()) else {
            return Ok(AppendResult::Refused);
        };
        let living = kvs(&response, 1).iter().filter_map(|found| match self.keys.read(&found.key) {
            Some(FleetKey::Node(name)) => Some(name),
            _ => None,
        });
        Ok(AppendResult::Logged { revision, living: living.collect() })
    }

    /// Makes a transaction.
    pub async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, CallError> {
        self.client.call(TXN, &request).await
    }

    /// A key as etcd has it.
    pub fn key(&self, key: &FleetKey) -> Bytes {
        self.keys.write(key).into()
    }

    /// That the fleet is still the one of the last join.
    pub fn same_fleet(&self) -> TxnCompare {
        compare_created(&self.key(&FleetKey::Identity), EQUAL, self.identity_created.load(Ordering::Acquire))
    }
}

/// What a transaction has read with its operation of this number.
pub(super) fn kvs(response: &TxnResponse, number: usize) -> &[KeyValue] {
    match response.responses.get(number).and_then(|response| response.result.as_ref()) {
        Some(OperationResult::Range(range)) => &range.kvs,
        _ => &[],
    }
}

pub(super) fn put(key: &Bytes, value: impl Into<Bytes>, lease: i64) -> RequestOp {
    RequestOp { operation: Some(EtcdOperation::Put(PutRequest { key: key.clone(), value: value.into(), lease })) }
}

/// Reads a key.
pub(super) fn get(key: &Bytes, keys_only: bool) -> RequestOp {
    range(RangeRequest { key: key.clone(), keys_only, ..RangeRequest::default() })
}

/// Reads all keys that begin so.
pub(super) fn prefix(prefix: &str, keys_only: bool) -> RequestOp {
    let key = Bytes::copy_from_slice(prefix.as_bytes());
    range(RangeRequest { key, range_end: range_end(prefix), keys_only, ..RangeRequest::default() })
}

pub(super) fn range(request: RangeRequest) -> RequestOp {
    RequestOp { operation: Some(EtcdOperation::Range(request)) }
}

/// Compares the revision in which a key was created; that of an absent key is 0.
pub(super) fn compare_created(key: &Bytes, result: i32, revision: i64) -> TxnCompare {
    let value = Some(ComparedValue::CreateRevision(revision));
    TxnCompare { result, target: CREATE_REVISION, key: key.clone(), value }
}

/// Compares the revision of the last change of a key; that of an absent key is 0.
pub(super) fn compare_modified(key: &Bytes, revision: i64) -> TxnCompare {
    let value = Some(ComparedValue::ModRevision(revision));
    TxnCompare { result: EQUAL, target: MOD_REVISION, key: key.clone(), value }
}

/// Compares the lease of a key; that of an absent key is 0.
fn compare_lease(key: &Bytes, lease: i64) -> TxnCompare {
    TxnCompare { result: EQUAL, target: LEASE, key: key.clone(), value: Some(ComparedValue::Lease(lease)) }
}

/// Where people find this process.
fn this_process() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("host {}, process {}", host.trim(), std::process::id())
}

/// Whether a process ran on the host of this one, and has ended, by what both say of themselves. Containers may have the
/// same host name and not see each other's processes, so only a text may depend on this.
fn is_gone(process: &str, own: &str) -> bool {
    let [found, known] = [process, own].map(|text| text.rsplit_once(", process "));
    let (Some((host, number)), Some((own_host, _))) = (found, known) else { return false };
    let is_absent = number.parse::<u32>().is_ok_and(|number| !Path::new(&format!("/proc/{number}")).exists());
    // In a container a process may have the number of the one before.
    host == own_host && (is_absent || process == own)
}

/// A random number that is not 0.
fn random_identity() -> u128 {
    (u128::from(random_u64()) << 64 | u128::from(random_u64())).max(1)
}

/// A random number.
pub(crate) fn random_u64() -> u64 {
    getrandom::u64().expect("the kernel has random numbers")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn former_process_of_host_is_known() {
        let own = "host web-1, process 9";
        assert!(is_gone("host web-1, process 4294967295", own) && is_gone(own, own));
        let running = format!("host web-1, process {}", std::process::id());
        let others = ["host web-2, process 4294967295", "of an earlier version", "host web-1, process x"];
        for other in others.into_iter().chain([running.as_str()]) {
            assert!(!is_gone(other, own), "{other}");
        }
    }
}
