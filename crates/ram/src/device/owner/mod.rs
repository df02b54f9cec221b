//! The devices `ram(…,redundancy=…)`.
//!
//! Owns: the device, and making and deleting one. Promises: a write that has returned is on every trusted donor that holds
//! its blocks; with logged parity it may be only in this process until a flush. With redundancy it survives the loss of a
//! donor. A lost donor is left, and filled again when it returns; a request ends at the latest
//! after `patience`. Leaves to others: every decision (`group`, `in_place`, `logged`), the encoding on donors (`format`).
//!
//! | file | what is in it |
//! |---|---|
//! | `client` | the machine of a device, in place or log, as its owner drives it |
//! | `survey` | finding the position of each donor, before anything is stored |
//! | `session` | a connection to one donor, and requests on it |
//! | `device_owner` | the task that holds the machine and all connections |
//! | `peer` | a donor as the owner sees it |
//! | `remote` | control of a device that is open elsewhere in this process |
//! | `moving` | another donor takes the place of one: preparing it, and copying |
//! | `naming` | addresses and numbers of donors, and the SPEC that names them |
//! | `replacing` | the same: what the owner does, and what the machine is told |
//! | `remnants` | what a donor without a place has of the device |
//! | `scrubbing` | who waits for a pass of the scrub |
//! | `spares` | the spares, and which of them is next |
//! | `unfinished` | finishing a switch that a lost client has left |
//! | `sparing` | the same: what the owner does |
//! | `make` | making and deleting a device |
//! | `grow` | a device gets larger |
//! | `report` | the report of a running device |
//! | `device` | the device |

pub(crate) mod client;
pub(crate) mod device;
mod device_owner;
mod grow;
mod make;
mod moving;
mod naming;
mod peer;
pub mod planted;
pub(crate) mod remnants;
mod remote;
mod replacing;
mod report;
mod scrubbing;
pub(crate) mod session;
mod spares;
mod sparing;
pub(crate) mod survey;
mod unfinished;

pub use client::{DeviceMachine, donor_bytes, machine};
pub use device::RamDevice;
pub use grow::grow;
pub use make::{create, delete, delete_part};
pub use moving::{MoveError, MoveErrorKind};
pub use remote::DeviceController;
pub use report::{DeviceCounts, DeviceReport, DonorReport, LogCounts, MoveReport, RebuildReport};
