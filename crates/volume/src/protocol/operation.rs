//! Operations: what a session requests the server to change. Each operation is one transaction, which is done
//! completely or not at all.

/// The identity of an inode; it differs from that of later inodes with the same number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// The inode number.
    pub inode: u64,
    /// The generation of the number: it differs for each reuse.
    pub generation: u64,
}

/// The number of blocks of the largest file. *Units*: blocks.
pub const FILE_BLOCKS_MAX: u64 = 1 << 51;

/// An extent of a file, and its place on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MappedExtent {
    /// The first block in the file. *Units*: blocks.
    pub file_block: u64,
    /// The length. *Units*: blocks.
    pub blocks: u32,
    /// The first block on the disk. *Units*: blocks.
    pub block: u64,
    /// Whether the piece reads as zeroes: in answers, and in a commit of blocks that the session has not written to.
    pub is_unwritten: bool,
}

/// The new value of a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeChange {
    /// The time of the server's clock.
    Now,
    /// The given time. *Units*: nanoseconds since 1970.
    At(i64),
}

/// The least age at which a time of access is replaced although nothing changed since. *Units*: nanoseconds.
const ACCESS_AGE_NS: i64 = 24 * 3600 * 1_000_000_000;

/// A program's access to the contents of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileAccess {
    /// The file, directory or link.
    pub file: FileId,
    /// The time by the server's clock. *Units*: nanoseconds since 1970.
    pub at_ns: i64,
    /// The time generation of the inode that the client knew. If a call has set the times since, the access does not
    /// count.
    pub time_generation: u64,
}

impl FileAccess {
    /// Whether this access updates the access time of an inode whose times are `times_ns` now. This is the rule of the
    /// mount option `relatime`: the present time of access is not later than the last change, or it is a day old.
    pub fn counts(&self, times_ns: [i64; 4], time_generation: u64) -> bool {
        let [accessed, modified, changed, _] = times_ns;
        let is_old = accessed <= modified.max(changed) || self.at_ns.saturating_sub(accessed) >= ACCESS_AGE_NS;
        self.time_generation == time_generation && self.at_ns != accessed && is_old
    }
}

/// The owner and the group of a file by which the kernel of a program's host has allowed a change: another host may have
/// changed them meanwhile.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JudgedOwner {
    /// The owner's user number. If the file has another owner, the change is refused with EPERM.
    pub owner: u32,
    /// The group's number. If the file has another group, the change sets no set-group-ID bit.
    pub group: u32,
}

/// The attributes that change: those that are `Some`. A new owner or group without a mode also clears the bits that give
/// rights, unless the inode is a directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AttributeChanges {
    /// The permission bits, without the file type.
    pub mode: Option<u32>,
    /// The owner's user number.
    pub owner: Option<u32>,
    /// The group's number.
    pub group: Option<u32>,
    /// The new size, with the effect of `Truncate`. *Units*: bytes.
    pub size: Option<u64>,
    /// Time of the last access.
    pub accessed: Option<TimeChange>,
    /// Time of the last change of the data.
    pub modified: Option<TimeChange>,
    /// Whether the bits are cleared that give rights to those who run the file: set-user-ID, and set-group-ID where the group
    /// may run it.
    pub drops_rights: bool,
    /// By which owner the change was allowed; `None`: not because of the owner.
    pub judged: Option<JudgedOwner>,
}

/// An operation. The server sets all times that the operation does not contain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetadataOperation {
    /// Makes an inode with a name, or a file without one. Default access control lists are inherited. The answer is
    /// [`ServerAnswer::InodeAttributes`](super::ServerAnswer::InodeAttributes).
    Create {
        /// The directory.
        directory: FileId,
        /// The name. If it is empty, the inode has no name: it must be a file that the session opens at the same time.
        /// It is freed when no session has it open, unless a [`Link`](Self::Link) gives it a name before.
        name: Vec<u8>,
        /// The file type and the permission bits.
        mode: u32,
        /// The owner's user number.
        owner: u32,
        /// The group's number; in a directory with the set-group-ID bit, the new inode gets the directory's group
        /// instead.
        group: u32,
        /// The permissions that the caller's umask takes away. It is not applied if the directory has a default access
        /// control list.
        umask: u32,
        /// The number of a device node.
        device: u64,
        /// The target of a symbolic link.
        target: Vec<u8>,
        /// If the target is too long for the inode: one granted block to which the client has written and flushed it.
        target_block: Option<MappedExtent>,
        /// Whether the session opens the inode at the same time.
        open: bool,
        /// The number of the inode, if the operation was done before by another server; 0: the server chooses.
        inode: u64,
    },
    /// Adds a name to an inode, which must have one, unless it was made without one and has had none since. The answer
    /// is [`ServerAnswer::InodeAttributes`](super::ServerAnswer::InodeAttributes).
    Link {
        /// The inode.
        file: FileId,
        /// The directory.
        directory: FileId,
        /// The name.
        name: Vec<u8>,
    },
    /// Removes a name. The answer is [`ServerAnswer::InodeAttributes`](super::ServerAnswer::InodeAttributes) of its inode.
    Unlink {
        /// The directory.
        directory: FileId,
        /// The name.
        name: Vec<u8>,
        /// If true, the name must be that of an empty directory (`rmdir`); otherwise it must not be that of a
        /// directory.
        is_directory: bool,
        /// The inode that the name must have; 0: any.
        expected: u64,
    },
    /// Renames as `renameat2` does. The answer is [`ServerAnswer::Done`](super::ServerAnswer::Done).
    Rename {
        /// The old directory.
        directory: FileId,
        /// The old name.
        name: Vec<u8>,
        /// The new directory.
        new_directory: FileId,
        /// The new name.
        new_name: Vec<u8>,
        /// The flags of `renameat2`: 1 do not replace, 2 exchange, 4 leave a whiteout.
        flags: u32,
    },
    /// Changes attributes. The answer is [`ServerAnswer::InodeAttributes`](super::ServerAnswer::InodeAttributes).
    SetAttributes {
        /// The inode.
        file: FileId,
        /// The changes.
        changes: AttributeChanges,
    },
    /// Sets an extended attribute. The answer is [`ServerAnswer::InodeAttributes`](super::ServerAnswer::InodeAttributes).
    SetXattr {
        /// The inode.
        file: FileId,
        /// The name.
        name: Vec<u8>,
        /// The value.
        value: Vec<u8>,
        /// The flags: 1 the attribute must not exist; 2 it must exist; 4 if it is an access control list, the
        /// set-group-ID bit is cleared.
        flags: u32,
    },
    /// Removes an extended attribute. The answer is [`ServerAnswer::InodeAttributes`](super::ServerAnswer::InodeAttributes).
    RemoveXattr {
        /// The inode.
        file: FileId,
        /// The name.
        name: Vec<u8>,
    },
    /// Makes data visible that was written to granted extents and flushed. The answer is
    /// [`ServerAnswer::InodeAttributes`](super::ServerAnswer::InodeAttributes).
    Commit {
        /// The file.
        file: FileId,
        /// The truncate generation of the file that the writer knows.
        truncate_generation: u64,
        /// The size is at least this after the commit. *Units*: bytes.
        size: u64,
        /// The modification time is at least this after the commit; 0: it does not change. *Units*: nanoseconds since
        /// 1970.
        modified_ns: i64,
        /// The change time is at least this after the commit; 0: it does not change. *Units*: nanoseconds since 1970.
        changed_ns: i64,
        /// The written extents, in ascending order of `file_block`. Each is a granted extent, or blocks that the file
        /// maps as unwritten. Granted extents that are not written are mapped as unwritten.
        extents: Vec<MappedExtent>,
    },
    /// Takes blocks that a file maps as unwritten out of its map, and grants them to the session, which can then write
    /// to them. A later commit maps them again, as written or as unwritten. The answer is
    /// [`ServerAnswer::Map`](super::ServerAnswer::Map) with the taken blocks; up to `answered_to`, no others were unwritten.
    TakeReserved {
        /// The file, whose data token the session holds.
        file: FileId,
        /// The first block. *Units*: blocks of the file.
        start: u64,
        /// The block behind the last one. *Units*: blocks of the file.
        end: u64,
    },
    /// Truncates or extends a file. The answer is [`ServerAnswer::InodeAttributes`](super::ServerAnswer::InodeAttributes).
    Truncate {
        /// The file.
        file: FileId,
        /// The new size. *Units*: bytes.
        size: u64,
    },
    /// Allocates or zeroes a range of a file, or punches a hole, as `fallocate` does. The server zeroes only whole
    /// blocks; the client writes zeroes to partial blocks. The answer is
    /// [`ServerAnswer::InodeAttributes`](super::ServerAnswer::InodeAttributes).
    Allocate {
        /// The file.
        file: FileId,
        /// The first byte. *Units*: bytes.
        start: u64,
        /// The byte behind the last one. *Units*: bytes.
        end: u64,
        /// The flags of `fallocate`: keep the size, punch a hole, zero a range; others are refused with EOPNOTSUPP.
        mode: u32,
    },
    /// Stores times of access. An access that does not [count](Accessed::counts), or whose file is gone, has no effect.
    /// The answer is [`ServerAnswer::Done`](super::ServerAnswer::Done).
    Access {
        /// At most 256 accesses.
        accesses: Vec<FileAccess>,
    },
    /// Returns granted space. All I/O to the space has ended. The answer is [`ServerAnswer::Done`](super::ServerAnswer::Done).
    ReturnSpace {
        /// The extents, as first block and number of blocks.
        extents: Vec<(u64, u64)>,
    },
}

impl MetadataOperation {
    /// Whether the operation may be answered before it is durable: it changes names or attributes, and no data. For a
    /// directory that is renamed this is true only if it stays in its parent.
    pub fn may_be_early(&self) -> bool {
        match self {
            MetadataOperation::Create { target_block, .. } => target_block.is_none(),
            MetadataOperation::SetAttributes { changes, .. } => changes.size.is_none(),
            MetadataOperation::Rename { flags, .. } => flags & libc::RENAME_WHITEOUT == 0,
            MetadataOperation::Link { .. }
            | MetadataOperation::Unlink { .. }
            | MetadataOperation::SetXattr { .. }
            | MetadataOperation::RemoveXattr { .. } => true,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An access counts after a change or a day, but not after a call that set the times.
    #[test]
    fn relatime_rule_decides_access() {
        let accessed = FileAccess { file: FileId::default(), at_ns: 100, time_generation: 2 };
        assert!(accessed.counts([40, 50, 0, 0], 2), "the data changed since the last access");
        assert!(accessed.counts([40, 0, 40, 0], 2), "the attributes changed since the last access");
        assert!(!accessed.counts([60, 50, 50, 0], 2), "nothing changed since the last access");
        assert!(accessed.counts([100 - ACCESS_AGE_NS, i64::MIN, i64::MIN, 0], 2), "the last access is a day old");
        assert!(!accessed.counts([40, 50, 0, 0], 3), "the times were set");
        assert!(!accessed.counts([100, 100, 100, 0], 2), "it is stored already");
    }
}
