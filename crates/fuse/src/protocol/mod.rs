//! The numbers and layouts of the protocol, from `linux/fuse.h`, up to version 7.45.
//!
//! Owns: operation codes, flags and layouts. All numbers are in the byte order of the machine. Leaves to others: the
//! meaning of a request ([`request`](crate::request)).

pub mod answers;
pub mod arguments;

/// The major version of the protocol.
pub const MAJOR: u32 = 7;
/// The newest supported minor version.
pub const MINOR: u32 = 45;
/// The oldest supported minor version, which is that of Linux 5.4.
pub const MINOR_MIN: u32 = 31;

/// The unit in which the kernel limits the size of requests, in bytes.
pub const PAGE_BYTES: usize = 4096;

/// The longest accepted name of a directory entry, without its terminating zero. *Units*: bytes.
pub const NAME_BYTES_MAX: usize = 4095;
/// The longest value of an extended attribute. *Units*: bytes.
pub const XATTR_BYTES_MAX: usize = 64 << 10;
/// The size limit of a request's arguments, without the data of a write. *Units*: bytes.
pub const ARGUMENT_BYTES_MAX: usize = 128 << 10;

/// The operation codes.
#[allow(missing_docs)] // They are the kernel's names.
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const BMAP: u32 = 37;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const POLL: u32 = 40;
    pub const NOTIFY_REPLY: u32 = 41;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
    pub const COPY_FILE_RANGE_64: u32 = 53;

    /// Returns the name of an operation: that of its system call, where there is one.
    pub fn name(code: u32) -> &'static str {
        match code {
            LOOKUP => "lookup",
            GETATTR => "stat",
            SETATTR => "setattr",
            READLINK => "readlink",
            SYMLINK => "symlink",
            MKNOD => "mknod",
            MKDIR => "mkdir",
            UNLINK => "unlink",
            RMDIR => "rmdir",
            RENAME | RENAME2 => "rename",
            LINK => "link",
            OPEN => "open",
            READ => "read",
            WRITE => "write",
            STATFS => "statfs",
            RELEASE => "release",
            FSYNC => "fsync",
            SETXATTR => "setxattr",
            GETXATTR => "getxattr",
            LISTXATTR => "listxattr",
            REMOVEXATTR => "removexattr",
            FLUSH => "close",
            OPENDIR => "opendir",
            READDIR | READDIRPLUS => "readdir",
            RELEASEDIR => "closedir",
            FSYNCDIR => "fsync of a directory",
            GETLK | SETLK | SETLKW => "lock",
            ACCESS => "access",
            CREATE => "create",
            BMAP => "bmap",
            IOCTL => "ioctl",
            POLL => "poll",
            FALLOCATE => "fallocate",
            LSEEK => "lseek",
            COPY_FILE_RANGE | COPY_FILE_RANGE_64 => "copy_file_range",
            SYNCFS => "syncfs",
            TMPFILE => "open of a file without a name",
            STATX => "statx",
            _ => "call",
        }
    }
}

/// The features on which kernel and file system can agree, as bits in the flags of `INIT`. The bits of the second word
/// of flags begin at bit 32.
pub mod features {
    /// The kernel may send several reads of a file at a time.
    pub const ASYNC_READ: u64 = 1;
    /// The kernel sends requests for byte-range locks to the file system. Without this feature it keeps these locks
    /// itself.
    pub const POSIX_LOCKS: u64 = 1 << 1;
    /// The kernel sends `O_TRUNC` with the open request.
    pub const ATOMIC_TRUNCATE: u64 = 1 << 3;
    /// The file system looks up `.` and `..` in nodes that the kernel has forgotten: file handles stay valid.
    pub const EXPORT: u64 = 1 << 4;
    /// Writes may be larger than a page.
    pub const BIG_WRITES: u64 = 1 << 5;
    /// The file system applies the umask, instead of the kernel.
    pub const DO_NOT_MASK: u64 = 1 << 6;
    /// The kernel sends requests for the locks of `flock` to the file system. Without this feature it keeps these locks
    /// itself.
    pub const FLOCK: u64 = 1 << 10;
    /// The kernel drops the cached pages of a file when its size or its time of modification has changed.
    pub const AUTO_INVALIDATE: u64 = 1 << 12;
    /// A listing may include attributes.
    pub const READ_DIRECTORY_PLUS: u64 = 1 << 13;
    /// The kernel chooses when a listing includes attributes.
    pub const READ_DIRECTORY_PLUS_AUTO: u64 = 1 << 14;
    /// The kernel may send all requests of one direct I/O call at the same time.
    pub const ASYNC_DIRECT_IO: u64 = 1 << 15;
    /// The kernel may send several look-ups and listings of one directory at a time.
    pub const PARALLEL_DIRECTORY: u64 = 1 << 18;
    /// The file system clears set-user-id bits and capabilities at each write, truncation and change of owner.
    pub const HANDLE_KILL_PRIVILEGES: u64 = 1 << 19;
    /// The kernel checks access control lists.
    pub const POSIX_ACL: u64 = 1 << 20;
    /// After an abort of the connection, reading the channel fails with an error number that has no other cause.
    pub const ABORT_ERROR: u64 = 1 << 21;
    /// Requests may be larger than 128 KiB.
    pub const MAX_PAGES: u64 = 1 << 22;
    /// The kernel caches the targets of symbolic links.
    pub const CACHE_SYMBOLIC_LINKS: u64 = 1 << 23;
    /// Like [`HANDLE_KILL_PRIVILEGES`], but the kernel says in each request whether bits and capabilities must be
    /// cleared.
    pub const HANDLE_KILL_PRIVILEGES_2: u64 = 1 << 28;
    /// The arguments of `setxattr` have further flags.
    pub const SETXATTR_EXTENDED: u64 = 1 << 29;
    /// `INIT` has a second word of flags.
    pub const INIT_EXTENDED: u64 = 1 << 30;
    /// The file system can make the kernel look a cached entry up again. The kernel keeps the entry until then.
    pub const EXPIRE_ONLY: u64 = 1 << 35;
    /// A file opened for direct I/O can be mapped shared.
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    /// The kernel can read and write files of other file systems itself ([`BackingFiles`](crate::BackingFiles)).
    pub const PASSTHROUGH: u64 = 1 << 37;

    /// The features that the request loop itself uses whenever the kernel offers them.
    pub const ALWAYS: u64 =
        ASYNC_READ | BIG_WRITES | ASYNC_DIRECT_IO | ABORT_ERROR | MAX_PAGES | SETXATTR_EXTENDED | INIT_EXTENDED;
}

/// Flags of an opened file or directory.
pub mod open_flags {
    /// Reads and writes bypass the page cache.
    pub const DIRECT_IO: u32 = 1;
    /// The kernel keeps the contents that it has cached for earlier opens of the file.
    pub const KEEP_CACHE: u32 = 1 << 1;
    /// The open file has no position, so it cannot be seeked.
    pub const NON_SEEKABLE: u32 = 1 << 2;
    /// The kernel may cache the listing.
    pub const CACHE_DIRECTORY: u32 = 1 << 3;
    /// The kernel sends no flush when a descriptor is closed.
    pub const NO_FLUSH: u32 = 1 << 5;
    /// The kernel may send several direct writes to one file at a time.
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
    /// The kernel reads and writes the backing file of the answer.
    pub const PASSTHROUGH: u32 = 1 << 7;
}

/// The bits that say which fields of a [`SetAttributes`](crate::SetAttributes) have a value.
pub mod valid {
    /// The mode changes.
    pub const MODE: u32 = 1;
    /// The owner changes.
    pub const USER: u32 = 1 << 1;
    /// The group changes.
    pub const GROUP: u32 = 1 << 2;
    /// The size changes.
    pub const SIZE: u32 = 1 << 3;
    /// The time of access changes.
    pub const ACCESSED: u32 = 1 << 4;
    /// The time of modification changes.
    pub const MODIFIED: u32 = 1 << 5;
    /// The request has a handle.
    pub const HANDLE: u32 = 1 << 6;
    /// The time of access becomes the current time.
    pub const ACCESSED_NOW: u32 = 1 << 7;
    /// The time of modification becomes the current time.
    pub const MODIFIED_NOW: u32 = 1 << 8;
    /// The request has a lock owner.
    pub const LOCK_OWNER: u32 = 1 << 9;
    /// The time of the last change of attributes is set.
    pub const CHANGED: u32 = 1 << 10;
    /// Set-user-id bits must be cleared.
    pub const KILL_PRIVILEGES: u32 = 1 << 11;
}

/// The codes of messages to the kernel that answer no request.
pub(crate) mod notice {
    pub const INVALIDATE_NODE: i32 = 2;
    pub const INVALIDATE_ENTRY: i32 = 3;
    pub const STORE: i32 = 4;
    pub const DELETE: i32 = 6;
    pub const NEXT_EPOCH: i32 = 8;
}

/// Converts a device number to the protocol's form, which holds the major and the minor number in 32 bits.
pub fn encode_device(device: u64) -> u32 {
    let (major, minor) = (libc::major(device), libc::minor(device));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// Converts the protocol's device number to the form of system calls.
pub fn decode_device(device: u32) -> u64 {
    libc::makedev((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & 0xfff00))
}
