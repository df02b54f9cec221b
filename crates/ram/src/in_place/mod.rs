//! The client of a network RAM disk that is changed in place, as a state machine without I/O: stripes of data members and
//! a parity, which is a copy if there is one data member (a mirror). A device without redundancy has one data member and
//! no parity.
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
//! 5. If no change of a stripe is in progress, the XOR of all its members is zero, donors that are not trusted counting
//!    as what the others yield. So one member of each stripe may be missing.
//! 6. Changes of the same columns wait for each other, even if their blocks differ, because they change the same
//!    parity.
//! 7. The new parity of a row is computed before anything is sent, and is sent together with the data. Whichever donors
//!    are left meanwhile, it stays the right one.
//! 8. A stripe is changed only while both its markers that are not left have stored its mark. So after a crash of the
//!    client, one present donor knows every stripe whose parity may be wrong. If all its donors are there, its parity is
//!    computed again. If one is missing, the only copy of a mirror counts; what a member of parity had cannot be known:
//!    `lost`.
//! 9. Without redundancy there are no marks, 5 and 6 say nothing, and all donors are needed to attach. A donor whose memory
//!    is lost is out at once: its blocks are lost until they are written, and no flush of this client succeeds any more.
//!
//! | file | what is in it |
//! |---|---|
//! | `layout` | which donor has what, and how ranges are cut |
//! | `access` | which copies may be read, and which have to be changed |
//! | `members` | reading the members of a stripe |
//! | `reads`, `changes` | a user's read, and a user's change |
//! | `copies`, `sources` | copies after a crash, to a donor that is filled and over wrong bytes, and what they are computed from |
//! | `scrub` | the comparison of all members |
//! | `lost` | the bytes that stand for a lost block |
//! | `dirty`, `checksums`, `operation` | marks, checksums, operations in progress |
//!
//! *Cost*: a read is one request. A write without redundancy is one, a write to a mirror two. With more data members, a
//! write of less than a row is two reads and two writes for one block, or fewer if the other members are fewer to read; a
//! write of all data members reads nothing. If the stripe was not marked, two small requests more.

mod access;
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
mod lost;
mod machine;
mod members;
#[cfg(test)]
#[path = "machine/moves.rs"]
mod moves;
mod operation;
#[cfg(test)]
#[path = "machine/parity.rs"]
mod parity;
#[cfg(test)]
#[path = "machine/plain.rs"]
mod plain;
mod progress;
mod reads;
mod scrub;
mod sources;

pub use configuration::InPlaceConfiguration;
pub use figures::InPlaceFigures;
pub use layout::RowLayout;
pub use lost::{is_lost, lost_bytes};
pub use machine::{InPlaceMachine, InPlacePhase};

#[cfg(test)]
#[path = "machine/returning.rs"]
mod returning;
#[cfg(test)]
#[path = "machine/tests.rs"]
mod tests;
