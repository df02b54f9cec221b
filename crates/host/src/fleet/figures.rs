//! The figures of a fleet, as one node sees it.
//!
//! Owns: what `nectary fleet status` and the metrics show. Leaves to others: their text.

use serde::{Deserialize, Serialize};

use crate::PartProblem;

/// What a node is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FleetState {
    /// It has never joined, or its lease has ended: it tries to join.
    #[default]
    Away,
    /// It has joined, and applies what it missed before it serves.
    CatchingUp,
    /// It is a member and serves.
    Member,
    /// It is a member whose rules differ from the fleet's.
    RulesDiffer,
    /// It is leaving, or has left.
    Left,
}

/// A node in the figures.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct NodeFigures {
    /// Its name.
    pub name: String,
    /// Where other nodes reach it.
    pub address: String,
    /// Its zone; empty for none.
    pub zone: String,
    /// The size of its store. *Units*: bytes.
    pub weight: u64,
    /// Its share of the keys, from 0 to 1.
    pub share: f64,
    /// The last revision that it said it has applied.
    pub applied: u64,
    /// Purges in the log that it has not said it has applied.
    pub purges_behind: u64,
    /// Whether it lives. A fixed member that cannot be reached does not.
    pub is_living: bool,
    /// Whether its rules are those of the fleet.
    pub has_common_rules: bool,
    /// Whether it is the node that answers.
    pub is_this: bool,
}

/// Questions between two nodes about objects, in one direction, since the process began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct QuestionFigures {
    /// Questions.
    pub questions: u64,
    /// Answers from the store of the node that was asked.
    pub hits: u64,
    /// Answers for which that node asked the origin.
    pub misses: u64,
    /// Answers that the node is no member, has other rules, or has not applied the purges of the one that asks.
    pub refused: u64,
    /// Answers that the node has no response of the origin.
    pub failed: u64,
    /// Bytes of the bodies of answers.
    pub body_bytes: u64,
}

/// What this node and another one have asked each other since the process began.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PeerFigures {
    /// The name of the other node.
    pub name: String,
    /// What this node has asked it. Answers that came too late to be used are among them.
    pub asked: QuestionFigures,
    /// What this node has answered it.
    pub answered: QuestionFigures,
    /// Questions of this node that could not be sent, or got no answer.
    pub unreachable: u64,
    /// Questions of this node whose answer did not come in the time in which it nearly always does.
    pub late: u64,
    /// Questions of this node, asked because another node was late, whose answer was used.
    pub hedges_won: u64,
    /// Questions of this node, asked because another node was late, whose answer was not used.
    pub hedges_lost: u64,
}

/// A certificate that `[fleet]` names.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FleetCertificate {
    /// The key of `[fleet]`: `cert`, `ca`, `etcd-ca` or `etcd-cert`.
    pub key: String,
    /// Its file.
    pub path: String,
    /// The end of its validity; of a file of authorities, the last end. *Units*: Unix seconds.
    pub not_after_s: i64,
}

/// A fleet, as one node sees it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct FleetFigures {
    /// The name of the fleet.
    pub fleet: String,
    /// The identity of the fleet; empty while it is not known.
    pub identity: String,
    /// The name of this node.
    pub node: String,
    /// What this node is doing.
    pub state: FleetState,
    /// How the nodes are connected: `etcd` or `members`.
    pub by: String,
    /// The nodes, by name.
    pub nodes: Vec<NodeFigures>,
    /// The number of the view.
    pub view: u64,
    /// The last revision that this node has applied.
    pub applied: u64,
    /// The last purge that this node knows of.
    pub newest_purge: u64,
    /// Purges that this node knows of and has not applied.
    pub purges_behind: u64,
    /// How long the oldest of these has waited. *Units*: milliseconds.
    pub behind_ms: u64,
    /// Purges in the log when it was last looked at, which is once a minute.
    pub log_purges: u64,
    /// The bytes of these.
    pub log_bytes: u64,
    /// Purges up to this revision may have been removed.
    pub floor: u64,
    /// Purges that wait until etcd can be reached.
    pub purges_queued: u64,
    /// Purges that this process has accepted.
    pub purges_accepted: u64,
    /// Purges that this process has refused.
    pub purges_refused: u64,
    /// Purges that this process has applied.
    pub purges_applied: u64,
    /// How often this process purged everything because it had missed purges that are no longer in the log.
    pub everything_purged: u64,
    /// How often this process lost its membership.
    pub cuts: u64,
    /// How long it still counts as a member without a word from etcd. *Units*: milliseconds; 0 if it does not.
    pub member_ms_left: u64,
    /// How long it still serves from its store without a word from etcd. *Units*: milliseconds.
    pub serve_ms_left: u64,
    /// What this node and others have asked each other, by name.
    #[serde(default)]
    pub peers: Vec<PeerFigures>,
    /// The certificates that `[fleet]` names.
    #[serde(default)]
    pub certificates: Vec<FleetCertificate>,
    /// What is wrong, and what to do.
    pub problems: Vec<PartProblem>,
}
