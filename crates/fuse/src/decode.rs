//! Decoding requests.
//!
//! Owns: the definition of a well-formed request. Promises: any bytes decode to a request or to `None`. Every length,
//! offset, count and name is checked before a file system gets it:
//! - names are not empty, have no `/`, are neither `.` nor `..` (but in look-ups by file handles), and have at most
//!   [`NAME_BYTES_MAX`] bytes;
//! - ranges of files end below 2^63, but a search for data may begin anywhere;
//! - the size that a request allows for its answer is at most the size limit of requests, or [`XATTR_BYTES_MAX`] for
//!   extended attributes;
//! - the data after the arguments have the length that the arguments state.

use std::ffi::CStr;

use zerocopy::FromBytes;

use crate::protocol::arguments::{
    AccessIn, AllocateIn, BlockMapIn, CopyIn, CreateIn, FlushIn, GetAttributesIn, GetXattrIn, InHeader, IoctlIn,
    LinkIn, LockIn, MakeDirectoryIn, MakeNodeIn, OpenIn, PollIn, ReadIn, ReleaseIn, Rename2In, RenameIn, SeekIn,
    SetAttributesIn, SetXattrIn, SetXattrMore, StatXIn, SyncIn, WriteIn,
};
use crate::protocol::{NAME_BYTES_MAX, XATTR_BYTES_MAX, opcode, valid};
use crate::request::{CopyCall, LockRange, ReadCall, RequestCall, SetAttributes, WriteCall};

/// The highest offset in a file that the kernel supports.
const OFFSET_MAX: u64 = i64::MAX as u64;
/// The nanoseconds of a second.
const SECOND_NS: u32 = 1_000_000_000;

/// The results of the negotiation on which decoding depends: a feature that changes a layout, and the size limit.
#[derive(Debug, Clone, Copy)]
pub struct WireFormat {
    /// Whether the arguments of `setxattr` have further flags.
    pub has_wide_setxattr: bool,
    /// Whether `.` and `..` may be looked up: [`features::EXPORT`](crate::protocol::features::EXPORT).
    pub looks_up_dots: bool,
    /// The maximum number of bytes of a read or a write.
    pub request_bytes_max: u32,
}

/// Decodes a request. `arguments` is the part after the header, without the data of a write, whose length is
/// `data_bytes`.
///
/// Returns `None` if an argument is truncated or out of bounds.
pub fn decode<'a>(
    header: &InHeader,
    arguments: &'a [u8],
    data_bytes: usize,
    form: WireFormat,
) -> Option<RequestCall<'a>> {
    let mut rest = ArgumentReader(arguments);
    let call = match header.opcode {
        opcode::LOOKUP => {
            RequestCall::LookUp { name: if form.looks_up_dots { rest.name_or_dots()? } else { rest.name()? } }
        }
        opcode::GETATTR => {
            let GetAttributesIn { flags, handle, .. } = rest.take()?;
            RequestCall::GetAttributes { handle: (flags & 1 != 0).then_some(handle) }
        }
        opcode::STATX => {
            let StatXIn { flags, handle, call_flags, mask, .. } = rest.take()?;
            RequestCall::StatX { handle: (flags & 1 != 0).then_some(handle), flags: call_flags, mask }
        }
        opcode::SETATTR => RequestCall::SetAttributes(set_attributes(rest.take()?)?),
        opcode::READLINK => RequestCall::ReadLink,
        opcode::SYMLINK => RequestCall::SymbolicLink { name: rest.name()?, target: rest.text()? },
        opcode::MKNOD => {
            let MakeNodeIn { mode, device, umask, .. } = rest.take()?;
            RequestCall::MakeNode { name: rest.name()?, mode, device, umask }
        }
        opcode::MKDIR => {
            let MakeDirectoryIn { mode, umask } = rest.take()?;
            RequestCall::MakeDirectory { name: rest.name()?, mode, umask }
        }
        opcode::UNLINK => RequestCall::Unlink { name: rest.name()? },
        opcode::RMDIR => RequestCall::RemoveDirectory { name: rest.name()? },
        opcode::RENAME => {
            let RenameIn { parent } = rest.take()?;
            RequestCall::Rename { name: rest.name()?, new_parent: parent, new_name: rest.name()?, flags: 0 }
        }
        opcode::RENAME2 => {
            let Rename2In { parent, flags, .. } = rest.take()?;
            RequestCall::Rename { name: rest.name()?, new_parent: parent, new_name: rest.name()?, flags }
        }
        opcode::LINK => {
            let LinkIn { node } = rest.take()?;
            RequestCall::Link { node, new_name: rest.name()? }
        }
        opcode::OPEN => {
            let OpenIn { flags, open_flags } = rest.take()?;
            RequestCall::Open { flags: flags as i32, kill_privileges: open_flags & 1 != 0 }
        }
        opcode::CREATE => {
            let CreateIn { flags, mode, umask, open_flags } = rest.take()?;
            let (name, kill_privileges) = (rest.name()?, open_flags & 1 != 0);
            RequestCall::Create { name, mode, umask, flags: flags as i32, kill_privileges }
        }
        opcode::TMPFILE => {
            // After the arguments the kernel sends the name `/`, because the file has no name. The name is not needed.
            let CreateIn { flags, mode, umask, .. } = rest.take()?;
            RequestCall::TemporaryFile { mode, umask, flags: flags as i32 }
        }
        opcode::READ => {
            let ReadIn { handle, offset, size, read_flags, owner, flags, .. } = rest.take()?;
            let owner = (read_flags & 2 != 0).then_some(owner);
            let (offset, size) = (range(offset, size.into())?, bounded(size, form.request_bytes_max)?);
            RequestCall::Read(ReadCall { handle, offset, size, flags: flags as i32, owner })
        }
        opcode::WRITE => {
            let WriteIn { handle, offset, size, write_flags, owner, flags, .. } = rest.take()?;
            if data_bytes != size as usize {
                return None;
            }
            let (offset, size) = (range(offset, size.into())?, bounded(size, form.request_bytes_max)?);
            let owner = (write_flags & 2 != 0).then_some(owner);
            let (from_page_cache, kill_privileges) = (write_flags & 1 != 0, write_flags & 4 != 0);
            RequestCall::Write(WriteCall {
                handle,
                offset,
                size,
                flags: flags as i32,
                owner,
                from_page_cache,
                kill_privileges,
            })
        }
        opcode::STATFS => RequestCall::StatFs,
        opcode::RELEASE => {
            let ReleaseIn { handle, flags, release_flags, owner } = rest.take()?;
            let (flush, unlock) = (release_flags & 1 != 0, release_flags & 2 != 0);
            RequestCall::Release { handle, flags: flags as i32, owner, flush, unlock }
        }
        opcode::RELEASEDIR => {
            let ReleaseIn { handle, .. } = rest.take()?;
            RequestCall::ReleaseDirectory { handle }
        }
        opcode::FSYNC => {
            let SyncIn { handle, flags, .. } = rest.take()?;
            RequestCall::Sync { handle, data_only: flags & 1 != 0 }
        }
        opcode::FSYNCDIR => {
            let SyncIn { handle, flags, .. } = rest.take()?;
            RequestCall::SyncDirectory { handle, data_only: flags & 1 != 0 }
        }
        opcode::SYNCFS => RequestCall::SyncFileSystem,
        opcode::FLUSH => {
            let FlushIn { handle, owner, .. } = rest.take()?;
            RequestCall::Flush { handle, owner }
        }
        opcode::SETXATTR => {
            let SetXattrIn { size, flags } = rest.take()?;
            let more = if form.has_wide_setxattr { rest.take::<SetXattrMore>()?.flags } else { 0 };
            let name = rest.text_of(NAME_BYTES_MAX)?;
            if name.is_empty() || size as usize > XATTR_BYTES_MAX || rest.0.len() != size as usize {
                return None;
            }
            RequestCall::SetXattr { name, value: rest.0, flags, kill_group_id: more & 1 != 0 }
        }
        opcode::GETXATTR => {
            let GetXattrIn { size, .. } = rest.take()?;
            RequestCall::GetXattr { name: rest.some_text()?, size: size.min(XATTR_BYTES_MAX as u32) }
        }
        opcode::LISTXATTR => {
            let GetXattrIn { size, .. } = rest.take()?;
            RequestCall::ListXattr { size: size.min(XATTR_BYTES_MAX as u32) }
        }
        opcode::REMOVEXATTR => RequestCall::RemoveXattr { name: rest.some_text()? },
        opcode::OPENDIR => {
            let OpenIn { flags, .. } = rest.take()?;
            RequestCall::OpenDirectory { flags: flags as i32 }
        }
        opcode::READDIR | opcode::READDIRPLUS => {
            let ReadIn { handle, offset, size, .. } = rest.take()?;
            let size = bounded(size, form.request_bytes_max)?;
            RequestCall::ReadDirectory { handle, offset, size, plus: header.opcode == opcode::READDIRPLUS }
        }
        opcode::GETLK => RequestCall::GetLock(lock(rest.take()?)?),
        opcode::SETLK | opcode::SETLKW => {
            RequestCall::SetLock { lock: lock(rest.take()?)?, waits: header.opcode == opcode::SETLKW }
        }
        opcode::ACCESS => {
            let AccessIn { mask, .. } = rest.take()?;
            RequestCall::Access { mask }
        }
        opcode::LSEEK => {
            let SeekIn { handle, offset, whence, .. } = rest.take()?;
            RequestCall::Seek { handle, offset, whence: whence as i32 }
        }
        opcode::FALLOCATE => {
            let AllocateIn { handle, offset, length, mode, .. } = rest.take()?;
            RequestCall::Allocate { handle, offset: range(offset, length)?, length, mode: mode as i32 }
        }
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => {
            let CopyIn { handle, offset, to_node, to_handle, to_offset, length, flags } = rest.take()?;
            let (offset, to_offset) = (range(offset, length)?, range(to_offset, length)?);
            let is_wide = header.opcode == opcode::COPY_FILE_RANGE_64;
            RequestCall::Copy(CopyCall { handle, offset, to_node, to_handle, to_offset, length, flags, is_wide })
        }
        opcode::BMAP => {
            let BlockMapIn { block, block_bytes, .. } = rest.take()?;
            RequestCall::BlockMap { block, block_bytes }
        }
        opcode::IOCTL => {
            let IoctlIn { handle, flags, command, argument, input_bytes, output_bytes } = rest.take()?;
            let output_bytes_max = bounded(output_bytes, form.request_bytes_max)?;
            if rest.0.len() != input_bytes as usize {
                return None;
            }
            RequestCall::Ioctl { handle, flags, command, argument, input: rest.0, output_bytes_max }
        }
        opcode::POLL => {
            let PollIn { handle, kernel_handle, flags, events } = rest.take()?;
            RequestCall::Poll { handle, kernel_handle, flags, events }
        }
        other => RequestCall::Other(other),
    };
    Some(call)
}

/// Returns the offset of a range; `None` unless the range ends below 2^63.
fn range(offset: u64, length: u64) -> Option<u64> {
    offset.checked_add(length).filter(|&end| end <= OFFSET_MAX).map(|_| offset)
}

fn bounded(value: u32, max: u32) -> Option<u32> {
    (value <= max).then_some(value)
}

fn set_attributes(change: SetAttributesIn) -> Option<SetAttributes> {
    let SetAttributesIn { valid: bits, handle, size, owner, mode, user, group, .. } = change;
    let has = |bit| bits & bit != 0;
    let time = |bit, seconds: u64, ns: u32| (!has(bit) || ns < SECOND_NS).then_some((seconds as i64, ns));
    if has(valid::SIZE) && size > OFFSET_MAX {
        return None;
    }
    Some(SetAttributes {
        valid: bits,
        handle: has(valid::HANDLE).then_some(handle),
        size,
        owner: has(valid::LOCK_OWNER).then_some(owner),
        accessed: time(valid::ACCESSED, change.accessed, change.accessed_ns)?,
        modified: time(valid::MODIFIED, change.modified, change.modified_ns)?,
        changed: time(valid::CHANGED, change.changed, change.changed_ns)?,
        mode,
        user,
        group,
    })
}

fn lock(lock: LockIn) -> Option<LockRange> {
    let LockIn { handle, owner, start, end, kind, process, flags, .. } = lock;
    let kind = kind as i32;
    let is_known = [libc::F_RDLCK, libc::F_WRLCK, libc::F_UNLCK].contains(&kind);
    let is_range = start <= end && end <= OFFSET_MAX;
    (is_known && is_range).then_some(LockRange { handle, owner, start, end, kind, process, is_flock: flags & 1 != 0 })
}

/// The arguments that have not been read yet.
struct ArgumentReader<'a>(&'a [u8]);

impl<'a> ArgumentReader<'a> {
    fn take<T: FromBytes>(&mut self) -> Option<T> {
        let (value, rest) = T::read_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some(value)
    }

    /// Reads a text of at most `bytes_max` bytes that ends with a zero byte.
    fn text_of(&mut self, bytes_max: usize) -> Option<&'a CStr> {
        let bytes = &self.0[..self.0.len().min(bytes_max + 1)];
        let text = CStr::from_bytes_until_nul(bytes).ok()?;
        self.0 = &self.0[text.count_bytes() + 1..];
        Some(text)
    }

    fn text(&mut self) -> Option<&'a CStr> {
        self.text_of(NAME_BYTES_MAX)
    }

    fn some_text(&mut self) -> Option<&'a CStr> {
        self.text().filter(|text| !text.is_empty())
    }

    /// Reads the name of a directory entry.
    fn name(&mut self) -> Option<&'a CStr> {
        self.name_or_dots().filter(|name| !matches!(name.to_bytes(), b"." | b".."))
    }

    /// Reads the name of a directory entry, or `.` or `..`.
    fn name_or_dots(&mut self) -> Option<&'a CStr> {
        self.some_text().filter(|name| !name.to_bytes().contains(&b'/'))
    }
}
