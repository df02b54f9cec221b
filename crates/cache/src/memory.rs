//! What is asked of the machine's memory: to fetch a line before it is needed.
//!
//! Owns: the one instruction, and the only `unsafe` of this crate. Promises: changes nothing that a program can see. Leaves
//! to others: what is worth fetching, and how long before it is needed.
#![allow(unsafe_code)]

/// Asks for the line in which `value` begins; on processors other than x86-64 it does nothing.
#[inline]
pub(crate) fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction reads nothing into the program and does not fault, and the address is that of a reference.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast::<i8>());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_fetched_is_as_it_was() {
        let values: Vec<u64> = (0..1000).collect();
        values.iter().for_each(super::prefetch);
        assert_eq!(values.iter().sum::<u64>(), 499_500);
    }
}
