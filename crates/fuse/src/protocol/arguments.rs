//! The layouts of the arguments of the kernel's requests.
#![allow(missing_docs)] // The fields are the kernel's, with full words as names.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! layouts {
    ($($name:ident { $($field:ident: $kind:ty),* $(,)? })*) => {
        $(
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
            #[repr(C)]
            pub struct $name { $(pub $field: $kind),* }
        )*
    };
}

layouts! {
    InHeader {
        length: u32, opcode: u32, unique: u64, node: u64, user: u32, group: u32, process: u32, extension_words: u16,
        padding: u16,
    }
    InitIn { major: u32, minor: u32, read_ahead_bytes_max: u32, flags: u32 }
    ForgetIn { lookups: u64 }
    ForgetOne { node: u64, lookups: u64 }
    BatchForgetIn { count: u32, padding: u32 }
    GetAttributesIn { flags: u32, padding: u32, handle: u64 }
    StatXIn { flags: u32, padding: u32, handle: u64, call_flags: u32, mask: u32 }
    SetAttributesIn {
        valid: u32, padding: u32, handle: u64, size: u64, owner: u64, accessed: u64, modified: u64, changed: u64,
        accessed_ns: u32, modified_ns: u32, changed_ns: u32, mode: u32, unused: u32, user: u32, group: u32,
        unused_too: u32,
    }
    MakeNodeIn { mode: u32, device: u32, umask: u32, padding: u32 }
    MakeDirectoryIn { mode: u32, umask: u32 }
    RenameIn { parent: u64 }
    Rename2In { parent: u64, flags: u32, padding: u32 }
    LinkIn { node: u64 }
    OpenIn { flags: u32, open_flags: u32 }
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    ReleaseIn { handle: u64, flags: u32, release_flags: u32, owner: u64 }
    FlushIn { handle: u64, unused: u32, padding: u32, owner: u64 }
    ReadIn { handle: u64, offset: u64, size: u32, read_flags: u32, owner: u64, flags: u32, padding: u32 }
    WriteIn { handle: u64, offset: u64, size: u32, write_flags: u32, owner: u64, flags: u32, padding: u32 }
    SyncIn { handle: u64, flags: u32, padding: u32 }
    SetXattrIn { size: u32, flags: u32 }
    SetXattrMore { flags: u32, padding: u32 }
    GetXattrIn { size: u32, padding: u32 }
    LockIn { handle: u64, owner: u64, start: u64, end: u64, kind: u32, process: u32, flags: u32, padding: u32 }
    AccessIn { mask: u32, padding: u32 }
    InterruptIn { unique: u64 }
    BlockMapIn { block: u64, block_bytes: u32, padding: u32 }
    IoctlIn { handle: u64, flags: u32, command: u32, argument: u64, input_bytes: u32, output_bytes: u32 }
    PollIn { handle: u64, kernel_handle: u64, flags: u32, events: u32 }
    AllocateIn { handle: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    SeekIn { handle: u64, offset: u64, whence: u32, padding: u32 }
    CopyIn {
        handle: u64, offset: u64, to_node: u64, to_handle: u64, to_offset: u64, length: u64, flags: u64,
    }
}

/// The number of bytes before the data of a write: the header and the write's own arguments.
pub const HEAD_BYTES: usize = size_of::<InHeader>() + size_of::<WriteIn>();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argument_structs_match_protocol_sizes() {
        assert_eq!((size_of::<InHeader>(), size_of::<WriteIn>(), HEAD_BYTES), (40, 40, 80));
        assert_eq!((size_of::<SetAttributesIn>(), size_of::<StatXIn>(), size_of::<LockIn>()), (88, 24, 48));
        assert_eq!((size_of::<CopyIn>(), size_of::<IoctlIn>(), size_of::<AllocateIn>()), (56, 32, 32));
        assert_eq!((size_of::<ReleaseIn>(), size_of::<FlushIn>(), size_of::<SeekIn>()), (24, 24, 24));
    }
}
