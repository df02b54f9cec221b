//! Replacement policies: one implementation for the live caches and the simulator.
//!
//! Owns: the [`Policy`] trait and the policies, one file each. Leaves to others: what is cached (an id and a weight is
//! all a policy knows), locks and I/O.
#![forbid(unsafe_code)]

mod policy;

pub use policy::{Access, Policy, Stream};
