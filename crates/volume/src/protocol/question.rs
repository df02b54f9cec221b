//! Questions of a session: they change nothing that is stored, except grants.

use super::FileId;

/// A question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// What a name is: [`Answer::Attributes`](super::Answer::Attributes). `..` is a name, too.
    Lookup {
        /// Where.
        directory: FileId,
        /// The name.
        name: Vec<u8>,
    },
    /// [`Answer::Attributes`](super::Answer::Attributes). Generation 0 is any.
    GetAttributes {
        /// Of what.
        file: FileId,
    },
    /// Names behind a cookie: [`Answer::Listing`](super::Answer::Listing).
    ReadDirectory {
        /// Of what.
        directory: FileId,
        /// The cookie of the last one that the reader has; 0: from the start.
        cookie: u64,
        /// At most so many.
        entries: u32,
    },
    /// Where data is: [`Answer::Map`](super::Answer::Map).
    ReadMap {
        /// Of what.
        file: FileId,
        /// *Units*: blocks of the file.
        start: u64,
        /// Behind the end. *Units*: blocks of the file.
        end: u64,
    },
    /// [`Answer::Bytes`](super::Answer::Bytes): its value.
    ReadXattr {
        /// Of what.
        file: FileId,
        /// The name.
        name: Vec<u8>,
    },
    /// [`Answer::Names`](super::Answer::Names).
    ListXattrs {
        /// Of what.
        file: FileId,
    },
    /// [`Answer::Statistics`](super::Answer::Statistics).
    Statistics,
    /// The session has it open from now on: [`Answer::Attributes`](super::Answer::Attributes), or a
    /// [`Message::Grant`](super::Message::Grant) of the level where nobody is in its way.
    Open {
        /// What.
        file: FileId,
        /// Of its data token; 0: none.
        level: u8,
        /// A program reads it with `O_DIRECT`: its kernel is told of a new end before who wrote there goes on.
        is_direct: bool,
    },
    /// Tells the kernels of other hosts that read a file with `O_DIRECT` that it has at least this size:
    /// [`Answer::Done`](super::Answer::Done) when they know.
    Push {
        /// What.
        file: FileId,
        /// *Units*: bytes.
        size: u64,
    },
    /// The session has it open no more: [`Answer::Done`](super::Answer::Done). Nothing of this is stored.
    Close {
        /// What.
        file: FileId,
    },
    /// Space to write to: [`Answer::Space`](super::Answer::Space), which may be less. The grant is stored.
    Space {
        /// *Units*: blocks.
        blocks: u64,
    },
}
