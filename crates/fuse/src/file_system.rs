//! The trait of a file system: one method for each call of the kernel.
//!
//! Owns: which call leads to which method. Promises: a call without a method is answered with `ENOSYS`; the kernel then
//! works without that call if it can.

use std::ffi::CStr;

use crate::error::Errno;
use crate::negotiate::{NegotiationResult, RequestedFeatures};
use crate::pool::PooledData;
use crate::reply::ReplyHandle;
use crate::request::{
    CopyCall, FuseRequest, LockRange, ReadCall, RequestCall, RequestContext, SetAttributes, WriteCall,
};

/// Makes the trait from a list of calls: for each the pattern that names its arguments, and its method.
macro_rules! file_system {
    ($($(#[$document:meta])* $pattern:pat => $method:ident($($argument:ident: $kind:ty),*);)*) => {
        /// A file system.
        ///
        /// Every method is called on the threads that receive requests, possibly on several at a time. A call may wait
        /// for a disk. It must not wait for another request, for example for a lock that another request releases.
        /// Instead, it keeps the [`ReplyHandle`], and the file system answers later.
        pub trait FuseFileSystem: Send + Sync + 'static {
            /// The features that the file system requests from the kernel.
            fn wishes(&self) -> RequestedFeatures {
                RequestedFeatures::default()
            }

            /// The loop calls this method when the features have been negotiated, before the first request.
            fn started(&self, agreed: &NegotiationResult) {
                let _ = agreed;
            }

            /// Looks at a request before it is served. *Errors*: the request is answered with the error, and not served.
            fn admit(&self, request: &FuseRequest<'_>) -> Result<(), Errno> {
                let _ = request;
                Ok(())
            }

            /// Serves a request: calls the method of its call.
            fn serve(&self, request: FuseRequest<'_>, reply: ReplyHandle) {
                if let Err(error) = self.admit(&request) {
                    return reply.error(error);
                }
                let of = request.context();
                match request.call {
                    $($pattern => self.$method(of, $($argument,)* reply),)*
                    RequestCall::Write(write) => match request.data {
                        Some(data) => self.write(of, write, data, reply),
                        None => reply.errno(libc::EINVAL),
                    },
                    RequestCall::BlockMap { .. }
                    | RequestCall::Ioctl { .. }
                    | RequestCall::Poll { .. }
                    | RequestCall::Other(_) => reply.errno(libc::ENOSYS),
                }
            }

            $($(#[$document])*
            #[allow(unused_variables)]
            fn $method(&self, of: RequestContext, $($argument: $kind,)* reply: ReplyHandle) {
                reply.errno(libc::ENOSYS);
            })*

            /// Writes to a file. The data have the length that the call states.
            fn write(&self, of: RequestContext, write: WriteCall, data: PooledData, reply: ReplyHandle) {
                let _ = (of, write, data);
                reply.errno(libc::ENOSYS);
            }

            /// The loop calls this method when the kernel ends `lookups` look-ups of a node. When no look-up is left,
            /// the kernel does not use the node until it looks the node up again.
            fn forget(&self, node: u64, lookups: u64) {
                let _ = (node, lookups);
            }

            /// The loop calls this method when the process that waits for a request was interrupted. `is_answered` says
            /// whether the interrupt has already answered the request.
            fn interrupted(&self, unique: u64, is_answered: bool) {
                let _ = (unique, is_answered);
            }

            /// The loop calls this method when the file system is unmounted. No request follows.
            fn destroyed(&self) {}
        }
    };
}

file_system! {
    /// Looks up a name in a directory.
    RequestCall::LookUp { name } => look_up(name: &CStr);
    /// Returns attributes.
    RequestCall::GetAttributes { .. } => get_attributes();
    /// Returns attributes with the additions of `statx`.
    RequestCall::StatX { .. } => stat_x();
    /// Changes attributes.
    RequestCall::SetAttributes(change) => set_attributes(change: SetAttributes);
    /// Returns the target of a symbolic link.
    RequestCall::ReadLink => read_link();
    /// Makes a symbolic link.
    RequestCall::SymbolicLink { name, target } => symbolic_link(name: &CStr, target: &CStr);
    /// Makes a file, or a device file with a [number](crate::protocol::decode_device).
    RequestCall::MakeNode { name, mode, device, umask } => make_node(name: &CStr, mode: u32, device: u32, umask: u32);
    /// Makes a directory.
    RequestCall::MakeDirectory { name, mode, umask } => make_directory(name: &CStr, mode: u32, umask: u32);
    /// Removes a name of a file from a directory.
    RequestCall::Unlink { name } => unlink(name: &CStr);
    /// Removes a directory.
    RequestCall::RemoveDirectory { name } => remove_directory(name: &CStr);
    /// Renames a directory entry; the flags are those of `renameat2`.
    RequestCall::Rename { name, new_parent, new_name, flags } =>
        rename(name: &CStr, new_parent: u64, new_name: &CStr, flags: u32);
    /// Adds a name for a node, in the directory that the request is about.
    RequestCall::Link { node, new_name } => link(node: u64, new_name: &CStr);
    /// Opens a file.
    RequestCall::Open { flags, .. } => open(flags: i32);
    /// Makes a file and opens it.
    RequestCall::Create { name, mode, umask, flags, .. } => create(name: &CStr, mode: u32, umask: u32, flags: i32);
    /// Makes a file without a name and opens it.
    RequestCall::TemporaryFile { mode, umask, flags } => temporary_file(mode: u32, umask: u32, flags: i32);
    /// Reads from a file.
    RequestCall::Read(read) => read(read: ReadCall);
    /// Returns the sizes of the file system.
    RequestCall::StatFs => stat_fs();
    /// Closes a handle that has no more users. If `unlock` is true, the locks of `owner` by `flock` end.
    RequestCall::Release { handle, owner, unlock, .. } => release(handle: u64, owner: u64, unlock: bool);
    /// Closes a handle on a directory.
    RequestCall::ReleaseDirectory { handle } => release_directory(handle: u64);
    /// Makes the bytes written to a file durable.
    RequestCall::Sync { handle, .. } => sync(handle: u64);
    /// Makes the names in a directory durable.
    RequestCall::SyncDirectory { handle, .. } => sync_directory(handle: u64);
    /// Makes the whole file system durable.
    RequestCall::SyncFileSystem => sync_file_system();
    /// Tells the file system that a descriptor of a handle was closed. The locks of `owner` must be released.
    RequestCall::Flush { handle, owner } => flush(handle: u64, owner: u64);
    /// Sets an extended attribute; the flags are those of `setxattr`.
    RequestCall::SetXattr { name, value, flags, kill_group_id } =>
        set_xattr(name: &CStr, value: &[u8], flags: u32, kill_group_id: bool);
    /// Returns the value of an extended attribute, or only the length of the value if `size` is 0.
    RequestCall::GetXattr { name, size } => get_xattr(name: &CStr, size: u32);
    /// Returns the names of all extended attributes, each with a zero byte at its end; only their total length if `size`
    /// is 0.
    RequestCall::ListXattr { size } => list_xattr(size: u32);
    /// Removes an extended attribute.
    RequestCall::RemoveXattr { name } => remove_xattr(name: &CStr);
    /// Opens a directory.
    RequestCall::OpenDirectory { .. } => open_directory();
    /// Lists entries of a directory from `offset` on, with their attributes if `plus` is true.
    RequestCall::ReadDirectory { handle, offset, size, plus } =>
        read_directory(handle: u64, offset: u64, size: u32, plus: bool);
    /// Returns a lock that conflicts with the given lock.
    RequestCall::GetLock(lock) => get_lock(lock: LockRange);
    /// Sets a lock. If `waits` is true, the request is answered when the lock is free, but the method must not wait until
    /// then.
    RequestCall::SetLock { lock, waits } => set_lock(lock: LockRange, waits: bool);
    /// Checks whether the caller has access.
    RequestCall::Access { mask } => access(mask: u32);
    /// Finds the next data or the next hole.
    RequestCall::Seek { handle, offset, whence } => seek(handle: u64, offset: u64, whence: i32);
    /// Allocates blocks, punches a hole or writes zeroes. The mode is that of `fallocate`.
    RequestCall::Allocate { handle, offset, length, mode } =>
        allocate(handle: u64, offset: u64, length: u64, mode: i32);
    /// Copies bytes from one file to another.
    RequestCall::Copy(copy) => copy(copy: CopyCall);
}
