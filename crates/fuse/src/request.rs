//! The kernel's requests to a file system.
//!
//! Owns: the requests as a file system sees them. Leaves to others: their reading out of bytes
//! ([`decode`](crate::decode)).

use std::ffi::CStr;

use crate::pool::Data;

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Caller {
    /// The user, as this process's user namespace sees it.
    pub user: u32,
    /// The group.
    pub group: u32,
    /// The *thread*, as this process's pid namespace sees it; 0 if it has none there, and for the kernel's own
    /// requests.
    pub thread: u32,
}

/// A request that wants an answer.
#[derive(Debug)]
pub struct Request<'a> {
    /// The kernel's number of the request; no two are alike.
    pub unique: u64,
    /// The node that it is about: for names, the directory that they are in.
    pub node: u64,
    /// Who asks.
    pub caller: Caller,
    /// What is asked.
    pub call: Call<'a>,
    /// The data of a [`Call::Write`], as many as it names; of no other.
    pub data: Option<Data>,
}

/// What is asked. Names are never empty, have no `/` in them and are neither `.` nor `..`; any other bytes they may
/// have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // The fields are those of the system calls, under whole words.
pub enum Call<'a> {
    /// The node of a name in a directory.
    LookUp { name: &'a CStr },
    /// Attributes.
    GetAttributes { handle: Option<u64> },
    /// Attributes with the additions of `statx`.
    StatX { handle: Option<u64>, flags: u32, mask: u32 },
    /// A change of attributes.
    SetAttributes(SetAttributes),
    /// The target of a symbolic link.
    ReadLink,
    /// A new symbolic link.
    SymbolicLink { name: &'a CStr, target: &'a CStr },
    /// A new file, or a device of a [number](crate::protocol::decode_device).
    MakeNode { name: &'a CStr, mode: u32, device: u32, umask: u32 },
    /// A new directory.
    MakeDirectory { name: &'a CStr, mode: u32, umask: u32 },
    /// A name of a file is to go.
    Unlink { name: &'a CStr },
    /// A directory is to go.
    RemoveDirectory { name: &'a CStr },
    /// A name moves; the flags are those of `renameat2`.
    Rename { name: &'a CStr, new_parent: u64, new_name: &'a CStr, flags: u32 },
    /// A further name for a node, in the directory that the request is about.
    Link { node: u64, new_name: &'a CStr },
    /// A handle on a file.
    Open { flags: i32, kill_privileges: bool },
    /// A new file and a handle on it.
    Create { name: &'a CStr, mode: u32, umask: u32, flags: i32, kill_privileges: bool },
    /// A new file without a name and a handle on it.
    TemporaryFile { mode: u32, umask: u32, flags: i32 },
    /// Bytes of a file.
    Read(Read),
    /// Bytes for a file.
    Write(Write),
    /// Sizes of the file system.
    StatFs,
    /// A handle has no user any more.
    Release { handle: u64, flags: i32, owner: u64, flush: bool, unlock: bool },
    /// A handle on a directory has no user any more.
    ReleaseDirectory { handle: u64 },
    /// The written bytes are to survive.
    Sync { handle: u64, data_only: bool },
    /// The names in a directory are to survive.
    SyncDirectory { handle: u64, data_only: bool },
    /// Everything is to survive.
    SyncFileSystem,
    /// One of the descriptors of a handle was closed; locks of this owner end.
    Flush { handle: u64, owner: u64 },
    /// An extended attribute; the flags are those of `setxattr`.
    SetXattr { name: &'a CStr, value: &'a [u8], flags: u32, kill_group_id: bool },
    /// The value of an extended attribute; its length only where `size` is 0.
    GetXattr { name: &'a CStr, size: u32 },
    /// The names of all extended attributes, each with a zero byte; their length only where `size` is 0.
    ListXattr { size: u32 },
    /// An extended attribute is to go.
    RemoveXattr { name: &'a CStr },
    /// A handle on a directory.
    OpenDirectory { flags: i32 },
    /// Entries of a directory, with their attributes where `plus` is true.
    ReadDirectory { handle: u64, offset: u64, size: u32, plus: bool },
    /// A lock that stands in the way of this one.
    GetLock(Lock),
    /// A lock; `waits` if it may be waited for. It must not be waited for inside
    /// [`serve`](crate::FileSystem::serve).
    SetLock { lock: Lock, waits: bool },
    /// Whether the caller may.
    Access { mask: u32 },
    /// The next data or the next hole.
    Seek { handle: u64, offset: u64, whence: i32 },
    /// Room, a hole or zeroes; the mode is that of `fallocate`.
    Allocate { handle: u64, offset: u64, length: u64, mode: i32 },
    /// Bytes from one file to another.
    Copy(Copy),
    /// The block of a disk.
    BlockMap { block: u64, block_bytes: u32 },
    /// An `ioctl` with its input.
    Ioctl { handle: u64, flags: u32, command: u32, argument: u64, input: &'a [u8], output_bytes_max: u32 },
    /// Whether something could be read or written.
    Poll { handle: u64, kernel_handle: u64, flags: u32, events: u32 },
    /// An operation that this version does not know.
    Other(u32),
}

/// A read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Read {
    /// Of the open file.
    pub handle: u64,
    /// *Units*: bytes. With `size` it stays below 2^63.
    pub offset: u64,
    /// At most as much as a request may have.
    pub size: u32,
    /// The flags with which the file is open.
    pub flags: i32,
    /// The owner of the locks, if the kernel says so.
    pub owner: Option<u64>,
}

/// A write; its data are the request's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Write {
    /// That of the open file; a guess if `from_page_cache` is true.
    pub handle: u64,
    /// *Units*: bytes. With `size` it stays below 2^63.
    pub offset: u64,
    /// The length of the data.
    pub size: u32,
    /// The flags with which the file is open.
    pub flags: i32,
    /// The owner of the locks, if the kernel says so.
    pub owner: Option<u64>,
    /// It is written back from the page cache: the caller is not the writer.
    pub from_page_cache: bool,
    /// Set-user-id bits and capabilities are to be cleared.
    pub kill_privileges: bool,
}

/// A change of attributes. Attributes that `valid` does not name stay as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)] // The names are those of `protocol::valid`.
pub struct SetAttributes {
    /// Bits of [`valid`](crate::protocol::valid).
    pub valid: u32,
    pub handle: Option<u64>,
    pub size: u64,
    pub owner: Option<u64>,
    pub accessed: (i64, u32),
    pub modified: (i64, u32),
    pub changed: (i64, u32),
    pub mode: u32,
    pub user: u32,
    pub group: u32,
}

/// A lock of a range of bytes, or of a whole file if it comes from `flock`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lock {
    /// Of the open file.
    pub handle: u64,
    /// Whose lock it is.
    pub owner: u64,
    /// The first byte.
    pub start: u64,
    /// The last byte; `i64::MAX` for the end of the file, wherever that will be.
    pub end: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: i32,
    /// The process.
    pub process: u32,
    /// It comes from `flock`.
    pub is_flock: bool,
}

/// Bytes from one file to another; both ranges stay below 2^63.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Copy {
    /// That of the file that is read; its node is the request's.
    pub handle: u64,
    /// Where from.
    pub offset: u64,
    /// The node of the file that is written.
    pub to_node: u64,
    /// Its handle.
    pub to_handle: u64,
    /// Where to.
    pub to_offset: u64,
    /// *Units*: bytes.
    pub length: u64,
    /// Those of `copy_file_range`.
    pub flags: u64,
    /// Whether the answer has room for more than 32 bits.
    pub is_wide: bool,
}
