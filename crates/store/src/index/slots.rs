//! The memory of a shard's table.
//!
//! Owns: the memory of the slots. The tables of a large loaded index are in one allocation, on huge pages if the kernel
//! has some: with small pages, page faults take longer than reading the index from disk. When a table is replaced, its
//! pages are released at once. The address range is released together with the last table.

use std::ops::{Deref, DerefMut};

use bytes::{Buf, BytesMut};
use nectary_block::{advise_huge_pages, release_pages};
use zerocopy::FromBytes;

use super::SLOT_BYTES;

/// Tables with at least this total size share one allocation, on huge pages. Smaller tables are soon replaced by larger
/// ones. *Units*: bytes.
const TOGETHER_BYTES_MIN: usize = 4 << 20;

/// The slots of a table: a whole number of aligned slots.
pub struct SlotTable {
    bytes: BytesMut,
    is_part: bool,
}

impl SlotTable {
    /// Makes empty tables with room for the given numbers of bytes.
    pub fn rooms(sizes: &[usize]) -> Vec<SlotTable> {
        let all: usize = sizes.iter().sum();
        if all < TOGETHER_BYTES_MIN {
            return sizes.iter().map(|&bytes| SlotTable { bytes: aligned(bytes), is_part: false }).collect();
        }
        let mut rest = aligned(all);
        advise_huge_pages(rest.spare_capacity_mut());
        let part = |&bytes: &usize| {
            let after = rest.split_off(bytes);
            SlotTable { bytes: std::mem::replace(&mut rest, after), is_part: true }
        };
        sizes.iter().map(part).collect()
    }

    /// Makes a table of `count` empty slots.
    pub fn empty(count: usize) -> SlotTable {
        let mut bytes = BytesMut::zeroed(count * SLOT_BYTES + align_of::<u64>() - 1);
        bytes.advance(bytes.as_ptr().align_offset(align_of::<u64>()));
        bytes.truncate(count * SLOT_BYTES);
        SlotTable { bytes, is_part: false }
    }

    /// Takes the table, and leaves an empty table without room.
    pub fn take(&mut self) -> SlotTable {
        std::mem::replace(self, SlotTable::empty(0))
    }

    /// Adds whole slots in their form on disk; returns false, and adds nothing, if there is no room for them.
    pub fn add(&mut self, on_disk: &[u8]) -> bool {
        let fits =
            on_disk.len() <= self.bytes.capacity() - self.bytes.len() && on_disk.len().is_multiple_of(SLOT_BYTES);
        if fits {
            let before = self.len();
            self.bytes.extend_from_slice(on_disk);
            if cfg!(target_endian = "big") {
                self[before..].iter_mut().for_each(|slot| *slot = u64::from_le(*slot));
            }
        }
        fits
    }
}

/// Allocates room for this many bytes at an address that is aligned for slots.
fn aligned(bytes: usize) -> BytesMut {
    let mut room = BytesMut::with_capacity(bytes + align_of::<u64>() - 1);
    let before = room.as_ptr().align_offset(align_of::<u64>());
    room.resize(before, 0);
    room.advance(before);
    room
}

impl Deref for SlotTable {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        FromBytes::ref_from_bytes(&self.bytes).expect("slots are whole and aligned")
    }
}

impl DerefMut for SlotTable {
    fn deref_mut(&mut self) -> &mut [u64] {
        FromBytes::mut_from_bytes(&mut self.bytes).expect("slots are whole and aligned")
    }
}

impl Drop for SlotTable {
    fn drop(&mut self) {
        if self.is_part {
            release_pages(&mut self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adjacent tables keep to their own slots when other tables leave.
    #[test]
    fn adjacent_tables_keep_own_slots() {
        let sizes = [TOGETHER_BYTES_MIN / 2, 24, TOGETHER_BYTES_MIN / 2, 8];
        let mut rooms = SlotTable::rooms(&sizes);
        for (number, (slots, bytes)) in rooms.iter_mut().zip(sizes).enumerate() {
            assert!(slots.is_empty() && slots.add(&vec![number as u8 + 1; bytes]));
            assert!(!slots.add(&[0; 8]), "there is room for no more");
        }
        rooms.remove(2);
        rooms.remove(0);
        assert_eq!(*rooms[0], [0x0202_0202_0202_0202; 3]);
        assert_eq!(*rooms[1], [0x0404_0404_0404_0404]);
        assert!(SlotTable::empty(1000).iter().all(|slot| *slot == 0) && SlotTable::empty(1000).len() == 1000);
    }
}
