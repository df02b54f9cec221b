//! The client of a network RAM disk that logs parity, as a state machine without I/O: `parity-log`, `parity-cache` and
//! `adaptive`, which differ in the placement alone.
//!
//! Owns: slots, groups and their parity, recovery without the client's memory, filling a donor. Promises: the
//! invariants below. Leaves to others: attaching, fencing, leases and the view (`mirror`, which is the base of this
//! machine), which slot each block goes to (`placement`), bytes (`format::slots`), connections, clocks, random numbers
//! (the driver).
//!
//! # Use
//! As that of [`mirror::Machine`](crate::mirror::Machine), with the same events and actions.
//!
//! # Durability
//! A write that was answered is in the client's memory, and leaves it only when the parity of its group is stored: it
//! survives the loss of any one donor. What was answered before a flush began, that is answered too, survives the loss
//! of the client's memory in addition. A client that is superseded counts as lost.
//!
//! # Invariants
//! 1. Members of a group and its parity are on different donors.
//! 2. A group has a valid summary on the donor of its parity exactly while it is sealed; then the parity is the XOR of
//!    its slots with their headers, live or dead. Before a slot is used again, the summary is erased.
//! 3. The client holds every slot of a group without a summary.
//! 4. A slot is used again only when every step before the end of its group is done: the successors of all its blocks
//!    are covered by stored parity, their trims are stored.
//! 5. A step counts as done without a donor only when all others have stored that this donor is left.
//! 6. The newest copy is the one with the highest sequence. What a recovery sees is the same for the next one: groups
//!    that were open are sealed before anything is answered, and a donor that was left is emptied of older copies
//!    before it is trusted.
//! 7. An answer from the client's memory is given only if a donor has shown since the question that no other client has
//!    the device.
//!
//! *Cost*: a write is one request, and one more for each `S` for parity; two small ones for each group (its summary is
//! erased and stored). A flush adds the parity of each open group, and a flush of each donor.

mod configuration;
mod figures;
mod groups;
mod looks;
mod machine;
mod operations;
pub mod planted;
mod recovery;
mod refill;
mod stores;
mod survey;
mod tasks;

pub use configuration::{
    Configuration, FREE_GROUPS_KEPT, REFILLS_MAX, STEPS_MAX, SURVEY_BYTES, SURVEY_BYTES_UNDER_WAY_MAX, SURVEY_READS_MAX,
};
pub use figures::Figures;
pub use machine::{Held, Machine, Phase};
pub use recovery::Stage;
