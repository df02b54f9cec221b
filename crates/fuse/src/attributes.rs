//! The attributes of a file, and the time for which the kernel may cache them.

use std::time::Duration;

use crate::protocol::answers::{
    AttributesLayout, AttributesOut, EntryOut, StatFsOut, StatXLayout, StatXOut, StatXTime,
};
use crate::protocol::encode_device;

/// The kernel's bit mask `STATX_BASIC_STATS`. The next constant is the kernel's `STATX_BTIME`.
const MASK_BASIC: u32 = 0x7ff;
const MASK_BORN: u32 = 0x800;

/// A point in time: seconds since 1970 and nanoseconds.
pub type Time = (i64, u32);

/// The attributes of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeAttributes {
    /// The inode number, as programs see it.
    pub number: u64,
    /// The length of the file. *Units*: bytes.
    pub size: u64,
    /// The allocated space. *Units*: 512 bytes.
    pub blocks: u64,
    /// The time at which the node was last read.
    pub accessed: Time,
    /// The time at which the node's contents last changed.
    pub modified: Time,
    /// The time at which the node's contents or attributes last changed.
    pub changed: Time,
    /// The time at which the node was created; `None` if the time is not known.
    pub born: Option<Time>,
    /// The kind and the permissions, as in `st_mode`.
    pub mode: u32,
    /// The number of names (hard links).
    pub links: u32,
    /// The user who owns the node.
    pub user: u32,
    /// The group that owns the node.
    pub group: u32,
    /// The device number of a device file, in the form that system calls use.
    pub device: u64,
    /// The preferred unit of I/O. *Units*: bytes.
    pub block_bytes: u32,
}

impl NodeAttributes {
    fn layout(&self) -> AttributesLayout {
        AttributesLayout {
            node: self.number,
            size: self.size,
            blocks: self.blocks,
            accessed: self.accessed.0,
            modified: self.modified.0,
            changed: self.changed.0,
            accessed_ns: self.accessed.1,
            modified_ns: self.modified.1,
            changed_ns: self.changed.1,
            mode: self.mode,
            links: self.links,
            user: self.user,
            group: self.group,
            device: encode_device(self.device),
            block_bytes: self.block_bytes,
            flags: 0,
        }
    }

    pub(crate) fn out(&self, valid: Duration) -> AttributesOut {
        let (valid_seconds, valid_ns) = (valid.as_secs(), valid.subsec_nanos());
        AttributesOut { valid_seconds, valid_ns, padding: 0, attributes: self.layout() }
    }

    pub(crate) fn statx_out(&self, valid: Duration) -> StatXOut {
        let time = |(seconds, ns): Time| StatXTime { seconds, ns, padding: 0 };
        let stat = StatXLayout {
            mask: MASK_BASIC | if self.born.is_some() { MASK_BORN } else { 0 },
            block_bytes: self.block_bytes,
            links: self.links,
            user: self.user,
            group: self.group,
            mode: self.mode as u16,
            node: self.number,
            size: self.size,
            blocks: self.blocks,
            accessed: time(self.accessed),
            born: time(self.born.unwrap_or_default()),
            changed: time(self.changed),
            modified: time(self.modified),
            device_major: libc::major(self.device),
            device_minor: libc::minor(self.device),
            ..StatXLayout::default()
        };
        StatXOut { valid_seconds: valid.as_secs(), valid_ns: valid.subsec_nanos(), stat, ..StatXOut::default() }
    }
}

impl From<&rustix::fs::Stat> for NodeAttributes {
    fn from(stat: &rustix::fs::Stat) -> NodeAttributes {
        NodeAttributes {
            number: stat.st_ino,
            size: stat.st_size as u64,
            blocks: stat.st_blocks as u64,
            accessed: (stat.st_atime, stat.st_atime_nsec as u32),
            modified: (stat.st_mtime, stat.st_mtime_nsec as u32),
            changed: (stat.st_ctime, stat.st_ctime_nsec as u32),
            born: None,
            mode: stat.st_mode,
            links: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
            user: stat.st_uid,
            group: stat.st_gid,
            device: stat.st_rdev,
            block_bytes: stat.st_blksize as u32,
        }
    }
}

/// The node of a name, its attributes, and the times for which the kernel may cache the name and the attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LookupEntry {
    /// The number of the node. 0 means that the name does not exist; the kernel may cache this for the time
    /// `entry_valid`. Each answer with another number counts as a look-up, which the kernel ends with
    /// [`forget`](crate::FuseFileSystem::forget).
    pub node: u64,
    /// A number that distinguishes this node from earlier nodes with the same number.
    pub generation: u64,
    /// The node's attributes.
    pub attributes: NodeAttributes,
    /// The time for which the kernel may cache the name.
    pub entry_valid: Duration,
    /// The time for which the kernel may cache the attributes.
    pub attributes_valid: Duration,
}

impl LookupEntry {
    pub(crate) fn out(&self) -> EntryOut {
        EntryOut {
            node: self.node,
            generation: self.generation,
            entry_valid_seconds: self.entry_valid.as_secs(),
            attributes_valid_seconds: self.attributes_valid.as_secs(),
            entry_valid_ns: self.entry_valid.subsec_nanos(),
            attributes_valid_ns: self.attributes_valid.subsec_nanos(),
            attributes: self.attributes.layout(),
        }
    }
}

/// The sizes of a file system, as in `statvfs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)] // As in `statvfs`.
pub struct StatFs {
    /// The size of the file system. *Units*: fragments of `fragment_bytes` bytes.
    pub blocks: u64,
    pub free: u64,
    pub available: u64,
    pub files: u64,
    pub files_free: u64,
    pub block_bytes: u32,
    pub fragment_bytes: u32,
    pub name_bytes_max: u32,
}

impl StatFs {
    pub(crate) fn out(&self) -> StatFsOut {
        StatFsOut {
            blocks: self.blocks,
            free: self.free,
            available: self.available,
            files: self.files,
            files_free: self.files_free,
            block_bytes: self.block_bytes,
            name_bytes_max: self.name_bytes_max,
            fragment_bytes: self.fragment_bytes,
            ..StatFsOut::default()
        }
    }
}
