//! What operations and questions are answered with.

use crate::format::Inode;

use super::{FileId, Mapped};

/// An inode and what is in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Its number; the generation is in `inode`.
    pub number: u64,
    /// Everything else.
    pub inode: Inode,
}

impl Attributes {
    /// Its identity.
    pub fn id(&self) -> FileId {
        FileId { inode: self.number, generation: self.inode.generation }
    }
}

/// What a file is: its attributes, and where its data is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// Its attributes.
    pub attributes: Attributes,
    /// Its first extents, as in [`Answer::Map`].
    pub extents: Vec<Mapped>,
    /// What is before it is in `extents` or a hole. *Units*: blocks of the file.
    pub answered_to: u64,
}

/// A name in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// A listing goes on behind it.
    pub cookie: u64,
    /// The name.
    pub name: Vec<u8>,
    /// What it names.
    pub attributes: Attributes,
}

/// Space that a session may write to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granted {
    /// *Units*: blocks.
    pub block: u64,
    /// *Units*: blocks.
    pub blocks: u64,
}

/// What `statfs` shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// *Units*: blocks.
    pub blocks: u64,
    /// *Units*: blocks.
    pub free: u64,
    /// In use.
    pub inodes: u64,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It is done.
    Done,
    /// An inode as it is now.
    Attributes(Attributes),
    /// Names, in ascending order of cookies.
    Listing {
        /// The names.
        names: Vec<Listed>,
        /// There is none behind.
        is_end: bool,
    },
    /// Extents in ascending order; what is in none is a hole.
    Map {
        /// The extents.
        extents: Vec<Mapped>,
        /// What is before it is answered. *Units*: blocks of the file.
        answered_to: u64,
    },
    /// Bytes.
    Bytes(Vec<u8>),
    /// Names of extended attributes.
    Names(Vec<Vec<u8>>),
    /// What `statfs` shows.
    Statistics(Statistics),
    /// Space.
    Space(Vec<Granted>),
}

/// Why something is refused. The numbers are in `docs/formats/volume-protocol.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Code {
    Malformed = 1,
    Version,
    Feature,
    OldEpoch,
    NotLeader,
    Ended,
    Forgotten,
    OutOfOrder,
    Stale,
    Conflict,
    Full,
    Limit,
    Grace,
    Posix,
    Damaged,
    WrongVolume,
}

/// A refusal. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{words} ({code:?}, errno {errno})")]
pub struct Failure {
    /// Why.
    pub code: Code,
    /// For the caller of the system call.
    pub errno: i32,
    /// For people.
    pub words: String,
}

impl Failure {
    /// A refusal that `errno` alone explains.
    pub fn posix(errno: i32) -> Failure {
        Failure { code: Code::Posix, errno, words: String::new() }
    }
}
