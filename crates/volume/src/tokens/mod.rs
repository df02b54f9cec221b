//! Tokens: who may cache a file's data, and who may change it; and file locks.
//!
//! Owns: both sides as plain state machines, without clocks, sockets or tasks. Promises: two sessions never hold
//! conflicting levels; messages that cross, arrive twice or are lost with a connection do no harm; waiters are served
//! in order. Leaves to others: what is done before a token is given back (`client`), how messages travel.
//!
//! | file | what is in it |
//! |---|---|
//! | `arbiter` | the server's side: holders, waiters, recalls, questions that wait for a commit |
//! | `holding` | a client's side of one token |
//! | `lease` | until when a client may do what, and when a session is ended |
//! | `locks` | file locks |

mod arbiter;
mod holding;
mod lease;
mod locks;
#[cfg(test)]
mod tests;

pub use arbiter::{Action, Arbiter, MINIMUM_MS};
pub use holding::{Heard, Holding, Recalled};
pub use lease::{CACHE_OF_LEASE, GIVE_BACK_MAX_MS, IO_OF_LEASE, Late, Lease, Silence, verdict};
pub use locks::{Locks, Outcome, Ranges};

/// Levels of a data token, as the protocol has them.
pub mod level {
    /// Nothing.
    pub const NONE: u8 = 0;
    /// Committed data may be read and cached.
    pub const READ: u8 = 1;
    /// Data may be changed, and committed later.
    pub const WRITE: u8 = 3;
}

/// Why a token is recalled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// Another session needs a conflicting level.
    Conflict = 1,
    /// Another session looks at the file: what was written must be committed, the level stays.
    Commit = 2,
}

/// Whether two sessions cannot hold these levels at a time.
fn conflict(one: u8, other: u8) -> bool {
    one != level::NONE && other != level::NONE && (one == level::WRITE || other == level::WRITE)
}
