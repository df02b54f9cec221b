//! How tables grow: by a quarter at a time.
//!
//! Owns: the sequence of sizes, which the structures follow and by which `memory_of.rs` predicts their memory. Promises:
//! a table that grew to hold `n` values has room for at most a quarter more than it needs. Doubling would copy less
//! while a cache fills, but then wastes up to half of the memory for as long as the cache lives.

use crate::structures::memory::with_capacity;

/// The size after `size`: a quarter more, and a multiple of `unit`.
pub(crate) fn next(size: usize, unit: usize) -> usize {
    (size + size / 4 + 1).next_multiple_of(unit)
}

/// The size of a table that began with `least` and grew until it was at least `needed`; 0 if nothing is needed.
pub(crate) fn reached(needed: usize, least: usize, unit: usize) -> usize {
    if needed == 0 {
        return 0;
    }
    let mut size = least;
    while size < needed {
        size = next(size, unit);
    }
    size
}

/// The smallest vector of [`push`].
const VALUES_MIN: usize = 4;

/// Appends a value; a full vector grows by a quarter, in memory from [`with_capacity`].
#[inline]
pub(crate) fn push<T: Copy>(values: &mut Vec<T>, value: T) {
    if values.len() == values.capacity() {
        grow(values);
    }
    values.push(value);
}

#[cold]
fn grow<T: Copy>(values: &mut Vec<T>) {
    let mut grown = with_capacity(next(values.len(), 1).max(VALUES_MIN));
    grown.extend_from_slice(values);
    *values = grown;
}

/// The memory of a vector that [`push`] filled with `count` values. *Units*: bytes.
pub(crate) fn bytes_of<T>(count: usize) -> u64 {
    (reached(count, VALUES_MIN, 1) * size_of::<T>()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vector_has_predicted_size() {
        let mut values = Vec::new();
        for count in 1..10_000 {
            push(&mut values, 7_u64);
            assert_eq!((values.capacity() * 8) as u64, bytes_of::<u64>(count));
            assert!(values.capacity() <= count + count / 4 + VALUES_MIN);
        }
    }
}
