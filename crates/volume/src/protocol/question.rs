//! Questions of a session: requests that change no stored record, except grants of space.

use super::FileId;

/// A question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// Finds a name in a directory: [`Answer::Attributes`](super::Answer::Attributes) of its inode. `..` is also a
    /// name.
    Lookup {
        /// The directory.
        directory: FileId,
        /// The name.
        name: Vec<u8>,
    },
    /// Requests the attributes of an inode: [`Answer::Attributes`](super::Answer::Attributes). Generation 0 matches any
    /// generation.
    GetAttributes {
        /// The inode.
        file: FileId,
    },
    /// Requests the names of a directory behind a cookie: [`Answer::Listing`](super::Answer::Listing).
    ReadDirectory {
        /// The directory.
        directory: FileId,
        /// The cookie of the last name that the reader has; 0: from the start.
        cookie: u64,
        /// The most names to return.
        entries: u32,
    },
    /// Requests the extents of a part of a file: [`Answer::Map`](super::Answer::Map).
    ReadMap {
        /// The file.
        file: FileId,
        /// The first block. *Units*: blocks of the file.
        start: u64,
        /// The block behind the last one. *Units*: blocks of the file.
        end: u64,
    },
    /// Requests the value of an extended attribute: [`Answer::Bytes`](super::Answer::Bytes).
    ReadXattr {
        /// The inode.
        file: FileId,
        /// The name.
        name: Vec<u8>,
    },
    /// Requests the names of all extended attributes: [`Answer::Names`](super::Answer::Names).
    ListXattrs {
        /// The inode.
        file: FileId,
    },
    /// Requests the numbers for `statfs`: [`Answer::Statistics`](super::Answer::Statistics).
    Statistics,
    /// Opens a file for the session: [`Answer::Attributes`](super::Answer::Attributes), or a
    /// [`Message::Grant`](super::Message::Grant) of the wanted level if no other session's token conflicts.
    Open {
        /// The file.
        file: FileId,
        /// The wanted level of the data token; 0: none.
        level: u8,
        /// Whether a program reads the file with `O_DIRECT`: a writer beyond the end of file then continues only after
        /// this host's kernel knows the new end.
        is_direct: bool,
    },
    /// Asks the server to tell the kernels of other hosts, which read the file with `O_DIRECT`, that it has at least
    /// this size: [`Answer::Done`](super::Answer::Done) when they know.
    Push {
        /// The file.
        file: FileId,
        /// The size of the file. *Units*: bytes.
        size: u64,
    },
    /// Closes a file that the session has open: [`Answer::Done`](super::Answer::Done). Open files are not stored.
    Close {
        /// The file.
        file: FileId,
    },
    /// Requests space to write to: [`Answer::Space`](super::Answer::Space), which may be less than requested. The grant
    /// is stored.
    Space {
        /// The requested amount. *Units*: blocks.
        blocks: u64,
    },
}
