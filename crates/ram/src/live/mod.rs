//! The mirrored device `ram(…,redundancy=mirror)`: every block in the memory of two donors.
//!
//! Owns: the device, and making and deleting one. Promises: a write that has returned is on every trusted donor that
//! holds its blocks, in another machine's memory; a lost donor is left, and filled again when it is back; a request ends
//! at the latest after `patience`. Leaves to others: every decision (`mirror`), bytes on donors (`format`).
//!
//! | file | what is in it |
//! |---|---|
//! | `survey` | which donor is which, before anything is stored |
//! | `session` | a connection to one donor, and requests on it |
//! | `owner` | the task that holds the machine and all connections |
//! | `make` | making and deleting a device |
//! | `report` | what it says of itself |
//! | `device` | the device |

mod device;
mod make;
mod owner;
pub mod planted;
mod report;
mod session;
mod survey;

pub use device::MirrorDevice;
pub use make::{create, delete};
pub use report::{DonorReport, RebuildReport, Report};
