//! What the owner of the metadata is asked, and its answers while they wait.
//!
//! Owns: the requests, the server's clock, and what a status shows. Leaves to others: doing them (`owner`).
//!
//! *Circle*: requests have the replies of `connection`, which sends requests.

use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::oneshot;

use super::connection::{Frames, Reply};
use super::locking::Wish;
use crate::format::Session;
use crate::protocol::{Answer, Code, Failure, Held as Granted, Message, Operation, Question, Token};

/// Requests that wait for the owner.
pub(super) const REQUESTS_MAX: usize = 4096;

/// What the owner is asked to do.
pub(super) enum Request {
    /// An operation of a session.
    Operate { session: u64, number: u64, operation: Operation, reply: Reply },
    /// A question of a session.
    Ask { session: u64, question: Question, reply: Reply },
    /// A session begins: its number.
    Begin { session: Session, connection: u64, reply: Number },
    /// A session is there again: with a connection of this role and number.
    Resume { session: u64, incarnation: [u8; 16], link: (u8, u64), reply: Number },
    /// A session says which tokens it held before the server started; with the last part it has opened everything
    /// that it had open.
    Reclaim { session: u64, held: Vec<Granted>, is_last: bool, reply: Reply },
    /// Replies up to this number are not needed, and freed extents of appends up to this one are in no cached map.
    Acknowledge { session: u64, acknowledged: u64, drained: u64, is_answered: bool },
    /// A session wants a token.
    Acquire { session: u64, wanted: (Token, u8, bool), reply: Reply },
    /// A session wants something of a file lock.
    Wish { session: u64, wish: Wish, reply: Reply },
    /// A session gave a token back, or committed.
    Return { session: u64, held: Granted },
    /// A session's kernel knows an end that it was told.
    Pushed { session: u64, number: u64 },
    /// A session has a control connection, of this number.
    Controlled { session: u64, connection: u64, frames: Frames },
    /// A session ended by itself: everything is returned.
    Goodbye { session: u64, reply: Reply },
    /// An operator says that a session's host writes nothing any more.
    Release { session: u64, reply: Number },
}

impl Request {
    /// Whose call this is, and the number of the connection that it came on.
    pub fn caller(&self) -> Option<(u64, u64)> {
        match self {
            Request::Operate { session, reply, .. }
            | Request::Ask { session, reply, .. }
            | Request::Reclaim { session, reply, .. }
            | Request::Acquire { session, reply, .. }
            | Request::Wish { session, reply, .. }
            | Request::Goodbye { session, reply } => Some((*session, reply.connection())),
            _ => None,
        }
    }
}

/// An answer with a number.
pub(super) type Number = oneshot::Sender<Result<u64, Failure>>;

/// An answer that waits until it may be given.
pub(super) enum Held {
    Call(Reply, Result<Answer, Failure>),
    Grant(Reply, Box<Message>),
    Number(Number, Result<u64, Failure>),
}

impl Held {
    /// Gives it.
    pub fn release(self) {
        // The client may be gone.
        match self {
            Held::Call(reply, answer) => reply.send(answer),
            Held::Grant(reply, message) => reply.say(&message),
            Held::Number(reply, answer) => drop(reply.send(answer)),
        }
    }
}

/// What a server has, for its status.
#[derive(Debug, Clone, Default)]
pub struct Overview {
    /// The epoch of this leadership.
    pub epoch: u64,
    /// Sessions, with what is stored of them.
    pub sessions: Vec<(u64, Session)>,
    /// Operations that were done.
    pub operations: u64,
    /// Questions that were answered.
    pub questions: u64,
    /// Appends of the journal.
    pub appends: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// *Units*: blocks.
    pub blocks: u64,
    /// *Units*: blocks.
    pub free: u64,
    /// Those of them that are kept for metadata. *Units*: blocks.
    pub reserved: u64,
    /// What is kept because nobody said that the hosts of earlier servers are gone. *Units*: blocks.
    pub quarantined: u64,
    /// Whether a checkpoint waits for room.
    pub is_short: bool,
    /// In use.
    pub inodes: u64,
    /// Sessions that do not renew their leases, and their hosts.
    pub silent: Vec<(u64, String)>,
    /// Tokens that are held, and calls that wait for one.
    pub tokens: (usize, usize),
    /// File locks that are held, and requests that wait for one.
    pub locks: (usize, usize),
    /// Sessions that have not said yet, after a restart, what they hold.
    pub expected: usize,
}

/// The server's clock. *Units*: nanoseconds since 1970.
pub(super) fn wall_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// A session that is in use is not released.
pub(super) fn active(session: u64) -> Failure {
    let words = format!("session {session} renews its lease, or did so a moment ago: it is in use");
    Failure { code: Code::Conflict, errno: libc::EBUSY, words }
}

/// A connection that was heard of late does not count.
pub(super) fn replaced(session: u64) -> Failure {
    let words = format!("session {session} has a later connection than this one");
    Failure { code: Code::Conflict, errno: libc::EAGAIN, words }
}
