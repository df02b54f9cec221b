//! The donors of a device: who is there, who owns them, and which of them have the device's data. A state machine
//! without I/O, which knows nothing of where blocks are.
//!
//! Owns: attaching and fencing, links, leases, the view, the decision to leave a donor and to take it back. Promises: the
//! invariants below. Leaves to others: blocks (`in_place` and `logged`, whose machines run one of these each and send
//! their requests through it), connections, clocks, random numbers (the driver), the donor's side, the encoding of a
//! record (`format`).
//!
//! # Invariants
//! 1. A donor stops being trusted only when all other trusted donors have stored a view without it; only after that does
//!    the machine above hear that nothing waits for it ([`GroupNews::Out`]).
//! 2. A new connection becomes the owner of a donor before anything is sent on it, so no late request of an older
//!    connection takes effect. A new client becomes the owner of every donor that it trusts, with a greater generation.
//! 3. This client has the device if two donors (or one, if the other is left) have confirmed that within `lease_us`. A
//!    client that could not fence a donor waits twice that time before it begins.
//! 4. At most one donor is not trusted. If a second donor is lost, the blocks that only it had are lost.
//! 5. Without redundancy, no donor is left that may still have its memory, 1, 3 and 4 say nothing, and one whose memory is
//!    lost is out at once. A client needs no proof: a new one owns every donor before it changes anything.
//!
//! # What a donor is
//! | standing | reads | writes | in the view | it ends when |
//! |---|---|---|---|---|
//! | trusted | yes | needed | present | it is late, failing or empty: leaving |
//! | leaving | no | needed | left | the others have stored that it is left: out |
//! | out | no | no | left | it returns, and has nothing of others: rebuilding |
//! | rebuilding | what was copied | what was copied | rebuilding | everything is copied: trusted; it is late: out |
//! | lost | no | no | present | never: another donor is out, so this one had the last copy of some blocks |
//!
//! | file | what is in it |
//! |---|---|
//! | `machine` | events, requests and replies, proofs that no other client has the device |
//! | `attach` | attaching, fencing, detaching |
//! | `merge` | the conclusion from the donors' records |
//! | `standing` | which donors are trusted, as data |
//! | `membership` | leaving a donor, taking it back, another one in its place |
//! | `absence` | donors that are waited for in vain |
//! | `link` | the connection to one donor |
//! | `locks` | the order of operations on the same blocks |

mod absence;
mod attach;
mod configuration;
mod error;
mod event;
mod figures;
mod link;
pub(crate) mod locks;
mod machine;
mod membership;
mod merge;
mod standing;

pub(crate) use configuration::GroupConfiguration;
pub use configuration::{
    CLAIM_ROUNDS_MAX, COPIES_MAX, MachineIntent, MachineTimes, OPERATIONS_MAX, REPAIRS_MAX, REQUEST_BYTES_MAX,
    TROUBLES_MAX,
};
pub use error::{AttachRefusal, DeviceError};
pub use event::{Donor, DonorReply, DonorRequest, MachineAction, MachineEvent, Moment, RequestId, UserRequest};
pub use figures::GroupFigures;
pub use link::LinkState;
pub(crate) use machine::GroupNews;
pub use machine::{GroupMachine, GroupPhase};
pub use merge::{DonorContent, MergedView, merge};
pub use standing::DonorStanding;
