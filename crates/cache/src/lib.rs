//! Replacement policies: one implementation for the live caches and the simulator.
//!
//! Owns: the [`Policy`] trait and the policies, one file each. Leaves to others: what is cached (an id and a weight is
//! all a policy knows), locks and I/O.
//!
//! ```
//! use nectary_cache::{Access, Policy, S3Fifo, Stream};
//!
//! let mut policy = S3Fifo::new(3);
//! let mut victims = Vec::new();
//! for id in [1, 2, 3, 4] {
//!     let access = policy.reference(id, 1, Stream::default(), &mut |victim| {
//!         victims.push(victim);
//!         true
//!     });
//!     assert_eq!(access, Access::Inserted);
//! }
//! assert_eq!(victims, [1]);
//! assert_eq!(policy.used(), 3);
//! ```
#![deny(unsafe_code)]

mod adaptive;
mod arc;
mod arena;
mod clock;
pub mod dear;
pub mod detect;
mod eviction;
mod fifo;
mod gdsf;
mod heap;
mod lfu;
mod lirs;
mod lru;
mod memory;
mod min;
mod mru;
mod ordered;
mod policy;
mod queues;
mod registry;
mod s3fifo;
mod sieve;
mod sketch;
mod table;
mod timeline;
mod two_q;
mod w_tinylfu;

pub use adaptive::{Adaptive, Event, EventSink, LeaderChange, Ledger, Reason, StreamPeriod, WindowReport};
pub use arc::Arc;
pub use clock::Clock;
pub use dear::Dear;
pub use fifo::Fifo;
pub use gdsf::Gdsf;
pub use lfu::Lfu;
pub use lirs::Lirs;
pub use lru::Lru;
pub use min::{Future, Min};
pub use mru::Mru;
pub use policy::{Access, Policy, REFUSALS_MAX, Stream};
pub use registry::{NAMES, by_name, explaining};
pub use s3fifo::S3Fifo;
pub use sieve::Sieve;
pub use two_q::TwoQ;
pub use w_tinylfu::WTinyLfu;
