//! The client of a network RAM disk that is changed in place, as a state machine without I/O: each block on two donors,
//! or with parity (`parity` says what differs then).
//!
//! Owns: the donors of each block, the order of overlapping operations, marks of stripes whose copies may differ,
//! checksums. Promises: the invariants below. Leaves to others: the donors (`group`), connections, clocks, random numbers
//! (the driver), the donor's side.
//!
//! # Use
//! A driver hands [`InPlaceMachine::step`] each [`MachineEvent`](crate::group::MachineEvent) with the time, executes every
//! action of [`InPlaceMachine::actions`] in order, and calls `step` with `MachineEvent::Time` at
//! [`InPlaceMachine::wake_at`]. The simulator drives the same code.
//!
//! ```
//! use nectary_ram::format::{RecordGeometry, RedundancyCode};
//! use nectary_ram::group::{DonorRequest, MachineAction, MachineEvent, MachineIntent, MachineTimes};
//! use nectary_ram::in_place::{InPlaceConfiguration, InPlaceMachine};
//!
//! let (device, code) = (*b"sixteen of bytes", RedundancyCode::Mirror);
//! let geometry = RecordGeometry { device, bytes: 1 << 30, block_bytes: 4096, stripe_bytes: 1 << 20, members: 2, code };
//! let labels = vec!["host-a".to_owned(), "host-b".to_owned()];
//! let (intent, times) = (MachineIntent::Create, MachineTimes::default());
//! let mut machine = InPlaceMachine::new(InPlaceConfiguration { geometry, labels, client: 0x5eed, intent, times }, 0)?;
//! // The driver has connected to donor 1, and sends what the machine wants.
//! machine.step(1000, MachineEvent::Connected { donor: 1, incarnation: 77 });
//! let actions: Vec<MachineAction> = machine.actions().collect();
//! assert_eq!(actions, [MachineAction::Send { donor: 1, request: 1, body: DonorRequest::ReadMetadata }]);
//! # Ok::<(), nectary_ram::group::AttachRefusal>(())
//! ```
//!
//! # Invariants, besides those of `group`
//! 1. A write is acknowledged only when every donor with a trusted copy of its blocks has stored it. Writes that a donor
//!    lacks are acknowledged only once the group says that it is out.
//! 2. A copy is changed only while its stripe is marked on every donor with a trusted copy; a mark is removed only when
//!    the copies are equal.
//! 3. For each block only one change is sent at a time, and no read during that. A change that a donor may have
//!    received is sent again on each new connection until every trusted copy has it, even after the user was told that
//!    it failed.
//! 4. A read is answered only if no other client can have begun to change the device.
//!
//! *Cost*: a read is one request, a write is two; two small requests more if the stripe was not marked.

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
mod figures;
#[cfg(test)]
#[path = "machine/late.rs"]
mod late;
mod layout;
mod machine;
#[cfg(test)]
#[path = "machine/moves.rs"]
mod moves;
mod operation;
pub(crate) mod parity;
mod reads;
mod scrub;
mod standing;

pub use configuration::InPlaceConfiguration;
pub use figures::InPlaceFigures;
pub use layout::{MirrorRing, StripeCopy, StripeLayout};
pub use machine::{InPlaceMachine, InPlacePhase};
pub use parity::lost::{is_lost, lost_bytes};
pub use parity::rows::ParityLayout;

#[cfg(test)]
#[path = "machine/returning.rs"]
mod returning;
#[cfg(test)]
#[path = "machine/tests.rs"]
mod tests;
