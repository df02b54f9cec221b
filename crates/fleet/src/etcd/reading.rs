//! Reading the log, and removing what is too much.
//!
//! Owns: one revision for all that is read, however many pages it takes, and invariant: a purge is removed only in the
//! transaction that raises the floor to it. Leaves to others: how much is too much (`machine::trim_through`).

use bytes::Bytes;
use nectary_host::fleet::{AppliedMark, FleetNode, FleetPurge, LoggedPurge, NodeName, RulesHash};

use super::calls::{FleetCalls, compare_modified, get, kvs, prefix, put, range};
use super::grpc::CallError;
use super::messages::{
    ASCENDING, DESCENDING, DeleteRangeRequest, KeyValue, Operation, RangeRequest, RangeResponse, RequestOp,
    SORT_BY_MOD, TxnRequest, range_end,
};
use crate::machine::{FleetRules, LogEntry, LogSnapshot, LogTotals, trim_through};
use crate::records::{FleetKey, read_identity, read_node, read_purge, read_revision, write_revision};

const RANGE: &str = "/etcdserverpb.KV/Range";
/// The purges of a page, with their values.
const PAGE_MAX: i64 = 64;
/// The purges of a page without values.
const KEYS_PAGE_MAX: i64 = 10_000;
/// The purges that one transaction removes; etcd takes 128 operations.
const REMOVED_MAX: usize = 100;

impl FleetCalls {
    /// Reads the fleet at one revision, with the purges above a mark.
    pub async fn read(&self, above: AppliedMark) -> Result<LogSnapshot, CallError> {
        let newest = RangeRequest {
            limit: 1,
            sort_order: DESCENDING,
            sort_target: SORT_BY_MOD,
            keys_only: true,
            ..self.all_purges()
        };
        let reads = vec![
            get(&self.key(&FleetKey::Identity), false),
            get(&self.key(&FleetKey::Floor), false),
            prefix(&self.keys.nodes(), false),
            prefix(&self.keys.applied(), false),
            range(newest),
            range(self.page(above.revision, 0)),
        ];
        let response = self.txn(TxnRequest { success: reads, ..TxnRequest::default() }).await?;
        let through = response.header.as_ref().map_or(0, |header| header.revision);
        let identity = kvs(&response, 0).first().and_then(|found| read_identity(&found.value));
        let identity = identity.ok_or_else(|| CallError::broken("the fleet has no identity"))?;
        let mut page = kvs(&response, 5).to_vec();
        if identity != above.fleet && above.revision > 0 {
            page = self.read_page(0, through).await?;
        }
        let mut purges = Vec::new();
        loop {
            let is_last = (page.len() as i64) < PAGE_MAX;
            purges.extend(page.iter().filter_map(|found| self.logged(found)));
            let Some(last) = page.last().filter(|_| !is_last) else { break };
            page = self.read_page(unsigned(last.mod_revision), through).await?;
        }
        let applied = |name: &NodeName| {
            let key = self.key(&FleetKey::Applied(name.clone()));
            kvs(&response, 3).iter().find(|found| found.key == key).and_then(|found| read_revision(&found.value))
        };
        let nodes = kvs(&response, 2).iter().filter_map(|found| {
            let node = self.node_of(found)?;
            let revision = applied(&node.name).unwrap_or(0);
            Some((node, revision))
        });
        Ok(LogSnapshot {
            identity,
            floor: kvs(&response, 1).first().and_then(|found| read_revision(&found.value)).unwrap_or(0),
            newest: kvs(&response, 4).first().map_or(0, |found| unsigned(found.mod_revision)),
            purges,
            nodes: nodes.collect(),
            through: unsigned(through),
        })
    }

    async fn read_page(&self, above: u64, revision: i64) -> Result<Vec<KeyValue>, CallError> {
        let response: RangeResponse = self.client.call(RANGE, &self.page(above, revision)).await?;
        Ok(response.kvs)
    }

    /// The next purges above a revision, as they are at another one; 0 is now.
    fn page(&self, above: u64, revision: i64) -> RangeRequest {
        RangeRequest {
            limit: PAGE_MAX,
            revision,
            sort_order: ASCENDING,
            sort_target: SORT_BY_MOD,
            min_mod_revision: i64::try_from(above.saturating_add(1)).unwrap_or(i64::MAX),
            ..self.all_purges()
        }
    }

    fn all_purges(&self) -> RangeRequest {
        let prefix = self.keys.purges();
        RangeRequest { range_end: range_end(&prefix), key: prefix.into(), ..RangeRequest::default() }
    }

    /// A purge of the log; one that is not understood is a purge of everything.
    pub fn logged(&self, found: &KeyValue) -> Option<LoggedPurge> {
        let Some(FleetKey::Purge(_)) = self.keys.read(&found.key) else { return None };
        let purge = read_purge(&found.value).unwrap_or(FleetPurge::EVERYTHING);
        Some(LoggedPurge { revision: unsigned(found.mod_revision), purge })
    }

    /// A node; one that is not understood lives nevertheless, so that purges wait for it.
    pub fn node_of(&self, found: &KeyValue) -> Option<FleetNode> {
        let Some(FleetKey::Node(name)) = self.keys.read(&found.key) else { return None };
        let since = unsigned(found.create_revision);
        let unknown = FleetNode {
            name: name.clone(),
            address: String::new(),
            zone: String::new(),
            weight: 1,
            rules: RulesHash(0),
            run: 0,
            since,
        };
        Some(read_node(name, since, &found.value).unwrap_or(unknown))
    }

    /// Measures the log by its keys, and removes what is too much if this node may.
    pub async fn review(&self, rules: &FleetRules, may_trim: bool, now_s: u64) -> Result<LogTotals, CallError> {
        let mut entries: Vec<(LogEntry, Bytes)> = Vec::new();
        let mut request = RangeRequest { limit: KEYS_PAGE_MAX, keys_only: true, ..self.all_purges() };
        loop {
            let page: RangeResponse = self.client.call(RANGE, &request).await?;
            entries.extend(page.kvs.iter().filter_map(|found| match self.keys.read(&found.key) {
                Some(FleetKey::Purge(key)) => {
                    let (bytes, accepted_s) = (u64::from(key.value_bytes), u64::from(key.accepted_s));
                    Some((LogEntry { revision: unsigned(found.mod_revision), bytes, accepted_s }, found.key.clone()))
                }
                _ => None,
            }));
            let Some(last) = page.kvs.last().filter(|_| page.more) else { break };
            request.key = [&last.key[..], b"\0"].concat().into();
        }
        entries.sort_by_key(|entry| entry.0.revision);
        let measured: Vec<LogEntry> = entries.iter().map(|entry| entry.0).collect();
        let through = trim_through(rules, &measured, now_s).filter(|_| may_trim).unwrap_or(0);
        let removed = entries.iter().take_while(|entry| entry.0.revision <= through).count();
        self.remove(&entries[..removed]).await?;
        let left = &measured[removed..];
        Ok(LogTotals { purges: left.len() as u64, bytes: left.iter().map(|entry| entry.bytes).sum() })
    }

    async fn remove(&self, entries: &[(LogEntry, Bytes)]) -> Result<(), CallError> {
        let key = self.key(&FleetKey::Floor);
        for chunk in entries.chunks(REMOVED_MAX) {
            let found: RangeResponse =
                self.client.call(RANGE, &RangeRequest { key: key.clone(), ..RangeRequest::default() }).await?;
            let modified = found.kvs.first().map_or(0, |found| found.mod_revision);
            let floor = found.kvs.first().and_then(|found| read_revision(&found.value)).unwrap_or(0);
            let last = chunk.last().map_or(0, |entry| entry.0.revision);
            let delete = |key: &Bytes| {
                let request = DeleteRangeRequest { key: key.clone(), range_end: Bytes::new() };
                RequestOp { operation: Some(Operation::Delete(request)) }
            };
            let mut success = vec![put(&key, write_revision(floor.max(last)), 0)];
            success.extend(chunk.iter().map(|entry| delete(&entry.1)));
            let compare = vec![self.same_fleet(), compare_modified(&key, modified)];
            let response = self.txn(TxnRequest { compare, success, failure: Vec::new() }).await?;
            if !response.succeeded {
                return Err(CallError::broken("another node removes purges"));
            }
        }
        Ok(())
    }
}

/// A revision. etcd gives no negative ones.
pub(super) fn unsigned(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or(0)
}
