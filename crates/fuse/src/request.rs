//! The kernel's requests to a file system.
//!
//! Owns: the requests as a file system sees them. Leaves to others: decoding them ([`decode`](crate::decode)).

use std::ffi::CStr;

use crate::pool::PooledData;

/// The process that caused a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestCaller {
    /// The user, in this process's user namespace.
    pub user: u32,
    /// The group, in this process's user namespace.
    pub group: u32,
    /// The number of the *thread*, in this process's pid namespace. It is 0 if the thread is not visible in that
    /// namespace, and for the kernel's own requests.
    pub thread: u32,
}

/// What a request says besides its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestContext {
    /// As [`FuseRequest::unique`].
    pub unique: u64,
    /// As [`FuseRequest::node`].
    pub node: u64,
    /// The process that caused the request.
    pub caller: RequestCaller,
}

/// A request that must be answered.
#[derive(Debug)]
pub struct FuseRequest<'a> {
    /// The kernel's unique number of the request.
    pub unique: u64,
    /// The node that the request is about. For a call with the name of a directory entry, this is the directory. For
    /// [`RequestCall::Rename`], it is the directory of the old name.
    pub node: u64,
    /// The process that caused the request.
    pub caller: RequestCaller,
    /// The operation and its arguments.
    pub call: RequestCall<'a>,
    /// The data of a [`RequestCall::WriteCall`], which have the length that the call states; `None` for other calls.
    pub data: Option<PooledData>,
}

impl FuseRequest<'_> {
    /// What the request says besides its call.
    pub fn context(&self) -> RequestContext {
        RequestContext { unique: self.unique, node: self.node, caller: self.caller }
    }
}

/// The operation of a request. Names are not empty, contain no `/`, and are neither `.` nor `..`; they may contain any
/// other bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // The fields are those of the system calls, with full words as names.
pub enum RequestCall<'a> {
    /// Looks up a name in a directory.
    LookUp { name: &'a CStr },
    /// Returns attributes.
    GetAttributes { handle: Option<u64> },
    /// Returns attributes with the additions of `statx`.
    StatX { handle: Option<u64>, flags: u32, mask: u32 },
    /// Changes attributes.
    SetAttributes(SetAttributes),
    /// Returns the target of a symbolic link.
    ReadLink,
    /// Makes a symbolic link.
    SymbolicLink { name: &'a CStr, target: &'a CStr },
    /// Makes a file, or a device file with a [number](crate::protocol::decode_device).
    MakeNode { name: &'a CStr, mode: u32, device: u32, umask: u32 },
    /// Makes a directory.
    MakeDirectory { name: &'a CStr, mode: u32, umask: u32 },
    /// Removes a name of a file from a directory.
    Unlink { name: &'a CStr },
    /// Removes a directory.
    RemoveDirectory { name: &'a CStr },
    /// Renames a directory entry; the flags are those of `renameat2`.
    Rename { name: &'a CStr, new_parent: u64, new_name: &'a CStr, flags: u32 },
    /// Adds a name for a node, in the directory that the request is about.
    Link { node: u64, new_name: &'a CStr },
    /// Opens a file.
    Open { flags: i32, kill_privileges: bool },
    /// Makes a file and opens it.
    Create { name: &'a CStr, mode: u32, umask: u32, flags: i32, kill_privileges: bool },
    /// Makes a file without a name and opens it.
    TemporaryFile { mode: u32, umask: u32, flags: i32 },
    /// Reads from a file.
    Read(ReadCall),
    /// Writes to a file.
    Write(WriteCall),
    /// Returns the sizes of the file system.
    StatFs,
    /// Closes a handle that has no more users.
    Release { handle: u64, flags: i32, owner: u64, flush: bool, unlock: bool },
    /// Closes a handle on a directory.
    ReleaseDirectory { handle: u64 },
    /// Makes the bytes written to a file durable.
    Sync { handle: u64, data_only: bool },
    /// Makes the names in a directory durable.
    SyncDirectory { handle: u64, data_only: bool },
    /// Makes the whole file system durable.
    SyncFileSystem,
    /// Tells the file system that a descriptor of a handle was closed. The locks of `owner` must be released.
    Flush { handle: u64, owner: u64 },
    /// Sets an extended attribute; the flags are those of `setxattr`.
    SetXattr { name: &'a CStr, value: &'a [u8], flags: u32, kill_group_id: bool },
    /// Returns the value of an extended attribute, or only the length of the value if `size` is 0.
    GetXattr { name: &'a CStr, size: u32 },
    /// Returns the names of all extended attributes, each with a zero byte at its end; only their total length if
    /// `size` is 0.
    ListXattr { size: u32 },
    /// Removes an extended attribute.
    RemoveXattr { name: &'a CStr },
    /// Opens a directory.
    OpenDirectory { flags: i32 },
    /// Lists entries of a directory from `offset` on, with their attributes if `plus` is true.
    ReadDirectory { handle: u64, offset: u64, size: u32, plus: bool },
    /// Returns a lock that conflicts with the given lock.
    GetLock(LockRange),
    /// Sets a lock. If `waits` is true, the request is answered when the lock is free, but
    /// [`set_lock`](crate::FuseFileSystem::set_lock) must not wait until then.
    SetLock { lock: LockRange, waits: bool },
    /// Checks whether the caller has access.
    Access { mask: u32 },
    /// Finds the next data or the next hole.
    Seek { handle: u64, offset: u64, whence: i32 },
    /// Allocates blocks, punches a hole or writes zeroes. The mode is that of `fallocate`.
    Allocate { handle: u64, offset: u64, length: u64, mode: i32 },
    /// Copies bytes from one file to another.
    Copy(CopyCall),
    /// Returns the number that a file's block has on its disk.
    BlockMap { block: u64, block_bytes: u32 },
    /// Executes an `ioctl` with the data `input`.
    Ioctl { handle: u64, flags: u32, command: u32, argument: u64, input: &'a [u8], output_bytes_max: u32 },
    /// Returns whether the file can be read or written without waiting.
    Poll { handle: u64, kernel_handle: u64, flags: u32, events: u32 },
    /// An operation that this version does not know.
    Other(u32),
}

impl<'a> RequestCall<'a> {
    /// Returns the name of a directory entry that the call is about; for a rename, the old name.
    pub fn name(&self) -> Option<&'a CStr> {
        match self {
            RequestCall::LookUp { name }
            | RequestCall::SymbolicLink { name, .. }
            | RequestCall::MakeNode { name, .. }
            | RequestCall::MakeDirectory { name, .. }
            | RequestCall::Unlink { name }
            | RequestCall::RemoveDirectory { name }
            | RequestCall::Rename { name, .. }
            | RequestCall::Link { new_name: name, .. }
            | RequestCall::Create { name, .. } => Some(name),
            _ => None,
        }
    }
}

/// The arguments of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadCall {
    /// The handle of the open file.
    pub handle: u64,
    /// The offset of the first byte. `offset + size` is below 2^63.
    pub offset: u64,
    /// The number of bytes, at most the size limit of a request.
    pub size: u32,
    /// The flags with which the file is open.
    pub flags: i32,
    /// The owner of the locks on the file, if the kernel sends it.
    pub owner: Option<u64>,
}

/// The arguments of a write. The data are in [`FuseRequest::data`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteCall {
    /// The handle of the open file. If `from_page_cache` is true, it may be the handle of another open file of the same
    /// node.
    pub handle: u64,
    /// The offset of the first byte. `offset + size` is below 2^63.
    pub offset: u64,
    /// The length of the data, in bytes.
    pub size: u32,
    /// The flags with which the file is open.
    pub flags: i32,
    /// The owner of the locks on the file, if the kernel sends it.
    pub owner: Option<u64>,
    /// Whether the data are written back from the page cache. If so, the caller is not the process that wrote them.
    pub from_page_cache: bool,
    /// Whether set-user-id bits and capabilities must be cleared.
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

/// A lock on a range of bytes, or on a whole file if the lock comes from `flock`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LockRange {
    /// The handle of the open file.
    pub handle: u64,
    /// The owner of the lock.
    pub owner: u64,
    /// The offset of the first byte.
    pub start: u64,
    /// The offset of the last byte; `i64::MAX` means up to the end of the file, even if the file grows.
    pub end: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: i32,
    /// The process that has the lock.
    pub process: u32,
    /// Whether the lock comes from `flock`.
    pub is_flock: bool,
}

/// A copy of bytes from one file to another. Both ranges of bytes end below 2^63.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CopyCall {
    /// The handle of the file that is read. The file's node is [`FuseRequest::node`].
    pub handle: u64,
    /// The offset in the file that is read.
    pub offset: u64,
    /// The node of the file that is written.
    pub to_node: u64,
    /// The handle of the file that is written.
    pub to_handle: u64,
    /// The offset in the file that is written.
    pub to_offset: u64,
    /// The number of bytes to copy.
    pub length: u64,
    /// The flags of `copy_file_range`.
    pub flags: u64,
    /// Whether the answer states the length in 64 bits.
    pub is_wide: bool,
}

/// Returns a mode without the set-user-ID bit and, where the group may run the file, without the set-group-ID bit: what
/// remains after a write with [`kill_privileges`](WriteCall::kill_privileges).
pub fn without_rights(mode: u32) -> u32 {
    let group = if mode & libc::S_IXGRP != 0 { libc::S_ISGID } else { 0 };
    mode & !(libc::S_ISUID | group)
}
