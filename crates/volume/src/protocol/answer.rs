//! The answers to operations and questions.

use crate::format::Inode;

use super::{FileId, MappedExtent, SiblingSession};

/// An inode with its number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InodeAttributes {
    /// The inode number; the generation is in `inode`.
    pub number: u64,
    /// All other attributes.
    pub inode: Inode,
}

impl InodeAttributes {
    /// Returns the identity of the inode.
    pub fn id(&self) -> FileId {
        FileId { inode: self.number, generation: self.inode.generation }
    }
}

/// Attributes of a file and its first extents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileShape {
    /// The attributes.
    pub attributes: InodeAttributes,
    /// The first extents of the file, as in [`ServerAnswer::Map`].
    pub extents: Vec<MappedExtent>,
    /// Up to this block, a range that is not in `extents` is a hole. *Units*: blocks of the file.
    pub answered_to: u64,
}

/// A name in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedName {
    /// The position of the name: a listing from this cookie on begins with the next name.
    pub cookie: u64,
    /// The name in the directory.
    pub name: Vec<u8>,
    /// The inode of the name.
    pub attributes: InodeAttributes,
}

/// Space that a session may write to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrantedSpace {
    /// The first block. *Units*: blocks.
    pub block: u64,
    /// The length. *Units*: blocks.
    pub blocks: u64,
}

/// The numbers for `statfs`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VolumeStatistics {
    /// Blocks of the disk. *Units*: blocks.
    pub blocks: u64,
    /// Free blocks. *Units*: blocks.
    pub free: u64,
    /// The number of inodes in use.
    pub inodes: u64,
}

/// The answer to an operation or question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerAnswer {
    /// The operation is done.
    Done,
    /// The present attributes of an inode.
    Attributes(InodeAttributes),
    /// Names, in ascending order of cookies.
    Listing {
        /// The names.
        names: Vec<ListedName>,
        /// Whether no further name follows.
        is_end: bool,
    },
    /// Extents in ascending order; ranges that are in none are holes.
    Map {
        /// The extents.
        extents: Vec<MappedExtent>,
        /// The answer is complete up to this block. *Units*: blocks of the file.
        answered_to: u64,
    },
    /// The value of an extended attribute.
    Bytes(Vec<u8>),
    /// The names of extended attributes.
    Names(Vec<Vec<u8>>),
    /// The numbers for `statfs`.
    Statistics(VolumeStatistics),
    /// Extents of granted space.
    Space(Vec<GrantedSpace>),
    /// The inodes that a rename has moved, and replaced: at most two.
    Renamed(Vec<FileId>),
    /// Sessions of the same origin.
    Siblings(Vec<SiblingSession>),
    /// Numbers for inodes, which nobody else gets.
    Numbers {
        /// The first number.
        first: u64,
        /// How many follow one another.
        count: u32,
    },
}

/// The reason of a refusal. The numbers are in `docs/formats/volume-protocol.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum RefusalCode {
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

/// A refusal. A refused request changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{words} ({code:?}, errno {errno})")]
pub struct ServerRefusal {
    /// The reason.
    pub code: RefusalCode,
    /// The error number for the caller of the system call.
    pub errno: i32,
    /// An explanation for people.
    pub words: String,
}

impl ServerRefusal {
    /// Makes a refusal that `errno` alone explains.
    pub fn posix(errno: i32) -> ServerRefusal {
        ServerRefusal { code: RefusalCode::Posix, errno, words: String::new() }
    }
}
