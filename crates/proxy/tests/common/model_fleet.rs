//! A fleet in memory: one log of purges, and nodes that are up or down.
//!
//! Owns: [`ModelFleet`]. A purge is in the log, and is applied by each node that is up, before it is answered; a node that
//! comes up applies what it missed before its gate opens. A node whose gate was shut by the test refuses purges.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nectary_config::FleetConfig;
use nectary_host::fleet::{
    AppliedMark, FleetError, FleetFigures, FleetGate, FleetMembership, FleetNode, FleetPurge, FleetView, Later,
    LoggedPurge, NodeName, NodeStanding, OwnerOrder, PeerMessage, PurgeOutcome, PurgeStore, PurgeWish, RulesHash,
    RulesRecord,
};
use nectary_proxy::{FleetSeat, FleetStore};
use nectary_store::Store;
use tokio::sync::watch;

use super::waiting::until;

/// The identity of every model.
const IDENTITY: u128 = 7;

/// A fleet in memory.
#[derive(Clone, Default)]
pub struct ModelFleet(Arc<Mutex<FleetState>>);

#[derive(Default)]
struct FleetState {
    log: Vec<FleetPurge>,
    nodes: Vec<Arc<ModelNode>>,
}

/// A node of it, over one opening of a store.
pub struct ModelNode {
    name: NodeName,
    gate: Arc<FleetGate>,
    store: FleetStore,
    fleet: ModelFleet,
    views: watch::Sender<Arc<FleetView>>,
    rules: Mutex<Vec<RulesHash>>,
    /// The owners of all keys, in order.
    owners: Mutex<OwnerOrder>,
}

/// No node that owns keys.
fn nobody() -> OwnerOrder {
    OwnerOrder::new(Arc::default(), [], None)
}

impl ModelFleet {
    fn state(&self) -> std::sync::MutexGuard<'_, FleetState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The purges of the log.
    pub fn log(&self) -> Vec<FleetPurge> {
        self.state().log.clone()
    }

    /// A node that is down, with its store open.
    pub fn node(&self, name: &str, store: &Store) -> Arc<ModelNode> {
        let gate = Arc::new(FleetGate::new());
        gate.set_fleet(IDENTITY);
        Arc::new(ModelNode {
            name: NodeName::new(name).expect("a name"),
            gate,
            store: FleetStore::new(store.clone()),
            fleet: self.clone(),
            views: watch::Sender::new(Arc::default()),
            rules: Mutex::default(),
            owners: Mutex::new(nobody()),
        })
    }
}

impl ModelNode {
    /// What a proxy gets of it.
    pub fn seat(self: &Arc<Self>, config: &FleetConfig) -> FleetSeat {
        FleetSeat::new(self.clone(), config)
    }

    /// Applies what was missed, and then serves.
    pub async fn come_up(self: &Arc<Self>) {
        let mark = self.store.mark();
        let known = if mark.fleet == IDENTITY { mark.revision } else { 0 };
        let log = self.fleet.log();
        for (revision, purge) in (1_u64..).zip(log).filter(|(revision, _)| *revision > known) {
            self.apply(revision, purge).await.expect("applied");
        }
        self.fleet.state().nodes.push(self.clone());
        self.gate.set_times(Duration::MAX, Duration::MAX);
    }

    /// Takes no part any more; its proxy may go on.
    pub fn go_down(&self) {
        self.fleet.state().nodes.retain(|node| node.name != self.name);
        self.shut();
    }

    /// Serves, although it is cut off.
    pub fn cut(&self) {
        self.fleet.state().nodes.retain(|node| node.name != self.name);
        self.gate.set_times(Duration::ZERO, Duration::MAX);
    }

    /// Serves nothing from the store.
    pub fn shut(&self) {
        self.gate.set_times(Duration::ZERO, Duration::ZERO);
    }

    /// The nodes that own all keys, in order, with the addresses at which they are reached.
    pub fn set_owners(&self, owners: &[(&str, SocketAddr)]) {
        let node = |(name, address): &(&str, SocketAddr)| FleetNode {
            name: NodeName::new(name).expect("a name"),
            address: format!("localhost:{}", address.port()),
            zone: String::new(),
            weight: 1,
            rules: RulesHash(1),
            run: 1,
            since: 1,
        };
        let view = Arc::new(FleetView::new(1, owners.iter().map(node).collect()));
        let index = |name: &str| view.nodes.iter().position(|node| node.name.as_str() == name).map(|it| it as u16);
        let order: Vec<_> = owners.iter().filter_map(|(name, _)| index(name)).collect();
        let own = index(self.name.as_str());
        *self.owners.lock().unwrap_or_else(PoisonError::into_inner) = OwnerOrder::new(view, order, own);
    }

    /// What its store has applied.
    pub fn mark(&self) -> AppliedMark {
        self.store.mark()
    }

    /// The rules that the proxy has said.
    pub fn rules(&self) -> Vec<RulesHash> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn apply(&self, revision: u64, purge: FleetPurge) -> Later<Result<(), String>> {
        let mark = AppliedMark { fleet: IDENTITY, revision, rules: RulesRecord::NONE };
        self.gate.set_begun(revision);
        let (gate, applied) = (self.gate.clone(), self.store.apply(vec![LoggedPurge { revision, purge }], Some(mark)));
        Box::pin(async move {
            applied.await?;
            gate.set_applied(revision);
            Ok(())
        })
    }
}

impl FleetMembership for ModelNode {
    fn name(&self) -> &NodeName {
        &self.name
    }

    fn gate(&self) -> &Arc<FleetGate> {
        &self.gate
    }

    fn views(&self) -> watch::Receiver<Arc<FleetView>> {
        self.views.subscribe()
    }

    fn owners(&self, _key: &[u8]) -> OwnerOrder {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn reach(&self, revision: u64) -> Later<()> {
        let gate = self.gate.clone();
        Box::pin(async move {
            until("an applied revision", || gate.applied() >= revision).await;
        })
    }

    fn purge(&self, purge: FleetPurge, wish: PurgeWish) -> Later<Result<PurgeOutcome, FleetError>> {
        if self.gate.standing() != NodeStanding::Member {
            return Box::pin(std::future::ready(Err(FleetError::Away("the test says so".to_owned()))));
        }
        let (revision, nodes) = {
            let mut state = self.fleet.state();
            state.log.push(purge.clone());
            (state.log.len() as u64, state.nodes.clone())
        };
        Box::pin(async move {
            for node in &nodes {
                node.apply(revision, purge.clone()).await.map_err(FleetError::Unknown)?;
            }
            let is_applied = wish == PurgeWish::Applied;
            Ok::<_, FleetError>(PurgeOutcome {
                revision,
                nodes: nodes.len(),
                missing: Vec::new(),
                is_applied,
                is_queued: false,
            })
        })
    }

    fn set_rules(&self, rules: RulesHash) {
        self.gate.set_rules(rules);
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).push(rules);
    }

    fn on_message(&self, message: PeerMessage) -> Later<Result<Vec<u8>, FleetError>> {
        Box::pin(std::future::ready(Err(FleetError::Message(message.word))))
    }

    fn figures(&self) -> FleetFigures {
        FleetFigures::default()
    }

    fn leave(&self) -> Later<()> {
        self.go_down();
        Box::pin(std::future::ready(()))
    }
}
