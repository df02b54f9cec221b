//! Several proxies as one cache: who is a member, who owns a key, and the one order of purges.
//!
//! Owns: the rules of membership and purges as a state machine without I/O ([`machine`]), the shares of keys
//! ([`shares`]), the values that nodes keep in etcd ([`records`]), the client of etcd and the thread that drives the
//! machine with it ([`etcd`]), and what of it a configuration says ([`configured`]). A proxy sees only the traits of
//! `nectary_host::fleet`. Leaves to others: requests between nodes and the store (`nectary-proxy`), and who starts what
//! (the command). The formats are in `docs/formats/fleet.md`, the reasons in `docs/decisions/0077-fleet.md`.
#![forbid(unsafe_code)]

pub mod configured;
mod driving;
pub mod etcd;
pub mod fixed;
mod http2;
pub mod machine;
pub mod options;
mod pauses;
mod purge_bucket;
pub mod records;
mod renewed_tls;
pub mod shares;
