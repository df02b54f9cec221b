//! Reading the log, and removing what is too much.
//!
//! Owns: one revision for all that is read, however many pages it takes, and invariant: a purge is removed only in the
//! transaction that raises the floor to it. Leaves to others: how much is too much (`machine::trim_through`).

use bytes::Bytes;
use nectary_host::fleet::{AppliedMark, FleetNode, FleetPurge, LoggedPurge, NodeName, RulesHash};

use super::calls::{FleetCalls, compare_modified, get, kvs, prefix, put};
use super::grpc::CallError;
use super::messages::{
    DeleteRangeRequest, EtcdOperation, KeyValue, RangeRequest, RangeResponse, RequestOp, TxnRequest, range_end,
};
use crate::machine::{FleetRules, LogEntry, LogSnapshot, LogTotals, trim_through};
use crate::records::{FleetKey, read_identity, read_node, read_purge, read_revision, write_revision};

const RANGE: &str = "/etcdserverpb.KV/Range";
/// The most purges of a page with their values, and their bytes, unless one purge has more.
const PAGE_MAX: usize = 1000;
const PAGE_BYTES_MAX: u64 = 1 << 20;
/// The purges of a page without values.
const KEYS_PAGE_MAX: i64 = 10_000;
/// The purges that one transaction removes; etcd takes 128 operations.
const REMOVED_MAX: usize = 100;

/// A purge of the log, without its value, and its key.
type LoggedKey = (LogEntry, Bytes);

/// The key that follows a key.
fn after(key: &Bytes) -> Bytes {
    [&key[..], b"\0"].concat().into()
}

/// The parts of the log, in order of keys, that have what is above a revision and nothing else.
fn pages(entries: &[LoggedKey], above: u64) -> Vec<&[LoggedKey]> {
    let mut found = Vec::new();
    for mut part in entries.chunk_by(|one, other| (one.0.revision > above) == (other.0.revision > above)) {
        if part.first().is_none_or(|entry| entry.0.revision <= above) {
            continue;
        }
        while !part.is_empty() {
            let mut bytes = 0;
            let fits = |entry: &&LoggedKey| {
                bytes += entry.0.bytes;
                bytes <= PAGE_BYTES_MAX
            };
            let count = part.iter().take(PAGE_MAX).take_while(fits).count().max(1);
            let (page, rest) = part.split_at(count);
            found.push(page);
            part = rest;
        }
    }
    found
}

impl FleetCalls {
    /// Reads the fleet at one revision, with the purges above a mark.
    pub async fn read(&self, above: AppliedMark) -> Result<LogSnapshot, CallError> {
        let reads = vec![
            get(&self.key(&FleetKey::Identity), false),
            get(&self.key(&FleetKey::Floor), false),
            prefix(&self.keys.nodes(), false),
            prefix(&self.keys.applied(), false),
        ];
        let response = self.txn(TxnRequest { success: reads, ..TxnRequest::default() }).await?;
        let through = response.header.as_ref().map_or(0, |header| header.revision);
        let identity = kvs(&response, 0).first().and_then(|found| read_identity(&found.value));
        // Without one the node joins again, which makes one, or says that it is not understood.
        let identity = identity.unwrap_or(0);
        let above = if identity == above.fleet { above.revision } else { 0 };
        let entries = self.entries(through).await?;
        let mut purges = Vec::new();
        for page in pages(&entries, above) {
            purges.extend(self.read_page(page, through).await?);
        }
        purges.sort_by_key(|purge: &LoggedPurge| purge.revision);
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
            newest: entries.iter().map(|entry| entry.0.revision).max().unwrap_or(0),
            purges,
            nodes: nodes.collect(),
            through: unsigned(through),
        })
    }

    /// Whether etcd has the fleet of the last join, and this revision. A member may be behind, but not its answer to this.
    pub async fn is_same_etcd(&self, revision: u64) -> Result<bool, CallError> {
        let key = self.key(&FleetKey::Identity);
        let request = TxnRequest {
            compare: vec![self.same_fleet()],
            success: vec![get(&key, true)],
            failure: vec![get(&key, true)],
        };
        let response = self.txn(request).await?;
        let newest = response.header.as_ref().map_or(0, |header| unsigned(header.revision));
        Ok(response.succeeded && newest >= revision)
    }

    /// The purges of a page of the log, as they are at a revision.
    async fn read_page(&self, page: &[LoggedKey], revision: i64) -> Result<Vec<LoggedPurge>, CallError> {
        let (Some((_, first)), Some((_, last))) = (page.first(), page.last()) else { return Ok(Vec::new()) };
        let range_end = after(last);
        let request = RangeRequest { key: first.clone(), range_end, revision, ..RangeRequest::default() };
        let response: RangeResponse = self.client.call(RANGE, &request).await?;
        if response.kvs.len() != page.len() {
            return Err(CallError::broken("the log has changed while it was read"));
        }
        Ok(response.kvs.iter().filter_map(|found| self.logged(found)).collect())
    }

    /// The purges of the log by their keys alone, in the order of these, as they are at a revision; 0 is now. etcd looks at
    /// the whole log for each request that sorts or filters, so nothing here does.
    async fn entries(&self, revision: i64) -> Result<Vec<LoggedKey>, CallError> {
        let mut entries = Vec::new();
        let mut request = RangeRequest { limit: KEYS_PAGE_MAX, revision, keys_only: true, ..self.all_purges() };
        loop {
            let page: RangeResponse = self.client.call(RANGE, &request).await?;
            entries.extend(page.kvs.iter().filter_map(|found| match self.keys.read(&found.key) {
                Some(FleetKey::Purge(key)) => {
                    let (bytes, accepted_s) = (u64::from(key.value_bytes), u64::from(key.accepted_s));
                    Some((LogEntry { revision: unsigned(found.mod_revision), bytes, accepted_s }, found.key.clone()))
                }
                _ => None,
            }));
            let Some(last) = page.kvs.last().filter(|_| page.more) else { return Ok(entries) };
            request.key = after(&last.key);
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
        let mut entries = self.entries(0).await?;
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
                RequestOp { operation: Some(EtcdOperation::Delete(request)) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_missed_purges_alone() {
        let entry = |number: u64, revision, bytes| {
            let entry = LogEntry { revision, bytes, accepted_s: 0 };
            (entry, Bytes::from(format!("{number:04}")))
        };
        let of = |entries: &[LoggedKey], above| -> Vec<Vec<u64>> {
            let revisions = |page: &&[LoggedKey]| page.iter().map(|entry| entry.0.revision).collect();
            pages(entries, above).iter().map(revisions).collect()
        };
        // Two writers, whose keys are in order of their own purges.
        let entries = [entry(1, 3, 9), entry(2, 7, 9), entry(3, 8, 9), entry(4, 5, 9), entry(5, 9, 9)];
        assert_eq!(of(&entries, 5), [vec![7, 8], vec![9]]);
        assert_eq!(of(&entries, 0), [vec![3, 7, 8, 5, 9]]);
        assert!(of(&entries, 9).is_empty() && of(&[], 0).is_empty());
        let large = [entry(1, 1, PAGE_BYTES_MAX + 1), entry(2, 2, PAGE_BYTES_MAX), entry(3, 3, 1)];
        assert_eq!(of(&large, 0), [vec![1], vec![2], vec![3]]);
        let many: Vec<_> = (1..=2500).map(|number| entry(number, number, 1)).collect();
        assert_eq!(of(&many, 0).iter().map(Vec::len).collect::<Vec<_>>(), [1000, 1000, 500]);
    }
}
