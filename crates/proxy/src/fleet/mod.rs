//! A proxy as a node of a fleet.
//!
//! Owns: [`FleetSeat`], what the workers share of their fleet: the purges that every node applies, and how many requests
//! may go to origins while the store may not be used. The store's side is [`FleetStore`]. Leaves to others: who is a
//! member and the order of purges (behind [`FleetMembership`]), the answers to purges (`service/purge`), and requests between nodes
//! (`service/peers`).

mod certificate_ends;
mod fleet_store;
mod pass_limit;
mod peer_counts;
mod peers;
mod purge_texts;
mod rules_hash;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use nectary_config::{FleetConfig, PurgeAnswer, RequestRate};
use nectary_host::fleet::{
    FleetError, FleetFigures, FleetGate, FleetMembership, FleetPurge, PurgeOutcome, PurgeScope, PurgeWish, RulesHash,
};

use self::certificate_ends::EtcdFiles;
pub use self::fleet_store::FleetStore;
use self::pass_limit::PassLimit;
pub(crate) use self::peer_counts::PeerCounters;
pub use self::peers::PeerOptions;
pub(crate) use self::peers::{FleetPeers, origin_of};
pub use self::purge_texts::{outcome_json, outcome_text};
pub use self::rules_hash::rules_of;

/// Requests to origins in a period while the store may not be used, unless the configuration says it.
const PASSES: (u32, std::time::Duration) = (100, std::time::Duration::from_secs(1));

/// What the workers of a proxy share of their fleet. It is cheap to clone.
#[derive(Clone)]
pub struct FleetSeat {
    membership: Arc<dyn FleetMembership>,
    gate: Arc<FleetGate>,
    wish: PurgeWish,
    passes: Arc<PassLimit>,
    etcd_files: EtcdFiles,
    peers: Arc<OnceLock<Arc<FleetPeers>>>,
}

impl FleetSeat {
    /// The seat of a node whose configuration has this table.
    pub fn new(membership: Arc<dyn FleetMembership>, config: &FleetConfig) -> FleetSeat {
        let wish = match config.purges.answer.map(|answer| answer.value) {
            None | Some(PurgeAnswer::Applied) => PurgeWish::Applied,
            Some(PurgeAnswer::Accepted) => PurgeWish::Accepted,
        };
        let rate = config.validate_when_cut.map(|rate| rate.value);
        let (count, period) = rate.map_or(PASSES, |RequestRate { count, period }| (count, period));
        let gate = membership.gate().clone();
        let (passes, etcd_files) = (Arc::new(PassLimit::new(count, period)), EtcdFiles::of(config));
        FleetSeat { membership, gate, wish, passes, etcd_files, peers: Arc::default() }
    }

    /// The fleet.
    pub fn membership(&self) -> &Arc<dyn FleetMembership> {
        &self.membership
    }

    /// The figures of the fleet, with those of questions between nodes, the nodes that cannot be asked, and the certificates
    /// of `[fleet]`. *Cost*: reads the certificates for etcd from their files.
    pub fn figures(&self) -> FleetFigures {
        let mut figures = self.membership.figures();
        if let Some(peers) = self.peers.get() {
            (figures.peers, figures.certificates) = (peers.counts.figures(), peers.shown());
            let view = self.membership.views().borrow().clone();
            figures.problems.extend(peers.counts.problems(&view.nodes, Instant::now()));
        }
        figures.certificates.extend(self.etcd_files.shown());
        figures
    }

    /// Lets the figures tell of questions to other nodes.
    pub(crate) fn tell_of(&self, peers: &Arc<FleetPeers>) {
        // A proxy has them once.
        _ = self.peers.set(peers.clone());
    }

    /// What the node may do with what its store has.
    pub(crate) fn gate(&self) -> &FleetGate {
        &self.gate
    }

    /// Whether one more request may go to an origin now, as the store may not be used; else the seconds after which the
    /// next one may.
    pub(crate) fn take_pass(&self) -> Result<(), u64> {
        self.passes.take(nectary_host::clock::since_boot())
    }

    /// Purges on every node, and waits for what the caller or else the configuration wishes. The rules are those by which
    /// the keys were made.
    ///
    /// *Durability* and *errors*: those of [`FleetMembership::purge`].
    pub async fn purge(
        &self,
        (scope, rules): (PurgeScope, RulesHash),
        soft_since_s: Option<u32>,
        wish: Option<PurgeWish>,
    ) -> Result<PurgeOutcome, FleetError> {
        let purge = FleetPurge { scope, soft_since_s, rules };
        if !purge.is_bounded() {
            return Err(FleetError::TooLarge("it has too many or too long keys, prefixes or tags".to_owned()));
        }
        self.membership.purge(purge, self.wish_of(wish)).await
    }

    /// What a purge waits for whose caller wishes this.
    pub fn wish_of(&self, wish: Option<PurgeWish>) -> PurgeWish {
        wish.unwrap_or(self.wish)
    }

    /// Says what the rules are that make keys.
    pub(crate) fn set_rules(&self, rules: RulesHash) {
        self.membership.set_rules(rules);
    }
}

impl fmt::Debug for FleetSeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FleetSeat").field("node", self.membership.name()).field("wish", &self.wish).finish()
    }
}
