//! A fleet that etcd connects.
//!
//! Owns: the client of etcd ([`messages`](self), frames, members), the transactions and the watch of a fleet, and the
//! thread that drives the machine with them. Leaves to others: the rules (`machine`), keys and values (`records`).

mod calls;
mod client;
mod driver;
mod grpc;
mod messages;
mod reading;
#[cfg(test)]
mod tests;
mod watching;

pub(crate) use calls::random_u64;
pub use driver::EtcdFleet;
