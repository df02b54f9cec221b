//! Elements by index that stay where they are while others are added.
//!
//! Owns: finding an element, and making it when it is first used. Elements are on shelves, each twice as long as the one
//! before, so a device grows while requests use it, and finding an element needs no lock.

use std::sync::OnceLock;

/// The first shelf has this number of elements, as a power of two.
const FIRST_BITS: u32 = 6;
/// Shelves for more elements than there can be slabs.
const SHELVES: usize = 44;

/// Elements by index.
pub(super) struct StableVector<T> {
    shelves: [OnceLock<Box<[T]>>; SHELVES],
}

impl<T: Default> StableVector<T> {
    pub fn new() -> StableVector<T> {
        StableVector { shelves: [const { OnceLock::new() }; SHELVES] }
    }

    /// Returns an element; the index is below 2^49.
    pub fn get(&self, index: usize) -> &T {
        let (shelf, at) = place(index);
        let fill = || (0..1usize << (FIRST_BITS as usize + shelf)).map(|_| T::default()).collect();
        &self.shelves[shelf].get_or_init(fill)[at]
    }

    /// Returns all elements that were made.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.shelves.iter_mut().filter_map(OnceLock::get_mut).flatten()
    }
}

/// Returns the shelf of an element, and its place there.
fn place(index: usize) -> (usize, usize) {
    let number = index + (1 << FIRST_BITS);
    let bits = number.ilog2();
    ((bits - FIRST_BITS) as usize, number - (1 << bits))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn elements_stay_while_others_grow() {
        let mut shelves: StableVector<AtomicUsize> = StableVector::new();
        let first = shelves.get(3) as *const AtomicUsize;
        for index in 0..1000 {
            assert_eq!(shelves.get(index).swap(index + 1, Ordering::Relaxed), 0, "{index}");
        }
        assert!((0..1000).all(|index| shelves.get(index).load(Ordering::Relaxed) == index + 1));
        assert!(std::ptr::eq(first, shelves.get(3)));
        assert_eq!(shelves.iter_mut().map(|element| *element.get_mut()).filter(|number| *number > 0).count(), 1000);
        assert_eq!(
            [place(0), place(63), place(64), place(191), place(192)],
            [(0, 0), (0, 63), (1, 0), (1, 127), (2, 0)]
        );
    }
}
