//! The part of the FUSE protocol that one regular file needs, as its documentation gives it (`linux/fuse.h`, version 7.31).
//!
//! Owns: layouts, numbers, and the reading of a request out of bytes. Everything is in the machine's own byte order.
//! Promises: no request, however short or odd, is more than an error.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The version that is spoken.
pub const MAJOR: u32 = 7;
/// The minor version that is spoken.
pub const MINOR: u32 = 31;

/// The number of the file; that of its directory is 1.
pub const FILE: u64 = 2;

/// The bytes before the data of a write: the header and the write's own arguments.
pub const HEAD_BYTES: usize = size_of::<InHeader>() + size_of::<WriteIn>();

/// The flags of `INIT` that are taken where the kernel offers them: parallel asynchronous direct I/O, large writes.
pub const INIT_FLAGS: u32 = INIT_ASYNC_READ | INIT_BIG_WRITES | INIT_ASYNC_DIO | INIT_MAX_PAGES;
const INIT_ASYNC_READ: u32 = 1;
const INIT_BIG_WRITES: u32 = 1 << 5;
const INIT_ASYNC_DIO: u32 = 1 << 15;
const INIT_MAX_PAGES: u32 = 1 << 22;

/// The flags of an opened file: nothing is cached, writes run side by side, closing says nothing.
pub const OPEN_FLAGS: u32 = OPEN_DIRECT_IO | OPEN_NO_FLUSH | OPEN_PARALLEL_DIRECT_WRITES;
const OPEN_DIRECT_IO: u32 = 1;
const OPEN_NO_FLUSH: u32 = 1 << 5;
const OPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// The first request.
    Init(InitIn),
    /// The file of a name in the directory.
    LookUp,
    /// Size and mode of the file or its directory.
    GetAttributes,
    /// A handle on the file.
    Open,
    /// Bytes of the file.
    Read(ReadIn),
    /// Bytes for the file, which follow the head.
    Write(WriteIn),
    /// A flush.
    Sync,
    /// A hole, or zeroes.
    Allocate(AllocateIn),
    /// Sizes of the file system.
    StatFs,
    /// Whoever waits for a request was interrupted.
    Interrupt(u64),
    /// Nothing to do but to say so.
    Release,
    /// Nothing to do, and no answer.
    Forget,
    /// Something that this file does not have.
    Other,
}

/// Reads a request: `head` is what stands before a write's data, `rest` what came after it.
///
/// Gives `None` where there is no whole header or the arguments are cut off.
pub fn parse(head: &[u8], rest: &[u8]) -> Option<(InHeader, Call)> {
    let (header, arguments) = InHeader::read_from_prefix(head).ok()?;
    let call = match header.opcode {
        1 => Call::LookUp,
        3 => Call::GetAttributes,
        2 | 42 => Call::Forget,
        14 => Call::Open,
        15 => Call::Read(read(arguments)?),
        16 => {
            let write: WriteIn = read(arguments)?;
            if rest.len() != write.size as usize {
                return None;
            }
            Call::Write(write)
        }
        17 => Call::StatFs,
        18 | 38 => Call::Release,
        20 => Call::Sync,
        26 => Call::Init(read(arguments)?),
        36 => Call::Interrupt(read(arguments)?),
        43 => Call::Allocate(read(arguments)?),
        _ => Call::Other,
    };
    Some((header, call))
}

fn read<T: FromBytes>(bytes: &[u8]) -> Option<T> {
    T::read_from_prefix(bytes).ok().map(|(value, _)| value)
}

/// The head of every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct InHeader {
    pub length: u32,
    pub opcode: u32,
    pub unique: u64,
    pub node: u64,
    pub user: u32,
    pub group: u32,
    pub process: u32,
    pub extension: u32,
}

/// The head of every answer.
#[derive(Debug, Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
#[allow(missing_docs)]
pub struct OutHeader {
    pub length: u32,
    pub error: i32,
    pub unique: u64,
}

/// What the kernel says first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct InitIn {
    pub major: u32,
    pub minor: u32,
    pub read_ahead_bytes_max: u32,
    pub flags: u32,
}

/// What it is told.
#[derive(Debug, Clone, Copy, Default, IntoBytes, Immutable)]
#[repr(C)]
#[allow(missing_docs)]
pub struct InitOut {
    pub major: u32,
    pub minor: u32,
    pub read_ahead_bytes_max: u32,
    pub flags: u32,
    pub background_max: u16,
    pub congestion_threshold: u16,
    pub write_bytes_max: u32,
    pub time_granularity_ns: u32,
    pub pages_max: u16,
    pub alignment: u16,
    pub unused: [u32; 8],
}

/// The arguments of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct ReadIn {
    pub handle: u64,
    pub offset: u64,
    pub size: u32,
    pub read_flags: u32,
    pub owner: u64,
    pub flags: u32,
    pub padding: u32,
}

/// The arguments of a write; its data follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct WriteIn {
    pub handle: u64,
    pub offset: u64,
    pub size: u32,
    pub write_flags: u32,
    pub owner: u64,
    pub flags: u32,
    pub padding: u32,
}

/// The answer to a write.
#[derive(Debug, Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
#[allow(missing_docs)]
pub struct WriteOut {
    pub size: u32,
    pub padding: u32,
}

/// The arguments of `fallocate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct AllocateIn {
    pub handle: u64,
    pub offset: u64,
    pub length: u64,
    pub mode: u32,
    pub padding: u32,
}

/// The answer to `OPEN`.
#[derive(Debug, Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
#[allow(missing_docs)]
pub struct OpenOut {
    pub handle: u64,
    pub flags: u32,
    pub padding: u32,
}

/// What a file is.
#[derive(Debug, Clone, Copy, Default, IntoBytes, Immutable)]
#[repr(C)]
#[allow(missing_docs)]
pub struct Attributes {
    pub node: u64,
    pub size: u64,
    pub blocks: u64,
    pub times: [u64; 3],
    pub times_ns: [u32; 3],
    pub mode: u32,
    pub links: u32,
    pub user: u32,
    pub group: u32,
    pub device: u32,
    pub block_bytes: u32,
    pub flags: u32,
}

/// The answer to `GETATTR`.
#[derive(Debug, Clone, Copy, Default, IntoBytes, Immutable)]
#[repr(C)]
#[allow(missing_docs)]
pub struct AttributesOut {
    pub valid_seconds: u64,
    pub valid_ns: u32,
    pub padding: u32,
    pub attributes: Attributes,
}

/// The answer to `LOOKUP`.
#[derive(Debug, Clone, Copy, Default, IntoBytes, Immutable)]
#[repr(C)]
#[allow(missing_docs)]
pub struct EntryOut {
    pub node: u64,
    pub generation: u64,
    pub entry_valid_seconds: u64,
    pub attributes_valid_seconds: u64,
    pub entry_valid_ns: u32,
    pub attributes_valid_ns: u32,
    pub attributes: Attributes,
}

/// The answer to `STATFS`.
#[derive(Debug, Clone, Copy, Default, IntoBytes, Immutable)]
#[repr(C)]
#[allow(missing_docs)]
pub struct StatFsOut {
    pub blocks: u64,
    pub free: u64,
    pub available: u64,
    pub files: u64,
    pub files_free: u64,
    pub block_bytes: u32,
    pub name_bytes_max: u32,
    pub fragment_bytes: u32,
    pub padding: u32,
    pub spare: [u32; 6],
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(opcode: u32) -> InHeader {
        InHeader { length: 0, opcode, unique: 7, node: 1, user: 0, group: 0, process: 0, extension: 0 }
    }

    #[test]
    fn layouts_have_the_sizes_of_the_protocol() {
        assert_eq!((size_of::<InHeader>(), size_of::<OutHeader>(), HEAD_BYTES), (40, 16, 80));
        assert_eq!((size_of::<InitOut>(), size_of::<AttributesOut>(), size_of::<EntryOut>()), (64, 16 + 88, 40 + 88));
        assert_eq!((size_of::<OpenOut>(), size_of::<StatFsOut>(), size_of::<AllocateIn>()), (16, 80, 32));
    }

    #[test]
    fn requests_that_are_cut_off_are_refused_at_every_length() {
        for opcode in 0..60 {
            let mut bytes = header(opcode).as_bytes().to_vec();
            bytes.resize(HEAD_BYTES, 0);
            assert!(parse(&bytes, &[]).is_some(), "{opcode}");
            for length in 0..HEAD_BYTES {
                let parsed = parse(&bytes[..length], &[]);
                assert!(length >= 40 || parsed.is_none(), "{opcode} at {length}");
            }
        }
    }

    #[test]
    fn a_write_has_the_data_that_it_names() {
        let write = WriteIn { handle: 1, offset: 4096, size: 3, write_flags: 0, owner: 0, flags: 0, padding: 0 };
        let head = [header(16).as_bytes(), write.as_bytes()].concat();
        assert_eq!(parse(&head, b"abc").map(|request| request.1), Some(Call::Write(write)));
        assert_eq!(parse(&head, b"ab"), None);
        assert_eq!(parse(&head, b"abcd"), None);
    }
}
