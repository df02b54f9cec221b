//! A fleet of fixed members, without etcd.
//!
//! Owns: a log of purges at each node, in a file; the exchange of these logs; when a node that returns may serve; and the
//! thread that drives it. Each node knows its own purges by a number, and tells the others up to which number of each
//! log it has applied everything. So two nodes that have spoken know what the other one lacks. Purges of different nodes
//! may be applied in any order: none of them makes an object. Leaves to others: the listener for nodes, which brings
//! their messages ([`FleetMembership::on_message`]), and the store. The formats are in `docs/formats/fleet.md`.
//!
//! Nodes of such a fleet share no keys: their revisions are no single order, which requests between nodes need.
//!
//! [`FleetMembership::on_message`]: nectary_host::fleet::FleetMembership::on_message

mod driver;
mod figures;
mod known_logs;
mod log_file;
mod machine;
mod messages;
mod peer_client;
mod requests;
mod returning;
mod taking;
#[cfg(test)]
mod tests;

pub use driver::FixedFleet;
