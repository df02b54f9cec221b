//! The layouts of answers to the kernel.
#![allow(missing_docs)] // The fields are the kernel's, with full words as names.

use zerocopy::{Immutable, IntoBytes};

macro_rules! layouts {
    ($($name:ident { $($field:ident: $kind:ty),* $(,)? })*) => {
        $(
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, IntoBytes, Immutable)]
            #[repr(C)]
            pub struct $name { $(pub $field: $kind),* }
        )*
    };
}

layouts! {
    OutHeader { length: u32, error: i32, unique: u64 }
    InitOut {
        major: u32, minor: u32, read_ahead_bytes_max: u32, flags: u32, background_max: u16, congestion_threshold: u16,
        write_bytes_max: u32, time_granularity_ns: u32, pages_max: u16, map_alignment: u16, flags2: u32,
        stack_depth_max: u32, request_timeout_seconds: u16, unused: [u16; 11],
    }
    AttributesLayout {
        node: u64, size: u64, blocks: u64, accessed: i64, modified: i64, changed: i64, accessed_ns: u32,
        modified_ns: u32, changed_ns: u32, mode: u32, links: u32, user: u32, group: u32, device: u32,
        block_bytes: u32, flags: u32,
    }
    AttributesOut { valid_seconds: u64, valid_ns: u32, padding: u32, attributes: AttributesLayout }
    EntryOut {
        node: u64, generation: u64, entry_valid_seconds: u64, attributes_valid_seconds: u64, entry_valid_ns: u32,
        attributes_valid_ns: u32, attributes: AttributesLayout,
    }
    OpenOut { handle: u64, flags: u32, backing: u32 }
    WriteOut { size: u32, padding: u32 }
    CopyOut { size: u64 }
    XattrOut { size: u32, padding: u32 }
    SeekOut { offset: u64 }
    LockOut { start: u64, end: u64, kind: u32, process: u32 }
    StatFsOut {
        blocks: u64, free: u64, available: u64, files: u64, files_free: u64, block_bytes: u32, name_bytes_max: u32,
        fragment_bytes: u32, padding: u32, spare: [u32; 6],
    }
    StatXTime { seconds: i64, ns: u32, padding: i32 }
    StatXLayout {
        mask: u32, block_bytes: u32, attributes: u64, links: u32, user: u32, group: u32, mode: u16, spare: u16,
        node: u64, size: u64, blocks: u64, attributes_mask: u64, accessed: StatXTime, born: StatXTime,
        changed: StatXTime, modified: StatXTime, device_major: u32, device_minor: u32, on_major: u32, on_minor: u32,
        spare_too: [u64; 14],
    }
    StatXOut { valid_seconds: u64, valid_ns: u32, flags: u32, spare: [u64; 2], stat: StatXLayout }
    EntryHead { node: u64, next_offset: u64, name_bytes: u32, kind: u32 }
    InvalidateNodeOut { node: u64, offset: i64, length: i64 }
    InvalidateEntryOut { parent: u64, name_bytes: u32, flags: u32 }
    StoreOut { node: u64, offset: u64, bytes: u32, padding: u32 }
    DeleteOut { parent: u64, child: u64, name_bytes: u32, padding: u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_structs_match_protocol_sizes() {
        assert_eq!((size_of::<OutHeader>(), size_of::<InitOut>(), size_of::<AttributesLayout>()), (16, 64, 88));
        assert_eq!((size_of::<AttributesOut>(), size_of::<EntryOut>(), size_of::<StatFsOut>()), (104, 128, 80));
        assert_eq!((size_of::<StatXLayout>(), size_of::<StatXOut>(), size_of::<EntryHead>()), (256, 288, 24));
        assert_eq!((size_of::<LockOut>(), size_of::<DeleteOut>(), size_of::<InvalidateNodeOut>()), (24, 24, 24));
        assert_eq!(size_of::<StoreOut>(), 24);
    }
}
