//! Requests between the nodes of a fleet that share keys.
//!
//! Owns: both sides of such a request, and what makes its answer right. The formats are in `docs/formats/fleet.md`.
//!
//! # Invariants
//! 1. **What was purged is not shown.** Before it looks for anything, the node that answers has applied every purge that the
//!    asking node had applied when the request was sent. It is a member, of the same fleet, or answers nothing.
//! 2. **What was purged is not kept.** A copy is kept only if the node that answers had applied, before it looked, every purge
//!    that the asking node had begun to apply when its fill had begun. Later purges end that fill. A copy has all tags of the
//!    object, or it is not kept; neither is what was softly purged, which by its age may be fresh.
//! 3. **One hop.** A request that came from a node is answered by the store or by the origin. The header that says so counts
//!    only at the listener for nodes, whose clients have certificates of the fleet.
//! 4. **No errors by peers.** A node that does not answer, or shows no sign of life, costs time alone: the next owner is
//!    asked, and then the origin. If that has no response, the nodes are asked that were left out.
//! 5. **One request for one `HEAD`.** No store is filled by the answer, so nodes answer from their stores alone, and the origin
//!    is asked by the node that asks. If it fails, owners answer with what may be served stale then.
//! 6. **One request for one `GET`.** While the first owner lives, no other asks the origin, for up to ten seconds.
//! 7. **The same rules.** A request is answered only by the rules that made its key at the node that asks.

mod answering;
mod asking;
mod body;
mod lone;
mod messages;
mod pace;
mod turns;

pub(super) use answering::{add_to_cache_status, answer, client_of};
pub(super) use asking::{PeerAnswer, PeerQuestion};
pub(super) use body::{AskedOfNode, NodeBody};
pub(super) use lone::{ask_alone, not_stored, stored_alone};
pub(super) use messages::{answer_message, is_message};
pub(crate) use pace::PeerPaces;
