//! The network RAM disk: a device whose blocks live in the memory of other machines.
//!
//! Owns: donors of memory, where each block and its redundancy lie, what happens when a donor is lost. Promises: what
//! the durability classes in `docs/ram.md` say. Leaves to others: the protocol (`nectary-nbd`), devices
//! (`nectary-block`), certificates and control sockets (`nectary-host`).
//!
//! | room | what is in it |
//! |---|---|
//! | `check` | whether what the donors have of a device is right, without a client |
//! | `donor` | memory as exports: who may use how much of it, and for how long it stays |
//! | `device` | the device `ram(…)`: labels, which block is on which donor, sessions with donors |
//! | `format` | the bytes that donors keep |
//! | `live` | the device with redundancy: drives `mirror` or `log` over connections to donors |
//! | `log` | the client of a device that logs parity, as a state machine without I/O |
//! | `mirror` | the client of a mirrored device, as a state machine without I/O |
//! | `placement` | which slot of which donor each block goes to, groups, cleaning; no I/O |
//! | `simulate` | counts the transfers of a placement under workloads |
#![forbid(unsafe_code)]

pub mod check;
pub mod device;
pub mod donor;
pub mod format;
pub mod live;
pub mod log;
pub mod mirror;
pub mod placement;
pub mod planted;
pub mod simulate;
