//! A fleet that etcd connects.
//!
//! Owns: the client of etcd ([`messages`](self), frames, members), the transactions and the watch of a fleet, and the
//! thread that drives the machine with them. Leaves to others: the rules (`machine`), keys and values (`records`).

mod calls;
mod client;
mod driver;
mod etcd_tls;
mod grpc;
mod messages;
mod pauses;
mod reading;
#[cfg(test)]
mod tests;
mod watching;

pub use driver::EtcdFleet;
