//! The parts of policies: tables, orders, a heap, a sketch.
//!
//! Owns: memory and look-up. Leaves to others: the worth of an id ([`crate::policies`]); nothing here depends on a
//! policy.

pub(crate) mod arena;
pub(crate) mod growth;
pub(crate) mod hash;
pub(crate) mod heap;
pub(crate) mod memory;
pub(crate) mod queues;
pub(crate) mod sketch;
pub(crate) mod table;
pub(crate) mod timeline;
