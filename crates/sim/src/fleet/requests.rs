//! Requests of clients, and of nodes to owners of keys.

use nectary_host::fleet::{NodeStanding, RulesHash};

/// A request for an object.
#[derive(Debug, Clone, Copy)]
pub struct ObjectRequest {
    pub url: usize,
    /// *Units*: microseconds.
    pub sent_us: u64,
    /// When the gate was read.
    pub came_us: u64,
    /// The rules of the node when it came, and what the node might do then.
    pub rules: RulesHash,
    pub standing: NodeStanding,
}

impl ObjectRequest {
    /// A request that is sent then.
    pub fn new(url: usize, sent_us: u64) -> ObjectRequest {
        ObjectRequest { url, sent_us, came_us: 0, rules: RulesHash(0), standing: NodeStanding::ValidateOnly }
    }
}

/// A request of a node to an owner.
#[derive(Debug, Clone)]
pub struct PeerRequest {
    pub node: usize,
    pub run: u64,
    pub owner: usize,
    /// Tells it apart from others.
    pub number: u64,
    pub request: ObjectRequest,
    /// When the fill began, by the asking node's store.
    pub began: u64,
    pub fleet: u128,
    /// What the asking node had applied, and had begun to apply.
    pub applied: u64,
    pub begun: u64,
    /// What the asking node must not show any more.
    pub least: u64,
    pub until_us: u64,
    /// What the owner had applied before it looked.
    pub seen: u64,
}
