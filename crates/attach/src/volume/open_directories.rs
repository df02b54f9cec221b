//! Directories that programs have open, and what is known of them if another host removes one.
//!
//! A program can still call `fstat` on such a directory; it has no links. The server does not know who has it open. The
//! kernel does not say whether it asks for an open directory or for a path, so both get this answer while it is open.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nectary_volume::protocol::InodeAttributes;

/// An open directory.
struct OpenDirectory {
    /// How often it is open.
    opens: u64,
    /// The attributes when it was opened last.
    attributes: InodeAttributes,
}

/// The open directories of a mount, by node.
#[derive(Default)]
pub struct OpenDirectories(Mutex<HashMap<u64, OpenDirectory>>);

impl OpenDirectories {
    fn all(&self) -> MutexGuard<'_, HashMap<u64, OpenDirectory>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a directory is opened.
    pub fn open(&self, node: u64, attributes: InodeAttributes) {
        let mut all = self.all();
        let opens = all.get(&node).map_or(0, |open| open.opens) + 1;
        all.insert(node, OpenDirectory { opens, attributes });
    }

    /// Notes that a directory is closed.
    pub fn close(&self, node: u64) {
        let mut all = self.all();
        if let Some(open) = all.get_mut(&node) {
            open.opens -= 1;
            if open.opens == 0 {
                all.remove(&node);
            }
        }
    }

    /// Returns the attributes of a directory that was removed, if it is open.
    pub fn removed(&self, node: u64) -> Option<InodeAttributes> {
        let mut attributes = self.all().get(&node)?.attributes.clone();
        attributes.inode.links = 0;
        Some(attributes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_directory_is_known_while_open() {
        let (open, mut attributes) = (OpenDirectories::default(), InodeAttributes { number: 9, ..Default::default() });
        attributes.inode.links = 2;
        assert!(open.removed(5).is_none());
        open.open(5, attributes.clone());
        open.open(5, attributes);
        open.close(5);
        assert_eq!(open.removed(5).map(|found| (found.number, found.inode.links)), Some((9, 0)));
        open.close(5);
        assert!(open.removed(5).is_none());
        open.close(5);
    }
}
