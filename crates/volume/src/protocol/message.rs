//! Everything that travels between a mount and the server.

use super::{Answer, Failure, FileId, Operation, Question, Shape};

/// What a token protects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum What {
    /// An inode that is open somewhere.
    Pin = 1,
    /// Mode, owner, links, extended attributes.
    Attributes,
    /// Times.
    Times,
    /// The end of the file.
    Size,
    /// Its bytes.
    Data,
    /// Its extents.
    Map,
    /// Names, also those that are not there.
    Directory,
    /// File locks.
    Locks,
}

impl What {
    /// All of them.
    pub const ALL: [What; 8] =
        [What::Pin, What::Attributes, What::Times, What::Size, What::Data, What::Map, What::Directory, What::Locks];
}

/// A token of an object. Version 1 grants whole files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    /// Of what.
    pub object: FileId,
    /// What it protects.
    pub what: What,
}

/// A token that a session holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Which.
    pub token: Token,
    /// How much it allows: the levels of the page, from 1.
    pub level: u8,
    /// The number of the grant.
    pub sequence: u64,
}

/// A file lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Locked {
    /// Of what.
    pub file: FileId,
    /// Who holds it, within the session.
    pub owner: u64,
    /// The process, for `F_GETLK`.
    pub process: u32,
    /// It is an `flock`, which does not conflict with `fcntl` locks.
    pub is_flock: bool,
    /// It excludes others.
    pub is_exclusive: bool,
    /// *Units*: bytes.
    pub start: u64,
    /// Its last byte. *Units*: bytes.
    pub last: u64,
}

/// Who begins a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// 1 control, 2 bulk.
    pub role: u8,
    /// The volume's identity.
    pub volume: [u8; 16],
    /// For messages to people.
    pub host: String,
    /// 0: a new one is wanted.
    pub session: u64,
    /// Of the mount; random.
    pub incarnation: [u8; 16],
    /// 1 a mount of the kernel, 2 a library.
    pub kind: u8,
    /// A hash of the machine's identity.
    pub machine: u64,
    /// A hash of the machine's boot identifier.
    pub boot: u64,
    /// Counts the connections of this incarnation: one replaces those of its role with lower numbers.
    pub connection: u64,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// The first of a connection.
    Hello(Hello),
    /// A greeting, or the answer to one, of a program that speaks only other versions: nothing else of it is known.
    OtherVersion {
        /// The oldest that it speaks.
        least: u16,
        /// The newest.
        most: u16,
    },
    /// The answer to it.
    Welcome {
        /// The session.
        session: u64,
        /// The length of its lease.
        lease_ms: u32,
        /// The server's clock. *Units*: nanoseconds since 1970.
        server_ns: u64,
    },
    /// A request to renew the lease.
    Renew {
        /// Whose.
        session: u64,
        /// The client's clock.
        sent_ns: u64,
        /// Replies up to this number need not be kept.
        acknowledged: u64,
        /// No cached map has extents that appends up to this one freed.
        drained: u64,
    },
    /// The lease is renewed, counted from when the renewal was sent.
    Renewed {
        /// As it was in the renewal.
        sent_ns: u64,
        /// The length of the lease.
        lease_ms: u32,
        /// The server's clock. *Units*: nanoseconds since 1970.
        server_ns: u64,
        /// A client that asks for maps after this message gets no block that appends up to this one freed.
        sequence: u64,
    },
    /// Tokens that are held still, after a server was replaced.
    Reclaim {
        /// Whose.
        session: u64,
        /// The tokens.
        held: Vec<Held>,
        /// There are no more.
        is_last: bool,
    },
    /// Everything is written, returned and drained.
    Goodbye {
        /// Whose.
        session: u64,
    },
    /// The session is over.
    Evicted {
        /// Which.
        session: u64,
        /// Why, for people.
        words: String,
    },
    /// Something is to be changed.
    Operation {
        /// Whose.
        session: u64,
        /// Counts the operations of the session from 1.
        number: u64,
        /// What.
        operation: Operation,
    },
    /// Something is asked.
    Question {
        /// Whose.
        session: u64,
        /// What.
        question: Question,
    },
    /// The result of an operation, a question, or a goodbye.
    Answer(Answer),
    /// It was refused.
    Failure(Failure),
    /// A token is wanted.
    Acquire {
        /// Which.
        token: Token,
        /// How much of it.
        level: u8,
        /// The request waits until it can be granted.
        waits: bool,
    },
    /// A token is granted; it answers an `Acquire`, an `Open`, or a `Create` that opens.
    Grant {
        /// The token.
        held: Held,
        /// It is not recalled before.
        minimum_ms: u32,
        /// Other hosts read the file with `O_DIRECT`: a new end is pushed to them.
        is_watched: bool,
        /// What the file is, as of the grant: of a data token.
        shape: Option<Shape>,
    },
    /// Another session needs the token.
    Recall {
        /// Which, and which grant.
        held: Held,
        /// 1 a conflict, 2 what was written is to be committed and the token kept, 3 space is short.
        why: u8,
    },
    /// A token is given back, or lowered to the level in `held`; 0 is nothing.
    Return {
        /// Which, and which grant.
        held: Held,
        /// Data could not be written.
        is_lost: bool,
    },
    /// The kernel is to know that a file has at least this size.
    Push {
        /// Which.
        file: FileId,
        /// *Units*: bytes.
        size: u64,
        /// The answer names it.
        number: u64,
    },
    /// It does.
    Pushed {
        /// Of the push.
        number: u64,
    },
    /// A lock is wanted.
    Lock {
        /// Which.
        lock: Locked,
        /// The request waits until it can be granted.
        waits: bool,
    },
    /// A lock is given up.
    Unlock {
        /// Which.
        lock: Locked,
    },
    /// A request that waits for a lock is given up.
    CancelLock {
        /// Its request.
        request: u64,
    },
    /// Which lock is in the way: [`Message::LockFound`].
    TestLock {
        /// Which.
        lock: Locked,
    },
    /// The answer.
    LockFound {
        /// What is in the way.
        lock: Option<Locked>,
    },
}
