//! The requests to the owner of the metadata, and the owner's answers that wait until everything they show is durable.
//!
//! Owns: the types of requests, the server's clock, and the figures of a status. Leaves to others: doing the requests
//! (`owner`).
//!
//! *Circle*: requests contain the replies of `connection`, which sends requests.

use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::connection::{Frames, ReplySender};
use super::locking::LockRequest;
use super::long_waits::ServerWaits;
use crate::format::SessionRecord;
use crate::protocol::{
    AnswerTerms, MetadataOperation, MetadataQuestion, RefusalCode, ServerAnswer, ServerRefusal, Token,
    TokenGrant as Granted, VolumeMessage,
};
use crate::tokens::{LocalCounts, TokenCounts};

/// The maximum number of requests that wait for the owner.
pub(super) const REQUESTS_MAX: usize = 4096;

/// A request to the owner.
pub(super) enum OwnerRequest {
    /// An operation of a session.
    Operate { session: u64, number: u64, terms: AnswerTerms, operation: MetadataOperation, reply: ReplySender },
    /// A question of a session.
    Ask { session: u64, question: MetadataQuestion, reply: ReplySender },
    /// Begins a session; the answer is its number.
    Begin { session: SessionRecord, connection: u64, reply: Number },
    /// A known session opens a connection; `link` is the connection's role and number.
    Resume { session: u64, incarnation: [u8; 16], link: (u8, u64), reply: Number },
    /// Names the tokens that a session held before the server started; after the last part, the session has opened all
    /// its files again.
    Reclaim { session: u64, held: Vec<Granted>, is_last: bool, reply: ReplySender },
    /// Acknowledges replies up to `acknowledged`, and says that no cached map has extents freed by appends up to
    /// `drained`.
    Acknowledge { session: u64, acknowledged: u64, drained: u64, is_answered: bool },
    /// A session requests a token.
    Acquire { session: u64, wanted: (Token, u8, bool), reply: ReplySender },
    /// A session requests, releases, tests or cancels a file lock.
    Wish { session: u64, wish: LockRequest, reply: ReplySender },
    /// A session returned a token, or committed.
    Return { session: u64, held: Granted },
    /// A session returned a directory at level *write*, after all that it has done there itself.
    ReturnInOrder { session: u64, held: Granted, reply: ReplySender },
    /// A session has dropped a name that changes.
    NameDropped { session: u64, number: u64 },
    /// A session's kernel knows an end of file that was pushed to it.
    Pushed { session: u64, number: u64 },
    /// A session has opened a control connection: its number, and the queue of frames that are sent on it.
    Controlled { session: u64, connection: u64, frames: Frames },
    /// The connection of a session, with this role and number, has ended.
    Left { session: u64, role: u8, connection: u64 },
    /// A session ends by itself, after it returned everything.
    Goodbye { session: u64, reply: ReplySender },
    /// An operator confirms that a session's host writes nothing any more.
    Release { session: u64, reply: Number },
}

impl OwnerRequest {
    /// Returns the session of a call, and the number of the connection that the call came on.
    pub fn caller(&self) -> Option<(u64, u64)> {
        match self {
            OwnerRequest::Operate { session, reply, .. }
            | OwnerRequest::Ask { session, reply, .. }
            | OwnerRequest::Reclaim { session, reply, .. }
            | OwnerRequest::Acquire { session, reply, .. }
            | OwnerRequest::Wish { session, reply, .. }
            | OwnerRequest::ReturnInOrder { session, reply, .. }
            | OwnerRequest::Goodbye { session, reply } => Some((*session, reply.connection())),
            _ => None,
        }
    }
}

/// A reply channel for a number.
pub(super) type Number = oneshot::Sender<Result<u64, ServerRefusal>>;

/// An answer that waits until everything it shows is durable.
pub(super) enum HeldAnswer {
    Call(ReplySender, Result<ServerAnswer, ServerRefusal>),
    Grant(ReplySender, Box<VolumeMessage>),
    Number(Number, Result<u64, ServerRefusal>),
}

impl HeldAnswer {
    /// Returns the reply to a session's request.
    pub fn reply(&self) -> Option<&ReplySender> {
        match self {
            HeldAnswer::Call(reply, _) | HeldAnswer::Grant(reply, _) => Some(reply),
            HeldAnswer::Number(..) => None,
        }
    }

    /// Gives the answer.
    pub fn release(self) {
        // A failure is ignored: the client may be gone.
        match self {
            HeldAnswer::Call(reply, answer) => reply.send(answer),
            HeldAnswer::Grant(reply, message) => reply.say(&message),
            HeldAnswer::Number(reply, answer) => drop(reply.send(answer)),
        }
    }
}

/// The state of a server, for its status.
#[derive(Debug, Clone, Default)]
pub struct ServerOverview {
    /// The epoch that this server leads.
    pub epoch: u64,
    /// The sessions, with their stored records.
    pub sessions: Vec<(u64, SessionRecord)>,
    /// The number of operations done.
    pub operations: u64,
    /// The number of questions answered.
    pub questions: u64,
    /// The number of appends to the journal.
    pub appends: u64,
    /// The number of checkpoints.
    pub checkpoints: u64,
    /// Blocks of the disk. *Units*: blocks.
    pub blocks: u64,
    /// Free blocks. *Units*: blocks.
    pub free: u64,
    /// Free blocks that are kept for metadata. *Units*: blocks.
    pub reserved: u64,
    /// Space that stays quarantined until an operator confirms that the hosts of earlier servers are gone. *Units*:
    /// blocks.
    pub quarantined: u64,
    /// Whether a checkpoint waits for room.
    pub is_short: bool,
    /// The number of inodes in use.
    pub inodes: u64,
    /// Sessions that do not renew their leases, and their hosts.
    pub silent: Vec<(u64, String)>,
    /// Sessions that were ended for the sake of others and may still write to their space, and their hosts.
    pub set_aside: Vec<(u64, String)>,
    /// The numbers of tokens, and of names and attributes that sessions keep.
    pub tokens: TokenCounts,
    /// The numbers of file locks held, and of requests that wait for one.
    pub locks: (usize, usize),
    /// The number of sessions that have not yet said, after a restart, what they hold.
    pub expected: usize,
    /// What happened to directories in which sessions make and remove names themselves, and how many sessions hold.
    pub locals: (LocalCounts, usize),
    /// What has waited for long.
    pub waits: ServerWaits,
    /// When this was made; it is made several times a second.
    pub made_at: Option<Instant>,
}

/// Reads the server's clock. *Units*: nanoseconds since 1970.
pub(super) fn wall_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// The failure of a request to release a session that is still in use.
pub(super) fn active(session: u64, host: &str) -> ServerRefusal {
    let words = format!("session {session} of host {host} is in use: its mount runs, or ran a moment ago");
    ServerRefusal { code: RefusalCode::Conflict, errno: libc::EBUSY, words }
}

/// The failure of a connection whose greeting arrives after that of a later connection.
pub(super) fn replaced(session: u64) -> ServerRefusal {
    let words = format!("session {session} has a later connection than this one");
    ServerRefusal { code: RefusalCode::Conflict, errno: libc::EAGAIN, words }
}
