//! All messages between a mount and the server.

use super::{
    FileId, FileShape, InodeAttributes, ListedName, MetadataOperation, MetadataQuestion, ServerAnswer, ServerRefusal,
};

/// The aspect of an object that a token protects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TokenAspect {
    /// The existence of an inode that a session has open.
    Pin = 1,
    /// Mode, owner, link count, extended attributes.
    Attributes,
    /// The times of the file.
    Times,
    /// The end of the file.
    Size,
    /// The bytes of the file.
    Data,
    /// The extents of the file.
    Map,
    /// The names in a directory, and the knowledge that a name does not exist.
    Directory,
    /// The locks of the file.
    Locks,
}

impl TokenAspect {
    /// All aspects.
    pub const ALL: [TokenAspect; 8] = [
        TokenAspect::Pin,
        TokenAspect::Attributes,
        TokenAspect::Times,
        TokenAspect::Size,
        TokenAspect::Data,
        TokenAspect::Map,
        TokenAspect::Directory,
        TokenAspect::Locks,
    ];
}

/// A token: the right to cache or change one aspect of an object. In version 1 a token covers the whole file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    /// The object.
    pub object: FileId,
    /// The protected aspect.
    pub what: TokenAspect,
}

/// A token that a session holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenGrant {
    /// The token.
    pub token: Token,
    /// The level, from 1, as listed in `docs/formats/volume-protocol.md`.
    pub level: u8,
    /// The number of the grant.
    pub sequence: u64,
}

/// A file lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileLockRange {
    /// The locked file.
    pub file: FileId,
    /// The lock's owner within the session.
    pub owner: u64,
    /// The process that holds the lock, for `F_GETLK`.
    pub process: u32,
    /// Whether the lock is an `flock`; these do not conflict with `fcntl` locks.
    pub is_flock: bool,
    /// Whether the lock excludes all others.
    pub is_exclusive: bool,
    /// The first locked byte. *Units*: bytes.
    pub start: u64,
    /// The last locked byte. *Units*: bytes.
    pub last: u64,
}

/// The greeting of a client at the start of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HelloMessage {
    /// The role of the connection: 1 control, 2 bulk.
    pub role: u8,
    /// The volume's identity.
    pub volume: [u8; 16],
    /// The name of the host, for messages to people.
    pub host: String,
    /// The session to resume; 0: begin a new one.
    pub session: u64,
    /// The random number of the mount.
    pub incarnation: [u8; 16],
    /// The kind of client: 1 a mount of the kernel, 2 a library.
    pub kind: u8,
    /// A hash of the machine's identity.
    pub machine: u64,
    /// A hash of the machine's boot identifier.
    pub boot: u64,
    /// The number of the connection within this incarnation: a connection replaces those of the same role with lower
    /// numbers.
    pub connection: u64,
}

/// The maximum numbers of directories, and of attributes, in a [`MayKeep`].
pub const MAY_KEEP_MAX: usize = 8;

/// What a session may keep of what its operation has changed or made, until it is recalled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MayKeep {
    /// The directories whose names it may keep.
    pub directories: Vec<FileId>,
    /// The attributes that it may keep, as they are after the operation.
    pub attributes: Vec<InodeAttributes>,
}

/// How an operation may be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerTerms {
    /// When it is durable.
    Durable,
    /// Also before.
    Early,
    /// It succeeded at another server, and was answered before it was durable: it is done again.
    Repeated {
        /// When it was done. *Units*: nanoseconds since 1970.
        now_ns: i64,
    },
    /// The client has answered it itself, under a directory's token at level *write*.
    Local {
        /// When it was done. *Units*: nanoseconds since 1970.
        now_ns: i64,
    },
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeMessage {
    /// The first message of a connection.
    Hello(HelloMessage),
    /// The greeting, or the answer to one, of a program that supports only other versions; the rest of the message is
    /// unknown.
    OtherVersion {
        /// The oldest version that the program supports.
        least: u16,
        /// The newest version that the program supports.
        most: u16,
    },
    /// The answer to a greeting.
    Welcome {
        /// The session.
        session: u64,
        /// The length of the session's lease.
        lease_ms: u32,
        /// The server's clock. *Units*: nanoseconds since 1970.
        server_ns: u64,
    },
    /// A request to renew the lease.
    Renew {
        /// The session.
        session: u64,
        /// The client's clock when the request is sent. *Units*: nanoseconds.
        sent_ns: u64,
        /// Replies up to this number need not be kept.
        acknowledged: u64,
        /// None of the session's cached maps has extents that appends up to this one freed.
        drained: u64,
    },
    /// The answer: the lease is renewed, counted from the time at which the request was sent.
    Renewed {
        /// The time that the request contained. *Units*: nanoseconds.
        sent_ns: u64,
        /// The length of the lease.
        lease_ms: u32,
        /// The server's clock. *Units*: nanoseconds since 1970.
        server_ns: u64,
        /// A map that the client requests after this message has no block that appends up to this one freed.
        sequence: u64,
        /// The session's operations up to this number are durable.
        stored: u64,
    },
    /// After a server was replaced, names the tokens that a session still holds.
    Reclaim {
        /// The session.
        session: u64,
        /// The tokens.
        held: Vec<TokenGrant>,
        /// Whether this is the last part.
        is_last: bool,
    },
    /// The session ends: everything is written, returned and drained.
    Goodbye {
        /// The session.
        session: u64,
    },
    /// The session is over.
    Evicted {
        /// The session.
        session: u64,
        /// The reason, for people.
        words: String,
    },
    /// An operation: a request to change something.
    Operation {
        /// The session.
        session: u64,
        /// The number of the operation in its session, from 1.
        number: u64,
        /// How it may be answered.
        terms: AnswerTerms,
        /// The operation.
        operation: MetadataOperation,
    },
    /// A question: a request that changes nothing, except that it may grant space.
    Question {
        /// The session.
        session: u64,
        /// The question.
        question: MetadataQuestion,
    },
    /// The result of an operation, a question, or a goodbye.
    Answer(ServerAnswer),
    /// The refusal of a request.
    Failure(ServerRefusal),
    /// A request for a token.
    Acquire {
        /// The token.
        token: Token,
        /// The wanted level.
        level: u8,
        /// Whether the request waits until the token can be granted.
        waits: bool,
    },
    /// A token is granted: the answer to an `Acquire`, an `Open`, or a `Create` that opens.
    Grant {
        /// The token.
        held: TokenGrant,
        /// The token is not recalled before this time has passed. *Units*: milliseconds.
        minimum_ms: u32,
        /// Whether other hosts read the file with `O_DIRECT`, so that a new end must be pushed to them.
        is_watched: bool,
        /// For a data token: the file's attributes and first extents at the time of the grant.
        shape: Option<FileShape>,
    },
    /// Names of a directory, in the order of their cookies, which the session may keep.
    Listed {
        /// The number of the grant of the directory's names; 0: the session must not keep them.
        grant: u64,
        /// The names.
        names: Vec<ListedName>,
        /// For each name, whether the session may keep the attributes.
        are_kept: Vec<bool>,
        /// Whether these are the last names.
        is_end: bool,
    },
    /// Another session needs the token, so the holder must return or lower it.
    Recall {
        /// The token, the level that is wanted of it, and the number of its grant.
        held: TokenGrant,
        /// The reason: 1 a conflict; 2 written data must be committed, and the token is kept; 3 space is short.
        why: u8,
    },
    /// A name changes in a directory whose names the session keeps: it must drop this one.
    NameChange {
        /// The directory.
        directory: FileId,
        /// The number that the answer repeats.
        number: u64,
        /// The name.
        name: Vec<u8>,
    },
    /// The session has dropped the name.
    NameDropped {
        /// The number of the request.
        number: u64,
    },
    /// Returns a token, or lowers it to the level in `held`; level 0 returns it completely.
    Return {
        /// The token, the level that is kept, and the number of its grant.
        held: TokenGrant,
        /// Whether some data could not be written.
        is_lost: bool,
    },
    /// The server tells a client that a file has at least this size; the client then tells its kernel.
    Push {
        /// The file.
        file: FileId,
        /// The size of the file. *Units*: bytes.
        size: u64,
        /// The number of the push; the answer repeats it.
        number: u64,
    },
    /// The answer to a push: the kernel knows the size.
    Pushed {
        /// The number of the push.
        number: u64,
    },
    /// A request for a file lock.
    Lock {
        /// The lock.
        lock: FileLockRange,
        /// Whether the request waits until the lock can be granted.
        waits: bool,
    },
    /// Releases a lock.
    Unlock {
        /// The lock.
        lock: FileLockRange,
    },
    /// Cancels a request that waits for a lock.
    CancelLock {
        /// The number of that request.
        request: u64,
    },
    /// Requests the lock that conflicts with this one. The answer is [`VolumeMessage::LockFound`].
    TestLock {
        /// The lock.
        lock: FileLockRange,
    },
    /// The answer to a `Lookup` or `GetAttributes` that the session may keep until it is recalled.
    Looked {
        /// The number of the grant of the directory's names; 0: none.
        names: u64,
        /// The number of the grant of the attributes; 0: none.
        attributes: u64,
        /// The attributes; `None`: there is no such name.
        found: Option<InodeAttributes>,
    },
    /// Precedes the answer to an operation that is not durable yet.
    Early {
        /// When the operation was done. *Units*: nanoseconds since 1970.
        now_ns: i64,
        /// The session's operations up to this number are durable.
        stored: u64,
    },
    /// Precedes the answer to an operation that succeeded.
    MayKeep(MayKeep),
    /// The answer to `TestLock`.
    LockFound {
        /// The conflicting lock, if there is one.
        lock: Option<FileLockRange>,
    },
}
