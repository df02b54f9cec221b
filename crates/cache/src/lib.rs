//! Replacement policies: one implementation of each, for both the live caches and the simulator.
//!
//! Owns: the [`Policy`] trait, the policies (`policies/`, one file or folder each), their parts (`structures/`), and
//! the observation of streams (`detect/`) and of policies (`watch/`). Leaves to others: the cached bytes (a policy
//! knows only ids and weights), locks and I/O.
//!
//! ```
//! use nectary_cache::{AccessResult, Policy, S3Fifo, StreamId};
//!
//! let mut policy = S3Fifo::new(3);
//! let mut victims = Vec::new();
//! for id in [1, 2, 3, 4] {
//!     let access = policy.reference(id, 1, StreamId::default(), &mut |victim| {
//!         victims.push(victim);
//!         true
//!     });
//!     assert_eq!(access, AccessResult::Inserted);
//! }
//! assert_eq!(victims, [1]);
//! assert_eq!(policy.used(), 3);
//! ```
#![deny(unsafe_code)]

mod charge;
pub mod detect;
mod eviction;
mod policies;
mod policy;
mod registry;
mod structures;
mod watch;

pub use charge::table_bytes;
pub use policies::adaptive::{Adaptive, AdaptiveTuning};
pub use policies::arc::ArcPolicy;
pub use policies::clock::Clock;
pub use policies::dear::{self, Dear};
pub use policies::fifo::Fifo;
pub use policies::gdsf::Gdsf;
pub use policies::lfu::Lfu;
pub use policies::lhd::Lhd;
pub use policies::lirs::Lirs;
pub use policies::lru::Lru;
pub use policies::min::{Min, NextReferences};
pub use policies::mru::Mru;
pub use policies::s3fifo::S3Fifo;
pub use policies::sieve::Sieve;
pub use policies::two_q::TwoQ;
pub use policies::w_tinylfu::WTinyLfu;
pub use policy::{AccessResult, LeaderChange, LeaderReason, Policy, REFUSALS_MAX, StreamId};
pub use registry::{NAMES, by_name, explaining};
pub use watch::{EventSink, PolicyEvent, StreamLedger, StreamPeriod, WatchedPolicy, WindowReport, lru_capacity};
