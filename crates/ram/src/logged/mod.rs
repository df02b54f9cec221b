//! The client of a network RAM disk that logs parity, as a state machine without I/O: `parity-log`, `parity-cache` and
//! `adaptive`, which differ only in the placement.
//!
//! Owns: slots, groups and their parity, recovery without the client's memory, and filling a donor. Promises: the
//! invariants below. Leaves to others: attaching, fencing, leases and the view (`group`),
//! the choice of each block's slot (`placement`), encoding (`format::slots`), connections, clocks and random numbers
//! (the driver).
//!
//! # Use
//! As that of [`InPlaceMachine`](crate::in_place::InPlaceMachine), with the same events and actions.
//!
//! # Durability
//! An answered write stays in the client's memory until the parity of its group is stored, so it survives the loss of any
//! one donor. After a flush is answered, every write that was answered before the flush began also survives the loss of
//! the client's memory. A client that another one has replaced counts as lost.
//!
//! # Invariants
//! 1. Members of a group and its parity are on different donors.
//! 2. A group has a valid summary on the donor of its parity exactly while it is sealed. The parity is then the XOR of
//!    its slots with their headers, whether live or dead. Before a slot is reused, the summary is erased.
//! 3. The client's memory has every slot of a group without a summary.
//! 4. A slot is reused only when every step before its group's `Free` is done: stored parity covers the newer copies of
//!    all its blocks, and their trims are stored.
//! 5. A step counts as done without a donor only when all others have stored that this donor is left (no longer
//!    trusted).
//! 6. The newest copy is the one with the highest sequence. Two recoveries in a row find the same state: open groups
//!    are sealed before anything is answered, and older copies are removed from a donor that was left before it is
//!    trusted again.
//! 7. The client answers a read from memory only if a donor has confirmed, after the read began, that no other client
//!    has the device.
//!
//! *Cost*: a write is one request; `S` writes need one more for parity; each group needs two small ones, which erase
//! and store its summary. A flush adds the parity of each open group, and takes one round trip, or two if it fills a
//! group.

mod blocks;
mod calls;
mod configuration;
mod figures;
mod groups;
mod looks;
mod machine;
mod operations;
pub mod planted;
mod progress;
mod recovery;
mod refill;
mod reuse;
mod scrub;
mod slot_reads;
mod steps;
mod stores;
mod survey;
mod tasks;

pub use configuration::{
    FREE_GROUPS_KEPT, ParityLogConfiguration, REFILLS_MAX, STEPS_MAX, SURVEY_BYTES, SURVEY_BYTES_UNDER_WAY_MAX,
    SURVEY_READS_MAX,
};
pub use figures::ParityLogFigures;
pub use machine::{NewestData, ParityLogMachine, ParityLogPhase};
pub use progress::RecoveryStage;
