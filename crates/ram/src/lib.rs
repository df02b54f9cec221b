//! The network RAM disk: a device whose blocks are in the memory of other machines.
//!
//! Owns: donors of memory, the slots of each block and its redundancy, and the handling of a lost donor. Promises: the
//! durability classes of `docs/ram.md`. Leaves to others: the protocol (`nectary-nbd`), devices (`nectary-block`),
//! certificates and control sockets (`nectary-host`).
//!
//! | room | what is in it |
//! |---|---|
//! | `donor` | memory as exports: which client may use how much of it, and for how long data stays |
//! | `group` | the donors of a device: who is there, who owns them, who has the data; no I/O, and nothing of where blocks are |
//! | `in_place` | a device that is changed in place, a mirror or parity, as a state machine without I/O |
//! | `logged` | a device that logs parity, as a state machine without I/O |
//! | `placement` | the slot and donor of each block, groups, cleaning; no I/O |
//! | `device` | the device `ram(…)`: the SPEC, and labels and sessions of a device without redundancy |
//! | `device::owner` | a device with redundancy: drives `in_place` or `logged` over connections to donors |
//! | `device::moves` | another donor takes the place of one: the plan, without I/O |
//! | `format` | the encoding of what donors store |
//! | `check` | checking what the donors store of a device, without being its client |
//! | `scrub` | the pace and the findings of the slow read of a whole device |
//! | `simulate` | counting the transfers of a placement under workloads |
#![forbid(unsafe_code)]

pub mod check;
pub mod device;
pub mod donor;
pub mod format;
pub mod group;
pub mod in_place;
pub mod logged;
pub mod placement;
pub mod planted;
pub mod scrub;
pub mod simulate;
