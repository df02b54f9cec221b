//! What a session asks the server to change. Each is one transaction: all or nothing.

/// An inode in one of its lives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// Its number.
    pub inode: u64,
    /// The generation of the number.
    pub generation: u64,
}

/// A piece of a file and where it is on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapped {
    /// In the file. *Units*: blocks.
    pub file_block: u64,
    /// *Units*: blocks.
    pub blocks: u32,
    /// On the disk. *Units*: blocks.
    pub block: u64,
    /// It reads as zeroes (only in answers).
    pub is_unwritten: bool,
}

/// What a time becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeChange {
    /// The server's clock.
    Now,
    /// *Units*: nanoseconds since 1970.
    At(i64),
}

/// Attributes that change; the others stay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Changes {
    /// Permissions, without the type.
    pub mode: Option<u32>,
    /// The owner.
    pub owner: Option<u32>,
    /// The group.
    pub group: Option<u32>,
    /// As `Truncate`. *Units*: bytes.
    pub size: Option<u64>,
    /// Time of the last access.
    pub accessed: Option<TimeChange>,
    /// Time of the last change of the data.
    pub modified: Option<TimeChange>,
}

/// An operation. The server stamps the times that it does not name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Makes an inode with a name: [`Answer::Attributes`](super::Answer::Attributes). Default ACLs are inherited.
    Create {
        /// Where.
        directory: FileId,
        /// The name.
        name: Vec<u8>,
        /// Type and permissions.
        mode: u32,
        /// The owner.
        owner: u32,
        /// The group; a directory with the set-group-id bit gives its own.
        group: u32,
        /// The permissions that the caller's umask takes away; not applied where the directory has a default ACL.
        umask: u32,
        /// The number of a device node.
        device: u64,
        /// Where a symbolic link leads.
        target: Vec<u8>,
        /// The target once more, in one granted block, written and flushed: if it is longer than an inode holds.
        target_block: Option<Mapped>,
        /// The session has it open at once.
        open: bool,
        /// From a grant of numbers; 0: the server chooses.
        inode: u64,
    },
    /// One more name: [`Answer::Attributes`](super::Answer::Attributes).
    Link {
        /// What.
        file: FileId,
        /// Where.
        directory: FileId,
        /// The name.
        name: Vec<u8>,
    },
    /// One name less: [`Answer::Attributes`](super::Answer::Attributes) of what it named.
    Unlink {
        /// Where.
        directory: FileId,
        /// The name.
        name: Vec<u8>,
        /// It must be an empty directory (`rmdir`); else it must not be a directory.
        is_directory: bool,
        /// The inode that it must name; 0: any.
        expected: u64,
    },
    /// As `renameat2`: [`Answer::Done`](super::Answer::Done).
    Rename {
        /// From where.
        directory: FileId,
        /// The name.
        name: Vec<u8>,
        /// To where.
        new_directory: FileId,
        /// The new name.
        new_name: Vec<u8>,
        /// 1 do not replace, 2 exchange, 4 leave a whiteout.
        flags: u32,
    },
    /// Changes attributes: [`Answer::Attributes`](super::Answer::Attributes).
    SetAttributes {
        /// Of what.
        file: FileId,
        /// What changes.
        changes: Changes,
    },
    /// Sets an extended attribute: [`Answer::Attributes`](super::Answer::Attributes).
    SetXattr {
        /// Of what.
        file: FileId,
        /// The name.
        name: Vec<u8>,
        /// The value.
        value: Vec<u8>,
        /// 1 it must not be there, 2 it must be there, 4 the set-group-ID bit goes if it is an access control list.
        flags: u32,
    },
    /// Takes an extended attribute away: [`Answer::Attributes`](super::Answer::Attributes).
    RemoveXattr {
        /// Of what.
        file: FileId,
        /// The name.
        name: Vec<u8>,
    },
    /// Shows what was written to granted extents and flushed: [`Answer::Attributes`](super::Answer::Attributes).
    Commit {
        /// Of what.
        file: FileId,
        /// The truncate generation that the writer knew.
        truncate_generation: u64,
        /// The size is at least this afterwards. *Units*: bytes.
        size: u64,
        /// The modification time is at least this afterwards; 0 for no new time. *Units*: nanoseconds since 1970.
        modified_ns: i64,
        /// The same for the change time.
        changed_ns: i64,
        /// From granted extents, or where the file is mapped and unwritten; in ascending order of `file_block`.
        extents: Vec<Mapped>,
    },
    /// Cuts or extends: [`Answer::Attributes`](super::Answer::Attributes).
    Truncate {
        /// Of what.
        file: FileId,
        /// *Units*: bytes.
        size: u64,
    },
    /// As `fallocate`: [`Answer::Attributes`](super::Answer::Attributes). Zeroing within a block is the client's.
    Allocate {
        /// Of what.
        file: FileId,
        /// *Units*: bytes.
        start: u64,
        /// Behind the end. *Units*: bytes.
        end: u64,
        /// The flags of `fallocate`: keep the size, punch a hole, zero a range; others are EOPNOTSUPP.
        mode: u32,
    },
    /// Gives granted space back: [`Answer::Done`](super::Answer::Done). All I/O to it has ended.
    ReturnSpace {
        /// First block and blocks.
        extents: Vec<(u64, u64)>,
    },
}
