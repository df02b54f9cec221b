//! The network RAM disk: a device whose blocks are in the memory of other machines.
//!
//! Owns: donors of memory, the slots of each block and its redundancy, and the handling of a lost donor. Promises: the
//! durability classes of `docs/ram.md`. Leaves to others: the protocol (`nectary-nbd`), devices (`nectary-block`),
//! certificates and control sockets (`nectary-host`).
//!
//! | room | what is in it |
//! |---|---|
//! | `check` | checking what the donors store of a device, without being its client |
//! | `donor` | memory as exports: which client may use how much of it, and for how long data stays |
//! | `device` | the device `ram(…)`: labels, which block is on which donor, sessions with donors |
//! | `format` | the encoding of what donors store |
//! | `group` | the donors of a device: who is there, who owns them, who has the data; a state machine without I/O |
//! | `in_place` | the client of a device that is changed in place, as a state machine without I/O |
//! | `live` | the device with redundancy: drives `in_place` or `log` over connections to donors |
//! | `log` | the client of a device that logs parity, as a state machine without I/O |
//! | `moving` | another donor takes the place of one: the plan, without I/O |
//! | `placement` | the slot and donor of each block, groups, cleaning; no I/O |
//! | `scrub` | the pace and the findings of the slow read of a whole device |
//! | `simulate` | counting the transfers of a placement under workloads |
#![forbid(unsafe_code)]

pub mod check;
pub mod device;
pub mod donor;
pub mod format;
pub mod group;
pub mod in_place;
pub mod live;
pub mod log;
pub mod moving;
pub mod placement;
pub mod planted;
pub mod scrub;
pub mod simulate;
