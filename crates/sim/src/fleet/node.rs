//! A node: its store, which survives, and its process, which does not.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use nectary_fleet::machine::{FleetMachine, GateTimes, LogSnapshot};
use nectary_host::fleet::{AppliedMark, FleetNode, LoggedPurge, NodeName, NodeStanding, RulesHash};

use super::etcd_model::LogKey;
use super::store_model::StoreModel;

/// What a node does with the answer to a request.
#[derive(Debug, Clone)]
pub enum AnswerAction {
    Grant {
        asked: Duration,
    },
    /// Reads whether the key of the node is there.
    Holds {
        lease: i64,
        asked: Duration,
    },
    /// Keeps the lease at the same member of etcd.
    Keep {
        lease: i64,
        asked: Duration,
        has_key: bool,
        held_us: u64,
    },
    /// Nothing depends on it.
    Nothing,
    Identity {
        lease: i64,
        node: FleetNode,
        mark: AppliedMark,
    },
    JoinAbsent {
        lease: i64,
        node: FleetNode,
        identity: u128,
        applied: u64,
    },
    JoinSame {
        lease: i64,
        identity: u128,
    },
    Read {
        above: AppliedMark,
    },
    Entries {
        above: AppliedMark,
        snapshot: LogSnapshot,
    },
    /// Further pages of a snapshot.
    ReadPages {
        snapshot: LogSnapshot,
        pages: VecDeque<Vec<LogKey>>,
    },
    Append {
        ticket: u64,
    },
    Publish {
        lease: i64,
        revision: u64,
    },
    List {
        may_trim: bool,
    },
    Floor {
        through: u64,
        keys: Vec<LogKey>,
    },
}

/// A watch under way.
#[derive(Debug, Clone)]
pub struct EtcdWatch {
    pub number: u64,
    pub next: u64,
    /// Which etcd it is at.
    pub epoch: u64,
    /// Whether a message is on its way.
    pub is_planned: bool,
    pub has_begun: bool,
}

/// Purges that the store makes.
#[derive(Debug, Clone)]
pub struct StorePurgeBatch {
    /// The number of the machine's batch; `None` for purges without one.
    pub batch: Option<u64>,
    pub purges: Vec<LoggedPurge>,
    pub mark: Option<AppliedMark>,
    /// How many of them are durable.
    pub done: usize,
    /// The number of the purge in the store that is valid and not durable.
    pub begun: Option<u64>,
}

/// A process.
pub struct NodeProcess {
    /// Its random number; it tells apart what is of an earlier process.
    pub run: u64,
    pub machine: FleetMachine,
    pub gate: GateTimes,
    /// The rules by which its times count.
    pub gate_rules: RulesHash,
    /// The rules by which its workers make keys.
    pub table: RulesHash,
    /// When the identity of the fleet was created, as the last join read it.
    pub created: u64,
    /// The requests that wait for an answer.
    pub pending: BTreeMap<u64, AnswerAction>,
    pub watch: Option<EtcdWatch>,
    pub batches: BTreeMap<u64, StorePurgeBatch>,
    /// The revision that it has begun to apply.
    pub begun: u64,
    /// Requests to owners, and when the last fill for each began.
    pub asks: BTreeMap<u64, u64>,
    /// When each purge that it has accepted was. *Units*: seconds.
    pub accepted_s: BTreeMap<u64, u64>,
    pub tickets: u64,
    /// When etcd has last granted or kept the lease whose answer is known.
    pub kept_us: u64,
    pub is_leaving: bool,
}

/// A node.
pub struct SimulatedNode {
    pub name: NodeName,
    pub store: StoreModel,
    pub process: Option<NodeProcess>,
    /// The rules of its configuration.
    pub rules: RulesHash,
    /// Its clock: an offset in microseconds, and its rate in millionths.
    pub clock: (u64, u64),
    /// The same as [`NodeProcess::kept_us`], at the last moment at which it had caught up.
    pub member_us: u64,
    pub suspended_until_us: u64,
    pub cut_until_us: u64,
    /// When the last cut or silence of its connection ended or will end.
    pub troubled_until_us: u64,
    pub slow_until_us: u64,
    pub lossy_until_us: u64,
    pub deaf_until_us: u64,
    /// Until when its member of etcd leads no longer, and does not know it.
    pub misled_until_us: u64,
    pub store_slow_until_us: u64,
    pub store_fails_until_us: u64,
}

impl SimulatedNode {
    pub fn new(name: NodeName, rules: RulesHash, clock: (u64, u64)) -> SimulatedNode {
        SimulatedNode {
            name,
            store: StoreModel::default(),
            process: None,
            rules,
            clock,
            member_us: 0,
            suspended_until_us: 0,
            cut_until_us: 0,
            troubled_until_us: 0,
            slow_until_us: 0,
            lossy_until_us: 0,
            deaf_until_us: 0,
            misled_until_us: 0,
            store_slow_until_us: 0,
            store_fails_until_us: 0,
        }
    }

    /// What its clock says.
    pub fn clock(&self, now_us: u64) -> Duration {
        Duration::from_micros(
            self.clock.0 + now_us / 1_000_000 * self.clock.1 + now_us % 1_000_000 * self.clock.1 / 1_000_000,
        )
    }

    /// The process with this number, if it is still there.
    pub fn of(&mut self, run: u64) -> Option<&mut NodeProcess> {
        self.process.as_mut().filter(|process| process.run == run)
    }
}

impl NodeProcess {
    /// What may be done at a time of the node's clock.
    pub fn standing(&self, clock: Duration) -> NodeStanding {
        if self.is_leaving || self.gate_rules != self.table {
            NodeStanding::ValidateOnly
        } else if clock < self.gate.member_until {
            NodeStanding::Member
        } else if clock < self.gate.serve_until {
            NodeStanding::Cut
        } else {
            NodeStanding::ValidateOnly
        }
    }

    /// The process as a node of the fleet.
    pub fn own_node(name: &NodeName, run: u64, rules: RulesHash) -> FleetNode {
        FleetNode {
            name: name.clone(),
            address: name.to_string(),
            zone: String::new(),
            weight: 1,
            rules,
            run,
            since: 0,
        }
    }
}
