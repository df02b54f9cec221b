//! The devices `ram(…,redundancy=…)` that survive the loss of a donor: mirrored, or with logged parity.
//!
//! Owns: the device, and making and deleting one. Promises: a write to a mirror that has returned is on every trusted
//! donor that holds its blocks; with logged parity it may be only in this process until a flush. Either way it survives
//! the loss of a donor. A lost donor is left, and filled again when it is back; a request ends at the latest after
//! `patience`. Leaves to others: every decision (`mirror`, `log`), bytes on donors (`format`).
//!
//! | file | what is in it |
//! |---|---|
//! | `client` | the machine of a device, mirror or log, as its owner drives it |
//! | `survey` | which donor is which, before anything is stored |
//! | `session` | a connection to one donor, and requests on it |
//! | `owner` | the task that holds the machine and all connections |
//! | `moving` | another donor takes the place of one: what is copied when |
//! | `replacing` | the same: what the owner does, and what the machine is told |
//! | `make` | making and deleting a device |
//! | `report` | what it says of itself |
//! | `device` | the device |

pub(crate) mod client;
pub(crate) mod device;
mod make;
mod moving;
mod owner;
pub mod planted;
mod replacing;
mod report;
pub(crate) mod session;
pub(crate) mod survey;

pub use device::{RedundantDevice, Replacer};
pub use make::{create, delete};
pub use report::{Counts, DonorReport, LogCounts, MoveReport, RebuildReport, Report};
