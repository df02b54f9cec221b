//! Several proxies as one cache: what a proxy needs of its fleet, whatever connects the nodes.
//!
//! Owns: the nodes and the view of them ([`FleetView`]), purges that all nodes apply ([`FleetPurge`]), whether a node may
//! serve from its store ([`FleetGate`]), and the two traits between a proxy and its fleet: a proxy asks a [`FleetMembership`],
//! and gives it a [`PurgeStore`]. No I/O. Leaves to others: etcd, the messages between nodes and the rules of membership
//! (`nectary-fleet`), requests between nodes and the store (`nectary-proxy`), putting both together (the command). The
//! formats are in `docs/formats/fleet.md`.

mod applied_mark;
mod figures;
mod gate;
mod membership;
mod node;
pub mod peer_headers;
mod purge;
mod rules_record;

pub use applied_mark::AppliedMark;
pub use figures::{FleetCertificate, FleetFigures, FleetState, NodeFigures, PeerFigures, QuestionFigures};
pub use gate::{FleetGate, NodeStanding};
pub use membership::{FleetMembership, Later, OWNERS_MAX, OwnerOrder, PeerMessage, PurgeStore};
pub use node::{FleetNode, FleetView, NODE_NAME_MAX, NodeName, RulesHash, ZONE_MAX};
pub use purge::{
    FleetError, FleetPurge, LoggedPurge, PURGE_BYTES_MAX, PURGE_TEXT_MAX, PURGE_TEXTS_MAX, PurgeOutcome, PurgeScope,
    PurgeWish,
};
pub use rules_record::RulesRecord;
