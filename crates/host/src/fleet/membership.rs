//! The two traits between a proxy and its fleet.
//!
//! Owns: [`FleetMembership`], what a proxy asks; [`PurgeStore`], what it gives; and the order of owners of a key. All of it is
//! plain values and futures, so a proxy without a fleet pays nothing, and tests put a model behind it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::watch;

use super::applied_mark::AppliedMark;
use super::figures::FleetFigures;
use super::gate::FleetGate;
use super::node::{FleetNode, FleetView, NodeName, RulesHash};
use super::purge::{FleetError, FleetPurge, LoggedPurge, PurgeOutcome, PurgeWish};

/// The most owners of a key that are named: who is asked, and who is asked instead.
pub const OWNERS_MAX: usize = 3;

/// A result that comes later.
pub type Later<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// The owners of a key, in the order in which they are asked.
#[derive(Debug, Clone)]
pub struct OwnerOrder {
    view: Arc<FleetView>,
    indices: [u16; OWNERS_MAX],
    count: u8,
    own: Option<u16>,
}

impl OwnerOrder {
    /// An order by indices into the nodes of a view, of which the first [`OWNERS_MAX`] count; `own` is the index of this
    /// node.
    pub fn new(view: Arc<FleetView>, order: impl IntoIterator<Item = u16>, own: Option<u16>) -> OwnerOrder {
        let mut owners = OwnerOrder { view, indices: [0; OWNERS_MAX], count: 0, own };
        for index in order.into_iter().take(OWNERS_MAX) {
            owners.indices[usize::from(owners.count)] = index;
            owners.count += 1;
        }
        owners
    }

    /// The view by which the order was made.
    pub fn view(&self) -> &Arc<FleetView> {
        &self.view
    }

    /// Whether this node is the first owner, or there is none: then it asks nobody.
    pub fn is_own(&self) -> bool {
        self.count == 0 || self.own == Some(self.indices[0])
    }

    /// The nodes that this node asks, one after another: the owners up to itself. Empty if it is the first. After them the
    /// origin is asked.
    pub fn others(&self) -> impl Iterator<Item = &FleetNode> {
        let named = self.indices[..usize::from(self.count)].iter();
        let before = named.take_while(|index| self.own != Some(**index));
        before.filter_map(|index| self.view.nodes.get(usize::from(*index)))
    }
}

/// A message of another node, as the listener for nodes has read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerMessage {
    /// The word after `/.well-known/nectary-fleet/`.
    pub word: String,
    /// The body, bounded by the listener.
    pub body: Vec<u8>,
}

/// The purges of a store, as a fleet makes them.
pub trait PurgeStore: Send + Sync + 'static {
    /// What the store has applied. *Cost*: no I/O.
    fn mark(&self) -> AppliedMark;

    /// Makes purges, which are in order, and then says that everything up to the mark is applied. Without a mark only the
    /// purges are made.
    ///
    /// *Durability*: when it returns, all purges are valid in memory and durable. The mark is never durable before them,
    /// and at most a second later: after a crash in between they are made again. *Errors*: some purge is not durable; all
    /// of them are valid in memory nevertheless or not at all, and the caller makes all of them again.
    fn apply(&self, purges: Vec<LoggedPurge>, mark: Option<AppliedMark>) -> Later<Result<(), String>>;
}

/// A fleet, as one of its nodes sees it.
pub trait FleetMembership: Send + Sync + 'static {
    /// The name of this node.
    fn name(&self) -> &NodeName;

    /// Whether this node may serve from its store, for each request.
    fn gate(&self) -> &Arc<FleetGate>;

    /// The living nodes, and each change of them.
    fn views(&self) -> watch::Receiver<Arc<FleetView>>;

    /// The owners of a key, among the nodes that share keys. *Cost*: a hash and a logarithm for each node.
    fn owners(&self, key: &[u8]) -> OwnerOrder;

    /// Waits until this node has applied a revision, as a request of another node requires. The caller bounds the time.
    fn reach(&self, revision: u64) -> Later<()>;

    /// Purges on every node.
    ///
    /// *Durability*: that of the wish. If the outcome misses nodes, the purge is in the log, and they will apply it.
    /// *Errors*: those of [`FleetError`]; only after `Unknown` the purge may be in the log. *Cancel safety*: a purge goes on
    /// if the future is dropped.
    fn purge(&self, purge: FleetPurge, wish: PurgeWish) -> Later<Result<PurgeOutcome, FleetError>>;

    /// Says what the rules of this node are now, after a reload.
    fn set_rules(&self, rules: RulesHash);

    /// Answers a message of another node. *Errors*: it is not understood, or this fleet has none.
    fn on_message(&self, message: PeerMessage) -> Later<Result<Vec<u8>, FleetError>>;

    /// The figures for `nectary fleet status`, `nectary status` and `/metrics`.
    fn figures(&self) -> FleetFigures;

    /// Leaves the fleet, and then ends all that this fleet does. Call it when the listeners no longer answer from the
    /// store; from its call on the gate is shut.
    fn leave(&self) -> Later<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(names: &[&str]) -> Arc<FleetView> {
        let node = |name: &&str| FleetNode {
            name: NodeName::new(name).expect("a name"),
            address: (*name).to_owned(),
            zone: String::new(),
            weight: 1,
            rules: RulesHash(1),
            run: 1,
            since: 1,
        };
        Arc::new(FleetView::new(1, names.iter().map(node).collect()))
    }

    #[test]
    fn nodes_ask_only_owners_before_them() {
        let view = view(&["a", "b", "c", "d"]);
        let asked = |order: &[u16], own: Option<u16>| -> Vec<String> {
            let order = OwnerOrder::new(view.clone(), order.iter().copied(), own);
            order.others().map(|node| node.name.to_string()).collect()
        };
        assert_eq!(asked(&[2, 0, 1, 3], Some(3)), ["c", "a", "b"]);
        assert_eq!(asked(&[2, 0, 1], Some(0)), ["c"]);
        assert_eq!(asked(&[2, 0], None), ["c", "a"]);
        assert!(asked(&[2, 0, 1], Some(2)).is_empty() && asked(&[], Some(2)).is_empty());
        assert!(OwnerOrder::new(view.clone(), [2, 0], Some(2)).is_own());
        assert!(!OwnerOrder::new(view.clone(), [2, 0], Some(0)).is_own());
        assert!(OwnerOrder::new(view.clone(), [], Some(0)).is_own());
    }
}
