//! Requests to the machine's memory: to fetch a line before it is needed, and to use large pages for large tables.
//!
//! Owns: the prefetch instruction, the system call for large pages, the only `unsafe` code of this crate, and the few
//! ids that wait for the second step of their prefetch. Promises: changes nothing visible to the program. Leaves to
//! others: which lines to fetch and how early, and which tables get large pages.
//!
//! An access to a random address also needs the translation of the address of its page. A processor caches the
//! translations of only a few pages, and a prefetch instruction waits for a missing one. With pages of 2 MiB few
//! translations are needed.
#![allow(unsafe_code)]

use std::cell::Cell;

/// The size of a large page; on machines whose large pages have another size there is no gain. *Units*: bytes.
const LARGE_PAGE_BYTES: usize = 2 << 20;
/// The smallest table that gets large pages. *Units*: bytes.
const LARGE_BYTES_MIN: usize = 2 * LARGE_PAGE_BYTES;

/// An empty vector for `capacity` values, in large pages if it is large enough and the system grants them. *Cost*:
/// memory is then used in whole large pages.
pub(crate) fn with_capacity<T>(capacity: usize) -> Vec<T> {
    let values = Vec::<T>::with_capacity(capacity);
    #[cfg(target_os = "linux")]
    {
        let bytes = values.capacity() * size_of::<T>();
        let start: *mut u8 = values.as_ptr().cast_mut().cast();
        let skipped = start.align_offset(LARGE_PAGE_BYTES);
        if bytes >= LARGE_BYTES_MIN && skipped < bytes {
            let whole = (bytes - skipped) & !(LARGE_PAGE_BYTES - 1);
            // SAFETY: the range is within the vector's own memory, and the advice does not change what is in it. A
            // refusal of the advice is not an error.
            unsafe { libc::madvise(start.wrapping_add(skipped).cast(), whole, libc::MADV_HUGEPAGE) };
        }
    }
    values
}

/// A vector of `count` copies of `value`, in memory from [`with_capacity`].
pub(crate) fn filled<T: Clone>(value: T, count: usize) -> Vec<T> {
    let mut values = with_capacity(count);
    values.resize(count, value);
    values
}

/// The values of `old`, followed by copies of `value` up to `count` values, in memory from [`with_capacity`].
pub(crate) fn grown<T: Copy>(old: &[T], count: usize, value: T) -> Vec<T> {
    let mut values = with_capacity(count);
    values.extend_from_slice(old);
    values.resize(count, value);
    values
}

/// Prefetches the cache line in which `value` begins; on processors other than x86-64 it does nothing.
#[inline]
pub(crate) fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction reads nothing into the program and does not fault, and the address is that of a
    // reference.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast::<i8>());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// [`PrefetchQueue::exchange`] returns an id when this many other ids have been announced after it.
const TOLD: usize = 8;

/// The announced ids whose first cache lines are being fetched. Once these lines have arrived, the lines to which they
/// refer can be prefetched.
#[derive(Debug, Clone, Default)]
pub(crate) struct PrefetchQueue {
    ids: [Cell<u64>; TOLD],
    next: Cell<usize>,
}

impl PrefetchQueue {
    /// Stores an id. *Returns* the id stored [`TOLD`] calls before; an arbitrary id if there was none.
    #[inline]
    pub(crate) fn exchange(&self, id: u64) -> u64 {
        let next = self.next.get();
        self.next.set((next + 1) % TOLD);
        self.ids[next % TOLD].replace(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_large_pages_is_memory() {
        for count in [0, 1, 1000, LARGE_BYTES_MIN / 8 - 1, LARGE_BYTES_MIN / 8, LARGE_BYTES_MIN / 8 * 3 + 1] {
            let mut values = filled(7_u64, count);
            assert!(values.len() == count && values.iter().all(|value| *value == 7));
            values.iter_mut().zip(0..).for_each(|(value, index)| *value = index);
            let values = grown(&values, count + count / 2 + 1, u64::MAX);
            assert!(values.iter().take(count).copied().eq(0..count as u64));
            assert!(values.len() > count && values[count..].iter().all(|value| *value == u64::MAX));
        }
    }

    /// An id is returned when enough other ids have been announced.
    #[test]
    fn announced_id_returns_in_turn() {
        let told = PrefetchQueue::default();
        let given: Vec<u64> = (1..=3 * TOLD as u64).map(|id| told.exchange(id)).collect();
        assert!(given[TOLD..].iter().copied().eq(1..=2 * TOLD as u64));
    }

    #[test]
    fn prefetch_leaves_data_unchanged() {
        let values: Vec<u64> = (0..1000).collect();
        values.iter().for_each(prefetch);
        assert_eq!(values.iter().sum::<u64>(), 499_500);
    }
}
