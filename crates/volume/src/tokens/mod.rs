//! Tokens, which say who may cache a file's data and who may change it; and file locks.
//!
//! Owns: both sides as plain state machines, without clocks, sockets or tasks. Promises: two sessions never hold
//! conflicting levels; messages that cross, arrive twice or are lost with a connection cause no error; waiters are
//! served in order. Leaves to others: the work before a token is given back (`client`), and the transport of messages.
//!
//! | file | what is in it |
//! |---|---|
//! | `arbiter` | the server's side: holders, waiters, recalls, questions that wait for a commit |
//! | `holding` | a client's side of one token |
//! | `lease` | the times until which a client may act, and when a session is ended |
//! | `locks` | file locks |
//! | `locals` | the server's side of directories in which sessions make and remove names themselves |
//! | `looks` | the server's side of names and attributes that sessions keep |

mod arbiter;
mod holding;
mod locals;
mod locks;
mod looks;
mod session_lease;
#[cfg(test)]
mod tests;

pub use arbiter::{MINIMUM_MS, TokenAction, TokenArbiter};
pub use holding::{RecallOutcome, Recalled, TokenHolding};
pub use locals::{LocalCounts, LocalDirectories, WRITE};
pub use locks::{LockOutcome, LockedRanges, VolumeLocks};
pub use looks::{LOOKS_MAX, LookupChange, LookupGrants};
pub use session_lease::{
    CACHE_OF_LEASE, ClientLease, GIVE_BACK_MAX_MS, IO_OF_LEASE, SessionSilence, SessionVerdict, verdict,
};

/// The levels of a data token, as the protocol defines them.
pub mod level {
    /// The session holds nothing.
    pub const NONE: u8 = 0;
    /// Committed data may be read and cached.
    pub const READ: u8 = 1;
    /// Data may be changed, and committed later.
    pub const WRITE: u8 = 3;
}

/// The numbers of tokens, and of names and attributes that sessions keep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenCounts {
    /// The number of tokens held.
    pub held: usize,
    /// The number of calls that wait for a token.
    pub waiting: usize,
    /// The number of names of directories and attributes that sessions keep.
    pub kept: usize,
    /// How often sessions were told to keep such names or attributes no more, since the start.
    pub recalls: u64,
}

/// Why a token is recalled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecallReason {
    /// Another session needs a conflicting level.
    Conflict = 1,
    /// Another session looks at the file: written data must be committed, and the level stays.
    Commit = 2,
}

/// Whether two sessions cannot hold these levels at the same time.
fn conflict(one: u8, other: u8) -> bool {
    one != level::NONE && other != level::NONE && (one == level::WRITE || other == level::WRITE)
}
