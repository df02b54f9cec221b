//! From a request to its response.
//!
//! Owns: the path of a request through the proxy. `connection` finds the protocol of a client's stream and runs hyper on it. `direct` and `hit`
//! answer at once from memory if `lookup` finds a fresh response. `route` chooses the path of all other requests:
//! `cached` (look up, join or begin a fetch), `fetch` (the task that fills the store), `partial` (a range of a response
//! that turns out not to be storable), `parts` (bodies that are stored in parts), `pass` (straight to the origin), `peers` (to and from other nodes of a fleet), `tunnel`, `upgrade` (a tunnel if the
//! origin agrees), `purge` (if `admin` allows it; `purge/fleet_purge` for every node of a fleet), `redirect`
//! (to the addresses with TLS).
//! `reply` makes responses, `rest` continues a stored body from its origin, `refusal` answers bytes that are not a request, `herald` passes `1xx` responses on, and
//! `locality` tells the store which objects belong together.

mod admin;
mod cached;
pub(crate) mod connection;
mod direct;
mod fetch;
mod herald;
mod hit;
mod locality;
mod lookup;
mod partial;
mod parts;
mod pass;
mod peers;
mod purge;
mod redirect;
pub(crate) mod refusal;
mod reply;
mod request;
mod rest;
mod route;
mod tunnel;
mod upgrade;

pub(crate) use direct::plain_path;
pub(crate) use parts::PartPurges;
pub(crate) use peers::PeerPaces;
