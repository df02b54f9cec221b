//! From a request to its response.
//!
//! Owns: the way of a request through the proxy. `connection` puts hyper on a client's stream; `direct` and `hit`
//! answer at once what is fresh in memory, as `lookup` decides; `route` sends everything else where it belongs:
//! `cached` (look up, join or begin a fetch), `fetch` (the task that fills the store), `pass` (straight to the origin),
//! `tunnel`, `purge` (which `admin` admits); `reply` makes responses, `refusal` those to no request, `herald` passes
//! `1xx` on, `locality` hints.

mod admin;
mod cached;
pub(crate) mod connection;
mod direct;
mod fetch;
mod herald;
mod hit;
mod locality;
mod lookup;
mod pass;
mod purge;
mod refusal;
mod reply;
mod request;
mod route;
mod tunnel;

pub(crate) use direct::plain_path;
