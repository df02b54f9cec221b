//! The client of a network RAM disk that is changed in place, as a state machine without I/O: each block on two donors,
//! or with parity (`parity` says what differs then).
//!
//! Owns: attaching and fencing, the donors of each block, the order of overlapping operations, marks of stripes whose
//! copies may differ, the decision to leave a donor and to take it back, checksums. Promises: the invariants below.
//! Leaves to others: connections, clocks, random numbers (the driver), the donor's side, the encoding of a record
//! (`format`).
//!
//! # Use
//! A driver hands [`MirrorMachine::step`] each [`MirrorEvent`] with the time, executes every action of [`MirrorMachine::actions`] in
//! order, and calls `step` with [`MirrorEvent::Time`] at [`MirrorMachine::wake_at`]. The simulator drives the same code.
//!
//! ```
//! use nectary_ram::format::{RedundancyCode, RecordGeometry};
//! use nectary_ram::mirror::{MirrorAction, MirrorConfiguration, DonorRequest, MirrorEvent, MachineIntent, MirrorMachine, MachineTimes};
//!
//! let (device, code) = (*b"sixteen of bytes", RedundancyCode::Mirror);
//! let geometry = RecordGeometry { device, bytes: 1 << 30, block_bytes: 4096, stripe_bytes: 1 << 20, members: 2, code };
//! let labels = vec!["host-a".to_owned(), "host-b".to_owned()];
//! let configuration =
//!     MirrorConfiguration { geometry, labels, client: 0x5eed, intent: MachineIntent::Create, times: MachineTimes::default() };
//! let mut machine = MirrorMachine::new(configuration, 0)?;
//! // The driver has connected to donor 1, and sends what the machine wants.
//! machine.step(1000, MirrorEvent::Connected { donor: 1, incarnation: 77 });
//! let actions: Vec<MirrorAction> = machine.actions().collect();
//! assert_eq!(actions, [MirrorAction::Send { donor: 1, request: 1, body: DonorRequest::ReadMetadata }]);
//! # Ok::<(), nectary_ram::mirror::AttachRefusal>(())
//! ```
//!
//! # Invariants
//! 1. A write is acknowledged only when every donor with a trusted copy of its blocks has stored it.
//! 2. A donor stops being trusted only when all other trusted donors have stored a view without it; only after that are
//!    writes acknowledged that it lacks.
//! 3. A copy is changed only while its stripe is marked on every donor with a trusted copy; a mark is removed only when
//!    the copies are equal.
//! 4. For each block only one change is sent at a time, and no read during that. A change that a donor may have
//!    received is sent again on each new connection until every trusted copy has it, even after the user was told that
//!    it failed.
//! 5. A new connection becomes the owner of a donor before anything is sent on it, so no late request of an older
//!    connection takes effect. A new client becomes the owner of every donor that it trusts, with a greater generation.
//! 6. A read is answered only if no other client can have begun to change the device: two donors (or one, if the other
//!    is left) have confirmed this within `lease_us`. A client that could not fence a donor waits twice that time
//!    before it begins.
//! 7. At most one donor is not trusted. If a second donor is lost, the blocks that only it had are lost.
//!
//! # What a donor is
//! | standing | reads | writes | in the view | it ends when |
//! |---|---|---|---|---|
//! | trusted | yes | needed | present | it is late, failing or empty: leaving |
//! | leaving | no | needed | left | the others have stored that it is left: out |
//! | out | no | no | left | it returns, and has nothing of others: rebuilding |
//! | rebuilding | stripes that were copied | stripes that were copied | rebuilding | all stripes are copied: trusted;
//! it is late: out |
//! | lost | no | no | present | never: another donor is out, so this one had the last copy of some blocks |
//!
//! *Cost*: a read is one request, a write is two; two small requests more if the stripe was not marked.

mod absence;
mod attach;
#[cfg(test)]
#[path = "machine/attaching.rs"]
mod attaching;
#[cfg(test)]
#[path = "machine/bench.rs"]
mod bench;
mod changes;
mod checksums;
mod configuration;
mod copies;
#[cfg(test)]
#[path = "machine/damage.rs"]
mod damage;
mod dirty;
#[cfg(test)]
#[path = "machine/donor_in_memory.rs"]
mod donor_in_memory;
mod error;
mod event;
mod figures;
#[cfg(test)]
#[path = "machine/late.rs"]
mod late;
mod layout;
mod link;
pub(crate) mod locks;
mod machine;
mod membership;
mod merge;
#[cfg(test)]
#[path = "machine/moves.rs"]
mod moves;
mod operation;
mod outside;
pub(crate) mod parity;
mod reads;
mod scrub;

pub use configuration::{
    CLAIM_ROUNDS_MAX, COPIES_MAX, MachineIntent, MachineTimes, MirrorConfiguration, OPERATIONS_MAX, REPAIRS_MAX,
    REQUEST_BYTES_MAX, TROUBLES_MAX,
};
pub use error::{AttachRefusal, MirrorError};
pub use event::{Donor, DonorReply, DonorRequest, MirrorAction, MirrorEvent, MirrorRequest, Moment, RequestId};
pub use figures::MirrorFigures;
pub use layout::{MirrorRing, StripeCopy, StripeLayout};
pub use link::LinkState;
pub use machine::{MirrorMachine, MirrorPhase};
pub use membership::DonorStanding;
pub use merge::{DonorContent, MergedView, merge};
pub(crate) use outside::BaseRequestOutcome;
pub use parity::lost::{is_lost, lost_bytes};
pub use parity::rows::ParityLayout;

#[cfg(test)]
#[path = "machine/returning.rs"]
mod returning;
#[cfg(test)]
#[path = "machine/tests.rs"]
mod tests;
