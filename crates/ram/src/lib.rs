//! The network RAM disk: a device whose blocks live in the memory of other machines.
//!
//! Owns: donors of memory, where each block and its redundancy lie, what happens when a donor is lost. Promises: what
//! the durability classes in `docs/ram.md` say. Leaves to others: the protocol (`nectary-nbd`), devices
//! (`nectary-block`), certificates and control sockets (`nectary-host`).
//!
//! | room | what is in it |
//! |---|---|
//! | `format` | the bytes that donors keep for a device |
//! | `mirror` | the client of a mirrored device, as a state machine without I/O |
#![forbid(unsafe_code)]

pub mod format;
pub mod mirror;
pub mod planted;
