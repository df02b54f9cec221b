//! Questions of a session: requests that change no stored record, except grants of space.

use super::FileId;

/// A session of the same origin as the session that asks: both processes run on one kernel, and use the same inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SiblingSession {
    /// The number of the session.
    pub session: u64,
    /// The random number of its mount.
    pub incarnation: [u8; 16],
}

/// A question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetadataQuestion {
    /// Finds a name in a directory; `..` is also a name. The answer is
    /// [`ServerAnswer::InodeAttributes`](super::ServerAnswer::InodeAttributes) of its inode.
    Lookup {
        /// The directory.
        directory: FileId,
        /// The name.
        name: Vec<u8>,
    },
    /// Requests the attributes of an inode. Generation 0 matches any generation. The answer is
    /// [`ServerAnswer::InodeAttributes`](super::ServerAnswer::InodeAttributes).
    GetAttributes {
        /// The inode.
        file: FileId,
    },
    /// Requests the names of a directory behind a cookie. The answer is [`ServerAnswer::Listing`](super::ServerAnswer::Listing).
    ReadDirectory {
        /// The directory.
        directory: FileId,
        /// The cookie of the last name that the reader has; 0: from the start.
        cookie: u64,
        /// The maximum number of names to return.
        entries: u32,
    },
    /// Requests the extents of a part of a file. The answer is [`ServerAnswer::Map`](super::ServerAnswer::Map).
    ReadMap {
        /// The file.
        file: FileId,
        /// The first block. *Units*: blocks of the file.
        start: u64,
        /// The block behind the last one. *Units*: blocks of the file.
        end: u64,
    },
    /// Requests the value of an extended attribute. The answer is [`ServerAnswer::Bytes`](super::ServerAnswer::Bytes).
    ReadXattr {
        /// The inode.
        file: FileId,
        /// The name.
        name: Vec<u8>,
    },
    /// Requests the names of all extended attributes. The answer is [`ServerAnswer::ShownNames`](super::ServerAnswer::ShownNames).
    ListXattrs {
        /// The inode.
        file: FileId,
    },
    /// Requests the numbers for `statfs`. The answer is [`ServerAnswer::VolumeStatistics`](super::ServerAnswer::VolumeStatistics).
    Statistics,
    /// Opens a file for the session. The answer is [`ServerAnswer::InodeAttributes`](super::ServerAnswer::InodeAttributes), or a
    /// [`VolumeMessage::Grant`](super::VolumeMessage::Grant) of the wanted level if no other session's token conflicts.
    Open {
        /// The file.
        file: FileId,
        /// The wanted level of the data token; 0: none, and the session may have the file open already.
        level: u8,
        /// Whether a program reads the file with `O_DIRECT`: a writer beyond the end of file then continues only after
        /// this host's kernel knows the new end.
        is_direct: bool,
    },
    /// Asks the server to tell the kernels of other hosts, which read the file with `O_DIRECT`, that it has at least
    /// this size. When they know, the answer is [`ServerAnswer::Done`](super::ServerAnswer::Done).
    Push {
        /// The file.
        file: FileId,
        /// The size of the file. *Units*: bytes.
        size: u64,
    },
    /// Closes a file that the session has open. Open files are not stored. The answer is
    /// [`ServerAnswer::Done`](super::ServerAnswer::Done).
    Close {
        /// The file.
        file: FileId,
    },
    /// Requests the siblings that the server does not hear of any more, or that it has ended. The answer is
    /// [`ServerAnswer::Siblings`](super::ServerAnswer::Siblings).
    Siblings,
    /// Tells the server that the processes of these siblings have ended: their locks are not held, and all that they
    /// wrote is on the disk. The answer is [`ServerAnswer::Done`](super::ServerAnswer::Done).
    Gone {
        /// The siblings.
        siblings: Vec<SiblingSession>,
    },
    /// Tells the server that no lock proves the end of this session, because the disk failed a write and may still do
    /// it. The answer is [`ServerAnswer::Done`](super::ServerAnswer::Done).
    Unproven,
    /// Waits until everything that came before it is durable. The answer is [`ServerAnswer::Done`](super::ServerAnswer::Done).
    Stored,
    /// Requests numbers for inodes that the session makes itself. The answer is
    /// [`ServerAnswer::Numbers`](super::ServerAnswer::Numbers), and may have fewer than requested.
    Numbers {
        /// The requested count.
        count: u32,
    },
    /// Requests space to write to. The grant is stored, and may be smaller than requested. The answer is
    /// [`ServerAnswer::Space`](super::ServerAnswer::Space).
    Space {
        /// The requested amount. *Units*: blocks.
        blocks: u64,
    },
}
