//! Purges that all nodes of a fleet apply.
//!
//! Owns: what such a purge is, its bounds, its place in the order, what a caller may wait for, and why a purge was not
//! accepted. Leaves to others: the order (`nectary-fleet`), and purging (the store of each node).

use super::node::{NodeName, RulesHash};

/// The most keys, prefixes or tags of one purge.
pub const PURGE_TEXTS_MAX: usize = 1024;
/// The longest key or prefix of a purge. *Units*: bytes.
pub const PURGE_TEXT_MAX: usize = 8192;
/// The longest tag of a purge. *Units*: bytes.
const PURGE_TAG_MAX: usize = 1024;
/// The longest purge, as the log has it. *Units*: bytes.
pub const PURGE_BYTES_MAX: usize = 256 << 10;

/// What a purge is about, in the words of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PurgeScope {
    /// These keys with all their variants.
    Keys(Vec<Vec<u8>>),
    /// All keys that begin with one of these.
    Prefixes(Vec<Vec<u8>>),
    /// All objects that have one of these tags.
    Tags(Vec<Vec<u8>>),
    /// Everything.
    All,
}

impl PurgeScope {
    /// The keys, prefixes or tags; none for everything.
    pub fn texts(&self) -> &[Vec<u8>] {
        match self {
            PurgeScope::Keys(texts) | PurgeScope::Prefixes(texts) | PurgeScope::Tags(texts) => texts,
            PurgeScope::All => &[],
        }
    }
}

/// A purge that every node applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetPurge {
    /// What it is about.
    pub scope: PurgeScope,
    /// Of a soft purge: since when its objects are stale, in seconds since 1970, the same on all nodes. `None` for a hard
    /// one.
    pub soft_since_s: Option<u32>,
    /// The rules by which its keys were made. A store whose objects have keys by other rules may miss some of them.
    pub rules: RulesHash,
}

impl FleetPurge {
    /// A hard purge of everything.
    pub const EVERYTHING: FleetPurge = FleetPurge { scope: PurgeScope::All, soft_since_s: None, rules: RulesHash(0) };

    /// Whether it is a hard purge of everything.
    pub fn is_everything(&self) -> bool {
        self.scope == PurgeScope::All && self.soft_since_s.is_none()
    }

    /// Whether each text is within its bounds, and their number, too.
    pub fn is_bounded(&self) -> bool {
        let texts = self.scope.texts();
        let longest = if matches!(self.scope, PurgeScope::Tags(_)) { PURGE_TAG_MAX } else { PURGE_TEXT_MAX };
        let is_text = |text: &Vec<u8>| (1..=longest).contains(&text.len());
        self.scope == PurgeScope::All || ((1..=PURGE_TEXTS_MAX).contains(&texts.len()) && texts.iter().all(is_text))
    }
}

/// A purge with its place in the order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedPurge {
    /// Its revision: purges are applied from the lowest.
    pub revision: u64,
    /// The purge.
    pub purge: FleetPurge,
}

/// What the caller of a purge waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PurgeWish {
    /// The purge is in the log: every node will apply it, also one that is down now, before it serves again.
    Accepted,
    /// Every living node has applied it.
    Applied,
}

/// What has become of a purge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PurgeOutcome {
    /// Its revision; 0 if it waits until etcd can be reached again.
    pub revision: u64,
    /// Nodes that were living when it was accepted.
    pub nodes: usize,
    /// Those that have not said that they applied it; empty if it is applied. With
    /// [`Accepted`](PurgeWish::Accepted) nobody was asked.
    pub missing: Vec<NodeName>,
    /// Whether every living node has applied it.
    pub is_applied: bool,
    /// Whether it is in no log yet, but in the memory of this process, which sends it when etcd can be reached again.
    pub is_queued: bool,
}

/// Why a purge was not accepted, or a message not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FleetError {
    /// This node has no lease: it is cut off from etcd, or has not joined yet. Nothing is purged.
    #[error("this node is cut off from its fleet ({0}): nothing is purged; send it to another node, or again later")]
    Away(String),
    /// It is not known whether the purge is in the log. Sending it again does no harm.
    #[error("it is not known whether the fleet has accepted this purge ({0}): send it again")]
    Unknown(String),
    /// More purges in a period, or bytes of them, than the configuration allows. Nothing is purged.
    #[error("more than {0}: nothing is purged; send fewer, by tags or prefixes, or allow more")]
    TooMany(String),
    /// As many purges, or bytes of them, wait for etcd as the configuration allows. Nothing is purged.
    #[error("{0} purges wait until etcd can be reached, which is all there may be: this one is not accepted")]
    QueueFull(usize),
    /// The purge is larger than the log takes. Nothing is purged.
    #[error("the purge is out of bounds ({0}): send it in parts, or use tags or prefixes")]
    TooLarge(String),
    /// The rules of this node differ from the fleet's, so the purge would miss. Nothing is purged.
    #[error("the rules that make keys differ from those of the fleet: nothing is purged; send it to another node")]
    RulesDiffer,
    /// This node is stopping. Nothing is purged.
    #[error("this node stops, and cannot purge any more: send it to another node")]
    Stopping,
    /// A message of another node that is not understood, or that this fleet has no use for.
    #[error("{0}")]
    Message(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purge_bounds_hold_at_the_limit() {
        let of = |scope| FleetPurge { scope, ..FleetPurge::EVERYTHING }.is_bounded();
        let texts = |count: usize, bytes: usize| vec![vec![b'a'; bytes]; count];
        assert!(FleetPurge::EVERYTHING.is_bounded());
        assert!(of(PurgeScope::Keys(texts(PURGE_TEXTS_MAX, 1))) && of(PurgeScope::Keys(texts(1, PURGE_TEXT_MAX))));
        assert!(of(PurgeScope::Tags(texts(1, PURGE_TAG_MAX))) && !of(PurgeScope::Tags(texts(1, PURGE_TAG_MAX + 1))));
        assert!(!of(PurgeScope::Keys(texts(PURGE_TEXTS_MAX + 1, 1))));
        assert!(!of(PurgeScope::Prefixes(texts(1, PURGE_TEXT_MAX + 1))));
        assert!(!of(PurgeScope::Tags(Vec::new())) && !of(PurgeScope::Prefixes(texts(1, 0))));
    }
}
