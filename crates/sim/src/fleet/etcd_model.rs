//! A model of etcd, with the transactions that the fleet's calls make.
//!
//! Owns: revisions, leases, the history that watches read, and its compaction. Each [`EtcdRequest`] is one request of
//! `nectary_fleet::etcd`, with what it compares; the values are not encoded. Leaves to others: when a request arrives
//! and what becomes of its answer (`calls`).

use std::collections::BTreeMap;

use nectary_fleet::machine::{LogChange, LogEntry, LogSnapshot};
use nectary_host::fleet::{FleetNode, FleetPurge, LoggedPurge, NodeName};

use super::bugs::{FleetBug, is_planted};

/// The key of a purge: the node, its process, and the number of the purge.
pub type LogKey = (NodeName, u64, u64);

/// A request.
#[derive(Debug, Clone)]
pub enum EtcdRequest {
    Grant,
    Keep(i64),
    /// Whether the key of a node is there with a lease.
    Holds {
        created: u64,
        lease: i64,
        name: NodeName,
    },
    Revoke(i64),
    /// Reads the identity, which is this one if there is none.
    Identity(u128),
    /// Puts the keys of a node if they are absent. `created` is when the identity was created.
    JoinAbsent {
        lease: i64,
        created: u64,
        node: FleetNode,
        applied: u64,
    },
    /// Puts the keys of a node if its key has not changed.
    JoinSame {
        lease: i64,
        created: u64,
        node: FleetNode,
        applied: u64,
        modified: u64,
    },
    Rewrite {
        created: u64,
        lease: i64,
        node: FleetNode,
    },
    Read,
    /// Reads these purges, as they are at a revision.
    ReadPage {
        keys: Vec<LogKey>,
        at: u64,
    },
    Append {
        created: u64,
        key: LogKey,
        purge: FleetPurge,
        accepted_s: u64,
    },
    Publish {
        created: u64,
        lease: i64,
        name: NodeName,
        revision: u64,
    },
    /// Lists the purges of the log by their keys, as they are at a revision; 0 is now.
    List(u64),
    Floor,
    Remove {
        created: u64,
        modified: u64,
        floor: u64,
        keys: Vec<LogKey>,
    },
}

/// An answer.
#[derive(Debug, Clone)]
pub enum EtcdReply {
    Granted(i64),
    /// Whether a lease was kept, or a transaction made.
    Done(bool),
    Identity {
        identity: u128,
        created: u64,
    },
    /// The key of the node is there: its run, and when it was changed.
    Found {
        run: u64,
        modified: u64,
    },
    /// The fleet, without purges.
    Snapshot(LogSnapshot),
    /// A page; `None` if that revision is no longer or not yet there.
    Page(Option<Vec<LoggedPurge>>),
    /// The revision of a purge and the living nodes; `None` if the fleet has another identity.
    Appended(Option<(u64, Vec<NodeName>)>),
    Listed(Option<Vec<(LogEntry, LogKey)>>),
    /// The floor, and when it was changed.
    Floor(u64, u64),
    /// A put with a lease that is no more.
    NoLease,
}

#[derive(Debug, Clone)]
struct NodeEntry {
    node: FleetNode,
    lease: i64,
    modified: u64,
}

#[derive(Debug, Clone)]
struct PurgeEntry {
    revision: u64,
    purge: FleetPurge,
    accepted_s: u64,
    removed: Option<u64>,
}

/// The state of etcd.
#[derive(Debug, Clone, Default)]
pub struct EtcdModel {
    pub revision: u64,
    /// The history up to this revision is gone.
    pub compacted: u64,
    identity: Option<(u128, u64)>,
    nodes: BTreeMap<NodeName, NodeEntry>,
    applied: BTreeMap<NodeName, (u64, i64)>,
    purges: BTreeMap<LogKey, PurgeEntry>,
    /// The floor, and when it was changed.
    floor: (u64, u64),
    /// When each lease ends.
    leases: BTreeMap<i64, u64>,
    history: Vec<(u64, LogChange)>,
}

impl EtcdModel {
    /// Makes a request. `lease` is the number of a new lease, `ends_us` the end of a lease that begins now.
    pub fn execute(&mut self, ask: EtcdRequest, lease: i64, ends_us: u64) -> EtcdReply {
        match ask {
            EtcdRequest::Grant => {
                self.leases.insert(lease, ends_us);
                EtcdReply::Granted(lease)
            }
            EtcdRequest::Keep(lease) => {
                let found = self.leases.get_mut(&lease).map(|ends| *ends = ends_us);
                EtcdReply::Done(found.is_some())
            }
            EtcdRequest::Holds { created, lease, name } => {
                EtcdReply::Done(self.is_fleet(created) && self.has(&name, lease))
            }
            EtcdRequest::Revoke(lease) => {
                self.end_lease(lease);
                EtcdReply::Done(true)
            }
            EtcdRequest::Identity(new) => {
                let (identity, created) = match self.identity {
                    Some(found) => found,
                    None => {
                        let identity = if is_planted(FleetBug::OneIdentity) { 1 } else { new };
                        self.change(vec![LogChange::Identity(Some(identity))]);
                        *self.identity.insert((identity, self.revision))
                    }
                };
                EtcdReply::Identity { identity, created }
            }
            EtcdRequest::JoinAbsent { lease, created, node, applied } => match self.nodes.get(&node.name) {
                _ if !self.is_fleet(created) => EtcdReply::Done(false),
                Some(entry) => EtcdReply::Found { run: entry.node.run, modified: entry.modified },
                None => self.put_node(lease, node, Some(applied)),
            },
            EtcdRequest::JoinSame { lease, created, node, applied, modified } => {
                let is_same = self.nodes.get(&node.name).is_some_and(|entry| entry.modified == modified);
                if self.is_fleet(created) && is_same {
                    self.put_node(lease, node, Some(applied))
                } else {
                    EtcdReply::Done(false)
                }
            }
            EtcdRequest::Rewrite { created, lease, node } => {
                match self.is_fleet(created) && self.has(&node.name, lease) {
                    true => self.put_node(lease, node, None),
                    false => EtcdReply::Done(false),
                }
            }
            EtcdRequest::Read => self.read(),
            EtcdRequest::ReadPage { keys, at } => EtcdReply::Page(self.read_page(&keys, at)),
            EtcdRequest::Append { created, key, purge, accepted_s } => self.append(created, key, purge, accepted_s),
            EtcdRequest::Publish { created, lease, name, revision } => {
                if !self.is_fleet(created) || !self.has(&name, lease) {
                    return EtcdReply::Done(false);
                }
                if !self.leases.contains_key(&lease) {
                    return EtcdReply::NoLease;
                }
                self.applied.insert(name.clone(), (revision, lease));
                self.change(vec![LogChange::Applied(name, revision)]);
                EtcdReply::Done(true)
            }
            EtcdRequest::List(at) => EtcdReply::Listed(self.list(if at == 0 { self.revision } else { at })),
            EtcdRequest::Floor => EtcdReply::Floor(self.floor.0, self.floor.1),
            EtcdRequest::Remove { created, modified, floor, keys } => {
                if !self.is_fleet(created) || self.floor.1 != modified {
                    return EtcdReply::Done(false);
                }
                self.change(vec![LogChange::Floor(floor)]);
                self.floor = (floor, self.revision);
                for key in &keys {
                    if let Some(entry) = self.purges.get_mut(key) {
                        entry.removed = entry.removed.or(Some(self.revision));
                    }
                }
                EtcdReply::Done(true)
            }
        }
    }

    fn is_fleet(&self, created: u64) -> bool {
        self.identity.is_some_and(|(_, found)| found == created)
    }

    fn has(&self, name: &NodeName, lease: i64) -> bool {
        self.nodes.get(name).is_some_and(|entry| entry.lease == lease)
    }

    fn change(&mut self, changes: Vec<LogChange>) {
        self.revision += 1;
        self.history.extend(changes.into_iter().map(|change| (self.revision, change)));
    }

    fn put_node(&mut self, lease: i64, node: FleetNode, applied: Option<u64>) -> EtcdReply {
        if !self.leases.contains_key(&lease) {
            return EtcdReply::NoLease;
        }
        let (name, modified) = (node.name.clone(), self.revision + 1);
        let since = self.nodes.get(&name).map_or(modified, |entry| entry.node.since);
        let node = FleetNode { since, ..node };
        let mut changes = vec![LogChange::Node(node.clone())];
        if let Some(revision) = applied {
            self.applied.insert(name.clone(), (revision, lease));
            changes.push(LogChange::Applied(name.clone(), revision));
        }
        self.nodes.insert(name, NodeEntry { node, lease, modified });
        self.change(changes);
        EtcdReply::Done(true)
    }

    fn read(&self) -> EtcdReply {
        let nodes = self.nodes.iter().map(|(name, entry)| {
            let applied = self.applied.get(name).map_or(0, |applied| applied.0);
            (entry.node.clone(), applied)
        });
        EtcdReply::Snapshot(LogSnapshot {
            identity: self.identity().unwrap_or(0),
            floor: if is_planted(FleetBug::FloorIgnored) { 0 } else { self.floor.0 },
            newest: 0,
            purges: Vec::new(),
            nodes: nodes.collect(),
            through: self.revision,
        })
    }

    /// The purges at a revision; `None` if etcd no longer or not yet has it.
    fn list(&self, at: u64) -> Option<Vec<(LogEntry, LogKey)>> {
        let is_there = |entry: &&PurgeEntry| entry.is_there(at);
        let there = self.purges.iter().filter(|(_, entry)| is_there(entry));
        let is_known = (self.compacted..=self.revision).contains(&at);
        is_known.then(|| there.map(|(key, entry)| (entry.as_listed(), key.clone())).collect())
    }

    fn read_page(&self, keys: &[LogKey], at: u64) -> Option<Vec<LoggedPurge>> {
        let is_known = (self.compacted..=self.revision).contains(&at);
        let logged = |entry: &PurgeEntry| LoggedPurge { revision: entry.revision, purge: entry.purge.clone() };
        let page = keys.iter().filter_map(|key| self.purges.get(key).filter(|entry| entry.is_there(at)).map(logged));
        let page: Vec<LoggedPurge> = page.collect();
        (is_known && page.len() == keys.len()).then_some(page)
    }

    fn append(&mut self, created: u64, key: LogKey, purge: FleetPurge, accepted_s: u64) -> EtcdReply {
        let revision = match self.purges.get(&key).filter(|entry| entry.removed.is_none()) {
            Some(entry) => entry.revision,
            None if self.is_fleet(created) => {
                let logged = LoggedPurge { revision: self.revision + 1, purge: purge.clone() };
                self.change(vec![LogChange::Purge(logged)]);
                let revision = self.revision;
                self.purges.insert(key, PurgeEntry { revision, purge, accepted_s, removed: None });
                revision
            }
            None => return EtcdReply::Appended(None),
        };
        EtcdReply::Appended(Some((revision, self.nodes.keys().cloned().collect())))
    }

    fn end_lease(&mut self, lease: i64) {
        if self.leases.remove(&lease).is_none() {
            return;
        }
        let gone: Vec<NodeName> =
            self.nodes.iter().filter(|(_, entry)| entry.lease == lease).map(|(name, _)| name.clone()).collect();
        self.applied.retain(|_, applied| applied.1 != lease);
        gone.iter().for_each(|name| drop(self.nodes.remove(name)));
        if !gone.is_empty() {
            self.change(gone.into_iter().map(LogChange::NodeGone).collect());
        }
    }

    /// Ends the leases whose time is over.
    pub fn end_leases(&mut self, now_us: u64) {
        let over: Vec<i64> = self.leases.iter().filter(|(_, ends)| **ends <= now_us).map(|(lease, _)| *lease).collect();
        over.into_iter().for_each(|lease| self.end_lease(lease));
    }

    /// Begins again after it was away, or with another leader: leases begin again, too.
    pub fn restart(&mut self, ends_us: u64) {
        self.leases.values_mut().for_each(|ends| *ends = ends_us);
    }

    /// Removes the identity, as an operator does after a restore.
    pub fn remove_identity(&mut self) {
        if self.identity.take().is_some() {
            self.change(vec![LogChange::Identity(None)]);
        }
    }

    /// The changes from a revision on, up to another one. *Errors*: they were compacted.
    pub fn changes(&self, from: u64, through: u64) -> Result<Vec<LogChange>, ()> {
        if from <= self.compacted {
            return Err(());
        }
        let first = self.history.partition_point(|(revision, _)| *revision < from);
        let changes = self.history[first..].iter().take_while(|(revision, _)| *revision <= through);
        Ok(changes.map(|(_, change)| change.clone()).collect())
    }

    /// The node of this name, as its key says.
    pub fn node(&self, name: &NodeName) -> Option<&FleetNode> {
        self.nodes.get(name).map(|entry| &entry.node)
    }

    /// The identity of the fleet.
    pub fn identity(&self) -> Option<u128> {
        self.identity.map(|(identity, _)| identity)
    }

    /// When the identity was created; 0 if there is none.
    pub fn created(&self) -> u64 {
        self.identity.map_or(0, |(_, created)| created)
    }

    /// The number of living nodes.
    pub fn living(&self) -> usize {
        self.nodes.len()
    }

    /// The purges that the log has, with their revisions.
    pub fn logged(&self) -> impl Iterator<Item = (&LogKey, u64)> {
        self.purges.iter().filter(|(_, entry)| entry.removed.is_none()).map(|(key, entry)| (key, entry.revision))
    }
}

impl PurgeEntry {
    fn is_there(&self, at: u64) -> bool {
        self.revision <= at && self.removed.is_none_or(|removed| removed > at)
    }

    fn as_listed(&self) -> LogEntry {
        LogEntry { revision: self.revision, bytes: 100, accepted_s: self.accepted_s }
    }
}
