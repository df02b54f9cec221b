//! The directory entries in an answer.
//!
//! Owns: the layout of the entries, and the check that they fit into the number of bytes that the request allows.

use zerocopy::IntoBytes;

use crate::attributes::LookupEntry;
use crate::protocol::answers::{EntryHead, EntryOut};

/// The alignment of the start of every entry. *Units*: bytes.
const ALIGNMENT: usize = 8;

/// Entries of a directory, in the order of the listing.
#[derive(Debug)]
pub struct DirectoryListing {
    bytes: Vec<u8>,
    bytes_max: usize,
    plus: bool,
}

impl DirectoryListing {
    /// Makes an empty listing for at most `size` bytes of entries. The entries have attributes if `plus` is true.
    pub fn new(size: u32, plus: bool) -> DirectoryListing {
        DirectoryListing { bytes: Vec::with_capacity((size as usize).min(64 << 10)), bytes_max: size as usize, plus }
    }

    /// Adds an entry if there is room for it, and returns whether it was added. `kind` is the entry's `d_type`.
    /// `next_offset` is the offset at which a later listing continues after this entry. `entry` is used only in a
    /// listing with attributes. In such a listing it counts as a look-up, unless its node is 0. A node of 0 means that
    /// the attributes are unknown, as for `.` and `..`.
    pub fn add(&mut self, name: &[u8], number: u64, kind: u8, next_offset: u64, entry: &LookupEntry) -> bool {
        let fixed = size_of::<EntryHead>() + if self.plus { size_of::<EntryOut>() } else { 0 };
        let bytes = (fixed + name.len()).next_multiple_of(ALIGNMENT);
        let Ok(name_bytes) = u32::try_from(name.len()) else { return false };
        if name.is_empty() || bytes > self.bytes_max - self.bytes.len() {
            return false;
        }
        let end = self.bytes.len() + bytes;
        if self.plus {
            self.bytes.extend_from_slice(entry.out().as_bytes());
        }
        let head = EntryHead { node: number, next_offset, name_bytes, kind: u32::from(kind) };
        self.bytes.extend_from_slice(head.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        true
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries are aligned and end where the room ends.
    #[test]
    fn directory_entries_fit_the_room() {
        let mut listing = DirectoryListing::new(64, false);
        assert!(listing.add(b"a", 7, 8, 1, &LookupEntry::default()));
        assert_eq!(listing.bytes().len(), 32);
        assert!(!listing.add(b"nine-byte", 7, 8, 2, &LookupEntry::default()));
        assert!(listing.add(&[0xff; 8], 7, 8, 2, &LookupEntry::default()));
        assert!(!listing.add(b"b", 7, 8, 3, &LookupEntry::default()));
        let mut listing = DirectoryListing::new(160, true);
        assert!(listing.add(b"12345678", 7, 8, 1, &LookupEntry::default()));
        assert!(!listing.add(b"", 7, 8, 1, &LookupEntry::default()));
        assert_eq!(listing.bytes().len(), 160);
    }
}
